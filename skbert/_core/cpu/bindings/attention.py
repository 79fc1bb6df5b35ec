"""Attention within the rows of a packed batch, and its gradient. Depends on torch only."""

from __future__ import annotations

from array import array
from itertools import pairwise
from typing import Any

import torch

from skbert._core.attention.settings import AttentionSettings
from skbert._core.cpu.bindings import module
from skbert._core.cpu.bindings.checks import (
    address_of,
    address_of_array,
    addresses,
    check_dropout,
    check_integer,
    check_real,
    check_type,
    shape_of,
)
from skbert._core.cpu.bindings.module import DTYPES, LANES

__all__ = [
    "MAX_SIZE",
    "PackedRows",
    "arguments_of_attention",
    "attention_backward",
    "attention_forward",
    "check_attention",
    "check_tokens",
    "heads_of",
    "new_results",
]

MAX_SIZE = 1 << 14  # of a row and of a head, whose products the kernel counts in 32 bits
_MAX_WINDOW = 2**31 - 1


class PackedRows:
    """Where the rows of a packed batch lie, checked once for all layers.

    Parameters
    ----------
    cu_seqlens : Tensor of shape (n_rows + 1,)
        Cumulative lengths in int32, of which this keeps a copy: an array of C.

    Attributes
    ----------
    max_seqlen : int
        Tokens in the longest row.
    n_tokens : int
        Tokens up to the end of the last row.
    """

    def __init__(self, cu_seqlens: torch.Tensor) -> None:
        address_of("cu_seqlens", cu_seqlens, shape_of("cu_seqlens", cu_seqlens, 1), torch.int32)
        bounds = cu_seqlens.tolist()
        lengths = [end - begin for begin, end in pairwise(bounds)]
        if not bounds or bounds[0] < 0 or min(lengths, default=0) < 0:
            raise ValueError("a kernel takes cu_seqlens that ascend from 0 or more")
        self.cu_seqlens = array("i", bounds)
        self.max_seqlen, self.n_tokens = max(lengths, default=0), bounds[-1]
        self.first_token = bounds[0]
        check_integer("max_seqlen", self.max_seqlen, 0, MAX_SIZE)


def attention_forward(
    *,
    qkv: torch.Tensor,
    rows: PackedRows,
    settings: AttentionSettings,
    seed: int,
    with_logsumexp: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Attention within rows, ``(n_tokens, n_heads * head_size)``, and what its gradient needs.

    Query, key and value lie side by side, ``(n_tokens, 3 * n_heads * head_size)``. The
    result is new memory, and not initialised for tokens behind the last row.
    """
    _, n_heads = check_attention(qkv, rows, settings, seed)
    address = address_of("qkv", qkv, qkv.shape, qkv.dtype)
    results = new_results(qkv, n_heads, settings, with_logsumexp)
    module.kernels.attention_forward(
        address,
        *addresses(*results),
        *arguments_of_attention(qkv.dtype, n_heads, rows, settings, seed),
    )
    return results


def new_results(
    qkv: torch.Tensor, n_heads: int, settings: AttentionSettings, with_logsumexp: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Memory for what `attention_forward` returns."""
    output = qkv.new_empty(len(qkv), n_heads * settings.head_size)
    if not with_logsumexp:
        return output, None
    return output, qkv.new_empty(len(qkv), n_heads, dtype=torch.float32)


def attention_backward(
    *,
    qkv: torch.Tensor,
    grad_output: torch.Tensor,
    logsumexp: torch.Tensor,
    rows: PackedRows,
    settings: AttentionSettings,
    seed: int,
) -> torch.Tensor:
    """The gradient of ``qkv``, not initialised for tokens behind the last row."""
    n_tokens, n_heads = check_attention(qkv, rows, settings, seed)
    shape = n_tokens, n_heads * settings.head_size
    address = address_of("qkv", qkv, qkv.shape, qkv.dtype)
    grad_address = address_of("grad_output", grad_output, shape, qkv.dtype)
    logsumexp_address = address_of("logsumexp", logsumexp, (n_tokens, n_heads), torch.float32)
    grad_qkv = torch.empty_like(qkv)
    module.kernels.attention_backward(
        address, grad_address, *addresses(grad_qkv), logsumexp_address,
        *arguments_of_attention(qkv.dtype, n_heads, rows, settings, seed),
    )  # fmt: skip
    return grad_qkv


def check_attention(
    qkv: torch.Tensor, rows: PackedRows, settings: AttentionSettings, seed: int
) -> tuple[int, int]:
    """Raise an error unless a kernel computes this; return numbers of tokens and heads."""
    n_tokens, width = shape_of("qkv", qkv, 2)
    check_type("rows", rows, PackedRows)
    n_heads = heads_of(width, qkv.dtype, settings, seed)
    check_tokens(n_tokens, rows)
    return n_tokens, n_heads


def heads_of(width: int, dtype: torch.dtype, settings: AttentionSettings, seed: int = 0) -> int:
    """The number of heads of which query, key and value are so wide together.

    An error unless a kernel computes them.
    """
    head_size = settings.head_size
    check_integer("head_size", head_size, LANES, MAX_SIZE)
    check_real("scaling", settings.scaling, 0)
    if settings.sliding_window is not None:
        check_integer("sliding_window", settings.sliding_window, 1, _MAX_WINDOW)
    check_dropout(settings.dropout, seed)
    n_heads, rest = divmod(width, 3 * head_size)
    if rest or head_size % LANES or dtype not in DTYPES:
        raise ValueError(
            f"a kernel computes no attention of {width} numbers in {dtype} with heads of "
            f"{head_size}"
        )
    return n_heads


def check_tokens(n_tokens: int, rows: PackedRows) -> None:
    """Raise an error if rows have more tokens."""
    if rows.n_tokens > n_tokens:
        raise ValueError(f"a kernel was given {n_tokens} tokens, and rows of {rows.n_tokens}")


def arguments_of_attention(
    dtype: torch.dtype, n_heads: int, rows: PackedRows, settings: AttentionSettings, seed: int
) -> tuple[Any, ...]:
    """What kernels take of attention, behind the addresses of tensors."""
    longest, window = rows.max_seqlen, settings.sliding_window
    reach = longest if window is None else min(window - 1, longest)
    return (
        address_of_array(rows.cu_seqlens), len(rows.cu_seqlens) - 1, n_heads, settings.head_size,
        longest, bool(settings.is_causal), reach, dtype == torch.bfloat16,
        settings.scaling, settings.dropout, seed, torch.get_num_threads(),
    )  # fmt: skip
