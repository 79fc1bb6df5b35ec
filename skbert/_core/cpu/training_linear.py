"""Products of a layer in training, which add to the gradients of their weights themselves.

Weights are read where they are by the kernel, and by torch if they have the precision of products
and are not those of query, key and value; others are copied at each step. Depends on torch,
``activation``, ``fused``, ``inference``, ``stacked`` and a GPU's operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch.nn import functional as F

from skbert._core.cpu.activation import TensorFunction, is_gelu
from skbert._core.cpu.fused import can_fuse_linear
from skbert._core.cpu.inference import biases_of
from skbert._core.cpu.stacked import StackedLinear
from skbert._core.gpu import operations
from skbert._core.runtime.autograd import Context, add_gradient

__all__ = ["Bf16State", "TrainingLinear", "TrainingMLP"]


class Bf16State(NamedTuple):
    """What training keeps in bfloat16 beside the weights, by weight."""

    grads: dict[torch.Tensor, torch.Tensor]
    # Copies, which an optimizer step writes as well; None: each use reads the weights themselves.
    weights: dict[torch.Tensor, torch.Tensor] | None


class _ReadLinear:
    """A linear layer in the precision of products, whose weights are read where they are."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.weight, self.bias = weight.detach(), None if bias is None else bias.detach()

    def refresh(self) -> None:
        """Read the weights as they are now: that they always are."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``(n_tokens, n_out)`` from ``(n_tokens, n_in)``."""
        return F.linear(x, self.weight, self.bias)

    def grad_input(self, grad_output: torch.Tensor) -> torch.Tensor:
        """The gradient of the input."""
        return grad_output @ self.weight

    @staticmethod
    def grad_weight(
        grad_output: torch.Tensor,
        x: torch.Tensor,
        grad_weight: torch.Tensor,
        grad_bias: torch.Tensor | None,
    ) -> None:
        """Write the gradients of weights and biases."""
        torch.mm(grad_output.t(), x, out=grad_weight)
        if grad_bias is not None:
            torch.sum(grad_output, 0, out=grad_bias)


class _CastLinear(_ReadLinear):
    """Linear layers side by side, with copies of their weights, perhaps in another precision.

    Where no other layer has the same weights, the copies are put into ``shared``, if there is one,
    and its owner keeps them up when it changes weights without torch's knowledge.
    """

    def __init__(
        self,
        linears: Sequence[torch.nn.Linear],
        dtype: torch.dtype,
        shared: dict[torch.Tensor, torch.Tensor] | None,
    ) -> None:
        sizes, biases = [len(linear.weight) for linear in linears], biases_of(linears)
        first = linears[0].weight
        weight = first.new_empty(sum(sizes), first.shape[1], dtype=dtype)
        super().__init__(weight, weight.new_empty(sum(sizes)) if biases else None)
        wholes = [weight] if self.bias is None else [weight, self.bias]
        self.copies = [part for whole in wholes for part in torch.split(whole, sizes)]
        self.originals = [each.weight for each in linears] + biases
        self.versions: list[int] = []  # of the weights that were copied
        self.is_shared = shared is not None and not any(x in shared for x in self.originals)
        if shared is not None and self.is_shared:
            shared.update(zip(self.originals, self.copies, strict=True))

    def refresh(self) -> None:
        """Copy the weights as they are now."""
        versions = [weight._version for weight in self.originals]
        if self.is_shared and versions == self.versions:
            return
        self.versions = versions
        with torch.no_grad():
            torch._foreach_copy_(self.copies, self.originals)


class TrainingLinear:
    """A product for training, whose backward pass adds to the gradients of its weights itself."""

    def __init__(
        self,
        linears: Sequence[torch.nn.Linear],
        dtype: torch.dtype,
        bf16_state: Bf16State | None,
    ) -> None:
        self.dtype = dtype
        state = bf16_state if dtype == torch.bfloat16 else None
        self.bf16_grads = None if state is None else state.grads
        biases = biases_of(linears)
        self.weights, self.has_bias = [each.weight for each in linears] + biases, bool(biases)
        self.fused = can_fuse_linear(self.weights, dtype)
        copies = None if state is None else state.weights
        self.linear: Any
        if self.fused:
            self.linear = StackedLinear(linears)
        elif len(linears) == 1 and all(each.dtype == dtype for each in self.weights):
            self.linear = _ReadLinear(linears[0].weight, linears[0].bias)
        else:
            self.linear = _CastLinear(linears, dtype, copies)
        self.refresh = self.linear.refresh
        self.sizes = [len(linear.weight) for linear in linears]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return _run_training(self, x)

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        """The product."""
        return [self.linear.forward(x)]

    def backward(
        self,
        grad_output: torch.Tensor,
        x: torch.Tensor,
        *,
        needs_grad: bool,
        sums: torch.Tensor | None = None,
    ) -> torch.Tensor | None:
        """Add to the gradients of the weights; the gradient of ``x``, if it needs one."""
        self.add_grads(grad_output, x, sums)
        return self.linear.grad_input(grad_output) if needs_grad else None

    def add_grads(
        self,
        grad_output: torch.Tensor,
        x: torch.Tensor,
        sums: torch.Tensor | None = None,
    ) -> None:
        """Add to the gradients of the weights and biases that are trained.

        The gradient of the biases, side by side, is ``sums`` where it is known.
        """
        if not any(weight.requires_grad for weight in self.weights):
            return
        grad_weight, grad_bias = self._grad_buffers()
        if sums is None and self.has_bias and operations.can_sum_tokens(grad_output):
            sums = operations.sum_tokens(grad_output)
        is_known = sums is not None and grad_bias is not None
        self.linear.grad_weight(grad_output, x, grad_weight, None if is_known else grad_bias)
        self._note_grads(grad_weight, sums if is_known else grad_bias)

    def _note_grads(self, grad_weight: torch.Tensor, grad_bias: torch.Tensor | None) -> None:
        """Add to the gradients of weights and biases, side by side, that are trained."""
        wholes = [grad_weight] if grad_bias is None else [grad_weight, grad_bias]
        gradients = [part for whole in wholes for part in torch.split(whole, self.sizes)]
        for weight, gradient in zip(self.weights, gradients, strict=True):
            if weight.requires_grad:
                add_gradient(weight, gradient, self.bf16_grads)

    def _grad_buffers(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Memory for gradients: the same at each step, as allocating large buffers costs time.

        On a CPU those that stay in lower precision are small enough to get new memory each time.
        """
        rounded = self.bf16_grads or ()
        if any(weight.grad is not None or weight in rounded for weight in self.weights):
            return self._new_buffers()
        is_kept = self.bf16_grads is None or operations.is_on_gpu(self.weights[0])
        return self._reused_buffers if is_kept else self._new_buffers()

    def _new_buffers(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        shape = sum(self.sizes), self.weights[0].shape[1]
        grad_weight = self.weights[0].new_empty(shape, dtype=self.dtype)
        return grad_weight, grad_weight.new_empty(shape[0]) if self.has_bias else None

    @cached_property
    def _reused_buffers(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        return self._new_buffers()


class TrainingMLP:
    """Two products for training, with the activation between them.

    Only the input of the activation is saved. The backward pass computes the activation again,
    which takes less memory than to keep its result.
    """

    def __init__(
        self, mlp_in: TrainingLinear, mlp_out: TrainingLinear, activation: TensorFunction
    ) -> None:
        self.mlp_in, self.mlp_out, self.activation = mlp_in, mlp_out, activation
        self.dtype, self.weights = mlp_in.dtype, mlp_in.weights + mlp_out.weights
        self.fused = is_gelu(activation) and mlp_in.fused and mlp_out.fused

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return _run_training(self, x)

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        """The result, and the input of the activation."""
        if self.fused:
            active = x.new_empty(len(x), sum(self.mlp_in.sizes))
            hidden = self.mlp_in.linear.forward(x, gelu_output=active)
        else:
            hidden = self.mlp_in.linear.forward(x)
            active = self.activation(hidden)
        return [self.mlp_out.linear.forward(active), hidden]

    def backward(
        self, grad_output: torch.Tensor, x: torch.Tensor, hidden: torch.Tensor, *, needs_grad: bool
    ) -> torch.Tensor | None:
        """Add to the gradients of both weights; the gradient of ``x``, if it needs one."""
        grad_hidden, sums = self._grad_hidden(grad_output, hidden)
        return self.mlp_in.backward(grad_hidden, x, needs_grad=needs_grad, sums=sums)

    def _grad_hidden(
        self, grad_output: torch.Tensor, hidden: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The gradient of what the activation reads, and its sum over tokens where it is known.

        Adds to the gradients of the second product.
        """
        if self.fused:
            active, fused = torch.empty_like(hidden), self.mlp_out.linear
            grad_hidden = fused.grad_input(grad_output, pre_activation=hidden, gelu_output=active)
            self.mlp_out.add_grads(grad_output, active)
            return grad_hidden, None
        if self._has_gelu_on_gpu(hidden):
            grad_active = self.mlp_out.linear.grad_input(grad_output)
            active, grad_hidden, sums = operations.gelu_backward(hidden, grad_active)
            self.mlp_out.add_grads(grad_output, active)
            return grad_hidden, sums
        with torch.enable_grad():
            hidden = hidden.detach().requires_grad_()
            active = self.activation(hidden)
        grad_active = self.mlp_out.backward(grad_output, active.detach(), needs_grad=True)
        return torch.autograd.grad(active, hidden, grad_active)[0], None

    def _has_gelu_on_gpu(self, hidden: torch.Tensor) -> bool:
        is_here = is_gelu(self.activation) and operations.is_on_gpu(hidden)
        return is_here and operations.can_fuse_gelu(hidden)


def _run_training(product: TrainingLinear | TrainingMLP, x: torch.Tensor) -> torch.Tensor:
    arguments = x.to(product.dtype), product, *product.weights
    output: torch.Tensor = _Training.apply(*arguments)  # type: ignore[no-untyped-call]
    return output


class _Training(torch.autograd.Function):
    """Products whose backward pass adds to the gradients of their weights itself."""

    @staticmethod
    def forward(
        ctx: Context,
        x: torch.Tensor,
        product: TrainingLinear | TrainingMLP,
        *weights: torch.Tensor,
    ) -> torch.Tensor:
        output, *saved = product.forward(x)
        ctx.settings = product, len(weights)
        ctx.save_for_backward(x, *saved)
        return output

    @staticmethod
    def backward(ctx: Context, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        needs_grad = ctx.needs_input_grad[0]
        product, n_weights = ctx.settings
        grad_x = product.backward(*gradients, *ctx.saved_tensors, needs_grad=needs_grad)
        return grad_x, None, *[None] * n_weights
