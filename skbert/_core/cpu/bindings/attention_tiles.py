"""Attention within rows in the tiles of AMX. Depends on torch only."""

from __future__ import annotations

import torch

from skbert._core.attention.settings import AttentionSettings
from skbert._core.cpu.bindings import module
from skbert._core.cpu.bindings.attention import PackedRows, check_attention
from skbert._core.cpu.bindings.checks import address_of, addresses, check_multiple
from skbert._core.cpu.bindings.module import PANEL, has_amx

__all__ = ["attention_tiles", "fits_tiles"]


def fits_tiles(qkv: torch.Tensor, max_seqlen: int, settings: AttentionSettings) -> bool:
    """Whether `attention_tiles` can be used here, where it would give no gradient."""
    is_inference = has_amx() and not torch.is_grad_enabled()
    fits = qkv.dtype == torch.bfloat16 and not settings.head_size % PANEL
    return is_inference and fits and _is_whole(max_seqlen, settings)


def _is_whole(max_seqlen: int, settings: AttentionSettings) -> bool:
    """Whether every token attends to all of its row."""
    window = settings.sliding_window
    is_local = window is not None and window < max_seqlen
    return not (is_local or settings.is_causal or settings.dropout)


def attention_tiles(
    *, qkv: torch.Tensor, rows: PackedRows, settings: AttentionSettings
) -> torch.Tensor:
    """Attention within rows, ``(n_tokens, n_heads * head_size)`` in bfloat16.

    Query, key and value lie side by side, ``(n_tokens, 3 * n_heads * head_size)``. The
    result is new memory, and not initialised for tokens behind the last row.
    """
    if not has_amx():
        raise RuntimeError("no kernel attends in tiles on this processor")
    n_tokens, n_heads = check_attention(qkv, rows, settings, 0)
    check_multiple("a size of heads", settings.head_size, PANEL)
    if not _is_whole(rows.max_seqlen, settings):
        raise ValueError(f"a kernel attends in tiles to whole rows, not with {settings}")
    address = address_of("qkv", qkv, qkv.shape, torch.bfloat16)
    output = qkv.new_empty(n_tokens, n_heads * settings.head_size)
    module.kernels.attention_tiles(
        address, *addresses(output, rows.cu_seqlens), len(rows.cu_seqlens) - 1, n_heads,
        settings.head_size, rows.max_seqlen, settings.scaling, torch.get_num_threads(),
    )  # fmt: skip
    return output
