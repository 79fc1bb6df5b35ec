"""The products of an encoder layer in int8, for inference on a CPU that multiplies int8.

Weights are rounded by output and inputs by token, each between its least and its largest number,
so that no calibration is needed. Only outliers, which norms give, get more than 8 bits. Depends on
torch, ``activation`` and ``bindings``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from skbert._core.cpu.activation import TensorFunction, is_gelu
from skbert._core.cpu.bindings.gemm_int8 import Int8Weights, int8_linears

__all__ = ["Int8Linear", "Int8MLP"]


class Int8Linear:
    """Linear layers side by side, as one product in int8."""

    def __init__(
        self, linears: Sequence[torch.nn.Linear], *, gelu: bool = False, outliers: bool = False
    ) -> None:
        weights = [linear.weight.detach().float() for linear in linears]
        biases = [linear.bias.detach().float() for linear in linears if linear.bias is not None]
        self.weights = Int8Weights(
            weight=torch.cat(weights),
            bias=torch.cat(biases) if biases else None,
            gelu=gelu,
            outliers=outliers,
        )

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return int8_linears(x=x.contiguous(), layers=[self.weights])


class Int8MLP:
    """Two products in int8 with an activation between them; a GELU is computed in passing."""

    def __init__(
        self,
        mlp_in: Sequence[torch.nn.Linear],
        mlp_out: Sequence[torch.nn.Linear],
        activation: TensorFunction,
    ) -> None:
        self.activation, self.gelu = activation, is_gelu(activation)
        self.mlp_in = Int8Linear(mlp_in, gelu=self.gelu, outliers=True)
        self.mlp_out = Int8Linear(mlp_out)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self.gelu:
            layers = [self.mlp_in.weights, self.mlp_out.weights]
            return int8_linears(x=x.contiguous(), layers=layers)
        return self.mlp_out(self.activation(self.mlp_in(x)))
