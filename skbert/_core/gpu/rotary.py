"""Query and key turned by the position of their token, on a GPU.

Depends on torch and the kernel.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from skbert._core.gpu.kernels import rotary as kernels

__all__ = ["RotaryTable", "rotate"]

_TOKENS = 32  # that a program computes


class RotaryTable(NamedTuple):
    """Cosines and sines ``(max_seqlen, head_size / 2)``, float32, and where each token stands."""

    cosines: torch.Tensor
    sines: torch.Tensor
    positions: torch.Tensor  # (n_tokens,)


def rotate(
    *, qkv: torch.Tensor, table: RotaryTable, in_place: bool, backward: bool = False
) -> torch.Tensor:
    """Query and key of ``(n_tokens, 3 * n_heads * head_size)`` turned, or turned back."""
    n_tokens, half = len(qkv), table.cosines.shape[1]
    n_heads = qkv.shape[1] // (6 * half)
    target = qkv if in_place else torch.empty_like(qkv)
    grid = -(-n_tokens // _TOKENS), (2 if in_place else 3) * n_heads
    sign = -1.0 if backward else 1.0
    kernels.rotate[grid](qkv, target, *table, sign, n_tokens, n_heads, HALF=half, TOKENS=_TOKENS)
    return target
