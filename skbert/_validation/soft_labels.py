"""Soft labels: y as probabilities of named classes, or an error that names the first bad row.

Depends on `tables` and `skbert.exceptions`.
"""

from __future__ import annotations

import reprlib
from collections import Counter

import numpy as np

from skbert._validation.tables import Table
from skbert.exceptions import InputError, InputTypeError, warn

TOLERANCE = 1e-3  # on the sum of a row
_HARD = (
    "For several labels per row give only 0 and 1, and leave classes out; for a class per column "
    "give str or integers."
)


def check_probabilities(columns: list[np.ndarray], table: Table) -> np.ndarray:
    """Return probabilities as (n, k) float64, each row divided by its sum."""
    for place, column in enumerate(columns):
        if column.dtype.kind not in "biuf":
            msg = (
                f"y must hold probabilities where classes names its columns, but "
                f"{table.place(0, place)} is {column.tolist()[0]!r:.80}. Give numbers, or "
                "leave classes out for a class per column."
            )
            raise InputTypeError(msg)
    shares = np.stack(columns, axis=1).astype(np.float64)
    _refuse_negative(shares, table)
    sums = shares.sum(axis=1)
    is_off = np.abs(sums - 1) > TOLERANCE
    if is_off.any():
        row = int(np.argmax(is_off))
        msg = (
            "Unknown label type: continuous-multioutput. y is read as soft labels, a probability "
            f"for each class, but row {row} sums to {sums[row]:.6g} instead of 1 (within "
            f"{TOLERANCE}). Give probabilities; type y / y.sum(axis=1, keepdims=True) if they are "
            f"in proportion. {_HARD}"
        )
        raise InputError(msg)
    return np.asarray(shares / sums[:, None])


def _refuse_negative(shares: np.ndarray, table: Table) -> None:
    """Raise where a probability is below 0."""
    is_bad = shares < 0
    if is_bad.any():
        row, column = map(int, np.argwhere(is_bad)[0])
        msg = (
            f"y is read as soft labels, a probability for each class, but "
            f"{table.place(row, column)} is {shares[row, column]:.6g}, below 0. Give "
            f"probabilities, such as what predict_proba returns. {_HARD}"
        )
        raise InputError(msg)


def check_names(names: np.ndarray, table: Table) -> None:
    """Raise unless the names are one for each column of soft labels, and those of a frame."""
    shown = reprlib.repr(names.tolist())
    twice = [name for name, count in Counter(names.tolist()).items() if count > 1]
    if twice:
        msg = (
            f"The columns of y are named {shown}, with {twice[0]!r} more than once. Name each "
            "class once; add up columns that mean the same class."
        )
        raise InputError(msg)
    if len(names) != table.width:
        msg = (
            f"classes names {len(names)} classes, but y has {table.width} columns. Give one class "
            "for each column, in the order of the columns."
        )
        raise InputError(msg)
    if table.labels is not None and names.tolist() != list(table.labels):
        msg = (
            f"classes is {shown}, but the columns of y are named "
            f"{reprlib.repr(list(table.labels))}. Columns of a frame name themselves: type "
            "classes=list(y.columns), or leave classes out."
        )
        raise InputError(msg)


def warn_of_order(names: np.ndarray) -> None:
    """Warn where columns that ``classes`` names are not in the order of ``classes_``."""
    in_order = np.unique(names).tolist()
    if names.tolist() != in_order:
        warn(
            f"The columns of y are read as {reprlib.repr(names.tolist())}, but score and "
            "conformalize, which take no classes, read columns without names in the order of "
            f"classes_, {reprlib.repr(in_order)}. Give them in this order, or a frame whose "
            "columns are named."
        )


def names_by_place(width: int, known: np.ndarray | None) -> np.ndarray:
    """Return the classes of columns that nobody names: those known from a fit, else numbers."""
    if known is None or len(known) == width:
        return np.arange(width) if known is None else known
    msg = (
        f"y has {width} columns of probabilities without names, but the fitted estimator knows "
        f"{len(known)} classes, {reprlib.repr(known.tolist())}. Give a column for each in this "
        "order, or a frame whose columns are named."
    )
    raise InputError(msg)
