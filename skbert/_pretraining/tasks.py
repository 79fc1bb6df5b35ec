"""The tasks of `BertPretrainer`: training rows and losses.

Masks and pairs are drawn in `masking`, and texts to complete are encoded in `completion`. Depends
on ``_core``; knows no estimator.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from skbert._arrays import Array, IntArray, arange_within
from skbert._core.items import Head, Items
from skbert._core.scores import softmax
from skbert._core.task import Batch
from skbert._core.text.tokens import Ragged, TextTokenizer, TokenTable, assemble, encode_texts
from skbert._core.text.windows import Windows
from skbert._pretraining.completion import encode_masked, encode_openings
from skbert._pretraining.masking import Vocabulary
from skbert._validation.documents import Documents
from skbert.exceptions import InputError

__all__ = ["MaskedWords", "NextSentence", "NextWord", "WordsAndSentences"]


@dataclass(frozen=True)
class MaskedWords:
    """Predict the masked word pieces. Targets are their ids, ragged, one per selected token."""

    max_length: int

    def encode(self, X: Documents, y: Any, tokenizer: TextTokenizer) -> Items:
        """Return rows cut end to end from each text, to mask; without ``y`` texts with [MASK]."""
        if y is None:
            return encode_masked(X.texts(), tokenizer, self.max_length)
        items = _rows_of_text(X.texts(), tokenizer, self.max_length)
        return items.take(_maskable(tokenizer, items))

    def head(self) -> Head:
        """Return a head with a logit per word piece of the vocabulary, for each selected token."""
        return Head("masked language modelling", 0, reads="selected tokens", fresh=False)

    def loss(self, logits: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the cross-entropy; each selected token has the same weight."""
        return _of_words(logits, batch.targets)

    def decode(self, outputs: Ragged, items: Items) -> Array:
        """Return logits ``(n_selected, n_pieces)`` of each sample, which is one item."""
        del items
        return outputs.arrays()


@dataclass(frozen=True)
class NextWord(MaskedWords):
    """Predict each word piece from those before it. Targets are ids, one per selected token."""

    def encode(self, X: Documents, y: Any, tokenizer: TextTokenizer) -> Items:
        """Return rows cut end to end from each text; the target of a token is the next one.

        Without ``y`` these are texts to continue, with the last token of each selected.
        """
        if y is None:
            return encode_openings(X.texts(), tokenizer, self.max_length)
        items = _rows_of_text(X.texts(), tokenizer, self.max_length)
        goes_on = np.append(items.samples[1:] == items.samples[:-1], False)
        kept = _maskable(tokenizer, items)
        items = items.take(kept)
        table, rows = items.tokens.ids, np.arange(len(items))
        counts = table.lengths - 1 - goes_on[kept]  # the end of a row within a text is no target
        targets = table.cut(rows, np.ones(len(rows), np.int64), counts)
        return Items(
            items.tokens, items.rows, items.samples, items.weights,
            Ragged(targets.values.astype(np.int64), targets.starts),
            selected_tokens=Ragged(targets.index_in_row, targets.starts), is_counted_alone=True,
        )  # fmt: skip

    def head(self) -> Head:
        """Return a head with a logit per word piece; a token sees none after it."""
        return Head("causal language modelling", 0, reads="selected tokens", fresh=False)


@dataclass(frozen=True)
class NextSentence:
    """Predict whether a text follows another. Targets are 0 if so, else 1, ``(n_items,)``."""

    max_length: int

    def encode(self, X: Any, y: Any, tokenizer: TextTokenizer) -> Items:
        """Return runs of sentences to make pairs of; without ``y`` pairs of texts as they are."""
        if y is None:
            rows = encode_texts(tokenizer, X.first, X.second, self.max_length, "truncate")
            return Items.one_row_each(rows, None)
        return _runs_of_sentences(X, tokenizer, self.max_length)

    def head(self) -> Head:
        """Return a head with two logits per row: it follows, it does not."""
        return Head("next sentence prediction", 2, fresh=False)

    def loss(self, logits: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the cross-entropy."""
        assert batch.targets is not None
        return F.cross_entropy(logits, batch.targets, reduction="sum"), batch.weights.sum()

    def decode(self, outputs: Ragged, items: Items) -> Array:
        """Return the probability that the second text follows the first, ``(n_samples,)``."""
        del items
        probabilities: Array = softmax(outputs.values, axis=1)[:, 0]
        return probabilities


@dataclass(frozen=True)
class WordsAndSentences(NextSentence):
    """Predict masked word pieces and whether one part follows the other.

    The targets of an item are 0 or 1 for its pair, then the ids of its selected tokens.
    """

    def head(self) -> Head:
        """Return both heads beside each other."""
        return Head("pre-training", 0, reads="selected tokens and rows", fresh=False)

    def loss(self, logits: Any, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the sum of both cross-entropies; a pair has the weight of its item."""
        assert batch.targets is not None
        assert batch.selected_per_item is not None
        words, pairs = logits
        counts = batch.selected_per_item + 1
        first = torch.cumsum(counts, 0) - counts
        place = torch.arange(len(words), device=words.device)
        item = torch.searchsorted(torch.cumsum(batch.selected_per_item, 0), place, right=True)
        loss, weight = _of_words(words, batch.targets[place + item + 1])
        losses = F.cross_entropy(pairs, batch.targets[first], reduction="none")
        return loss + (losses * batch.weights).sum(), weight


def _of_words(
    logits: torch.Tensor, targets: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    assert targets is not None
    return F.cross_entropy(logits, targets, reduction="sum"), logits.new_tensor(len(targets))


# --- rows to learn from --------------------------------------------------------------------------


def _rows_of_text(texts: list[str], tokenizer: TextTokenizer, max_length: int) -> Items:
    """Return rows cut end to end from each text; the last one is as long as the rest."""
    max_tokens = max_length - tokenizer.n_specials(pair=False)
    pieces = tokenizer.pieces(texts)
    windows = Windows.end_to_end(pieces.lengths, max_tokens)
    tokens = assemble(tokenizer, pieces.windows(windows), None)
    return _items(tokens, windows.samples)


def _items(tokens: TokenTable, samples: IntArray, **more: Any) -> Items:
    """Return one item per row; a step counts rows, not texts."""
    return Items(
        tokens,
        np.arange(len(tokens) + 1),
        samples,
        np.ones(len(tokens)),
        is_counted_alone=True,
        **more,
    )


def _maskable(tokenizer: TextTokenizer, items: Items) -> IntArray:
    """Return the numbers of the items that hold a piece which can be masked."""
    table = items.tokens.ids
    can_mask = ~Vocabulary.of(tokenizer).special[table.values]
    usable = np.flatnonzero(np.logical_or.reduceat(can_mask, table.starts[:-1]))
    if not len(usable):
        raise InputError(
            "No row of X holds a word piece that could be masked: the texts are empty, or "
            "in characters that the model's vocabulary does not have. Look at how X was read, or "
            "choose a model that knows its language."
        )
    return usable


def _runs_of_sentences(X: Documents, tokenizer: TextTokenizer, max_length: int) -> Items:
    """Return runs of neighbouring sentences, as many as fit a row, at least two.

    A sentence is cut to half of the row. The place of a token is the number of its sentence in
    the row, -1 for special tokens.
    """
    max_tokens = max_length - tokenizer.n_specials(pair=True)
    documents = X.sentences()
    owner = np.repeat(np.arange(len(documents)), [len(sentences) for sentences in documents])
    pieces = tokenizer.pieces(
        [text for sentences in documents for text in sentences], max_tokens // 2
    )
    cut = np.unique(owner[pieces.lengths > max_tokens // 2])
    can_mask = ~Vocabulary.of(tokenizer).special[pieces.values]
    n_open = np.diff(np.concatenate([[0], np.cumsum(can_mask)])[pieces.starts])
    read = np.flatnonzero(n_open)
    pieces = pieces.truncate(np.minimum(pieces.lengths, max_tokens // 2)).take(read)
    counts = np.bincount(owner[read], minlength=len(documents))
    samples, firsts, ends = _runs(pieces.lengths, counts, max_tokens)
    sentences = Ragged(np.arange(len(pieces)), np.arange(len(pieces) + 1))
    which = sentences.values[:0]
    which = np.concatenate([which, *map(np.arange, firsts, ends)]).astype(np.int64)
    split = pieces.take(which)
    bounds = np.concatenate([[0], np.cumsum(ends - firsts)])
    tokens = assemble(tokenizer, Ragged(split.values, split.starts[bounds]), None)
    number = arange_within(ends - firsts)
    places = np.full(len(tokens.ids.values), -1)
    special = len(tokenizer.prefix) + len(tokenizer.suffix)
    shift = len(tokenizer.prefix) + special * np.repeat(np.arange(len(tokens)), np.diff(
        split.starts[bounds]))  # fmt: skip
    places[np.arange(len(split.values)) + shift] = np.repeat(number, split.lengths)
    return _items(tokens, samples, places=Ragged(places, tokens.ids.starts), n_truncated=len(cut))


def _runs(
    sizes: IntArray, counts: IntArray, max_tokens: int
) -> tuple[IntArray, IntArray, IntArray]:
    """Return document, first sentence and end of each run; one sentence alone makes no run.

    A last sentence that would be alone gets the one before it too, which is then in two runs.
    """
    starts = np.concatenate([[0], np.cumsum(counts)])
    runs: list[tuple[int, int, int]] = []
    for document, (first, last) in enumerate(pairwise(starts.tolist())):
        if last - first < 2:
            continue
        begin, total = first, 0
        for at in range(first, last):
            if total + sizes[at] > max_tokens:
                runs.append((document, begin, at))
                begin, total = at, 0
            total += int(sizes[at])
        runs.append((document, min(begin, last - 2), last))
    if not runs:
        raise InputError(
            "No row of X holds two sentences with word pieces that the model's vocabulary has. "
            "Look at how X was read, or choose a model that knows its language."
        )
    documents, firsts, ends = np.array(runs).T
    return documents, firsts, ends
