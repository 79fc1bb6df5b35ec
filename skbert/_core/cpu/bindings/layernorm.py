"""Layer normalisation after dropout and a residual, and its gradient. Depends on torch only."""

from __future__ import annotations

import torch

from skbert._core.cpu.bindings import module
from skbert._core.cpu.bindings.checks import (
    address_of,
    addresses,
    check_dropout,
    check_multiple,
    check_real,
    optional_address,
    shape_of,
)
from skbert._core.cpu.bindings.module import DTYPES, LANES
from skbert._core.runtime.autograd import LayerNormResult

__all__ = [
    "add_layernorm_forward",
    "layernorm_backward",
    "layernorm_forward",
]


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
) -> LayerNormResult:
    """Layer normalisation of ``x`` after dropout plus the residual, both ``(n_tokens, size)``."""
    settings = epsilon, dropout, seed
    return _forward(x, residual, weight, bias, settings, with_normalized, with_sum=False)


def add_layernorm_forward(
    *,
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    epsilon: float,
    dropout: float,
    seed: int,
    with_normalized: bool,
) -> LayerNormResult:
    """The sum of ``x`` after dropout and the residual, and its normalisation, only like ``x``."""
    settings = epsilon, dropout, seed
    return _forward(x, residual, weight, bias, settings, with_normalized, with_sum=True)


def _forward(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    settings: tuple[float, float, int],
    with_normalized: bool,
    *,
    with_sum: bool,
) -> LayerNormResult:
    shape = n_tokens, size = shape_of("x", x, 2)
    (epsilon, dropout, seed), is_bf16 = settings, _is_bf16(x)
    check_real("epsilon", epsilon, 0)
    check_dropout(dropout, seed)
    inputs = (
        address_of("x", x, shape, x.dtype),
        address_of("residual", residual, shape, torch.float32),
        address_of("weight", weight, (size,), torch.float32),
        optional_address("bias", bias, (size,), torch.float32),
    )
    total = torch.empty_like(residual) if with_sum else None
    output = None if with_sum and is_bf16 else torch.empty_like(residual)
    rstd = residual.new_empty(n_tokens)
    rounded = torch.empty_like(x) if is_bf16 else None
    normalized = torch.empty_like(x) if with_normalized else None
    module.kernels.layernorm_forward(
        *inputs, *addresses(total, output, rstd, rounded, normalized),
        n_tokens, size, is_bf16, epsilon, dropout, seed, torch.get_num_threads(),
    )  # fmt: skip
    return LayerNormResult(output, rounded, rstd, normalized, total)


def layernorm_backward(
    *,
    normalized: torch.Tensor,
    rstd: torch.Tensor,
    weight: torch.Tensor,
    grad_output: torch.Tensor | None,
    grad_rounded: torch.Tensor | None,
    dropout: float,
    seed: int,
    grad_sum: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The gradients of ``x``, the residual, weight and bias, from those of all outputs."""
    shape = n_tokens, size = shape_of("normalized", normalized, 2)
    is_bf16 = _is_bf16(normalized)
    check_dropout(dropout, seed)
    inputs = (
        address_of("normalized", normalized, shape, normalized.dtype),
        address_of("rstd", rstd, (n_tokens,), torch.float32),
        address_of("weight", weight, (size,), torch.float32),
        optional_address("grad_sum", grad_sum, shape, torch.float32),
        optional_address("grad_output", grad_output, shape, torch.float32),
        optional_address("grad_rounded", grad_rounded, shape, normalized.dtype),
    )
    grad_residual = torch.empty_like(normalized, dtype=torch.float32)
    grad_x = torch.empty_like(normalized)
    grad_weights = normalized.new_empty(2, size, dtype=torch.float32)
    module.kernels.layernorm_backward(
        *inputs, *addresses(grad_residual, grad_x, grad_weights),
        n_tokens, size, is_bf16, dropout, seed, torch.get_num_threads(),
    )  # fmt: skip
    grad_weight, grad_bias = grad_weights.unbind()
    return grad_x, grad_residual, grad_weight, grad_bias


def _is_bf16(x: torch.Tensor) -> bool:
    """Whether ``x`` is in bfloat16; ValueError where a kernel normalises nothing like it."""
    check_multiple("the size", x.shape[1], LANES)
    if x.dtype not in DTYPES:
        raise ValueError(f"a kernel normalises nothing in {x.dtype}")
    return x.dtype == torch.bfloat16
