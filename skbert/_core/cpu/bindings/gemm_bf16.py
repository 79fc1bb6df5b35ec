"""Linear layers in bfloat16, and the gradients of their inputs. Depends on torch only."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from skbert._core.cpu.bindings import module
from skbert._core.cpu.bindings.checks import (
    address_of,
    addresses,
    check_multiple,
    check_no_overlap,
    check_type,
    optional_address,
    shape_of,
)
from skbert._core.cpu.bindings.module import PANEL, check_processor, has_amx

__all__ = [
    "PackedWeights",
    "Panels",
    "StackedWeights",
    "linear_grad_input",
    "linear_stacked",
    "packed_linear",
]

_NO_EPILOGUE, _GELU, _GELU_COPY, _GELU_BACKWARD = range(4)  # what follows a product


class Panels:
    """A copy of a linear layer's weight and bias, in panels of columns.

    Parameters
    ----------
    weight : Tensor of shape (n_out, n_in)
        In ``dtype``.
    bias : Tensor of shape (n_out,) or None
        In float32.
    """

    dtype: torch.dtype
    together: int  # numbers of a row that lie side by side

    def __init__(self, *, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.n_out, self.n_in = shape = shape_of("weight", weight, 2)
        check_multiple("a number of outputs", self.n_out, PANEL)
        check_multiple("a number of inputs", self.n_in, self.together)
        address_of("weight", weight, shape, self.dtype)
        optional_address("bias", bias, (self.n_out,), torch.float32)
        panels = weight.detach().view(self.n_out // PANEL, PANEL, -1, self.together)
        self.panels = panels.transpose(1, 2).clone(memory_format=torch.contiguous_format)
        self.bias = None if bias is None else bias.detach().clone()


class PackedWeights(Panels):
    """A copy of a linear layer in bfloat16, as `packed_linear` reads it."""

    dtype, together = torch.bfloat16, 2


class StackedWeights:
    """Weights in float32 of one shape, which a product reads as if one lay below the other.

    They are read where they are in each product: whoever holds this sees what they have become.
    """

    def __init__(self, weights: Sequence[torch.Tensor]) -> None:
        if not weights:
            raise ValueError("a kernel takes one weight or several, not none")
        self.n_rows, self.n_in = shape_of("weights", weights[0], 2)
        check_multiple("a number of outputs", self.n_rows, PANEL)
        check_multiple("a number of inputs", self.n_in, PANEL)
        self.n_out = len(weights) * self.n_rows
        self.weights = tuple(weights)
        self.table()

    def table(self) -> torch.Tensor:
        """Where the weights are now; an error unless a kernel can read them there."""
        shape = self.n_rows, self.n_in
        begins = [address_of("weights", each, shape, torch.float32) for each in self.weights]
        return torch.tensor(begins, dtype=torch.int64, device="cpu")


def packed_linear(*, x: torch.Tensor, weights: PackedWeights, gelu: bool) -> torch.Tensor:
    """A linear layer of ``(n_tokens, n_in)`` in bfloat16, followed by GELU if asked for."""
    check_processor()
    check_type("weights", weights, PackedWeights)
    n_tokens, n_in, n_out = shape_of("x", x, 2)[0], weights.n_in, weights.n_out
    address = address_of("x", x, (n_tokens, n_in), torch.bfloat16)
    output = x.new_empty(n_tokens, n_out)
    panels, bias, to = addresses(weights.panels, weights.bias, output)
    module.kernels.linear_forward(
        address, panels, 0, bias, to, 0, 0, n_tokens, n_in, n_out, 0, False,
        _GELU if gelu else _NO_EPILOGUE, has_amx(), torch.get_num_threads(),
    )  # fmt: skip
    return output


def linear_stacked(
    *,
    x: torch.Tensor,
    weights: StackedWeights,
    bias: torch.Tensor | None,
    gelu_output: torch.Tensor | None = None,
) -> torch.Tensor:
    """A linear layer of ``(n_tokens, n_in)`` in bfloat16; its GELU goes to ``gelu_output``."""
    check_processor()
    check_type("weights", weights, StackedWeights)
    n_tokens, table = shape_of("x", x, 2)[0], weights.table()
    shape = n_tokens, weights.n_out
    inputs = (
        address_of("x", x, (n_tokens, weights.n_in), torch.bfloat16), 0, *addresses(table),
        optional_address("bias", bias, (weights.n_out,), torch.float32),
    )  # fmt: skip
    gelu_address = optional_address("gelu_output", gelu_output, shape, torch.bfloat16)
    if gelu_output is not None:
        biases = [] if bias is None else [bias]
        check_no_overlap([gelu_output], [x, *biases, *weights.weights])
    output = x.new_empty(shape)
    module.kernels.linear_forward(
        *inputs, *addresses(output), 0, gelu_address,
        n_tokens, weights.n_in, weights.n_out, weights.n_rows, False,
        _NO_EPILOGUE if gelu_output is None else _GELU_COPY, has_amx(),
        torch.get_num_threads(),
    )  # fmt: skip
    return output


def linear_grad_input(
    *,
    grad_output: torch.Tensor,
    weights: StackedWeights,
    pre_activation: torch.Tensor | None = None,
    gelu_output: torch.Tensor | None = None,
) -> torch.Tensor:
    """The gradient of a linear layer's input, ``(n_tokens, n_in)`` in bfloat16.

    Or of what was before the GELU that was its input, ``pre_activation``. That GELU goes to
    ``gelu_output`` then.
    """
    check_processor()
    check_type("weights", weights, StackedWeights)
    n_tokens, table = shape_of("grad_output", grad_output, 2)[0], weights.table()
    shape = n_tokens, weights.n_in
    inputs = (
        address_of("grad_output", grad_output, (n_tokens, weights.n_out), torch.bfloat16),
        0, *addresses(table), 0,
    )  # fmt: skip
    if (pre_activation is None) != (gelu_output is None):
        raise ValueError("a kernel takes both pre_activation and gelu_output, or neither")
    before = optional_address("pre_activation", pre_activation, shape, torch.bfloat16)
    gelu_address = optional_address("gelu_output", gelu_output, shape, torch.bfloat16)
    if gelu_output is not None and pre_activation is not None:
        check_no_overlap([gelu_output], [grad_output, pre_activation, *weights.weights])
    grad_input = grad_output.new_empty(shape)
    module.kernels.linear_forward(
        *inputs, *addresses(grad_input), before, gelu_address,
        n_tokens, weights.n_out, weights.n_in, weights.n_rows, True,
        _NO_EPILOGUE if pre_activation is None else _GELU_BACKWARD, has_amx(),
        torch.get_num_threads(),
    )  # fmt: skip
    return grad_input
