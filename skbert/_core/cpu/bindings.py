"""The compiled kernels as functions of tensors; the only module that calls C.

Each function checks what it is given, and raises ValueError before C is entered: the shape, type,
device, contiguity and alignment of tensors, and that none that is written to shares memory with
another. Results are allocated here. Depends on torch and
``memory``.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, NamedTuple

import torch

from skbert._core.cpu.memory import (
    address_of,
    addresses,
    check_apart,
    check_ranges,
    optional_address,
)

try:
    kernels: Any = import_module("skbert._core.cpu.kernels")
except ImportError:  # no compiler where this was installed
    kernels = None

__all__ = [
    "DTYPES",
    "LANES",
    "PANEL",
    "AdamWTensor",
    "AttentionSettings",
    "LayerNormResult",
    "StackedWeights",
    "adamw_step",
    "attention_backward",
    "attention_forward",
    "grad_norm",
    "has_bf16_products",
    "has_kernels",
    "layernorm_backward",
    "layernorm_forward",
    "linear_grad_input",
    "linear_grad_weight",
    "linear_stacked",
    "packed_linear",
]

LANES = 16  # numbers in a vector, of which sizes are multiples
PANEL = 32  # columns of a product that are computed together
DTYPES = (torch.float32, torch.bfloat16)
_NO_EPILOGUE, _GELU, _GELU_COPY, _GELU_BACKWARD = range(4)  # what follows a product


def has_kernels() -> bool:
    """Whether the kernels were built."""
    return kernels is not None


def has_bf16_products() -> bool:
    """Whether the kernels were built, and the processor multiplies bfloat16 in vectors."""
    return bool(getattr(kernels, "has_bf16_dot", False))


# --- attention -----------------------------------------------------------------------------------


class AttentionSettings(NamedTuple):
    """What attention computes, apart from its input."""

    head_size: int
    scaling: float  # of scores
    causal: bool  # whether a token sees only itself and what is before it
    dropout: float


def attention_forward(
    qkv: torch.Tensor,
    *,
    cu_seqlens: torch.Tensor,
    max_seqlen: int,
    settings: AttentionSettings,
    seed: int,
    with_logsumexp: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Attention within rows, ``(n_tokens, n_heads * head_size)``, and what its gradient needs.

    Query, key and value lie side by side, ``(n_tokens, 3 * n_heads * head_size)``. Tokens behind
    the last row are left as they are.
    """
    n_tokens, n_heads = _attention_shape(qkv, settings)
    output = qkv.new_empty(n_tokens, n_heads * settings.head_size)
    logsumexp = None
    if with_logsumexp:
        logsumexp = qkv.new_empty(n_tokens, n_heads, dtype=torch.float32)
    kernels.attention_forward(
        address_of("qkv", qkv, qkv.shape, qkv.dtype),
        *addresses(output, logsumexp),
        *_attention_arguments(qkv, cu_seqlens, max_seqlen, settings, seed),
    )
    return output, logsumexp


def attention_backward(
    qkv: torch.Tensor,
    *,
    grad_output: torch.Tensor,
    logsumexp: torch.Tensor,
    cu_seqlens: torch.Tensor,
    max_seqlen: int,
    settings: AttentionSettings,
    seed: int,
) -> torch.Tensor:
    """The gradient of ``qkv``; tokens behind the last row are left as they are."""
    n_tokens, n_heads = _attention_shape(qkv, settings)
    grad_qkv = torch.empty_like(qkv)
    kernels.attention_backward(
        address_of("qkv", qkv, qkv.shape, qkv.dtype),
        address_of(
            "grad_output", grad_output, (n_tokens, n_heads * settings.head_size), qkv.dtype
        ),
        grad_qkv.data_ptr(),
        address_of("logsumexp", logsumexp, (n_tokens, n_heads), torch.float32),
        *_attention_arguments(qkv, cu_seqlens, max_seqlen, settings, seed),
    )
    return grad_qkv


def _attention_shape(qkv: torch.Tensor, settings: AttentionSettings) -> tuple[int, int]:
    """Tokens and heads."""
    n_tokens, width = qkv.shape
    n_heads, rest = divmod(width, 3 * settings.head_size)
    if rest or settings.head_size % LANES or qkv.dtype not in DTYPES:
        raise ValueError(
            f"a kernel computes no attention of {tuple(qkv.shape)} in {qkv.dtype} with heads of "
            f"{settings.head_size}"
        )
    return n_tokens, n_heads


def _attention_arguments(
    qkv: torch.Tensor,
    cu_seqlens: torch.Tensor,
    max_seqlen: int,
    settings: AttentionSettings,
    seed: int,
) -> tuple[Any, ...]:
    """What the kernel takes in either direction."""
    n_rows, head_size = len(cu_seqlens) - 1, settings.head_size
    return (
        address_of("cu_seqlens", cu_seqlens, (n_rows + 1,), torch.int32),
        len(qkv), n_rows, qkv.shape[1] // (3 * head_size), head_size, max_seqlen,
        settings.causal, qkv.dtype == torch.bfloat16, settings.scaling, settings.dropout, seed,
        torch.get_num_threads(),
    )  # fmt: skip


# --- layer normalisation -------------------------------------------------------------------------


class LayerNormResult(NamedTuple):
    """What `layernorm_forward` computes."""

    output: torch.Tensor  # float32
    rounded: torch.Tensor | None  # the same in bfloat16, if that is what x is in
    rstd: torch.Tensor  # 1 / deviation of each token
    normalized: torch.Tensor | None  # before weight and bias, like x; for the gradient


def layernorm_forward(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    *,
    epsilon: float,
    dropout: float,
    seed: int,
    with_normalized: bool,
) -> LayerNormResult:
    """Layer normalisation of ``x`` after dropout plus the residual, both ``(n_tokens, size)``."""
    shape = n_tokens, size = residual.shape
    is_bf16 = _is_bf16("x", x, size)
    inputs = (
        address_of("x", x, shape, x.dtype),
        address_of("residual", residual, shape, torch.float32),
        address_of("weight", weight, (size,), torch.float32),
        address_of("bias", bias, (size,), torch.float32),
    )
    output, rstd = torch.empty_like(residual), residual.new_empty(n_tokens)
    rounded = torch.empty_like(x) if is_bf16 else None
    normalized = torch.empty_like(x) if with_normalized else None
    kernels.layernorm_forward(
        *inputs, *addresses(output, rstd, rounded, normalized),
        n_tokens, size, is_bf16, epsilon, dropout, seed, torch.get_num_threads(),
    )  # fmt: skip
    return LayerNormResult(output, rounded, rstd, normalized)


def layernorm_backward(
    normalized: torch.Tensor,
    rstd: torch.Tensor,
    weight: torch.Tensor,
    *,
    grad_output: torch.Tensor | None,
    grad_rounded: torch.Tensor | None,
    dropout: float,
    seed: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The gradients of ``x``, the residual, weight and bias, from those of both outputs."""
    shape = n_tokens, size = normalized.shape
    is_bf16, n_threads = _is_bf16("normalized", normalized, size), torch.get_num_threads()
    inputs = (
        address_of("normalized", normalized, shape, normalized.dtype),
        address_of("rstd", rstd, (n_tokens,), torch.float32),
        address_of("weight", weight, (size,), torch.float32),
        optional_address("grad_output", grad_output, shape, torch.float32),
        optional_address("grad_rounded", grad_rounded, shape, normalized.dtype),
    )
    grad_residual = torch.empty_like(normalized, dtype=torch.float32)
    grad_x = torch.empty_like(normalized)
    partial_sums = normalized.new_zeros(n_threads, 2, size, dtype=torch.float32)
    kernels.layernorm_backward(
        *inputs, *addresses(grad_residual, grad_x, partial_sums),
        n_tokens, size, is_bf16, dropout, seed, n_threads,
    )  # fmt: skip
    grad_weight, grad_bias = partial_sums.sum(0)
    return grad_x, grad_residual, grad_weight, grad_bias


def _is_bf16(name: str, x: torch.Tensor, size: int) -> bool:
    if size % LANES or x.dtype not in DTYPES:
        raise ValueError(f"a kernel normalises no {name} of {tuple(x.shape)} in {x.dtype}")
    return x.dtype == torch.bfloat16


# --- products of bfloat16 ------------------------------------------------------------------------


class StackedWeights:
    """Weights in float32 of one shape, which a product reads as if one lay below the other.

    They are read where they are in each product: whoever holds this sees what they have become.
    """

    def __init__(self, weights: Sequence[torch.Tensor]) -> None:
        self.n_rows, self.n_in = shape = weights[0].shape
        if not all(size and size % PANEL == 0 for size in shape):
            raise ValueError(f"a kernel multiplies no weights of {tuple(shape)}")
        self.n_out = len(weights) * self.n_rows
        self.weights = weights  # whose memory must stay
        begins = [address_of("weight", weight, shape, torch.float32) for weight in weights]
        self.addresses = torch.tensor(begins, dtype=torch.int64, device="cpu")


def packed_linear(
    x: torch.Tensor, packed_weight: torch.Tensor, bias: torch.Tensor, *, gelu: bool
) -> torch.Tensor:
    """A linear layer of ``(n_tokens, n_in)`` in bfloat16, followed by GELU if asked for.

    The weight is ``(n_out / PANEL, n_in / 2, PANEL, 2)``, the bias in float32.
    """
    (n_tokens, n_in), n_out = x.shape, len(bias)
    if n_in % 2 or n_out % PANEL or not n_in * n_out:
        raise ValueError(f"a kernel multiplies no weight of {n_out} times {n_in}")
    panels = n_out // PANEL, n_in // 2, PANEL, 2
    output = x.new_empty(n_tokens, n_out)
    kernels.linear_forward(
        address_of("x", x, (n_tokens, n_in), torch.bfloat16),
        address_of("packed_weight", packed_weight, panels, torch.bfloat16), 0,
        address_of("bias", bias, (n_out,), torch.float32), output.data_ptr(), 0,
        n_tokens, n_in, n_out, 0, False, _GELU if gelu else _NO_EPILOGUE, torch.get_num_threads(),
    )  # fmt: skip
    return output


def linear_stacked(
    x: torch.Tensor,
    weights: StackedWeights,
    bias: torch.Tensor,
    *,
    gelu_output: torch.Tensor | None = None,
) -> torch.Tensor:
    """A linear layer of ``(n_tokens, n_in)`` in bfloat16; its GELU goes to ``gelu_output``."""
    n_tokens, shape = len(x), (len(x), weights.n_out)
    output = x.new_empty(shape)
    if gelu_output is not None:
        check_apart([gelu_output], [x, bias, *weights.weights])
    kernels.linear_forward(
        address_of("x", x, (n_tokens, weights.n_in), torch.bfloat16),
        0, weights.addresses.data_ptr(),
        address_of("bias", bias, (weights.n_out,), torch.float32),
        output.data_ptr(),
        optional_address("gelu_output", gelu_output, shape, torch.bfloat16),
        n_tokens, weights.n_in, weights.n_out, weights.n_rows, False,
        _NO_EPILOGUE if gelu_output is None else _GELU_COPY, torch.get_num_threads(),
    )  # fmt: skip
    return output


def linear_grad_input(
    grad_output: torch.Tensor,
    weights: StackedWeights,
    *,
    pre_activation: torch.Tensor | None = None,
) -> torch.Tensor:
    """The gradient of a linear layer's input, ``(n_tokens, n_in)`` in bfloat16.

    Or of what was before the GELU that was its input, ``pre_activation``.
    """
    n_tokens, shape = len(grad_output), (len(grad_output), weights.n_in)
    grad_input = grad_output.new_empty(shape)
    kernels.linear_forward(
        address_of("grad_output", grad_output, (n_tokens, weights.n_out), torch.bfloat16),
        0, weights.addresses.data_ptr(), 0, grad_input.data_ptr(),
        optional_address("pre_activation", pre_activation, shape, torch.bfloat16),
        n_tokens, weights.n_out, weights.n_in, weights.n_rows, True,
        _NO_EPILOGUE if pre_activation is None else _GELU_BACKWARD, torch.get_num_threads(),
    )  # fmt: skip
    return grad_input


def linear_grad_weight(
    grad_output: torch.Tensor,
    x: torch.Tensor,
    *,
    grad_weight: torch.Tensor,
    grad_bias: torch.Tensor,
    gelu: bool = False,
) -> None:
    """Write the gradients of a linear layer's weight and bias, in bfloat16.

    Its input was ``x``, or the GELU of that.
    """
    (n_tokens, n_in), n_out = x.shape, grad_output.shape[1]
    if n_in % PANEL or n_out % PANEL:
        raise ValueError(f"a kernel computes no gradient of a weight of {n_out} times {n_in}")
    check_apart([grad_weight, grad_bias], [grad_output, x])
    kernels.linear_weight_grad(
        address_of("grad_output", grad_output, (n_tokens, n_out), torch.bfloat16),
        address_of("x", x, (n_tokens, n_in), torch.bfloat16),
        address_of("grad_weight", grad_weight, (n_out, n_in), torch.bfloat16),
        address_of("grad_bias", grad_bias, (n_out,), torch.bfloat16),
        n_tokens, n_in, n_out, gelu, torch.get_num_threads(),
    )  # fmt: skip


# --- steps of the optimizer ----------------------------------------------------------------------


class AdamWTensor(NamedTuple):
    """A weight to be updated, contiguous as are its gradient and its moments."""

    weight: torch.Tensor
    gradient: torch.Tensor  # float32 or bfloat16
    exp_avg: torch.Tensor
    exp_avg_sq: torch.Tensor
    decay: float  # the share of the weight that weight decay leaves
    step_size: float  # the learning rate divided by the correction of exp_avg
    bias_correction2_sqrt: float


def adamw_step(
    tensors: Sequence[AdamWTensor],
    *,
    divisor: float,
    epsilon: float,
    betas: tuple[float, float],
) -> None:
    """Take a step of AdamW with the gradients divided by ``divisor``."""
    rows = [_table_row(t.gradient, t.weight, t.exp_avg, t.exp_avg_sq) for t in tensors]
    _check_table(rows)
    factors = [(t.decay, t.step_size, t.bias_correction2_sqrt) for t in tensors]
    table = torch.tensor(rows, dtype=torch.int64, device="cpu")
    numbers = torch.tensor(factors, dtype=torch.float32, device="cpu")
    kernels.adamw_step(
        *addresses(table, numbers), len(tensors), divisor, epsilon, *betas,
        torch.get_num_threads(),
    )  # fmt: skip


def grad_norm(gradients: Sequence[torch.Tensor]) -> torch.Tensor:
    """Euclidean norm of contiguous tensors together."""
    n_threads = torch.get_num_threads()
    squares = torch.zeros(n_threads, dtype=torch.float64, device="cpu")
    rows = [_table_row(gradient, None, None, None) for gradient in gradients]
    table = torch.tensor(rows, dtype=torch.int64, device="cpu")
    kernels.grad_norm(table.data_ptr(), len(gradients), squares.data_ptr(), n_threads)
    return squares.sum().sqrt().float()


def _table_row(gradient: torch.Tensor, *states: torch.Tensor | None) -> tuple[int, ...]:
    """One tensor in the table that a kernel goes through, with what belongs to it."""
    shape, is_bf16 = gradient.shape, gradient.dtype == torch.bfloat16
    dtype = torch.bfloat16 if is_bf16 else torch.float32
    address = address_of("gradient", gradient, shape, dtype)
    others = [optional_address("state", state, shape, torch.float32) for state in states]
    return gradient.numel(), is_bf16, address, *others


def _check_table(rows: Sequence[tuple[int, ...]]) -> None:
    """ValueError where a weight or a moment of a table shares memory with another tensor of it."""
    written = [(at, at + 4 * n) for n, _, _, *states in rows for at in states]
    read = [(at, at + (4 - 2 * is_bf16) * n) for n, is_bf16, at, *_ in rows]
    check_ranges(written, read)
