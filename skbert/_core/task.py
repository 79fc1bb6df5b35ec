"""The interface between estimators and the engine: the Task, and the batches that it scores.

The Task encodes, scores and decodes items, which become packed batches in ``batches``. Depends on
`items` and on torch; knows no model and no estimator.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import torch

from skbert._arrays import Array, IntArray
from skbert._core.items import Head, Items
from skbert._core.text.tokens import Ragged, TextTokenizer

__all__ = ["Batch", "Layout", "Padding", "Task"]


@dataclass(frozen=True)
class Layout:
    """Where the rows of a packed batch lie. Rows of equal length are neighbours."""

    lengths: IntArray  # (n_rows,) in packed order
    runs: tuple[tuple[int, int, int], ...]  # (first token, how many rows, their length)
    cu_seqlens: torch.Tensor  # (n_rows + 1,) int32, cumulative lengths
    row_of_token: torch.Tensor  # (n_tokens,) int64
    longest: int | None = None  # tokens of a row at most, where the device alone knows the rows

    @cached_property
    def max_seqlen(self) -> int:
        """Tokens in the longest row."""
        return int(self.lengths.max()) if self.longest is None else self.longest

    @cached_property
    def mean_seqlen(self) -> float:
        """Tokens in the row of a token, on average: so many others each of them attends to."""
        return float(self.lengths @ self.lengths / self.lengths.sum())

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
    states: torch.Tensor | None = None  # of a frozen encoder, in the order of the items, or
    states_after: int | None = None  # of tokens in packed order, after so many frozen layers
    most_rows: int = 1  # of an item, known without waiting for a device


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
