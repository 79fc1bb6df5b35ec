"""Layer normalisation after dropout and a residual, and its gradient, on a GPU.

Each is one pass over memory. Depends on torch and the kernels.
"""

from __future__ import annotations

import torch

from skbert._core.gpu.kernels import layernorm as kernels
from skbert._core.gpu.kernels.random import SEEDS

__all__ = ["layernorm_backward", "layernorm_forward"]

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
    seed: int,
    with_normalized: bool,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None, torch.Tensor]:
    """Layer normalisation of ``x`` after dropout plus the residual, both ``(n_tokens, size)``.

    Returned are the result like the residual, and like ``x`` if that has another type; what is
    saved for the gradient, before weight and bias, like ``x``; and 1 / deviation of each token.
    """
    n_tokens, size = x.shape
    output, rstd = torch.empty_like(residual), residual.new_empty(n_tokens)
    rounded = torch.empty_like(x) if x.dtype != residual.dtype else None
    normalized = torch.empty_like(x) if with_normalized else None
    block, rows = _block_of(size)
    kernels.layernorm_forward[(-(-n_tokens // rows),)](
        x, residual, weight, bias, output, rounded, normalized, rstd,
        n_tokens, size, epsilon, dropout, seed % SEEDS, BLOCK=block, ROWS=rows, DROPS=dropout > 0,
    )  # fmt: skip
    return output, rounded, normalized, rstd


def layernorm_backward(
    *,
    normalized: torch.Tensor,
    rstd: torch.Tensor,
    weight: torch.Tensor,
    grad_output: torch.Tensor | None,
    grad_rounded: torch.Tensor | None,
    dropout: float,
    seed: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The gradients of ``x``, the residual, weight and bias, from those of both results."""
    n_tokens, size = normalized.shape
    grad_x = torch.empty_like(normalized)
    grad_residual = torch.empty_like(normalized, dtype=rstd.dtype)
    block, rows = _block_of(size)
    n_programs = min(_PROGRAMS, -(-n_tokens // rows))
    sums = rstd.new_empty(n_programs, 2, size)
    kernels.layernorm_backward[(n_programs,)](
        normalized, rstd, weight, grad_output, grad_rounded, grad_x, grad_residual, sums,
        n_tokens, size, dropout, seed % SEEDS, BLOCK=block, ROWS=rows, DROPS=dropout > 0,
    )  # fmt: skip
    grad_weight, grad_bias = sums.sum(0)
    return grad_x, grad_residual, grad_weight, grad_bias


def _block_of(size: int) -> tuple[int, int]:
    """How many numbers of a token are computed together, which are all, and how many tokens."""
    block = 1 << (size - 1).bit_length()
    return block, max(1, _NUMBERS // block)
