"""Layer normalisation after dropout and a residual, and its gradient. Depends on Triton."""

from __future__ import annotations

import triton
import triton.language as tl

from skbert._core.gpu.kernels.random import dropped, kept, shifted

__all__ = ["layernorm_backward", "layernorm_forward"]


@triton.jit(do_not_specialize=["n_tokens", "seed"])
def layernorm_forward(
    x, residual, weight, bias, output, rounded, rstd, normalized, total,
    n_tokens, size, epsilon, dropout, seed, shift,
    BLOCK: tl.constexpr, ROWS: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    seed = shifted(seed, shift)
    tokens = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK)
    places = tokens.to(tl.int64)[:, None] * size + columns
    is_column = columns < size
    is_here = (tokens < n_tokens)[:, None] & is_column
    values = tl.load(x + places, is_here, 0.0).to(tl.float32)
    if DROPS:
        values = dropped(values, kept(seed, places, dropout), dropout)
    values += tl.load(residual + places, is_here, 0.0)
    if total is not None:
        tl.store(total + places, values, is_here)
    centered = values - tl.sum(values, 1)[:, None] / size
    variance = tl.sum(tl.where(is_column, centered * centered, 0.0), 1) / size
    inverse = 1.0 / tl.sqrt(variance + epsilon)
    # Of a variance too large for float32: 0 would make a token the bias.
    inverse = tl.where(variance < float("inf"), inverse, float("nan"))
    normal = centered * inverse[:, None]
    tl.store(rstd + tokens, inverse, tokens < n_tokens)
    if normalized is not None:
        tl.store(normalized + places, normal, is_here)
    result = normal * tl.load(weight + columns, is_column, 0.0)
    if bias is not None:
        result += tl.load(bias + columns, is_column, 0.0)
    if output is not None:
        tl.store(output + places, result, is_here)
    if rounded is not None:
        tl.store(rounded + places, result, is_here)


@triton.jit(do_not_specialize=["n_tokens", "seed"])
def layernorm_backward(
    normalized, rstd, weight, grad_sum, grad_output, grad_rounded, grad_x, grad_residual, sums,
    n_tokens, size, dropout, seed, shift,
    BLOCK: tl.constexpr, ROWS: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    seed = shifted(seed, shift)
    columns = tl.arange(0, BLOCK)
    is_column = columns < size
    factors = tl.load(weight + columns, is_column, 0.0)
    weight_sum = tl.zeros((BLOCK,), tl.float32)
    bias_sum = tl.zeros((BLOCK,), tl.float32)
    for first in range(tl.program_id(0) * ROWS, n_tokens, tl.num_programs(0) * ROWS):
        tokens = first + tl.arange(0, ROWS)
        places = tokens.to(tl.int64)[:, None] * size + columns
        is_here = (tokens < n_tokens)[:, None] & is_column
        normal = tl.load(normalized + places, is_here, 0.0).to(tl.float32)
        grad = tl.zeros((ROWS, BLOCK), tl.float32)
        if grad_output is not None:
            grad += tl.load(grad_output + places, is_here, 0.0)
        if grad_rounded is not None:
            grad += tl.load(grad_rounded + places, is_here, 0.0).to(tl.float32)
        weight_sum += tl.sum(grad * normal, 0)
        bias_sum += tl.sum(grad, 0)
        grad *= factors
        along = tl.sum(grad * normal, 1)[:, None] / size
        mean = tl.sum(grad, 1)[:, None] / size
        inverse = tl.load(rstd + tokens, tokens < n_tokens, 0.0)[:, None]
        grad = (grad - normal * along - mean) * inverse
        if grad_sum is not None:
            grad += tl.load(grad_sum + places, is_here, 0.0)
        tl.store(grad_residual + places, grad, is_here)
        if DROPS:
            grad = dropped(grad, kept(seed, places, dropout), dropout)
        tl.store(grad_x + places, grad, is_here)
    at = sums + tl.program_id(0).to(tl.int64) * 2 * size + columns
    tl.store(at, weight_sum, is_column)
    tl.store(at + size, bias_sum, is_column)
