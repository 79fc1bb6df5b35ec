"""Linear layers of few tokens in float32, for inference. Depends on torch only."""

from __future__ import annotations

import torch

from skbert._core.cpu.bindings import module
from skbert._core.cpu.bindings.checks import (
    address_of,
    addresses,
    check_multiple,
    check_type,
    optional_address,
    shape_of,
)
from skbert._core.cpu.bindings.module import PANEL

__all__ = ["Float32Weights", "linear_float32"]


class Float32Weights:
    """A copy of a linear layer's weight and bias, as `linear_float32` reads them.

    Parameters
    ----------
    weight : Tensor of shape (n_out, n_in)
        In float32.
    bias : Tensor of shape (n_out,) or None
        In float32.
    """

    def __init__(self, *, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.n_out, self.n_in = shape = shape_of("weight", weight, 2)
        check_multiple("a number of outputs", self.n_out, PANEL)
        check_multiple("a number of inputs", self.n_in, 1)
        address_of("weight", weight, shape, torch.float32)
        optional_address("bias", bias, (self.n_out,), torch.float32)
        panels = weight.detach().view(self.n_out // PANEL, PANEL, self.n_in)
        self.panels = panels.transpose(1, 2).clone(memory_format=torch.contiguous_format)
        self.bias = None if bias is None else bias.detach().clone()


def linear_float32(*, x: torch.Tensor, weights: Float32Weights, gelu: bool) -> torch.Tensor:
    """A linear layer of ``(n_tokens, n_in)`` in float32, followed by GELU if asked for."""
    check_type("weights", weights, Float32Weights)
    n_tokens, n_in, n_out = shape_of("x", x, 2)[0], weights.n_in, weights.n_out
    address = address_of("x", x, (n_tokens, n_in), torch.float32)
    output = x.new_empty(n_tokens, n_out)
    panels, bias, to = addresses(weights.panels, weights.bias, output)
    module.kernels.linear_float32(
        address, panels, bias, to, n_tokens, n_in, n_out, bool(gelu), torch.get_num_threads()
    )
    return output
