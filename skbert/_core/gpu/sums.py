"""Sums over tokens on a GPU, as the gradient of a bias is one. Depends on torch and a kernel."""

from __future__ import annotations

import torch

from skbert._core.gpu.kernels import sums as kernels

__all__ = ["sum_tokens"]

_TOKENS, _COLUMNS = 64, 64  # that a program adds up together
_PROGRAMS = 64  # that add up columns, each of its own tokens


def sum_tokens(*, x: torch.Tensor) -> torch.Tensor:
    """The sum over tokens of ``(n_tokens, size)``, in float32."""
    n_tokens, size = x.shape
    n_programs = max(1, min(_PROGRAMS, -(-n_tokens // _TOKENS)))
    sums = x.new_empty(n_programs, size, dtype=torch.float32)
    kernels.sum_tokens[(n_programs, -(-size // _COLUMNS))](
        x, sums, n_tokens, size, TOKENS=_TOKENS, COLUMNS=_COLUMNS
    )
    return sums.sum(0)
