"""Steps of AdamW over many tensors, and the norm of gradients. Depends on torch only."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from operator import is_

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


class AdamWStates:
    """What steps of AdamW write, checked again where it is not what it was in the last step."""

    def __init__(self) -> None:
        self._tensors: list[torch.Tensor | None] = []
        self._places: tuple[list[int], list[int]] = [], []  # where they begin, and sizes
        self._starts: list[int] = []  # of the memory that is written, ascending,
        self._ends: list[int] = []

    def rows(self, tensors: Sequence[AdamWTensor]) -> list[tuple[int, ...]]:
        """Of each the addresses of the weight, its moments and its copy."""
        every = [x for t in tensors for x in (t.weight, t.exp_avg, t.exp_avg_sq, t.bf16_weight)]
        is_known = len(every) == len(self._tensors) and all(map(is_, every, self._tensors))
        if not is_known or self._places != _places(tensors, every):
            ranges = [x for t in tensors for x in _checked_ranges(t)]
            check_ranges(ranges, [])
            filled = sorted(each for each in ranges if each[0] < each[1])
            self._starts, self._ends = [x for x, _ in filled], [x for _, x in filled]
            self._tensors, self._places = every, _places(tensors, every)
        return [*zip(*[iter(self._places[0])] * 4, strict=True)]

    def check_apart(self, begin: int, end: int) -> None:
        """Raise ValueError if memory that is read is written, too."""
        at = bisect_right(self._ends, begin)
        if begin < end and at < len(self._ends) and self._starts[at] < end:
            raise ValueError("a kernel was to write to memory that another of its tensors has")


def _places(
    tensors: Sequence[AdamWTensor], every: Sequence[torch.Tensor | None]
) -> tuple[list[int], list[int]]:
    return addresses(*every), [t.weight.numel() for t in tensors]


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
    rows: list[int] = []
    for t, written in zip(tensors, states.rows(tensors), strict=True):
        n, is_bf16, begin = _read(t.gradient, t.weight.shape)
        states.check_apart(begin, begin + (4 - 2 * is_bf16) * n)
        rows += n, is_bf16, begin, *written
    factors = [x for t in tensors for x in (t.decay, t.step_size, t.bias_correction2_sqrt)]
    table, numbers = array("q", rows), array("f", factors)
    module.kernels.adamw_step(
        address_of_array(table), address_of_array(numbers), len(tensors), divisor, epsilon,
        beta1, beta2, torch.get_num_threads(),
    )  # fmt: skip


def grad_norm(*, gradients: Sequence[torch.Tensor]) -> torch.Tensor:
    """Euclidean norm of contiguous tensors together."""
    n_threads = torch.get_num_threads()
    squares = torch.zeros(n_threads, dtype=torch.float64, device="cpu")
    rows = array("q")
    for gradient in gradients:
        rows.extend((*_read(gradient), 0, 0, 0, 0))
    table = address_of_array(rows)
    module.kernels.grad_norm(table, len(gradients), *addresses(squares), n_threads)
    return squares.sum().sqrt().float()


def _read(gradient: torch.Tensor, shape: torch.Size | None = None) -> tuple[int, bool, int]:
    """A gradient, of this shape if one is given, in the table that a kernel goes through."""
    check_type("gradient", gradient, torch.Tensor)
    is_bf16 = gradient.dtype == torch.bfloat16
    dtype = torch.bfloat16 if is_bf16 else torch.float32
    begin = address_of("gradient", gradient, gradient.shape if shape is None else shape, dtype)
    return gradient.numel(), is_bf16, begin
