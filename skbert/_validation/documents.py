"""X as documents, each a list of sentences, or an error that names the first bad row.

Depends on `tables`, `columns`, `texts` and `skbert.exceptions`.
"""

from __future__ import annotations

import re
import reprlib
from dataclasses import dataclass
from typing import Any

from skbert._validation.columns import FitRecord, TextColumns, compare_with_fit, open_rows
from skbert._validation.tables import ROW_TYPES, Table, is_missing, row_entries
from skbert._validation.texts import check_texts, read_texts
from skbert.exceptions import InputError, InputTypeError

__all__ = ["Documents", "check_documents", "check_sentences", "split_sentences"]

_ROWS = "Give each row one text (str), or a list of its sentences."
# A sentence ends where a run of these signs does, with the quotes and brackets that close after
# it; the Western signs need white space behind them, as there are 3.14 and example.org. The second
# line is for the wide signs of Chinese and Japanese.
_END = re.compile(
    r"(?<![.!?…])[.!?…]++[\"'”’)\]»]*+(?=\s)"
    "|(?<![\u3002\uff01\uff1f])[\u3002\uff01\uff1f]++[”’\u300d\u300f\uff09]*+"
)


@dataclass(frozen=True)
class Documents:
    """The documents of X, whatever container they came in."""

    rows: list[list[str]]  # sentences; one entry where the row is a str
    are_texts: bool  # rows are str that are not split into sentences yet
    names: tuple[str, ...] | None  # all column names of a frame with str columns, else None
    width: int = 1  # columns of X
    n_columns: int = 1  # of these, with rows

    def __len__(self) -> int:
        return len(self.rows)

    def texts(self) -> list[str]:
        """Return each document as one text."""
        return [" ".join(row) for row in self.rows]

    def sentences(self) -> list[list[str]]:
        """Return the sentences of each document that are not blank."""
        if self.are_texts:
            return [split_sentences(text) for (text,) in self.rows]
        return [[sentence for sentence in row if sentence.strip()] for row in self.rows]


def split_sentences(text: str) -> list[str]:
    """Split a text into sentences, at line breaks and after ``. ! ? …`` before white space.

    The wide signs of Chinese and Japanese need no white space after them.
    """
    lines = _END.sub(lambda end: f"{end[0]}\n", text).splitlines()
    return [line.strip() for line in lines if line.strip()]


def check_documents(
    X: Any,
    *,
    columns: TextColumns = None,
    missing: str = "raise",
    fitted: FitRecord | None = None,
    estimator_name: str = "BertPretrainer",
) -> Documents:
    """Return the documents of X; the parameters are those of `check_texts`.

    Raises
    ------
    InputError
        If X has no rows or several columns, or a row or a sentence is missing.
    InputTypeError
        If a row is neither a text nor a list of texts, or some rows are the one and some the
        other.
    """
    table, wanted, column = open_rows(X, columns, estimator_name, _ROWS)
    cells = table.read(column)
    lists = [row for row, cell in enumerate(cells) if isinstance(cell, ROW_TYPES)]
    if not lists:
        texts = read_texts(
            table, columns=columns, missing=missing, fitted=fitted, estimator_name=estimator_name
        )
        return Documents([[text] for text in texts.first], True, texts.names, texts.width)
    if fitted is not None:
        compare_with_fit(table, wanted, fitted, estimator_name)
    _check_rows(cells, lists[0], table, column, missing)
    sentences = _sentences(cells, table, column, missing)
    return Documents(sentences, False, table.names, table.width)


def _check_rows(cells: list[Any], first: int, table: Table, column: int, missing: str) -> None:
    """Raise where a row is not a list, although row ``first`` is one."""
    for row, cell in enumerate(cells):
        if isinstance(cell, ROW_TYPES) or (is_missing(cell) and missing == "empty"):
            continue
        shown = f"{table.place(row, column)} is {reprlib.repr(cell)}"
        if is_missing(cell):
            msg = (
                f"X has missing rows, the first: {shown}. Drop them, or set "
                "missing='empty' to read them as []."
            )
            raise InputError(msg)
        msg = (
            f"X mixes lists of sentences with other rows: {table.place(first, column)} is a list, "
            f"{shown}, of type {type(cell).__name__}. {_ROWS}"
        )
        raise InputTypeError(msg)


def _sentences(cells: list[Any], table: Table, column: int, missing: str) -> list[list[str]]:
    """Return the sentences as exact str, checked as texts are."""
    rows = [[] if is_missing(cell) else row_entries(cell) for cell in cells]
    owner = [row for row, sentences in enumerate(rows) for _ in sentences]
    flat = [sentence for sentences in rows for sentence in sentences]
    for row, cell in zip(owner, flat, strict=True):
        _check_sentence(cell, table.place(row, column), missing)
    sentences_of: list[list[str]] = [[] for _ in rows]
    texts = check_texts(flat, missing=missing).first if flat else []
    for row, text in zip(owner, texts, strict=True):
        sentences_of[row].append(text)
    return sentences_of


def _check_sentence(cell: object, place: str, missing: str) -> None:
    if isinstance(cell, str) or (is_missing(cell) and missing == "empty"):
        return
    msg = (
        f"The sentences of X must be str, but {place} holds {reprlib.repr(cell)}, of type "
        f"{type(cell).__name__}. {_ROWS}"
    )
    raise (InputError if is_missing(cell) else InputTypeError)(msg)


def check_sentences(documents: Documents, objective: str) -> None:
    """Raise unless the documents have enough sentences to make pairs of, true and random ones."""
    lone = [row for row, sentences in enumerate(documents.sentences()) if len(sentences) < 2]
    form = (
        "Sentences end at line breaks and after . ! ? and similar signs"
        if documents.are_texts
        else "Blank sentences do not count"
    )
    if lone:
        msg = (
            f"objective={objective!r} learns from pairs of sentences, but {len(lone)} of "
            f"{len(documents)} rows of X hold fewer than 2, the first is row {lone[0]}. {form}. "
            "Drop these rows, give documents of several sentences, or use objective='mlm'."
        )
        raise InputError(msg)
    if len(documents) < 2:
        msg = (
            f"objective={objective!r} takes random sentences from other documents, but X holds "
            "one document. Give each document a row of its own, or use objective='mlm'."
        )
        raise InputError(msg)
