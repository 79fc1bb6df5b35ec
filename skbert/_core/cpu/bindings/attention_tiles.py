"""Attention within rows in the tiles of AMX. Depends on torch only."""

from __future__ import annotations

import torch

from skbert._core.attention.settings import AttentionSettings
from skbert._core.cpu.bindings import module
from skbert._core.cpu.bindings.attention import (
    PackedRows,
    arguments_of_attention,
    check_attention,
    new_results,
)
from skbert._core.cpu.bindings.checks import address_of, addresses, check_multiple
from skbert._core.cpu.bindings.module import PANEL, has_amx

__all__ = ["attention_tiles", "check_fits_tiles", "check_tiles", "fits_tiles"]

# Tokens of the longest row of which the gradient is faster in tiles, too; each thread stores the
# gradients of a row's scores.
_TRAINED = range(9, 1025)


def fits_tiles(dtype: torch.dtype, max_seqlen: int, settings: AttentionSettings) -> bool:
    """Whether `attention_tiles` can be used here, and in training `attention_grad_tiles`, too."""
    fits = dtype == torch.bfloat16 and not settings.head_size % PANEL
    is_fast = max_seqlen in _TRAINED or not torch.is_grad_enabled()
    return has_amx() and fits and is_fast and _is_whole(max_seqlen, settings)


def _is_whole(max_seqlen: int, settings: AttentionSettings) -> bool:
    """Whether every token attends to all of its row."""
    window = settings.sliding_window
    is_local = window is not None and window < max_seqlen
    return not (is_local or settings.is_causal)


def check_tiles(
    qkv: torch.Tensor, rows: PackedRows, settings: AttentionSettings, seed: int
) -> tuple[int, int]:
    """Raise an error unless tiles compute this; return numbers of tokens and heads."""
    sizes = check_attention(qkv, rows, settings, seed)
    check_fits_tiles(rows, settings)
    return sizes


def check_fits_tiles(rows: PackedRows, settings: AttentionSettings) -> None:
    """Raise an error unless tiles compute attention within these rows."""
    if not has_amx():
        raise RuntimeError("no kernel attends in tiles on this processor")
    check_multiple("a size of heads", settings.head_size, PANEL)
    if not _is_whole(rows.max_seqlen, settings):
        raise ValueError(f"a kernel attends in tiles to whole rows, not with {settings}")


def attention_tiles(
    *,
    qkv: torch.Tensor,
    rows: PackedRows,
    settings: AttentionSettings,
    seed: int,
    with_logsumexp: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """What `attention_forward` returns, in bfloat16."""
    _, n_heads = check_tiles(qkv, rows, settings, seed)
    address = address_of("qkv", qkv, qkv.shape, torch.bfloat16)
    results = new_results(qkv, n_heads, settings, with_logsumexp)
    module.kernels.attention_tiles(
        address,
        *addresses(*results),
        *arguments_of_attention(qkv.dtype, n_heads, rows, settings, seed),
    )
    return results
