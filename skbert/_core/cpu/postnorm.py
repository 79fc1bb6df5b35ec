"""Layers as BERT's: each sum with the residual is normalised.

The arithmetic is that of transformers' modules, whose parameters are read where they are. Depends
on torch, ``attention``, ``fused``, ``linear``, ``trained_layer`` and the record of a family; knows
no task.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

import torch

from skbert._core.attention.settings import AttentionSettings
from skbert._core.cpu.attention import Rows, attend, dropout_mask, dropout_rate, settings_of
from skbert._core.cpu.fused import can_fuse_layernorm, fused_layernorm
from skbert._core.cpu.linear import ComputedLayer, LayerProducts, has_sizes
from skbert._core.cpu.trained_layer import run_together
from skbert._core.families.record import AttentionNames, LayerParts

__all__ = ["add_and_norm", "can_compute", "run_layers"]

# Of gradients of layers that are trained in one call, beside which all of their activations stay.
_MOST_BYTES = 64 << 20


def can_compute(parts: LayerParts[Any], names: AttentionNames) -> bool:
    """Whether the weights of a layer are of sizes that belong together."""
    linears = *parts.qkv, parts.attention_out, parts.mlp_in, parts.mlp_out
    size, width = len(parts.attention_out.weight), len(parts.qkv[0].weight)
    mlp_size = len(parts.mlp_in.weight)
    shapes = [(width, size)] * 3 + [(size, width), (mlp_size, size), (size, mlp_size)]
    head_size = getattr(parts.attention, names.head_size)
    is_like = len({linear.bias is None for linear in parts.qkv}) == 1  # they are one product
    return is_like and has_sizes(linears, shapes) and width % head_size == 0


def run_layers(
    layers: Iterable[ComputedLayer],
    names: AttentionNames,
    states: torch.Tensor,
    dtype: torch.dtype,
    rows: Rows,
    wanted: Collection[int],
) -> Iterator[torch.Tensor]:
    """Yield hidden states after each layer.

    After layers that are not ``wanted``, which are numbers from 0, it may be those of a later one.
    """
    rounded = states.to(dtype)
    call_of = partial(_call_of, names, rounded, rows, wanted)
    for call, numbered in groupby(enumerate(layers), call_of):
        together = [layer for _, layer in numbered]
        if isinstance(call, _Call):
            trained = [x for layer in together if (x := layer.products.trained) is not None]
            states, rounded = run_together(trained, states, rounded, rows, call.settings)
        else:
            (layer,) = together
            arguments = layer.parts, names, layer.products, states, rounded, rows
            states, rounded = layer.run(_run_layer, *arguments)
        yield from [states] * len(together)


class _Call(NamedTuple):
    """What layers have in common that are trained in one call."""

    settings: AttentionSettings
    sizes: tuple[int, int, int]
    n_wanted: int  # layers before them whose results are wanted
    part: int  # of the layers, with gradients of up to `_MOST_BYTES`, or of one layer


def _call_of(
    names: AttentionNames,
    x: torch.Tensor,
    rows: Rows,
    wanted: Collection[int],
    numbered: tuple[int, ComputedLayer],
) -> _Call | int:
    """The call that a layer is trained in; its number where it shares none."""
    number, layer = numbered
    trained = layer.products.trained
    if trained is None or trained.is_alone or layer.is_recomputed:
        return number
    settings, weights = settings_of(layer.parts.attention, names), trained.weights
    if not trained.can_train(x, rows, settings):
        return number
    sizes = weights.size, weights.width, weights.mlp_size
    n_wanted = sum(each < number for each in wanted)
    most = max(1, _MOST_BYTES // (2 * weights.n_grads))
    return _Call(settings, sizes, n_wanted, number // most)


def _run_layer(
    parts: LayerParts[Any],
    names: AttentionNames,
    products: LayerProducts,
    states: torch.Tensor,
    rounded: torch.Tensor,
    rows: Rows,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Hidden states after a layer, and the same rounded for the products of the next."""
    if products.trained is not None:
        settings = settings_of(parts.attention, names)
        if products.trained.can_train(rounded, rows, settings):
            return run_together([products.trained], states, rounded, rows, settings)
    context = attend(parts.attention, names, products.qkv(rounded), rows)
    states, rounded = add_and_norm(
        products.attention_out(context), states, parts.attention_dropout, parts.attention_norm
    )
    size = parts.attention.config.chunk_size_feed_forward
    if size:
        output = torch.cat([products.mlp(chunk) for chunk in torch.split(rounded, size)])
    else:
        output = products.mlp(rounded)
    return add_and_norm(output, states, parts.mlp_dropout, parts.mlp_norm)


def add_and_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    dropout: torch.nn.Module | None,
    norm: torch.nn.LayerNorm,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Layer normalisation of ``x`` after dropout plus the residual, and that rounded."""
    rate = dropout_rate(dropout)
    weight, bias = norm.weight, norm.bias  # looking them up takes a while
    if can_fuse_layernorm(x, residual, weight, bias):
        return fused_layernorm(x, residual, weight, bias, norm.eps, rate)
    states = norm(residual + (x * dropout_mask(x, rate) if rate else x))
    return states, states.to(x.dtype)
