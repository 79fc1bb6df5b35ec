"""The bundled data sets: their content, their datasheets and their loaders."""

from __future__ import annotations

import doctest
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import KFold, StratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils import Bunch

from skbert import datasets
from skbert.datasets import load_intents, load_ratings

ROOT = Path(__file__).resolve().parents[1]
HALF_STEPS = [1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0]
LOADERS = [
    pytest.param(load_intents, "label", id="intents"),
    pytest.param(load_ratings, "rating", id="ratings"),
]
Loader = Callable[..., Any]
Row = tuple[int, int, float, int]


def normalised(text: str) -> str:
    """Drop what does not make two sentences different: case, blanks, marks."""
    return " ".join(re.findall(r"\w+", text.casefold()))


def measured_rows(frame: pd.DataFrame, target: str) -> dict[str, Row]:
    """Return rows, shortest, mean and longest length per value of the target."""
    groups = [(str(value), part["text"]) for value, part in frame.groupby(target)]
    result = {}
    for name, texts in [*groups, ("all", frame["text"])]:
        words = [len(text.split()) for text in texts]
        mean = round(sum(words) / len(words), 1)
        result[name] = (len(words), min(words), mean, max(words))
    return result


def stated_rows(descr: str) -> dict[str, Row]:
    """Read the same numbers from the table of a datasheet."""
    pattern = r"^\| (\S+) \| (\d+) \| (\d+) \| ([\d.]+) \| (\d+) \|$"
    found = re.findall(pattern, descr, flags=re.MULTILINE)
    return {name: (int(n), int(lo), float(mean), int(hi)) for name, n, lo, mean, hi in found}


def stated_score(descr: str, name: str) -> float:
    """Read the baseline score that a datasheet states."""
    match = re.search(rf"{name}\s+of\s+about\s+(\d\.\d+)", descr)
    assert match is not None
    return float(match.group(1))


def run_python(code: str) -> str:
    """Run code in a fresh interpreter that finds this package; return what it prints."""
    done = subprocess.run(
        [sys.executable, "-X", "utf8", "-c", code],
        cwd=Path(datasets.__file__).parents[1],
        capture_output=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(("load", "target"), LOADERS)
class TestEveryLoader:
    def test_bunch_fields(self, load: Loader, target: str) -> None:
        bunch = load()
        assert isinstance(bunch, Bunch)
        assert isinstance(bunch.frame, pd.DataFrame)
        assert list(bunch.frame.columns) == ["text", target]
        pd.testing.assert_series_equal(bunch.data, bunch.frame["text"])
        pd.testing.assert_series_equal(bunch.target, bunch.frame[target])
        assert list(bunch.frame.index) == list(range(len(bunch.frame)))

    def test_return_x_y(self, load: Loader, target: str) -> None:
        bunch = load(return_X_y=False)
        pair = load(return_X_y=True)
        assert type(pair) is tuple
        data, labels = pair
        assert (data.name, labels.name) == ("text", target)
        pd.testing.assert_series_equal(data, bunch.data)
        pd.testing.assert_series_equal(labels, bunch.target)

    def test_return_x_y_is_keyword_only(self, load: Loader, target: str) -> None:
        with pytest.raises(TypeError):
            load(True)

    def test_every_call_returns_its_own_frame(self, load: Loader, target: str) -> None:
        first = load()
        first.frame.loc[0, "text"] = "changed"
        assert load().frame.loc[0, "text"] != "changed"

    def test_texts_are_clean(self, load: Loader, target: str) -> None:
        frame = load().frame
        assert not frame.isna().to_numpy().any()
        for text in frame["text"]:
            assert isinstance(text, str)
            assert text
            assert " ".join(text.split()) == text

    def test_no_duplicates(self, load: Loader, target: str) -> None:
        keys = load().data.map(normalised)
        assert keys[keys.duplicated(keep=False)].tolist() == []
        assert (keys != "").all()

    def test_rows_are_shuffled(self, load: Loader, target: str) -> None:
        values = load().target
        same_as_before = (values == values.shift()).mean()
        assert same_as_before < 0.25

    def test_datasheet_is_the_file_and_complete(self, load: Loader, target: str) -> None:
        name = load.__name__.removeprefix("load_")
        path = Path(datasets.__file__).parent / "data" / f"{name}.md"
        descr = load().DESCR
        assert descr == path.read_text(encoding="utf-8")
        headings = re.findall(r"^## (.+)$", descr, flags=re.MULTILINE)
        assert headings == [
            "Motivation",
            "Composition",
            "Collection",
            "Uses",
            "Licence",
            "Maintenance",
        ]
        assert "BSD-3-Clause" in descr

    def test_datasheet_states_the_true_numbers(self, load: Loader, target: str) -> None:
        bunch = load()
        assert stated_rows(bunch.DESCR) == measured_rows(bunch.frame, target)
        assert re.search(rf"There are\s+{len(bunch.frame)}\s+rows", bunch.DESCR)


class TestIntents:
    def test_size(self) -> None:
        intents = load_intents()
        assert len(intents.frame) == 449
        assert len(intents.frame) >= 300

    def test_classes(self) -> None:
        intents = load_intents()
        counts = intents.target.value_counts()
        assert len(counts) == 8
        assert counts.min() >= 30
        assert counts.max() <= 1.25 * counts.min()
        assert intents.target_names == sorted(counts.index)
        assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", name) for name in counts.index)

    def test_lengths_vary(self) -> None:
        words = load_intents().data.str.split().str.len()
        assert words.min() == 3
        assert 25 <= words.max() <= 30
        assert words.std() > 4

    def test_datasheet_explains_every_class(self) -> None:
        intents = load_intents()
        found = re.findall(r"^- `(\w+)`: ", intents.DESCR, flags=re.MULTILINE)
        assert found == intents.target_names

    def test_word_counts_help_but_do_not_suffice(self) -> None:
        intents = load_intents()
        model = make_pipeline(TfidfVectorizer(), LogisticRegression())
        folds = StratifiedKFold(5, shuffle=True, random_state=0)
        score = cross_val_score(model, intents.data, intents.target, cv=folds).mean()
        assert score == pytest.approx(stated_score(intents.DESCR, "accuracy"), abs=0.03)
        assert 0.4 < score < 0.7


class TestRatings:
    def test_size(self) -> None:
        ratings = load_ratings()
        assert len(ratings.frame) == 252
        assert "target_names" not in ratings

    def test_ratings_lie_on_the_half_steps(self) -> None:
        target = load_ratings().target
        assert target.dtype == "float64"
        assert sorted(target.unique()) == HALF_STEPS
        assert target.value_counts().min() >= 20

    def test_baseline_is_as_stated(self) -> None:
        ratings = load_ratings()
        model = make_pipeline(TfidfVectorizer(), Ridge())
        folds = KFold(5, shuffle=True, random_state=0)
        scores = cross_val_score(model, ratings.data, ratings.target, cv=folds, scoring="r2")
        assert scores.mean() == pytest.approx(stated_score(ratings.DESCR, "R2"), abs=0.05)


def test_all_is_sorted_and_complete() -> None:
    loaders = [name for name in vars(datasets) if name.startswith("load_")]
    assert datasets.__all__ == sorted(loaders)


def test_every_data_file_has_a_loader_and_a_datasheet() -> None:
    folder = Path(datasets.__file__).parent / "data"
    tables = sorted(path.stem for path in folder.glob("*.csv"))
    assert tables == sorted(path.stem for path in folder.glob("*.md"))
    assert [f"load_{name}" for name in tables] == datasets.__all__


def test_doctests() -> None:
    result = doctest.testmod(datasets)
    assert result.attempted >= 10
    assert result.failed == 0


def test_documentation_page_runs_and_quotes_the_datasheets() -> None:
    page = (ROOT / "docs" / "datasets.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.+?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) == 3
    output = run_python("\n".join([*blocks, "print(len(X_train) + len(X_test))"]))
    assert output == f"{load_intents().DESCR}\n{len(load_ratings().frame)}\n"
    for load in (load_intents, load_ratings):
        assert load.__name__ in page
    for quote in re.findall(r'"(Each row .+?)"', page, flags=re.DOTALL):
        sheets = load_intents().DESCR + load_ratings().DESCR
        assert " ".join(quote.split()) in " ".join(sheets.split())
    for link in re.findall(r"\]\((\.\./.+?)\)", page):
        assert (ROOT / "docs" / link).is_file()


def test_loading_does_not_import_torch() -> None:
    code = (
        "import sys; from skbert.datasets import load_intents, load_ratings; "
        "load_intents(); load_ratings(); "
        "print([name for name in ('torch', 'transformers') if name in sys.modules])"
    )
    assert run_python(code) == "[]\n"
