"""Linear layers in float32, for inference. Depends on torch only."""

from __future__ import annotations

import torch

from skbert._core.cpu.bindings import module
from skbert._core.cpu.bindings.checks import address_of, addresses, check_type, shape_of
from skbert._core.cpu.bindings.gemm_bf16 import Panels

__all__ = ["Float32Weights", "linear_float32"]


class Float32Weights(Panels):
    """A copy of a linear layer in float32, as `linear_float32` reads it."""

    dtype, together = torch.float32, 1


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
