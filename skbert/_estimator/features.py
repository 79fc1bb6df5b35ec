"""FeatureEstimator: numbers and categories that stand beside the texts, learned and encoded.

scikit-learn's own transformers learn from the columns; what they learned is kept as small records,
without pickle. Depends on scikit-learn and the base of the estimators; knows no task by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, ClassVar

import numpy as np
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from skbert._arrays import FloatArray
from skbert._core.items import Head
from skbert._core.models.network import Network
from skbert._core.runtime.device import Precision
from skbert._estimator.facts import Source
from skbert._estimator.feature_rows import ReadsFeatures
from skbert._estimator.fine_tuning import BertEstimator
from skbert._estimator.fit_data import FitData
from skbert._estimator.fitted import Fitted
from skbert._estimator.plan import TrainingPlan
from skbert._validation.features import (
    CategoryColumn,
    FeatureColumn,
    NumberColumn,
    check_categories,
    is_category,
    read_categories,
    read_feature_numbers,
)
from skbert._validation.tables import Table
from skbert.exceptions import InputError

__all__ = ["FeatureEstimator"]


@dataclass(eq=False, repr=False, kw_only=True)
class FeatureEstimator(ReadsFeatures, BertEstimator):
    """Base of the estimators that read columns of numbers and categories beside the texts."""

    feature_columns: str | int | Sequence[str | int] | None = None

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **BertEstimator._parameter_constraints,
        "feature_columns": [str, Integral, "array-like", None],
    }

    def _features_of_fit(
        self, X: object, table: Table, wanted: Sequence[str | int], positions: Sequence[int]
    ) -> tuple[FeatureColumn, ...]:
        return _learned(X, table, wanted, positions)

    def _open(
        self, data: FitData, previous: Fitted | None, precision: Precision, labels: dict[str, Any]
    ) -> tuple[Network, TrainingPlan, Source]:
        n_features = data.record.n_features
        if previous is not None and previous.network.head.n_features != n_features:
            raise InputError(
                "The weights to continue from were learned without feature_columns. Use "
                "feature_columns=None, or fit anew with warm_start=False."
            )
        return super()._open(data, previous, precision, labels)

    def _checkpoint_head(self, n_outputs: int) -> Head:
        if self.feature_columns is not None:
            raise InputError(
                f"feature_columns={self.feature_columns!r} needs a fit: checkpoints know no such "
                "columns. Open it without, or pass its folder as model= and call fit."
            )
        return super()._checkpoint_head(n_outputs)


def _learned(
    X: object, table: Table, wanted: Sequence[str | int], positions: Sequence[int]
) -> tuple[FeatureColumn, ...]:
    """What there is to learn of the columns of X in fit."""
    dtypes = list(X.dtypes) if hasattr(X, "columns") and hasattr(X, "dtypes") else []  # of a frame
    return tuple(
        _learned_categories(column, read_categories(table, at))
        if is_category(table, at, column, is_declared=dtypes[at : at + 1] == ["category"])
        else _learned_numbers(column, read_feature_numbers(table, at))
        for column, at in zip(wanted, positions, strict=True)
    )


def _learned_numbers(column: str | int, numbers: FloatArray) -> NumberColumn:
    """The median of a column, and the mean and standard deviation of its features."""
    imputer, scaler = SimpleImputer(strategy="median", add_indicator=True), StandardScaler()
    with np.errstate(over="ignore", invalid="ignore"):
        scaler.fit(imputer.fit_transform(numbers[:, None]))
    means, scales = tuple(scaler.mean_.tolist()), tuple(scaler.scale_.tolist())
    if not np.isfinite([*means, *scales]).all():
        raise InputError(
            f"The column {column!r} of feature_columns holds numbers up to "
            f"{np.nanmax(np.abs(numbers)):g}, too large to compute with. Give smaller units."
        )
    return NumberColumn(column, float(imputer.statistics_[0]), means, scales)


def _learned_categories(column: str | int, labels: Sequence[str | None]) -> CategoryColumn:
    """The categories of a column."""
    check_categories(labels, column)
    array = np.empty((len(labels), 1), dtype=object)
    array[:, 0] = labels
    (categories,) = OneHotEncoder(handle_unknown="ignore").fit(array).categories_
    return CategoryColumn(column, tuple(categories.tolist()))
