"""GELU and its gradient in one pass over memory, and gates. Depends on Triton."""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["gated_backward", "gated_forward", "gelu_backward"]


@triton.jit
def _normal(x):
    """The distribution function of the normal distribution, and its density."""
    below = 0.5 * (1.0 + tl.erf(x * 0.7071067811865476))
    return below, 0.3989422804014327 * tl.exp(-0.5 * x * x)


@triton.jit(do_not_specialize=["n_numbers"])
def gelu_backward(hidden, grad_active, active, grad_hidden, n_numbers, BLOCK: tl.constexpr):
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    is_here = places < n_numbers
    x = tl.load(hidden + places, is_here, 0.0).to(tl.float32)
    grad = tl.load(grad_active + places, is_here, 0.0).to(tl.float32)
    below, density = _normal(x)
    tl.store(active + places, x * below, is_here)
    tl.store(grad_hidden + places, grad * (below + x * density), is_here)


@triton.jit(do_not_specialize=["n_numbers"])
def gated_forward(hidden, active, n_numbers, size, BLOCK: tl.constexpr):
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    is_here = places < n_numbers
    own = places + places // size * size  # each row has as many gates behind it
    x = tl.load(hidden + own, is_here, 0.0).to(tl.float32)
    gate = tl.load(hidden + own + size, is_here, 0.0).to(tl.float32)
    below, _ = _normal(x)
    tl.store(active + places, x * below * gate, is_here)


@triton.jit(do_not_specialize=["n_numbers"])
def gated_backward(hidden, grad_active, grad_hidden, n_numbers, size, BLOCK: tl.constexpr):
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    is_here = places < n_numbers
    own = places + places // size * size
    x = tl.load(hidden + own, is_here, 0.0).to(tl.float32)
    gate = tl.load(hidden + own + size, is_here, 0.0).to(tl.float32)
    grad = tl.load(grad_active + places, is_here, 0.0).to(tl.float32)
    below, density = _normal(x)
    tl.store(grad_hidden + own, grad * gate * (below + x * density), is_here)
    tl.store(grad_hidden + own + size, grad * x * below, is_here)
