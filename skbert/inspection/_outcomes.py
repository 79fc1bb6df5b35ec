"""Predictions for the rows of X beside the truth: classes, labels, numbers and options.

Every kind says for a row what is shown, whether it is right, and for all rows the losses. Places
in texts are in `_places`. Knows no estimator by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
import pandas as pd
from scipy.sparse import issparse

from skbert._arrays import Array, FloatArray, IntArray
from skbert._validation.choices import check_picks
from skbert._validation.probabilities import check_kinds
from skbert._validation.tables import open_values
from skbert._validation.targets import (
    as_sequence,
    check_labels,
    check_target_names,
    check_targets,
)
from skbert.exceptions import InputError, InputTypeError, warning_once
from skbert.inspection._columns import Columns, Estimator, checked_rows, open_columns
from skbert.inspection._fragments import Bar, Fragment, bars, note, scale

__all__ = [
    "Confidences",
    "Outcomes",
    "Uncoloured",
    "check_columns_of",
    "classes_or_labels",
    "name_of",
    "numbers",
    "options",
    "surprise",
]

_MOST = 5  # probabilities that are shown of a row, beside those of the truth and the prediction


class Confidences(NamedTuple):
    """Probabilities of what is predicted, and what came true of it."""

    owner: str  # what they are the probabilities of
    chances: FloatArray
    is_true: Sequence[bool | None]


class Outcomes(Protocol):
    """Predictions for some rows, and the truth where it is known."""

    @property
    def columns(self) -> Columns:
        """The texts of the rows."""

    def shown(self, row: int) -> Fragment:
        """A row with its prediction."""

    def legend(self) -> Fragment:
        """What the colours mean."""

    def prediction(self, row: int) -> Any:
        """What is predicted for a row."""

    def truth(self, row: int) -> Any:
        """What is true of a row; None where that is not known."""

    def is_right(self, row: int) -> bool | None:
        """Whether a row is right; None where nothing is right or wrong, or not known."""

    def chances(self) -> FloatArray | None:
        """Probability of the truth of each row; None where there are none."""

    def losses(self) -> FloatArray:
        """Loss of each row, with the truth known."""

    def confidences(self) -> Confidences | None:
        """Probabilities of predictions, with the truth known; None where there are none."""


def name_of(estimator: object) -> str:
    """The name of an estimator's class."""
    return type(estimator).__name__


def surprise(chances: FloatArray) -> FloatArray:
    """Minus the logarithm of probabilities; infinite where nothing was thought possible."""
    with np.errstate(divide="ignore"):
        return np.asarray(-np.log(chances.astype(np.float64)))


class Uncoloured:
    """Kinds of predictions that are shown without colours."""

    def legend(self) -> Fragment:
        """No colours."""
        return Fragment("", "")


@dataclass(frozen=True)
class _Classes(Uncoloured):
    """One class per row."""

    columns: Columns
    classes: list[Any]
    probabilities: FloatArray  # (n, n_classes)
    predicted: list[Any]
    true: list[Any] | None

    def shown(self, row: int) -> Fragment:
        return Fragment.joined([self.columns.shown(row), _ranked(
            self.classes, self.probabilities[row], [self.predicted[row]], [self.truth(row)]
        )])  # fmt: skip

    def prediction(self, row: int) -> Any:
        return self.predicted[row]

    def truth(self, row: int) -> Any:
        return None if self.true is None else self.true[row]

    def is_right(self, row: int) -> bool | None:
        return None if self.true is None else bool(self.true[row] == self.predicted[row])

    def chances(self) -> FloatArray:
        place = {label: at for at, label in enumerate(self.classes)}
        known = [
            (row, place[label]) for row, label in enumerate(self.true or []) if label in place
        ]
        chances = np.zeros(len(self.predicted))  # 0: a class that fit has not seen
        rows, codes = np.array(known, np.int64).reshape(-1, 2).T
        chances[rows] = self.probabilities[rows, codes]
        return chances

    def losses(self) -> FloatArray:
        return surprise(self.chances())

    def confidences(self) -> Confidences:
        rows, place = range(len(self.predicted)), {c: at for at, c in enumerate(self.classes)}
        # Which need not be the most probable ones, as with a threshold.
        chances = self.probabilities[rows, [place[label] for label in self.predicted]]
        return Confidences("the predicted classes", chances, [*map(self.is_right, rows)])


@dataclass(frozen=True)
class _Labels(_Classes):
    """Any number of labels per row; ``predicted`` and ``true`` hold lists of labels."""

    def shown(self, row: int) -> Fragment:
        true = () if self.true is None else self.true[row]
        lines = _ranked(self.classes, self.probabilities[row], self.predicted[row], true)
        return Fragment.joined([self.columns.shown(row), lines])

    def chances(self) -> FloatArray:
        return np.exp(-self.losses())

    def losses(self) -> FloatArray:
        is_true = np.array([[each in row for each in self.classes] for row in self.true or []])
        chances = self.probabilities.astype(np.float64)
        return np.asarray(surprise(np.where(is_true, chances, 1 - chances)).sum(axis=1))

    def confidences(self) -> Confidences:
        is_true = [each in true for true in self.true or [] for each in self.classes]
        return Confidences("all labels, one by one", self.probabilities.ravel(), is_true)


def _ranked(
    classes: list[Any], chances: FloatArray, predicted: Sequence[Any], true: Sequence[Any]
) -> Fragment:
    """The most probable classes, and those that are predicted or true."""
    lines, order = [], np.argsort(-chances, kind="stable")
    for rank, code in enumerate(order):
        label = classes[code]
        flags = ("predicted",) * (label in predicted) + ("true",) * (label in true)
        if rank < _MOST or flags:
            lines.append(Bar(str(label), float(chances[code]), flags))
    unknown = [str(label) for label in true if label is not None and label not in classes]
    left = len(order) - len(lines)
    return Fragment.joined([
        bars(lines),
        *(note(f"true: {label}, which fit has not seen") for label in unknown),
        *[note(f"{left} more, all less probable")] * (left > 0),
    ])  # fmt: skip


def classes_or_labels(estimator: Estimator, X: object, y: object) -> Outcomes:
    """The outcomes of a classifier."""
    columns = open_columns(estimator, X)
    with warning_once():
        found = estimator.predict(X)
        predicted = found.toarray() if issparse(found) else np.asarray(found)
        chances = estimator.predict_proba(X)
    if isinstance(chances, list):
        raise InputTypeError(
            f"{name_of(estimator)} predicts several columns of classes, with a table of "
            "probabilities for each, and only one column can be shown. Give an estimator of it: "
            "fit(X, y['name of the column']). Where a row has any number of labels, use "
            "OneVsRestClassifier(estimator)."
        )
    probabilities = np.asarray(chances)
    if probabilities.dtype.kind != "f":
        raise InputTypeError(
            f"{name_of(estimator)} predicts {predicted.tolist()[0]!r:.80} for row 0, which is "
            "not a label. Give an estimator of skbert by itself; of a Pipeline, such a step, with "
            "X in the form that this step reads."
        )
    true: Array | None = None
    if y is not None:
        check_columns_of(y, estimator)
        true, _ = check_labels(as_sequence(y), len(predicted), estimator_name=name_of(estimator))
        _check_form(true, predicted)
    classes = np.asarray(estimator.classes_).tolist()
    if predicted.ndim == 1:
        known = None if true is None else true.tolist()
        return _Classes(columns, classes, probabilities, predicted.tolist(), known)
    named = [_named(table, classes) for table in (predicted, true)]
    return _Labels(columns, classes, probabilities, named[0] or [], named[1])


def _named(table: Array | None, classes: list[Any]) -> list[Any] | None:
    """The labels that each row of an indicator matrix has."""
    if table is None:
        return None
    return [[classes[code] for code in np.flatnonzero(row)] for row in table]


def check_columns_of(y: object, estimator: object) -> None:
    """Raise where the columns of y have other names than in fit, as ``score`` does."""
    last: Any = getattr(estimator, "best_estimator_", estimator)
    if hasattr(last, "steps"):
        check_columns_of(y, last.steps[-1][1])
        return
    known = getattr(last, "target_names_", None)
    if y is not None and known is not None:
        names = open_values(as_sequence(y), "y", None).names
        check_target_names(names, {"target_names_": known})


def _check_form(true: Array, predicted: Array) -> None:
    """Raise where the truth has another form than predictions."""
    if true.shape != predicted.shape:
        raise InputError(
            f"y has the shape {true.shape}, but the estimator predicts {predicted.shape} for X. "
            "Give y in the form that it had in fit."
        )
    if true.ndim == 1:
        check_kinds(true, predicted, "the predictions", "y")


@dataclass(frozen=True)
class _Numbers:
    """One number or several per row."""

    columns: Columns
    predicted: FloatArray  # (n, n_outputs)
    true: FloatArray | None

    @cached_property
    def ends(self) -> list[tuple[float, float]]:
        """The least and the largest number of each output."""
        both = self.predicted if self.true is None else np.concatenate([self.predicted, self.true])
        return [*zip(both.min(axis=0).tolist(), both.max(axis=0).tolist(), strict=True)]

    def shown(self, row: int) -> Fragment:
        several = self.predicted.shape[1] > 1
        return Fragment.joined([
            self.columns.shown(row),
            *(
                scale(
                    f"output {at}: predicted" if several else "predicted",
                    float(self.predicted[row, at]),
                    None if self.true is None else float(self.true[row, at]),
                    limits,
                )
                for at, limits in enumerate(self.ends)
            ),
        ])  # fmt: skip

    def legend(self) -> Fragment:
        marks = "filled: predicted" + ("" if self.true is None else "; outlined: true")
        ends = "; ".join(f"{low:.4g} to {high:.4g}" for low, high in self.ends)
        return note(f"Scale: {ends} ({marks})")

    def prediction(self, row: int) -> Any:
        return _number_or_list(self.predicted[row])

    def truth(self, row: int) -> Any:
        return None if self.true is None else _number_or_list(self.true[row])

    def is_right(self, row: int) -> bool | None:  # noqa: ARG002 - numbers are near or far
        return None

    def chances(self) -> None:
        return None

    def losses(self) -> FloatArray:
        assert self.true is not None
        spread = self.true.std(axis=0)
        errors = (self.predicted - self.true) / np.where(spread > 0, spread, 1.0)
        return np.asarray((errors**2).mean(axis=1))

    def confidences(self) -> None:
        return None


def _number_or_list(values: FloatArray) -> Any:
    return float(values[0]) if len(values) == 1 else values.tolist()


def numbers(estimator: Estimator, X: object, y: object) -> Outcomes:
    """The outcomes of a regressor."""
    columns, predicted = open_columns(estimator, X), np.asarray(estimator.predict(X))
    if predicted.dtype.kind not in "biuf":
        raise InputTypeError(
            f"{name_of(estimator)} predicts {predicted.tolist()[0]!r:.80} for row 0, without "
            "probabilities. Give an estimator with predict_proba: "
            "CalibratedClassifierCV(estimator)."
        )
    if predicted.shape[1:] == (1,):  # of scikit-learn's, fitted on a frame of one column
        predicted = predicted[:, 0]
    true = None
    if y is not None:
        check_columns_of(y, estimator)
        true = check_targets(as_sequence(y), len(predicted), estimator_name=name_of(estimator))
        _check_form(true, predicted)
        true = true.reshape(len(predicted), -1)
    return _Numbers(columns, predicted.reshape(len(predicted), -1).astype(np.float64), true)


@dataclass(frozen=True)
class _Options(Uncoloured):
    """One of several options per row."""

    columns: Columns  # what comes before the options
    ranking: list[pd.DataFrame]  # the options of each row, best first
    true: IntArray | None

    def shown(self, row: int) -> Fragment:
        table, true = self.ranking[row], self.truth(row)
        lines = [
            Bar(text, chance, ("predicted",) * (rank == 1) + ("true",) * (option == true))
            for rank, option, text, chance in zip(
                table["rank"], table["option"], table["text"], table["probability"], strict=True
            )
        ]
        return Fragment.joined([self.columns.shown(row), bars(lines)])

    def prediction(self, row: int) -> Any:
        return int(self.ranking[row]["option"].iloc[0])

    def truth(self, row: int) -> Any:
        return None if self.true is None else int(self.true[row])

    def is_right(self, row: int) -> bool | None:
        return None if self.true is None else self.prediction(row) == self.truth(row)

    def chances(self) -> FloatArray:
        pairs = ((table, self.truth(row)) for row, table in enumerate(self.ranking))
        return np.array([
            table["probability"][table["option"] == true].sum() for table, true in pairs
        ])  # fmt: skip

    def losses(self) -> FloatArray:
        return surprise(self.chances())

    def confidences(self) -> Confidences:
        best = np.array([table["probability"].iloc[0] for table in self.ranking])
        rights = [self.is_right(row) for row in range(len(best))]
        return Confidences("the predicted options", best, rights)


def options(estimator: Estimator, X: object, y: object) -> Outcomes:
    """The outcomes of an estimator that ranks options."""
    rows = checked_rows(estimator, X)
    ranking = [table for _, table in estimator.rank(X).groupby("row", sort=True)]
    true = None
    if y is not None:
        true = check_picks(as_sequence(y), rows, estimator_name=name_of(estimator))
    return _Options(Columns([], rows.columns), ranking, true)
