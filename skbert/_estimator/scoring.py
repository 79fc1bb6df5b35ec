"""``scoring``: the score of the rows held out that decides which weights are kept.

Depends on scikit-learn's scorers and on ``metrics``; imports no estimator.
"""

from __future__ import annotations

import difflib
import inspect
import reprlib
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse
import sklearn.metrics
from sklearn.utils import _safe_indexing

from skbert import metrics
from skbert._arrays import IntArray, is_arange
from skbert._core.models.network import twin_of
from skbert._estimator.base import TextEstimator
from skbert._estimator.fit_data import FitData
from skbert._estimator.fitted import Fitted, FittedEstimator
from skbert._estimator.held_out import HeldOut
from skbert._estimator.states import LastStates
from skbert._validation.tables import open_table
from skbert.exceptions import InputError, InputTypeError, SkbertError, TruncationWarning

__all__ = ["Scoring", "rows_of", "scored", "scorer_of"]

Scorer = Callable[[Any, Any, Any], object]


@dataclass(frozen=True)
class Scoring:
    """Called after each pass: the score of the rows held out, with the weights as they are."""

    scorer: Scorer
    estimator: FittedEstimator  # holds the network that is being trained
    X: object
    y: object

    def __call__(self) -> float:
        """Return the score; a larger one is better."""
        state = self.estimator._fitted
        # Who changes the model of the twin leaves the network that is trained as it is.
        self.estimator._fitted = replace(state, network=twin_of(state.network))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", TruncationWarning)  # said when fit read the rows
                score = self.scorer(self.estimator, self.X, self.y)
        except (TypeError, ValueError) as error:
            if isinstance(error, SkbertError):
                raise
            raise InputError(
                f"scoring cannot score the rows held out: {error}. Give a function (estimator, X, "
                "y) -> float that takes y in this form, or scoring='loss'."
            ) from error
        finally:
            self.estimator._fitted = state
        return _number(score)


def _number(score: object) -> float:
    """The score as a float."""
    with suppress(AttributeError, ValueError, RuntimeError):
        score = score.item()  # type: ignore[attr-defined]
    if not isinstance(score, Real):
        raise InputTypeError(
            f"scoring returned {reprlib.repr(score)}, of type {type(score).__name__}, but must "
            "return one number. Give a function (estimator, X, y) -> float, where larger is "
            "better, or the name of a scorer."
        )
    return float(score)


def scorer_of(scoring: str | Scorer) -> Scorer:
    """The scorer that a name stands for, or the scorer itself."""
    if isinstance(scoring, str):
        return _named(scoring)
    module = str(getattr(scoring, "__module__", ""))
    if inspect.isfunction(scoring) and module.startswith(("sklearn.metrics", "skbert.metrics")):
        name = scoring.__name__
        raise InputError(
            f"scoring={name} is a metric, which compares y with predictions, and not a scorer, "
            "which is called with (estimator, X, y). Type "
            f"scoring=sklearn.metrics.make_scorer({name}), or give the name of a scorer."
        )
    return scoring


def _named(name: str) -> Scorer:
    known = sklearn.metrics.get_scorer_names()
    if name in known:
        scorer: Scorer = sklearn.metrics.get_scorer(name)
        return scorer
    try:
        return metrics.get_scorer(name)
    except InputError:
        close = difflib.get_close_matches(name, ["loss", *known, *metrics.__all__], n=1)
        hint = f"Did you mean {close[0]!r}? " if close else ""
        raise InputError(
            f"scoring={name!r} is not the name of a score. {hint}It is 'loss', a name of "
            "sklearn.metrics.get_scorer_names() or of skbert.metrics.get_scorer, or a function "
            "(estimator, X, y) -> float."
        ) from None


def scored(
    estimator: TextEstimator, scoring: str | Scorer, held_out: HeldOut, fitted: Fitted,
    data: FitData,
) -> HeldOut:  # fmt: skip
    """The rows held out, with the score that ``scoring`` asks for."""
    reader = estimator._unfitted_copy().set_params(verbose=0)
    reader._fitted = fitted
    reader.__dict__["_last_states"] = LastStates()  # the same rows are predicted after each pass
    X, y = (rows_of(values, held_out.rows) for values in (data.X, data.y))
    return replace(held_out, scoring=Scoring(scorer_of(scoring), reader, X, y))


def rows_of(values: Any, rows: IntArray) -> object:
    """The rows of what a user gave, as scorers read them; None stays None."""
    if values is None:
        return None
    if scipy.sparse.issparse(values):
        return values.tocsr()[rows]
    if _is_indexed(values):
        return values if is_arange(rows, len(values)) else _safe_indexing(values, rows)
    table = open_table(values, hint=None)
    columns = [[cells[row] for row in rows] for cells in map(table.read, range(table.width))]
    if table.labels is not None:
        return pd.DataFrame([*zip(*columns, strict=True)], columns=[*table.labels])
    return np.array(columns).T if len(table.shape) == 2 else columns[0]


def _is_indexed(values: object) -> bool:
    """Whether scikit-learn takes rows of a container, and its scorers read them."""
    if isinstance(values, np.ndarray):
        kind: str = values.dtype.kind
        return kind != "T"  # numpy's StringDType
    # Of pandas, polars, Arrow's tables and columns, and tensors.
    names = "iloc", "to_arrow", "combine_chunks", "__dlpack__"
    return isinstance(values, (list, tuple)) or any(hasattr(values, name) for name in names)
