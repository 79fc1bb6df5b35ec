"""The classes that labels make, and labels compared with them.

Depends on numpy and ``skbert.exceptions``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from skbert._arrays import Array, IntArray
from skbert.exceptions import InputError, InputTypeError

__all__ = ["codes_of", "grow_classes", "is_right", "union_of"]


def is_right(labels: Array, predicted: Array, classes: Array) -> Array:
    """Whether what was predicted of each row is its label."""
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


def grow_classes(
    labels: Array, more: Array, learned: Mapping[str, Any] | None
) -> tuple[Array, IntArray | None]:
    """All classes there are, and the index of each old output among them."""
    if learned is None:
        return union_of(labels, more), None
    old = learned["classes_"]
    classes = union_of(labels, more, old)
    return classes, codes_of(old, classes)
