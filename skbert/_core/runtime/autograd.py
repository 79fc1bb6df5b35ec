"""Autograd functions that also run without gradients, and seeds of what they drop.

Depends on torch only.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch

__all__ = ["Context", "apply", "draw_seed"]


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
