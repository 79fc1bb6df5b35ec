"""Token rows of texts that have several named fields, with a fair share of room for each.

Each field is its name, a colon and its text, such as ``title: …``; a field without a name is its
text alone. Fields follow each other as if they were one text, with a blank between. Depends on
numpy and ``tokens``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from skbert._arrays import Array, BoolArray, IntArray, arange_within
from skbert._core.text.tokens import (
    EncodedTexts,
    LongText,
    Ragged,
    TextTokenizer,
    TokenTable,
    constant,
    encode_texts,
    interleave,
    replaced,
)
from skbert._core.text.windows import Windows
from skbert.exceptions import InputError

__all__ = ["encode_rows", "fair_shares"]

_LEAST = 4  # tokens of its text for which every field has room

_Field = tuple[str | None, Sequence[str]]  # name and texts, one per row


class _Rows(Protocol):
    """Rows of one text, of two texts, or of fields."""

    @property
    def first(self) -> Sequence[str]: ...
    @property
    def second(self) -> Sequence[str] | None: ...
    @property
    def fields(self) -> Sequence[_Field]: ...


class _Kept(NamedTuple):
    """Which pieces of each field are in each row of tokens.

    The arrays are ``(n_fields, n_token_rows)``. After the first ``head`` pieces of a field,
    ``skipped`` ones are left out.
    """

    windows: Windows
    lengths: IntArray
    head: IntArray
    skipped: IntArray
    n_truncated: int


def encode_rows(
    tokenizer: TextTokenizer, rows: _Rows, max_length: int, long_text: LongText
) -> EncodedTexts:
    """Token rows of texts, pairs or fields, with what is too long cut or in windows.

    For texts and pairs these are the rows of `encode_texts`. Of fields, the names always stay, and
    ``truncate`` cuts texts to `fair_shares` of what is left. ``head_tail`` keeps the first quarter
    and the last three quarters of each share. ``windows`` run over the longest text of a row, and
    each has the other fields, which take half of the room at the most. A blank text is left out
    with its name.
    """
    if not rows.fields:
        return encode_texts(tokenizer, rows.first, rows.second, max_length, long_text)
    max_tokens = max_length - tokenizer.n_specials(pair=False)
    names = [_name_pieces(tokenizer, name) for name, _ in rows.fields]
    _check_room(names, max_tokens, max_length)
    is_there = np.array([[_is_there(text) for text in texts] for _, texts in rows.fields])
    is_first = is_there & (np.cumsum(is_there, axis=0) == 1)
    heads = [name.take(place) for name, place in zip(names, is_there + is_first * 1, strict=True)]
    limit = max_tokens if long_text == "truncate" else None
    bodies = [
        _text_pieces(tokenizer, texts, there, first & (name is None), limit)
        for (name, texts), there, first in zip(rows.fields, is_there, is_first, strict=True)
    ]
    room = max_tokens - np.sum([head.lengths for head in heads], axis=0)
    shorten = {"truncate": _truncate, "head_tail": _head_tail, "windows": _windows}[long_text]
    kept = shorten(np.stack([body.lengths for body in bodies]), room)
    table = interleave(_columns(tokenizer, heads, bodies, kept))
    ids, places = np.split(table.values, [1], axis=1)
    tokens = Ragged(ids[:, 0].copy(), table.starts)
    return EncodedTexts(
        TokenTable(tokens, tokens.lengths), kept.windows, kept.n_truncated,
        Ragged(places.copy(), table.starts),
    )  # fmt: skip


def fair_shares(lengths: IntArray, room: IntArray) -> IntArray:
    """How many pieces of each field are kept, ``(n_fields, n_rows)`` like their ``lengths``.

    All fields of a row get the same share of ``room``, ``(n_rows,)``. What a field does not need
    of it is shared by the others in the same way. Single places that are left over go to the first
    of the fields that are cut.
    """
    ordered = np.sort(lengths, axis=0)
    before = np.cumsum(ordered, axis=0) - ordered
    left = np.arange(len(lengths), 0, -1)[:, None]  # fields that share what the shorter ones left
    share, over = np.divmod(room - before, left)
    is_cut = ordered > share
    at = np.argmax(is_cut, axis=0), np.arange(len(room))
    share = np.where(is_cut.any(axis=0), share[at], ordered[-1])
    is_longer = lengths > share
    more = is_longer & (np.cumsum(is_longer, axis=0) <= over[at])
    return np.asarray(np.minimum(lengths, share) + more)


def _is_there(text: str) -> bool:
    return bool(text) and not text.isspace()


def _name_pieces(tokenizer: TextTokenizer, name: str | None) -> Ragged:
    """Pieces before a text: where it is missing, where it is not the first, and where it is."""
    if name is None:
        return Ragged.of(np.empty(0, np.int32), np.zeros(3, np.int64))
    first, later = (read([f"{name}:"]) for read in (tokenizer.pieces, tokenizer.pieces_of_words))
    lengths = np.array([0, *later.lengths, *first.lengths])
    return Ragged.of(np.concatenate([later.values, first.values]), lengths)


def _check_room(names: list[Ragged], max_tokens: int, max_length: int) -> None:
    """Raise where a row may have no room for some text of each field."""
    n_fields, taken = len(names), sum(int(name.lengths.max()) for name in names)
    least = taken + _LEAST * n_fields
    if least > max_tokens:
        raise InputError(
            f"text_columns names {n_fields} fields, and max_length={max_length} has no room for "
            f"them: their names are {taken} tokens, and each field needs {_LEAST} more. Set "
            f"max_length to {max_length + least - max_tokens} at least, or use fewer fields or "
            "shorter names."
        )


def _text_pieces(
    tokenizer: TextTokenizer,
    texts: Sequence[str],
    is_there: BoolArray,
    begins_row: BoolArray,
    limit: int | None,
) -> Ragged:
    """Pieces of one field in each row, none where its text is not there."""
    there = np.flatnonzero(is_there)
    pieces = tokenizer.pieces_of_words([texts[row] for row in there.tolist()], limit)
    first = np.flatnonzero(begins_row[there])
    if len(first):
        rows = there[first].tolist()
        pieces = replaced(pieces, first, tokenizer.pieces([texts[row] for row in rows], limit))
    lengths = np.zeros(len(texts), np.int64)
    lengths[there] = pieces.lengths
    return Ragged.of(pieces.values, lengths)


def _truncate(lengths: IntArray, room: IntArray) -> _Kept:
    keep = fair_shares(lengths, room)
    return _cut(lengths, keep, keep)


def _head_tail(lengths: IntArray, room: IntArray) -> _Kept:
    keep = fair_shares(lengths, room)
    return _cut(lengths, keep, keep // 4)


def _cut(lengths: IntArray, keep: IntArray, head: IntArray) -> _Kept:
    """Texts without what lies between their ``head`` and the rest of what is kept."""
    n_truncated = int((keep < lengths).any(axis=0).sum())
    return _Kept(Windows.whole(keep.sum(axis=0)), keep, head, lengths - keep, n_truncated)


def _windows(lengths: IntArray, room: IntArray) -> _Kept:
    """Windows over the longest text of each row, the first of those that are equally long."""
    is_longest = np.arange(len(lengths))[:, None] == np.argmax(lengths, axis=0)
    longest = lengths.max(axis=0)
    others = np.where(is_longest, 0, lengths)
    keep = fair_shares(others, np.maximum(room // 2, room - longest))
    windows = Windows.overlapping(longest, room - keep.sum(axis=0))
    is_longest, keep_of_others = is_longest[:, windows.samples], keep[:, windows.samples]
    head = np.where(is_longest, 0, keep_of_others)
    return _Kept(
        windows, np.where(is_longest, windows.lengths, keep_of_others), head,
        np.where(is_longest, windows.begins, 0), int((keep < others).any(axis=0).sum()),
    )  # fmt: skip


def _columns(
    tokenizer: TextTokenizer, heads: list[Ragged], bodies: list[Ragged], kept: _Kept
) -> list[Ragged]:
    """All parts of the token rows: id, field and piece number of each token, the last two -1.

    Pieces are counted through the texts of all fields of a row; names and special tokens have no
    number and no field.
    """
    samples = kept.windows.samples
    parts = [_without_places(constant(tokenizer.prefix, len(samples)))]
    n_before = np.zeros(len(heads[0]), np.int64)
    for field, (head, body) in enumerate(zip(heads, bodies, strict=True)):
        lengths, first, skipped = (each[field] for each in (kept.lengths, kept.head, kept.skipped))
        at = arange_within(lengths)
        at += np.repeat(skipped, lengths) * (at >= np.repeat(first, lengths))
        ids = body.values[np.repeat(body.starts[samples], lengths) + at]
        columns = [ids, np.full(len(at), field), np.repeat(n_before[samples], lengths) + at]
        text = Ragged.of(np.stack(columns, axis=1).astype(np.int32), lengths)
        parts += [_without_places(head.take(samples)), text]
        n_before += body.lengths
    return [*parts, _without_places(constant(tokenizer.suffix, len(samples)))]


def _without_places(ids: Ragged) -> Ragged:
    columns: Array = np.full((len(ids.values), 3), -1, np.int32)
    columns[:, 0] = ids.values
    return Ragged(columns, ids.starts)
