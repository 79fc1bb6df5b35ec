"""Rows that lie outside Python: the same results as from lists, and no list of all texts."""

from __future__ import annotations

import errno
import io
from mmap import mmap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import joblib
import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from pyarrow import dataset as arrow_dataset
from pyarrow import parquet

import skbert
from skbert._core.text import spill, tokens
from skbert._estimator import predicting
from skbert._validation import parquet as files
from skbert._validation import stored, tables
from skbert._validation.texts import check_texts
from skbert.exceptions import InputError, InputTypeError, SkbertWarning, TrainingError

if TYPE_CHECKING:
    from collections.abc import Callable

datasets = pytest.importorskip("datasets")

TEXTS = [
    f"the {thing} is {word} and {other}"
    for thing in ("movie", "food", "service")
    for word in ("good", "bad", "great")
    for other in ("awful", "nice", "")
]
LABELS = ["good" if "good" in text or "great" in text else "bad" for text in TEXTS]
SECOND = TEXTS[5:] + TEXTS[:5]
TABLE = pa.table({"text": TEXTS, "second": SECOND, "number": range(len(TEXTS))})


@pytest.fixture(autouse=True)
def _short_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "CHUNK_ROWS", 4)
    monkeypatch.setattr(predicting, "_CHUNK_SIZE", 4)
    monkeypatch.setattr(files, "_BATCH_ROWS", 3)


def as_file(table: Any, folder: Path) -> Any:
    parquet.write_table(table, folder / "x.parquet", row_group_size=10)
    return parquet.ParquetFile(folder / "x.parquet")


def as_files(table: Any, folder: Path) -> Any:
    for at in range(0, len(table), 10):
        part = folder / f"{at:02}.parquet"
        parquet.write_table(table.slice(at, 10), part, row_group_size=7)
    return arrow_dataset.dataset(folder)


CONTAINERS: dict[str, Callable[[Any, Path], Any]] = {
    "table": lambda table, _: pa.concat_tables([table[:9], table[9:]]),
    "record batch": lambda table, _: table.combine_chunks().to_batches()[0],
    "polars": lambda table, _: pl.from_arrow(table),
    "datasets": lambda table, _: datasets.Dataset(table),
    "parquet file": as_file,
    "parquet files": as_files,
}
COLUMNS: dict[str, Callable[[Any], Any]] = {
    "array": lambda table: table["text"].combine_chunks(),
    "chunked array": lambda table: table["text"],
    "categories": lambda table: table["text"].dictionary_encode(),
    "large strings": lambda table: table["text"].cast(pa.large_string()),
    "datasets": lambda table: datasets.Dataset(table)["text"],
    "shuffled datasets": lambda table: datasets.Dataset(table).select(range(len(table)))["text"],
    "polars": lambda table: pl.from_arrow(table)["text"],
}

Make = type[Any]


def classifier(model: Path, **params: Any) -> Any:
    return skbert.BertClassifier(model, epochs=1, random_state=0, **params)


@pytest.fixture(scope="module")
def fitted(tiny_model: Path) -> Any:
    return classifier(tiny_model).fit(TEXTS, LABELS)


@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_gives_the_same_as_a_list(name: str, fitted: Any) -> None:
    X = COLUMNS[name](TABLE)
    assert isinstance(check_texts(X).first, stored.StoredTexts)
    np.testing.assert_array_equal(fitted.predict_proba(X), fitted.predict_proba(TEXTS))


@pytest.mark.parametrize("name", CONTAINERS)
@pytest.mark.parametrize("columns", ["text", ["text", "second"], ["second", "third", "text"]])
def test_the_texts_of_a_table_are_those_of_a_frame(
    name: str, columns: Any, tmp_path: Path
) -> None:
    table = TABLE.append_column("third", [TEXTS[::-1]])
    texts = check_texts(CONTAINERS[name](table, tmp_path), columns=columns)
    plain = check_texts(table.to_pandas(), columns=columns)
    assert isinstance(texts.first, stored.StoredTexts)
    assert [[*column] for column in texts.columns] == plain.columns
    assert texts.names == plain.names
    rows = np.array([3, 25, 1, 1, 26, 0, 7])
    assert [[*column] for column in texts.take(rows).columns] == plain.take(rows).columns
    assert [column[17] for column in texts.columns] == [column[17] for column in plain.columns]


ESTIMATORS: dict[str, tuple[str, dict[str, Any], Any]] = {
    "classifier": ("BertClassifier", {"text_columns": "text"}, LABELS),
    "held out": (
        "BertClassifier", {"text_columns": "text", "validation_fraction": 0.3}, LABELS,
    ),
    "pairs": ("BertClassifier", {"text_columns": ["text", "second"]}, LABELS),
    "label texts": (
        "BertClassifier",
        {"text_columns": "text", "label_texts": {"good": "it is good", "bad": "it is bad"}},
        LABELS,
    ),
    "features": (
        "BertClassifier", {"text_columns": "text", "feature_columns": "number"}, LABELS,
    ),
    "windows": (
        "BertClassifier",
        {"text_columns": "text", "long_text": "windows", "max_length": 5},
        LABELS,
    ),
    "regressor": ("BertRegressor", {"text_columns": "text"}, [*range(len(TEXTS))]),
    "extractor": (
        "BertSpanExtractor",
        {"text_columns": ["text", "second"]},
        [text.split()[1] for text in SECOND],
    ),
    "tagger": (
        "BertTokenTagger", {"text_columns": "text"}, [[(0, 3, "THE")] for _ in TEXTS],
    ),
    "transformer": ("BertTransformer", {"text_columns": "text"}, None),
}  # fmt: skip


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize("container", ["table", "parquet file", "datasets"])
def test_fits_and_predictions_are_the_same(
    name: str, container: str, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, params, y = ESTIMATORS[name]
    params = {**params, "random_state": 0, "epochs": 1} if y is not None else params
    monkeypatch.setattr(tokens, "_GATHERED", 10)
    monkeypatch.setattr(spill, "SPILL_BYTES", 50)
    frame = TABLE.to_pandas()
    plain = getattr(skbert, kind)(tiny_model, **params).fit(frame, y)
    X = CONTAINERS[container](TABLE, tmp_path)
    own = getattr(skbert, kind)(tiny_model, **params).fit(X, y)
    assert own.feature_names_in_.tolist() == plain.feature_names_in_.tolist()
    assert own.n_features_in_ == plain.n_features_in_ == 3
    method = {"classifier": "predict_proba", "transformer": "transform"}.get(name, "predict")
    one, other = getattr(own, method)(X), getattr(plain, method)(frame)
    np.testing.assert_array_equal(one, other)
    for mine, theirs in zip(own.model_.parameters(), plain.model_.parameters(), strict=True):
        assert mine.equal(theirs)


def test_partial_fits_are_the_same(fitted: Any, tiny_model: Path) -> None:
    own = classifier(tiny_model)
    for at in (0, 12):
        own.partial_fit(TABLE["text"][at : at + 12], pa.array(LABELS[at : at + 12]))
    plain = classifier(tiny_model)
    for at in (0, 12):
        plain.partial_fit(TEXTS[at : at + 12], LABELS[at : at + 12])
    np.testing.assert_array_equal(own.predict_proba(TEXTS), plain.predict_proba(TEXTS))


def test_equal_texts_are_embedded_once(tiny_model: Path) -> None:
    rows = np.random.default_rng(0).integers(0, len(TEXTS), 60)
    X = [TEXTS[row] for row in rows]
    pairs = [*zip(X, X[::-1], strict=True)]
    model = skbert.BertTransformer(tiny_model)
    np.testing.assert_array_equal(model.fit_transform(pa.array(X)), model.fit_transform(X))
    first, second = zip(*pairs, strict=True)
    table = pa.table({"first": first, "second": second})
    np.testing.assert_array_equal(model.fit_transform(table), model.fit_transform(pairs))


def test_no_list_holds_all_texts(fitted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    longest: list[int] = []
    read = tables.read_cells

    def noted(column: Any, *names: str) -> list[Any]:
        cells = read(column, *names)
        longest.append(len(cells))
        return cells

    monkeypatch.setattr(tables, "read_cells", noted)
    fitted.predict(TABLE["text"])
    classifier(fitted.model).fit(TABLE["text"], LABELS)
    assert max(longest[: len(longest) // 2]) == 4
    assert sorted({*longest}) == [3, 4, 27], "y is one list"
    assert longest.count(27) == 1


def test_a_missing_text_is_named_by_its_row_in_the_file(tmp_path: Path, fitted: Any) -> None:
    gaps = [None if row in {23, 25} else text for row, text in enumerate(TEXTS)]
    file = as_file(pa.table({"text": gaps}), tmp_path)
    with pytest.raises(InputError, match=(
        r"^X has 2 missing text\(s\), the first in row 23 of column 'text' "
        r"\(row 3 of row group 2\) \(None\)"
    )):  # fmt: skip
        fitted.predict(file)
    table = pa.table({"text": gaps})
    in_file = rf" \(in {tmp_path}/many/20\.parquet\) \(None\)"
    (tmp_path / "many").mkdir()
    for X, place in (
        (as_files(table, tmp_path / "many"), in_file), (arrow_dataset.dataset(table), r" \(None\)")
    ):  # fmt: skip
        with pytest.raises(InputError, match=rf"2 missing .* row 23 of column 'text'{place}"):
            fitted.predict(X)
    with pytest.raises(InputError, match=r"2 missing text\(s\), the first in row 23 \(None\)"):
        fitted.predict(pa.chunked_array([gaps[:5], gaps[5:]]))


def test_a_wrong_type_is_named_by_its_row_in_the_file(tmp_path: Path, fitted: Any) -> None:
    file = as_file(pa.table({"text": range(27)}), tmp_path)
    with pytest.raises(InputTypeError, match=r"row 0 of column 'text' \(row 0 of row group 0\)"):
        fitted.predict(file)


def test_a_dataset_is_read_with_its_filter(tmp_path: Path, fitted: Any) -> None:
    X = as_files(TABLE, tmp_path).filter(arrow_dataset.field("number") >= 8)
    own = fitted.set_params(text_columns="text").predict_proba(X)
    fitted.set_params(text_columns=None)
    np.testing.assert_array_equal(own, fitted.predict_proba(TEXTS[8:]))


def test_half_of_the_rows_blank_is_said_once(fitted: Any) -> None:
    X = pa.array([" ", ""] * 9)
    with pytest.warns(SkbertWarning, match="^18 of 18 rows of X are empty") as caught:
        fitted.predict(X)
    assert len(caught) == 1


def test_missing_texts_may_be_empty(tiny_model: Path) -> None:
    gaps = [None if row % 5 == 4 else text for row, text in enumerate(TEXTS)]
    model = skbert.BertTransformer(tiny_model, missing="empty")
    plain = model.fit_transform([text or "" for text in gaps])
    np.testing.assert_array_equal(model.fit_transform(pa.array(gaps)), plain)


def test_checkpoints_tell_rows_from_others() -> None:
    """What a stopped fit compares: the same texts, in whatever chunks, have the same hash."""
    hashes = [
        joblib.hash(check_texts(pa.chunked_array([texts[:at], texts[at:]])))
        for at in (2, 11)
        for texts in (TEXTS, SECOND)
    ]
    assert hashes[0] == hashes[2] != hashes[1] == hashes[3]


# --- token ids in a file ---------------------------------------------------------------------


def test_long_arrays_lie_in_a_file_without_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spill, "SPILL_BYTES", 100)
    monkeypatch.setattr(spill.tempfile, "tempdir", str(tmp_path))
    parts = [np.arange(at * 10, at * 10 + 10).reshape(5, 2) for at in range(8)]
    grown = spill.GrowingArray()
    for part in parts:
        grown.append(part)
        assert not [*tmp_path.iterdir()]
    whole = grown.array()
    np.testing.assert_array_equal(whole, np.concatenate(parts))
    bases = [whole]
    while isinstance(bases[-1], np.ndarray):
        bases.append(bases[-1].base)
    assert isinstance(bases[-1], mmap)
    assert not [*tmp_path.iterdir()]


def test_a_full_disk_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.BytesIO):
        def write(self, _: Any) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(spill, "SPILL_BYTES", 10)
    monkeypatch.setattr(spill, "TemporaryFile", lambda prefix: Full())
    with pytest.raises(TrainingError, match=r"No space left on device.*TMPDIR"):
        spill.GrowingArray().append(np.arange(10))
