"""Relative positions: attention that reads the distance of two tokens, not their positions.

``relative_key`` (Shaw et al. 2018) adds to a score the product of the query and a vector for the
distance, ``relative_key_query`` (Huang et al. 2020, method 4) that of the key, too. transformers 5
has neither: its modules get here what they lack. Depends on torch and the record of the family.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import torch

from skbert._core.families import family_of

__all__ = ["add_distances", "distance_scores", "has_distances", "kind_of_positions"]


class _UnusedPositions(torch.nn.Embedding):
    """Embeddings of absolute positions that a checkpoint holds, but its model does not use."""

    def forward(self, positions: torch.Tensor) -> torch.Tensor:
        """Zeros."""
        return self.weight.new_zeros(1).expand(*positions.shape, self.embedding_dim)


def kind_of_positions(config: object) -> str:
    """How a model knows where a token stands: ``absolute``, or one of the two relative ways."""
    kind: str = getattr(config, "position_embedding_type", "absolute")
    return kind


def add_distances(model: Any) -> None:
    """Give a new model embeddings of distances, if its configuration asks for them."""
    config, family = model.config, family_of(model)
    kind = kind_of_positions(config)
    if kind == "absolute":
        return
    n_positions = config.max_position_embeddings
    table = _UnusedPositions(n_positions, config.hidden_size)
    model.base_model.set_submodule(family.encoder.position_table, table)
    for layer in family.layers(model):
        attention = attrgetter(family.layer_paths.attention)(layer)
        size = getattr(attention, family.attention.head_size)
        attention.distance_embedding = torch.nn.Embedding(2 * n_positions - 1, size)
        attention.distances_of_keys = kind == "relative_key_query"


def has_distances(attention: Any) -> bool:
    """Whether a layer's attention has relative positions."""
    return "distance_embedding" in attention._modules


def distance_scores(
    attention: Any, query: torch.Tensor, key: torch.Tensor, ahead: int = 0
) -> torch.Tensor:
    """What relative positions add to scores, ``(n_rows, n_heads, n_queries, n_keys)``, unscaled.

    ``query`` is ``(n_rows, n_heads, n_queries, head_size)``, and ``key`` has as many tokens or
    others; the token of the first query is so many ``ahead`` of that of the first key.
    """
    embedding = attention.distance_embedding
    at = torch.arange(max(ahead + query.shape[2], key.shape[2]), device=query.device)
    apart = at[ahead : ahead + query.shape[2], None] - at[: key.shape[2]]
    vectors = embedding(apart + embedding.num_embeddings // 2).to(query.dtype)
    scores = torch.einsum("bhld,lrd->bhlr", query, vectors)
    if attention.distances_of_keys:
        scores = scores + torch.einsum("bhrd,lrd->bhlr", key, vectors)
    return scores
