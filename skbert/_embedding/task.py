"""The tasks of the transformer: one vector per text, or per word piece.

Depends on the items, the tokens and the checked texts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from skbert._arrays import Array, IntArray
from skbert._core.attention.pooling import COMBINED, POOLINGS, LayerJoin
from skbert._core.items import Head, Items
from skbert._core.text.fields import encode_rows
from skbert._core.text.tokens import EncodedTexts, LongText, Ragged, TextTokenizer
from skbert._core.text.windows import mean_by_place, mean_by_sample
from skbert._validation.stored import StoredTexts
from skbert._validation.texts import Texts

if TYPE_CHECKING:
    import torch

    from skbert._core.task import Batch

__all__ = ["HEAD", "Features", "TokenFeatures", "distinct"]


HEAD = Head("embedding", 0)


@dataclass(frozen=True)
class Features:
    """Compute one vector per sample; there is nothing to learn."""

    truncated: ClassVar[str] = "different rows"  # what n_truncated counts: equal ones count once

    max_length: int
    long_text: LongText = "truncate"
    pooling: str = "mean"
    layers: tuple[int, ...] | None = None  # hidden states, 0 for the embeddings; None: the last
    layer_join: LayerJoin = "mean"

    def __post_init__(self) -> None:
        layers = (0,) if self.layers is None else self.layers
        if not layers or min(layers) < 0 or len({*layers}) < len(layers):
            raise ValueError(f"layers={self.layers!r:.80} names no hidden states.")
        if self.pooling not in {*POOLINGS, *COMBINED}:
            raise ValueError(f"pooling={self.pooling!r:.80} is no pooling.")

    def encode(self, X: Texts, y: None, tokenizer: TextTokenizer) -> Items:
        """Return one item per text, or per window of a long one."""
        rows = encode_rows(tokenizer, X, self.max_length, self.long_text)
        return Items.one_row_each(rows, y)

    def head(self) -> Head:
        """Return no head: the encoder alone is read."""
        return HEAD

    def loss(self, logits: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Raise, as there is no target."""
        del logits, batch
        raise TypeError("Features come from an encoder as it is: there is nothing to learn.")

    def decode(self, outputs: Ragged, items: Items) -> Array:
        """Return vectors ``(n_samples, width)``, the mean over the windows of a sample."""
        return mean_by_sample(outputs.values, items.samples)


@dataclass(frozen=True)
class TokenFeatures(Features):
    """Compute one vector per word piece."""

    def encode(self, X: Texts, y: None, tokenizer: TextTokenizer) -> Items:
        """Return the same items, with the number of each token's word piece in its sample."""
        encoded = encode_rows(tokenizer, X, self.max_length, self.long_text)
        places = _piece_numbers(encoded, tokenizer, pairs=X.second is not None)
        return replace(Items.one_row_each(encoded, y), places=places)

    def head(self) -> Head:
        """Return no head: the encoder's tokens are read."""
        return replace(HEAD, reads="tokens")

    def decode(self, outputs: Ragged, items: Items) -> Array:
        """Return a 1-D array with one ``(n_pieces, width)`` array per sample.

        The vector of a piece in several windows is the mean over these windows.
        """
        assert items.places is not None
        samples = np.repeat(items.samples, items.sizes)
        pieces, first = mean_by_place(outputs.values, samples, items.places.values)
        n_pieces = np.bincount(samples[first], minlength=items.samples[-1] + 1)
        return Ragged.of(pieces, n_pieces).arrays()


def _piece_numbers(encoded: EncodedTexts, tokenizer: TextTokenizer, *, pairs: bool) -> Ragged:
    """Return the number of each token's word piece, counted through all texts; -1 for none."""
    if encoded.places is not None:
        return replace(encoded.places, values=encoded.places.values[:, 1])
    table, windows = encoded.tokens, encoded.windows
    before, after = len(tokenizer.prefix), len(tokenizer.suffix)
    if pairs:
        starts = table.second.astype(np.int64)
        kept = starts - before - len(tokenizer.middle)
    else:
        starts = np.full(len(table), before)
        kept = np.zeros(len(table), np.int64)
    row = np.repeat(np.arange(len(table)), table.lengths)
    at = table.ids.index_in_row
    first = kept + windows.begins - starts
    number = np.where(at < starts[row], at - before, first[row] + at)
    between = (at >= before + kept[row]) & (at < starts[row])
    special = (at < before) | between | (at >= table.lengths[row] - after)
    return Ragged(np.where(special, -1, number), table.ids.starts)


def distinct(texts: Texts) -> tuple[Texts, IntArray]:
    """Return the different rows in order of first occurrence, and which of them each row is."""
    if isinstance(texts.first, StoredTexts):
        first, owner = _distinct_by_digest(texts)
        return texts.take(first), owner
    places: dict[Any, int] = {}
    rows = zip(*texts.columns, strict=True)
    owner = np.array([places.setdefault(row, len(places)) for row in rows])
    if len(places) == len(owner):
        return texts, owner
    return texts.take(np.unique(owner, return_index=True)[1]), owner


def _distinct_by_digest(texts: Texts) -> tuple[IntArray, IntArray]:
    """Return the first of all equal rows, and which of these each row is; no text is kept."""
    rows = zip(*texts.columns, strict=True)
    joined = b"".join(blake2b(repr(row).encode(), digest_size=16).digest() for row in rows)
    digests = np.frombuffer(joined, np.uint64).reshape(-1, 2)
    _, first, owner = np.unique(digests, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first)
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return first[order], place[owner]
