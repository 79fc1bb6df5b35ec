"""What pre-training is to the engine: the tasks of `BertPretrainer`.

Masks and pairs are drawn in `masking`, texts to complete are read in ``_completion``; here are
the rows to learn from, and losses. Depends on numpy, torch and ``_core``; knows no estimator.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from scipy.special import softmax
from torch.nn import functional as F

from skbert._arrays import Array, IntArray, numbers_within
from skbert._core.task import Batch, Head, Items
from skbert._core.text.tokens import Ragged, TextTokenizer, TokenTable, assemble, encode_texts
from skbert._core.text.windows import Windows
from skbert._pretraining.completion import open_ended, with_masks
from skbert._pretraining.masking import Vocabulary
from skbert._validation.documents import Documents
from skbert.exceptions import InputError

__all__ = ["MaskedWords", "NextSentence", "NextWord", "WordsAndSentences"]


@dataclass(frozen=True)
class MaskedWords:
    """The word pieces that are hidden. Targets are their ids, ragged, one per chosen token."""

    max_length: int

    def encode(self, X: Documents, y: Any, tokenizer: TextTokenizer) -> Items:
        """Rows to mask, cut end to end from each text; without ``y`` texts with [MASK] in them."""
        if y is None:
            return with_masks(X.texts(), tokenizer, self.max_length)
        return _rows_of_text(X.texts(), tokenizer, self.max_length)

    def head(self) -> Head:
        """A logit per word piece of the vocabulary, for each chosen token."""
        return Head("masked language modelling", 0, reads="chosen", fresh=False)

    def loss(self, logits: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Cross-entropy; each chosen token weighs the same."""
        return _of_words(logits, batch.targets)

    def decode(self, outputs: Ragged, items: Items) -> Array:
        """Logits ``(n_chosen, n_pieces)`` of each sample, which is one item."""
        del items
        return outputs.arrays()


@dataclass(frozen=True)
class NextWord(MaskedWords):
    """Each word piece from those before it. Targets are ids, ragged, one per chosen token."""

    def encode(self, X: Documents, y: Any, tokenizer: TextTokenizer) -> Items:
        """Rows cut end to end from each text, with what comes next as the target of each token.

        Without ``y`` texts to go on from, of each the last token chosen.
        """
        if y is None:
            return open_ended(X.texts(), tokenizer, self.max_length)
        items = _rows_of_text(X.texts(), tokenizer, self.max_length)
        table, rows = items.tokens.ids, np.arange(len(items))
        goes_on = np.append(items.samples[1:] == items.samples[:-1], False)
        counts = table.lengths - 1 - goes_on  # that a row ends before its text does is no lesson
        targets = table.cut(rows, np.ones(len(rows), np.int64), counts)
        return Items(
            items.tokens, items.rows, items.samples, items.weights,
            Ragged(targets.values.astype(np.int64), targets.starts),
            chosen=Ragged(targets.numbers, targets.starts), apart=True,
        )  # fmt: skip

    def head(self) -> Head:
        """A logit per word piece, for each chosen token, which sees none after it."""
        return Head("causal language modelling", 0, reads="chosen", fresh=False)


@dataclass(frozen=True)
class NextSentence:
    """Whether a text follows another. Targets are 0 if so, else 1, ``(n_items,)`` int64."""

    max_length: int

    def encode(self, X: Any, y: Any, tokenizer: TextTokenizer) -> Items:
        """Runs of sentences to make pairs of; without ``y`` pairs of texts as they are."""
        if y is None:
            rows = encode_texts(tokenizer, X.first, X.second, self.max_length, "truncate")
            return Items.one_row_each(rows, None)
        return _runs_of_sentences(X, tokenizer, self.max_length)

    def head(self) -> Head:
        """Two logits per row: it follows, it does not."""
        return Head("next sentence prediction", 2, fresh=False)

    def loss(self, logits: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Cross-entropy."""
        assert batch.targets is not None
        return F.cross_entropy(logits, batch.targets, reduction="sum"), batch.weights.sum()

    def decode(self, outputs: Ragged, items: Items) -> Array:
        """Probability that the second text follows the first, ``(n_samples,)``."""
        del items
        probabilities: Array = softmax(outputs.values, axis=1)[:, 0]
        return probabilities


@dataclass(frozen=True)
class WordsAndSentences(NextSentence):
    """Hidden word pieces and pairs at once.

    The targets of an item are 0 or 1 for its pair, then the ids of its chosen tokens.
    """

    def head(self) -> Head:
        """Both heads beside each other."""
        return Head("pre-training", 0, reads="chosen and rows", fresh=False)

    def loss(self, logits: Any, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Sum of both cross-entropies; a pair weighs the weight of its item."""
        assert batch.targets is not None
        assert batch.chosen_per_item is not None
        words, pairs = logits
        counts = batch.chosen_per_item + 1
        first = torch.cumsum(counts, 0) - counts
        place = torch.arange(len(words), device=words.device)
        item = torch.searchsorted(torch.cumsum(batch.chosen_per_item, 0), place, right=True)
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
    """Rows of each text end to end, the last as long as what is left."""
    room = max_length - tokenizer.specials(pair=False)
    pieces = tokenizer.pieces(texts)
    windows = Windows.end_to_end(pieces.lengths, room)
    tokens = assemble(tokenizer, pieces.windows(windows), None)
    return _that_teach(tokenizer, _items(tokens, windows.samples))


def _items(tokens: TokenTable, samples: IntArray, **more: Any) -> Items:
    """One item per row, which counts by itself in a step."""
    return Items(
        tokens, np.arange(len(tokens) + 1), samples, np.ones(len(tokens)), apart=True, **more
    )


def _that_teach(tokenizer: TextTokenizer, items: Items) -> Items:
    """The items that hold a piece which can be masked."""
    table = items.tokens.ids
    open_ = ~Vocabulary.of(tokenizer).special[table.values]
    teach = np.flatnonzero(np.logical_or.reduceat(open_, table.starts[:-1]))
    if not len(teach):
        raise InputError(
            "No row of X holds a word piece that could be masked: the texts are empty, or of "
            "characters that the model's vocabulary does not know. Look at how X was read, or "
            "choose a model that knows its language."
        )
    return items.take(teach)


def _runs_of_sentences(X: Documents, tokenizer: TextTokenizer, max_length: int) -> Items:
    """Neighbouring sentences of a document, as many as fit a row, at least two.

    A sentence keeps half the room at the most. The place of a token is the number of its sentence
    in the row, -1 for special tokens.
    """
    room = max_length - tokenizer.specials(pair=True)
    documents = X.sentences()
    owner = np.repeat(np.arange(len(documents)), [len(found) for found in documents])
    pieces = tokenizer.pieces([text for found in documents for text in found], room // 2)
    cut = np.unique(owner[pieces.lengths > room // 2])
    open_ = ~Vocabulary.of(tokenizer).special[pieces.values]
    n_open = np.diff(np.concatenate([[0], np.cumsum(open_)])[pieces.starts])
    read = np.flatnonzero(n_open)
    pieces = pieces.heads(np.minimum(pieces.lengths, room // 2)).take(read)
    counts = np.bincount(owner[read], minlength=len(documents))
    samples, firsts, ends = _runs(pieces.lengths, counts, room)
    sentences = Ragged(np.arange(len(pieces)), np.arange(len(pieces) + 1))
    which = sentences.values[:0]
    which = np.concatenate([which, *map(np.arange, firsts, ends)]).astype(np.int64)
    split = pieces.take(which)
    bounds = np.concatenate([[0], np.cumsum(ends - firsts)])
    tokens = assemble(tokenizer, Ragged(split.values, split.starts[bounds]), None)
    number = numbers_within(ends - firsts)
    places = np.full(len(tokens.ids.values), -1)
    special = len(tokenizer.prefix) + len(tokenizer.suffix)
    shift = len(tokenizer.prefix) + special * np.repeat(np.arange(len(tokens)), np.diff(
        split.starts[bounds]))  # fmt: skip
    places[np.arange(len(split.values)) + shift] = np.repeat(number, split.lengths)
    return _items(tokens, samples, places=Ragged(places, tokens.ids.starts), n_truncated=len(cut))


def _runs(sizes: IntArray, counts: IntArray, room: int) -> tuple[IntArray, IntArray, IntArray]:
    """Document, first sentence and end of each run, none of a document with one sentence.

    A last sentence that would be alone is joined by the one before it, which is then in two runs.
    """
    starts = np.concatenate([[0], np.cumsum(counts)])
    found: list[tuple[int, int, int]] = []
    for document, (first, last) in enumerate(pairwise(starts.tolist())):
        if last - first < 2:
            continue
        begin, total = first, 0
        for at in range(first, last):
            if total + sizes[at] > room:
                found.append((document, begin, at))
                begin, total = at, 0
            total += int(sizes[at])
        found.append((document, min(begin, last - 2), last))
    if not found:
        raise InputError(
            "No row of X holds two sentences with word pieces that the model's vocabulary knows. "
            "Look at how X was read, or choose a model that knows its language."
        )
    documents, firsts, ends = np.array(found).T
    return documents, firsts, ends
