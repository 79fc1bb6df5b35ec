"""The interface between estimators and the engine: items and the Task.

The Task encodes, scores and decodes items. Items become packed batches in ``batches``; both have
their shapes here. Depends on numpy, torch and the token table; knows no model and no estimator.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, Protocol

import numpy as np
import torch

from skbert._arrays import Array, FloatArray, IntArray
from skbert._core.families.record import Job
from skbert._core.text.tokens import EncodedTexts, Ragged, TextTokenizer, TokenTable

__all__ = ["Batch", "Head", "Items", "Layout", "Padding", "Task"]


@dataclass(frozen=True)
class Head:
    """The head that a task needs.

    ``reads`` says what the head reads: one pooled vector a row, every token, the tokens that the
    items select, or these and the rows.
    """

    job: Job
    n_outputs: int  # 0: as many as there are word pieces
    reads: Literal["rows", "tokens", "selected tokens", "selected tokens and rows"] = "rows"
    fresh: bool = True  # whether all of it is drawn anew; else only what the checkpoint lacks
    ridge: float = 0.0  # L2 penalty of the probe per squared total weight; 1 in all at least
    has_standard_targets: bool = False  # numbers of variance 1; the probe's penalty fits them
    n_features: int = 0  # numbers that the output layer reads beside the vector of a row

    @property
    def has_output_layer(self) -> bool:
        """Whether there are logits; else the features themselves are the outputs."""
        return self.job != "embedding"

    @property
    def is_causal(self) -> bool:
        """Whether a token attends only to itself and those before it."""
        return self.job == "causal language modelling"


@dataclass(frozen=True)
class Items:
    """Everything to learn from or to predict, tokenised.

    An item owns one row or several (a question owns one row per option), and belongs to one
    sample (a long text is several items of one sample).
    """

    tokens: TokenTable
    rows: IntArray  # (n_items + 1,): item i owns rows rows[i] to rows[i + 1]
    samples: IntArray  # (n_items,)
    weights: FloatArray  # (n_items,)
    targets: Array | Ragged | None = None  # (n_items, ...) or a row per item
    places: Ragged | None = None  # what each token stands for; no model reads it
    n_truncated: int = 0
    selected_tokens: Ragged | None = None  # for a head that reads them: positions in each row
    is_counted_alone: bool = False  # whether a step counts items, not samples
    features: FloatArray | None = None  # (n_items, n_features), beside the vectors of rows

    @classmethod
    def one_row_each(
        cls, encoded: EncodedTexts, targets: Array | None, features: FloatArray | None = None
    ) -> Items:
        """Items of one row each; windows share their sample's target, weight and features."""
        tokens, windows, n_truncated, places = encoded
        samples, rows = windows.samples, np.arange(len(tokens) + 1)
        targets = None if targets is None else targets[samples]
        features = None if features is None else features[samples]
        return cls(
            tokens, rows, samples, windows.weights, targets, places, n_truncated,
            features=features,
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def sizes(self) -> IntArray:
        """Tokens in each item, ``(n_items,)``."""
        return np.diff(self.tokens.ids.starts[self.rows])

    @property
    def units(self) -> IntArray:
        """The unit that each item belongs to, ``(n_items,)``; a step covers a number of units."""
        return np.arange(len(self)) if self.is_counted_alone else self.samples

    def outputs_per_row(self, head: Head) -> IntArray:
        """Number of outputs that the head gives for each row, ``(n_rows,)``."""
        if head.reads == "selected tokens":
            assert self.selected_tokens is not None
            return self.selected_tokens.lengths
        return np.ones(len(self.tokens), np.int64) if head.reads == "rows" else self.tokens.lengths

    def weighted(self, sample_weight: FloatArray | None) -> Items:
        """The items with the weights of their samples, without those of weight 0."""
        if sample_weight is None:
            return self
        weights = self.weights * sample_weight[self.samples]
        return replace(self, weights=weights).take(np.flatnonzero(weights))

    def by_row(self) -> Items:
        """Every row as an item of its own, without targets, which is enough for a forward pass."""
        owner = np.repeat(np.arange(len(self)), np.diff(self.rows))
        return Items(
            self.tokens, np.arange(len(owner) + 1), self.samples[owner], self.weights[owner],
            selected_tokens=self.selected_tokens,
            features=None if self.features is None else self.features[owner],
        )  # fmt: skip

    def of_samples(self, samples: IntArray) -> Items:
        """The items of these samples, in their order here."""
        return self.take(np.flatnonzero(np.isin(self.samples, samples)))

    def followed_by(self, others: Items) -> Items:
        """These items, and then others of further samples, whose targets are of the same kind.

        They are to train on, where nobody asks for places.
        """
        assert self.targets is not None
        assert others.targets is not None
        assert self.features is None
        return replace(
            self,
            tokens=self.tokens.followed_by(others.tokens),
            rows=np.concatenate([self.rows, self.rows[-1] + others.rows[1:]]),
            samples=np.concatenate([self.samples, self.samples[-1] + 1 + others.samples]),
            weights=np.concatenate([self.weights, others.weights]),
            targets=np.concatenate([self.targets, others.targets]),
            places=None,
        )

    def take(self, item_indices: IntArray) -> Items:
        """The items with these indices, in that order."""
        counts = np.diff(self.rows)[item_indices]
        owned = Ragged(np.arange(len(self.tokens)), self.rows).take(item_indices)
        targets = self.targets
        if targets is not None:
            targets = (
                targets.take(item_indices)
                if isinstance(targets, Ragged)
                else targets[item_indices]
            )
        return Items(
            self.tokens.take(owned.values),
            np.concatenate([[0], np.cumsum(counts)]),
            self.samples[item_indices],
            self.weights[item_indices],
            targets,
            None if self.places is None else self.places.take(owned.values),
            self.n_truncated,
            None if self.selected_tokens is None else self.selected_tokens.take(owned.values),
            self.is_counted_alone,
            None if self.features is None else self.features[item_indices],
        )


@dataclass(frozen=True)
class Layout:
    """Where the rows of a packed batch lie. Rows of equal length are neighbours."""

    lengths: IntArray  # (n_rows,) in packed order
    runs: tuple[tuple[int, int, int], ...]  # (first token, how many rows, their length)
    cu_seqlens: torch.Tensor  # (n_rows + 1,) int32, cumulative lengths
    row_of_token: torch.Tensor  # (n_tokens,) int64

    @cached_property
    def max_seqlen(self) -> int:
        """Tokens in the longest row."""
        return int(self.lengths.max())

    @cached_property
    def n_tokens(self) -> int:
        """Tokens of all rows."""
        return int(self.lengths.sum())

    @cached_property
    def padding(self) -> Padding:
        """Where tokens lie when rows are padded to one length."""
        rows, size = len(self.lengths), self.max_seqlen
        at = torch.arange(self.n_tokens, device=self.row_of_token.device)
        places = self.row_of_token * size + at - self.cu_seqlens[self.row_of_token]
        is_token = at[:size] < self.cu_seqlens.diff()[:, None]
        return Padding((rows, size), places, is_token)


@dataclass(frozen=True)
class Padding:
    """Where the tokens of a packed batch lie when its rows are padded to one length.

    No tensor is read back from the device, which would have to be waited for.
    """

    shape: tuple[int, int]  # (n_rows, max_seqlen)
    places: torch.Tensor  # (n_tokens,) int64, in all padded rows one after another
    is_token: torch.Tensor  # (n_rows, max_seqlen)
    masks: dict[Any, torch.Tensor] = field(default_factory=dict)  # of attention, when made

    def pad(self, values: torch.Tensor) -> torch.Tensor:
        """Padded rows ``(n_rows, max_seqlen, ...)`` of ``(n_tokens, ...)``, 0 at padding."""
        rows, size = self.shape
        padded = values.new_zeros(rows * size, *values.shape[1:])
        return padded.index_copy(0, self.places, values).view(rows, size, *values.shape[1:])

    def unpad(self, values: torch.Tensor) -> torch.Tensor:
        """What `pad` was given, from padded rows."""
        return values.flatten(0, 1).index_select(0, self.places)


@dataclass(frozen=True)
class Batch:
    """One packed batch on its device.

    ``input_ids``, ``position_ids`` and ``token_type_ids`` are ``(1, n_tokens)`` int64; positions
    count from 0 in each row. ``row_order`` puts rows, and ``token_order`` tokens, back into the
    order of the items; None when they are in it already.
    ``selected_tokens`` are the positions of the selected tokens in the batch, in the order of the
    items. ``targets`` has one entry per item, or for ragged targets as many as these have.
    """

    input_ids: torch.Tensor
    position_ids: torch.Tensor
    token_type_ids: torch.Tensor
    layout: Layout
    row_order: torch.Tensor | None
    token_order: torch.Tensor | None
    rows_per_item: torch.Tensor  # (n_items,)
    tokens_per_item: torch.Tensor  # (n_items,)
    weights: torch.Tensor  # (n_items,)
    selected_tokens: torch.Tensor | None  # (n_selected,)
    selected_per_item: torch.Tensor | None  # (n_items,)
    targets: torch.Tensor | None
    features: torch.Tensor | None = None  # (n_items, n_features)


class Task(Protocol):
    """One job, small and frozen: what differs between estimators, and nothing else."""

    def encode(self, X: Any, y: Any, tokenizer: TextTokenizer) -> Items:
        """Checked input to items; ``y`` is None when predicting."""

    def head(self) -> Head:
        """The head that this job needs."""

    def loss(self, logits: Any, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Weighted sum of the losses of a batch, and the sum of the weights.

        ``logits`` is ``(n_rows, n_outputs)``, ``(n_tokens, n_outputs)`` or ``(n_selected,
        n_outputs)``, in the order of the batch's items; a tuple of two such tensors where the
        head reads both. The loop divides once, by the weight of the whole step.
        """

    def decode(self, outputs: Ragged, items: Items) -> Array:
        """One result per sample from the logits of each item, in the order of samples."""
