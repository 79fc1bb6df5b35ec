"""Any accepted container as a table of columns, or an error that says what would be one.

Depends on numpy and `skbert.exceptions`; knows no torch and no tokenizer. pandas, polars, pyarrow,
datasets and scipy are recognised by what their objects can do and are never imported. What the
cells must be is checked in the modules that open tables.
"""

from __future__ import annotations

import contextlib
import math
import reprlib
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from skbert.exceptions import InputError, InputTypeError

ROW_TYPES = (list, tuple, np.ndarray)  # what may hold the two texts of one row
TWO_COLUMNS = (
    "Text pairs are a list of (text, second text), one tuple per row, or a frame of two columns: "
    "type list(zip(questions, contexts))."
)


@dataclass(frozen=True)
class Table:
    """Any accepted container as columns that are read only when asked for."""

    shape: tuple[int, ...]  # (n,) for one value per row, else (n, number of columns)
    read: Callable[[int], list[Any]]  # position of a column -> a new list of its cells
    labels: tuple[Any, ...] | None  # column labels of a frame, else None

    @property
    def width(self) -> int:
        """Number of columns; one value per row counts as one column."""
        return self.shape[1] if len(self.shape) == 2 else 1

    @property
    def names(self) -> tuple[str, ...] | None:
        """Column labels, when there are some and all of them are str."""
        labels = self.labels
        return labels if labels and all(isinstance(label, str) for label in labels) else None

    def place(self, row: int, column: int) -> str:
        """Say where a cell is."""
        label = column if self.labels is None else self.labels[column]
        return f"row {row}" if len(self.shape) == 1 else f"row {row} of column {label!r}"


def open_table(X: Any, name: str = "X", hint: str | None = TWO_COLUMNS) -> Table:
    """Recognise the container; rows such as tuples are columns, or without a `hint` cells."""
    _refuse_type(X, name)
    _refuse_shape(X, name)
    if hasattr(X, "iloc") and hasattr(X, "columns"):  # a pandas frame
        labels = tuple(X.columns)
        return Table((len(X), len(labels)), lambda i: read_cells(X.iloc[:, i]), labels)
    if hasattr(X, "get_columns"):  # a polars frame
        return Table((X.height, X.width), lambda i: read_cells(X.to_series(i)), tuple(X.columns))
    if hasattr(X, "column_names"):  # a pyarrow table or a datasets Dataset
        labels = tuple(X.column_names)
        of_arrow = hasattr(X, "column")  # by position, for names may occur twice
        read = X.column if of_arrow else lambda i: X[labels[i]]
        return Table((len(X), len(labels)), lambda i: read_cells(read(i)), labels)
    if isinstance(X, np.ndarray) and X.ndim == 2:
        return Table(X.shape, lambda i: read_cells(X[:, i]), None)
    return _table_of_rows(read_cells(X, name), name, hint)


def _refuse_type(X: Any, name: str) -> None:
    """Raise for containers that hold something else than rows of texts."""
    kind = type(X).__name__
    if hasattr(X, "toarray") and hasattr(X, "nnz"):  # a scipy sparse container
        msg = (
            f"Sparse data was passed for {name}, but dense data is required. Use '.toarray()' to "
            f"convert to a dense numpy array. {name} must be a list, an array or a frame."
        )
        raise InputTypeError(msg)
    if name == "X" and type(X).__module__.partition(".")[0] in {"torch", "tensorflow", "jaxlib"}:
        msg = (
            f"{name} is a tensor, of type {kind}. Texts are turned into token ids inside the "
            "estimator: pass the texts themselves, a list with one str per row."
        )
        raise InputTypeError(msg)
    if isinstance(X, (Mapping, set, frozenset)):
        msg = (
            f"{name} is of type {kind}, which has no rows to select. Pass a list with one entry "
            f"per row, or a frame; for a dict of columns type pandas.DataFrame({name})."
        )
        raise InputTypeError(msg)
    if hasattr(X, "ngroups"):  # pandas' groups and resampled rows
        msg = (
            f"{name} is of type {kind}, which holds groups instead of rows. Pass the frame or "
            f"Series that was grouped; type {name}.obj."
        )
        raise InputTypeError(msg)


def _refuse_shape(X: Any, name: str) -> None:
    """Raise for what is not one entry per row, with the form that would be right."""
    kind, dim = type(X).__name__, len(getattr(X, "shape", (0,)))
    if isinstance(X, (str, bytes, bytearray)):
        msg = (
            "Iterable over raw text documents expected, string object received. "
            f"{name} must hold one entry per row; for a single one, type [{name}]."
        )
        raise InputError(msg)
    if dim not in {1, 2}:
        msg = (
            f"Found array with dim {dim}, while dim <= 2 is required. {name} must have one entry "
            f"per row: 1-D, or 2-D with one or two columns; type {name}.reshape(-1)."
        )
        raise InputError(msg)
    if not (hasattr(X, "__len__") and hasattr(X, "__getitem__")):
        form = f"list({name})" if hasattr(X, "__iter__") else "a list with one entry per row"
        form = f"{name}.collect()" if hasattr(X, "collect") else form
        msg = f"{name} is of type {kind}, whose rows cannot be counted and selected. Pass {form}."
        raise InputError(msg)


def read_cells(column: Any, name: str = "X") -> list[Any]:
    """Return the cells as a new list, by position, whatever the index."""
    for method in ("to_pylist", "to_list", "tolist"):  # pyarrow, polars and pandas, numpy
        listing = getattr(column, method, None)
        if callable(listing):
            return list(listing())
    if isinstance(column, (list, tuple, deque)):
        return list(column)
    with contextlib.suppress(Exception):  # a sequence need not know slices
        cells = column[:]  # a datasets Column is fast as a slice, slow row by row
        if not isinstance(cells, str) and len(cells) == len(column):
            return list(cells)
    return [_select(column, row, name) for row in range(len(column))]


def _select(column: Any, row: int, name: str) -> Any:
    """Return one cell of a sequence."""
    try:
        return column[row]
    except Exception as error:
        msg = (
            f"{name} is of type {type(column).__name__}, whose rows cannot be selected by "
            f"position: {name}[{row}] raises {error!r}. Pass a list with one entry per row."
        )
        raise InputError(msg) from error


def row_length(cell: Any) -> int | None:
    """Return the number of entries of a row such as a tuple, None for a plain cell."""
    is_row = isinstance(cell, ROW_TYPES) and not (isinstance(cell, np.ndarray) and cell.ndim != 1)
    return len(cell) if is_row else None


def _table_of_rows(cells: list[Any], name: str, hint: str | None) -> Table:
    """Make one column of plain cells, or several when the cells are rows such as tuples."""
    start = next((i for i, cell in enumerate(cells) if not is_missing(cell)), 0)
    width = row_length(cells[start]) if cells and hint is not None else None
    if width is None:
        return Table((len(cells),), lambda _: cells, None)
    for row, cell in enumerate(cells):
        length = row_length(cell)
        if length != width:
            found = reprlib.repr(cell) if length is None else f"{length}"
            msg = (
                f"The rows of {name} differ: row {start} holds {width} entries, row {row} holds "
                f"{found}. Give every row the same number of entries. {hint}"
            )
            raise InputError(msg)
    return Table((len(cells), width), lambda i: [row[i] for row in cells], None)


def check_not_empty(table: Table) -> None:
    """Raise when there are no rows or no columns, in scikit-learn's words."""
    for size, kind in ((table.shape[0], "sample"), (table.width, "feature")):
        if size == 0:
            msg = (
                f"Found array with 0 {kind}(s) (shape={table.shape}) while a minimum of 1 is "
                "required. X must hold at least one row, and in it at least one text."
            )
            raise InputError(msg)


def is_missing(cell: Any) -> bool:
    """Tell whether a cell is None, NaN, pandas.NA or NaT."""
    if isinstance(cell, (float, np.floating)):
        return math.isnan(cell)
    return cell is None or type(cell).__name__ in {"NAType", "NaTType"}
