"""The data of the checks in `skbert.testing`: a few rows of each kind, and how to compare results.

Depends on numpy, pandas and scikit-learn; polars where it is installed.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from sklearn.base import clone

from skbert._arrays import Array
from skbert.exceptions import InputError

__all__ = [
    "KINDS", "Check", "Sample", "Subject", "assert_same", "containers", "expect", "listing",
    "objects", "outputs", "sample_of",
]  # fmt: skip

_FEWEST = 6
_TEXTS = [
    "good food and friendly staff",
    "bad room, never again",
    "I love this good book",
    "an awful film with a bad end",
    "nice phone, works well",
    "poor service and slow too",
    "great hotel, good price",
    "worst place in town",
]
_ABOUT = ["the staff", "the room", "a book", "a film", "a phone", "service", "a hotel", "town"]
_LABELS = ["good", "bad"] * 4
_OPTIONS = [
    ["good", "bad"], ["bad", "slow", "good"], ["nice", "awful"], ["a book", "a film", "an end"],
    ["works", "never"], ["fast", "slow"], ["good price", "bad place"], ["best", "worst", "poor"],
]  # fmt: skip


@dataclass(frozen=True)
class Sample:
    """Rows of one kind with their targets.

    ``columns`` are the names of the columns of a frame that holds X.
    """

    kind: str
    X: list[Any]
    y: list[Any] | None
    columns: tuple[str, ...]

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.X)

    @property
    def is_supervised(self) -> bool:
        """Whether there is a y."""
        return self.y is not None

    def column(self, at: int) -> list[Any]:
        """Return the cells of one column of X."""
        return list(self.X) if len(self.columns) == 1 else [row[at] for row in self.X]

    def with_cell(self, row: int, cell: Any) -> list[Any]:
        """Return X with another cell in the last column of one row."""
        changed = list(self.X)
        changed[row] = cell if len(self.columns) == 1 else (*changed[row][:-1], cell)
        return changed


_WORDS = [text.replace(",", " ,").split() for text in _TEXTS]
_QUESTIONS = [(f"what about {about}?", text) for about, text in zip(_ABOUT, _TEXTS, strict=True)]
_CHOICES = [(text, options) for text, options in zip(_ABOUT, _OPTIONS, strict=True)]
_TAGS = [[f"B-{'AB'[len(word) % 2]}" if len(word) > 4 else "O" for word in row] for row in _WORDS]

_SAMPLES = {
    "choices": Sample("choices", _CHOICES, [0, 1, 1, 2, 0, 1, 0, 1], ("prompt", "options")),
    "classes": Sample("classes", _TEXTS, _LABELS, ("text",)),
    "features": Sample("features", _TEXTS, None, ("text",)),
    "labels": Sample(
        "labels", _TEXTS, [[int(len(t) > 22), int("o" in t[:3])] for t in _TEXTS], ("text",)
    ),
    "numbers": Sample("numbers", _TEXTS, [4.5, 1.0, 5.0, 0.5, 4.0, 1.5, 4.2, 0.0], ("text",)),
    "pairs": Sample("pairs", list(zip(_TEXTS, _ABOUT, strict=True)), _LABELS, ("text", "about")),
    "spans": Sample(
        "spans", _QUESTIONS, [text.split()[1].strip(",") for text in _TEXTS],
        ("question", "context"),
    ),
    "tags": Sample("tags", _WORDS, _TAGS, ("words",)),
}  # fmt: skip
KINDS = tuple(_SAMPLES)


def sample_of(kind: str, X: Any, y: Any) -> Sample:
    """Return the rows of this module, or X and y in their place."""
    sample = _SAMPLES[kind]
    if X is None and y is None:
        return sample
    lists = [rows for rows in (X, y) if isinstance(rows, list)]
    wanted = 1 + sample.is_supervised
    if len(lists) != wanted or {len(rows) for rows in lists} - {len(lists[0])}:
        raise InputError(
            f"For kind={kind!r} X and y must be lists of the same length, or X a list and y None "
            "if there is nothing to predict."
        )
    if len(X) < _FEWEST:
        raise InputError(f"X has {len(X)} rows, and the checks need at least {_FEWEST}.")
    return Sample(kind, X, y, sample.columns)


@dataclass(frozen=True)
class Subject:
    """An estimator under test with its rows; one fitted clone is shared by many checks."""

    estimator: Any
    sample: Sample

    def new(self, **params: Any) -> Any:
        """Return a clone that is not fitted."""
        return clone(self.estimator).set_params(**params)

    def fit(self, X: Any = None, y: Any = None, **more: Any) -> Any:
        """Return a fitted clone; X and y default to the sample."""
        X = self.sample.X if X is None else X
        y = self.sample.y if y is None else y
        return self.new().fit(X, **({} if y is None else {"y": y}), **more)

    @cached_property
    def fitted(self) -> Any:
        """A fitted clone, which no check may change."""
        return self.fit()

    @cached_property
    def expected(self) -> dict[str, Any]:
        """The results of the fitted clone for the sample."""
        return outputs(self.fitted, self.sample.X)

    def has_parameter(self, name: str) -> bool:
        """Return whether the estimator has such a parameter."""
        return name in self.estimator.get_params(deep=False)

    def has_method(self, name: str) -> bool:
        """Return whether the estimator has such a method."""
        return hasattr(self.estimator, name)


@dataclass(frozen=True)
class Check:
    """One check; ``only`` says to which estimators it applies."""

    run: Callable[[Subject], None]
    only: Callable[[Subject], bool] = lambda _: True

    @property
    def name(self) -> str:
        """The name of the function."""
        return self.run.__name__

    def is_applicable(self, subject: Subject) -> bool:
        """Return whether the check applies to this estimator."""
        return self.only(subject)


def outputs(estimator: Any, X: Any) -> dict[str, Any]:
    """Return the results of all methods that give one entry per row."""
    names = ("predict", "predict_proba", "decision_function", "transform")
    return {name: getattr(estimator, name)(X) for name in names if hasattr(estimator, name)}


def listing(values: Any) -> list[Any]:
    """Return the rows of an array, a frame or a sparse matrix."""
    if hasattr(values, "toarray"):
        values = values.toarray()
    return list(values.to_numpy() if hasattr(values, "to_numpy") else values)


def assert_same(actual: Any, expected: Any, what: str, *, tolerance: float = 0.0) -> None:
    """Compare results of any shape; floats within a tolerance, all else for equality."""
    if isinstance(expected, dict):
        assert actual.keys() == expected.keys(), what
        for name in expected:
            assert_same(actual[name], expected[name], f"{name}: {what}", tolerance=tolerance)
        return
    rows, wanted = listing(actual), listing(expected)
    assert len(rows) == len(wanted), f"{what}: {len(rows)} rows where {len(wanted)} are expected"
    for row, (left, right) in enumerate(zip(rows, wanted, strict=True)):
        if isinstance(right, (np.ndarray, np.floating, float)) and tolerance:
            np.testing.assert_allclose(
                left, right, rtol=tolerance, atol=tolerance, err_msg=f"{what}, row {row}"
            )
        else:
            np.testing.assert_equal(left, right, err_msg=f"{what}, row {row}")


def objects(rows: list[Any]) -> Array:
    """Return a 1-D array with a row in each cell, whatever the rows are."""
    array = np.empty(len(rows), object)
    array[:] = rows
    return array


def containers(sample: Sample) -> Iterator[tuple[str, Any]]:
    """Yield X in the containers that users pass, each with a name."""
    backward = range(len(sample))[::-1]
    named = {name: sample.column(at) for at, name in enumerate(sample.columns)}
    yield "tuple", tuple(sample.X)
    yield "object array", objects(sample.X)
    yield "Series with another index", pd.Series(objects(sample.X), index=backward)
    yield "pandas frame", pd.DataFrame({k: objects(v) for k, v in named.items()}, index=backward)
    if importlib.util.find_spec("polars"):
        polars = importlib.import_module("polars")
        yield "polars frame", polars.DataFrame(named)
        if len(sample.columns) == 1:
            yield "polars Series", polars.Series(sample.X)


@contextlib.contextmanager
def expect(*errors: type[Exception], what: str, says: str = "") -> Iterator[None]:
    """Fail unless one of these errors is raised inside, with these words (a pattern)."""
    names = " or ".join(each.__name__ for each in errors)
    try:
        yield
    except errors as error:
        if not re.search(says, str(error)):
            raise AssertionError(
                f"{what}: the message does not mention {says!r}: {error}"
            ) from error
        return
    except Exception as error:
        raise AssertionError(f"{what} raises {error!r}, where {names} is expected") from error
    raise AssertionError(f"{what} is accepted, where {names} is expected")
