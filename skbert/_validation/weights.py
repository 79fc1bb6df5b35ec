"""Weights of rows and classes as numpy arrays, or an error that names the first bad one.

Depends on `tables` and `skbert.exceptions`.
"""

from __future__ import annotations

import difflib
import math
import reprlib
from collections.abc import Mapping, Sequence
from numbers import Number, Real
from typing import Any

import numpy as np

from skbert._validation.features import check_finite, read_number, read_numbers
from skbert._validation.tables import open_values
from skbert.exceptions import InputError

# Powers of two. Sums of weights within the first bounds are finite in float64; in float32 those of
# weights whose mean is within the second. Larger ones would outweigh the penalty of the probe.
BOUNDS_OF_SUMS = (-900, 900)
BOUNDS_OF_MEAN = (-30, 10)
LOST = 2.0**-100  # smaller weights are lost in float32


def check_sample_weight(weight: Any, n: int) -> np.ndarray | None:
    """Return one finite, non-negative float64 weight per row, None for no weights.

    All are scaled by a power of two where their sum would not be finite.
    """
    if weight is None:
        return None
    weight = np.full(n, weight) if isinstance(weight, Number) else weight
    table = open_values(weight, "sample_weight", "")
    if len(table.shape) != 1:
        msg = (
            f"Sample weights must be 1D array or scalar, got {len(table.shape)}D array. Expected "
            f"either a scalar value or a 1D array of length {n}."
        )
        raise InputError(msg)
    if table.shape != (n,):
        msg = (
            f"sample_weight.shape == {table.shape}, expected {(n,)}! Give sample_weight one "
            "number per row of X."
        )
        raise InputError(msg)
    weights = read_numbers(weight, table, 0, "sample_weight")
    check_finite(weights, table, 0, "sample_weight")
    _check_worth(weights)
    return _within(weights, weights.max(), BOUNDS_OF_SUMS)


def rescale_weights(weights: np.ndarray | None) -> np.ndarray | None:
    """Return weights in the same ratio, scaled to fit float32; those too small for it are 0.

    Usual weights stay the same, bit for bit; None stays None.
    """
    if weights is None:
        return None
    near = _within(weights, weights.mean(), BOUNDS_OF_MEAN)
    return np.where(near < LOST, 0.0, near)


def _within(weights: np.ndarray, size: float, bounds: tuple[int, int]) -> np.ndarray:
    """Return the weights, scaled by a power of two that brings their size within the bounds."""
    low, high = bounds
    exponent = math.frexp(size)[1]
    shift = min(max(exponent, low), high) - exponent
    return np.asarray(np.ldexp(weights, shift))


def _check_worth(weights: np.ndarray) -> None:
    """Raise when a weight is negative or none is above zero, in scikit-learn's words."""
    if (weights < 0).any():
        row = int(np.argmax(weights < 0))
        msg = (
            f"Negative values in data passed to `sample_weight`, the first in row {row} "
            f"({weights[row]}). A weight says how often a row counts; use 0 to leave a row out."
        )
        raise InputError(msg)
    if not weights.any():
        msg = (
            "Sample weights must contain at least one non-zero number. With zeros only no row "
            "would count; type sample_weight=None to count all rows alike."
        )
        raise InputError(msg)


def check_class_weight(
    class_weight: Any,
    classes: np.ndarray,
    codes: np.ndarray,
    sample_weight: np.ndarray | None = None,
) -> np.ndarray | None:
    """Return one float64 multiplier per class, None for no class weights.

    `codes` (n,) are positions in `classes`. "balanced" gives each class the same total weight; a
    sample weight of 2 counts like repeating the row, and a class without any weight gets 1.
    """
    if class_weight is None:
        return None
    if isinstance(class_weight, str) and class_weight == "balanced":
        counts = np.bincount(codes, weights=sample_weight, minlength=len(classes))
        present = counts > 0
        multipliers = np.ones(len(classes))
        multipliers[present] = counts.sum() / (present.sum() * counts[present])
        return multipliers
    if not isinstance(class_weight, Mapping):
        close = difflib.get_close_matches(str(class_weight), ["balanced"])
        hint = " Did you mean 'balanced'?" if close else ""
        msg = (
            f"class_weight={class_weight!r} is not a choice. It must be None, 'balanced' or a "
            f"dict of weights per class, such as {{{classes.tolist()[0]!r}: 2.0}}.{hint}"
        )
        raise InputError(msg)
    _check_class_keys(class_weight, classes.tolist())
    multipliers = np.array([_class_weight(class_weight, label) for label in classes.tolist()])
    return _within(multipliers, multipliers.max(), BOUNDS_OF_SUMS)


def _check_class_keys(class_weight: Mapping[Any, Any], classes: list[Any]) -> None:
    """Raise when a key is not a class, or when no class has a weight."""
    unknown = [key for key in class_weight if key not in classes]
    if unknown:
        msg = (
            f"class_weight has keys that are not classes: {unknown}. The classes are "
            f"{reprlib.repr(classes)}; those left out of the dict get a weight of 1."
            f"{hint_of_class(unknown[0], classes)}"
        )
        raise InputError(msg)
    if not any(_class_weight(class_weight, label) for label in classes):
        msg = (
            "class_weight gives every class a weight of 0, so no row would count. Give at least "
            "one class a weight above 0."
        )
        raise InputError(msg)


def hint_of_class(label: object, classes: Sequence[object]) -> str:
    """Return the question whether another class was meant, empty where none is alike."""
    by_name = {str(each): each for each in classes}
    close = difflib.get_close_matches(str(label), by_name, n=1)
    return f" Did you mean {by_name[close[0]]!r} for {label!r}?" if close else ""


def _class_weight(class_weight: Mapping[Any, Any], label: Any) -> float:
    """Return the weight of one class, 1 when it has none."""
    value: Any = class_weight.get(label, 1.0)
    number = read_number(value) if isinstance(value, Real) else None
    if number is None or not math.isfinite(number) or number < 0:
        msg = (
            f"class_weight[{label!r}] is {value!r}, but a class weight must be a finite number "
            "that is not negative. Use 0 to leave a class out, 1 for no change."
        )
        raise InputError(msg)
    return number
