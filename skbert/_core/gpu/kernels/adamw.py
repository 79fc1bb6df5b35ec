"""Steps of AdamW over many tensors, and sums of their squares. Depends on Triton."""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["adamw_step", "sum_squares"]


@triton.jit
def _places(
    address, at, DTYPE: tl.constexpr, NUMBERS: tl.constexpr, ALIGNED: tl.constexpr
):  # fmt: skip
    """Where numbers of a tensor lie from this one on, at a multiple of 16 bytes if ALIGNED."""
    begin = address.to(tl.pointer_type(DTYPE)) + at
    if ALIGNED:
        begin = tl.multiple_of(begin, 16)
    return begin + tl.arange(0, NUMBERS)


@triton.jit
def _gradients(
    gradient, is_bf16, at, is_here, NUMBERS: tl.constexpr, ALIGNED: tl.constexpr
):  # fmt: skip
    """Numbers of a gradient, in float32."""
    if is_bf16:
        g = tl.load(_places(gradient, at, tl.bfloat16, NUMBERS, ALIGNED), is_here).to(tl.float32)
    else:
        g = tl.load(_places(gradient, at, tl.float32, NUMBERS, ALIGNED), is_here)
    return g


@triton.jit
def _step(
    row, at, end, decay, step_size, correction, divisor,
    epsilon, one_minus_beta1, beta2, one_minus_beta2,
    NUMBERS: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """The step of some numbers of a tensor; if ALIGNED, all of them are before its end."""
    weight, gradient, exp_avg, exp_avg_sq, rounded, is_bf16 = row
    is_here = None
    if not ALIGNED:
        is_here = at + tl.arange(0, NUMBERS) < end
    weights = _places(weight, at, tl.float32, NUMBERS, ALIGNED)
    means = _places(exp_avg, at, tl.float32, NUMBERS, ALIGNED)
    squares = _places(exp_avg_sq, at, tl.float32, NUMBERS, ALIGNED)
    w = tl.load(weights, is_here)
    m = tl.load(means, is_here)
    v = tl.load(squares, is_here)
    g = tl.div_rn(_gradients(gradient, is_bf16, at, is_here, NUMBERS, ALIGNED), divisor)
    m += (g - m) * one_minus_beta1
    v = v * beta2 + g * g * one_minus_beta2
    deviation = tl.div_rn(tl.sqrt_rn(v), correction) + epsilon
    w = w * decay - tl.div_rn(step_size * m, deviation)
    tl.store(means, m, is_here)
    tl.store(squares, v, is_here)
    tl.store(weights, w, is_here)
    if rounded != 0:
        tl.store(_places(rounded, at, tl.bfloat16, NUMBERS, ALIGNED), w, is_here)


@triton.jit
def adamw_step(
    tensors, factors, programs, divisor, failed,
    epsilon, one_minus_beta1, beta2, one_minus_beta2,
    NUMBERS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    program = programs + tl.program_id(0) * 2
    number, chunk = tl.load(program), tl.load(program + 1)
    own = tensors + number * 8
    row = (
        tl.load(own), tl.load(own + 1), tl.load(own + 2), tl.load(own + 3), tl.load(own + 4),
        tl.load(own + 5) != 0,
    )  # fmt: skip
    n_numbers, is_aligned = tl.load(own + 6), tl.load(own + 7) != 0
    decay = tl.load(factors + number * 3)
    step_size = tl.load(factors + number * 3 + 1)
    correction = tl.load(factors + number * 3 + 2)
    scale = 1.0
    if divisor is not None:
        scale = tl.load(divisor)
    if failed is not None:
        n_numbers = tl.where(tl.load(failed) == 0.0, n_numbers, 0)
    begin = chunk.to(tl.int64) * CHUNK
    end = tl.minimum(begin + CHUNK, n_numbers)
    for at in range(begin, end, NUMBERS):
        if is_aligned & (at + NUMBERS <= end):
            _step(
                row, at, end, decay, step_size, correction, scale,
                epsilon, one_minus_beta1, beta2, one_minus_beta2, NUMBERS, True,
            )  # fmt: skip
        else:
            _step(
                row, at, end, decay, step_size, correction, scale,
                epsilon, one_minus_beta1, beta2, one_minus_beta2, NUMBERS, False,
            )  # fmt: skip


@triton.jit
def _squares(
    gradient, is_bf16, at, end, NUMBERS: tl.constexpr, ALIGNED: tl.constexpr
):  # fmt: skip
    """Squares of some numbers of a tensor; if ALIGNED, all of them are before its end."""
    is_here = None
    if not ALIGNED:
        is_here = at + tl.arange(0, NUMBERS) < end
    g = _gradients(gradient, is_bf16, at, is_here, NUMBERS, ALIGNED)
    if not ALIGNED:
        g = tl.where(is_here, g, 0.0)
    return g * g


@triton.jit
def sum_squares(tensors, programs, sums, NUMBERS: tl.constexpr, CHUNK: tl.constexpr):
    program = programs + tl.program_id(0) * 2
    number, chunk = tl.load(program), tl.load(program + 1)
    own = tensors + number * 4
    gradient, is_bf16 = tl.load(own), tl.load(own + 1) != 0
    n_numbers, is_aligned = tl.load(own + 2), tl.load(own + 3) != 0
    begin = chunk.to(tl.int64) * CHUNK
    end = tl.minimum(begin + CHUNK, n_numbers)
    total = tl.zeros((NUMBERS,), tl.float32)
    for at in range(begin, end, NUMBERS):
        if is_aligned & (at + NUMBERS <= end):
            total += _squares(gradient, is_bf16, at, end, NUMBERS, True)
        else:
            total += _squares(gradient, is_bf16, at, end, NUMBERS, False)
    tl.store(sums + tl.program_id(0), tl.sum(total, 0))
