"""Counts, positions and other numbers that are none: every function of inspection refuses them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest

from skbert import BertClassifier
from skbert.exceptions import InputError, InputTypeError
from skbert.inspection import (
    AttentionDisplay,
    ConfusionDisplay,
    ReliabilityDisplay,
    attributions,
    prune_heads,
    report,
    show,
    suggest_learning_rate,
    worst_errors,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Sentiment


class Count(NamedTuple):
    """A parameter that is a count, its least value, and a call that takes it."""

    least: int
    usual: int
    call: Callable[[BertClassifier, Any, Any, Any], object]


COUNTS: dict[str, Count] = {
    "max_rows": Count(1, 20, lambda fitted, X, y, n: show(fitted, X, y, max_rows=n)),
    "k": Count(1, 10, worst_errors),
    "n_errors": Count(0, 5, lambda fitted, X, y, n: report(fitted, X, y, n_errors=n)),
    "max_steps": Count(1, 1000, lambda fitted, X, _, n: attributions(fitted, X, max_steps=n)),
    "n_steps": Count(20, 100, lambda fitted, X, y, n: suggest_learning_rate(
        fitted, X, y, n_steps=n
    )),
    "max_classes": Count(1, 30, lambda fitted, X, y, n: ConfusionDisplay.from_estimator(
        fitted, X, y, max_classes=n
    )),
    "n_bins": Count(1, 10, lambda fitted, X, y, n: ReliabilityDisplay.from_estimator(
        fitted, X, y, n_bins=n
    )),
}  # fmt: skip
POSITIONS = {"item": 0, "layer": 1, "head": 1}  # the largest ones


@pytest.fixture(scope="module")
def fitted(tiny_model: Path, sentiment: Sentiment) -> BertClassifier:
    return BertClassifier(tiny_model, epochs=1, device="cpu", random_state=0).fit(*sentiment)


@pytest.mark.parametrize("value", [True, 2.5, 3.0, "all", None, np.array([2, 3]), -1, "less"])
@pytest.mark.parametrize("name", COUNTS)
def test_bad_counts(name: str, value: Any, fitted: BertClassifier, sentiment: Sentiment) -> None:
    least, usual, call = COUNTS[name]
    value = least - 1 if isinstance(value, str) and value == "less" else value
    error = InputError if isinstance(value, int) and value is not True else InputTypeError
    message = f"must be an int of at least {least}; type {name}={usual}"
    with pytest.raises(error, match=f"^{name} is .*{message}"):
        call(fitted, sentiment.texts[:4], sentiment.labels[:4], value)


@pytest.mark.filterwarnings("ignore::skbert.exceptions.SkbertWarning")
@pytest.mark.parametrize("name", COUNTS)
def test_counts_of_numpy(name: str, fitted: BertClassifier, sentiment: Sentiment) -> None:
    least, _, call = COUNTS[name]
    assert call(fitted, *sentiment, np.int16(max(least, 2))) is not None


@pytest.mark.parametrize("value", [True, 1.0, "0", None, -1, "more"])
@pytest.mark.parametrize("name", POSITIONS)
def test_heads_that_are_not_there(name: str, value: Any, fitted: BertClassifier) -> None:
    most = POSITIONS[name]
    value = most + 1 if isinstance(value, str) and value == "more" else value
    error = InputError if isinstance(value, int) and value is not True else InputTypeError
    with pytest.raises(error, match=f"^{name} is .*must be an int from 0 to {most}; type {name}"):
        AttentionDisplay.from_estimator(fitted, ["a"], **{"layer": 0, "head": 0, name: value})


@pytest.mark.parametrize("value", [True, False, 0, -0.1, np.nan, "small", [0.1]])
def test_bad_tolerances(value: Any, fitted: BertClassifier) -> None:
    with pytest.raises(InputError, match=r"^tolerance=.*must be a number above 0, such as 1e-3"):
        attributions(fitted, ["a"], tolerance=value)


@pytest.mark.parametrize("value", [True, False, 1, -0.1, np.nan, "most", [0.1]])
def test_bad_fractions(value: Any, fitted: BertClassifier) -> None:
    with pytest.raises(InputError, match=r"^fraction=.*must be a number from 0 to below 1"):
        prune_heads(fitted, fraction=value, importance=np.ones((2, 2)))
