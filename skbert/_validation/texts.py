"""X as columns of str, or an error that names the first bad row.

Depends on `tables`, `columns`, `stored` and `skbert.exceptions`.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any, NamedTuple

import numpy as np

from skbert._arrays import FloatArray
from skbert._validation.columns import (
    FitRecord,
    TextColumns,
    column_positions,
    compare_with_fit,
    field_names,
    many_columns_error,
    wanted_columns,
)
from skbert._validation.features import FeatureColumn
from skbert._validation.stored import StoredTexts, take_texts
from skbert._validation.tables import (
    ROW_TYPES,
    TWO_COLUMNS,
    Table,
    check_not_empty,
    is_missing,
    open_table,
    row_length,
    split_rows,
)
from skbert.exceptions import InputError, InputTypeError, warn

_SURROGATE = re.compile("[\ud800-\udfff]")
_SLICE = 1 << 20  # characters encoded at once: no copy of a huge text
_CELL_HINTS: tuple[tuple[tuple[type, ...], str], ...] = (
    ((bytes, bytearray), "Decode it first: [cell.decode('utf-8') for cell in X]."),
    ((PurePath,), "Read the file first: [path.read_text(encoding='utf-8') for path in X]."),
    ((Mapping,), "Take the text out of it first: [cell['text'] for cell in X]."),
    (ROW_TYPES, "Join words into one text first: [' '.join(words) for words in X]."),
    ((object,), "If it is meant as text, convert it first: [str(cell) for cell in X]."),
)


class TextField(NamedTuple):
    """One of several fields of a text, with a text for each row."""

    name: str | None  # None: nothing stands before its texts
    texts: Sequence[str]


@dataclass(frozen=True)
class Texts:
    """The texts of X, one row per sample, whatever container they came in.

    Those of a long column that lies outside Python are read when they are asked for.
    """

    first: Sequence[str]
    second: Sequence[str] | None  # None: one text per row, or fields
    names: tuple[str, ...] | None  # all column names of a frame with str columns, else None
    n_columns: int  # text columns used
    fields: tuple[TextField, ...] = ()  # two or more where columns are fields, first among them
    features: FloatArray | None = None  # (n_rows, n_features), of the columns beside the texts
    feature_columns: tuple[FeatureColumn, ...] = ()  # what fit learned of these columns
    width: int = 1  # columns of X

    def __len__(self) -> int:
        return len(self.first)

    @property
    def columns(self) -> list[Sequence[str]]:
        """The texts, column by column."""
        if self.fields:
            return [field.texts for field in self.fields]
        return [self.first] if self.second is None else [self.first, self.second]

    def take(self, rows: np.ndarray) -> Texts:
        """Return the rows at the given positions (integers, or one bool per row)."""
        positions = np.flatnonzero(rows) if rows.dtype == bool else rows
        columns = [take_texts(texts, positions) for texts in self.columns]
        second = None if self.second is None else columns[1]
        fields = tuple(
            field._replace(texts=texts) for field, texts in zip(self.fields, columns, strict=False)
        )
        features = None if self.features is None else self.features[positions]
        return replace(self, first=columns[0], second=second, fields=fields, features=features)


def check_texts(
    X: Any,
    *,
    columns: TextColumns = None,
    missing: str = "raise",
    fitted: FitRecord | None = None,
    estimator_name: str = "BertClassifier",
    without_rows: str = "",
) -> Texts:
    """Return the texts of X, or raise an error that names the first bad row.

    `columns` chooses the text columns of a frame or 2-D array, and may name fields. `missing` is
    "raise" or "empty", and `fitted` is what fit saw when X comes after fit. `without_rows` says in
    the error what to do where there are no rows. The texts returned are exact ``str`` objects, in
    new lists or, of long columns that lie outside Python, read when they are asked for.
    """
    table = open_table(X, hint=None)
    if table.shape[0] == 0:
        check_not_empty(table, without_rows)
    return read_texts(
        table, columns=columns, missing=missing, fitted=fitted, estimator_name=estimator_name
    )


def read_texts(
    table: Table,
    *,
    columns: TextColumns,
    missing: str,
    fitted: FitRecord | None,
    estimator_name: str,
) -> Texts:
    """Return the texts of X as `check_texts` does, from X as a table that is open already."""
    if columns is None and _looks_like_two_columns(table):
        raise InputError(f"X holds two columns of texts where rows are expected. {TWO_COLUMNS}")
    table = split_rows(table)
    check_not_empty(table)
    wanted = wanted_columns(columns, table.width)
    if fitted is not None:
        compare_with_fit(table, wanted, fitted, estimator_name)
    names = field_names(columns)
    if columns is None and len(wanted) > 2:
        _refuse_many(table)
    texts = [_check_cells(table, column, missing) for column in column_positions(table, wanted)]
    warn_of_surrogates({row for cells in texts for row in replace_surrogates(cells)})
    warn_if_mostly_empty(_blank_rows(texts), len(texts[0]), "are empty or whitespace")
    fields = _fields(names, texts)
    second = texts[1] if len(texts) == 2 and not fields else None
    return Texts(texts[0], second, table.names, len(texts), fields, width=table.width)


def _fields(names: list[str | None], texts: list[Sequence[str]]) -> tuple[TextField, ...]:
    """Return the texts as fields with these names; no fields where there are no names."""
    clean = (name and without_surrogates(name) for name in names)
    return tuple(map(TextField, clean, texts))


def _refuse_many(table: Table) -> None:
    """Raise where nobody has said which of many columns hold texts, or what they are."""
    if table.labels is None:
        _check_cells(table, 0, missing="empty")  # that it holds no texts is the better message
    raise many_columns_error(table)


def _looks_like_two_columns(table: Table) -> bool:
    """Return whether X is ``(questions, contexts)``, two columns where rows are expected."""
    if not issubclass(table.container, (list, tuple)) or table.shape != (2,):
        return False
    parts, is_tuple = table.read(0), issubclass(table.container, tuple)
    if any(
        row_length(part) is None
        and len(getattr(part, "shape", ())) != 1
        and not hasattr(part, "to_pylist")
        for part in parts
    ):
        return False
    if all(isinstance(part, tuple if is_tuple else ROW_TYPES) for part in parts):
        return len(parts[0]) == len(parts[1]) > 2  # else rows of one or two texts, or ragged ones
    return True


def _check_cells(table: Table, column: int, missing: str) -> Sequence[str]:
    """Return the cells of one column as exact str."""
    n_rows, read_part = table.shape[0], table.read_part
    is_stored = read_part is not None and table.is_stored
    cells = [] if is_stored else table.read(column)
    parts = (
        ((part, part.read(column)) for part in table.parts()) if is_stored else [(table, cells)]
    )
    gaps = [gap for part, read in parts for gap in _gaps(part, column, read)]
    if gaps and missing != "empty":
        row, cell = gaps[0]
        place = table.place(row - table.first_row, column)
        msg = (
            f"X has {len(gaps)} missing text(s), the first in {place} ({cell!r}). Every row must "
            "hold a str. Drop or fill these rows, or set missing='empty' to read them as ''."
        )
        raise InputError(msg)
    if read_part is None or not is_stored:
        return _as_texts(cells)
    return StoredTexts(
        lambda begin, end: _as_texts(read_part(column, begin, min(end, n_rows))),
        np.arange(n_rows),
    )


def _gaps(table: Table, column: int, cells: list[Any]) -> list[tuple[int, object]]:
    """Return the rows of missing cells, and these cells; raise for what is no text."""
    if set(map(type, cells)) == {str}:
        return []
    gaps = []
    for row, cell in enumerate(cells):
        if is_missing(cell):
            gaps.append((table.first_row + row, cell))
        elif not isinstance(cell, str):
            raise _bad_cell(cell, table.place(row, column))
    return gaps


def _as_texts(cells: list[Any]) -> list[str]:
    """Return cells as exact str, missing ones as empty."""
    if set(map(type, cells)) == {str}:
        return cells.copy()
    # str.__str__ turns numpy and enum strings into exact str without asking their class
    return [str.__str__(cell) if isinstance(cell, str) else "" for cell in cells]


def hint_for(cell: object) -> str:
    """Return how to make a text of a cell that is none."""
    return next(text for types, text in _CELL_HINTS if isinstance(cell, types))


def _bad_cell(cell: object, place: str) -> InputTypeError:
    """Return the error for a cell that is not a text."""
    return InputTypeError(
        f"X must hold one text (str) per cell, but {place} holds {reprlib.repr(cell)}, of type "
        f"{type(cell).__name__}. {hint_for(cell)}"
    )


def _has_lone_surrogate(text: str) -> bool:
    """Return whether a text holds half a character, which has no UTF-8 form."""
    if text.isascii():
        return False
    if len(text) > _SLICE:
        return any(
            _has_lone_surrogate(text[at : at + _SLICE]) for at in range(0, len(text), _SLICE)
        )
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def without_surrogates(text: str) -> str:
    """Return a text with U+FFFD for each lone surrogate; its length stays the same."""
    return _SURROGATE.sub("\ufffd", text) if _has_lone_surrogate(text) else text


def replace_surrogates(texts: Sequence[Any]) -> list[int]:
    """Put U+FFFD for each lone surrogate; return the positions of the texts that had some.

    An entry that is None is passed over. Outside Python texts are UTF-8, which has no surrogates.
    """
    if not isinstance(texts, list):
        return []
    dirty = [at for at, text in enumerate(texts) if text and _has_lone_surrogate(text)]
    for at in dirty:
        texts[at] = _SURROGATE.sub("\ufffd", texts[at])
    return dirty


def warn_of_surrogates(rows: Collection[int], what: str = "") -> None:
    """Warn when lone surrogates were replaced in some rows of X."""
    if rows:
        msg = (
            f"{what}{len(rows)} row(s) of X hold lone surrogates (not characters), the first is "
            f"row {min(rows)}; each became U+FFFD. Read the file in the encoding it was written "
            "in."
        )
        warn(msg)


def _blank_rows(columns: list[Sequence[str]]) -> list[int]:
    """Return the rows in which every column is empty or whitespace."""
    blank = [
        {row for row, cell in enumerate(cells) if not cell or cell.isspace()} for cells in columns
    ]
    return sorted(set.intersection(*blank))


def warn_if_mostly_empty(empty: list[int], n_rows: int, problem: str) -> None:
    """Warn when more than half of the rows are empty; `problem` says what is wrong with them."""
    if 2 * len(empty) > n_rows:
        msg = (
            f"{len(empty)} of {n_rows} rows of X {problem}, the first is row {empty[0]}. Nothing "
            "can be learned or predicted from them; check how X was read."
        )
        warn(msg)
