"""FitData: what ``fit`` was called with, checked. Depends on the base of all estimators."""

from __future__ import annotations

from typing import Any, NamedTuple

from skbert._arrays import Array, IntArray
from skbert._estimator.base import TextEstimator
from skbert._validation.columns import FitRecord
from skbert._validation.targets import as_sequence
from skbert._validation.weights import check_sample_weight, rescale_weights

__all__ = ["FitData", "read"]


class FitData(NamedTuple):
    """What ``fit`` was called with, checked."""

    X: object  # as it was given
    rows: Any
    y: Any
    weight: Array | None  # (n_samples,)
    record: FitRecord
    attributes: dict[str, Any]  # those of the previous fit, and what X adds to them
    groups: IntArray | None = None  # (n_samples,)
    validation: FitData | None = None  # X_val and what belongs to it


def read(
    estimator: TextEstimator, X: object, y: object, sample_weight: object,
    record: FitRecord | None,
) -> FitData:  # fmt: skip
    """Read X, and check that there is a weight for each row."""
    rows = estimator._rows(X, record)
    weight = rescale_weights(check_sample_weight(as_sequence(sample_weight), len(rows)))
    features = getattr(rows, "feature_columns", ())
    record = record or FitRecord(rows.names, rows.n_columns, features, rows.width)
    return FitData(X, rows, as_sequence(y), weight, record, {})
