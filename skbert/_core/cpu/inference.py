"""A product for inference, with its weights as the kernel, oneDNN or torch reads them.

Depends on torch, ``activation``, ``fused`` and ``bindings``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch.nn import functional as F

from skbert._core.cpu.activation import TensorFunction, is_gelu
from skbert._core.cpu.bindings.gemm_bf16 import PackedWeights, packed_linear
from skbert._core.cpu.bindings.gemm_float32 import Float32Weights, linear_float32
from skbert._core.cpu.fused import max_packed_tokens
from skbert._core.runtime.device import has_wide_vectors

__all__ = ["InferenceLinear", "biases_of"]


class InferenceLinear:
    """A product for inference, with weights as the kernel or oneDNN reads them, and fused GELU."""

    def __init__(
        self,
        linears: Sequence[torch.nn.Linear],
        activation: TensorFunction | None,
        dtype: torch.dtype,
        *,
        is_alone: bool = False,
    ) -> None:
        self.linears, self.activation, self.dtype = linears, activation, dtype
        weight = linears[0].weight
        self.uses_onednn = weight.is_cpu and _can_use_onednn(dtype)
        self.gelu = is_gelu(activation)
        # With narrower vectors oneDNN's is slower than torch's.
        self.onednn_gelu = self.gelu and self.uses_onednn and has_wide_vectors()
        biases = [bias.detach() for bias in biases_of(linears)]
        self.bias = torch.cat(biases) if biases else None
        n_in, n_out = weight.shape[1], sum(len(linear.weight) for linear in linears)
        most = max_packed_tokens(n_in, n_out, dtype, is_alone=is_alone)
        self.max_packed_tokens = most if weight.is_cpu else 0

    def _weight(self) -> torch.Tensor:
        return torch.cat([linear.weight.detach().to(self.dtype) for linear in self.linears])

    @cached_property
    def packed(self) -> PackedWeights | Float32Weights:
        """Weights and biases as the kernel reads them."""
        bias = None if self.bias is None else self.bias.float()
        kind = Float32Weights if self.dtype == torch.float32 else PackedWeights
        return kind(weight=self._weight(), bias=bias)

    @cached_property
    def _unpacked(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Weights and biases as oneDNN, or torch, reads them."""
        weight = self._weight()
        if self.uses_onednn:
            weight = torch.ops.mkldnn._reorder_linear_weight(weight, None)
        return weight, None if self.bias is None else self.bias.to(self.dtype)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        x = x.to(self.dtype)
        if x.shape[0] <= self.max_packed_tokens:
            output, has_gelu = self._by_kernel(x.contiguous()), self.gelu
        elif self.uses_onednn:
            product, has_gelu = torch.ops.mkldnn._linear_pointwise, self.onednn_gelu
            epilogue = "gelu" if has_gelu else "none"
            output = torch.as_tensor(product(x, *self._unpacked, epilogue, [], "none"))
        else:
            output, has_gelu = F.linear(x, *self._unpacked), False
        if has_gelu or self.activation is None:
            return output
        if self.gelu:
            torch.ops.aten.gelu_.default(output)  # in place: fresh memory is slow
            return output
        return self.activation(output)

    def _by_kernel(self, x: torch.Tensor) -> torch.Tensor:
        weights = self.packed
        if isinstance(weights, Float32Weights):
            return linear_float32(x=x, weights=weights, gelu=self.gelu)
        return packed_linear(x=x, weights=weights, gelu=self.gelu)


def biases_of(linears: Sequence[torch.nn.Linear]) -> list[torch.Tensor]:
    """The biases of linear layers, some of which may have none."""
    return [linear.bias for linear in linears if linear.bias is not None]


def _can_use_onednn(dtype: torch.dtype) -> bool:
    onednn: Any = torch.ops.mkldnn
    if not (torch.backends.mkldnn.enabled and hasattr(onednn, "_linear_pointwise")):
        return False
    bf16 = dtype == torch.bfloat16 and onednn._is_mkldnn_bf16_supported()
    return bool(bf16) or dtype == torch.float32
