"""Steps of AdamW over many tensors, and the norm of gradients.

C reads of them a table, a row for each tensor. Depends on numpy and torch only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from skbert._core.cpu.bindings import module
from skbert._core.cpu.bindings.checks import (
    addresses,
    addresses_of_all,
    check_ranges,
    check_real,
    check_type,
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
    if not tensors:
        return
    weights, gradients, *moments, _, _, _, copies = zip(*tensors, strict=True)
    sizes, is_bf16, begins = _gradients(gradients)
    shapes = [gradient.shape for gradient in gradients]
    singles = [torch.float32] * len(shapes)
    states = [addresses_of_all("state", each, shapes, singles) for each in (weights, *moments)]
    columns = [sizes, is_bf16, begins, *states, _copies(copies, shapes)]
    factors = [(t.decay, t.step_size, t.bias_correction2_sqrt) for t in tensors]
    numbers = np.array(factors, np.float32)
    table = np.array(columns, np.int64).T.copy()
    _check_apart(table.tolist())
    module.kernels.adamw_step(
        table.ctypes.data, numbers.ctypes.data, len(tensors), divisor, epsilon, beta1, beta2,
        torch.get_num_threads(),
    )  # fmt: skip


def grad_norm(*, gradients: Sequence[torch.Tensor]) -> torch.Tensor:
    """Euclidean norm of contiguous tensors together."""
    n_threads = torch.get_num_threads()
    squares = torch.zeros(n_threads, dtype=torch.float64, device="cpu")
    columns = [*_gradients(gradients), *[[0] * len(gradients)] * 4]
    table = np.array(columns, np.int64).T.copy()
    module.kernels.grad_norm(table.ctypes.data, len(gradients), *addresses(squares), n_threads)
    return squares.sum().sqrt().float()


def _gradients(gradients: Sequence[torch.Tensor]) -> tuple[list[int], list[bool], list[int]]:
    """Of each gradient the size, whether it is in bfloat16, and the address."""
    for gradient in gradients:
        check_type("gradient", gradient, torch.Tensor)
    is_bf16 = [gradient.dtype == torch.bfloat16 for gradient in gradients]
    dtypes = [torch.bfloat16 if each else torch.float32 for each in is_bf16]
    shapes = [gradient.shape for gradient in gradients]
    begins = addresses_of_all("gradient", gradients, shapes, dtypes)
    return [*map(torch.Tensor.numel, gradients)], is_bf16, begins


def _copies(copies: Sequence[torch.Tensor | None], shapes: Sequence[torch.Size]) -> list[int]:
    """The addresses of copies of weights in bfloat16, 0 where there is none."""
    pairs = [(x, shape) for x, shape in zip(copies, shapes, strict=True) if x is not None]
    if not pairs:
        return [0] * len(copies)
    there, their_shapes = zip(*pairs, strict=True)
    dtypes = [torch.bfloat16] * len(pairs)
    begins = iter(addresses_of_all("bf16_weight", there, [*their_shapes], dtypes))
    return [0 if x is None else next(begins) for x in copies]


def _check_apart(rows: list[list[int]]) -> None:
    """ValueError where a weight or a moment of a table shares memory with another tensor of it."""
    written = [(at, at + 4 * n) for n, _, _, *states, _ in rows for at in states]
    written += [(at, at + 2 * n) for n, *_, at in rows if at]
    read = [(at, at + (4 - 2 * is_bf16) * n) for n, is_bf16, at, *_ in rows]
    check_ranges(written, read)
