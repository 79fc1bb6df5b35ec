"""Encoder layers over packed batches on a CPU, with few passes over memory.

The arithmetic is that of transformers' modules, whose parameters are read where they are. In
training, rows of similar length share one call of attention, whose backward pass is written by
hand, and dropout draws fewer random numbers. Depends on torch, ``packed``, ``bindings``,
``fused``, ``linear`` and the record of a family; knows no task.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from skbert._arrays import IntArray
from skbert._core.attention.packed import causal_mask, within_rows
from skbert._core.attention.relative import has_distances
from skbert._core.cpu.bindings.attention import AttentionSettings, PackedRows
from skbert._core.cpu.fused import (
    can_fuse_attention,
    can_fuse_layernorm,
    can_fuse_linear,
    fused_attention,
    fused_layernorm,
)
from skbert._core.cpu.linear import GradsByWeight, LayerProducts, ProductCache
from skbert._core.families.record import AttentionNames, Family, LayerParts
from skbert._core.task import Layout

__all__ = ["Layers", "can_compute"]

# Scores per head that padding may cost when rows share a call: about what another call costs.
_SPARE_SCORES = 2000
# oneDNN, unlike the kernels, prepares a product anew for each size that it has not seen.
_TOKENS_STEP, _LENGTH_STEP = 16, 4
_MAX_GROUPED_LENGTH = 512
_DRAWN_BELOW = 1 << 15  # the numbers that dropout draws


class Layers:
    """Computes encoder layers, and caches what it makes of their weights.

    Attributes
    ----------
    is_enabled : bool
        Whether layers on a CPU are computed here. Otherwise, and on other devices, their modules
        run, with any hooks that they have.
    """

    def __init__(self, *, is_enabled: bool = True) -> None:
        self.is_enabled = is_enabled
        self.products: dict[Any, ProductCache] = {}  # by the layer's module
        self.bf16_grads: GradsByWeight | None = None

    def reset(self, bf16_grads: GradsByWeight | None = None) -> None:
        """Clear the caches, and put gradients in bfloat16 into ``bf16_grads`` from now on."""
        self.products, self.bf16_grads = {}, bf16_grads

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without the caches."""
        return {"is_enabled": self.is_enabled, "products": {}, "bf16_grads": None}

    def __call__(
        self, family: Family, modules: Sequence[Any], states: torch.Tensor, layout: Layout
    ) -> list[torch.Tensor]:
        """Hidden states ``(n_tokens, size)`` after each layer, from ``(1, n_tokens, size)``."""
        if self.is_enabled and states.is_cpu:
            return self._compute(family, modules, states[0], layout)
        all_states = []
        for module in modules:
            states = module(states, attention_mask=None, layout=layout)
            all_states.append(states[0])
        return all_states

    def _compute(
        self, family: Family, modules: Sequence[Any], states: torch.Tensor, layout: Layout
    ) -> list[torch.Tensor]:
        dtype = states.dtype
        if torch.is_autocast_enabled("cpu"):
            dtype = torch.get_autocast_dtype("cpu")
        training = torch.is_grad_enabled() or any(module.training for module in modules[:1])
        caches = [self._cache_of(family, module) for module in modules]
        rows, n_tokens = _Rows(layout, training=training), states.shape[0]
        if training:
            states = _pad_tokens(states, caches, dtype)
        names, rounded, all_states = family.attention, states.to(dtype), []
        with torch.autocast("cpu", enabled=False):
            for module, cache in zip(modules, caches, strict=True):
                products = cache(dtype, training=training)
                arguments = cache.parts, names, products, states, rounded, rows
                if module.training and getattr(module, "gradient_checkpointing", False):
                    states, rounded = checkpoint(_run_layer, *arguments, use_reentrant=False)
                else:
                    states, rounded = _run_layer(*arguments)
                all_states.append(states[:n_tokens])
        return all_states

    def _cache_of(self, family: Family, module: Any) -> ProductCache:
        if module not in self.products:
            self.products[module] = ProductCache(family.layer_parts(module), self.bf16_grads)
        return self.products[module]


def can_compute(family: Family, module: Any) -> bool:
    """Whether the weights of a layer are plain tensors of sizes that belong together."""
    parts = family.layer_parts(module)
    linears = *parts.qkv, parts.attention_out, parts.mlp_in, parts.mlp_out
    if any(linear.bias is None for linear in linears):
        return False
    size, width = len(parts.attention_out.weight), len(parts.qkv[0].weight)
    mlp_size = len(parts.mlp_in.weight)
    shapes = [(width, size)] * 3 + [(size, width), (mlp_size, size), (size, mlp_size)]
    return (
        all(type(weight.data) is torch.Tensor for weight in module.parameters())
        and [linear.weight.shape for linear in linears] == shapes
        and [len(linear.bias) for linear in linears] == [n_out for n_out, _ in shapes]
        and width % getattr(parts.attention, family.attention.head_size) == 0
    )


def _pad_tokens(
    states: torch.Tensor, caches: Sequence[ProductCache], dtype: torch.dtype
) -> torch.Tensor:
    """States to train on, with padding tokens at the end where that saves time."""
    weights = [cache.parts.mlp_out.weight for cache in caches[:1]]
    n_more = 0 if can_fuse_linear(weights, dtype) else -len(states) % _TOKENS_STEP
    return F.pad(states, (0, 0, 0, n_more)) if n_more else states


def _run_layer(
    parts: LayerParts[Any],
    names: AttentionNames,
    products: LayerProducts,
    states: torch.Tensor,
    rounded: torch.Tensor,
    rows: _Rows,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Hidden states after a layer, and the same rounded for the products of the next."""
    context = _attention(parts.attention, names, products.qkv(rounded), rows)
    states, rounded = _add_and_norm(
        products.attention_out(context), states, parts.attention_dropout, parts.attention_norm
    )
    size = parts.attention.config.chunk_size_feed_forward
    if size:
        output = torch.cat([products.mlp(chunk) for chunk in torch.split(rounded, size)])
    else:
        output = products.mlp(rounded)
    return _add_and_norm(output, states, parts.mlp_dropout, parts.mlp_norm)


def _add_and_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    dropout: torch.nn.Dropout | None,
    norm: torch.nn.LayerNorm,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Layer normalisation of ``x`` after dropout plus the residual, and that rounded."""
    rate = dropout.p if dropout is not None and dropout.training else 0.0
    weight, bias = norm.weight, norm.bias  # looking them up takes a while
    if can_fuse_layernorm(x, residual, weight, bias):
        return fused_layernorm(x, residual, weight, bias, norm.eps, rate)
    states = norm(residual + (x * _dropout_mask(x, rate) if rate else x))
    return states, states.to(x.dtype)


def _attention(module: Any, names: AttentionNames, qkv: torch.Tensor, rows: _Rows) -> torch.Tensor:
    """Attention from query, key and value side by side, by the fastest way that can be used."""
    rate = getattr(module, names.dropout).p if module.training else 0.0
    head_size, scaling = getattr(module, names.head_size), getattr(module, names.scaling)
    relative = has_distances(module)
    settings = AttentionSettings(head_size, scaling, module.is_causal, rate)
    if can_fuse_attention(qkv, rows.layout, settings) and not relative:
        return fused_attention(qkv, rows.packed, settings)
    if relative or not rows.can_group:
        q, k, v = qkv.view(len(qkv), 3, -1, head_size).unbind(1)
        output = within_rows(module, q, k, v, rows.layout.runs, rate, scaling).flatten(1)
        n_more = len(qkv) - len(output)
        return F.pad(output, (0, 0, 0, n_more)) if n_more else output
    return torch.as_tensor(_GroupedAttention.apply(qkv, rows.groups, settings))  # type: ignore[no-untyped-call]


def _dropout_mask(like: torch.Tensor, rate: float) -> torch.Tensor:
    """Factors of dropout: 0 for a share of ``rate``, about ``1 / (1 - rate)`` for the rest.

    One draw of torch's generator, which is slow, serves four numbers of 15 bits.
    """
    draws = torch.empty(-(-like.numel() // 4), dtype=torch.int64).random_()
    numbers = draws.view(torch.int16)[: like.numel()].bitwise_and_(_DRAWN_BELOW - 1)
    bound = min(round(rate * _DRAWN_BELOW), _DRAWN_BELOW - 1)
    mask = (numbers >= bound).to(like.dtype).mul_(_DRAWN_BELOW / (_DRAWN_BELOW - bound))
    return mask.view_as(like)


class _Group(NamedTuple):
    """Neighbouring rows that share one call; the shorter ones are padded inside it."""

    tokens: slice
    n_rows: int
    max_seqlen: int
    is_token: torch.Tensor | None  # (n_rows, max_seqlen), False for padding; None: no padding

    def pad(self, values: torch.Tensor) -> torch.Tensor:
        """The rows of ``values``, one for each token, with rows of zeros for padding."""
        if self.is_token is None:
            return values
        padded = values.new_zeros(self.is_token.numel(), values.shape[1])
        padded[self.is_token.flatten()] = values
        return padded

    def unpad(self, values: torch.Tensor) -> torch.Tensor:
        """The rows of ``values`` that belong to tokens."""
        return values if self.is_token is None else values[self.is_token.flatten()]

    def masked(self, *, is_causal: bool) -> torch.Tensor | None:
        """True at scores to mask; broadcasts to ``(n_rows, n_heads, max_seqlen, max_seqlen)``."""
        masked = None if self.is_token is None else ~self.is_token[:, None, None]
        if not is_causal:
            return masked
        ahead = causal_mask(self.max_seqlen)
        return ahead if masked is None else masked | ahead


class _Rows:
    """The rows of a batch in the forms that attention reads, each made when it is needed."""

    def __init__(self, layout: Layout, *, training: bool) -> None:
        self.layout = layout
        # Weights are stored in groups, so that inference and long rows have none.
        self.can_group = training and layout.max_seqlen <= _MAX_GROUPED_LENGTH

    @cached_property
    def packed(self) -> PackedRows:
        """The rows for the kernel."""
        return PackedRows(self.layout.cu_seqlens)

    @cached_property
    def groups(self) -> list[_Group]:
        """The rows for training without the kernel."""
        return _group_rows(self.layout.lengths)


def _group_rows(lengths: IntArray) -> list[_Group]:
    """Rows, ascending by length, in groups that need little padding."""
    groups: list[_Group] = []
    ends = np.cumsum(lengths)
    last = len(lengths)
    while last:
        max_seqlen = int(lengths[last - 1])
        max_seqlen += -max_seqlen % _LENGTH_STEP
        spare = np.cumsum(max_seqlen**2 - lengths[:last][::-1] ** 2)
        first = last - max(1, int(np.searchsorted(spare, _SPARE_SCORES, side="right")))
        own = lengths[first:last]
        is_token = torch.from_numpy(np.arange(max_seqlen) < own[:, None])
        tokens = slice(int(ends[first] - own[0]), int(ends[last - 1]))
        groups.append(
            _Group(tokens, len(own), max_seqlen, is_token if own[0] < max_seqlen else None)
        )
        last = first
    return groups


class _GroupedAttention(torch.autograd.Function):
    """Attention within rows from ``(n_tokens, 3 * n_heads * head_size)``, a third of it back."""

    @staticmethod
    def forward(
        ctx: Any, qkv: torch.Tensor, groups: list[_Group], settings: AttentionSettings
    ) -> torch.Tensor:
        output, saved = qkv.new_zeros(len(qkv), qkv.shape[1] // 3), []
        n_heads = output.shape[1] // settings.head_size
        for group in groups:
            shape = (group.n_rows, group.max_seqlen, 3, n_heads, settings.head_size)
            states = group.pad(qkv[group.tokens]).view(shape).permute(2, 0, 3, 1, 4)
            q, k, v = states.flatten(1, 2).contiguous()
            q = q * settings.scaling
            scores = torch.bmm(q, k.transpose(1, 2))
            masked = group.masked(is_causal=settings.is_causal)
            if masked is not None:
                scores.view(group.n_rows, n_heads, *scores.shape[1:]).masked_fill_(
                    masked, -torch.inf
                )
            weights = torch.softmax(scores, dim=-1)
            mask = _dropout_mask(weights, settings.dropout) if settings.dropout else None
            out = torch.bmm(weights if mask is None else weights * mask, v)
            out = out.view(group.n_rows, n_heads, group.max_seqlen, -1).transpose(1, 2)
            output[group.tokens] = group.unpad(out.reshape(-1, output.shape[1]))
            saved += [q, k, v, weights, mask]
        ctx.save_for_backward(*saved)
        ctx.groups, ctx.scaling = groups, settings.scaling
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (grad_output,) = gradients
        grad_qkv = grad_output.new_zeros(len(grad_output), 3 * grad_output.shape[1])
        saved = iter(ctx.saved_tensors)
        for group, q, k, v, weights, mask in zip(ctx.groups, *[saved] * 5, strict=True):
            n_heads = len(q) // group.n_rows
            shape = (group.n_rows, group.max_seqlen, n_heads, q.shape[2])
            out = group.pad(grad_output[group.tokens]).view(shape).transpose(1, 2)
            out = out.reshape(q.shape)
            grads = torch.empty(3, *q.shape, dtype=q.dtype)
            used = weights if mask is None else weights * mask
            torch.bmm(used.transpose(1, 2), out, out=grads[2])
            grad_weights = torch.bmm(out, v.transpose(1, 2))
            if mask is not None:
                grad_weights *= mask
            grad_scores = torch._softmax_backward_data(grad_weights, weights, -1, weights.dtype)
            torch.bmm(grad_scores, k, out=grads[0]).mul_(ctx.scaling)
            torch.bmm(grad_scores.transpose(1, 2), q, out=grads[1])
            by_token = grads.view(3, *shape[:1], *shape[2:0:-1], -1).permute(1, 3, 0, 2, 4)
            grad_qkv[group.tokens] = group.unpad(by_token.reshape(-1, grad_qkv.shape[1]))
        return grad_qkv, None, None
