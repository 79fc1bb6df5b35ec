"""GELU and its gradient in one pass over memory. Depends on Triton."""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["gelu_backward"]


@triton.jit(do_not_specialize=["n_numbers"])
def gelu_backward(hidden, grad_active, active, grad_hidden, n_numbers, BLOCK: tl.constexpr):
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    is_here = places < n_numbers
    x = tl.load(hidden + places, is_here, 0.0).to(tl.float32)
    grad = tl.load(grad_active + places, is_here, 0.0).to(tl.float32)
    below = 0.5 * (1.0 + tl.erf(x * 0.7071067811865476))  # the normal distribution up to x
    density = 0.3989422804014327 * tl.exp(-0.5 * x * x)
    tl.store(active + places, x * below, is_here)
    tl.store(grad_hidden + places, grad * (below + x * density), is_here)
