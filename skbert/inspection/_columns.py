"""X as the texts that are shown, and the truth beside it.

Depends on the base of the estimators and on ``_validation``; knows no estimator by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import pandas as pd

from skbert._estimator.base import TextEstimator
from skbert._estimator.fitted import Fitted
from skbert._validation.columns import FitRecord, input_names
from skbert._validation.tables import check_not_empty, open_table
from skbert.exceptions import InputError
from skbert.inspection._fragments import Fragment, marked

__all__ = [
    "Columns",
    "Estimator",
    "Predicts",
    "as_objects",
    "check_refitted",
    "checked_rows",
    "open_columns",
]


class Predicts(Protocol):
    """An estimator that predicts."""

    def predict(self, X: object, /) -> Any:
        """Predict for each row of X."""


class Estimator(Predicts, Protocol):
    """What views ask of estimators, each of those that have it."""

    classes_: Any
    scheme_: str | None
    predict_proba: Callable[[object], Any]
    predict_answers: Callable[[object, int], pd.DataFrame]
    predict_spans: Callable[[object], pd.DataFrame]
    rank: Callable[[object], pd.DataFrame]


@dataclass(frozen=True)
class Columns:
    """The texts of X, column by column."""

    names: list[str]  # empty: the columns have none
    cells: list[list[str]]

    def shown(self, row: int) -> Fragment:
        """The texts of a row, each below the name of its column where there are several."""
        names = self.names if len(self.cells) > 1 and self.names else [None] * len(self.cells)
        pairs = zip(self.cells, names, strict=True)
        return Fragment.joined(marked(column[row], name=name) for column, name in pairs)

    def text(self, row: int) -> str:
        """The texts of a row, one per line."""
        return "\n".join(column[row] for column in self.cells)


def as_objects(values: list[Any]) -> pd.Series[Any]:
    """A column of a table that holds anything as it is, lists and lone surrogates too."""
    return pd.Series(values, dtype=object)


def check_refitted(estimator: object) -> None:
    """Raise for a search that keeps no estimator."""
    if getattr(estimator, "refit", True) is False:
        kind = type(estimator).__name__
        raise InputError(
            f"This {kind} instance was initialized with `refit=False`, so it has scores of "
            f"parameters but no estimator that predicts. Type {kind}(..., refit=True).fit(X, y), "
            "or fit an estimator with best_params_ and give that."
        )


def checked_rows(estimator: Predicts, X: object) -> Any:
    """X as an estimator of skbert reads it."""
    assert isinstance(estimator, TextEstimator)
    return estimator._rows(X, estimator._state().record)


def open_columns(estimator: Predicts, X: object) -> Columns:
    """The texts that an estimator reads; all columns where it is none of skbert."""
    if isinstance(estimator, TextEstimator):
        fitted: Fitted | None = getattr(estimator, "_fitted", None)
        rows = estimator._rows(X, None if fitted is None else fitted.record)
        record = FitRecord(rows.names, rows.n_columns)
        names = input_names(None, record, estimator.text_columns) if rows.names else []
        fields = [str(field.name) for field in getattr(rows, "fields", ()) if field.name]
        if len(fields) == rows.n_columns:
            names = fields
        return Columns(names, rows.columns)
    table = open_table(X)
    check_not_empty(table)
    cells = [[str(cell) for cell in table.read(at)] for at in range(table.width)]
    return Columns(list(table.names or ()), cells)
