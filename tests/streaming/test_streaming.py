"""The commands fit, predict and embed: what they write, and what they leave when they stop."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from pyarrow import csv as arrow_csv
from pyarrow import parquet
from support.children import child

import skbert
from skbert.__main__ import main
from skbert._estimator.resuming import FitCheckpoints
from skbert._streaming import sources, unfinished
from skbert._validation.texts import check_texts
from skbert.exceptions import SkbertError

if TYPE_CHECKING:
    from collections.abc import Callable

TEXTS = [
    f"the {thing} is {word} and {other}"
    for thing in ("movie", "food", "service", "phone")
    for word in ("good", "bad", "great")
    for other in ("awful", "nice", "fine")
]
LABELS = ["good" if "good" in text or "great" in text else "bad" for text in TEXTS]
TABLE = pa.table({
    "id": range(len(TEXTS)), "text": TEXTS, "label": LABELS, "second": TEXTS[::-1],
    "number": [float(len(text)) for text in TEXTS],
})  # fmt: skip


@pytest.fixture(autouse=True)
def _short_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "PART_ROWS", 4)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A parquet file with row groups of 10, 10, 10 and 6 rows: parts of 4, 4, 2 and so on."""
    return write(TABLE, tmp_path / "in.parquet")


def write(table: Any, path: Path) -> Path:
    parquet.write_table(table, path, row_group_size=10)
    return path


@pytest.fixture(scope="module")
def model(lively_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier of the column text."""
    params = {"class_weight": "balanced", "epochs": 5, "learning_rate": 3e-3}
    scratch = tmp_path_factory.mktemp("saved")
    folder = saved("BertClassifier", lively_model, scratch, LABELS, **params)
    assert {*skbert.load(folder).predict(TABLE)} == {*LABELS}
    return folder


def saved(kind: str, lively_model: Path, folder: Path, y: Any, **params: Any) -> Path:
    more = {"random_state": 0, "epochs": 1} if kind != "BertTransformer" else {}
    settings = {"text_columns": "text", **more, **params}
    estimator = getattr(skbert, kind)(lively_model, **settings).fit(TABLE.to_pandas(), y)
    estimator.save(folder / "model")
    return folder / "model"


def run(command: str, *arguments: object) -> None:
    main([command, *map(str, arguments)])


def refused(capsys: pytest.CaptureFixture[str], command: str, *arguments: object) -> str:
    """The error with which a command ends."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as info:
        run(command, *arguments)
    assert info.value.code == 1
    error = capsys.readouterr().err
    assert "Traceback" not in error
    return error.partition("error: ")[2].strip()


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# --- predict -------------------------------------------------------------------------------------


def test_predictions_stand_beside_the_columns(
    model: Path, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.parquet"
    run("predict", model, source, out)
    assert capsys.readouterr().out == f"{out}\n"
    written = parquet.read_table(out)
    assert written.column_names == [*TABLE.column_names, "prediction"]
    assert written.drop_columns("prediction").equals(TABLE)
    expected = skbert.load(model).predict(TABLE.to_pandas())
    assert written["prediction"].to_pylist() == expected.tolist()
    assert names_in(tmp_path) == ["in.parquet", "out.parquet"]


def test_columns_are_chosen_and_probabilities_added(
    model: Path, source: Path, tmp_path: Path
) -> None:
    out = tmp_path / "new folder" / "out.parquet"
    run("predict", model, source, out, "--probabilities", "--keep", "id", "label")
    written = parquet.read_table(out)
    assert written.column_names == ["id", "label", "prediction", "probability_bad",
                                    "probability_good"]  # fmt: skip
    expected = skbert.load(model).predict_proba(TABLE.to_pandas())
    for name, column in zip(written.column_names[3:], expected.T, strict=True):
        assert written[name].type == pa.float32()
        np.testing.assert_allclose(written[name], column, atol=1e-6)
    run("predict", model, source, tmp_path / "bare.parquet", "--keep")
    assert parquet.read_table(tmp_path / "bare.parquet").column_names == ["prediction"]


def test_text_columns_of_a_model_without_names(
    lively_model: Path, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = [*zip(TEXTS, TEXTS[::-1], strict=True)]
    settings = {"random_state": 0, "epochs": 1}
    estimator = skbert.BertClassifier(lively_model, **settings).fit(pairs, LABELS)
    estimator.save(tmp_path / "model")
    error = refused(capsys, "predict", tmp_path / "model", source, tmp_path / "out.parquet")
    assert "the model was fitted without names" in error
    assert "--text-columns NAME" in error
    run("predict", tmp_path / "model", source, tmp_path / "out.parquet", "--text-columns",
        "text", "second")  # fmt: skip
    written = parquet.read_table(tmp_path / "out.parquet")["prediction"]
    assert written.to_pylist() == estimator.predict(pairs).tolist()


@pytest.mark.parametrize(
    "settings",
    [
        {"text_columns": [1, 0]},
        {"text_columns": 2},
        {"text_columns": 0, "feature_columns": [4, 3]},
    ],
    ids=str,
)
@pytest.mark.parametrize("has_names", [True, False])
def test_columns_by_position_are_those_of_the_file(
    settings: dict[str, Any], has_names: bool, lively_model: Path, tmp_path: Path
) -> None:
    columns = {
        "a": TEXTS, "b": TEXTS[::-1], "c": TEXTS, "n": [*map(float, range(len(TEXTS)))],
        "m": [float(row % 2) for row in range(len(TEXTS))],
    }  # fmt: skip
    table = pa.table(columns)
    X = table if has_names else table.to_pandas().to_numpy()
    how = {"random_state": 0, "epochs": 2, "learning_rate": 3e-3, **settings}
    estimator = skbert.BertClassifier(lively_model, **how).fit(X, LABELS)
    estimator.save(tmp_path / "model")
    source, out = write(table, tmp_path / "in.parquet"), tmp_path / "out.parquet"
    run("predict", tmp_path / "model", source, out, "--probabilities")
    found = parquet.read_table(out)["probability_good"].to_numpy()
    np.testing.assert_allclose(found, estimator.predict_proba(X)[:, 1], atol=1e-6)


KINDS: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "regressor": ("BertRegressor", [float(at) for at in range(len(TEXTS))], {}),
    "two numbers": ("BertRegressor", np.eye(len(TEXTS), 2), {}),
    "indicators": ("BertClassifier", np.eye(len(TEXTS), 3, dtype=int), {}),
    "columns of classes": (
        "BertClassifier", TABLE.select(["label"]).to_pandas().assign(length=[
            "long" if len(text) > 28 else "short" for text in TEXTS]), {},
    ),
    "features": ("BertClassifier", LABELS, {"feature_columns": ["number"]}),
    "fields": ("BertClassifier", LABELS, {"text_columns": ["text", "second", "label"]}),
    "whole numbers": ("BertClassifier", [len(text) % 3 for text in TEXTS], {}),
    "tagger": ("BertTokenTagger", [[(0, 3, "THE")] * (at < 9) for at in range(len(TEXTS))], {}),
    "extractor": (
        "BertSpanExtractor", [text.split()[1] for text in TEXTS[::-1]],
        {"text_columns": ["text", "second"]},
    ),
    "ranker": (
        "BertChoiceRanker", [at % 2 for at in range(len(TEXTS))],
        {"text_columns": ["text", "second", "label"]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_every_estimator_that_predicts(
    kind: str, lively_model: Path, source: Path, tmp_path: Path
) -> None:
    name, y, params = KINDS[kind]
    folder = saved(name, lively_model, tmp_path, y, **params)
    run("predict", folder, source, tmp_path / "out.parquet", "--keep")
    written = parquet.read_table(tmp_path / "out.parquet").to_pandas()
    expected = skbert.load(folder).predict(TABLE.to_pandas())
    assert len(written) == len(expected) == len(TEXTS)
    if kind == "tagger":
        found = [[(each["start"], each["end"], each["label"]) for each in row]
                 for row in written["prediction"]]  # fmt: skip
        assert found == [*expected]
    else:
        whole = pd.DataFrame(np.asarray(expected), columns=written.columns)
        assert kind in ("indicators", "columns of classes") or whole.nunique().min() > 1
        pd.testing.assert_frame_equal(written, whole, check_dtype=False, rtol=1e-5, atol=1e-5)


# --- embed ---------------------------------------------------------------------------------------


def to_frames(model: Path, folder: Path) -> Path:
    """A folder of a transformer that makes frames."""
    transformer = skbert.BertTransformer(model, device="cpu", text_columns="text")
    transformer.set_output(transform="pandas").fit(TABLE.to_pandas()).save(folder)
    return folder


@pytest.mark.parametrize("kind", ["encoder", "classifier", "transformer", "to frames"])
def test_vectors_are_those_of_the_transformer(
    kind: str, lively_model: Path, model: Path, source: Path, tmp_path: Path
) -> None:
    folders: dict[str, Callable[[], Path]] = {
        "encoder": lambda: lively_model,
        "classifier": lambda: model,
        "transformer": lambda: saved("BertTransformer", lively_model, tmp_path, None,
                                     normalize=True),
        "to frames": lambda: to_frames(lively_model, tmp_path / "to_frames"),
    }  # fmt: skip
    folder = folders[kind]()
    columns = ["--text-columns", "text"] if kind == "encoder" else []
    run("embed", folder, source, tmp_path / "out.parquet", "--keep", "id", *columns)
    written = parquet.read_table(tmp_path / "out.parquet")
    assert written["id"].equals(TABLE["id"])
    transformer = (
        skbert.load(folder) if kind in ("transformer", "to frames")
        else skbert.BertTransformer.from_pretrained(folder)
    )  # fmt: skip
    X = TABLE.to_pandas() if kind in ("transformer", "to frames") else TEXTS
    found = np.array(written["embedding"].to_pylist())
    np.testing.assert_allclose(found, transformer.transform(X), atol=1e-6)


def test_vectors_below_a_head_are_of_what_it_reads(
    lively_model: Path, source: Path, tmp_path: Path
) -> None:
    missing = [None, *TEXTS[1:]]
    settings = {"missing": "empty", "feature_columns": ["number"], "random_state": 0, "epochs": 1}
    X = pd.DataFrame({"text": missing, "number": TABLE["number"]})
    skbert.BertClassifier(lively_model, **settings).fit(X, LABELS).save(tmp_path / "model")
    written = write(pa.table({**X, "id": TABLE["id"]}), tmp_path / "missing.parquet")
    run("embed", tmp_path / "model", written, tmp_path / "out.parquet", "--keep", "id")
    found = np.array(parquet.read_table(tmp_path / "out.parquet")["embedding"].to_pylist())
    transformer = skbert.BertTransformer.from_pretrained(tmp_path / "model")
    np.testing.assert_allclose(found, transformer.transform(["", *TEXTS[1:]]), atol=1e-6)


# --- fit -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_fit_is_that_of_the_estimator(form: str, lively_model: Path, tmp_path: Path) -> None:
    texts = [*TEXTS[:-1], 'with a comma, a "quote"\nand a line, NA']
    data = tmp_path / f"data.{form}"
    if form == "csv":
        with data.open("w", newline="") as file:
            csv.writer(file).writerows([("text", "label"), *zip(texts, LABELS, strict=True)])
    else:
        write(pa.table({"text": texts, "label": LABELS}), data)
    run("fit", data, tmp_path / "model", "--label-columns", "label", "--model", lively_model,
        "--set", "epochs=1", "--set", "random_state=0", "--set", "verbose=0")  # fmt: skip
    opened = skbert.load(tmp_path / "model")
    plain = skbert.BertClassifier(lively_model, epochs=1, random_state=0).fit(texts, LABELS)
    frame = pa.table({"text": TEXTS}).to_pandas()
    np.testing.assert_array_equal(opened.predict_proba(frame), plain.predict_proba(TEXTS))
    assert opened.text_columns == ["text"]


def test_a_fit_goes_on_where_it_was_stopped(
    lively_model: Path, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def command(folder: str, *settings: str) -> None:
        settings = ("epochs=3", "random_state=0", *settings)
        more = [part for each in settings for part in ("--set", each)]
        columns = ("--label-columns", "label", "--text-columns", "text")
        run("fit", source, tmp_path / folder, *columns, "--model", lively_model, *more)

    command("whole")
    kept = f"checkpoint_dir={tmp_path / 'kept'}"
    finish, passes = FitCheckpoints.finish_pass, []

    def stop(self: Any) -> None:
        finish(self)
        passes.append(1)
        if len(passes) == 2:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FitCheckpoints, "finish_pass", stop)
        with pytest.raises(SystemExit) as info:
            command("model", kept)
    assert info.value.code == 130
    assert capsys.readouterr().err.endswith("skbert: stopped\n")
    command("model", kept)
    found, want = (skbert.load(tmp_path / name).model_ for name in ("model", "whole"))
    weights = zip(found.parameters(), want.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in weights)


def test_features_are_no_texts(lively_model: Path, tmp_path: Path) -> None:
    source = write(TABLE.select(["text", "number", "label"]), tmp_path / "in.parquet")
    asked = ["fit", source, tmp_path / "m", "--model", lively_model, "--label-columns", "label"]
    run(*asked, "--set", "epochs=1", "--set", 'feature_columns=["number"]')
    fitted = skbert.load(tmp_path / "m")
    assert (fitted.text_columns, fitted.feature_columns) == (["text"], ["number"])


def test_a_fit_of_several_targets(lively_model: Path, source: Path, tmp_path: Path) -> None:
    run("fit", source, tmp_path / "model", "--estimator", "BertRegressor", "--model",
        lively_model, "--label-columns", "number", "id", "--text-columns", "text",
        "--set", "epochs=1", "--set", "verbose=0")  # fmt: skip
    assert skbert.load(tmp_path / "model").predict(TABLE.to_pandas()).shape == (len(TEXTS), 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--label-columns", "mark"], "has the column 'mark' 0 times instead of once"),
        (["--label-columns", "label", "--text-columns", "txt"], "--text-columns"),
        (["--estimator", "BertWizard"], "--estimator BertWizard is none of BertChoiceRanker"),
        (["--set", "epochs"], "--set epochs: give NAME=VALUE"),
        (["--set", "epoch=3", "--text-columns", "text"], "--set: Invalid parameter 'epoch'"),
        (["--label-columns", "label", "--text-columns", "id"], "row 0 of column 'id'"),
        (["--label-columns", "label", "--text-columns", "text", "label"], "both name ['label']"),
        (["--label-columns", "label", "--set", 'text_columns={"text": "a", "label": "b"}'],
         "text_columns and --label-columns both name ['label']"),
        (["--label-columns", "label", "--text-columns", "text", "--set", "feature_columns=[-3]"],
         "feature_columns and --label-columns both name [-3]"),
        (["--set", "calibrate=True"], "Values are JSON: numbers, true"),
        (["--set", "model=other"], "--model and --set model both say what model is"),
        (["--text-columns", "text", "--set", "text_columns=second"], "both say what text_columns"),
    ],
)  # fmt: skip
def test_a_fit_that_is_refused(
    arguments: list[str], message: str, source: Path, lively_model: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    error = refused(capsys, "fit", source, tmp_path / "m", "--model", lively_model, *arguments)
    assert message in error
    assert names_in(tmp_path) == ["in.parquet"]


def test_labels_that_are_missing_are_placed(
    lively_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = pa.array([None if row in (23, 24) else label for row, label in enumerate(LABELS)])
    table = TABLE.set_column(2, "label", labels)
    path = write(table, tmp_path / "in.parquet")
    asked = ("--label-columns", "label", "--text-columns", "text", "--model", lively_model)
    error = refused(capsys, "fit", path, tmp_path / "m", *asked)
    assert f"'label' of row 23 (row 3 of row group 2 of {path}), and of 2 rows" in error
    arrow_csv.write_csv(table, tmp_path / "in.csv")
    error = refused(capsys, "fit", tmp_path / "in.csv", tmp_path / "m", *asked)
    assert "has no value in the label column 'label' of row 23, and of 2 rows in all" in error
    (tmp_path / "texts.csv").write_text('text,label\na,u\n,v\n"",w\n')
    error = refused(capsys, "fit", tmp_path / "texts.csv", tmp_path / "m", *asked)
    assert "X has 2 missing text(s), the first in row 1" in error
    (tmp_path / "latin.csv").write_bytes("text,label\ngrün,u\n".encode("latin-1"))
    error = refused(capsys, "fit", tmp_path / "latin.csv", tmp_path / "m", *asked)
    assert "latin.csv is not in UTF-8: In CSV column #0" in error
    error = refused(capsys, "fit", tmp_path / "latin.csv", tmp_path / "m", *asked[:2], *asked[4:])
    assert "latin.csv is not in UTF-8: the column 'text' holds other bytes" in error
    file = tmp_path / "file"
    file.write_text("taken")
    assert "cannot be made" in refused(capsys, "fit", path, file / "m", *asked)


@pytest.mark.parametrize(
    "fields",
    [{"text": "title", "second": "body"}, ["text", "second", "label"], [1, 3, 2]],
    ids=str,
)
def test_chosen_columns_take_the_places_of_the_fields_of_fit(
    fields: Any, lively_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = saved("BertClassifier", lively_model, tmp_path, LABELS, text_columns=fields)
    names = ["text", "second", "label"][: len(fields)]
    others = [[f"other {name}" for name in names]] if fields != [1, 3, 2] else []
    for at, chosen in enumerate((names, *others)):
        table = TABLE.rename_columns([
            f"other {name}" if at and name in names else name for name in TABLE.column_names
        ])  # fmt: skip
        source, target = write(table, tmp_path / f"in {at}.parquet"), tmp_path / f"{at}.parquet"
        run("predict", folder, source, target, "--probabilities", "--text-columns", *chosen)
        got = parquet.read_table(target).column("probability_good").to_numpy()
        want = skbert.load(folder).predict_proba(TABLE.to_pandas())[:, 1]
        np.testing.assert_allclose(got, want, rtol=1e-5)
    array = TABLE.select(names).to_pandas().to_numpy()  # no more columns than the fields
    if all(isinstance(field, int) for field in fields):
        positions = [*range(len(names))]
        kind = {"epochs": 1, "precision": "float32", "random_state": 0, "text_columns": positions}
        model = skbert.BertClassifier(lively_model, **kind).fit(array, LABELS)
        model.save(tmp_path / "array")
        target = tmp_path / "of array.parquet"
        run("predict", tmp_path / "array", source, target, "--probabilities", "--text-columns",
            *chosen)  # fmt: skip
        got = parquet.read_table(target).column("probability_good").to_numpy()
        np.testing.assert_allclose(got, model.predict_proba(array)[:, 1], rtol=1e-5)
        beside = {**kind, "feature_columns": [3], "text_columns": [2, 0, 1]}
        wide = TABLE.select([*names, "number"])
        model = skbert.BertClassifier(lively_model, **beside).fit(
            wide.to_pandas().to_numpy(), LABELS
        )
        model.save(tmp_path / "wide")
        rows, target = write(wide, tmp_path / "wide.parquet"), tmp_path / "of wide.parquet"
        run("predict", tmp_path / "wide", rows, target, "--probabilities", "--text-columns",
            names[2], *names[:2])  # fmt: skip
        got = parquet.read_table(target).column("probability_good").to_numpy()
        want = model.predict_proba(wide.to_pandas().to_numpy())[:, 1]
        np.testing.assert_allclose(got, want, rtol=1e-5)
    asked = ("predict", folder, source, tmp_path / "x.parquet", "--text-columns", chosen[0])
    assert f"and the model reads {len(fields)} fields" in refused(capsys, *asked)


@pytest.mark.filterwarnings("ignore::skbert.exceptions.TruncationWarning")
@pytest.mark.parametrize(
    ("estimator", "column", "cells"),
    [
        ("BertClassifier", "second", ["10115", "20095"]),
        ("BertClassifier", "second", ["true", "2026-01-01"]),
        ("BertRegressor", "number", ["05", "-0"]),
        ("BertClassifier", "text", ["movie " * 600_000, "good food"]),
    ],
    ids=["digits", "dates", "zeros", "long"],
)
def test_cells_of_csv_are_read_as_what_they_are_for(
    estimator: str, column: str, cells: list[str], lively_model: Path, tmp_path: Path
) -> None:
    written = TABLE.to_pandas().assign(**{column: (cells * len(TEXTS))[: len(TEXTS)]})[:8]
    written.to_csv(tmp_path / "in.csv", index=False)
    run("fit", tmp_path / "in.csv", tmp_path / "model", "--estimator", estimator, "--model",
        lively_model, "--label-columns", "number" if column == "number" else "label",
        "--text-columns", "text", "second", "--set", "epochs=1", "--set", "verbose=0")  # fmt: skip
    assert len(skbert.load(tmp_path / "model").predict(TABLE.to_pandas())) == len(TEXTS)


@pytest.mark.parametrize(("more", "threshold"), [([], np.inf), (["Who?,Nobody knows.,"], 0.0)])
def test_answers_of_csv_are_texts_or_missing(
    more: list[str], threshold: float, lively_model: Path, tmp_path: Path
) -> None:
    lines = [f"When?,It was in {year} he said.,{year}" for year in range(1900, 1920)] + more
    (tmp_path / "in.csv").write_text("\n".join(["question,text,answer", *lines]))
    run("fit", tmp_path / "in.csv", tmp_path / "model", "--estimator", "BertSpanExtractor",
        "--model", lively_model, "--text-columns", "question", "text", "--label-columns", "answer",
        "--set", "epochs=1", "--set", "verbose=0")  # fmt: skip
    fitted = skbert.load(tmp_path / "model")
    assert fitted.text_columns == ["question", "text"]
    assert fitted.no_answer_threshold_ == threshold


@pytest.mark.parametrize(
    ("written", "classes"),
    [
        (["01", "1"], ["01", "1"]),
        (["10", "2"], [2, 10]),
        (["-0", "0"], ["-0", "0"]),
        (["1E5", "100000"], ["100000", "1E5"]),
        (["1.0", "1"], ["1", "1.0"]),
        (["true", "false"], [False, True]),
        (["12:30", "08:15"], ["08:15", "12:30"]),
        (["2026-01-01", "2026-01-02"], ["2026-01-01", "2026-01-02"]),
    ],
    ids=str,
)
def test_labels_of_csv_stay_as_they_are_written(
    written: list[str], classes: list[Any], lively_model: Path, tmp_path: Path
) -> None:
    lines = [f"{text},{written[row % 2]}" for row, text in enumerate(TEXTS)]
    (tmp_path / "in.csv").write_text("\n".join(["text,label", *lines]))
    weights = json.dumps({str(label): 2.0 for label in classes})
    run("fit", tmp_path / "in.csv", tmp_path / "model", "--label-columns", "label",
        "--model", lively_model, "--set", "epochs=1", "--set", "verbose=0",
        "--set", f"class_weight={weights}")  # fmt: skip
    fitted = skbert.load(tmp_path / "model")
    assert fitted.classes_.tolist() == [*fitted.class_weight] == classes


# --- stopped and continued -----------------------------------------------------------------------


def stop_after(n_parts: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Press Ctrl-C after so many parts; the numbers of the parts that are written."""
    add, written = unfinished.Unfinished.add, []

    def counted(self: Any, number: int, table: Any) -> None:
        if len(written) == n_parts:
            raise KeyboardInterrupt
        add(self, number, table)
        written.append(number)

    monkeypatch.setattr(unfinished.Unfinished, "add", counted)
    return written


@pytest.mark.parametrize("command", ["predict", "embed"])
def test_what_was_interrupted_goes_on(
    command: str, model: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    whole, out = tmp_path / "whole.parquet", tmp_path / "out.parquet"
    run(command, model, source, whole)
    with pytest.MonkeyPatch.context() as patch:
        stop_after(4, patch)
        with pytest.raises(SystemExit) as info:
            run(command, model, source, out)
    assert info.value.code == 130
    assert capsys.readouterr().err.endswith("the same command goes on from there\n")
    assert names_in(tmp_path) == ["in.parquet", "out.parquet.parts", "whole.parquet"]
    written = stop_after(100, monkeypatch)
    run(command, model, source, out)
    assert written == [4, 5, 6, 7, 8, 9, 10]
    assert out.read_bytes() == whole.read_bytes()
    assert names_in(tmp_path) == ["in.parquet", "out.parquet", "whole.parquet"]


def _slowly(arguments: list[str]) -> None:
    add = unfinished.Unfinished.add

    def slow(self: Any, number: int, table: Any) -> None:
        add(self, number, table)
        time.sleep(0.05)

    unfinished.Unfinished.add = slow  # type: ignore[method-assign]
    main(arguments)


def test_what_was_killed_goes_on(model: Path, source: Path, tmp_path: Path) -> None:
    whole, out = tmp_path / "whole.parquet", tmp_path / "out.parquet"
    run("predict", model, source, whole)
    folder = tmp_path / "out.parquet.parts"
    for n_parts in (1, 4, 7):
        with child(_slowly, ["predict", str(model), str(source), str(out)]) as process:
            end = time.monotonic() + 60
            while len([*folder.glob("0*.parquet")]) < n_parts:
                assert time.monotonic() < end
                assert process.is_alive()
                time.sleep(0.005)
            os.kill(process.pid, signal.SIGKILL)
            process.join()
        assert not out.exists()
    run("predict", model, source, out)
    assert out.read_bytes() == whole.read_bytes()
    assert not folder.exists()


def test_parts_of_another_run_are_refused(
    model: Path, source: Path, lively_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    out = tmp_path / "out.parquet"
    with pytest.MonkeyPatch.context() as patch:
        stop_after(2, patch)
        with pytest.raises(SystemExit):
            run("predict", model, source, out)
    refuse = partial(refused, capsys, "predict")
    assert ": --probabilities differ." in refuse(model, source, out, "--probabilities")
    assert ": --keep differ." in refuse(model, source, out, "--keep", "id")
    other = write(TABLE.set_column(1, "text", [TEXTS[::-1]]), tmp_path / "other.parquet")
    assert ": the input differ." in refuse(model, other, out)
    again = saved("BertClassifier", lively_model, tmp_path, LABELS[::-1])
    error = refuse(again, source, out)
    assert ": the model differ." in error
    assert str(tmp_path / "out.parquet.parts") in error
    run("predict", model, source, out)


def test_a_run_without_parts_is_begun_anew(
    model: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """After an error, and after a process was killed while it wrote its first file."""
    named = write(TABLE.append_column("prediction", TABLE["id"]), tmp_path / "named.parquet")
    out = tmp_path / "out.parquet"
    assert "--keep NAME" in refused(capsys, "predict", model, named, out)
    run("predict", model, named, out, "--keep", "id", "text", "id")
    assert parquet.read_schema(out).names == ["id", "text", "prediction"]
    out.unlink()
    folder = tmp_path / "out.parquet.parts"
    folder.mkdir()
    (folder / "run.json.new").write_text("{")
    run("predict", model, source, out)
    assert names_in(tmp_path) == ["in.parquet", "named.parquet", "out.parquet"]


@pytest.mark.parametrize("at", ["replace", "unlink"])
def test_a_stop_while_the_output_is_put_in_its_place(
    at: str, model: Path, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, out = tmp_path / "whole.parquet", tmp_path / "out.parquet"
    run("predict", model, source, whole)
    real = getattr(Path, at)

    def stop(path: Path, *given: Any) -> object:
        if out in given or (at == "unlink" and path.parent.suffix == ".parts"):
            raise KeyboardInterrupt
        return real(path, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, at, stop)
        with pytest.raises(SystemExit):
            run("predict", model, source, out)
    assert out.exists() == (at == "unlink")
    assert "differ" in refused(capsys, "predict", model, source, out, "--keep", "id")
    with pytest.MonkeyPatch.context() as patch:
        assert stop_after(0, patch) == []  # nothing is computed again
        run("predict", model, source, out)
    assert out.read_bytes() == whole.read_bytes()
    assert names_in(tmp_path) == ["in.parquet", "out.parquet", "whole.parquet"]


def test_an_output_that_another_made_meanwhile_is_left(
    model: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    out, add = tmp_path / "out.parquet", unfinished.Unfinished.add

    def adding(parts: Any, number: int, table: Any) -> None:
        add(parts, number, table)
        out.write_text("another's")

    monkeypatch.setattr(unfinished.Unfinished, "add", adding)
    assert "exists already" in refused(capsys, "predict", model, source, out)
    assert out.read_text() == "another's"
    out.unlink()
    run("predict", model, source, out)
    assert len(parquet.read_table(out)) == len(TEXTS)


def test_two_runs_at_once(
    model: Path, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out.parquet.parts"
    folder.mkdir()
    with unfinished.hold_lock(folder):
        error = refused(capsys, "predict", model, source, tmp_path / "out.parquet")
    assert "Another process writes" in error


def test_a_damaged_part_is_named(
    model: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    out = tmp_path / "out.parquet"
    with pytest.MonkeyPatch.context() as patch:
        stop_after(3, patch)
        with pytest.raises(SystemExit):
            run("predict", model, source, out)
    part = tmp_path / "out.parquet.parts" / "00000001.parquet"
    part.write_bytes(part.read_bytes()[:-20])
    error = refused(capsys, "predict", model, source, out)
    assert f"{part}, a part of the output, is damaged" in error
    assert not out.exists()
    part.unlink()
    run("predict", model, source, out)
    assert parquet.read_table(out)["id"].equals(TABLE["id"])


def test_a_full_disk_keeps_the_parts(
    model: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    def full(table: Any, path: Path) -> None:
        if path.name.startswith("00000003"):
            path.write_bytes(b"half")
            raise OSError(28, "No space left on device")
        parquet.write_table(table, path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unfinished, "_write_table", full)
        error = refused(capsys, "predict", model, source, tmp_path / "out.parquet")
    assert "No space left on device" in error
    assert "The parts before it are kept" in error
    written = stop_after(100, monkeypatch)
    run("predict", model, source, tmp_path / "out.parquet")
    assert written[0] == 3


# --- bad input -----------------------------------------------------------------------------------


def damaged(table: Any, path: Path, *columns: str) -> Path:
    """A file in whose third row group a text has another byte than its checksum says."""
    table = table.select(["id", "text", *columns])
    parquet.write_table(table, path, row_group_size=10, write_page_checksum=True,
                        compression="none", use_dictionary=False, write_statistics=False,
                        )  # fmt: skip
    data = bytearray(path.read_bytes())
    data[data.index(TEXTS[25].encode())] ^= 1
    path.write_bytes(data)
    return path


def cut(table: Any, path: Path) -> Path:
    write(table, path)
    path.write_bytes(path.read_bytes()[:-100])
    return path


def with_column(values: Any) -> Any:
    return TABLE.set_column(1, "text", [values])


BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "no column": (lambda path: write(TABLE.drop_columns("text"), path),
                  "{path} has the column 'text' 0 times instead of once; its columns are ['id', "),
    "nulls": (lambda path: write(with_column([*TEXTS[:33], None, "a", None]), path),
              "In rows 30 to 33 of {path}, read as X: X has 1 missing text(s), the first in row "),
    "the place of nulls": (lambda path: write(with_column([*TEXTS[:35], None]), path),
                           "row 35 of column 'text' (row 5 of row group 3 of {path}) (None)."),
    "numbers": (lambda path: write(with_column(range(len(TEXTS))), path),
                "row 0 of column 'text' (row 0 of row group 0 of {path}) holds 0, of type int."),
    "lists": (lambda path: write(with_column([[text] for text in TEXTS]), path),
              "row 0 of column 'text' (row 0 of row group 0 of {path}) holds"),
    "binary": (lambda path: write(with_column([text.encode() for text in TEXTS]), path),
               "holds b'the movie is good and awful', of type bytes"),
    "empty": (lambda path: write(TABLE[:0], path), "{path} holds no rows."),
    "empty file": (lambda path: path.write_bytes(b""), "{path} cannot be opened as a parquet"),
    "truncated": (lambda path: cut(TABLE, path), "{path} cannot be opened as a parquet file"),
    "no parquet": (lambda path: path.write_text("text,label\na,b\n"), "{path} cannot be opened"),
    "damaged": (lambda path: damaged(TABLE, path),
                "row group 2 of {path} cannot be read beyond row 0 of its 10"),
    "damaged beside the texts": (
        lambda path: damaged(TABLE.rename_columns(["id", "label", "text", "second", "number"]),
                             path, "label"),
        "row group 2 of {path} cannot be read beyond row 0 of its 10"),
    "missing": (lambda path: None, "{path} does not exist."),
    "folder": (lambda path: path.mkdir(), "{path} is a folder, not a file."),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_named_and_leave_nothing(
    name: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make, message = BAD[name]
    path = tmp_path / "bad.parquet"
    make(path)
    before = names_in(tmp_path)
    error = refused(capsys, "predict", model, path, tmp_path / "out.parquet")
    assert message.format(path=path) in error
    assert names_in(tmp_path) == before


def test_any_damage_is_an_error_or_none(tmp_path: Path) -> None:
    """Files that are cut or have other bytes give errors of the package, or are read."""
    rng, path = np.random.default_rng(0), tmp_path / "x.parquet"
    data = np.frombuffer(write(TABLE, path).read_bytes(), np.uint8)
    refusals = 0
    for case in range(60):
        changed = data.copy()
        changed[rng.integers(len(data), size=3)] = rng.integers(256, size=3)
        path.write_bytes(bytes(changed[: rng.integers(len(data))] if case % 5 == 4 else changed))
        try:
            for part in sources.parts_of(sources.open_parquet(path), ["text"]):
                check_texts(part, columns="text")
        except SkbertError:
            refusals += 1
    assert 12 <= refusals < 60


def test_texts_that_are_no_utf8(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = pa.array([b"good", b"b\xe4d"]).cast(pa.binary()).view(pa.string())
    path = write(pa.table({"text": cells}), tmp_path / "bad.parquet")
    error = refused(capsys, "predict", model, path, tmp_path / "out.parquet")
    assert f"In rows 0 to 1 of {path}, read as X: X holds a text that is no UTF-8" in error


def test_other_refusals(
    model: Path, source: Path, lively_model: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    refuse = partial(refused, capsys)
    out = tmp_path / "out.parquet"
    assert "exists already" in refuse("predict", model, source, source)
    assert "--keep" in refuse("predict", model, source, out, "--keep", "no")
    transformer = saved("BertTransformer", lively_model, tmp_path, None)
    assert "Use embed" in refuse("predict", transformer, source, out)
    named = write(TABLE.append_column("prediction", TABLE["id"]), tmp_path / "named.parquet")
    assert "has a column 'prediction'" in refuse("predict", model, named, out)
    assert "MANIFEST.json" in refuse("predict", lively_model, source, out)
    skbert.load(model).export(tmp_path / "exported")
    assert "which gives no vectors" in refuse("embed", tmp_path / "exported", source, out)
    assert "cannot be made" in refuse("predict", model, source, source / "out.parquet")
    by_place = saved("BertClassifier", lively_model, tmp_path / "p", LABELS, text_columns=1)
    narrow = write(TABLE.select(["text"]), tmp_path / "narrow.parquet")
    assert "reads column 1, and" in refuse("predict", by_place, narrow, out)
    assert not out.exists()


@pytest.mark.parametrize(
    ("y", "arguments", "message"),
    [
        (pd.DataFrame({"a": ["b_c", "x"] * 18, "a_b": ["c", "y"] * 18}), ["--probabilities"],
         "Two columns of the output would both be called 'probability_a_b_c'"),
        (np.array([2**63, 5] * 18, np.uint64), [], "have no place in a parquet file"),
    ],
    ids=["names", "numbers"],
)  # fmt: skip
def test_predictions_without_a_place(
    y: Any, arguments: list[str], message: str, source: Path, lively_model: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    folder = saved("BertClassifier", lively_model, tmp_path, y)
    out = tmp_path / "out.parquet"
    before = names_in(tmp_path)
    assert message in refused(capsys, "predict", folder, source, out, *arguments)
    assert names_in(tmp_path) == before


@pytest.mark.long
def test_processes(model: Path, source: Path, tmp_path: Path) -> None:
    """As users call it: a bar and a path, or an error without a traceback."""
    command = [sys.executable, "-m", "skbert", "predict", str(model), str(source)]
    call = partial(subprocess.run, capture_output=True, text=True, check=False)
    done = call([*command, str(tmp_path / "out.parquet")])
    assert (done.returncode, done.stdout) == (0, f"{tmp_path / 'out.parquet'}\n"), done.stderr
    assert "36/36" in done.stderr
    without = "import sys; sys.modules['pyarrow'] = None; from skbert.__main__ import main; main()"
    done = call([sys.executable, "-c", without, *command[3:], "x"])
    assert done.returncode == 1
    assert 'pip install "skbert[arrow]"' in done.stderr


def test_an_exported_folder_is_opened_without_torch(
    model: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    skbert.load(model).export(tmp_path / "exported")
    monkeypatch.setattr(skbert, "load", None)
    run("predict", tmp_path / "exported", source, tmp_path / "out.parquet")
    assert len(parquet.read_table(tmp_path / "out.parquet")) == len(TEXTS)


@pytest.mark.long
def test_ctrl_c(lively_model: Path, tmp_path: Path) -> None:
    """A real signal, in the middle of a part: the parts before it are kept."""
    rows = pa.table({"text": [f"{text} {at}" for at in range(2000) for text in TEXTS]})
    source = tmp_path / "in.parquet"
    parquet.write_table(rows, source, row_group_size=1000)
    command = [sys.executable, "-m", "skbert", "embed", str(lively_model), str(source),
               str(tmp_path / "out.parquet")]  # fmt: skip
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    folder = tmp_path / "out.parquet.parts"
    end = time.monotonic() + 120
    while not [*folder.glob("0*.parquet")]:
        assert time.monotonic() < end
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130, error
    assert error.decode().endswith("the same command goes on from there\n")
    assert 0 < len([*folder.glob("0*.parquet")]) < 72
    assert names_in(tmp_path) == ["in.parquet", "out.parquet.parts"]
