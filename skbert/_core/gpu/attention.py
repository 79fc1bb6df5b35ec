"""Attention within the rows of a packed batch, and its gradient, on a GPU.

A program computes some neighbouring tokens, of however many rows: short rows share it. Weights
and what dropout leaves of them are computed again in the backward pass, from ``logsumexp`` and a
seed (Dao 2023, "FlashAttention-2"). Depends on torch, the kernels and a batch's layout.
"""

from __future__ import annotations

from typing import Any

import torch

from skbert._core.attention.settings import AttentionSettings
from skbert._core.gpu.kernels import attention as kernels
from skbert._core.gpu.seeds import both_parts
from skbert._core.runtime.autograd import Seed
from skbert._core.task import Layout

__all__ = ["attention_backward", "attention_forward"]

_TOKENS = 64  # that a program computes together


def attention_forward(
    *, qkv: torch.Tensor, layout: Layout, settings: AttentionSettings, seed: Seed
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention within rows, ``(n_tokens, n_heads * head_size)``, and logsumexp for its gradient.

    Query, key and value lie side by side, ``(n_tokens, 3 * n_heads * head_size)``. The logarithms
    of base 2 are ``(n_heads, n_tokens)``.
    """
    n_tokens, width = len(qkv), qkv.shape[1] // 3
    n_heads = width // settings.head_size
    output = qkv.new_empty(n_tokens, width)
    logsumexp = qkv.new_empty(n_heads, n_tokens, dtype=torch.float32)
    grid, numbers, constants = _arguments(qkv, layout, settings, seed)
    kernels.attention_forward[grid](
        qkv, layout.row_of_token, layout.cu_seqlens, output, logsumexp, *numbers, **constants
    )
    return output, logsumexp


def attention_backward(
    *,
    qkv: torch.Tensor,
    output: torch.Tensor,
    grad_output: torch.Tensor,
    logsumexp: torch.Tensor,
    layout: Layout,
    settings: AttentionSettings,
    seed: Seed,
) -> torch.Tensor:
    """The gradient of ``qkv``."""
    grad_qkv, delta = torch.empty_like(qkv), torch.empty_like(logsumexp)
    grid, numbers, constants = _arguments(qkv, layout, settings, seed)
    places = layout.row_of_token, layout.cu_seqlens
    kernels.attention_grad_query[grid](
        qkv, *places, output, grad_output, logsumexp, delta, grad_qkv, *numbers, **constants
    )
    kernels.attention_grad_key_value[grid](
        qkv, *places, grad_output, logsumexp, delta, grad_qkv, *numbers, **constants
    )
    return grad_qkv


def _arguments(
    qkv: torch.Tensor, layout: Layout, settings: AttentionSettings, seed: Seed
) -> tuple[tuple[int, int], tuple[Any, ...], dict[str, int | bool]]:
    """Programs by tokens and heads, and what all kernels take behind their tensors."""
    n_tokens, n_heads = len(qkv), qkv.shape[1] // (3 * settings.head_size)
    window = settings.sliding_window
    reach = layout.max_seqlen if window is None else min(window - 1, layout.max_seqlen)
    numbers = (
        n_tokens, n_heads, settings.scaling, reach, settings.dropout, *both_parts(seed),
    )  # fmt: skip
    constants = {
        "HEAD": settings.head_size, "TOKENS": _TOKENS, "CAUSAL": settings.is_causal,
        "DROPS": settings.dropout > 0,
    }  # fmt: skip
    return (-(-n_tokens // _TOKENS), n_heads), numbers, constants
