"""X as plain lists of str, or an error that names the first bad row.

Depends on numpy and `skbert.exceptions`; knows no torch and no tokenizer. pandas, polars, pyarrow,
datasets and scipy are recognised by what their objects can do and are never imported. Labels,
targets and weights are checked in `skbert._check_y`.
"""

from __future__ import annotations

import difflib
import math
import re
import reprlib
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any, NamedTuple

import numpy as np

from skbert.exceptions import InputError, InputTypeError, SkbertWarning

ROW_TYPES = (list, tuple, np.ndarray)  # what may hold the two texts of one row
SURROGATE = re.compile("[\ud800-\udfff]")
SLICE = 1 << 20  # characters encoded at once: no copy of a huge text
MAX_NAMES = 5  # names listed in one error
TWO_COLUMNS = (
    "Text pairs are a list of (text, second text), one tuple per row, or a frame of two columns: "
    "type list(zip(questions, contexts))."
)
CELL_HINTS: tuple[tuple[tuple[type, ...], str], ...] = (
    ((bytes, bytearray), "Decode it first: [cell.decode('utf-8') for cell in X]."),
    ((PurePath,), "Read the file first: [path.read_text(encoding='utf-8') for path in X]."),
    ((Mapping,), "Take the text out of it first: [cell['text'] for cell in X]."),
    (ROW_TYPES, "Join words into one text first: [' '.join(words) for words in X]."),
    ((object,), "If it is meant as text, convert it first: [str(cell) for cell in X]."),
)


class FitRecord(NamedTuple):
    """What `check_texts` knows about the X of fit: all column names, and 1 or 2 text columns."""

    names: tuple[str, ...] | None
    n_columns: int


@dataclass(frozen=True)
class Texts:
    """The texts of X, one row per sample, whatever container they came in."""

    first: list[str]
    second: list[str] | None  # None: one text per row
    names: tuple[str, ...] | None  # all column names of a frame with str columns, else None
    n_columns: int  # text columns used, 1 or 2

    def __len__(self) -> int:
        return len(self.first)

    def take(self, rows: np.ndarray) -> Texts:
        """Return the rows at the given positions (integers, or one bool per row)."""
        chosen = (np.flatnonzero(rows) if rows.dtype == bool else rows).tolist()
        second = None if self.second is None else [self.second[row] for row in chosen]
        return replace(self, first=[self.first[row] for row in chosen], second=second)


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


def check_texts(
    X: Any,
    *,
    columns: str | int | Sequence[str | int] | None = None,
    missing: str = "raise",
    fitted: FitRecord | None = None,
    estimator_name: str = "BertClassifier",
) -> Texts:
    """Return the texts of X, or raise an error that names the first bad row.

    `columns` chooses the one or two text columns of a frame or 2-D array, `missing` is "raise" or
    "empty", and `fitted` is what fit saw when X comes after fit. The lists returned are new and
    hold exact ``str`` objects.
    """
    if columns is None and _looks_like_two_columns(X):
        raise InputError(f"X holds two columns of texts where rows are expected. {TWO_COLUMNS}")
    table = open_table(X)
    check_not_empty(table)
    wanted = wanted_columns(columns, table.width)
    if fitted is not None:
        compare_with_fit(table, wanted, fitted, estimator_name)
    found = [_check_cells(table, column, missing) for column in column_positions(table, wanted)]
    _replace_surrogates(found)
    _warn_if_mostly_empty(found)
    second = found[1] if len(found) == 2 else None
    return Texts(first=found[0], second=second, names=table.names, n_columns=len(found))


def open_table(X: Any, name: str = "X", hint: str | None = TWO_COLUMNS) -> Table:
    """Recognise the container; rows such as tuples are columns, or without a `hint` cells."""
    _refuse_type(X, name)
    _refuse_shape(X, name)
    if hasattr(X, "iloc") and hasattr(X, "columns"):  # a pandas frame
        labels = tuple(X.columns)
        return Table((len(X), len(labels)), lambda i: _cells_of(X.iloc[:, i]), labels)
    if hasattr(X, "get_columns"):  # a polars frame
        return Table((X.height, X.width), lambda i: _cells_of(X.to_series(i)), tuple(X.columns))
    if hasattr(X, "column_names"):  # a pyarrow table or a datasets Dataset
        labels = tuple(X.column_names)
        return Table((len(X), len(labels)), lambda i: _cells_of(X[labels[i]]), labels)
    if isinstance(X, np.ndarray) and X.ndim == 2:
        return Table(X.shape, lambda i: _cells_of(X[:, i]), None)
    return _table_of_rows(_cells_of(X), name, hint)


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


def _cells_of(column: Any) -> list[Any]:
    """Return the cells as a new list, by position, whatever the index."""
    for method in ("to_pylist", "to_list", "tolist"):  # pyarrow, polars and pandas, numpy
        listing = getattr(column, method, None)
        if callable(listing):
            return list(listing())
    if not isinstance(column, (list, tuple, deque)):
        column = column[:]  # a datasets Column is fast as a slice, slow row by row
    return list(column)


def _row_length(cell: Any) -> int | None:
    """Return the number of entries of a row such as a tuple, None for a plain cell."""
    is_row = isinstance(cell, ROW_TYPES) and not (isinstance(cell, np.ndarray) and cell.ndim != 1)
    return len(cell) if is_row else None


def _table_of_rows(cells: list[Any], name: str, hint: str | None) -> Table:
    """Make one column of plain cells, or several when the cells are rows such as tuples."""
    start = next((i for i, cell in enumerate(cells) if not is_missing(cell)), 0)
    width = _row_length(cells[start]) if cells and hint is not None else None
    if width is None:
        return Table((len(cells),), lambda _: cells, None)
    for row, cell in enumerate(cells):
        length = _row_length(cell)
        if length != width:
            found = reprlib.repr(cell) if length is None else f"{length}"
            msg = (
                f"The rows of {name} differ: row {start} holds {width} entries, row {row} holds "
                f"{found}. Give every row the same number of entries. {hint}"
            )
            raise InputError(msg)
    return Table((len(cells), width), lambda i: [row[i] for row in cells], None)


def _looks_like_two_columns(X: Any) -> bool:
    """Tell whether X is ``(questions, contexts)``, two columns where rows are expected."""
    if not isinstance(X, (list, tuple)) or len(X) != 2:
        return False
    if any(
        _row_length(part) is None
        and len(getattr(part, "shape", ())) != 1
        and not hasattr(part, "to_pylist")
        for part in X
    ):
        return False
    if all(isinstance(part, tuple if isinstance(X, tuple) else ROW_TYPES) for part in X):
        return len(X[0]) == len(X[1]) > 2  # else two rows of one or two texts, or ragged ones
    return True


def check_not_empty(table: Table) -> None:
    """Raise when there are no rows or no columns, in scikit-learn's words."""
    for size, kind in ((table.shape[0], "sample"), (table.width, "feature")):
        if size == 0:
            msg = (
                f"Found array with 0 {kind}(s) (shape={table.shape}) while a minimum of 1 is "
                "required. X must hold at least one row, and in it at least one text."
            )
            raise InputError(msg)


def wanted_columns(columns: Any, width: int) -> list[str | int]:
    """Return the choice of columns as a list of one or two, or all that there are."""
    if columns is None:
        return list(range(width))
    wanted = [columns] if isinstance(columns, (str, int)) else list(columns)
    good = all(isinstance(c, (str, int, np.integer)) and not isinstance(c, bool) for c in wanted)
    if not good or len(wanted) not in {1, 2} or len(set(wanted)) < len(wanted):
        msg = (
            f"text_columns={columns!r} does not choose text columns. It must be None, or one or "
            "two different names or positions; type text_columns=['question', 'context']."
        )
        raise InputError(msg)
    return wanted


def column_positions(table: Table, wanted: list[str | int]) -> list[int]:
    """Return the positions of the one or two text columns."""
    labels = list(range(table.width) if table.labels is None else table.labels)
    if len(wanted) > 2:
        if table.labels is None:
            _check_cells(table, 0, missing="empty")  # a table of numbers is told so first
        msg = (
            f"X has {len(labels)} columns, but the texts are in one or two of them: {labels}. "
            f"Choose, for example text_columns={labels[:1]!r} or {labels[:2]!r}. {TWO_COLUMNS}"
        )
        raise InputError(msg)
    if table.labels is None and [type(column) for column in wanted] == [str] * table.width:
        return list(range(table.width))  # nothing but the text columns, in their order
    return [_position(column, labels) for column in wanted]


def _position(column: str | int, labels: list[Any]) -> int:
    """Return the position of one chosen column."""
    if isinstance(column, str) and labels.count(column) == 1:
        return labels.index(column)
    if not isinstance(column, str) and -len(labels) <= column < len(labels):
        return int(column) % len(labels)
    close = difflib.get_close_matches(str(column), [str(label) for label in labels], n=1)
    hint = f" Did you mean {close[0]!r}?" if close and close[0] != column else ""
    msg = (
        f"text_columns chooses the column {column!r}, which X has {labels.count(column)} times "
        f"instead of once; the columns of X are {labels}.{hint}"
    )
    raise InputError(msg)


def compare_with_fit(table: Table, wanted: list[Any], fitted: FitRecord, estimator: str) -> None:
    """Raise, in scikit-learn's words, when the columns are not those of fit."""
    chosen = [column for column in wanted if isinstance(column, str)]
    if fitted.names is not None and table.names is not None:
        if chosen:  # by name: other columns may come and go
            _check_feature_names(sorted(chosen), sorted({*chosen} & {*table.names}))
        else:
            _check_feature_names(list(fitted.names), list(table.names))
    if len(wanted) != fitted.n_columns:
        msg = (
            f"X has {len(wanted)} features, but {estimator} is expecting {fitted.n_columns} "
            f"features as input. Pass as many. {TWO_COLUMNS * (fitted.n_columns == 2)}"
        )
        raise InputError(msg)


def _check_feature_names(seen: list[str], names: list[str]) -> None:
    """Raise, in scikit-learn's words, when the columns differ from those of fit."""
    if seen == names:
        return
    msg = "The feature names should match those that were passed during fit.\n"
    unseen, gone = sorted({*names} - {*seen}), sorted({*seen} - {*names})
    for title, listed in (
        ("unseen at fit time", unseen),
        ("seen at fit time, yet now missing", gone),
    ):
        if listed:
            shown = listed[:MAX_NAMES] + ["..."] * (len(listed) > MAX_NAMES)
            msg += f"Feature names {title}:\n" + "".join(f"- {name}\n" for name in shown)
    if not unseen and not gone:
        msg += "Feature names must be in the same order as they were in fit.\n"
    raise InputError(msg)


def is_missing(cell: Any) -> bool:
    """Tell whether a cell is None, NaN, pandas.NA or NaT."""
    if isinstance(cell, (float, np.floating)):
        return math.isnan(cell)
    return cell is None or type(cell).__name__ in {"NAType", "NaTType"}


def _check_cells(table: Table, column: int, missing: str) -> list[str]:
    """Return the cells of one column as exact str."""
    cells = table.read(column)
    if set(map(type, cells)) == {str}:
        return cells
    gaps = []
    for row, cell in enumerate(cells):
        if is_missing(cell):
            gaps.append(row)
        elif not isinstance(cell, str):
            raise _bad_cell(cell, table.place(row, column))
    if gaps and missing != "empty":
        msg = (
            f"X has {len(gaps)} missing text(s), the first in {table.place(gaps[0], column)} "
            f"({cells[gaps[0]]!r}). Every row must hold a str. Drop or fill these rows, or set "
            "missing='empty' to read them as ''."
        )
        raise InputError(msg)
    # str.__str__ turns numpy and enum strings into exact str without asking their class
    return [str.__str__(cell) if isinstance(cell, str) else "" for cell in cells]


def _bad_cell(cell: Any, place: str) -> InputTypeError:
    """Make the error for a cell that is not a text."""
    hint = next(text for types, text in CELL_HINTS if isinstance(cell, types))
    return InputTypeError(
        f"X must hold one text (str) per cell, but {place} holds {reprlib.repr(cell)}, of type "
        f"{type(cell).__name__}. {hint}"
    )


def _has_lone_surrogate(text: str) -> bool:
    """Tell whether a text holds half a character, which has no UTF-8 form."""
    if text.isascii():
        return False
    if len(text) > SLICE:
        return any(_has_lone_surrogate(text[at : at + SLICE]) for at in range(0, len(text), SLICE))
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _replace_surrogates(found: list[list[str]]) -> None:
    """Put U+FFFD for each lone surrogate, with one warning; lengths stay as they were."""
    dirty = {row for texts in found for row, text in enumerate(texts) if _has_lone_surrogate(text)}
    for texts in found:
        for row in dirty:
            texts[row] = SURROGATE.sub("\ufffd", texts[row])
    if dirty:
        msg = (
            f"{len(dirty)} row(s) of X hold lone surrogates (no characters), the first is row "
            f"{min(dirty)}; each became U+FFFD. Read the file in the encoding it was written in."
        )
        warnings.warn(msg, SkbertWarning, stacklevel=3)


def _warn_if_mostly_empty(found: list[list[str]]) -> None:
    """Warn when more than half of the rows hold nothing but whitespace."""
    empty = [row for row, text in enumerate(found[0]) if not text or text.isspace()]
    if len(found) == 2:
        empty = [row for row in empty if not found[1][row] or found[1][row].isspace()]
    if 2 * len(empty) > len(found[0]):
        msg = (
            f"{len(empty)} of {len(found[0])} rows of X are empty or whitespace, the first is row "
            f"{empty[0]}. Nothing can be learned or told from them; look at how X was read."
        )
        warnings.warn(msg, SkbertWarning, stacklevel=3)
