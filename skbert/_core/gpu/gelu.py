"""GELU and its gradient in one pass over memory, and gates, on a GPU.

Depends on torch and the kernels.
"""

from __future__ import annotations

import torch

from skbert._core.gpu.kernels import gelu as kernels

__all__ = ["gated_backward", "gated_forward", "gelu_backward"]

_NUMBERS = 2048  # that a program computes


def gelu_backward(
    *, hidden: torch.Tensor, grad_active: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """GELU of ``hidden``, computed again, and the gradient of ``hidden``; all of one shape."""
    active, grad_hidden = torch.empty_like(hidden), torch.empty_like(hidden)
    kernels.gelu_backward[_grid(hidden)](
        hidden, grad_active, active, grad_hidden, hidden.numel(), BLOCK=_NUMBERS
    )
    return active, grad_hidden


def gated_forward(*, hidden: torch.Tensor) -> torch.Tensor:
    """GELU of the first half of ``(n_tokens, 2 * size)`` times the second half."""
    n_tokens, width = hidden.shape
    active = hidden.new_empty(n_tokens, width // 2)
    kernels.gated_forward[_grid(active)](
        hidden, active, active.numel(), width // 2, BLOCK=_NUMBERS
    )
    return active


def gated_backward(*, hidden: torch.Tensor, grad_output: torch.Tensor) -> torch.Tensor:
    """The gradient of ``hidden``."""
    grad_hidden = torch.empty_like(hidden)
    kernels.gated_backward[_grid(grad_output)](
        hidden, grad_output, grad_hidden, grad_output.numel(), grad_output.shape[1],
        BLOCK=_NUMBERS,
    )  # fmt: skip
    return grad_hidden


def _grid(numbers: torch.Tensor) -> tuple[int]:
    return (-(-numbers.numel() // _NUMBERS),)
