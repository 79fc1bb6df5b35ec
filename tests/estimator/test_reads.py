"""Every public method reads X once: checks and computations share the rows of one reading."""

from __future__ import annotations

import inspect
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
)
from skbert._catalogue import ESTIMATORS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TEXTS = [f"the {word} book is {word}" for word in ("good", "bad", "nice", "poor")] * 2
WORDS = [text.split() for text in TEXTS]
PAIRS = [(f"what is {text[4:8]}", text) for text in TEXTS]
ANSWERS = [text.split()[2] for text in TEXTS]
OPTIONS = [(text, ["good", "bad"]) for text in TEXTS]
MASKED = [text.replace("book", "[MASK]") for text in TEXTS]
LABELS = ["yes", "no"] * 4
NUMBERS = [float(row) for row in range(8)]
TAGS = [["O", "B-A", "O", "O", "B-B"]] * 8

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
CALLS = [(kind, name) for kind, (_, _, names) in FITS.items() for name in sorted(names)]


class Counted(list[Any]):
    """A list that counts how often its elements are gone through."""

    def __init__(self, rows: list[Any]) -> None:
        super().__init__(rows)
        self.count = 0

    def __iter__(self) -> Iterator[Any]:
        self.count += 1
        return super().__iter__()


def plain(kind: type, model: Path, **changes: Any) -> Any:
    trains = {} if kind is BertTransformer else {"epochs": 1, "random_state": 0}
    return kind(model, device="cpu", **trains, **changes)


def reads(estimator: Any, rows: list[Any]) -> int:
    """How often one reading goes through X."""
    X = Counted(rows)
    estimator._rows(X, None)
    assert X.count
    return X.count


def methods_of(kind: type) -> set[str]:
    """Public methods that take rows."""
    methods = inspect.getmembers(kind, inspect.isfunction)
    takes_rows = {"X", "pairs"}
    return {
        name
        for name, method in methods
        if not name.startswith("_") and takes_rows & inspect.signature(method).parameters.keys()
    }


def test_a_second_reading_is_counted(tiny_model: Path) -> None:
    estimator, X = plain(BertClassifier, tiny_model), Counted(TEXTS)
    estimator._rows(X, None)
    estimator._rows(X, None)
    assert X.count == 2 * reads(estimator, TEXTS)


def test_every_method_that_takes_rows_is_called() -> None:
    assert {kind.__name__ for kind in FITS} == set(ESTIMATORS)
    for kind, (_, _, names) in FITS.items():
        others = OBJECTIVES.keys() if kind is BertPretrainer else set()
        assert methods_of(kind) == names | others, kind


@pytest.mark.parametrize(("kind", "name"), CALLS)
def test_a_method_reads_x_once(kind: type, name: str, tiny_model: Path) -> None:
    rows, y, _ = FITS[kind]
    changes = {"n_components": 2} if kind is BertTransformer else {}
    estimator = plain(kind, tiny_model, **changes)
    if name not in {"fit", "fit_transform"}:
        estimator.fit(rows, y)
    rows = MASKED if name == "predict_masked" else rows
    X, once = Counted(rows), reads(estimator, rows)
    takes_y = "y" in inspect.signature(getattr(kind, name)).parameters
    getattr(estimator, name)(X, *([y] if takes_y else []))
    assert X.count == once


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_method_of_another_objective_reads_x_once(name: str, tiny_model: Path) -> None:
    objective, rows = OBJECTIVES[name]
    documents = [["good book", "bad film", "nice room"]] * 4
    estimator = plain(BertPretrainer, tiny_model, objective=objective).fit(documents)
    X = Counted(rows)
    once = reads(plain(BertClassifier, tiny_model) if name != "generate" else estimator, rows)
    getattr(estimator, name)(X)
    assert X.count == once


def test_a_warm_start_reads_x_once(tiny_model: Path) -> None:
    estimator = plain(BertClassifier, tiny_model, warm_start=True).fit(TEXTS, LABELS)
    X, once = Counted(TEXTS), reads(estimator, TEXTS)
    estimator.fit(X, LABELS, np.ones(8))
    assert X.count == once
