"""The embeddings of a packed batch, which the first layer reads.

Depends on torch, on what computes them on a CPU, and on the record of the family; of the network
it knows what it reads.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch

from skbert._arrays import is_arange
from skbert._core.cpu.embedding import UsedRowsEmbedding
from skbert._core.cpu.layers import Layers
from skbert._core.cpu.tables import can_sum
from skbert._core.families.record import Family, encoder_part, optional_part
from skbert._core.task import Batch, Layout
from skbert._core.text.tokens import TextTokenizer

__all__ = [
    "counts_positions", "embedded_apart", "embeddings_of", "packed_inputs", "reads_token_types",
    "token_types",
]  # fmt: skip


class Encoder(Protocol):
    """A network, as far as it is read here."""

    model: Any
    text_tokenizer: TextTokenizer
    word_embedding: UsedRowsEmbedding | None
    layer_runner: Layers

    @property
    def family(self) -> Family:
        """The record of the model's architecture."""


def embeddings_of(network: Encoder, batch: Batch) -> torch.Tensor:
    """The embeddings of all tokens, ``(n_tokens, size)``."""
    paths, model, summed = network.family.encoder, network.model, None
    if batch.input_ids.is_cpu and can_sum(paths):
        ids = _ids(network, batch)
        summed = network.layer_runner.embed(paths, model, ids, network.word_embedding)
    if summed is None:
        return _embedded(network, packed_inputs(network, batch))[0]
    return _projected(network, summed)


def _ids(network: Encoder, batch: Batch) -> dict[str, torch.Tensor]:
    """The rows of the embeddings' tables that each token has, by the paths of these."""
    paths, positions = network.family.encoder, _positions(network, batch)[0]
    ids = {paths.word_table: batch.input_ids[0], paths.position_table: positions}
    if reads_token_types(network):
        ids[paths.type_table] = token_types(network, batch)[0]
    elif paths.type_table:
        by_position = encoder_part(network.model, paths.embeddings).token_type_ids
        ids[paths.type_table] = by_position[0, positions]
    return ids


def packed_inputs(network: Encoder, batch: Batch) -> dict[str, torch.Tensor]:
    """A packed batch as the encoder and its embeddings take it."""
    word_table = network.family.encoder.word_table
    embedding = network.word_embedding or encoder_part(network.model, word_table)
    inputs = {
        "inputs_embeds": embedding(batch.input_ids),
        "position_ids": _positions(network, batch),
    }
    if reads_token_types(network):
        inputs["token_type_ids"] = token_types(network, batch)
    return inputs


def _positions(network: Encoder, batch: Batch) -> torch.Tensor:
    """The positions of tokens as the model counts them."""
    if not network.family.counts_from_padding:
        return batch.position_ids
    return batch.position_ids + network.family.first_position(network.model.config.pad_token_id)


def counts_positions(network: Encoder) -> bool:
    """Whether the positions that a model keeps for its embeddings are 0, 1, 2, ..."""
    embeddings = encoder_part(network.model, network.family.encoder.embeddings)
    kept = getattr(embeddings, "position_ids", None)
    return kept is None or is_arange(kept[0].cpu().numpy(), kept.shape[1])


def reads_token_types(network: Encoder) -> bool:
    """Whether the model knows more than one type of token."""
    return network.family.has_token_types and network.model.config.type_vocab_size > 1


def token_types(network: Encoder, batch: Batch) -> torch.Tensor:
    """The types of tokens, ``(1, n_tokens)``: 0 where the tokenizer gives no others."""
    types = batch.token_type_ids
    return types if network.text_tokenizer.has_types else torch.zeros_like(types)


def _embedded(network: Encoder, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """The embeddings by the model's own modules, ``(1, n_tokens, size)``."""
    paths, model = network.family.encoder, network.model
    if not paths.position_table:
        inputs = {name: values for name, values in inputs.items() if name != "position_ids"}
    return _projected(network, encoder_part(model, paths.embeddings)(input_ids=None, **inputs))


def _projected(network: Encoder, states: torch.Tensor) -> torch.Tensor:
    """Embeddings as the first layer reads them, of the size of hidden states.

    What autocast computes in a lower precision does not stay so: layers add to it.
    """
    path = network.family.encoder.projection
    project = optional_part(network.model.base_model, path) if path else None
    projected: torch.Tensor = states if project is None else project(states).to(states.dtype)
    return projected


def embedded_apart(
    network: Encoder, inputs: dict[str, torch.Tensor], layout: Layout
) -> torch.Tensor:
    """The embeddings that the first layer reads, where they read a token's neighbours, too.

    As at the ends of a row alone, nothing lies beside its first and its last token.
    """
    row = layout.row_of_token
    at = torch.arange(len(row), device=row.device) + row  # one place is free after each row
    size = len(row) + len(layout.lengths)
    apart = {}
    for name, values in inputs.items():
        apart[name] = values.new_zeros(1, size, *values.shape[2:])
        apart[name][:, at] = values
    return _embedded(network, apart)[:, at]
