"""GELU and its gradient in one pass over memory, and gates. Depends on Triton."""

from __future__ import annotations

import triton
import triton.language as tl

from skbert._core.gpu.kernels.tiles import tile

__all__ = ["gated_backward", "gated_forward", "gelu_backward"]


@triton.jit
def _normal(x):
    """The distribution function of the normal distribution, and its density."""
    below = 0.5 * (1.0 + tl.erf(x * 0.7071067811865476))
    return below, 0.3989422804014327 * tl.exp(-0.5 * x * x)


@triton.jit(do_not_specialize=["n_tokens"])
def gelu_backward(
    hidden, grad_active, active, grad_hidden, sums, n_tokens, size,
    TOKENS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    total = tl.zeros((COLUMNS,), tl.float32)
    for first in range(tl.program_id(0) * TOKENS, n_tokens, tl.num_programs(0) * TOKENS):
        tokens, columns, is_here = tile(first, n_tokens, size, TOKENS, COLUMNS)
        places = tokens * size + columns
        x = tl.load(hidden + places, is_here, 0.0).to(tl.float32)
        grad = tl.load(grad_active + places, is_here, 0.0).to(tl.float32)
        below, density = _normal(x)
        tl.store(active + places, x * below, is_here)
        grad *= below + x * density
        tl.store(grad_hidden + places, grad, is_here)
        total += tl.sum(grad, 0)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    tl.store(sums + tl.program_id(0).to(tl.int64) * size + columns, total, columns < size)


@triton.jit(do_not_specialize=["n_tokens"])
def gated_forward(
    hidden, active, n_tokens, size, TOKENS: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    first = tl.program_id(0) * TOKENS
    tokens, columns, is_here = tile(first, n_tokens, size, TOKENS, COLUMNS)
    own = tokens * (2 * size) + columns  # each token has as many gates behind it
    x = tl.load(hidden + own, is_here, 0.0).to(tl.float32)
    gate = tl.load(hidden + own + size, is_here, 0.0).to(tl.float32)
    below, _ = _normal(x)
    tl.store(active + tokens * size + columns, x * below * gate, is_here)


@triton.jit(do_not_specialize=["n_tokens"])
def gated_backward(
    hidden, grad_active, grad_hidden, n_tokens, size,
    TOKENS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0) * TOKENS
    tokens, columns, is_here = tile(first, n_tokens, size, TOKENS, COLUMNS)
    own = tokens * (2 * size) + columns
    x = tl.load(hidden + own, is_here, 0.0).to(tl.float32)
    gate = tl.load(hidden + own + size, is_here, 0.0).to(tl.float32)
    grad = tl.load(grad_active + tokens * size + columns, is_here, 0.0).to(tl.float32)
    below, density = _normal(x)
    tl.store(grad_hidden + own, grad * gate * (below + x * density), is_here)
    tl.store(grad_hidden + own + size, grad * x * below, is_here)
