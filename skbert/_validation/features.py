"""Columns as numbers, and those of numbers and categories beside the texts: read and checked.

What fit learns of a column beside the texts is a small record, from which any later X is read.
Depends on `tables` and `skbert.exceptions`.
"""

from __future__ import annotations

import datetime as dt
import math
import reprlib
from collections.abc import Mapping, Sequence
from numbers import Complex, Integral, Real
from typing import Any, NamedTuple

import numpy as np

from skbert._arrays import FloatArray
from skbert._validation.tables import Table, is_missing
from skbert.exceptions import InputError, InputTypeError

MOST_CATEGORIES = 1000
_FARTHEST = 1e9  # standard deviations from the mean; float32 computes with nothing beyond

_TIMES = np.datetime64, np.timedelta64  # which float takes for numbers, in some units
_DATES = (dt.date, dt.time, dt.timedelta, *_TIMES)


class NumberColumn(NamedTuple):
    """What fit learned of a column of numbers.

    Where numbers were missing in fit, there is a second feature, which says whether one is
    missing; both are standardised.
    """

    column: str | int
    median: float  # stands for missing numbers
    means: tuple[float, ...]  # of the one or two features
    scales: tuple[float, ...]

    @property
    def n_features(self) -> int:
        """Number of features."""
        return len(self.means)

    def encode(self, table: Table, position: int) -> FloatArray:
        """The features of a column, ``(n_rows, n_features)``."""
        numbers = read_feature_numbers(table, position)
        gaps = np.isnan(numbers)
        raw = np.column_stack([np.where(gaps, self.median, numbers), gaps])[:, : self.n_features]
        with np.errstate(over="ignore", invalid="ignore"):
            scaled = (raw - self.means) / self.scales
        far = np.flatnonzero(~(np.abs(scaled) < _FARTHEST).all(axis=1))
        if len(far):
            row = int(far[0])
            raise InputError(
                f"The column {self.column!r} of feature_columns holds {numbers[row]:g} in row "
                f"{row}, too far from the numbers in fit, with mean {self.means[0]:g} and "
                f"standard deviation {self.scales[0]:g}. Correct it, or give None if it stands "
                "for a missing number."
            )
        return scaled


class CategoryColumn(NamedTuple):
    """What fit learned of a column of categories: a feature for each, 1 or 0."""

    column: str | int
    categories: tuple[str | None, ...]  # None where values were missing in fit

    @property
    def n_features(self) -> int:
        """Number of features."""
        return len(self.categories)

    def encode(self, table: Table, position: int) -> FloatArray:
        """The features of a column, ``(n_rows, n_features)``; all 0 for an unknown category."""
        labels = read_categories(table, position)
        codes = {label: code for code, label in enumerate(self.categories)}
        encoded = np.zeros((len(labels), self.n_features))
        known = [(row, codes[label]) for row, label in enumerate(labels) if label in codes]
        if known:
            encoded[tuple(np.transpose(known))] = 1.0
        return encoded


FeatureColumn = NumberColumn | CategoryColumn


def feature_column_of(value: object) -> FeatureColumn:
    """What a saved file says of a column; ValueError where no fit learns that."""
    match value:
        case ((str() | int()) as column, float(median), tuple() as means, tuple() as scales) if (
            len(means) == len(scales) in {1, 2} and _are_finite((median, *means, *scales))
            and min(scales) > 0
        ):  # fmt: skip
            return NumberColumn(column, median, means, scales)
        case ((str() | int()) as column, tuple() as categories) if (
            0 < len({*categories}) == len(categories) <= MOST_CATEGORIES + 1
            and all(label is None or isinstance(label, str) for label in categories)
        ):  # fmt: skip
            return CategoryColumn(column, categories)
    raise ValueError(f"feature column {value!r:.80}")


def _are_finite(numbers: Sequence[object]) -> bool:
    return all(isinstance(number, float) and math.isfinite(number) for number in numbers)


def encode_features(
    columns: Sequence[FeatureColumn], table: Table, positions: Sequence[int]
) -> FloatArray:
    """The features of all columns side by side, ``(n_rows, n_features)``."""
    pairs = zip(columns, positions, strict=True)
    return np.concatenate([column.encode(table, position) for column, position in pairs], axis=1)


def is_category(table: Table, position: int, column: str | int, *, is_declared: bool) -> bool:
    """Whether a column holds categories, or else numbers; an error if neither.

    ``is_declared`` says whether the container calls it a column of categories.
    """
    cells = {row: cell for row, cell in enumerate(table.read(position)) if not is_missing(cell)}
    if not cells:
        raise InputError(
            f"The column {column!r} of feature_columns has no value in any row. Leave it out."
        )
    texts = [row for row, cell in cells.items() if isinstance(cell, str)]
    return is_declared or (bool(texts) and not _others(cells, table, position))


def _others(cells: Mapping[int, object], table: Table, position: int) -> list[int]:
    """The rows of cells that are no str; an error if one of them is no number either."""
    rows = [row for row, cell in cells.items() if not isinstance(cell, str)]
    for row in rows:
        if _number_of(cells[row]) is None:
            raise _neither(cells[row], table.place(row, position))
    return rows


def read_feature_numbers(table: Table, position: int) -> FloatArray:
    """A column of numbers as float64, NaN where one is missing."""
    numbers = np.empty(table.shape[0])
    for row, cell in enumerate(table.read(position)):
        number = math.nan if is_missing(cell) else _number_of(cell)
        if number is None and isinstance(cell, str):
            raise _text_among_numbers(row, cell, table, position)
        if number is None:
            raise _neither(cell, table.place(row, position))
        numbers[row] = number
    infinite = np.flatnonzero(np.isinf(numbers))
    if len(infinite):
        raise InputError(
            f"feature_columns holds {len(infinite)} infinite number(s), the first in "
            f"{table.place(int(infinite[0]), position)}. Give finite numbers, or None where a "
            "number is missing."
        )
    return numbers


def read_categories(table: Table, position: int) -> list[str | None]:
    """A column of categories as str, None where one is missing; whole numbers are names, too."""
    labels = []
    for row, cell in enumerate(table.read(position)):
        label = _label_of(cell)
        if label is None and not is_missing(cell):
            raise InputTypeError(
                f"feature_columns: {table.place(row, position)} holds {reprlib.repr(cell)}, of "
                f"type {type(cell).__name__}, in a column of categories. Give a str, or None "
                "where it is missing."
            )
        labels.append(label)
    return labels


def check_categories(labels: Sequence[str | None], column: str | int) -> None:
    """Raise where a column has so many categories that it is none."""
    present = [label for label in labels if label is not None]
    n, n_rows = len({*present}), len(present)
    if n > min(MOST_CATEGORIES, max(n_rows / 2, 2)):
        advice = (
            "Its values look like numbers written as text: give X[column].astype(float)."
            if all(map(_is_number_in_text, present))
            else "It looks like an id or a text: name a text in text_columns, and leave an id out."
        )
        raise InputError(
            f"The column {column!r} of feature_columns has {n} different values in {n_rows} rows, "
            f"such as {reprlib.repr(present[0])}. Categories are at most {MOST_CATEGORIES} "
            f"values, and at most half as many as rows. {advice}"
        )


def _number_of(cell: object) -> float | None:
    """A cell as a float; None if it is no real number."""
    is_number = isinstance(cell, (Real, np.number, np.bool_)) or type(cell).__name__ == "Decimal"
    return read_number(cell) if is_number else None


def _label_of(cell: Any) -> str | None:
    """The name of a category; None for a cell that has none."""
    if isinstance(cell, str):
        return str.__str__(cell)
    is_float = isinstance(cell, (float, np.floating)) and float(cell).is_integer()
    if isinstance(cell, (bool, np.bool_)):
        return str(bool(cell))
    is_whole = is_float or (isinstance(cell, Integral) and not isinstance(cell, _DATES))
    return str(int(cell)) if is_whole else None


def _is_number_in_text(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _neither(cell: object, place: str) -> InputTypeError:
    """The error for a cell that is neither a number nor a category."""
    hint = "Make one of it, or leave the column out."
    if isinstance(cell, _DATES):
        hint = "Make numbers of dates, such as X[column].dt.year or X[column].dt.dayofweek."
    return InputTypeError(
        f"feature_columns must hold numbers or categories (str), but {place} holds "
        f"{reprlib.repr(cell)}, of type {type(cell).__name__}. {hint}"
    )


def _text_among_numbers(row: int, text: str, table: Table, position: int) -> InputTypeError:
    """The error for a str in a column of numbers."""
    return InputTypeError(
        f"feature_columns: {table.place(row, position)} holds {reprlib.repr(text)}, a str in a "
        "column of numbers. Give a number, or None where it is missing; type "
        "pandas.to_numeric(X[column], errors='coerce')."
    )


# --- any column of numbers -----------------------------------------------------------------------


def read_column(values: Any, table: Table, column: int) -> np.ndarray | list[Any]:
    """Return one column, as an array if it is an array of numbers or ``<U``, else as a list."""
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
    """Return a cell as a float, NaN for a missing one, None if it is not a real number."""
    if is_missing(cell):
        return math.nan
    if isinstance(cell, (str, bytes, np.ndarray, np.complexfloating, *_TIMES)):
        return None
    try:
        return float(cell)
    except OverflowError:
        return math.inf
    except (TypeError, ValueError):
        return None


def _no_number_error(cell: object, name: str, place: str) -> InputError | InputTypeError:
    """Return the error for a cell that is not a real number."""
    if is_complex(cell):
        return complex_error(name, place)
    if isinstance(cell, (str, bytes)):
        return InputError(
            f"could not convert string to float: {reprlib.repr(cell)}, in {place} of {name}. "
            f"Give numbers; type {name} = [float(value) for value in {name}] if all are numbers."
        )
    return InputTypeError(
        f"{name} must hold real numbers, but {place} holds {reprlib.repr(cell)}, of type "
        f"{type(cell).__name__}. Give one number per row of X."
    )


def is_complex(cell: object) -> bool:
    """Return whether a cell is a number, but no real one."""
    return isinstance(cell, Complex) and not isinstance(cell, Real)


def complex_error(name: str, place: str) -> InputError:
    """Return the error for complex numbers, in scikit-learn's words."""
    return InputError(
        f"Complex data not supported. {name} holds complex numbers, the first in {place}. Give "
        f"real numbers; type numpy.real({name})."
    )


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
