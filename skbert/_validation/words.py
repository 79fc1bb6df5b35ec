"""X of a tagger as rows of words or as texts, or an error that names the first bad row.

Depends on `tables`, `columns`, `texts` and `skbert.exceptions`; y is checked in `entities`.
"""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np

from skbert._validation.columns import FitRecord, TextColumns, compare_with_fit, open_rows
from skbert._validation.tables import ROW_TYPES, Table, is_missing, row_entries
from skbert._validation.texts import (
    Texts,
    read_texts,
    replace_surrogates,
    warn_if_mostly_empty,
    warn_of_surrogates,
)
from skbert.exceptions import InputError, InputTypeError, warn

__all__ = ["WordRows", "check_words"]

_ROWS = "X holds one list of words per row: type [['Anna', 'lives', 'here'], ...]."
_WORD_HINTS: tuple[tuple[tuple[type, ...], str], ...] = (
    ((bytes, bytearray), "Decode it first: word.decode('utf-8')."),
    (ROW_TYPES, "A row is a flat list of words; make each sentence a row of its own."),
    ((object,), "If it is meant as a word, convert it first: str(word)."),
)


@dataclass(frozen=True)
class WordRows:
    """The rows of words of X, whatever container they came in."""

    words: list[list[str]]
    names: tuple[str, ...] | None  # all column names of a frame with str columns, else None
    width: int = 1  # columns of X
    n_columns: int = 1  # of these, with rows

    def __len__(self) -> int:
        return len(self.words)

    def take(self, rows: np.ndarray) -> WordRows:
        """Return the rows at the given positions."""
        return replace(self, words=[self.words[row] for row in rows])


def check_words(
    X: Any,
    *,
    columns: TextColumns = None,
    missing: str = "raise",
    fitted: FitRecord | None = None,
    estimator_name: str = "BertTokenTagger",
) -> WordRows | Texts:
    """Return the rows of words of X, or its texts where rows are str.

    The parameters are those of `check_texts`. The lists returned are new and hold exact ``str``
    objects; a row may hold no word.

    Raises
    ------
    InputError
        If X has no rows or several columns, or a row or a word is missing.
    InputTypeError
        If a row holds neither words nor a text, or some rows hold the one and some the other.
    """
    table, wanted, column = open_rows(X, columns, estimator_name, _ROWS)
    cells = [*map(_without_index, table.read(column))]
    if _has_texts(cells, table, column):
        texts = read_texts(
            table, columns=columns, missing=missing, fitted=fitted, estimator_name=estimator_name
        )
        _warn_if_single_words(texts.first, fitted)
        return texts
    if fitted is not None:
        compare_with_fit(table, wanted, fitted, estimator_name)
    rows = _check_rows(cells, table, column, missing)
    warn_of_surrogates([row for row, words in enumerate(rows) if replace_surrogates(words)])
    empty = [row for row, words in enumerate(rows) if not words]
    warn_if_mostly_empty(empty, len(rows), "hold no word")
    return WordRows(rows, table.names, table.width)


def _without_index(cell: object) -> Any:
    """Return a cell, a Series as a list."""
    return cell.to_list() if hasattr(cell, "to_list") else cell


def _has_texts(cells: list[Any], table: Table, column: int) -> bool:
    """Return whether the rows are texts; raise where some are and some are not."""
    kinds: dict[bool, int] = {}  # whether a row is a text -> the first such row
    for row, cell in enumerate(cells):
        if not is_missing(cell):
            kinds.setdefault(not isinstance(cell, ROW_TYPES), row)
    if len(kinds) > 1:
        text, words = kinds[True], kinds[False]
        msg = (
            f"X mixes rows of words and texts: {table.place(words, column)} is "
            f"{reprlib.repr(cells[words])}, {table.place(text, column)} is "
            f"{reprlib.repr(cells[text])}, of type {type(cells[text]).__name__}. {_ROWS}"
        )
        raise InputTypeError(msg)
    return True in kinds


def _check_rows(cells: list[Any], table: Table, column: int, missing: str) -> list[list[str]]:
    """Return the rows of words as lists of exact str."""
    gaps = [row for row, cell in enumerate(cells) if is_missing(cell)]
    if gaps and missing != "empty":
        msg = (
            f"X has {len(gaps)} missing row(s), the first is {table.place(gaps[0], column)} "
            f"({cells[gaps[0]]!r}). Drop these rows, or set missing='empty' to read them as []."
        )
        raise InputError(msg)
    rows = [[] if is_missing(cell) else row_entries(cell) for cell in cells]
    if set(map(type, chain.from_iterable(rows))) <= {str}:
        return rows
    for number, row in enumerate(rows):
        place = table.place(number, column)
        rows[number] = [_word(cell, f"{place}, word {w}", missing) for w, cell in enumerate(row)]
    return rows


def _word(cell: object, place: str, missing: str) -> str:
    """Return a word as an exact str."""
    if isinstance(cell, str):
        return str.__str__(cell)
    if not is_missing(cell):
        hint = next(text for types, text in _WORD_HINTS if isinstance(cell, types))
        msg = (
            f"X must hold words (str) in its rows, but {place} holds {reprlib.repr(cell)}, of "
            f"type {type(cell).__name__}. {hint}"
        )
        raise InputTypeError(msg)
    if missing == "empty":
        return ""
    msg = (
        f"X has a missing word, in {place} ({cell!r}). Every word must be a str. Drop or fill it, "
        "or set missing='empty' to read it as an unknown word."
    )
    raise InputError(msg)


def _warn_if_single_words(texts: Sequence[str], fitted: FitRecord | None) -> None:
    """Warn after fit when every one of several texts is a word, as in a flat list of words."""
    if (
        fitted
        and len(texts) > 1
        and all(text.isascii() and len(text.split()) == 1 for text in texts)
    ):
        msg = (
            f"Every row of X is a text of one word, row 0 {texts[0]!r}, and is read by itself. If "
            "they are the words of one row, type [X]."
        )
        warn(msg)
