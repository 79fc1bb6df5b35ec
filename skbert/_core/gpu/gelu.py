"""GELU and its gradient in one pass over memory, on a GPU. Depends on torch and the kernel."""

from __future__ import annotations

import torch

from skbert._core.gpu.kernels import gelu as kernels

__all__ = ["gelu_backward"]

_NUMBERS = 2048  # that a program computes


def gelu_backward(
    *, hidden: torch.Tensor, grad_active: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """GELU of ``hidden``, computed again, and the gradient of ``hidden``; all of one shape."""
    active, grad_hidden = torch.empty_like(hidden), torch.empty_like(hidden)
    n_numbers = hidden.numel()
    kernels.gelu_backward[(-(-n_numbers // _NUMBERS),)](
        hidden, grad_active, active, grad_hidden, n_numbers, BLOCK=_NUMBERS
    )
    return active, grad_hidden
