"""GELU and its gradient in one pass over memory, and gates, on a GPU.

Depends on torch and the kernels.
"""

from __future__ import annotations

import torch

from skbert._core.gpu.kernels import gelu as kernels

__all__ = ["gated_backward", "gated_forward", "gelu_backward"]

_TOKENS, _COLUMNS = 2, 1024  # that a program computes together,
_GATED_TOKENS, _GATED_COLUMNS = 4, 512  # and of gates
_PROGRAMS = 256  # that sum columns of a gradient, each of its own tokens


def gelu_backward(
    *, hidden: torch.Tensor, grad_active: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """GELU of ``hidden``, computed again, the gradient of ``hidden``, and its sum over tokens.

    The first two are ``(n_tokens, size)`` as ``hidden`` is, and the last is ``(size,)``, float32.
    """
    active, grad_hidden = torch.empty_like(hidden), torch.empty_like(hidden)
    n_tokens, size = hidden.shape
    n_programs = min(-(-n_tokens // _TOKENS), _PROGRAMS)
    sums = hidden.new_empty(n_programs, size, dtype=torch.float32)
    kernels.gelu_backward[(n_programs, -(-size // _COLUMNS))](
        hidden, grad_active, active, grad_hidden, sums, n_tokens, size,
        TOKENS=_TOKENS, COLUMNS=_COLUMNS,
    )  # fmt: skip
    return active, grad_hidden, sums.sum(0)


def gated_forward(*, hidden: torch.Tensor) -> torch.Tensor:
    """GELU of the first half of ``(n_tokens, 2 * size)`` times the second half."""
    n_tokens, size = len(hidden), hidden.shape[1] // 2
    active = hidden.new_empty(n_tokens, size)
    kernels.gated_forward[_gated_grid(n_tokens, size)](
        hidden, active, n_tokens, size, TOKENS=_GATED_TOKENS, COLUMNS=_GATED_COLUMNS
    )
    return active


def gated_backward(*, hidden: torch.Tensor, grad_output: torch.Tensor) -> torch.Tensor:
    """The gradient of ``hidden``."""
    grad_hidden = torch.empty_like(hidden)
    n_tokens, size = grad_output.shape
    kernels.gated_backward[_gated_grid(n_tokens, size)](
        hidden, grad_output, grad_hidden, n_tokens, size,
        TOKENS=_GATED_TOKENS, COLUMNS=_GATED_COLUMNS,
    )  # fmt: skip
    return grad_hidden


def _gated_grid(n_tokens: int, size: int) -> tuple[int, int]:
    return -(-n_tokens // _GATED_TOKENS), -(-size // _GATED_COLUMNS)
