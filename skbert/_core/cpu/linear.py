"""The four products of an encoder layer on a CPU, with its weights as the kernels read them.

Query, key and value are one product. For inference weights are converted to the lower precision
and packed as a kernel or oneDNN reads them, once for as long as they stay the same. In training
they are read where they are by the kernel, and by torch if they have the precision of products
and are not those of query, key and value; others are copied at each step. Depends on torch,
``relative``, ``bindings``, ``fused``, ``inference``, ``quantized``, ``stacked`` and the parts of a
layer in ``families``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from skbert._core.attention.relative import has_distances
from skbert._core.cpu.activation import Gate, TensorFunction, is_gelu
from skbert._core.cpu.bindings.checks import addresses
from skbert._core.cpu.bindings.encoder import ProductWeights
from skbert._core.cpu.bindings.gemm_int8 import can_multiply_int8
from skbert._core.cpu.fused import can_fuse_linear
from skbert._core.cpu.inference import InferenceLinear, biases_of
from skbert._core.cpu.quantized import Int8Linear, Int8MLP
from skbert._core.cpu.stacked import StackedLinear
from skbert._core.families.record import LayerParts, PreNormParts
from skbert._core.gpu import operations
from skbert._core.runtime.autograd import Context, add_gradient

__all__ = [
    "Bf16State", "ComputedLayer", "LayerProducts", "ProductCache", "Result", "has_sizes",
]  # fmt: skip

Result = TypeVar("Result")


class Bf16State(NamedTuple):
    """What training keeps in bfloat16 beside the weights, by weight."""

    grads: dict[torch.Tensor, torch.Tensor]
    # Copies, which an optimizer step writes as well; None: each use reads the weights themselves.
    weights: dict[torch.Tensor, torch.Tensor] | None


# The type of the products, and the identity and address of each weight.
WeightKey = tuple[torch.dtype, list[tuple[int, int]]]


class LayerProducts(NamedTuple):
    """The products of one layer.

    Each is from ``(n_tokens, n_in)`` to ``(n_tokens, n_out)`` in the precision of products.
    """

    qkv: TensorFunction  # side by side
    attention_out: TensorFunction
    mlp: TensorFunction  # two products, with the activation between them
    # For so many tokens, packed weights of the four, where kernels compute all of them and GELU.
    packed: Callable[[int], Sequence[ProductWeights] | None] = lambda n_tokens: None


class ComputedLayer(NamedTuple):
    """A layer that is computed without its module's forward function."""

    module: Any
    parts: Any
    products: LayerProducts

    def run(self, compute: Callable[..., Result], *arguments: object) -> Result:
        """What a function computes, and in the backward pass again where memory is short."""
        if self.module.training and getattr(self.module, "gradient_checkpointing", False):
            result: Result = checkpoint(compute, *arguments, use_reentrant=False)
            return result
        return compute(*arguments)


class ProductCache:
    """Makes the products of a layer, and keeps them until its weights change.

    A change shows by the address of a weight, or by the version that torch counts. Changes by
    ``.data`` and by fused optimizers do not show: whoever hands the model out must not keep this
    object.

    After a backward pass the gradients of the weights are in ``grad`` like any others, but
    ``torch.autograd.grad`` does not see them. Gradients in bfloat16 are put into ``bf16_state``
    if there is one, and so are copies of weights, if it has a place for them, for the optimizer to
    keep up.
    """

    def __init__(
        self,
        parts: LayerParts[Any] | PreNormParts[Any],
        bf16_state: Bf16State | None = None,
    ) -> None:
        self.parts, self.bf16_state = parts, bf16_state
        self.activation: TensorFunction = parts.activation
        if isinstance(parts, PreNormParts):
            self.activation = Gate(parts.activation, parts.gate_dropout)
        # Whether layers like this run one by one, whatever a batch is.
        self.is_alone = not _fits_one_call(parts)
        # The linear layers of each product.
        self.linears: list[Sequence[torch.nn.Linear]] = [
            parts.qkv,
            [parts.attention_out],
            [parts.mlp_in],
            [parts.mlp_out],
        ]
        self.for_training: tuple[object, list[TrainingLinear]] = (None, [])
        self.for_inference: tuple[object, LayerProducts | None] = (None, None)

    def __call__(self, dtype: torch.dtype, *, training: bool, int8: bool = False) -> LayerProducts:
        """The products in ``dtype``, for training or for inference, or there from int8."""
        linears = [linear for each in self.linears for linear in each]
        weights = [linear.weight for linear in linears] + biases_of(linears)
        weight_key = (dtype, [*zip(map(id, weights), addresses(*weights), strict=True)])
        if training:
            return self._training(weight_key)
        state = weight_key, [weight._version for weight in weights], int8
        made_for, made = self.for_inference
        if made is None or made_for != state:
            made = self._int8() if int8 else self._inference(dtype)
            self.for_inference = state, made
        return made

    @cached_property
    def has_int8_sizes(self) -> bool:
        """Whether the products can be computed in int8."""
        shapes = (
            (sum(len(x.weight) for x in one), one[0].weight.shape[1]) for one in self.linears
        )
        return all(can_multiply_int8(n_in, n_out) for n_out, n_in in shapes)

    def _training(self, weight_key: WeightKey) -> LayerProducts:
        made_for, made = self.for_training
        self.for_inference = None, None  # a step changes the weights, but not their versions
        if made_for != weight_key:
            made = [TrainingLinear(each, weight_key[0], self.bf16_state) for each in self.linears]
            self.for_training = (weight_key, made)
        for product in made:
            product.refresh()
        qkv, attention_out, mlp_in, mlp_out = made
        if isinstance(self.activation, Gate) and self.activation.drops:
            gate = self.activation  # the same numbers could not be dropped twice
            return LayerProducts(qkv, attention_out, lambda x: mlp_out(gate(mlp_in(x))))
        return LayerProducts(qkv, attention_out, TrainingMLP(mlp_in, mlp_out, self.activation))

    def _inference(self, dtype: torch.dtype) -> LayerProducts:
        activations = None, None, self.activation, None
        pairs = zip(self.linears, activations, strict=True)
        products = [
            InferenceLinear(each, activation, dtype, is_alone=self.is_alone)
            for each, activation in pairs
        ]
        qkv, attention_out, mlp_in, mlp_out = products

        def packed(n_tokens: int) -> Sequence[ProductWeights] | None:
            if self.is_alone or n_tokens > min(each.max_packed_tokens for each in products):
                return None
            return [product.packed for product in products]

        return LayerProducts(qkv, attention_out, lambda x: mlp_out(mlp_in(x)), packed)

    def _int8(self) -> LayerProducts:
        qkv, attention_out, mlp_in, mlp_out = self.linears
        products = Int8Linear(qkv), Int8Linear(attention_out)
        mlp = Int8MLP(mlp_in, mlp_out, self.activation)
        weights = [each.weights for each in (*products, mlp.mlp_in, mlp.mlp_out)]
        return LayerProducts(*products, mlp, lambda n_tokens: None if self.is_alone else weights)


def _fits_one_call(parts: LayerParts[Any] | PreNormParts[Any]) -> bool:
    """Whether kernels know the steps of such layers."""
    is_known = isinstance(parts, LayerParts) and is_gelu(parts.activation)
    return is_known and not has_distances(parts.attention)


def has_sizes(linears: Sequence[torch.nn.Linear], shapes: Sequence[tuple[int, int]]) -> bool:
    """Whether weights have these shapes, and biases belong to them."""
    return [linear.weight.shape for linear in linears] == [*shapes] and all(
        linear.bias is None or linear.bias.shape == (n_out,)
        for linear, (n_out, _) in zip(linears, shapes, strict=True)
    )


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
        **options: bool,
    ) -> None:
        """Add to the gradients of the weights and biases that are trained.

        The gradient of the biases, side by side, is ``sums`` where it is known.
        """
        if not any(weight.requires_grad for weight in self.weights):
            return
        grad_weight, grad_bias = self._grad_buffers()
        is_known = sums is not None and grad_bias is not None
        self.linear.grad_weight(
            grad_output, x, grad_weight, None if is_known else grad_bias, **options
        )
        wholes = [grad_weight, *(x for x in [sums if is_known else grad_bias] if x is not None)]
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
    which takes less time than to store its result.
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
            self.mlp_out.add_grads(grad_output, hidden, gelu=True)
            fused: StackedLinear = self.mlp_out.linear
            return fused.grad_input(grad_output, pre_activation=hidden), None
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
