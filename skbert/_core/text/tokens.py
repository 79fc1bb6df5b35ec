"""Ragged tables of token ids, exact truncation and windows.

Depends on numpy, ``tokenizers`` and its neighbours; knows no model and no device. All
that follows the tokenizer's own call is vectorised.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import chain
from typing import Any, Literal, NamedTuple

import numpy as np
from tokenizers import Tokenizer, models

from skbert._arrays import Array, BoolArray, IntArray, arange_within, differences, is_arange
from skbert._core.text.ahead import computed_ahead
from skbert._core.text.places import located, with_marks
from skbert._core.text.prefix import BytePrefix, WordPrefix
from skbert._core.text.skim import Skimmer
from skbert._core.text.spill import GrowingArray
from skbert._core.text.windows import Windows

__all__ = [
    "EncodedTexts", "LongText", "Ragged", "TextTokenizer", "TokenTable", "assemble", "constant",
    "encode_texts", "interleave", "replaced",
]  # fmt: skip

LongText = Literal["truncate", "head_tail", "windows"]

_LONG = 1 << 16  # characters from which a text is skimmed for endless words before it is read
# What a piece begins with that begins a word: blank, tab and ends of lines as byte-level BPE
# writes them, and the blank of Unigram.
_BLANKS = ("\u0120", "\u0109", "\u010a", "\u010d", "\u2581")
_TOGETHER = 1024  # texts that are encoded at once, while the ids of those before are read
_GATHERED = 1 << 22  # values that are copied at once
_MAX_TIED = 8000  # ids beyond which the texts of a pair count as equally long


@dataclass(frozen=True)
class Ragged:
    """Rows of different lengths, one after another.

    ``values`` is ``(n_values, ...)``; row ``i`` is ``values[starts[i]:starts[i + 1]]``.
    """

    values: Array
    starts: IntArray  # (n_rows + 1,) int64

    @classmethod
    def of(cls, values: Array, lengths: IntArray) -> Ragged:
        """Rows of these lengths, one after another in ``values``."""
        starts = np.zeros(len(lengths) + 1, np.int64)
        lengths.cumsum(out=starts[1:])
        return cls(values, starts)

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, row: int) -> Array:
        return self.values[self.starts[row] : self.starts[row + 1]]

    @property
    def lengths(self) -> IntArray:
        """Length of each row, ``(n_rows,)``."""
        return differences(self.starts)

    @property
    def index_in_row(self) -> IntArray:
        """Index of each value in its row, ``(n_values,)``."""
        return arange_within(self.lengths)

    def arrays(self) -> Array:
        """The rows as separate arrays, in a 1-D array of objects."""
        rows = np.empty(len(self), object)
        for row in range(len(self)):
            rows[row] = self[row]
        return rows

    def take(self, rows: IntArray) -> Ragged:
        """The rows with these indices, in that order."""
        if is_arange(rows, len(self)):
            return self
        return self.cut(rows, np.zeros(len(rows), np.int64), self.lengths[rows])

    def cut(self, rows: IntArray, begins: IntArray, lengths: IntArray) -> Ragged:
        """Parts of ``rows``, each of so many values as ``lengths`` says, from ``begins`` on."""
        if is_arange(rows, len(self)) and (lengths == self.lengths).all():
            return self
        cut = Ragged.of(self.values, lengths)
        first = self.starts[rows] + begins - cut.starts[:-1]  # where the values of a row are
        n_values = int(cut.starts[-1])
        if n_values <= _GATHERED:
            return Ragged(self.values[np.repeat(first, lengths) + np.arange(n_values)], cut.starts)
        values = GrowingArray()
        for at in range(0, n_values, _GATHERED):
            places = np.arange(at, min(at + _GATHERED, n_values))
            row = np.searchsorted(cut.starts, places, side="right") - 1
            values.append(self.values[first[row] + places])
        return Ragged(values.array(), cut.starts)

    def windows(self, windows: Windows) -> Ragged:
        """A row for each window over the rows."""
        return self.cut(windows.samples, windows.begins, windows.lengths)

    def truncate(self, lengths: IntArray) -> Ragged:
        """Every row cut to the first ``lengths`` of its values."""
        if (lengths == self.lengths).all():
            return self
        return self.cut(np.arange(len(self)), np.zeros(len(self), np.int64), lengths)


@dataclass(frozen=True)
class TokenTable:
    """Token ids of many rows, and where the second segment begins in each."""

    ids: Ragged  # int32
    second: IntArray  # (n_rows,): the row's length where it has one segment

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def lengths(self) -> IntArray:
        """Tokens in each row, ``(n_rows,)``."""
        return self.ids.lengths

    def take(self, rows: IntArray) -> TokenTable:
        """The rows with these indices, in that order."""
        return TokenTable(self.ids.take(rows), self.second[rows])


@dataclass(frozen=True)
class TextTokenizer:
    """The raw tokenizer, used without its own truncation and padding.

    Their settings belong to the tokenizer, not to the call, which is not safe under threads. The
    special tokens are looked up once and added here; in the texts of users they are plain text.

    Parameters
    ----------
    backend : tokenizers.Tokenizer
        The tokenizer.
    mask_token, unk_token : str or None, default=None
        The tokens that stand for what is masked and for what is unknown, where it has them.
    """

    backend: Tokenizer
    mask_token: str | None = None
    unk_token: str | None = None
    prefix: tuple[int, ...] = field(init=False)
    middle: tuple[int, ...] = field(init=False)
    suffix: tuple[int, ...] = field(init=False)
    has_types: bool = field(init=False)  # whether tokens of a second text have a type of their own
    reader: Skimmer | BytePrefix | WordPrefix = field(init=False)

    def __post_init__(self) -> None:
        backend = Tokenizer.from_str(self.backend.to_str())
        backend.no_truncation()
        backend.no_padding()
        pair = backend.encode("a", "a")
        backend.encode_special_tokens = True
        first = pair.special_tokens_mask.index(0)
        last = len(pair.ids) - 1 - pair.special_tokens_mask[::-1].index(0)
        inner = range(first + 1, last)
        parts = {
            "backend": backend,
            "prefix": tuple(pair.ids[:first]),
            "middle": tuple(pair.ids[i] for i in inner if pair.special_tokens_mask[i]),
            "suffix": tuple(pair.ids[last + 1 :]),
            "has_types": pair.type_ids[last] > 0,
            "reader": _READERS.get(type(backend.model), Skimmer)(backend),
        }
        for name, value in parts.items():
            object.__setattr__(self, name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        return TextTokenizer, (self.backend, self.mask_token, self.unk_token)

    @property
    def mask_id(self) -> int | None:
        """The id of the mask token; None where there is none."""
        return self._id(self.mask_token)

    @property
    def unk_id(self) -> int | None:
        """The id of the unknown token; None where there is none."""
        return self._id(self.unk_token or getattr(self.backend.model, "unk_token", None))

    def _id(self, token: str | None) -> int | None:
        found: int | None = self.backend.token_to_id(token) if token else None
        return found

    @property
    def is_continuation(self) -> BoolArray:
        """Whether each piece continues a word, ``(n_ids,)``, as far as its own text tells."""
        prefix: Any = getattr(self.backend.model, "continuing_subword_prefix", None)
        if prefix:
            return self._where(lambda piece: piece.startswith(prefix))
        return self._where(lambda piece: not piece.startswith(_BLANKS))

    @cached_property
    def _is_blank(self) -> BoolArray:
        """Whether each piece is nothing but white space, ``(n_ids,)``."""
        return self._where(lambda piece: not piece.strip("".join(_BLANKS)))

    def _where(self, is_so: Callable[[str], bool]) -> BoolArray:
        """The answer for each piece, False for ids without one."""
        vocabulary = self.backend.get_vocab(with_added_tokens=True)
        answers = np.zeros(max(vocabulary.values()) + 1, bool)
        answers[[code for piece, code in vocabulary.items() if is_so(piece)]] = True
        return answers

    def n_specials(self, *, pair: bool) -> int:
        """Number of special tokens in a row."""
        return len(self.prefix) + len(self.suffix) + (len(self.middle) if pair else 0)

    def pieces(self, texts: Sequence[str], limit: int | None = None) -> Ragged:
        """Word-piece ids of each text, without special tokens.

        With ``limit`` a row holds at most the first ``limit + 1`` ids: one more than fits says
        that the text was longer. A long text is read no further than that takes.
        """
        if limit is None:
            return self._batch([t if len(t) < _LONG else self.reader.whole(t) for t in texts])
        first_try, most = 8 * limit + 64, limit + 1
        long = [i for i, text in enumerate(texts) if len(text) > first_try]
        table = self._batch([text if len(text) <= first_try else "" for text in texts], most)
        if not long:
            return table
        ids = self.reader.first_of([texts[i] for i in long], most, first_try)
        return replaced(table, np.array(long), _table(ids, most))

    def pieces_of_words(self, words: Sequence[str], limit: int | None = None) -> Ragged:
        """Word-piece ids of words, each as if it stood inside a sentence; as for `pieces`."""
        if self._marks_sentences:
            words = [word if word.startswith(" ") else f" {word}" for word in words]
        return self.pieces(words, limit)

    @cached_property
    def _marks_sentences(self) -> bool:
        """Whether a word has other pieces at the start of a text than after a blank."""
        first, inside = self._batch(["a", " a"]).arrays()
        return bool(first.tolist() != inside.tolist())

    def pieces_with_offsets(self, texts: Sequence[str]) -> tuple[Ragged, Ragged, Ragged]:
        """Word-piece ids of each text, without special tokens, their offsets, and their words.

        The second table holds the ``(start, end)`` of each piece in the characters of its text,
        ``(n_pieces, 2)`` int64, with the marks that belong to its last character, and without
        white space around: a piece of nothing else is empty. The third holds the number of each
        piece's word in its text, counted from 0, int64; an empty piece between words has -1.
        """
        parts = (_located_all(self, part) for part in _parts(texts))
        lengths, *columns = map(np.concatenate, zip(*parts, strict=True))
        ids, places, words = (Ragged.of(values, lengths) for values in columns)
        return ids, places, words

    def _located(self, text: str, encoding: Any) -> tuple[Any, Any]:
        """The place of each piece of a text, and its word."""
        if isinstance(self.reader, Skimmer):  # white space is part of no piece
            return with_marks(text, encoding.offsets), encoding.word_ids
        return located(text, encoding.offsets, self._is_blank[encoding.ids])

    def _batch(self, texts: Sequence[str], most: int | None = None) -> Ragged:
        # which looks for no places in the text
        encode = partial(self.backend.encode_batch_fast, add_special_tokens=False)
        encoded = computed_ahead(encode, _parts(texts))
        tables = [_table([e.ids for e in part], most) for part in encoded]
        if len(tables) == 1:
            return tables[0]
        lengths = np.concatenate([table.lengths for table in tables])
        return Ragged.of(np.concatenate([table.values for table in tables]), lengths)


def _parts(texts: Sequence[str]) -> list[list[str]]:
    """Texts to encode at once, one part after another; one without texts where there are none."""
    starts = range(0, max(1, len(texts)), _TOGETHER)
    return [list(texts[start : start + _TOGETHER]) for start in starts]


def _located_all(tokenizer: TextTokenizer, texts: list[str]) -> tuple[Array, ...]:
    """The number of pieces of each text, and of each piece its id, its place and its word."""
    encodings = tokenizer.backend.encode_batch(texts, add_special_tokens=False)
    found = [tokenizer._located(text, e) for text, e in zip(texts, encodings, strict=True)]
    return (
        np.fromiter(map(len, encodings), np.int64, len(encodings)),
        np.fromiter(chain.from_iterable(e.ids for e in encodings), np.int32),
        np.array([place for spans, _ in found for place in spans], np.int64).reshape(-1, 2),
        np.fromiter(chain.from_iterable(words for _, words in found), np.int64),
    )


def _table(ids: Sequence[Sequence[int]], most: int | None = None) -> Ragged:
    """Rows of these ids, of each as many as ``most`` says."""
    ids = [row[:most] for row in ids]
    lengths = np.fromiter(map(len, ids), np.int64, len(ids))
    flat = np.fromiter(chain.from_iterable(ids), np.int32, int(lengths.sum()))
    return Ragged.of(flat, lengths)


_READERS: dict[type, Any] = {models.BPE: BytePrefix, models.Unigram: WordPrefix}


class EncodedTexts(NamedTuple):
    """Token rows of texts or pairs, one for each window.

    The windows are those of the text that is cut into windows: of a pair the second one. A text
    that is not cut into windows has one, of what was kept of it.
    """

    tokens: TokenTable
    windows: Windows
    n_truncated: int  # samples of which something was left out
    places: Ragged | None = None  # of fields: field and piece number of each token, -1 for none


def encode_texts(
    tokenizer: TextTokenizer,
    first: Sequence[str],
    second: Sequence[str] | None,
    max_length: int,
    long_text: LongText,
) -> EncodedTexts:
    """Token rows of texts or pairs, with what is too long cut or in windows.

    ``truncate`` shortens a pair longest first, as transformers does; ``head_tail`` keeps the
    first quarter and the last three quarters of what fits (Sun et al. 2019, "How to fine-tune
    BERT for text classification?"); ``windows`` gives a long text several rows that overlap.
    In a pair the first text then keeps half the row at the most, and the windows run over the
    second.
    """
    max_tokens = max_length - tokenizer.n_specials(pair=second is not None)
    limit = max_tokens if long_text == "truncate" else None
    if second is None:
        a, b = tokenizer.pieces(first, limit), None
    else:
        a, b = _pair_pieces(tokenizer, first, second, limit)
    shorten = {"truncate": _truncate, "head_tail": _head_tail, "windows": _windows}[long_text]
    a, b, windows, n_truncated = shorten(a, b, max_tokens)
    return EncodedTexts(assemble(tokenizer, a, b), windows, n_truncated)


def _pair_pieces(
    tokenizer: TextTokenizer, first: Sequence[str], second: Sequence[str], limit: int | None
) -> tuple[Ragged, Ragged]:
    """Ids of both texts, read beyond ``limit`` as far as it takes to know the longer one.

    Where neither fits into an odd number of places, the longer text gets one place more.
    """
    a, b = tokenizer.pieces(first, limit), tokenizer.pieces(second, limit)
    if limit is None or limit % 2 == 0 or limit > _MAX_TIED:
        return a, b
    tied = np.flatnonzero((a.lengths > limit) & (b.lengths > limit))
    if not len(tied):
        return a, b
    firsts, seconds = ([side[i] for i in tied.tolist()] for side in (first, second))
    more = _pair_pieces(tokenizer, firsts, seconds, 4 * limit + 1)
    return replaced(a, tied, more[0]), replaced(b, tied, more[1])


def replaced(table: Ragged, rows: IntArray, new: Ragged) -> Ragged:
    """The table with its ``rows`` replaced by those of ``new``."""
    both = Ragged(
        np.concatenate([table.values, new.values]),
        np.concatenate([table.starts, table.starts[-1] + new.starts[1:]]),
    )
    order = np.arange(len(table))
    order[rows] = len(table) + np.arange(len(rows))
    return both.take(order)


_Shortened = tuple[Ragged, Ragged | None, Windows, int]


def _truncate(a: Ragged, b: Ragged | None, max_tokens: int) -> _Shortened:
    return _shorten(a, b, max_tokens, Ragged.truncate)


def _head_tail(a: Ragged, b: Ragged | None, max_tokens: int) -> _Shortened:
    return _shorten(a, b, max_tokens, _ends)


def _shorten(
    a: Ragged, b: Ragged | None, max_tokens: int, keep: Callable[[Ragged, IntArray], Ragged]
) -> _Shortened:
    """Both texts, each cut to its share of ``max_tokens``."""
    if b is None:
        kept = np.minimum(a.lengths, max_tokens)
        return keep(a, kept), None, Windows.whole(kept), int(np.count_nonzero(kept < a.lengths))
    keep_a, keep_b = _shares(a, b, max_tokens)
    n_truncated = int(((keep_a < a.lengths) | (keep_b < b.lengths)).sum())
    return keep(a, keep_a), keep(b, keep_b), Windows.whole(keep_b), n_truncated


def _ends(table: Ragged, keep: IntArray) -> Ragged:
    """A quarter of ``keep`` from the start of each row, the rest from its end."""
    rows, head = np.arange(len(table)), keep // 4
    tail = keep - head
    ends = table.cut(rows, table.lengths - tail, tail)
    return interleave([table.truncate(head), ends])


def _windows(a: Ragged, b: Ragged | None, max_tokens: int) -> _Shortened:
    if b is None:
        windows = Windows.overlapping(a.lengths, np.full(len(a), max_tokens))
        return a.windows(windows), None, windows, 0
    keep_a = np.minimum(a.lengths, np.maximum(max_tokens // 2, max_tokens - b.lengths))
    windows = Windows.overlapping(b.lengths, max_tokens - keep_a)
    n_truncated = int((keep_a < a.lengths).sum())
    return a.truncate(keep_a).take(windows.samples), b.windows(windows), windows, n_truncated


def _shares(a: Ragged, b: Ragged, max_tokens: int) -> tuple[IntArray, IntArray]:
    """How many pieces of each text are kept; the longer text is cut first."""
    short, long = np.minimum(a.lengths, b.lengths), np.maximum(a.lengths, b.lengths)
    even = np.minimum(short, max_tokens // 2)  # what the shorter one may keep when both are long
    rest = np.minimum(long, max_tokens - even)
    first_is_long = a.lengths > b.lengths
    return np.where(first_is_long, rest, even), np.where(first_is_long, even, rest)


def assemble(tokenizer: TextTokenizer, a: Ragged, b: Ragged | None) -> TokenTable:
    """Token rows of texts, or of pairs of texts, with special tokens."""
    first = [constant(tokenizer.prefix, len(a)), a]
    suffix = constant(tokenizer.suffix, len(a))
    if b is None:
        ids = interleave([*first, suffix])
        return TokenTable(ids, ids.lengths)
    first += [constant(tokenizer.middle, len(a))]
    second = np.sum([part.lengths for part in first], axis=0)
    return TokenTable(interleave([*first, b, suffix]), second)


def constant(ids: tuple[int, ...], n_rows: int) -> Ragged:
    """The same ids in each row."""
    return Ragged(np.array(ids * n_rows, np.int32), np.arange(n_rows + 1) * len(ids))


def interleave(parts: Sequence[Ragged]) -> Ragged:
    """For each row, the rows of all parts one after another."""
    if len(parts[0]) == 1:
        joined = np.concatenate([part.values for part in parts])
        return Ragged(joined, np.array([0, len(joined)]))
    lengths = np.stack([part.lengths for part in parts])  # (n_parts, n_rows)
    values = parts[0].values
    empty = np.empty((int(lengths.sum()), *values.shape[1:]), values.dtype)
    whole = Ragged.of(empty, lengths.sum(axis=0))
    offsets = whole.starts[:-1] + np.cumsum(lengths, axis=0) - lengths
    for part, offset in zip(parts, offsets, strict=True):
        where = np.repeat(offset - part.starts[:-1], part.lengths)
        whole.values[where + np.arange(len(where))] = part.values
    return whole
