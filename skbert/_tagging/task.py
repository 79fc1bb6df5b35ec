"""The task of the tagger: one tag for each word, of rows of words or of texts, in windows.

Depends on ``_core``, `schemes` and the checked X. Tags are codes here; their names are in the
estimator's ``classes_``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from skbert._arrays import Array, IntArray
from skbert._core.items import Head, Items
from skbert._core.text.tokens import Ragged, TextTokenizer, assemble
from skbert._core.text.windows import is_read_here, mean_by_place, whole_word_windows
from skbert._tagging.schemes import CharacterSpans, whole_words
from skbert._validation.entities import Entity
from skbert._validation.texts import Texts
from skbert._validation.words import WordRows
from skbert.exceptions import InputError

if TYPE_CHECKING:
    import torch

    from skbert._core.task import Batch

__all__ = ["ScoredWords", "WordTags", "widened"]

_LONGEST_WORD = 16  # pieces of a word that are read
_NO_LABEL = -100  # target of a token that is not learned from
# With many words the probe's weights grow large, which harms the encoder: above 2,000 words this
# penalty keeps them small.
_RIDGE = 2000.0**-2


class ScoredWords(NamedTuple):
    """The outputs for the words of one row."""

    logits: Array  # (n_words, n_tags)
    places: IntArray  # (n_words, 2): start and end of each word, in words or in characters


@dataclass(frozen=True)
class WordTags:
    """Predict one of ``n_tags`` tags per word. Targets are codes, -100 for no tag.

    A row that is too long is read in windows of whole words that overlap by a quarter, and each
    word is read where it is farthest from both ends of a window. The places of a token are the
    number of its word in its row, or -1 where that word is not read here, its start and its end.
    """

    n_tags: int
    max_length: int
    all_pieces: bool = False  # read every piece of a word, not only the first

    def encode(self, X: WordRows | Texts, y: Any, tokenizer: TextTokenizer) -> Items:
        """Return one item per row, or per window of a long one.

        ``y`` holds an array of codes for each row, or is `CharacterSpans`. With it, windows
        without a target are left out.
        """
        max_tokens = self.max_length - tokenizer.n_specials(pair=False)
        limit = max(1, min(_LONGEST_WORD, max_tokens // 2))
        pieces, rows, numbers = (
            _cut_rows(X, tokenizer, limit) if isinstance(X, WordRows)
            else _cut_texts(X, tokenizer, limit)
        )  # fmt: skip
        windows = whole_word_windows(pieces.starts, rows.starts, max_tokens)
        words = Ragged(np.arange(len(rows.values)), rows.starts).windows(windows)
        split = pieces.take(words.values)
        inner = Ragged(split.values, split.starts[words.starts])
        tokens = assemble(tokenizer, inner, None)
        first = tokens.ids.starts[:-1] + len(tokenizer.prefix)
        at = np.repeat(first - inner.starts[:-1], inner.lengths) + np.arange(len(inner.values))
        read = np.repeat(is_read_here(windows, pieces.starts, rows.starts), split.lengths)
        if not self.all_pieces:
            read &= np.isin(np.arange(len(read)), split.starts)
        word = np.repeat(words.values, split.lengths)
        places = np.full((len(tokens.ids.values), 3), -1)
        places[at, 0] = np.where(read, numbers[word], -1)
        places[at, 1:] = rows.values[word]
        items = Items(
            tokens, np.arange(len(tokens) + 1), windows.samples, np.ones(len(tokens)),
            places=Ragged(places, tokens.ids.starts),
        )  # fmt: skip
        return items if y is None else _with_targets(items, y, _words_alone(rows, numbers))

    def head(self) -> Head:
        """Return a head with one logit per tag, for every token."""
        return Head("token classification", self.n_tags, reads="tokens", ridge=_RIDGE)

    def loss(self, logits: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the cross-entropy; each labelled token has the weight of its row."""
        import torch
        from torch.nn import functional as F

        assert batch.targets is not None
        losses = F.cross_entropy(logits, batch.targets, reduction="none", ignore_index=_NO_LABEL)
        counts = batch.tokens_per_item
        weights = torch.repeat_interleave(batch.weights, counts, output_size=len(logits))
        return (losses * weights).sum(), (weights * (batch.targets != _NO_LABEL)).sum()

    def decode(self, outputs: Ragged, items: Items) -> Array:
        """Return `ScoredWords` for every sample; several pieces of a word are averaged."""
        assert items.places is not None
        samples, owner = np.unique(items.samples, return_inverse=True)
        owner = np.repeat(owner, items.sizes)
        means, first = mean_by_place(outputs.values, owner, items.places.values[:, 0])
        n_words = np.bincount(owner[first], minlength=len(samples))
        logits = Ragged.of(means, n_words)
        places = Ragged.of(items.places.values[first, 1:], n_words)
        words = np.empty(len(samples), object)
        for row in range(len(samples)):
            words[row] = ScoredWords(logits[row], places[row])
        return words


def widened(
    spans: Sequence[list[Entity]], X: Texts, tokenizer: TextTokenizer
) -> list[list[Entity]]:
    """Return the spans of each text with whole words, as they are learned and predicted."""
    _, rows, numbers = _cut_texts(X, tokenizer, _LONGEST_WORD)
    return whole_words(spans, [*_words_alone(rows, numbers).arrays()])


# The pieces of each word, the (start, end) of each row's words, and their numbers in the row: -1
# for a gap between words, which has pieces but no tag.
_Cut = tuple[Ragged, Ragged, IntArray]


def _cut_rows(X: WordRows, tokenizer: TextTokenizer, limit: int) -> _Cut:
    """Return the pieces of words; a word without any piece becomes the unknown one."""
    flat = list(chain.from_iterable(X.words))
    codes = {word: code for code, word in enumerate(dict.fromkeys(flat))}
    pieces = tokenizer.pieces_of_words(list(codes), limit)
    unknown = tokenizer.unk_id if tokenizer.unk_id is not None else tokenizer.suffix[-1]
    pieces = Ragged.of(
        np.append(pieces.values, unknown).astype(np.int32), np.append(pieces.lengths, 1)
    )
    which = np.where(pieces.lengths[:-1] > 0, np.arange(len(codes)), len(codes))
    which = which[np.fromiter((codes[word] for word in flat), np.int64, len(flat))]
    n_words = np.fromiter(map(len, X.words), np.int64, len(X))
    starts = np.concatenate([np.arange(n) for n in n_words.tolist()])
    places = np.stack([starts, starts + 1], axis=1)
    pieces = pieces.truncate(np.minimum(pieces.lengths, limit))
    return pieces.take(which), Ragged.of(places, n_words), starts


def _cut_texts(X: Texts, tokenizer: TextTokenizer, limit: int) -> _Cut:
    """Return the pieces of the words into which the tokenizer splits texts."""
    ids, spans, words = tokenizer.pieces_with_offsets(X.first)
    row = np.repeat(np.arange(len(X)), ids.lengths)
    is_new = np.ones(len(row), bool)
    is_new[1:] = (np.diff(words.values) != 0) | (np.diff(row) != 0)
    starts = np.flatnonzero(is_new)
    pieces = Ragged(ids.values, np.append(starts, len(row)))
    places = np.stack([spans.values[starts, 0], spans.values[pieces.starts[1:] - 1, 1]], axis=1)
    rows = Ragged.of(places, np.bincount(row[starts], minlength=len(X)))
    pieces = pieces.truncate(np.minimum(pieces.lengths, limit))
    return pieces, rows, words.values[starts]


def _words_alone(rows: Ragged, numbers: IntArray) -> Ragged:
    """Return the places of each row's words without the gaps between them."""
    is_word = numbers >= 0
    row = np.repeat(np.arange(len(rows)), rows.lengths)[is_word]
    return Ragged.of(rows.values[is_word], np.bincount(row, minlength=len(rows)))


def _with_targets(items: Items, y: Any, rows: Ragged) -> Items:
    """Return the items with the codes of their words as targets; only those that have some."""
    codes = y
    if isinstance(y, CharacterSpans):
        codes = y.codes([rows[row] for row in range(len(rows))], warns=True)
    assert items.places is not None
    numbers = items.places.values[:, 0]
    read = numbers >= 0
    word = np.repeat(rows.starts[items.samples], items.sizes) + numbers
    targets = np.full(len(read), _NO_LABEL)
    targets[read] = np.concatenate(codes)[word[read]]
    has_target = np.logical_or.reduceat(read, items.places.starts[:-1])
    if not has_target.any():
        raise InputError("No row of X holds a word, so there is nothing to learn from.")
    items = replace(items, targets=Ragged(targets, items.places.starts))
    return items.take(np.flatnonzero(has_target))
