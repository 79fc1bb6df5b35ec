"""Every public call reads X once: checks and computations share the rows of one reading."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from skbert import (
    BertChoiceRanker,
    BertClassifier,
    BertPretrainer,
    BertRegressor,
    BertSpanExtractor,
    BertTokenTagger,
    BertTransformer,
    inspection,
)
from skbert._catalogue import ESTIMATORS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

TEXTS = [f"the {word} book is {word}" for word in ("good", "bad", "nice", "poor")] * 2
WORDS = [text.split() for text in TEXTS]
PAIRS = [(f"what is {text[4:8]}", text) for text in TEXTS]
ANSWERS = [text.split()[2] for text in TEXTS]
OPTIONS = [(text, ["good", "bad"]) for text in TEXTS]
WIDE_OPTIONS = [(text, "good", "bad") for text in TEXTS]
DOCUMENTS = [["good book", "bad film", "nice room"]] * 8
MASKED = [text.replace("book", "[MASK]") for text in TEXTS]
LABELS = ["yes", "no"] * 4
NUMBERS = [float(row) for row in range(8)]
TAGS = [["O", "B-A", "O", "O", "B-B"]] * 8
SPANS = [[(0, 3, "A")]] * 8

# What each estimator is fitted on, and the methods that take X.
FITS: dict[type, tuple[Any, Any, set[str]]] = {
    BertClassifier: (
        TEXTS, LABELS,
        {"fit", "partial_fit", "predict", "predict_proba", "decision_function", "score"},
    ),
    BertRegressor: (TEXTS, NUMBERS, {"fit", "predict", "score"}),
    BertTokenTagger: (
        WORDS, TAGS, {"fit", "predict", "predict_proba", "predict_spans", "score"},
    ),
    BertSpanExtractor: (PAIRS, ANSWERS, {"fit", "predict", "predict_answers", "score"}),
    BertChoiceRanker: (
        OPTIONS, [0, 1] * 4, {"fit", "predict", "predict_text", "predict_proba", "rank", "score"},
    ),
    BertTransformer: (TEXTS, None, {"fit", "fit_transform", "transform", "transform_tokens"}),
    BertPretrainer: (TEXTS, None, {"fit", "score", "perplexity", "predict_masked"}),
}  # fmt: skip
# Methods that need another objective than the first one, and what they read.
OBJECTIVES: dict[str, tuple[str, Any]] = {
    "generate": ("clm", TEXTS),
    "next_sentence_proba": ("nsp", PAIRS),
}
# Other forms of X that an estimator reads, and y for them.
FORMS: list[tuple[type, Any, Any]] = [
    (BertClassifier, PAIRS, LABELS),
    (BertTokenTagger, TEXTS, SPANS),
    (BertChoiceRanker, WIDE_OPTIONS, [0, 1] * 4),
    (BertPretrainer, DOCUMENTS, None),
]
CALLS = [
    *((kind, X, y, name) for kind, (X, y, names) in FITS.items() for name in sorted(names)),
    *((kind, X, y, name) for kind, X, y in FORMS for name in ("fit", "score")),
]


class CountedList(list[Any]):
    """A list that counts how often each row is read."""

    def __init__(self, rows: list[Any]) -> None:
        super().__init__(rows)
        self.counts = np.zeros(len(rows), int)

    def __iter__(self) -> Iterator[Any]:
        for row, cell in enumerate(super().__iter__()):
            self.counts[row] += 1
            yield cell

    def __getitem__(self, rows: Any) -> Any:
        self.counts[rows] += 1
        return super().__getitem__(rows)


class CountedRows(Sequence[Any]):
    """A sequence that is no list and counts how often each row is read."""

    def __init__(self, rows: list[Any]) -> None:
        self._rows = rows
        self.counts = np.zeros(len(rows), int)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, rows: Any) -> Any:
        self.counts[rows] += 1
        return self._rows[rows]


class CountedColumns:
    """A table in the manner of pyarrow's that counts how often each column is read."""

    def __init__(self, rows: list[Any]) -> None:
        is_wide = isinstance(rows[0], tuple)
        self._columns = [*zip(*rows, strict=True)] if is_wide else [rows]
        self._n_rows = len(rows)
        self.column_names = [f"column {at}" for at in range(len(self._columns))]
        self.counts = np.zeros(len(self._columns), int)

    def __len__(self) -> int:
        return self._n_rows

    def __getitem__(self, name: str) -> Any:
        return self.column(self.column_names.index(name))

    def column(self, at: int) -> list[Any]:
        self.counts[at] += 1
        return list(self._columns[at])


CONTAINERS = (CountedList, CountedRows, CountedColumns)


def plain(kind: type, model: Path, **changes: Any) -> Any:
    trains = {"n_components": 2} if kind is BertTransformer else {"epochs": 1, "random_state": 0}
    return kind(model, device="cpu", **trains, **changes)


def takes_rows(call: Any) -> bool:
    return bool({"X", "pairs"} & inspect.signature(call).parameters.keys())


def methods_of(kind: type) -> set[str]:
    """Public methods that take rows."""
    methods = inspect.getmembers(kind, inspect.isfunction)
    return {name for name, method in methods if not name.startswith("_") and takes_rows(method)}


def read_counts(container: type, rows: Any, call: Callable[..., Any]) -> list[int]:
    """How often the call reads each row or column."""
    X = container(rows)
    call(X)
    counts: list[int] = X.counts.tolist()
    return counts


@pytest.mark.parametrize("container", CONTAINERS)
def test_a_second_reading_is_counted(container: Any, tiny_model: Path) -> None:
    estimator = plain(BertClassifier, tiny_model)
    twice = read_counts(container, TEXTS, lambda X: [estimator._rows(X, None) for _ in range(2)])
    assert set(twice) == {2}


def test_every_call_that_takes_rows_is_made() -> None:
    assert {kind.__name__ for kind in FITS} == set(ESTIMATORS)
    for kind, (_, _, names) in FITS.items():
        others = OBJECTIVES.keys() if kind is BertPretrainer else set()
        assert methods_of(kind) == names | others, kind
    functions = [getattr(inspection, name) for name in inspection.__all__]
    assert {call for call in functions if inspect.isfunction(call) and takes_rows(call)} == {
        inspection.attentions,
        inspection.head_importance,
    }


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize(("kind", "rows", "y", "name"), CALLS)
def test_a_method_reads_x_once(
    kind: type, rows: Any, y: Any, name: str, container: Any, tiny_model: Path
) -> None:
    estimator = plain(kind, tiny_model)
    if name not in {"fit", "fit_transform"}:
        estimator.fit(container(rows), y)
        rows, y = MASKED if name == "predict_masked" else rows, y and y[:2]
        rows = rows[:2]  # two rows may be two columns, which has to be looked at
    takes_y = "y" in inspect.signature(getattr(kind, name)).parameters
    targets = [y] if takes_y else []
    counts = read_counts(container, rows, lambda X: getattr(estimator, name)(X, *targets))
    assert set(counts) == {1}


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_method_of_another_objective_reads_x_once(
    name: str, container: Any, tiny_model: Path
) -> None:
    objective, rows = OBJECTIVES[name]
    estimator = plain(BertPretrainer, tiny_model, objective=objective).fit(container(DOCUMENTS))
    assert set(read_counts(container, rows[:2], getattr(estimator, name))) == {1}


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("kind", FITS)
def test_inspection_reads_x_once(kind: type, container: Any, tiny_model: Path) -> None:
    rows, y, _ = FITS[kind]
    estimator = plain(kind, tiny_model).fit(container(rows), y)
    rows, y = rows[:2], y and y[:2]
    if kind is not BertPretrainer:
        counts = read_counts(container, rows, lambda X: inspection.attentions(estimator, X))
        assert set(counts) == {1}
    if kind is not BertTransformer:
        counts = read_counts(
            container, rows, lambda X: inspection.head_importance(estimator, X, y)
        )
        assert set(counts) == {1}


def test_a_warm_start_reads_x_once(tiny_model: Path) -> None:
    estimator = plain(BertClassifier, tiny_model, warm_start=True).fit(TEXTS, LABELS)
    counts = read_counts(CountedList, TEXTS, lambda X: estimator.fit(X, LABELS, np.ones(8)))
    assert set(counts) == {1}
