"""What displays read of X and of estimators: texts to show, probabilities.

Depends on `skbert._validation` and scikit-learn.
"""

from __future__ import annotations

import numpy as np
from sklearn.utils.validation import check_is_fitted

from skbert._arrays import Array
from skbert._validation.tables import ROW_TYPES, open_table
from skbert.exceptions import InputTypeError

__all__ = ["class_probabilities", "row_texts"]


def row_texts(X: object) -> list[str]:
    """The text of each row of X; parts of a row, such as columns, stand side by side."""
    table = open_table(X, hint=None)
    columns = [table.read(column) for column in range(table.width)]
    return [" | ".join(map(_flat, cells)) for cells in zip(*columns, strict=True)]


def _flat(cell: object) -> str:
    return " | ".join(map(_flat, cell)) if isinstance(cell, ROW_TYPES) else str(cell)


def class_probabilities(estimator: object, X: object, display: str) -> tuple[Array, Array]:
    """The probabilities that a fitted classifier predicts, and its classes."""
    check_is_fitted(estimator)
    if not hasattr(estimator, "predict_proba") or not hasattr(estimator, "classes_"):
        raise InputTypeError(
            f"{display} needs probabilities of classes, and a {type(estimator).__name__} has no "
            "predict_proba or no classes_. Give a BertClassifier, or another classifier with "
            "predict_proba."
        )
    if isinstance(estimator.classes_, list):
        raise InputTypeError(
            f"{display} shows one column of classes, and the estimator predicts "
            f"{len(estimator.classes_)}. Give an estimator that was fitted on one of them."
        )
    return estimator.predict_proba(X), np.asarray(estimator.classes_)
