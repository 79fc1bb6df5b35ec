"""The classes that labels make, and labels compared with them.

Depends on numpy and ``skbert.exceptions``.
"""

from __future__ import annotations

import numpy as np

from skbert._arrays import Array
from skbert.exceptions import InputError, InputTypeError

__all__ = ["codes_of", "indicator_columns", "is_right", "union_of"]


def indicator_columns(n_classes: int, known: int, named: Array) -> Array:
    """The labels of an indicator matrix, which are its column numbers."""
    if n_classes != known:
        raise InputError(
            f"y has {n_classes} columns, but the fitted estimator knows {known} labels. Give the "
            "same columns, or fit anew with warm_start=False."
        )
    classes = np.arange(n_classes)
    if len(named) and not np.array_equal(np.unique(named), classes):
        raise InputError(
            f"classes={named.tolist()!r:.80} does not fit y, an indicator matrix of {n_classes} "
            "columns, whose labels are the column numbers. Leave classes out, and give y a column "
            "for every label there will be."
        )
    return classes


def is_right(labels: Array, predicted: Array, classes: Array) -> Array:
    """Whether what was predicted of each row is its label, or all its labels."""
    if labels.shape != predicted.shape:
        one, several = "one label", "an indicator matrix of {} columns"
        forms = [one if part.ndim == 1 else several.format(part.shape[1])
                 for part in (labels, predicted)]  # fmt: skip
        raise InputError(
            f"y holds {forms[0]} per row, but the estimator predicts {forms[1]}. Give y in the "
            "form that it had in fit."
        )
    if labels.ndim == 2:
        return np.asarray((labels == predicted).all(axis=1))
    _refuse_other_kind(labels, classes)
    # As objects: numpy rounds integers of 64 bits that it compares with floats.
    return np.asarray(labels.astype(object) == predicted.astype(object))


def _refuse_other_kind(labels: Array, known: Array) -> None:
    """Raise where labels are str and classes numbers, or the other way round."""
    label, other = labels.tolist()[0], known.tolist()[0]
    if isinstance(label, str) != isinstance(other, str):
        raise InputTypeError(
            f"y mixes str and numbers: row 0 is {label!r}, but the classes known or given are "
            f"like {other!r}. Labels must be of one kind; type y = [str(label) for label in y], "
            "or fit anew with warm_start=False."
        )


def union_of(labels: Array, *known: Array) -> Array:
    """All classes there are, sorted: those in ``labels`` and those known before."""
    known = tuple(part for part in known if len(part))
    for other in known:
        _refuse_other_kind(labels, other)
    parts = [np.unique(part) for part in (labels, *known)]
    if isinstance(parts[0].tolist()[0], str):
        return np.unique(np.concatenate(parts))
    for dtype in (np.result_type(*parts), np.dtype(np.int64), np.dtype(np.uint64)):
        with np.errstate(invalid="ignore"):  # numbers that this type does not hold
            whole = [part.astype(dtype) for part in parts]
        if [part.tolist() for part in whole] == [part.tolist() for part in parts]:
            return np.unique(np.concatenate(whole))
    raise InputError(
        f"No type of numbers holds all labels: y has {_ends(parts[0])}, and the classes known or "
        f"given are {', '.join(map(_ends, parts[1:]))}. Type y = [str(label) for label in y], and "
        "fit anew with warm_start=False."
    )


def _ends(part: Array) -> str:
    """The smallest and the largest of sorted labels, and their type."""
    return f"{part[0]} to {part[-1]} ({part.dtype})"


def codes_of(labels: Array, classes: Array) -> Array:
    """Position of each label in the classes."""
    if classes.dtype.kind in "biuf":  # else numpy compares integers of two types as floats
        labels = labels.astype(classes.dtype)
    return np.searchsorted(classes, labels)
