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
    WrittenMemory,
    address_of,
    address_of_array,
    addresses,
    addresses_of,
    are_readable,
    check_real,
    check_type,
)
from skbert._core.cpu.bindings.module import DTYPES
from skbert._core.runtime.autograd import AdamWTensor

__all__ = ["AdamWStates", "adamw_step", "grad_norm"]

_MIN_DIVISOR = torch.finfo(torch.float32).tiny
_MAX_BETA = 1.0 - torch.finfo(torch.float32).eps
_WRITTEN = [*map(attrgetter, ("weight", "exp_avg", "exp_avg_sq", "bf16_weight"))]
_DTYPE, _SHAPE = attrgetter("dtype"), attrgetter("shape")
_READ = _DTYPE, _SHAPE, torch.Tensor.is_contiguous


class AdamWStates:
    """What steps of AdamW write, checked again where it is not what it was in the last step."""

    def __init__(self) -> None:
        self._seen: list[list[Any]] = []  # addresses, and what else is read
        self.memory = WrittenMemory()

    def addresses_of(self, tensors: Sequence[AdamWTensor]) -> list[list[int]]:
        """Those of weights, of both moments and of copies; an error for what is unfit."""
        columns = [[*map(read, tensors)] for read in _WRITTEN]
        written = [x for column in columns for x in column if x is not None]
        begins = [addresses(*column) for column in columns]
        seen = [*begins, *([*map(read, written)] for read in _READ)]
        if seen != self._seen:
            self.memory = WrittenMemory([x for t in tensors for x in _checked_ranges(t)])
            self._seen = seen
        return begins


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
    written = states.addresses_of(tensors)
    gradients = [t.gradient for t in tensors]
    read = _columns_of(gradients, [t.weight.shape for t in tensors])
    ends = (begin + x.nbytes for begin, x in zip(read[2], gradients, strict=True))
    states.memory.check_apart(zip(read[2], ends, strict=True))
    table = _table_of([*read, *written])
    factors = array("f")
    for t in tensors:
        factors.extend((t.decay, t.step_size, t.bias_correction2_sqrt))
    module.kernels.adamw_step(
        address_of_array(table), address_of_array(factors), len(tensors), divisor, epsilon,
        beta1, beta2, torch.get_num_threads(),
    )  # fmt: skip


def grad_norm(*, gradients: Sequence[torch.Tensor]) -> torch.Tensor:
    """Euclidean norm of contiguous tensors together."""
    n_threads = torch.get_num_threads()
    squares = torch.zeros(n_threads, dtype=torch.float64, device="cpu")
    nothing = [0] * len(gradients)
    table = _table_of([*_columns_of(gradients), *[nothing] * len(_WRITTEN)])
    module.kernels.grad_norm(
        address_of_array(table), len(gradients), *addresses(squares), n_threads
    )
    return squares.sum().sqrt().float()


def _columns_of(
    gradients: Sequence[torch.Tensor], shapes: list[torch.Size] | None = None
) -> list[list[int]]:
    """How many numbers each has, whether in bfloat16, and where; of shapes if they are given.

    An error if a kernel cannot read them.
    """
    for gradient in gradients:
        check_type("gradient", gradient, torch.Tensor)
    dtypes, found = [*map(_DTYPE, gradients)], [*map(_SHAPE, gradients)]
    shapes = found if shapes is None else shapes
    if found != shapes or not {*dtypes} <= {*DTYPES} or not are_readable(gradients):
        for gradient, shape in zip(gradients, shapes, strict=True):
            is_bf16 = gradient.dtype == torch.bfloat16
            address_of("gradient", gradient, shape, DTYPES[is_bf16])
    are_bf16 = [int(dtype == torch.bfloat16) for dtype in dtypes]
    return [[*map(torch.Tensor.numel, gradients)], are_bf16, [*addresses_of(gradients)]]


def _table_of(columns: Sequence[list[int]]) -> array[int]:
    """What C reads, row by row."""
    table = array("q", bytes(8 * len(columns) * len(columns[0])))
    for place, column in enumerate(columns):
        table[place :: len(columns)] = array("q", column)
    return table
