"""How the tokens of a row become its vector: the names of the poolings, and what each computes.

A new pooling is one more entry of `TOKEN_POOLINGS`. The pooler, which is a layer of the model, is
run by the network. Depends on numpy, torch and a batch's layout, and imports torch when it
computes: who vets a folder wants the names alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    import torch

    from skbert._core.task import Layout

__all__ = [
    "COMBINED", "POOLER", "POOLINGS", "TOKEN_POOLINGS", "LayerJoin", "parts_of", "pool",
    "pool_padded",
]  # fmt: skip

LayerJoin = Literal["mean", "concat"]  # of the hidden states of several layers

_FEW_TOKENS = 512  # whose means numpy computes sooner than torch does


@dataclass(frozen=True)
class TokenPooling:
    """A pooling that is computed from the vectors of the tokens.

    Attributes
    ----------
    packed : callable
        From ``(n_tokens, size)`` and the layout of a packed batch, ``(n_rows, size)``.
    padded : callable
        The same from padded rows ``(n_rows, length, size)`` and what is True at their tokens,
        ``(n_rows, length, 1)``.
    declared_as : str
        Setting by which the configuration of a sentence encoder declares it.
    """

    packed: Callable[[torch.Tensor, Layout], torch.Tensor]
    padded: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    declared_as: str


def _first(hidden: torch.Tensor, layout: Layout) -> torch.Tensor:
    return hidden[layout.cu_seqlens[:-1].long()]


def _first_padded(hidden: torch.Tensor, is_token: torch.Tensor) -> torch.Tensor:
    del is_token
    return hidden[:, 0]


def _mean(hidden: torch.Tensor, layout: Layout) -> torch.Tensor:
    import torch

    if hidden.is_cpu and len(hidden) <= _FEW_TOKENS and not torch.is_grad_enabled():
        return _mean_in_numpy(hidden, layout)
    lengths = layout.cu_seqlens.diff()
    if hidden.is_cuda:  # in a fixed order, which adding by index is not there
        return torch.segment_reduce(hidden, "mean", lengths=lengths.long(), axis=0, unsafe=True)
    total = hidden.new_zeros(len(layout.lengths), hidden.shape[1])
    return total.index_add(0, layout.row_of_token, hidden) / lengths.unsqueeze(1)


def _mean_in_numpy(hidden: torch.Tensor, layout: Layout) -> torch.Tensor:
    """The same without gradients: numpy adds in the same order, and wakes no threads."""
    import torch

    states = hidden.numpy()
    means = [
        states[at : at + n * size].reshape(n, size, -1).sum(axis=1) / size
        for at, n, size in layout.runs
    ]
    return torch.from_numpy(means[0] if len(means) == 1 else np.concatenate(means))


def _mean_padded(hidden: torch.Tensor, is_token: torch.Tensor) -> torch.Tensor:
    return hidden.masked_fill(~is_token, 0.0).sum(dim=1) / is_token.sum(dim=1)


def _max(hidden: torch.Tensor, layout: Layout) -> torch.Tensor:
    import torch

    runs = (hidden[at : at + n * size].view(n, size, -1) for at, n, size in layout.runs)
    return torch.cat([run.amax(dim=1) for run in runs])


def _max_padded(hidden: torch.Tensor, is_token: torch.Tensor) -> torch.Tensor:
    return hidden.masked_fill(~is_token, -math.inf).amax(dim=1)


TOKEN_POOLINGS = {
    "cls": TokenPooling(_first, _first_padded, "pooling_mode_cls_token"),
    "mean": TokenPooling(_mean, _mean_padded, "pooling_mode_mean_tokens"),
    "max": TokenPooling(_max, _max_padded, "pooling_mode_max_tokens"),
}
POOLER = "pooler"  # BERT's own layer on top of the first token
POOLINGS = (POOLER, *TOKEN_POOLINGS)  # what a model's configuration may name
COMBINED = {"mean_max": ("mean", "max")}  # several side by side, for vectors only


def parts_of(pooling: str) -> tuple[str, ...]:
    """The names of the poolings whose vectors are put side by side, one where none are."""
    return COMBINED.get(pooling, (pooling,))


def pool(hidden: torch.Tensor, layout: Layout, pooling: str) -> torch.Tensor:
    """One vector for each row of a packed batch, from ``(n_tokens, size)``."""
    parts = [TOKEN_POOLINGS[part].packed(hidden, layout) for part in parts_of(pooling)]
    if len(parts) == 1:
        return parts[0]
    import torch

    return torch.cat(parts, dim=1)


def pool_padded(hidden: torch.Tensor, mask: torch.Tensor | None, pooling: str) -> torch.Tensor:
    """One vector per row from padded ``(n_rows, length, size)``; the mask is 0 at padding."""
    tokens = hidden.new_ones(hidden.shape[:2]) if mask is None else mask
    return TOKEN_POOLINGS[pooling].padded(hidden, tokens[..., None] != 0)
