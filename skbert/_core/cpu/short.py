"""Short batches through layers as BERT's in one call, where kernels compute all of their steps.

Of a text or some texts the steps of a layer are done in less time than torch takes to call them.
What results is the same to the last bit. Depends on torch, ``attention``, ``fused``, ``linear``
and ``bindings``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from skbert._core.attention.relative import has_distances
from skbert._core.cpu.attention import Rows, dropout_rate, settings_of
from skbert._core.cpu.bindings.checks import addresses
from skbert._core.cpu.bindings.encoder import (
    EncoderLayer,
    EncoderNorm,
    EncoderWeights,
    encoder_forward,
)
from skbert._core.cpu.fused import can_fuse_attention, can_fuse_layernorm
from skbert._core.cpu.linear import ComputedLayer
from skbert._core.families.record import AttentionNames, LayerParts

__all__ = ["ShortBatches"]

_MOST_TOKENS = 512  # of a batch of which the calls take a part of the time that can be noticed


class ShortBatches:
    """Runs layers, and keeps what C reads of their weights until these change."""

    def __init__(self) -> None:
        self.made: tuple[object, EncoderWeights | None] = None, None

    def __call__(
        self,
        layers: Sequence[ComputedLayer],
        names: AttentionNames,
        states: torch.Tensor,
        dtype: torch.dtype,
        rows: Rows,
    ) -> list[torch.Tensor] | None:
        """Hidden states after each layer; None where the layers are to be run one by one."""
        in_c = _in_c(layers, states)
        if in_c is None:
            return None
        settings, *others = {settings_of(layer.parts.attention, names) for layer in layers}
        like_qkv = states.new_empty(0, dtype=dtype)
        fits = can_fuse_attention(like_qkv, rows.layout, settings)
        if others or settings.dropout or not fits:
            return None
        return [
            *encoder_forward(
                states=states.contiguous(), weights=self._weights(in_c),
                rows=rows.packed, settings=settings, dtype=dtype,
            )
        ]  # fmt: skip

    def _weights(self, layers: list[EncoderLayer]) -> EncoderWeights:
        """What C reads, made anew if one of the layers or the place of a norm has changed."""
        norms = [norm for layer in layers for norm in layer.norms]
        state = (
            [layer.products for layer in layers],
            [(*addresses(norm.weight, norm.bias), norm.epsilon) for norm in norms],
        )
        made_for, made = self.made
        if made is None or made_for != state:
            made = EncoderWeights(layers)
            self.made = state, made
        return made


def _in_c(layers: Sequence[ComputedLayer], states: torch.Tensor) -> list[EncoderLayer] | None:
    """The layers as C reads them; None where kernels do not compute all of their steps."""
    if len(states) > _MOST_TOKENS:
        return None
    in_c = [
        EncoderLayer(packed, _norms(layer.parts))
        for layer in layers
        if (packed := layer.products.packed(len(states))) is not None
    ]
    norms = [norm for layer in in_c for norm in layer.norms]
    sizes = {tuple((each.n_in, each.n_out) for each in layer.products) for layer in in_c}
    fits = len(sizes) == 1 and all(
        can_fuse_layernorm(states, states, norm.weight, norm.bias) for norm in norms
    )
    return in_c if fits and len(in_c) == len(layers) and all(map(_is_plain, layers)) else None


def _is_plain(layer: ComputedLayer) -> bool:
    """Whether a layer has nothing beside its products and norms that `encoder_forward` lacks."""
    parts = layer.parts
    drops = dropout_rate(parts.attention_dropout) or dropout_rate(parts.mlp_dropout)
    chunked = parts.attention.config.chunk_size_feed_forward
    return not (drops or chunked or has_distances(parts.attention))


def _norms(parts: LayerParts[Any]) -> list[EncoderNorm]:
    norms = parts.attention_norm, parts.mlp_norm
    return [EncoderNorm(norm.weight, norm.bias, norm.eps) for norm in norms]
