"""Rows of texts with numbers and categories beside them, read as a fit has learned to.

Depends on the checks of X; what there is to learn of such columns is in `features`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from skbert._estimator.predicting import Predicting
from skbert._validation.columns import (
    FitRecord,
    TextColumns,
    column_positions,
    feature_positions,
    wanted_columns,
    wanted_features,
)
from skbert._validation.features import FeatureColumn, encode_features
from skbert._validation.tables import Table, check_not_empty, open_table, split_rows
from skbert._validation.texts import Texts, read_texts
from skbert.exceptions import InputError

__all__ = ["ReadsFeatures"]


class ReadsFeatures(Predicting):
    """What predicts from texts and from the columns beside them."""

    feature_columns: str | int | Sequence[str | int] | None

    def _features_of_fit(
        self, X: object, table: Table, wanted: Sequence[str | int], positions: Sequence[int]
    ) -> tuple[FeatureColumn, ...]:
        """What there is to learn of the columns of X in fit."""
        raise NotImplementedError

    def _rows(self, X: object, record: FitRecord | None) -> Texts:
        wanted = [] if self.feature_columns is None else wanted_features(self.feature_columns)
        fitted = wanted if record is None else [column for column, *_ in record.features]
        if fitted != wanted:
            raise InputError(
                f"feature_columns={self.feature_columns!r}, but the estimator was fitted with "
                f"{fitted or None}. Set it to that, or fit "
                "anew with warm_start=False."
            )
        if not wanted:
            rows: Texts = super()._rows(X, record)
            return rows
        table = split_rows(open_table(X, hint=None))
        check_not_empty(table)
        positions = feature_positions(table, wanted)
        rows = read_texts(
            table,
            columns=_text_columns(table, positions, self.text_columns, record),
            missing=self.missing,
            fitted=record,
            estimator_name=self._estimator_name,
        )
        columns = (
            self._features_of_fit(X, table, wanted, positions)
            if record is None
            else record.features
        )
        features = encode_features(columns, table, positions)
        return replace(rows, features=features, feature_columns=columns)


def _text_columns(
    table: Table, positions: Sequence[int], chosen: TextColumns, record: FitRecord | None
) -> TextColumns:
    """The columns of texts; for None all columns that hold no features."""
    if chosen is None:
        in_fit = _names_beside(record) if table.names is not None else []
        return in_fit or _remaining_columns(table, positions)
    both = {*positions} & {*column_positions(table, wanted_columns(chosen, table.width))}
    if both:
        at = min(both)
        raise InputError(
            "text_columns and feature_columns both name "
            f"{at if table.labels is None else table.labels[at]!r}. A column is read as a text or "
            "as a feature: leave it out of one of them."
        )
    return chosen


def _names_beside(record: FitRecord | None) -> list[str]:
    """The columns that held no features in fit; empty where there was none, or without names."""
    if record is None or record.names is None:
        return []
    features = [
        column if isinstance(column, str) else record.names[column]
        for column, *_ in record.features
    ]
    return [name for name in record.names if name not in features]


def _remaining_columns(table: Table, positions: Sequence[int]) -> list[str] | list[int]:
    """The columns that hold no features, which must be one text or a pair."""
    rest = [at for at in range(table.width) if at not in positions]
    labels = rest if table.labels is None else [table.labels[at] for at in rest]
    if not 0 < len(rest) <= 2:
        raise InputError(
            f"Beside feature_columns X has {len(rest)} columns, {labels}, and nothing says which "
            "hold texts. Choose some: type text_columns=['question', 'context']."
        )
    return rest if table.names is None else labels
