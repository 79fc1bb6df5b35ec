"""What is drawn anew for each pass over the texts: which word pieces to mask, which pairs to make.

Everything works on the flat token table at once. Depends on numpy and ``_core``; knows no model
and no estimator.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from skbert._arrays import BoolArray, IntArray
from skbert._core.items import Items
from skbert._core.text.tokens import Ragged, TextTokenizer, TokenTable, assemble
from skbert.exceptions import InputError, ModelError

__all__ = ["Vocabulary", "mask", "pair", "pair_and_mask"]

_MASKED, _RANDOM = 0.8, 0.1  # shares of the selected pieces; the rest stay as they are
_LONGEST_WORD = 16  # pieces that are selected together; longer ones are of scripts without blanks


class Vocabulary(NamedTuple):
    """What masking needs to know about the word pieces; arrays have an entry for each id."""

    mask: int
    end: int
    special: BoolArray  # [CLS], [UNK] and so on: never masked, never drawn
    is_continuation: BoolArray  # continues a word

    @classmethod
    def of(cls, tokenizer: TextTokenizer) -> Vocabulary:
        """Return the vocabulary of a tokenizer."""
        backend, mask_id = tokenizer.backend, tokenizer.mask_id
        if mask_id is None:
            raise ModelError(
                "The model's tokenizer has no mask token, so nothing can be masked. Choose a "
                "model whose vocabulary has one."
            )
        ids = backend.get_vocab(with_added_tokens=True).values()
        added = backend.get_added_tokens_decoder()
        special = np.ones(max(ids) + 1, bool)
        special[list(ids)] = False
        special[[code for code, token in added.items() if token.special]] = True
        if tokenizer.unk_id is not None:
            special[tokenizer.unk_id] = True
        return cls(mask_id, tokenizer.suffix[-1], special, tokenizer.is_continuation)


def mask(
    tokenizer: TextTokenizer,
    items: Items,
    rng: np.random.Generator,
    *,
    fraction: float,
    whole_words: bool,
) -> Items:
    """Return the items with some of their word pieces masked, which become the targets.

    In each row ``fraction`` of the pieces are selected, at least one; with ``whole_words`` words
    are selected until they hold as many. 80 % become [MASK], 10 % a random piece, 10 % stay.
    """
    vocabulary = Vocabulary.of(tokenizer)
    table = items.tokens.ids
    ids = table.values.copy()
    at = _selected(table, vocabulary, rng, fraction, whole_words=whole_words)
    row = np.repeat(np.arange(len(table)), table.lengths)[at]
    selected = Ragged.of(at - table.starts[row], np.bincount(row, minlength=len(table)))
    draw = rng.random(len(at))
    ids[at[draw < _MASKED]] = vocabulary.mask
    swapped = at[(draw >= _MASKED) & (draw < _MASKED + _RANDOM)]
    ids[swapped] = rng.choice(np.flatnonzero(~vocabulary.special), len(swapped))
    tokens = replace(items.tokens, ids=Ragged(ids, table.starts))
    targets = Ragged(table.values[at].astype(np.int64), selected.starts)
    return replace(items, tokens=tokens, selected_tokens=selected, targets=targets)


def _selected(
    table: Ragged,
    vocabulary: Vocabulary,
    rng: np.random.Generator,
    fraction: float,
    *,
    whole_words: bool,
) -> IntArray:
    """Return the positions of the selected tokens in the flat table, ascending."""
    pieces = np.flatnonzero(~vocabulary.special[table.values])
    row = np.repeat(np.arange(len(table)), table.lengths)[pieces]
    begins = np.ones(len(pieces), bool)
    if whole_words:
        begins = ~vocabulary.is_continuation[table.values[pieces]]
        begins[:1] = True
        begins[1:] |= np.diff(pieces) > 1  # a row may begin within a word
        word = np.cumsum(begins) - 1
        begins |= (np.bincount(word) > _LONGEST_WORD)[word]
    word = np.cumsum(begins) - 1
    size, home = np.bincount(word), row[begins]
    order = np.lexsort((rng.random(len(size)), home))
    so_far = np.cumsum(size[order])
    first = np.searchsorted(home[order], np.arange(len(table)))  # word of each row, shuffled
    before = np.concatenate([[0], so_far])[first]
    n_pieces = np.bincount(row, minlength=len(table))
    target = np.maximum(1, np.rint(fraction * n_pieces))[home[order]]
    taken = so_far - before[home[order]] - size[order] / 2 < target
    taken[first[n_pieces > 0]] = True
    is_selected = np.zeros(len(size), bool)
    is_selected[order[taken]] = True
    selected: IntArray = pieces[is_selected[word]]
    return selected


def pair(
    tokenizer: TextTokenizer, items: Items, rng: np.random.Generator, *, max_length: int
) -> Items:
    """Return pairs made from runs of sentences; the target is 0 if the parts follow, else 1.

    Each run is split between two sentences. In half of the runs, rounded, the second part is then
    replaced by one from another document, cut where the row would be too long.
    """
    assert items.places is not None
    max_tokens = max_length - tokenizer.n_specials(pair=True)
    rows = np.arange(len(items))
    n_special = len(tokenizer.prefix), len(tokenizer.prefix) + len(tokenizer.suffix)
    lengths = items.tokens.lengths - n_special[1]
    inner, sentence = (
        table.cut(rows, np.full(len(rows), n_special[0]), lengths)
        for table in (items.tokens.ids, items.places)
    )
    n_sentences = sentence.values[sentence.starts[1:] - 1] + 1
    cut = rng.integers(1, n_sentences)
    size = np.add.reduceat(sentence.values < np.repeat(cut, lengths), sentence.starts[:-1])
    second = inner.cut(rows, size, lengths - size)
    is_random = np.zeros(len(rows), bool)
    is_random[rng.permutation(len(rows))[: round(len(rows) / 2)]] = True
    second = second.take(np.where(is_random, _of_another_document(items.samples, rng), rows))
    second = second.truncate(np.minimum(second.lengths, max_tokens - size))
    tokens: TokenTable = assemble(tokenizer, inner.truncate(size), second)
    return replace(items, tokens=tokens, places=None, targets=is_random.astype(np.int64))


def _of_another_document(samples: IntArray, rng: np.random.Generator) -> IntArray:
    """Return for each item one of another sample, drawn uniformly; samples are ascending."""
    begin = np.searchsorted(samples, samples, side="left")
    end = np.searchsorted(samples, samples, side="right")
    if end[0] == len(samples):
        raise InputError(
            "Random sentences come from other documents, but there is only one to choose from. "
            "Give more documents, or set validation_fraction=None if one was held out alone."
        )
    drawn = rng.integers(0, len(samples) - (end - begin))
    return drawn + np.where(drawn >= begin, end - begin, 0)


def pair_and_mask(
    tokenizer: TextTokenizer,
    items: Items,
    rng: np.random.Generator,
    *,
    max_length: int,
    fraction: float,
    whole_words: bool,
) -> Items:
    """Return pairs with some of their word pieces masked.

    The targets of an item are that of the pair, then those of its word pieces. Its weight is the
    average number of selected pieces in a pair, so that the mean losses of pairs and of word
    pieces count the same.
    """
    pairs = pair(tokenizer, items, rng, max_length=max_length)
    masked = mask(tokenizer, pairs, rng, fraction=fraction, whole_words=whole_words)
    assert isinstance(masked.targets, Ragged)
    assert isinstance(pairs.targets, np.ndarray)
    starts = masked.targets.starts
    both = np.insert(masked.targets.values, starts[:-1], pairs.targets)
    weight = len(masked.targets.values) / len(items)
    return replace(
        masked,
        targets=Ragged(both, starts + np.arange(len(starts))),
        weights=np.full(len(items), weight),
    )
