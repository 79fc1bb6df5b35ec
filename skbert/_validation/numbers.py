"""Columns of numbers, without gaps and finite, or an error that names the first bad row.

Depends on numpy, `tables` and `skbert.exceptions`; knows no torch and no tokenizer.
"""

from __future__ import annotations

import math
import reprlib
from numbers import Complex, Integral
from typing import Any

import numpy as np

from skbert._validation.tables import Table, is_missing, open_table
from skbert.exceptions import InputError, InputTypeError


def open_values(values: Any, name: str, hint: str | None) -> Table:
    """Open y or weights; a single str is no sequence of values."""
    if isinstance(values, (str, bytes)):
        msg = f"{name} is {values!r}, but must hold one value per row of X. Pass a list of values."
        raise InputError(msg)
    return open_table(values, name, hint)


def read_column(values: Any, table: Table, column: int) -> np.ndarray | list[Any]:
    """Return one column, as an array where it is one of numbers or ``<U`` already."""
    dtype = getattr(values, "dtype", None)
    if isinstance(dtype, np.dtype) and dtype.kind in "biufcU" and not np.ma.isMaskedArray(values):
        array = np.asarray(values)
        return array[:, column] if array.ndim == 2 else array
    return table.read(column)


def read_numbers(values: Any, table: Table, column: int, name: str) -> np.ndarray:
    """Return one column as float64 without gaps."""
    cells = read_column(values, table, column)
    if isinstance(cells, np.ndarray) and cells.dtype.kind in "biuf":
        numbers = cells.astype(np.float64)
    else:
        numbers = np.empty(table.shape[0])
        for row, cell in enumerate(cells):
            number = read_number(cell)
            if number is None:
                raise _no_number_error(cell, name, table.place(row, column))
            numbers[row] = number
    refuse_gaps(np.flatnonzero(np.isnan(numbers)).tolist(), table, column, name)
    return numbers


def read_number(cell: Any) -> float | None:
    """Return a cell as a float, NaN for a missing one, None for what is no real number."""
    if is_missing(cell):
        return math.nan
    if isinstance(cell, (str, bytes, np.ndarray, np.complexfloating)):
        return None
    try:
        return float(cell)
    except OverflowError:
        return math.inf
    except (TypeError, ValueError):
        return None


def _no_number_error(cell: Any, name: str, place: str) -> InputError | InputTypeError:
    """Make the error for a cell that is no real number."""
    if isinstance(cell, Complex):
        return complex_error(name, place)
    if isinstance(cell, (str, bytes)):
        return InputError(
            f"could not convert string to float: {reprlib.repr(cell)}, in {place} of {name}. "
            f"Give numbers; type {name} = [float(value) for value in {name}] if all are some."
        )
    return InputTypeError(
        f"{name} must hold real numbers, but {place} holds {reprlib.repr(cell)}, of type "
        f"{type(cell).__name__}. Give one number per row of X."
    )


def complex_error(name: str, place: str) -> InputError:
    """Make the error for complex numbers, in scikit-learn's words."""
    return InputError(
        f"Complex data not supported. {name} holds complex numbers, the first in {place}. Give "
        f"real numbers; type numpy.real({name})."
    )


def check_count(value: Any, name: str) -> None:
    """Raise unless a value is an integer of at least 1."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, Integral):
        msg = (
            f"{name} is {value!r}, of type {type(value).__name__}, but must be an int of at least "
            f"1; type {name}=5."
        )
        raise InputTypeError(msg)
    if value < 1:
        msg = f"{name} is {value!r}, but must be at least 1; type {name}=5."
        raise InputError(msg)


def check_temperature(value: Any) -> None:
    """Raise unless a value is a finite number that is not negative."""
    known = isinstance(value, (int, float, np.integer, np.floating))
    if isinstance(value, bool) or not known:
        msg = (
            f"temperature is {reprlib.repr(value)}, of type {type(value).__name__}, but must be "
            "an int or a float; type temperature=0.0 for the most probable word pieces."
        )
        raise InputTypeError(msg)
    number = read_number(value)
    if number is None or not math.isfinite(number) or number < 0:
        msg = (
            f"temperature is {value!r}, but must be finite and not negative; type temperature=0.0 "
            "for the most probable word pieces, 1.0 for a draw from the model's probabilities."
        )
        raise InputError(msg)


def refuse_gaps(rows: list[int], table: Table, column: int, name: str) -> None:
    """Raise when there are rows without a value, in scikit-learn's words."""
    if rows:
        msg = (
            f"Input {name} contains NaN. It has {len(rows)} missing value(s), the first in "
            f"{table.place(rows[0], column)}. Leave these rows out; for a Series or an array type "
            f"keep = ~pandas.isna({name}), then X[keep] and {name}[keep]."
        )
        raise InputError(msg)


def check_finite(numbers: np.ndarray, table: Table, column: int, name: str) -> None:
    """Raise when a number is infinite, in scikit-learn's words."""
    infinite = np.isinf(numbers)
    if infinite.any():
        msg = (
            f"Input {name} contains infinity or a value too large for {numbers.dtype!r}. The "
            f"first is in {table.place(int(np.argmax(infinite)), column)}. Give finite numbers."
        )
        raise InputError(msg)
