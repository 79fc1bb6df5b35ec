"""What operations of kernels share, on a CPU or a GPU: how they run, seeds, and a result.

Depends on torch only.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch

__all__ = ["Context", "LayerNormResult", "apply", "draw_seed"]


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


def draw_seed(dropout: float) -> int:
    """A seed from torch's generator; 0 without dropout."""
    return int(torch.empty((), dtype=torch.int64, device="cpu").random_()) if dropout else 0


class LayerNormResult(NamedTuple):
    """What kernels of layer normalisation compute, of ``x`` and a residual."""

    output: torch.Tensor | None  # float32; None where the sum is wanted and x is rounded
    rounded: torch.Tensor | None  # the same like x, if that is not in float32
    rstd: torch.Tensor  # 1 / deviation of each token
    normalized: torch.Tensor | None  # before weight and bias, like x; for the gradient
    sum: torch.Tensor | None  # of x and the residual, float32
