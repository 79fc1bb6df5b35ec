"""X of a tagger as rows of words or as texts, y as tags or spans, or an error that names a row.

Depends on numpy, `texts`, `tables`, `targets`, `entities`
and `skbert.exceptions`; knows no torch and no tokenizer.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from numbers import Integral
from typing import Any

import numpy as np

from skbert._validation.entities import Entity
from skbert._validation.tables import ROW_TYPES, Table, check_not_empty, is_missing, open_table
from skbert._validation.targets import check_length
from skbert._validation.texts import (
    SURROGATE,
    FitRecord,
    Texts,
    check_texts,
    column_positions,
    compare_with_fit,
    wanted_columns,
)
from skbert.exceptions import InputError, InputTypeError, warn

__all__ = ["WordRows", "check_spans", "check_tags", "check_words", "open_rows"]

_ROWS = "X holds one list of words per row: type [['Anna', 'lives', 'here'], ...]."
_TAGS = "Give per row a list with one tag (str) per word: type [['B-PER', 'O', 'O'], ...]."
_SPANS = (
    "For raw texts y holds per row a list of (start, end, label) in characters, empty where there "
    "is none: type [[(0, 4, 'PER')], [], ...]."
)
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
    n_columns: int = 1

    def __len__(self) -> int:
        return len(self.words)

    def take(self, rows: np.ndarray) -> WordRows:
        """Return the rows at the given positions."""
        return replace(self, words=[self.words[row] for row in rows])


def check_words(
    X: Any,
    *,
    columns: str | int | Sequence[str | int] | None = None,
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
    if _holds_texts(cells, table, column):
        texts = check_texts(
            X, columns=columns, missing=missing, fitted=fitted, estimator_name=estimator_name
        )
        _warn_if_single_words(texts.first, fitted)
        return texts
    if fitted is not None:
        compare_with_fit(table, wanted, fitted, estimator_name)
    rows = _check_rows(cells, table, column, missing)
    _replace_surrogates(rows)
    _warn_if_mostly_empty(rows)
    return WordRows(rows, table.names)


def open_rows(
    X: Any, columns: str | int | Sequence[str | int] | None, estimator_name: str, forms: str
) -> tuple[Table, list[Any], int]:
    """The container, the columns asked for, and where the one column is that holds the rows.

    Rows of equally many entries are no columns. ``forms`` says in errors what a row may be.
    """
    table = open_table(X, hint=None)
    check_not_empty(table)
    if columns is None and table.labels is None and table.width > 1:
        cells = [list(row) for row in zip(*map(table.read, range(table.width)), strict=True)]
        table = Table((len(cells),), lambda _: cells, None)
    wanted = wanted_columns(columns, table.width)
    if len(wanted) > 1:
        msg = (
            f"X has {table.width} columns, but {estimator_name} reads one. Choose it, for example "
            f"text_columns={wanted[0]!r}. {forms}"
        )
        raise InputError(msg)
    (column,) = column_positions(table, wanted)
    return table, wanted, column


def _without_index(cell: Any) -> Any:
    """A row that is a Series as a list."""
    return cell.to_list() if hasattr(cell, "to_list") else cell


def _holds_texts(cells: list[Any], table: Table, column: int) -> bool:
    """Tell whether the rows are texts; raise where some are and some are not."""
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
    rows = [[] if is_missing(cell) else _listed(cell) for cell in cells]
    if set(map(type, chain.from_iterable(rows))) <= {str}:
        return rows
    for number, row in enumerate(rows):
        place = table.place(number, column)
        rows[number] = [_word(cell, f"{place}, word {w}", missing) for w, cell in enumerate(row)]
    return rows


def _listed(row: Any) -> list[Any]:
    """Return the entries of a row as a new list."""
    return np.atleast_1d(row).tolist() if isinstance(row, np.ndarray) else list(row)


def _word(cell: Any, place: str, missing: str) -> str:
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


def _warn_if_single_words(texts: list[str], fitted: FitRecord | None) -> None:
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


def _replace_surrogates(rows: list[list[str]]) -> None:
    """Put U+FFFD for each lone surrogate, with one warning."""
    dirty = []
    for number, row in enumerate(rows):
        if any(not word.isascii() and SURROGATE.search(word) for word in row):
            rows[number] = [SURROGATE.sub("\ufffd", word) for word in row]
            dirty.append(number)
    if dirty:
        msg = (
            f"{len(dirty)} row(s) of X hold lone surrogates (no characters), the first is row "
            f"{dirty[0]}; each became U+FFFD. Read the file in the encoding it was written in."
        )
        warn(msg)


def _warn_if_mostly_empty(rows: list[list[str]]) -> None:
    """Warn when more than half of the rows hold no word."""
    empty = [number for number, row in enumerate(rows) if not row]
    if 2 * len(empty) > len(rows):
        msg = (
            f"{len(empty)} of {len(rows)} rows of X hold no word, the first is row {empty[0]}. "
            "Nothing can be learned or told from them; look at how X was read."
        )
        warn(msg)


def check_tags(y: Any, lengths: Sequence[int]) -> list[list[str]]:
    """Return one tag for each of the words that the rows of X hold, `lengths` in number.

    Raises
    ------
    InputError
        If rows differ in number or in length, or a tag is missing or empty.
    InputTypeError
        If a row is no list, or a tag no str.
    """
    rows = _rows_of_y(y, len(lengths), _TAGS)
    for number, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        if len(row) != length:
            form = _SPANS if row and isinstance(row[0], ROW_TYPES) else _TAGS
            msg = (
                f"Row {number} of y has {len(row)} tag(s), but row {number} of X has {length} "
                f"word(s). {form}"
            )
            raise InputError(msg)
    if set(map(type, chain.from_iterable(rows))) == {str} and all(map(all, rows)):
        return rows
    return [
        [_tag(cell, f"row {number} of y, word {word}") for word, cell in enumerate(row)]
        for number, row in enumerate(rows)
    ]


def _tag(cell: Any, place: str) -> str:
    """Return a tag as an exact str."""
    if is_missing(cell) or (isinstance(cell, str) and not cell):
        msg = f"y has a missing tag, in {place} ({cell!r}). A word outside of all is 'O'. {_TAGS}"
        raise InputError(msg)
    if isinstance(cell, str):
        return str.__str__(cell)
    hint = _SPANS if isinstance(cell, ROW_TYPES) else _TAGS
    msg = (
        f"Tags must be str, but {place} holds {reprlib.repr(cell)}, of type "
        f"{type(cell).__name__}. {hint}"
    )
    raise InputTypeError(msg)


def check_spans(y: Any, texts: Sequence[str]) -> list[list[Entity]]:
    """Return the labelled spans of each text, sorted.

    Raises
    ------
    InputError
        If a span lies outside of its text, holds no character or only blanks, or overlaps
        another, or a label is no str.
    InputTypeError
        If y holds tags, because X is a list of words then and not of rows, or anything else.
    """
    rows = _rows_of_y(y, len(texts), _SPANS)
    spans = []
    for number, (cells, text) in enumerate(zip(rows, texts, strict=True)):
        found = sorted(_span(cell, text, f"row {number} of y") for cell in cells)
        for span, following in pairwise(found):
            if following[0] < span[1]:
                msg = (
                    f"The spans {span} and {following} in row {number} of y overlap. A word has "
                    "one tag; leave one of them out."
                )
                raise InputError(msg)
        spans.append(found)
    return spans


def _span(cell: Any, text: str, place: str) -> Entity:
    """Return one labelled span as a tuple of int, int and str."""
    if isinstance(cell, str):
        raise _flat_words_error(cell, place)
    if not isinstance(cell, ROW_TYPES) or len(cell) != 3:
        msg = f"{place} holds {reprlib.repr(cell)}, which is no (start, end, label). {_SPANS}"
        raise InputTypeError(msg)
    start, end, label = cell
    if not (_is_whole(start) and _is_whole(end)):
        msg = f"{place} holds {reprlib.repr(cell)}, whose bounds are no whole numbers. {_SPANS}"
        raise InputTypeError(msg)
    if not (isinstance(label, str) and label):
        msg = f"{place} holds {reprlib.repr(cell)}, whose label is no str. {_SPANS}"
        raise InputError(msg)
    _check_bounds(start, end, text, f"{place} holds {reprlib.repr(cell)}")
    return int(start), int(end), str.__str__(label)


def _check_bounds(start: int, end: int, text: str, found: str) -> None:
    """Raise when there is nothing to label in a text from `start` to `end`."""
    if not 0 <= start < end <= len(text):
        msg = (
            f"{found}, but its text has {len(text)} character(s). A span begins at 0 or later, "
            "ends after its last character, and holds one at least."
        )
        raise InputError(msg)
    if not text[start:end].strip():
        msg = f"{found}, where its text has only blanks. {_SPANS}"
        raise InputError(msg)


def _is_whole(value: Any) -> bool:
    """Tell whether a value is a whole number."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def _rows_of_y(y: Any, n: int, form: str) -> list[list[Any]]:
    """Return the rows of y as lists, whatever containers they came in."""
    if y is None:
        msg = (
            "This BertTokenTagger estimator requires y to be passed, but the target y is None. "
            f"{form}"
        )
        raise InputError(msg)
    table = open_table(y, "y", None)
    check_length(n, table.shape[0])
    columns = [table.read(column) for column in range(table.width)]
    if table.width > 1:
        return [list(row) for row in zip(*columns, strict=True)]
    for number, cell in enumerate(columns[0]):
        if isinstance(cell, str):
            raise _flat_words_error(cell, f"row {number} of y")
        if isinstance(cell, Mapping) or not isinstance(cell, ROW_TYPES):
            msg = (
                f"Row {number} of y holds {reprlib.repr(cell)}, of type {type(cell).__name__}. "
                f"{form}"
            )
            raise InputError(msg) if is_missing(cell) else InputTypeError(msg)
    return [_listed(cell) for cell in columns[0]]


def _flat_words_error(cell: str, place: str) -> InputTypeError:
    """Make the error for a list of words in the place of a list of rows."""
    return InputTypeError(
        f"{place} holds the tag {reprlib.repr(cell)} where a row is expected, so X or y is a flat "
        'list. X holds one list of words per row, and y one list of tags: type X = [["Anna", '
        '"lives"], ...] and y = [["B-PER", "O"], ...]. For raw texts y holds (start, end, label).'
    )
