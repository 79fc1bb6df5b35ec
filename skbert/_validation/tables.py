"""Any accepted container as a table, its columns as lists, or an error.

Depends on numpy, `parquet` and `skbert.exceptions`. pandas, polars, pyarrow, datasets and scipy
are recognised by what their objects can do and are never imported. Which cells are right is up to
the modules that open tables.
"""

from __future__ import annotations

import contextlib
import math
import reprlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from skbert._validation.parquet import with_rows
from skbert.exceptions import InputError, InputTypeError, warn

CHUNK_ROWS = 8192  # rows of a stored table that are lists at the same time
ROW_TYPES = (list, tuple, np.ndarray)  # what may hold the entries of one row
MAX_NAMES = 5  # names or rows listed in one error
TWO_COLUMNS = (
    "Text pairs are a list of (text, second text), one tuple per row, or a frame of two columns: "
    "type list(zip(questions, contexts))."
)


_ReadPart = Callable[[int, int, int], list[Any]]  # column, first row, end -> cells


def _without_origin(_row: int) -> str:
    return ""


@dataclass(frozen=True)
class Table:
    """Any accepted container as columns that are read when asked for, and only once.

    The lists of cells are shared: who changes one makes a copy first.
    """

    shape: tuple[int, ...]  # (n,) for one value per row, else (n, number of columns)
    read: Callable[[int], list[Any]]  # position of a column -> its cells
    labels: tuple[Any, ...] | None  # column labels of a frame, else None
    container: type = object  # type of a sequence of rows
    # Of a container that holds no Python objects: column, first row, end -> cells.
    read_part: _ReadPart | None = None
    origin: Callable[[int], str] = _without_origin  # what an error adds about a row
    first_row: int = 0  # of a part of a larger table

    @property
    def is_stored(self) -> bool:
        """Whether its cells are better read in parts than all at once."""
        return self.read_part is not None and self.shape[0] > CHUNK_ROWS

    def parts(self) -> Iterator[Table]:
        """The table in parts of `CHUNK_ROWS` where it is stored, else as it is."""
        if self.read_part is None or not self.is_stored:
            yield self
            return
        for begin in range(0, self.shape[0], CHUNK_ROWS):
            yield self._part(self.read_part, begin, min(begin + CHUNK_ROWS, self.shape[0]))

    def _part(self, read_part: _ReadPart, begin: int, end: int) -> Table:
        read = cache(lambda column: read_part(column, begin, end))
        shape = (end - begin, *self.shape[1:])
        first_row = self.first_row + begin
        return replace(self, shape=shape, read=read, read_part=None, first_row=first_row)

    @property
    def width(self) -> int:
        """Number of columns; one value per row counts as one column."""
        return self.shape[1] if len(self.shape) == 2 else 1

    @property
    def names(self) -> tuple[str, ...] | None:
        """Column labels, when there are some and all of them are str."""
        labels = self.labels
        return labels if labels and all(isinstance(label, str) for label in labels) else None

    def label(self, column: int) -> Any:
        """Return the label of a column in a frame, elsewhere its position."""
        return column if self.labels is None else self.labels[column]

    def place(self, row: int, column: int) -> str:
        """Return the name of a cell's place for an error."""
        row += self.first_row
        if len(self.shape) == 1:
            return f"row {row}"
        return f"row {row} of column {self.label(column)!r}{self.origin(row)}"


def open_table(X: Any, name: str = "X", hint: str | None = TWO_COLUMNS) -> Table:
    """Return any container as a table.

    Entries of rows such as tuples are columns; without a `hint` each row is one cell.
    """
    read_part = None
    if type(X) not in (list, tuple):  # which may hold anything, but are nothing else
        X = with_rows(X)
        _refuse_type(X, name)
        _refuse_shape(X, name)
        frame = _table_of_frame(X)
        if frame is not None:
            return frame
        if isinstance(X, np.ndarray) and X.ndim == 2:
            return Table(X.shape, cache(lambda i: read_cells(X[:, i])), None)
        read_part = _part_of(lambda _: X) if _is_stored(X) else None
    read = cache(lambda _: read_cells(X, name))
    table = Table((len(X),), read, None, type(X), read_part)
    return table if hint is None else split_rows(table, name, hint)


def _table_of_frame(X: Any) -> Table | None:
    """Return a frame as a table, None for any other container."""
    column: Callable[[int], Any]  # by position, for names may occur twice
    if hasattr(X, "iloc") and hasattr(X, "columns"):  # pandas
        labels, column = tuple(X.columns), lambda i: X.iloc[:, i]
    elif hasattr(X, "get_columns"):  # polars
        labels, column = tuple(X.columns), X.to_series
    elif hasattr(X, "column_names"):  # a pyarrow table or a datasets Dataset
        labels = tuple(X.column_names)
        column = X.column if hasattr(X, "column") else lambda i: X[labels[i]]
    else:
        return None
    column = cache(column)
    read_part = _part_of(column) if _is_stored(X) else None
    return Table(
        (len(X), len(labels)), cache(lambda i: read_cells(column(i))), labels,
        read_part=read_part, origin=getattr(X, "origin_of_row", _without_origin),
        first_row=getattr(X, "first_row", 0),
    )  # fmt: skip


def _is_stored(X: object) -> bool:
    """Whether a container of pyarrow, polars or datasets holds no Python objects."""
    is_arrow = any(hasattr(X, name) for name in ("to_pylist", "to_arrow", "origin_of_row"))
    return is_arrow or type(X).__module__.startswith("datasets.")


def _part_of(column: Callable[[int], Any]) -> _ReadPart:
    """The function that reads a part of a column."""

    def read_part(i: int, begin: int, end: int) -> list[Any]:
        return read_cells(column(i)[begin:end])

    return read_part


def open_values(values: Any, name: str, hint: str | None) -> Table:
    """Return y or weights as a table; a single str is refused."""
    if isinstance(values, (str, bytes)):
        msg = f"{name} is {values!r}, but must hold one value per row of X. Pass a list of values."
        raise InputError(msg)
    return open_table(values, name, hint)


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
        ways = (f"{name}.{way}()" for way in ("collect", "read_all") if hasattr(X, way))
        form = next(ways, form)
        msg = f"{name} is of type {kind}, whose rows cannot be counted and selected. Pass {form}."
        raise InputError(msg)


def read_cells(column: Any, name: str = "X") -> list[Any]:
    """Return the cells as a new list, by position, whatever the index."""
    if getattr(getattr(column, "dtype", None), "kind", "") in {"m", "M"}:
        return list(column)  # numpy's tolist would make numbers of times in nanoseconds
    for method in ("to_pylist", "to_list", "tolist"):  # pyarrow, polars and pandas, numpy
        listing = getattr(column, method, None)
        if callable(listing):
            try:
                return list(listing())
            except UnicodeDecodeError as error:  # Arrow's texts are bytes that nobody has checked
                raise InputError(
                    f"{name} holds a text that is no UTF-8: {error}. Write the data again, with "
                    "texts in UTF-8."
                ) from error
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


def split_rows(table: Table, name: str = "X", hint: str = TWO_COLUMNS) -> Table:
    """Return the table with the entries of rows such as tuples as columns, if there are any."""
    if len(table.shape) == 2:
        return table
    cells = (cell for part in table.parts() for cell in part.read(0))
    start, first = next((pair for pair in enumerate(cells) if not is_missing(pair[1])), (0, None))
    width = row_length(first)
    if width is None:
        return table
    rows = table.read(0)
    for row, cell in enumerate(rows):
        length = row_length(cell)
        if length != width:
            shown = reprlib.repr(cell) if length is None else f"{length}"
            msg = (
                f"The rows of {name} differ: row {start} holds {width} entries, row {row} holds "
                f"{shown}. Give every row the same number of entries. {hint}"
            )
            raise InputError(msg)
    read = cache(lambda i: [row[i] for row in rows])
    return Table((len(rows), width), read, None, table.container)


def check_not_empty(table: Table, hint: str = "") -> None:
    """Raise when there are no rows or no columns, in scikit-learn's words; ``hint`` ends them."""
    for size, kind in ((table.shape[0], "sample"), (table.width, "feature")):
        if size == 0:
            msg = (
                f"Found array with 0 {kind}(s) (shape={table.shape}) while a minimum of 1 is "
                f"required. X must hold at least one row, and in it at least one text.{hint}"
            )
            raise InputError(msg)


def require_y(y: Any, estimator_name: str, form: str) -> None:
    """Raise, in scikit-learn's words, when y is None; `form` says what to pass."""
    if y is None:
        msg = (
            f"This {estimator_name} estimator requires y to be passed, but the target y is None. "
            f"{form}"
        )
        raise InputError(msg)


def check_length(n_x: int, n_other: int, name: str = "y") -> None:
    """Raise when X and something that goes with it differ in length."""
    if n_x != n_other:
        msg = (
            f"Found input variables with inconsistent numbers of samples: [{n_x}, {n_other}]. "
            f"X has {n_x} rows and {name} has {n_other}; give {name} one entry per row of X."
        )
        raise InputError(msg)


def warn_if_column_vector(table: Table) -> None:
    """Warn, in scikit-learn's words, when y is a single column of a table."""
    if table.width == 1 and len(table.shape) == 2:
        from sklearn.exceptions import DataConversionWarning  # would bring pandas along

        msg = (
            "A column-vector y was passed when a 1d array was expected. Please change the shape "
            "of y to (n_samples, ), for example using ravel()."
        )
        warn(msg, DataConversionWarning)


def row_entries(row: Any) -> list[Any]:
    """Return the entries of a row as a new list."""
    return np.atleast_1d(row).tolist() if isinstance(row, np.ndarray) else list(row)


def is_missing(cell: object) -> bool:
    """Return whether a cell is None, NaN, pandas.NA or NaT."""
    if isinstance(cell, (float, np.floating)):
        return math.isnan(cell)
    return cell is None or type(cell).__name__ in {"NAType", "NaTType"}
