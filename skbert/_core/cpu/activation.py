"""What lies between the two products of a feed-forward layer. Depends on torch and ``fused``."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional as F

from skbert._core.cpu.fused import can_fuse_gate, fused_gate

__all__ = ["Gate", "TensorFunction", "is_gelu"]

TensorFunction = Callable[[torch.Tensor], torch.Tensor]


def is_gelu(activation: TensorFunction | None) -> bool:
    """Whether an activation is exact GELU, and none of its approximations."""
    return getattr(activation, "act", None) is F.gelu


class Gate:
    """The activation of the first half of hidden states times the second half, after dropout."""

    def __init__(self, activation: TensorFunction, gate_dropout: torch.nn.Dropout) -> None:
        self.activation, self.gate_dropout = activation, gate_dropout
        self.is_gelu = is_gelu(activation)

    @property
    def drops(self) -> bool:
        """Whether some of the result is dropped."""
        return self.gate_dropout.training and self.gate_dropout.p > 0

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        if self.is_gelu and can_fuse_gate(hidden):
            active = fused_gate(hidden)
        else:
            x, gate = hidden.chunk(2, dim=-1)
            active = self.activation(x) * gate
        return F.dropout(active, self.gate_dropout.p) if self.drops else active
