"""Which words, and which pieces, of the texts of X the tokens of a sample are.

Depends on ``_core`` and on the types of checked input.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from skbert._arrays import IntArray
from skbert._core.items import Items
from skbert._core.text.numbered import NumberedPieces
from skbert._core.text.tokens import Ragged
from skbert._validation.choices import Choices
from skbert._validation.texts import Texts
from skbert._validation.words import WordRows

__all__ = ["Grouped", "Rows", "grouped", "located", "texts_of"]

Rows = Texts | WordRows | Choices

_FAR = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Grouped:
    """The tokens of samples, in groups that are words or pieces of their texts."""

    groups: Ragged  # for each sample the group of each of its tokens, -1 for special ones
    spans: Ragged  # for each sample (n_groups, 3): field, start and end


def texts_of(rows: Rows, row: int, option: int) -> list[str]:
    """The texts that a row of X consists of; of several options only one."""
    if isinstance(rows, WordRows):
        return rows.words[row]
    texts = [column[row] for column in rows.columns]
    if isinstance(rows, Choices):
        texts.append([*rows.places[row]][option])
    return texts


def located(items: Items, numbers: NumberedPieces, rows: Rows) -> IntArray:
    """Field, start, end, word and number of each token, ``(n_tokens, 5)``; field -1 for none.

    The tokens of the items are still numbers.
    """
    tokens = items.tokens
    codes = tokens.ids.values.astype(np.int64)
    table = np.vstack([numbers.table, np.zeros((1, 4), np.int64)])
    start, end, word = table[np.maximum(codes, -1), 1:].T
    owner = np.repeat(np.arange(len(tokens)), tokens.lengths)
    field: IntArray = (tokens.ids.index_in_row >= tokens.second[owner]).astype(np.int64)
    if isinstance(rows, WordRows):
        assert items.places is not None
        field, word = items.places.values[:, 1], np.zeros_like(word)
        start, end = _of_unknown_words(items, rows, start, end)
    elif isinstance(rows, Texts) and rows.fields:
        assert items.places is not None
        field = items.places.values[:, 0].astype(np.int64)  # names of fields belong to none
    else:
        field[codes < 0] = -1
    if isinstance(rows, Choices) and rows.second is not None:
        sample = np.repeat(items.samples, items.sizes)
        field, start, end = _after_second(rows.second, sample, field, start, end)
    return np.stack([field, start, end, word, codes], axis=1)


def _of_unknown_words(
    items: Items, rows: WordRows, start: IntArray, end: IntArray
) -> tuple[IntArray, IntArray]:
    """Start and end of pieces in their words; a word without pieces is unknown as a whole."""
    assert items.places is not None
    unknown = (items.tokens.ids.values < 0) & (items.places.values[:, 1] >= 0)
    sample = np.repeat(items.samples, items.sizes)
    for token in np.flatnonzero(unknown).tolist():
        word = rows.words[sample[token]][items.places.values[token, 1]]
        start[token], end[token] = 0, len(word)
    return start, end


def _after_second(
    second: list[str], sample: IntArray, field: IntArray, start: IntArray, end: IntArray
) -> tuple[IntArray, IntArray, IntArray]:
    """Fields and spans of options before which a second text was put, with a blank between."""
    begins = np.array([len(text) + 1 for text in second])[sample]
    is_option = (field == 1) & (start >= begins)
    shift = np.where(is_option, begins, 0)
    return field + is_option, start - shift, end - shift


def grouped(items: Items, place: IntArray, *, pieces: bool) -> Grouped:
    """The tokens of samples by word, or by piece.

    ``place`` is that of `located`. Windows share words and pieces.
    """
    sample = np.repeat(items.samples, items.sizes)
    is_text = place[:, 0] >= 0
    keys = np.stack([sample, place[:, 0], place[:, 4 if pieces else 3]], axis=1)[is_text]
    distinct, group = np.unique(keys, axis=0, return_inverse=True)
    counts = np.bincount(distinct[:, 0], minlength=len(np.unique(sample)))
    spans = np.column_stack([distinct[:, 1], _bounds(place[is_text], group, len(distinct))])
    table = Ragged.of(spans, counts)
    groups = np.full(len(sample), -1)
    groups[is_text] = group - table.starts[sample[is_text]]
    return Grouped(Ragged.of(groups, np.bincount(sample)), table)


def _bounds(place: IntArray, group: IntArray, n_groups: int) -> IntArray:
    """Start and end of each group, ``(n_groups, 2)``; empty pieces count if it has no others."""
    bounds = np.tile([_FAR, 0], (n_groups, 1))
    is_empty = place[:, 1] == place[:, 2]
    has_others = np.bincount(group, ~is_empty, n_groups) > 0
    counts = ~(is_empty & has_others[group])
    np.minimum.at(bounds[:, 0], group[counts], place[counts, 1])
    np.maximum.at(bounds[:, 1], group[counts], place[counts, 2])
    return bounds
