"""What one call reads and computes once, however many methods of an estimator it asks.

Depends on the base of the estimators; knows no estimator by name.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any, TypeVar

from skbert._estimator.base import TextEstimator

__all__ = ["reading_once"]

Predictor = TypeVar("Predictor")


def reading_once(estimator: Predictor) -> Predictor:
    """A copy that reads the same X once and computes its outputs once; of skbert's only."""
    if not isinstance(estimator, TextEstimator):
        return estimator
    twin: Predictor = copy(estimator)
    for name in ("_rows", "_outputs"):
        setattr(twin, name, _remembered(getattr(estimator, name)))
    return twin


def _remembered(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method that is called once for the same objects."""
    known: dict[tuple[int, ...], tuple[tuple[object, ...], Any]] = {}

    def call(*args: object) -> Any:
        key = tuple(map(id, args))
        if key not in known:
            known[key] = args, method(*args)  # what is kept keeps its id
        return known[key][1]

    return call
