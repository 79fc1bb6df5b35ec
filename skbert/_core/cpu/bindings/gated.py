"""The gate of a feed-forward layer in bfloat16, and its gradient. Depends on torch only."""

from __future__ import annotations

import torch

from skbert._core.cpu.bindings import module
from skbert._core.cpu.bindings.checks import address_of, addresses, check_multiple, shape_of
from skbert._core.cpu.bindings.module import PANEL, check_processor

__all__ = ["gated_backward", "gated_forward"]


def gated_forward(*, hidden: torch.Tensor) -> torch.Tensor:
    """GELU of the first half of ``(n_tokens, 2 * size)`` times the second half."""
    check_processor()
    n_tokens, size = _halves(hidden)
    address = address_of("hidden", hidden, hidden.shape, torch.bfloat16)
    output = hidden.new_empty(n_tokens, size)
    module.kernels.gated_forward(
        address, *addresses(output), n_tokens, size, torch.get_num_threads()
    )
    return output


def gated_backward(*, hidden: torch.Tensor, grad_output: torch.Tensor) -> torch.Tensor:
    """The gradient of ``hidden``."""
    check_processor()
    n_tokens, size = _halves(hidden)
    inputs = (
        address_of("hidden", hidden, hidden.shape, torch.bfloat16),
        address_of("grad_output", grad_output, (n_tokens, size), torch.bfloat16),
    )
    grad_hidden = torch.empty_like(hidden)
    module.kernels.gated_backward(
        *inputs, *addresses(grad_hidden), n_tokens, size, torch.get_num_threads()
    )
    return grad_hidden


def _halves(hidden: torch.Tensor) -> tuple[int, int]:
    n_tokens, width = shape_of("hidden", hidden, 2)
    check_multiple("half of the hidden states", width // 2, PANEL)
    check_multiple("a number of hidden states", width, 2)
    return n_tokens, width // 2
