"""Labels beside the probabilities that were predicted of them, checked, for scores and displays.

Depends on `tables`, `targets` and `skbert.exceptions`.
"""

from __future__ import annotations

import warnings

import numpy as np

from skbert._arrays import Array, FloatArray
from skbert._validation.tables import check_length, open_values
from skbert._validation.targets import as_sequence, check_classes, check_labels
from skbert.exceptions import InputError, InputTypeError

__all__ = [
    "check_exclusive",
    "check_kinds",
    "labels_of",
    "labels_or_indicator",
    "n_rows",
    "numbers_of",
    "probabilities_of",
]

_TOLERANCE = 1e-3  # of the sum of a row's probabilities


def n_rows(values: object, name: str) -> int:
    """The number of rows of y, at least one."""
    count = open_values(as_sequence(values), name, None).shape[0]
    if not count:
        raise InputError(f"{name} has no rows, so there is nothing to compare. Give at least one.")
    return count


def labels_or_indicator(y: object, n: int) -> tuple[Array, bool]:
    """The labels of n rows as they are checked before a fit, and whether a row may have several.

    Few rows of many classes are usual here, and no reason to warn.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The number of unique classes", UserWarning)
        return check_labels(as_sequence(y), n)


def labels_of(y: object, n: int, name: str, *, instead: str) -> Array:
    """The labels of n rows, one for each; ``instead`` says what takes several."""
    check_length(n, n_rows(y, name), name)
    labels, is_multi_label = labels_or_indicator(y, n)
    if is_multi_label:
        raise InputError(f"{name} has several labels per row. {instead}")
    return labels


def check_kinds(true: Array, others: Array, name: str, true_name: str = "y_true") -> None:
    """Refuse true labels that are str beside numbers, or numbers beside str: none are equal."""
    label, other = true.tolist()[0], others.tolist()[0]
    if isinstance(label, str) != isinstance(other, str):
        raise InputTypeError(
            f"{true_name} has labels such as {label!r:.80} and {name} such as {other!r:.80}. Give "
            "both as str or both as numbers."
        )


def check_exclusive(chances: FloatArray, instead: str) -> None:
    """Refuse probabilities of classes of which a row may have several; ``instead`` says more."""
    sums = chances.sum(axis=1)
    if (bad := np.flatnonzero(np.abs(sums - 1) > _TOLERANCE)).size:
        raise InputError(
            f"Row {bad[0]} of y_proba sums to {sums[bad[0]]:.3f}, not to 1: these are no "
            f"probabilities of classes that exclude each other. {instead}"
        )


def numbers_of(y_proba: object, form: str) -> FloatArray:
    """Probabilities as an array of float64; ``form`` says what they should be."""
    try:
        return np.asarray(y_proba, np.float64)
    except (TypeError, ValueError) as error:
        raise InputTypeError(
            f"y_proba does not hold numbers: {error}. Give an array {form}, as predict_proba "
            "returns."
        ) from error


def probabilities_of(y_proba: object, n: int, classes: object) -> tuple[FloatArray, Array]:
    """Probabilities as ``(n, n_classes)`` in float64, and the labels of their columns."""
    labels = check_classes(classes)
    wanted = f"({n}, {len(labels)}), a column for each of the classes"
    chances = numbers_of(y_proba, f"of shape {wanted}")
    if chances.shape != (n, len(labels)):
        raise InputError(f"y_proba has the shape {chances.shape}. Give one of shape {wanted}.")
    bad = np.flatnonzero(~((chances >= 0) & (chances <= 1)).all(axis=1))
    if bad.size:
        raise InputError(
            f"Row {bad[0]} of y_proba is {chances[bad[0]].tolist()!s:.80}, but probabilities lie "
            "between 0 and 1. Give what predict_proba returns."
        )
    return chances, labels
