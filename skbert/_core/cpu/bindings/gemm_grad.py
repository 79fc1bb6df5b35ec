"""Gradients of the weights of linear layers in bfloat16. Depends on torch only."""

from __future__ import annotations

import torch

from skbert._core.cpu.bindings import module
from skbert._core.cpu.bindings.checks import (
    address_of,
    check_multiple,
    check_no_overlap,
    optional_address,
    shape_of,
)
from skbert._core.cpu.bindings.module import PANEL, check_processor, has_amx

__all__ = ["linear_grad_weight"]


def linear_grad_weight(
    *,
    grad_output: torch.Tensor,
    x: torch.Tensor,
    grad_weight: torch.Tensor,
    grad_bias: torch.Tensor | None,
) -> None:
    """Write the gradients of a linear layer's weight and bias, if it has one, in bfloat16."""
    check_processor()
    (n_tokens, n_in), n_out = shape_of("x", x, 2), shape_of("grad_output", grad_output, 2)[1]
    check_multiple("a number of inputs", n_in, PANEL)
    check_multiple("a number of outputs", n_out, PANEL)
    begins = (
        address_of("grad_output", grad_output, (n_tokens, n_out), torch.bfloat16),
        address_of("x", x, (n_tokens, n_in), torch.bfloat16),
        address_of("grad_weight", grad_weight, (n_out, n_in), torch.bfloat16),
        optional_address("grad_bias", grad_bias, (n_out,), torch.bfloat16),
    )
    written = [grad_weight] if grad_bias is None else [grad_weight, grad_bias]
    check_no_overlap(written, [grad_output, x])
    module.kernels.linear_grad_weight(
        *begins, n_tokens, n_in, n_out, has_amx(), torch.get_num_threads()
    )
