"""From the hidden states of tokens to the vectors that a head reads.

Depends on the poolings and on a batch; of the network it knows what it reads.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch

from skbert._core.attention.pooling import POOLER, pool
from skbert._core.families.record import Family
from skbert._core.items import Head
from skbert._core.task import Batch

__all__ = ["above_states", "encoder_states", "in_order", "pooled", "run_pooler", "states_of_rows"]


class Encoder(Protocol):
    """A network, as far as it is read here."""

    model: Any
    head: Head
    pooling: str

    @property
    def family(self) -> Family:
        """The record of the model's architecture."""

    def hidden(self, batch: Batch) -> torch.Tensor:
        """Hidden states of all tokens in packed order."""


def encoder_states(network: Encoder, batch: Batch) -> torch.Tensor:
    """What the head reads of the encoder for each row, or each token, in the items' order."""
    hidden = network.hidden(batch)
    if network.head.reads == "tokens":
        return in_order(hidden, batch.token_order)
    return states_of_rows(network, hidden, batch)


def pooled(network: Encoder, hidden: torch.Tensor, batch: Batch) -> torch.Tensor:
    """One vector per row, in the order of the items."""
    return above_states(network, states_of_rows(network, hidden, batch))


def states_of_rows(network: Encoder, hidden: torch.Tensor, batch: Batch) -> torch.Tensor:
    """The vector of each row, or what the pooler reads of it, in the order of the items."""
    if network.pooling == POOLER:
        states = pool(hidden, batch.layout, "cls")
    else:
        states = pool(hidden.to(batch.weights.dtype), batch.layout, network.pooling)
    return in_order(states, batch.row_order)


def above_states(network: Encoder, states: torch.Tensor) -> torch.Tensor:
    """What the head's own layers read, which a pooler may compute."""
    is_pooler = network.head.reads != "tokens" and network.pooling == POOLER
    return run_pooler(network, states) if is_pooler else states


def run_pooler(network: Encoder, first: torch.Tensor) -> torch.Tensor:
    """The output of the pooler for the first token of each row, ``(n_rows, size)``."""
    paths, encoder = network.family.encoder, network.model.base_model
    vectors: torch.Tensor = encoder.get_submodule(paths.pooler)(first[:, None])
    if paths.pooler_activation:
        vectors = encoder.get_submodule(paths.pooler_activation)(vectors[:, 0])
    return vectors


def in_order(values: torch.Tensor, order: torch.Tensor | None) -> torch.Tensor:
    """Values in another order; None for the one that they have."""
    return values if order is None else values[order]
