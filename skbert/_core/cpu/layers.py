"""BERT's encoder layers over packed batches on a CPU, with few passes over memory.

The arithmetic is that of transformers' modules, whose parameters are read where they are. While
learning, rows of about one length share their attention, whose backward pass is written out, and
dropout draws fewer random numbers. Depends on torch, ``packed``, ``bindings`` and
``linear``; knows no task.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from skbert._arrays import IntArray
from skbert._core.attention.packed import later, within_rows
from skbert._core.attention.relative import reads_distances
from skbert._core.cpu.bindings import attend, attends, normalise, normalises, rounds
from skbert._core.cpu.linear import Gradients, Products, ProductsOf
from skbert._core.task import Layout

__all__ = ["Layers", "can_compute"]

# Scores per head that rows may compute for nothing to share a call: about what a call costs.
_SPARE_SCORES = 2000
# oneDNN, unlike the kernels, prepares a product anew for each size that it has not seen.
_TOKENS_STEP, _PLACES_STEP = 16, 4
_DRAWN_BELOW = 1 << 15  # the numbers that dropout draws


class Layers:
    """Computes encoder layers, and keeps what it makes of their weights.

    Attributes
    ----------
    own : bool
        Whether they are computed here on a CPU; elsewhere, and without, their modules run, with
        the hooks that these may have.
    """

    def __init__(self, *, own: bool = True) -> None:
        self.own = own
        self.products: dict[Any, ProductsOf] = {}  # by the layer's module
        self.low: Gradients | None = None

    def forget(self, low: Gradients | None = None) -> None:
        """Keep nothing; have gradients in lower precision than their weights in ``low``."""
        self.products, self.low = {}, low

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without what was made of the weights."""
        return {"own": self.own, "products": {}, "low": None}

    def __call__(
        self, modules: Sequence[Any], states: torch.Tensor, layout: Layout
    ) -> list[torch.Tensor]:
        """Hidden states ``(n_tokens, size)`` after each layer, from ``(1, n_tokens, size)``."""
        if self.own and states.is_cpu:
            return self._compute(modules, states[0], layout)
        found = []
        for module in modules:
            states = module(states, attention_mask=None, layout=layout)
            found.append(states[0])
        return found

    def _compute(
        self, modules: Sequence[Any], states: torch.Tensor, layout: Layout
    ) -> list[torch.Tensor]:
        low = states.dtype
        if torch.is_autocast_enabled("cpu"):
            low = torch.get_autocast_dtype("cpu")
        learning = torch.is_grad_enabled() or any(module.training for module in modules[:1])
        groups, n_tokens = None, states.shape[0]
        if learning:
            groups = cache(partial(_groups, layout.lengths))
            states = _padded(states, modules, low)
        rounded, found = states.to(low), []
        with torch.autocast("cpu", enabled=False):
            for module in modules:
                if module not in self.products:
                    self.products[module] = ProductsOf(module, self.low)
                products = self.products[module](low, learning=learning)
                given = module, products, states, rounded, layout, groups
                if module.training and module.gradient_checkpointing:
                    states, rounded = checkpoint(_layer, *given, use_reentrant=False)
                else:
                    states, rounded = _layer(*given)
                found.append(states[:n_tokens])
        return found


def can_compute(module: Any) -> bool:
    """Whether the weights of a layer are plain tensors of sizes that belong together."""
    own, wide, narrow = module.attention.self, module.intermediate.dense, module.output.dense
    mixed = module.attention.output.dense
    linears = own.query, own.key, own.value, mixed, wide, narrow
    if any(linear.bias is None for linear in linears):
        return False
    size, joined, inner = len(mixed.weight), len(own.query.weight), len(wide.weight)
    sizes = [(joined, size)] * 3 + [(size, joined), (inner, size), (size, inner)]
    return (
        all(type(weight.data) is torch.Tensor for weight in module.parameters())
        and [linear.weight.shape for linear in linears] == sizes
        and [len(linear.bias) for linear in linears] == [n_out for n_out, _ in sizes]
        and joined % own.attention_head_size == 0
    )


def _padded(states: torch.Tensor, modules: Sequence[Any], dtype: torch.dtype) -> torch.Tensor:
    """States to learn from, with tokens of no row behind them where that saves time."""
    weights = [module.output.dense.weight for module in modules[:1]]
    missing = 0 if rounds(weights, dtype) else -len(states) % _TOKENS_STEP
    return F.pad(states, (0, 0, 0, missing)) if missing else states


def _layer(
    module: Any,
    products: Products,
    states: torch.Tensor,
    rounded: torch.Tensor,
    layout: Layout,
    groups: Callable[[], list[_Group]] | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Hidden states after a layer, and the same rounded for the products of the next."""
    joined = products.join(rounded)
    found = products.mix(_attention(module.attention.self, joined, layout, groups))
    states, rounded = _normed(module.attention.output, found, states)
    size = module.attention.self.config.chunk_size_feed_forward
    if size:
        found = torch.cat([products.feed(chunk) for chunk in torch.split(rounded, size)])
    else:
        found = products.feed(rounded)
    return _normed(module.output, found, states)


def _normed(
    output: Any, found: torch.Tensor, states: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """What ``output`` makes of its product and of what went around it, and that rounded."""
    norm, dropout = output.LayerNorm, output.dropout
    rate = dropout.p if dropout.training else 0.0
    if normalises(found, states, norm):
        return normalise(found, states, norm.weight, norm.bias, norm.eps, rate)
    whole = norm(states + (found * _kept(found, rate) if rate else found))
    return whole, whole.to(found.dtype)


def _attention(
    own: Any,
    joined: torch.Tensor,
    layout: Layout,
    groups: Callable[[], list[_Group]] | None,
) -> torch.Tensor:
    """From query, key and value side by side; in groups, or exactly as the rows come."""
    size, rate = own.attention_head_size, own.dropout.p if own.training else 0.0
    if attends(joined, layout, size) and not reads_distances(own):
        return attend(joined, layout, size, own.scaling, own.is_causal, rate)
    if groups is None or reads_distances(own):
        q, k, v = joined.view(len(joined), 3, -1, size).unbind(1)
        rows = within_rows(own, q, k, v, layout.runs, rate, own.scaling).flatten(1)
        missing = len(joined) - len(rows)
        return F.pad(rows, (0, 0, 0, missing)) if missing else rows
    found: torch.Tensor = _Attention.apply(  # type: ignore[no-untyped-call]
        joined, groups(), size, own.scaling, own.is_causal, rate
    )
    return found


def _kept(like: torch.Tensor, rate: float) -> torch.Tensor:
    """Factors of dropout: 0 for a share of ``rate``, and for the rest what makes up for it.

    One draw of torch's generator, which is slow, serves four numbers of 15 bits.
    """
    draws = torch.empty(-(-like.numel() // 4), dtype=torch.int64).random_()
    numbers = draws.view(torch.int16)[: like.numel()].bitwise_and_(_DRAWN_BELOW - 1)
    bound = min(round(rate * _DRAWN_BELOW), _DRAWN_BELOW - 1)
    keeps = (numbers >= bound).to(like.dtype).mul_(_DRAWN_BELOW / (_DRAWN_BELOW - bound))
    return keeps.view_as(like)


class _Group(NamedTuple):
    """Neighbouring rows that share one call; the shorter ones are padded inside it."""

    tokens: slice
    n_rows: int
    max_seqlen: int
    filled: torch.Tensor | None  # (n_rows, longest), False where it is padding; None: nowhere

    def pad(self, values: torch.Tensor) -> torch.Tensor:
        """Zeros between the rows of ``values``, one row per place instead of one per token."""
        if self.filled is None:
            return values
        padded = values.new_zeros(self.filled.numel(), values.shape[1])
        padded[self.filled.flatten()] = values
        return padded

    def pick(self, values: torch.Tensor) -> torch.Tensor:
        """The rows of ``values`` that belong to tokens."""
        return values if self.filled is None else values[self.filled.flatten()]

    def unseen(self, *, causal: bool) -> torch.Tensor | None:
        """Scores that do not count, like ``(n_rows, n_heads, longest, longest)``."""
        unseen = None if self.filled is None else ~self.filled[:, None, None]
        if not causal:
            return unseen
        ahead = later(self.max_seqlen)
        return ahead if unseen is None else unseen | ahead


def _groups(lengths: IntArray) -> list[_Group]:
    """Rows, ascending by length, in groups that compute few scores for nothing."""
    groups: list[_Group] = []
    ends = np.cumsum(lengths)
    last = len(lengths)
    while last:
        longest = int(lengths[last - 1])
        longest += -longest % _PLACES_STEP
        spare = np.cumsum(longest**2 - lengths[:last][::-1] ** 2)
        first = last - max(1, int(np.searchsorted(spare, _SPARE_SCORES, side="right")))
        own = lengths[first:last]
        filled = torch.from_numpy(np.arange(longest) < own[:, None])
        tokens = slice(int(ends[first] - own[0]), int(ends[last - 1]))
        groups.append(_Group(tokens, len(own), longest, filled if own[0] < longest else None))
        last = first
    return groups


class _Attention(torch.autograd.Function):
    """Attention within rows from ``(n_tokens, 3 * n_heads * head_size)``, a third of it back."""

    @staticmethod
    def forward(
        ctx: Any,
        joined: torch.Tensor,
        groups: list[_Group],
        head_size: int,
        scaling: float,
        causal: bool,
        rate: float,
    ) -> torch.Tensor:
        found, saved = joined.new_zeros(len(joined), joined.shape[1] // 3), []
        n_heads = found.shape[1] // head_size
        for group in groups:
            shape = (group.n_rows, group.max_seqlen, 3, n_heads, head_size)
            states = group.pad(joined[group.tokens]).view(shape).permute(2, 0, 3, 1, 4)
            q, k, v = states.flatten(1, 2).contiguous()
            q = q * scaling
            scores = torch.bmm(q, k.transpose(1, 2))
            unseen = group.unseen(causal=causal)
            if unseen is not None:
                scores.view(group.n_rows, n_heads, *scores.shape[1:]).masked_fill_(
                    unseen, -torch.inf
                )
            weights = torch.softmax(scores, dim=-1)
            kept = _kept(weights, rate) if rate else None
            out = torch.bmm(weights if kept is None else weights * kept, v)
            out = out.view(group.n_rows, n_heads, group.max_seqlen, -1).transpose(1, 2)
            found[group.tokens] = group.pick(out.reshape(-1, found.shape[1]))
            saved += [q, k, v, weights, kept]
        ctx.save_for_backward(*saved)
        ctx.groups, ctx.scaling = groups, scaling
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (outer,) = gradients
        joined = outer.new_zeros(len(outer), 3 * outer.shape[1])
        saved = iter(ctx.saved_tensors)
        for group, q, k, v, weights, kept in zip(ctx.groups, *[saved] * 5, strict=True):
            n_heads = len(q) // group.n_rows
            shape = (group.n_rows, group.max_seqlen, n_heads, q.shape[2])
            out = group.pad(outer[group.tokens]).view(shape).transpose(1, 2).reshape(q.shape)
            inner = torch.empty(3, *q.shape, dtype=q.dtype)
            used = weights if kept is None else weights * kept
            torch.bmm(used.transpose(1, 2), out, out=inner[2])
            by_weight = torch.bmm(out, v.transpose(1, 2))
            if kept is not None:
                by_weight *= kept
            by_score = torch._softmax_backward_data(by_weight, weights, -1, weights.dtype)
            torch.bmm(by_score, k, out=inner[0]).mul_(ctx.scaling)
            torch.bmm(by_score.transpose(1, 2), q, out=inner[1])
            by_place = inner.view(3, *shape[:1], *shape[2:0:-1], -1).permute(1, 3, 0, 2, 4)
            joined[group.tokens] = group.pick(by_place.reshape(-1, joined.shape[1]))
        return joined, None, None, None, None, None
