"""Attention within the rows of a packed batch, by the fastest way that can be used.

In training, where the kernel is not used, rows of similar length share one call of attention,
whose backward pass is written by hand, and dropout draws fewer random numbers. Depends on torch,
``packed``, ``bindings``, ``fused`` and the record of a family.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn import functional as F

from skbert._arrays import IntArray
from skbert._core.attention import packed
from skbert._core.attention.packed import causal_mask, within_rows
from skbert._core.attention.relative import has_distances
from skbert._core.attention.settings import AttentionSettings
from skbert._core.cpu.bindings.attention import PackedRows
from skbert._core.cpu.fused import can_fuse_attention, fused_attention
from skbert._core.families.record import AttentionNames
from skbert._core.gpu import operations
from skbert._core.task import Layout

__all__ = ["Rows", "attend", "dropout_mask", "dropout_rate", "settings_of"]

# Scores per head that padding may cost when rows share a call: about what another call costs.
_SPARE_SCORES = 2000
_LENGTH_STEP = 4  # oneDNN, unlike the kernels, prepares a product anew for each size
_MAX_GROUPED_LENGTH = 512
_DRAWN_BELOW = 1 << 15  # the numbers that dropout draws


class Rows:
    """The rows of a batch in the forms that attention reads, each made when it is needed."""

    def __init__(self, layout: Layout, *, training: bool) -> None:
        self.layout, self.training = layout, training

    def can_group(self, sliding_window: int | None) -> bool:
        """Whether rows may share calls, whose weights are stored for the backward pass."""
        longest = self.layout.max_seqlen
        is_local = sliding_window is not None and sliding_window < longest
        return self.training and longest <= _MAX_GROUPED_LENGTH and not is_local

    @cached_property
    def packed(self) -> PackedRows:
        """The rows for the kernel."""
        return PackedRows(self.layout.cu_seqlens)

    def positions(self, n_tokens: int) -> torch.Tensor:
        """Where in its row each token stands, and 0 for further tokens up to so many."""
        layout = self.layout
        first = layout.cu_seqlens[:-1].long()[layout.row_of_token]
        places = torch.arange(len(first), device=first.device) - first
        return F.pad(places, (0, n_tokens - len(places)))

    @cached_property
    def groups(self) -> list[_Group]:
        """The rows for training without the kernel."""
        return _group_rows(self.layout.lengths)


def attend(
    module: Any,
    names: AttentionNames,
    qkv: torch.Tensor,
    rows: Rows,
    sliding_window: int | None = None,
) -> torch.Tensor:
    """Attention from query, key and value side by side, by the fastest way that can be used."""
    settings = settings_of(module, names, sliding_window)
    if operations.is_on_gpu(qkv):
        return _attend_on_gpu(module, qkv, rows.layout, settings)
    relative = has_distances(module)
    if can_fuse_attention(qkv, rows.layout, settings) and not relative:
        return fused_attention(qkv, rows.packed, settings)
    if not relative and rows.can_group(sliding_window):
        return torch.as_tensor(_GroupedAttention.apply(qkv, rows.groups, settings))  # type: ignore[no-untyped-call]
    q, k, v = qkv.view(len(qkv), 3, -1, settings.head_size).unbind(1)
    how = settings.dropout, settings.scaling, sliding_window
    output = within_rows(module, q, k, v, rows.layout.runs, *how).flatten(1)
    n_more = len(qkv) - len(output)
    return F.pad(output, (0, 0, 0, n_more)) if n_more else output


def _attend_on_gpu(
    module: torch.nn.Module, qkv: torch.Tensor, layout: Layout, settings: AttentionSettings
) -> torch.Tensor:
    if operations.can_fuse_attention(qkv, layout, settings) and not has_distances(module):
        return operations.fused_attention(qkv, layout, settings)
    states = qkv.view(1, len(qkv), 3, -1, settings.head_size).transpose(1, 3).unbind(2)
    output, _ = packed.attention(
        module, *states, layout=layout, dropout=settings.dropout, scaling=settings.scaling,
        sliding_window=settings.sliding_window,
    )  # fmt: skip
    return torch.as_tensor(output).flatten(2)[0]


def settings_of(
    module: Any, names: AttentionNames, sliding_window: int | None = None
) -> AttentionSettings:
    """What a layer's attention module computes."""
    dropout, head_size = getattr(module, names.dropout), getattr(module, names.head_size)
    rate = getattr(dropout, "p", dropout) if module.training else 0.0
    scaling = getattr(module, names.scaling, None)
    scaling = head_size**-0.5 if scaling is None else scaling
    return AttentionSettings(head_size, scaling, module.is_causal, rate, sliding_window)


def dropout_rate(dropout: torch.nn.Module | None) -> float:
    """The share that a module drops now, 0 if it is no dropout."""
    if isinstance(dropout, torch.nn.Dropout) and dropout.training:
        return dropout.p
    return 0.0


def dropout_mask(like: torch.Tensor, rate: float) -> torch.Tensor:
    """Factors of dropout: 0 for a share of ``rate``, about ``1 / (1 - rate)`` for the rest.

    One draw of torch's generator, which is slow, serves four numbers of 15 bits.
    """
    draws = like.new_empty(-(-like.numel() // 4), dtype=torch.int64).random_()
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
            mask = dropout_mask(weights, settings.dropout) if settings.dropout else None
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
