"""Layers as BERT's: each sum with the residual is normalised.

The arithmetic is that of transformers' modules, whose parameters are read where they are. Depends
on torch, ``attention``, ``fused``, ``linear`` and the record of a family; knows no task.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from skbert._core.cpu.attention import Rows, attend, dropout_mask, dropout_rate, settings_of
from skbert._core.cpu.fused import can_fuse_layernorm, fused_layernorm
from skbert._core.cpu.linear import ComputedLayer, LayerProducts, has_sizes
from skbert._core.families.record import AttentionNames, LayerParts

__all__ = ["add_and_norm", "can_compute", "run_layers"]


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
) -> Iterator[torch.Tensor]:
    """Yield hidden states after each layer."""
    rounded = states.to(dtype)
    for layer in layers:
        arguments = layer.parts, names, layer.products, states, rounded, rows
        states, rounded = layer.run(_run_layer, *arguments)
        yield states


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
            return products.trained(states, rounded, rows, settings)
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
