"""Layer normalisation after dropout and a residual, and its gradient, on a GPU.

Each is one pass over memory. Depends on torch and the kernels.
"""

from __future__ import annotations

import torch

from skbert._core.gpu.kernels import layernorm as kernels
from skbert._core.gpu.seeds import both_parts
from skbert._core.runtime.autograd import LayerNormResult, Seed

__all__ = [
    "add_layernorm_forward",
    "layernorm_backward",
    "layernorm_forward",
]

_NUMBERS = 2048  # that a program computes together, in whole tokens
_PROGRAMS = 512  # that sum the gradients of weight and bias, each of its own tokens


def layernorm_forward(
    *,
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    epsilon: float,
    dropout: float,
    seed: Seed,
    with_normalized: bool,
) -> LayerNormResult:
    """Layer normalisation of ``x`` after dropout plus the residual, both ``(n_tokens, size)``."""
    result = _results(x, residual, with_normalized, with_sum=False)
    _compute(x, residual, (weight, bias), result, (epsilon, dropout, seed))
    return result


def add_layernorm_forward(
    *,
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    epsilon: float,
    dropout: float,
    seed: Seed,
    with_normalized: bool,
) -> LayerNormResult:
    """The sum of ``x`` after dropout and the residual, and its normalisation, only like ``x``."""
    result = _results(x, residual, with_normalized, with_sum=True)
    _compute(x, residual, (weight, bias), result, (epsilon, dropout, seed))
    return result


def _results(
    x: torch.Tensor, residual: torch.Tensor, with_normalized: bool, *, with_sum: bool
) -> LayerNormResult:
    """Memory for what is wanted."""
    is_rounded = x.dtype != residual.dtype
    return LayerNormResult(
        None if with_sum and is_rounded else torch.empty_like(residual),
        torch.empty_like(x) if is_rounded else None,
        residual.new_empty(len(x)),
        torch.empty_like(x) if with_normalized else None,
        torch.empty_like(residual) if with_sum else None,
    )


def _compute(
    x: torch.Tensor,
    residual: torch.Tensor,
    weights: tuple[torch.Tensor, torch.Tensor | None],
    result: LayerNormResult,
    settings: tuple[float, float, Seed],
) -> None:
    n_tokens, size = x.shape
    (block, rows), (epsilon, dropout, seed) = _block_of(size), settings
    kernels.layernorm_forward[(-(-n_tokens // rows),)](
        x, residual, *weights, *result, n_tokens, size, epsilon, dropout, *both_parts(seed),
        BLOCK=block, ROWS=rows, DROPS=dropout > 0,
    )  # fmt: skip


def layernorm_backward(
    *,
    normalized: torch.Tensor,
    rstd: torch.Tensor,
    weight: torch.Tensor,
    grad_output: torch.Tensor | None,
    grad_rounded: torch.Tensor | None,
    dropout: float,
    seed: Seed,
    grad_sum: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The gradients of ``x``, the residual, weight and bias, from those of all results."""
    n_tokens, size = normalized.shape
    grad_x = torch.empty_like(normalized)
    grad_residual = torch.empty_like(normalized, dtype=rstd.dtype)
    block, rows = _block_of(size)
    n_programs = min(_PROGRAMS, -(-n_tokens // rows))
    sums = rstd.new_empty(n_programs, 2, size)
    kernels.layernorm_backward[(n_programs,)](
        normalized, rstd, weight, grad_sum, grad_output, grad_rounded, grad_x, grad_residual, sums,
        n_tokens, size, dropout, *both_parts(seed), BLOCK=block, ROWS=rows, DROPS=dropout > 0,
    )  # fmt: skip
    grad_weight, grad_bias = sums.sum(0)
    return grad_x, grad_residual, grad_weight, grad_bias


def _block_of(size: int) -> tuple[int, int]:
    """How many numbers of a token are computed together, which are all, and how many tokens."""
    block = 1 << (size - 1).bit_length()
    return block, max(1, _NUMBERS // block)
