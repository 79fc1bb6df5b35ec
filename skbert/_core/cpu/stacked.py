"""Linear layers in bfloat16 for training, whose weights stay in float32.

Where it can be used, `fused.can_fuse_linear` says. Depends on torch and ``bindings``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from skbert._core.cpu.bindings.gemm_bf16 import (
    StackedWeights,
    linear_grad_input,
    linear_stacked,
)
from skbert._core.cpu.bindings.gemm_grad import linear_grad_weight

__all__ = ["StackedLinear"]


class StackedLinear:
    """Linear layers side by side, whose weights are rounded to bfloat16 as they are multiplied.

    Each product reads the weights anew, without copies: a backward pass sees weights that were
    changed since the forward pass as they are then.
    """

    def __init__(self, linears: Sequence[torch.nn.Linear]) -> None:
        self.linears = linears
        self.weights = StackedWeights([linear.weight for linear in linears])

    def refresh(self) -> None:
        """Read the weights as they are now: that they always are."""

    def forward(self, x: torch.Tensor, *, gelu_output: torch.Tensor | None = None) -> torch.Tensor:
        """``(n_tokens, n_out)`` from ``(n_tokens, n_in)``; its GELU goes to ``gelu_output``."""
        biases = [each.bias.detach() for each in self.linears if each.bias is not None]
        bias = torch.cat(biases) if len(biases) > 1 else next(iter(biases), None)
        return linear_stacked(
            x=x.contiguous(), weights=self.weights, bias=bias, gelu_output=gelu_output
        )

    def grad_input(
        self,
        grad_output: torch.Tensor,
        *,
        pre_activation: torch.Tensor | None = None,
        gelu_output: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The gradient of the input, or of what was before the GELU that was the input.

        That GELU goes to ``gelu_output`` then.
        """
        return linear_grad_input(
            grad_output=grad_output.contiguous(),
            weights=self.weights,
            pre_activation=pre_activation,
            gelu_output=gelu_output,
        )

    @staticmethod
    def grad_weight(
        grad_output: torch.Tensor,
        x: torch.Tensor,
        grad_weight: torch.Tensor,
        grad_bias: torch.Tensor | None,
    ) -> None:
        """Write the gradients of weights and biases."""
        linear_grad_weight(
            grad_output=grad_output.contiguous(), x=x.contiguous(),
            grad_weight=grad_weight, grad_bias=grad_bias,
        )  # fmt: skip
