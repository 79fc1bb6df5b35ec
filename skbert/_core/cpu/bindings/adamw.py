"""Steps of AdamW over many tensors, and the norm of gradients. Depends on torch only."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from skbert._core.cpu.bindings import module
from skbert._core.cpu.bindings.checks import (
    address_of,
    addresses,
    check_ranges,
    check_real,
    check_type,
    optional_address,
)
from skbert._core.runtime.autograd import AdamWTensor

__all__ = ["adamw_step", "grad_norm"]

_MIN_DIVISOR = torch.finfo(torch.float32).tiny
_MAX_BETA = 1.0 - torch.finfo(torch.float32).eps


def adamw_step(
    *,
    tensors: Sequence[AdamWTensor],
    divisor: float,
    epsilon: float,
    betas: tuple[float, float],
) -> None:
    """Take a step of AdamW with the gradients divided by ``divisor``."""
    check_real("divisor", divisor, _MIN_DIVISOR, math.inf)
    check_real("epsilon", epsilon, 0)
    beta1, beta2 = betas
    check_real("beta1", beta1, 0, _MAX_BETA)
    check_real("beta2", beta2, 0, _MAX_BETA)
    rows = [
        (
            *_table_row(t.gradient, t.weight, t.exp_avg, t.exp_avg_sq),
            optional_address("bf16_weight", t.bf16_weight, t.weight.shape, torch.bfloat16),
        )
        for t in tensors
    ]
    _check_table(rows)
    factors = [(t.decay, t.step_size, t.bias_correction2_sqrt) for t in tensors]
    table = torch.tensor(rows, dtype=torch.int64, device="cpu")
    numbers = torch.tensor(factors, dtype=torch.float32, device="cpu")
    module.kernels.adamw_step(
        *addresses(table, numbers), len(tensors), divisor, epsilon, beta1, beta2,
        torch.get_num_threads(),
    )  # fmt: skip


def grad_norm(*, gradients: Sequence[torch.Tensor]) -> torch.Tensor:
    """Euclidean norm of contiguous tensors together."""
    n_threads = torch.get_num_threads()
    squares = torch.zeros(n_threads, dtype=torch.float64, device="cpu")
    rows = [(*_table_row(gradient), 0, 0, 0, 0) for gradient in gradients]
    table = torch.tensor(rows, dtype=torch.int64, device="cpu")
    module.kernels.grad_norm(*addresses(table), len(gradients), *addresses(squares), n_threads)
    return squares.sum().sqrt().float()


def _table_row(gradient: torch.Tensor, *states: torch.Tensor) -> tuple[int, ...]:
    """One tensor in the table that a kernel goes through, with what belongs to it."""
    check_type("gradient", gradient, torch.Tensor)
    shape, is_bf16 = gradient.shape, gradient.dtype == torch.bfloat16
    dtype = torch.bfloat16 if is_bf16 else torch.float32
    address = address_of("gradient", gradient, shape, dtype)
    others = [address_of("state", state, shape, torch.float32) for state in states]
    return gradient.numel(), is_bf16, address, *others


def _check_table(rows: Sequence[tuple[int, ...]]) -> None:
    """ValueError where a weight or a moment of a table shares memory with another tensor of it."""
    written = [(at, at + 4 * n) for n, _, _, *states, _ in rows for at in states]
    written += [(at, at + 2 * n) for n, *_, at in rows if at]
    read = [(at, at + (4 - 2 * is_bf16) * n) for n, is_bf16, at, *_ in rows]
    check_ranges(written, read)
