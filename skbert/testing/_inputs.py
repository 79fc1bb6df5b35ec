"""Checks of `skbert.testing`: bad inputs are refused, and the message says where they are.

Depends on numpy, scipy, scikit-learn and the samples.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted, has_fit_parameter

from skbert.testing._samples import Check, Subject, expect, objects, outputs

__all__ = ["INPUT_CHECKS"]

_ROW = 4  # the row of a bad cell


def check_empty(subject: Subject) -> None:
    """X without rows is refused."""
    for empty in (list[Any](), objects([])):
        refuse(subject, empty, "X without rows", says="0 sample")


def check_missing_cells(subject: Subject) -> None:
    """A missing cell is refused, and its row named."""
    for cell in (None, np.nan, pd.NA, pd.NaT):
        X = subject.sample.with_cell(_ROW, cell)
        refuse(subject, X, f"X with {cell!r} in row {_ROW}", says=rf"\b{_ROW}\b")


def check_foreign_cells(subject: Subject) -> None:
    """A cell that is not a text is refused, and its row named."""
    for cell in (7, b"bytes", {"text": "a"}):
        X = subject.sample.with_cell(_ROW, cell)
        refuse(subject, X, f"X with {cell!r} in row {_ROW}", says=rf"\b{_ROW}\b")


def check_single_string(subject: Subject) -> None:
    """A single str is not read as a list of characters."""
    refuse(subject, "a single text", "a bare str")
    refuse(subject, b"a single text", "bare bytes")


def check_no_rows_to_select(subject: Subject) -> None:
    """Containers without rows are refused: a generator, a dict, a set, a sparse matrix."""
    X = subject.sample.X
    refuse(subject, (row for row in X), "a generator")
    refuse(subject, {"text": X}, "a dict of lists")
    refuse(subject, set(map(str, X)), "a set")
    refuse(subject, scipy.sparse.eye_array(len(X), format="csr"), "a sparse matrix")


def check_columns_as_rows(subject: Subject) -> None:
    """Two columns are not read as two rows."""
    columns = tuple(subject.sample.column(at) for at in range(2))
    y = subject.sample.y[:2] if subject.sample.y else None
    with expect(ValueError, TypeError, what="(first texts, second texts) instead of rows"):
        subject.fit(columns, y)


def check_lengths(subject: Subject) -> None:
    """X and y of different lengths are refused, and the message has both lengths."""
    y: Any = subject.sample.y
    with expect(ValueError, what="y that is shorter than X", says=rf"\b{len(y) - 1}\b"):
        subject.fit(y=y[:-1])
    with expect(ValueError, what="y that is longer than X", says=rf"\b{len(y) + 1}\b"):
        subject.fit(y=[*y, y[0]])


def check_no_targets(subject: Subject) -> None:
    """`fit` without y is refused."""
    for arguments in ((), (None,)):
        with expect(ValueError, TypeError, what="fit without y"):
            subject.new().fit(subject.sample.X, *arguments)


def check_missing_targets(subject: Subject) -> None:
    """A missing target is refused."""
    for missing in (None, np.nan):
        y: Any = list(subject.sample.y or ())
        y[_ROW] = missing
        with expect(ValueError, TypeError, what=f"y with {missing!r} in row {_ROW}"):
            subject.fit(y=y)


def check_weights(subject: Subject) -> None:
    """Weights that are not one finite number per row are refused."""
    n = len(subject.sample)
    bad: dict[str, Any] = {
        "too few weights": np.ones(n - 1),
        "weights in two columns": np.ones((n, 2)),
        "a missing weight": [*[1.0] * (n - 1), np.nan],
        "an infinite weight": [*[1.0] * (n - 1), np.inf],
        "a negative weight": [*[1.0] * (n - 1), -1.0],
        "weights that are words": ["one"] * n,
    }
    for what, weight in bad.items():
        with expect(ValueError, TypeError, what=what):
            subject.fit(sample_weight=weight)


def check_refused_fit(subject: Subject) -> None:
    """An estimator whose fit was refused is not fitted, and can be fitted afterwards."""
    estimator, sample = subject.new(), subject.sample
    more = (sample.y,) if sample.is_supervised else ()
    with expect(ValueError, TypeError, what="X with None"):
        estimator.fit(sample.with_cell(_ROW, None), *more)
    with expect(NotFittedError, what="check_is_fitted after a refused fit"):
        check_is_fitted(estimator)
    check_is_fitted(estimator.fit(sample.X, *more))


INPUT_CHECKS = (
    Check(check_empty),
    Check(check_missing_cells),
    Check(check_foreign_cells),
    Check(check_single_string),
    Check(check_no_rows_to_select),
    Check(check_columns_as_rows, lambda s: len(s.sample.columns) == 2),
    Check(check_lengths, lambda s: s.sample.is_supervised),
    Check(check_no_targets, lambda s: s.sample.is_supervised),
    Check(check_missing_targets, lambda s: s.sample.is_supervised),
    Check(check_weights, lambda s: has_fit_parameter(s.estimator, "sample_weight")),
    Check(check_refused_fit),
)


def refuse(subject: Subject, X: Any, what: str, says: str = "") -> None:
    """Fail unless `fit` and every method of a fitted estimator refuse X."""
    calls: dict[str, Callable[[], Any]] = {
        "fit": partial(subject.fit, X),
        "predicting": partial(outputs, subject.fitted, X),
    }
    for name, call in calls.items():
        with expect(ValueError, TypeError, what=f"{what}, in {name},", says=says):
            call()
