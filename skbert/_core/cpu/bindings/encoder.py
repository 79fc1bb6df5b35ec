"""All layers of an encoder as BERT's in one call, for inference. Depends on torch only."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence
from functools import cache
from typing import NamedTuple

import torch

from skbert._core.attention.settings import AttentionSettings
from skbert._core.cpu.bindings import module
from skbert._core.cpu.bindings.attention import (
    PackedRows,
    arguments_of_attention,
    check_tokens,
    heads_of,
)
from skbert._core.cpu.bindings.attention_tiles import fits_tiles
from skbert._core.cpu.bindings.checks import (
    address_of,
    address_of_array,
    addresses,
    check_integer,
    check_real,
    check_type,
    optional_address,
    shape_of,
)
from skbert._core.cpu.bindings.gemm_bf16 import PackedWeights
from skbert._core.cpu.bindings.gemm_float32 import Float32Weights
from skbert._core.cpu.bindings.gemm_int8 import Int8Weights
from skbert._core.cpu.bindings.module import (
    DTYPES,
    check_processor,
    has_amx,
    has_int8_products,
)

__all__ = [
    "EncoderLayer", "EncoderNorm", "EncoderWeights", "ProductWeights", "encoder_forward",
    "sizes_of_layer",
]  # fmt: skip

ProductWeights = PackedWeights | Float32Weights | Int8Weights

# What products may read and write.
_DTYPES: dict[type, Sequence[torch.dtype]] = {
    PackedWeights: [torch.bfloat16],
    Float32Weights: [torch.float32],
    Int8Weights: DTYPES,
}


class EncoderNorm(NamedTuple):
    """What a layer normalisation multiplies by, adds, and adds to the variance; in float32."""

    weight: torch.Tensor
    bias: torch.Tensor | None
    epsilon: float


class EncoderLayer(NamedTuple):
    """The packed weights of a layer, and its norms, which are read where they are."""

    # Of qkv, attention_out, mlp_in and mlp_out, before which GELU is.
    products: Sequence[ProductWeights]
    norms: Sequence[EncoderNorm]  # after attention_out, and after mlp_out


def sizes_of_layer(shape: Sequence[tuple[int, int]]) -> tuple[int, int, int]:
    """The sizes of states, of attention's result and of the MLP; ValueError where none fit.

    ``shape`` has inputs and outputs of query, key and value, and of the three products after them.
    """
    size, width, mlp_size = shape[0][0], shape[1][0], shape[2][1]
    if [*shape] != [(size, 3 * width), (width, size), (size, mlp_size), (mlp_size, size)]:
        raise ValueError("a kernel takes layers of which each reads what the one before gives")
    return size, width, mlp_size


class EncoderWeights:
    """Layers of one size for `encoder_forward`, all in bfloat16, in float32 or in int8."""

    def __init__(self, layers: Sequence[EncoderLayer]) -> None:
        self.layers = [*layers]
        kinds = {type(each) for layer in layers for each in layer.products}
        shapes = {tuple((each.n_in, each.n_out) for each in layer.products) for layer in layers}
        if len(kinds) != 1 or len(shapes) != 1:
            raise ValueError("a kernel takes layers of one size and of one type, one or more")
        (self.kind,) = kinds
        (shape,) = shapes
        self.size, self.width, _ = sizes_of_layer(shape)
        rows = [self._row_of(layer) for layer in layers]
        epsilons = [norm.epsilon for layer in layers for norm in layer.norms]
        self.table = torch.tensor(rows, dtype=torch.int64, device="cpu")
        self.epsilons = torch.tensor(epsilons, dtype=torch.float32, device="cpu")

    def _row_of(self, layer: EncoderLayer) -> list[int]:
        """What C reads of a layer."""
        row: list[int] = []
        for weights, gelu in zip(layer.products, (False, False, True, False), strict=True):
            check_type("weights", weights, (*_DTYPES,))
            if not isinstance(weights, Int8Weights):
                places = addresses(weights.panels, weights.bias)
                row += [*places, weights.n_in, weights.n_out, gelu, False]
            elif weights.gelu == gelu:
                row += weights.row()
            else:
                raise ValueError("a kernel takes layers in which GELU follows mlp_in, no other")
        for norm in layer.norms:
            check_real("epsilon", norm.epsilon, 0)
            row.append(address_of("weight", norm.weight, (self.size,), torch.float32))
            row.append(optional_address("bias", norm.bias, (self.size,), torch.float32))
        return row


def encoder_forward(
    *,
    states: torch.Tensor,
    weights: EncoderWeights,
    rows: PackedRows,
    settings: AttentionSettings,
    dtype: torch.dtype,
    wanted: Collection[int] | None = None,
) -> list[torch.Tensor]:
    """States ``(n_tokens, size)`` after each layer, from those before the first.

    They are in float32, and what products read and write is in ``dtype``. All tokens belong to
    rows, and there is no dropout. Where ``wanted`` has numbers of layers, from 0, those after the
    other layers are empty: what nobody reads need not leave the cache.
    """
    check_type("weights", weights, EncoderWeights)
    check_type("rows", rows, PackedRows)
    n_tokens = shape_of("states", states, 2)[0]
    _check_precision(weights, dtype)
    check_integer("a number of tokens", n_tokens, 1, rows.n_tokens)
    check_integer("the first token of rows", rows.first_token, 0, 0)
    check_real("dropout", settings.dropout, 0, 0)
    address = address_of("states", states, (n_tokens, weights.size), torch.float32)
    n_heads = _heads_of(3 * weights.width, dtype, settings)
    check_tokens(n_tokens, rows)
    nothing = states.new_empty(0, weights.size)
    outputs = [
        torch.empty_like(states) if wanted is None or number in wanted else nothing
        for number in range(len(weights.layers))
    ]
    table = array("q", addresses(*outputs))
    module.kernels.encoder_forward(
        *addresses(weights.table, weights.epsilons), len(weights.layers), address,
        address_of_array(table), n_tokens, weights.kind is Int8Weights, has_amx(),
        fits_tiles(dtype, rows.max_seqlen, settings),
        *arguments_of_attention(dtype, n_heads, rows, settings, 0),
    )  # fmt: skip
    return outputs


_heads_of = cache(heads_of)  # asked of the same layers for each batch


def _check_precision(weights: EncoderWeights, dtype: torch.dtype) -> None:
    if weights.kind is Int8Weights and not has_int8_products():
        raise RuntimeError("no kernel multiplies int8 on this processor")
    if weights.kind is PackedWeights:
        check_processor()
    if dtype not in _DTYPES[weights.kind]:
        raise ValueError(f"a kernel computes no such layers in {dtype}")
