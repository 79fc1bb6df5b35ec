"""Kernels as operations with a gradient, and where each of them can be used.

Attention within short rows keeps no weights and no dropout masks for the backward pass, but
computes them again from a seed. One pass does what lies between two products: dropout, the sum
with the residual, layer normalisation and rounding. Products of bfloat16 keep what they compute
in registers, fetch weights while others are multiplied, and do GELU and its gradient in passing;
so do products of float32 in inference. Steps of AdamW read gradients in bfloat16 as they are.
Where a kernel cannot be used, or would be slower, as all but that of rotary positions are without
AVX2, ``layers``, ``linear`` and ``optim`` do the same with torch's operations. Norms, gates,
rotary positions and steps of AdamW have kernels for GPUs, too. Depends on torch, a batch's
layout, ``device``, ``bindings`` and ``gpu``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from skbert._core.attention.settings import AttentionSettings
from skbert._core.cpu.bindings import gated, layernorm, rotary
from skbert._core.cpu.bindings.attention import (
    MAX_SIZE,
    PackedRows,
    attention_backward,
    attention_forward,
)
from skbert._core.cpu.bindings.attention_grad_tiles import attention_grad_tiles
from skbert._core.cpu.bindings.attention_tiles import attention_tiles, fits_tiles
from skbert._core.cpu.bindings.checks import are_readable, has_shared_memory, is_readable
from skbert._core.cpu.bindings.module import (
    DTYPES,
    LANES,
    PANEL,
    has_amx,
    has_bf16_products,
    has_kernels,
)
from skbert._core.gpu import operations
from skbert._core.runtime.autograd import Context, apply, draw_seed
from skbert._core.runtime.device import has_instructions, has_vectors
from skbert._core.task import Layout

if TYPE_CHECKING:
    from skbert._core.cpu.bindings.rotary import RotaryTable

__all__ = [
    "can_attend_in_tiles",
    "can_fuse_adamw",
    "can_fuse_attention",
    "can_fuse_gate",
    "can_fuse_grad_norm",
    "can_fuse_layernorm",
    "can_fuse_linear",
    "can_fuse_rotary",
    "fused_add_norm",
    "fused_attention",
    "fused_gate",
    "fused_layernorm",
    "fused_rotary",
    "has_fast_kernels",
    "max_packed_tokens",
    "rotary_table",
]

_MAX_SEQLEN = 512  # tokens of a row up to which torch's products are no faster
_MAX_SEQLEN_WITH_AMX = 128  # if torch has no numbers to draw: it multiplies many times as fast
_MAX_TOKENS_WITH_AMX = 16  # tokens up to which oneDNN is no faster than vectors,
_MAX_TOKENS_IN_TILES = 512  # and than tiles, which wait for memory


_CPU_KERNELS = {"gelu": gated, "layernorm": layernorm, "rotary": rotary}


def _kernels(name: str, x: torch.Tensor) -> Any:
    """The kernels with this name, for the device that a tensor is on."""
    return operations.kernels(name) if operations.is_on_gpu(x) else _CPU_KERNELS[name]


def has_fast_kernels() -> bool:
    """Whether there are kernels, and the processor has vectors as wide as theirs."""
    return has_kernels() and has_vectors()


# --- attention -----------------------------------------------------------------------------------


def can_fuse_attention(qkv: torch.Tensor, layout: Layout, settings: AttentionSettings) -> bool:
    """Whether `fused_attention` can be used, and is not slower than torch's operations."""
    return (
        has_fast_kernels()
        and qkv.dtype in DTYPES
        and settings.head_size % LANES == 0
        and settings.scaling >= 0
        and layout.max_seqlen <= MAX_SIZE
        and (
            can_attend_in_tiles(qkv, layout.max_seqlen, settings)
            or _is_short(layout.max_seqlen, qkv.dtype, settings.dropout)
            or _saves_work(layout.max_seqlen, settings)
        )
    )


def can_attend_in_tiles(qkv: torch.Tensor, max_seqlen: int, settings: AttentionSettings) -> bool:
    """Whether tiles can be used for attention, where torch would use them."""
    return fits_tiles(qkv.dtype, max_seqlen, settings) and has_instructions("amx_bf16")


def _saves_work(max_seqlen: int, settings: AttentionSettings) -> bool:
    """Whether a window is narrower than a row, or torch would store all weights of long rows."""
    window = settings.sliding_window
    is_local = window is not None and window < max_seqlen
    return is_local or (settings.dropout > 0 and max_seqlen > _MAX_SEQLEN)


def _is_short(max_seqlen: int, dtype: torch.dtype, dropout: float) -> bool:
    amx = dtype == torch.bfloat16 and has_instructions("amx_bf16")
    return max_seqlen <= (_MAX_SEQLEN_WITH_AMX if amx and not dropout else _MAX_SEQLEN)


def fused_attention(
    qkv: torch.Tensor, rows: PackedRows, settings: AttentionSettings
) -> torch.Tensor:
    """Attention within rows from ``(n_tokens, 3 * n_heads * head_size)``, a third of it back."""
    in_tiles = can_attend_in_tiles(qkv, rows.max_seqlen, settings)
    output: torch.Tensor = apply(_Attention, qkv, rows, settings, in_tiles)
    return output


class _Attention(torch.autograd.Function):
    """Attention within rows, as `fused_attention` returns it."""

    @staticmethod
    def forward(
        ctx: Context,
        qkv: torch.Tensor,
        rows: PackedRows,
        settings: AttentionSettings,
        in_tiles: bool,
    ) -> torch.Tensor:
        needs_grad, seed = any(ctx.needs_input_grad), draw_seed(settings.dropout)
        attend = attention_tiles if in_tiles else attention_forward
        output, logsumexp = attend(
            qkv=qkv, rows=rows, settings=settings, seed=seed, with_logsumexp=needs_grad
        )  # fmt: skip
        if needs_grad:
            ctx.save_for_backward(qkv, logsumexp, output if in_tiles else None)
            ctx.settings = rows, settings, seed
        if rows.n_tokens < len(output):
            output[rows.n_tokens :] = 0
        return output

    @staticmethod
    def backward(ctx: Context, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        qkv, logsumexp, output = ctx.saved_tensors
        rows, settings, seed = ctx.settings
        in_tiles = partial(attention_grad_tiles, output=output)
        differentiate = attention_backward if output is None else in_tiles
        grad_qkv = differentiate(
            qkv=qkv, grad_output=gradients[0].contiguous(), logsumexp=logsumexp,
            rows=rows, settings=settings, seed=seed,
        )  # fmt: skip
        grad_qkv[rows.n_tokens :] = 0
        return grad_qkv, None, None, None


# --- layer normalisation -------------------------------------------------------------------------


def can_fuse_layernorm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
) -> bool:
    """Whether `fused_layernorm` and `fused_add_norm` can be used."""
    if operations.is_on_gpu(x):
        return operations.can_fuse_layernorm(x, residual, weight, bias)
    return _can_normalize(x, residual, weight, bias)


def _can_normalize(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
) -> bool:
    """Whether the kernels for processors can."""
    n_tokens, size = residual.shape
    return (
        has_fast_kernels()
        and size % LANES == 0
        and n_tokens > 0
        and x.shape == residual.shape
        and x.dtype in DTYPES
        and residual.dtype == torch.float32
        and _are_vectors((weight, weight if bias is None else bias), size)
    )


def _are_vectors(weights: Iterable[torch.Tensor | None], size: int) -> bool:
    """Whether a norm's weights are contiguous float32 vectors of this size."""
    return all(
        weight is not None
        and weight.dtype == torch.float32
        and weight.shape == (size,)
        and is_readable(weight)
        for weight in weights
    )


def fused_layernorm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    epsilon: float,
    dropout: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Layer normalisation of ``x`` after dropout plus the residual, both ``(n_tokens, size)``.

    Returned in float32, as the residual is, and rounded to the type of ``x``. What is saved for
    the backward pass is rounded, too.
    """
    output, rounded = apply(_LayerNorm, x, residual, weight, bias, epsilon, dropout, False)
    return output, output if rounded is None else rounded


def fused_add_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    epsilon: float,
    dropout: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``x`` after dropout plus the residual, in float32, and its normalisation, like ``x``."""
    arguments = x, residual, weight, bias, epsilon, dropout
    results: tuple[torch.Tensor, torch.Tensor] = apply(_LayerNorm, *arguments, True)
    return results


class _LayerNorm(torch.autograd.Function):
    """Layer normalisation in float32, and rounded to bfloat16; None where ``x`` is in float32.

    With the sum: that in float32, and its normalisation in the type of ``x``.
    """

    @staticmethod
    def forward(
        ctx: Context,
        x: torch.Tensor,
        residual: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        epsilon: float,
        dropout: float,
        with_sum: bool,
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        needs_grad, seed = any(ctx.needs_input_grad), draw_seed(dropout)
        kernels = _kernels("layernorm", x)
        compute = kernels.add_layernorm_forward if with_sum else kernels.layernorm_forward
        result = compute(
            x=x, residual=residual, weight=weight, bias=bias,
            epsilon=epsilon, dropout=dropout, seed=seed, with_normalized=needs_grad,
        )  # fmt: skip
        if needs_grad:
            ctx.save_for_backward(result.normalized, result.rstd, weight)
            ctx.settings = dropout, seed, bias is not None, with_sum
            ctx.set_materialize_grads(False)
        if with_sum:
            return result.sum, result.output if result.rounded is None else result.rounded
        return result.output, result.rounded

    @staticmethod
    def backward(ctx: Context, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        whole, like_x = (None if g is None else g.contiguous() for g in gradients)
        normalized, rstd, weight = ctx.saved_tensors
        dropout, seed, has_bias, with_sum = ctx.settings
        grad_sum, grad_output = (whole, None) if with_sum else (None, whole)
        if normalized.dtype == torch.float32:  # nothing is rounded
            grad_output, like_x = (like_x if with_sum else whole), None
        *grads, grad_bias = _kernels("layernorm", normalized).layernorm_backward(
            normalized=normalized, rstd=rstd, weight=weight, grad_sum=grad_sum,
            grad_output=grad_output, grad_rounded=like_x, dropout=dropout, seed=seed,
        )  # fmt: skip
        return *grads, grad_bias if has_bias else None, None, None, None


# --- rotary positions ----------------------------------------------------------------------------


def can_fuse_rotary(qkv: torch.Tensor, head_size: int) -> bool:
    """Whether `fused_rotary` can be used."""
    if operations.is_on_gpu(qkv):
        return operations.can_fuse_rotary(qkv, head_size)
    return has_kernels() and qkv.dtype in DTYPES and head_size % (2 * LANES) == 0


def rotary_table(
    qkv: torch.Tensor, *, cosines: torch.Tensor, sines: torch.Tensor, positions: torch.Tensor
) -> RotaryTable:
    """What `fused_rotary` reads: angles ``(n_positions, head_size / 2)``, positions of tokens."""
    kernels = _kernels("rotary", qkv)
    table: RotaryTable = kernels.RotaryTable(
        cosines=cosines.float().contiguous(), sines=sines.float().contiguous(),
        positions=positions.int(),
    )  # fmt: skip
    return table


def fused_rotary(qkv: torch.Tensor, table: RotaryTable) -> torch.Tensor:
    """Query and key turned in place, in ``(n_tokens, 3 * n_heads * head_size)``."""
    turned: torch.Tensor = apply(_Rotary, qkv, table)
    return turned


class _Rotary(torch.autograd.Function):
    """Query and key turned in place, as `fused_rotary` does it."""

    @staticmethod
    def forward(ctx: Context, qkv: torch.Tensor, table: RotaryTable) -> torch.Tensor:
        if any(ctx.needs_input_grad):
            ctx.mark_dirty(qkv)
            ctx.settings = table
        turned: torch.Tensor = _kernels("rotary", qkv).rotate(qkv=qkv, table=table, in_place=True)
        return turned

    @staticmethod
    def backward(ctx: Context, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        grad = gradients[0].contiguous()
        rotate, table = _kernels("rotary", grad).rotate, ctx.settings
        return rotate(qkv=grad, table=table, in_place=False, backward=True), None


# --- gates ---------------------------------------------------------------------------------------


def can_fuse_gate(hidden: torch.Tensor) -> bool:
    """Whether `fused_gate` can be used."""
    if operations.is_on_gpu(hidden):
        return operations.can_fuse_gate(hidden)
    fits = hidden.shape[-1] % (2 * PANEL) == 0 and hidden.dtype == torch.bfloat16
    return fits and has_bf16_products() and is_readable(hidden)


def fused_gate(hidden: torch.Tensor) -> torch.Tensor:
    """GELU of the first half of ``(n_tokens, 2 * size)`` times the second half."""
    active: torch.Tensor = apply(_Gate, hidden)
    return active


class _Gate(torch.autograd.Function):
    """The gate of a feed-forward layer, as `fused_gate` returns it."""

    @staticmethod
    def forward(ctx: Context, hidden: torch.Tensor) -> torch.Tensor:
        if any(ctx.needs_input_grad):
            ctx.save_for_backward(hidden)
        active: torch.Tensor = _kernels("gelu", hidden).gated_forward(hidden=hidden)
        return active

    @staticmethod
    def backward(ctx: Context, *gradients: torch.Tensor) -> torch.Tensor:
        (hidden,) = ctx.saved_tensors
        grad_output = gradients[0].contiguous()
        backward = _kernels("gelu", hidden).gated_backward
        grad_hidden: torch.Tensor = backward(hidden=hidden, grad_output=grad_output)
        return grad_hidden


# --- linear layers -------------------------------------------------------------------------------


def max_packed_tokens(
    n_in: int, n_out: int, dtype: torch.dtype, *, is_alone: bool = False
) -> float:
    """Up to how many tokens a packed weight is not slower than another, 0 if it cannot be used.

    A product that is alone is none of a whole encoder in one call, where groups of rows are few
    tokens.
    """
    if n_out % PANEL:
        return 0
    if dtype == torch.float32:
        return math.inf if has_fast_kernels() else 0
    if dtype != torch.bfloat16 or n_in % 2 or not has_bf16_products():
        return 0
    return _max_tokens_with_amx(n_in, is_alone) if has_instructions("amx_bf16") else math.inf


def _max_tokens_with_amx(n_in: int, is_alone: bool) -> float:
    """The same in bfloat16, where oneDNN multiplies in tiles."""
    if not has_amx() or n_in % PANEL:
        return _MAX_TOKENS_WITH_AMX
    return _MAX_TOKENS_IN_TILES if is_alone else math.inf


def can_fuse_linear(weights: Iterable[torch.Tensor], dtype: torch.dtype) -> bool:
    """Whether `StackedLinear` can be used and is not slower, for products in ``dtype``."""
    weights = list(weights)
    if dtype != torch.bfloat16 or not has_bf16_products():
        return False
    uses_what_torch_does = has_amx() or not has_instructions("amx_bf16")
    fits = all(size % PANEL == 0 for weight in weights for size in weight.shape)
    return uses_what_torch_does and fits and _are_plain(weights, [torch.float32])


# --- steps of the optimizer ----------------------------------------------------------------------


def can_fuse_adamw(weights: Iterable[torch.Tensor]) -> bool:
    """Whether a kernel can take steps: no two weights may share memory."""
    weights = list(weights)
    if any(map(operations.is_on_gpu, weights)):
        fits = operations.can_fuse_adamw(weights)
    else:
        fits = _are_plain(weights, [torch.float32])
    return fits and not has_shared_memory(weights)


def can_fuse_grad_norm(gradients: Iterable[torch.Tensor]) -> bool:
    """Whether `grad_norm` can be used."""
    return _are_plain(gradients, DTYPES)


def _are_plain(tensors: Iterable[torch.Tensor], dtypes: Sequence[torch.dtype]) -> bool:
    tensors = [*tensors]
    return has_fast_kernels() and {x.dtype for x in tensors} <= {*dtypes} and are_readable(tensors)
