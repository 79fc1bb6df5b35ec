"""Types of numpy arrays, by what they hold, and the numbering of what lies in groups."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

__all__ = [
    "Array", "BoolArray", "FloatArray", "IntArray", "arange_within", "differences", "hash_of",
    "is_arange", "objects",
]  # fmt: skip

Array = np.ndarray[Any, Any]
BoolArray = np.ndarray[Any, np.dtype[np.bool_]]
FloatArray = np.ndarray[Any, np.dtype[np.floating[Any]]]
IntArray = np.ndarray[Any, np.dtype[np.integer[Any]]]


def arange_within(counts: IntArray) -> IntArray:
    """``arange(n)`` for each n of ``counts``, one after another."""
    ends = np.cumsum(counts)
    values: IntArray = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - counts, counts)
    return values


def differences(ends: IntArray) -> IntArray:
    """How much each number is more than the one before; for few of them faster than `np.diff`."""
    return ends[1:] - ends[:-1]


def hash_of(arrays: Iterable[Array | None]) -> str:
    """A hash of numbers, of their types and shapes, and of which arrays there are."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(b"none" if array is None else f"{array.dtype} {array.shape}".encode())
        if array is not None:
            assert not array.dtype.hasobject, "what lies there are addresses"
            digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def is_arange(values: IntArray, n: int) -> bool:
    """Whether these are ``arange(n)``: all of so many, in order."""
    if len(values) != n or (n and values[-1] != n - 1):
        return False
    return n <= 1 or bool((values == np.arange(n)).all())


def objects(values: Sequence[Any]) -> Array:
    """Values of any lengths as a 1-D array of objects."""
    array = np.empty(len(values), object)
    for row, value in enumerate(values):
        array[row] = value
    return array
