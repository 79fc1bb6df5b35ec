"""Layers as BERT's in one call, where kernels compute all of their steps.

For a text or some texts the steps of a layer take less time than torch takes to call them; for
many texts, enough for all threads, what lies between the steps stays in the cache of a thread.
What results is the same to the last bit. Depends on torch, ``attention``, ``fused``, ``linear``,
``watch`` and ``bindings``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import torch

from skbert._core.attention.settings import AttentionSettings
from skbert._core.cpu.attention import dropout_rate, settings_of
from skbert._core.cpu.bindings.attention import PackedRows
from skbert._core.cpu.bindings.encoder import (
    EncoderLayer,
    EncoderNorm,
    EncoderWeights,
    encoder_forward,
)
from skbert._core.cpu.fused import can_fuse_attention, can_fuse_layernorm
from skbert._core.cpu.linear import ComputedLayer
from skbert._core.cpu.watch import Watch
from skbert._core.families.record import AttentionNames, LayerParts
from skbert._core.task import Layout

__all__ = ["WholeEncoder"]


class _Plan(NamedTuple):
    """How a batch is computed in one call."""

    made_for: object
    first: Any  # module of the first layer, whose mode is that of all
    fits: Callable[[int], object]  # gives None for more tokens than kernels take in products
    weights: EncoderWeights
    settings: AttentionSettings
    like_qkv: torch.Tensor  # in the type of products
    watch: Watch


class WholeEncoder:
    """Runs layers, and keeps what C reads of their weights until these change.

    Modules and settings are not watched: a model that somebody else holds is run by `Layers` of
    its own in each prediction. Changes by ``.data`` and by fused optimizers do not show, so that
    who trains drops the plan.
    """

    def __init__(self) -> None:
        self.plan: _Plan | None = None

    def repeat(
        self,
        made_for: object,
        states: torch.Tensor,
        layout: Layout,
        wanted: Collection[int] | None = None,
    ) -> list[torch.Tensor] | None:
        """Hidden states after each layer by the plan that is kept, if it was made for the same.

        With ``wanted``, numbers of layers from 0, those after the other layers may be empty.
        None where another plan is needed: a weight has changed, for example.
        """
        plan = self.plan
        if plan is None or plan.made_for != made_for or not _serves(plan, len(states), layout):
            return None
        return _run(plan, states, layout, wanted)

    def __call__(
        self,
        made_for: object,
        layers: Sequence[ComputedLayer],
        names: AttentionNames,
        states: torch.Tensor,
        dtype: torch.dtype,
        layout: Layout,
    ) -> list[torch.Tensor] | None:
        """Hidden states after each layer; None where the layers are to be run one by one."""
        in_c = _in_c(layers, states)
        if in_c is None:
            return None
        settings, *others = {settings_of(layer.parts.attention, names) for layer in layers}
        like_qkv = torch.empty(0, dtype=dtype, device="cpu")
        if others or settings.dropout or not can_fuse_attention(like_qkv, layout, settings):
            return None
        plan = self.plan = _Plan(
            made_for, layers[0].module, layers[0].products.packed, EncoderWeights(in_c), settings,
            like_qkv, _watch_of(layers),
        )  # fmt: skip
        return _run(plan, states, layout)


def _serves(plan: _Plan, n_tokens: int, layout: Layout) -> bool:
    """Whether a plan is for such a batch, and its weights are as they were when it was made."""
    is_inference = not (plan.first.training or torch.is_grad_enabled())
    can_attend = can_fuse_attention(plan.like_qkv, layout, plan.settings)
    fits = can_attend and plan.fits(n_tokens) is not None
    return is_inference and fits and not plan.watch.has_changed()


def _run(
    plan: _Plan, states: torch.Tensor, layout: Layout, wanted: Collection[int] | None = None
) -> list[torch.Tensor]:
    return encoder_forward(
        states=states.contiguous(), weights=plan.weights, rows=PackedRows(layout.cu_seqlens),
        settings=plan.settings, dtype=plan.like_qkv.dtype, wanted=wanted,
    )  # fmt: skip


def _in_c(layers: Sequence[ComputedLayer], states: torch.Tensor) -> list[EncoderLayer] | None:
    """The layers as C reads them; None where kernels do not compute all of their steps."""
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
    return not (drops or chunked)


def _watch_of(layers: Sequence[ComputedLayer]) -> Watch:
    norms = [norm for layer in layers for norm in layer.parts.norms]
    linears = [linear for layer in layers for linear in _linear_modules(layer.parts)]
    return Watch([*linears, *norms], [(vars(norm), "eps") for norm in norms])


def _linear_modules(parts: LayerParts[Any]) -> tuple[Any, ...]:
    return *parts.qkv, parts.attention_out, parts.mlp_in, parts.mlp_out


def _norms(parts: LayerParts[Any]) -> list[EncoderNorm]:
    return [EncoderNorm(norm.weight, norm.bias, norm.eps) for norm in parts.norms]
