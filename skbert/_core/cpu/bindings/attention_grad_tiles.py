"""The gradient of attention within rows in the tiles of AMX. Depends on torch only."""

from __future__ import annotations

import torch

from skbert._core.attention.settings import AttentionSettings
from skbert._core.cpu.bindings import module
from skbert._core.cpu.bindings.attention import PackedRows, arguments_of_attention
from skbert._core.cpu.bindings.attention_tiles import check_tiles
from skbert._core.cpu.bindings.checks import address_of, addresses

__all__ = ["attention_grad_tiles"]


def attention_grad_tiles(
    *,
    qkv: torch.Tensor,
    output: torch.Tensor,
    grad_output: torch.Tensor,
    logsumexp: torch.Tensor,
    rows: PackedRows,
    settings: AttentionSettings,
    seed: int,
) -> torch.Tensor:
    """The gradient of ``qkv`` in bfloat16, not initialised for tokens behind the last row.

    ``output`` and ``logsumexp`` are what `attention_tiles` returned.
    """
    n_tokens, n_heads = check_tiles(qkv, rows, settings, seed)
    shape = n_tokens, n_heads * settings.head_size
    address = address_of("qkv", qkv, qkv.shape, torch.bfloat16)
    output_address = address_of("output", output, shape, torch.bfloat16)
    grad_address = address_of("grad_output", grad_output, shape, torch.bfloat16)
    logsumexp_address = address_of("logsumexp", logsumexp, (n_tokens, n_heads), torch.float32)
    grad_qkv = torch.empty_like(qkv)
    module.kernels.attention_grad_tiles(
        address, output_address, grad_address, *addresses(grad_qkv), logsumexp_address,
        *arguments_of_attention(qkv.dtype, n_heads, rows, settings, seed),
    )  # fmt: skip
    return grad_qkv
