"""What kernels share, on a CPU or a GPU: how operations run, seeds, a result, and a weight.

Depends on torch only.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol

import torch

__all__ = [
    "AdamWTensor", "Context", "DeviceSeed", "LayerNormResult", "RoundedGrads", "Seed",
    "add_gradient", "apply", "draw_seed", "draw_seeds", "pop_gradient", "seed_of_a_run",
    "seeds_of_a_run",
]  # fmt: skip


class Context(Protocol):
    """The ``ctx`` of an autograd function."""

    needs_input_grad: tuple[bool, ...]
    saved_tensors: tuple[torch.Tensor, ...]
    settings: Any  # what the backward pass needs beside tensors

    def save_for_backward(self, *tensors: torch.Tensor | None) -> None: ...

    def mark_dirty(self, *tensors: torch.Tensor) -> None: ...

    def set_materialize_grads(self, value: bool) -> None: ...


class _NoGrad:
    """Stands for the ``ctx`` of an autograd function where nothing needs a gradient."""

    needs_input_grad = ()


def apply(function: Any, *arguments: Any) -> Any:
    """The outputs of an autograd function; where no gradient is wanted nothing is saved."""
    if torch.is_grad_enabled():
        return function.apply(*arguments)
    return function.forward(_NoGrad(), *arguments)


# Where gradients in lower precision are kept, by weight, if there is such a place.
RoundedGrads = dict[torch.Tensor, torch.Tensor] | None


def pop_gradient(weight: torch.Tensor, rounded_grads: RoundedGrads) -> torch.Tensor | None:
    """The gradient of a weight, if it has one, which is forgotten."""
    gradient = None if rounded_grads is None else rounded_grads.pop(weight, None)
    if gradient is None and weight.grad is not None:
        gradient, weight.grad = weight.grad, None
    return gradient


def add_gradient(
    weight: torch.Tensor, gradient: torch.Tensor, rounded_grads: RoundedGrads
) -> None:
    """Add to the gradient of a weight: the first in lower precision stays so until another."""
    earlier = pop_gradient(weight, rounded_grads)
    if earlier is not None:
        weight.grad = earlier.to(weight.dtype).add_(gradient)
    elif rounded_grads is not None and gradient.dtype != weight.dtype:
        rounded_grads[weight] = gradient
    else:
        weight.grad = gradient.to(weight.dtype)


class DeviceSeed(NamedTuple):
    """A seed of two numbers, of which the second is read on the device each time it is used."""

    number: int
    shift: torch.Tensor  # (1,) int32


Seed = int | DeviceSeed


def draw_seed(dropout: float) -> Any:
    """A `Seed` from torch's generator, or the next one of a run; 0 without dropout."""
    return draw_seeds(dropout)[0] if dropout else 0


def draw_seeds(*dropouts: float) -> list[Any]:
    """What `draw_seed` returns for one after another, from one call of torch's generator."""
    run = _RUN.get()
    if run is not None:
        return [run.next() if dropout else 0 for dropout in dropouts]
    drawn = iter(_drawn(sum(map(bool, dropouts))))
    return [next(drawn) if dropout else 0 for dropout in dropouts]


def _drawn(n_drawn: int) -> list[int]:
    return torch.empty(n_drawn, dtype=torch.int64, device="cpu").random_().tolist()


_BOUND = 1 << 30  # of both parts of a seed, so that kernels know the sum


class _SeedsOfARun:
    """Seeds that follow from one number, as it is on the host or on the device."""

    def __init__(self, shift: int | torch.Tensor) -> None:
        self.shift, self.n_drawn = shift, 0

    def next(self) -> Seed:
        """The next seed."""
        self.n_drawn += 1
        number = self.n_drawn * 0x9E3779B1 % _BOUND
        if isinstance(self.shift, torch.Tensor):
            return DeviceSeed(number, self.shift)
        return number + self.shift


_RUN: ContextVar[_SeedsOfARun | None] = ContextVar("_RUN", default=None)


def seed_of_a_run() -> int:
    """One number from torch's generator, for `seeds_of_a_run`."""
    return _drawn(1)[0] % _BOUND


@contextmanager
def seeds_of_a_run(shift: int | torch.Tensor) -> Iterator[None]:
    """The seeds drawn inside the ``with`` follow from one number, and the order they are drawn in.

    They are the same where that number is a tensor of the device, ``(1,)`` int32.
    """
    before = _RUN.set(_SeedsOfARun(shift))
    try:
        yield
    finally:
        _RUN.reset(before)


class LayerNormResult(NamedTuple):
    """What kernels of layer normalisation compute, of ``x`` and a residual."""

    output: torch.Tensor | None  # float32; None where the sum is wanted and x is rounded
    rounded: torch.Tensor | None  # the same like x, if that is not in float32
    rstd: torch.Tensor  # 1 / deviation of each token
    normalized: torch.Tensor | None  # before weight and bias, like x; for the gradient
    sum: torch.Tensor | None  # of x and the residual, float32


class AdamWTensor(NamedTuple):
    """A weight to be updated, contiguous as are its gradient and its moments."""

    weight: torch.Tensor
    gradient: torch.Tensor  # float32 or bfloat16
    exp_avg: torch.Tensor
    exp_avg_sq: torch.Tensor
    decay: float  # the share of the weight that weight decay leaves
    step_size: float  # the learning rate divided by the correction of exp_avg
    bias_correction2_sqrt: float
    bf16_weight: torch.Tensor | None = None  # gets the weight as it is after the step
