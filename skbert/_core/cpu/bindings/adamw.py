"""Steps of AdamW over many tensors, and the norm of gradients. Depends on torch only."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import torch

from skbert._core.cpu.bindings import module
from skbert._core.cpu.bindings.checks import (
    address_of,
    address_of_array,
    addresses,
    check_ranges,
    check_real,
    check_type,
)
from skbert._core.runtime.autograd import AdamWTensor

__all__ = ["AdamWStates", "adamw_step", "grad_norm"]

_MIN_DIVISOR = torch.finfo(torch.float32).tiny
_MAX_BETA = 1.0 - torch.finfo(torch.float32).eps
_WRITTEN = [*map(attrgetter, ("weight", "exp_avg", "exp_avg_sq", "bf16_weight"))]
_READ = attrgetter("dtype"), attrgetter("shape"), torch.Tensor.is_contiguous


class AdamWStates:
    """What steps of AdamW write, checked again where it is not what it was in the last step."""

    def __init__(self) -> None:
        self._seen: list[list[Any]] = []  # addresses, and what else is read
        self.ranges: list[tuple[int, int]] = []  # of the memory that is written

    def addresses_of(self, tensors: Sequence[AdamWTensor]) -> list[tuple[int, ...]]:
        """Those of each weight, of its moments and of its copy; an error for what is unfit."""
        columns = [[*map(read, tensors)] for read in _WRITTEN]
        written = [x for column in columns for x in column if x is not None]
        begins = [addresses(*column) for column in columns]
        seen = [*begins, *([*map(read, written)] for read in _READ)]
        if seen != self._seen:
            self.ranges = [x for t in tensors for x in _checked_ranges(t)]
            self._seen = seen
        return [*zip(*begins, strict=True)]


def _checked_ranges(t: AdamWTensor) -> list[tuple[int, int]]:
    """The memory of a weight, of its moments, and of its copy, if there is one."""
    check_type("weight", t.weight, torch.Tensor)
    shape, copy = t.weight.shape, t.bf16_weight
    states = t.weight, t.exp_avg, t.exp_avg_sq
    begins = [address_of("state", x, shape, torch.float32) for x in states]
    ranges = [(begin, begin + t.weight.nbytes) for begin in begins]
    if copy is None:
        return ranges
    begin = address_of("bf16_weight", copy, shape, torch.bfloat16)
    return [*ranges, (begin, begin + copy.nbytes)]


def adamw_step(
    *,
    tensors: Sequence[AdamWTensor],
    divisor: float,
    epsilon: float,
    betas: tuple[float, float],
    states: AdamWStates | None = None,
) -> None:
    """Take a step of AdamW with the gradients divided by ``divisor``.

    ``states`` is what one step after another gets, to check less.
    """
    check_real("divisor", divisor, _MIN_DIVISOR, math.inf)
    check_real("epsilon", epsilon, 0)
    beta1, beta2 = betas
    check_real("beta1", beta1, 0, _MAX_BETA)
    check_real("beta2", beta2, 0, _MAX_BETA)
    states = AdamWStates() if states is None else states
    table, factors, read = array("q"), array("f"), []
    for t, written in zip(tensors, states.addresses_of(tensors), strict=True):
        n, is_bf16, begin = _columns_of(t.gradient, t.weight.shape)
        read.append((begin, begin + (4 - 2 * is_bf16) * n))
        table.extend((n, is_bf16, begin, *written))
        factors.extend((t.decay, t.step_size, t.bias_correction2_sqrt))
    check_ranges(states.ranges, read)
    module.kernels.adamw_step(
        address_of_array(table), address_of_array(factors), len(tensors), divisor, epsilon,
        beta1, beta2, torch.get_num_threads(),
    )  # fmt: skip


def grad_norm(*, gradients: Sequence[torch.Tensor]) -> torch.Tensor:
    """Euclidean norm of contiguous tensors together."""
    n_threads = torch.get_num_threads()
    squares = torch.zeros(n_threads, dtype=torch.float64, device="cpu")
    table = array("q")
    for gradient in gradients:
        table.extend((*_columns_of(gradient), 0, 0, 0, 0))
    begin = address_of_array(table)
    module.kernels.grad_norm(begin, len(gradients), *addresses(squares), n_threads)
    return squares.sum().sqrt().float()


def _columns_of(gradient: torch.Tensor, shape: torch.Size | None = None) -> tuple[int, bool, int]:
    """How many numbers a gradient has, whether in bfloat16, and where; of a shape if one is given.

    An error if a kernel cannot read them.
    """
    check_type("gradient", gradient, torch.Tensor)
    is_bf16, shape = gradient.dtype == torch.bfloat16, gradient.shape if shape is None else shape
    dtype = torch.bfloat16 if is_bf16 else torch.float32
    return shape.numel(), is_bf16, address_of("gradient", gradient, shape, dtype)
