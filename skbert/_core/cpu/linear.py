"""The four products of an encoder layer on a CPU, with its weights as the kernels read them.

Query, key and value are one product. For inference weights are converted to the lower precision
and packed as a kernel or oneDNN reads them, once for as long as they stay the same. Depends on
torch, ``relative``, ``bindings``, ``inference``, ``quantized``, ``training_linear``,
``trained_layer``, ``watch`` and the parts of a layer in ``families``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple, TypeVar

import torch
from torch.utils.checkpoint import checkpoint

from skbert._core.attention.relative import has_distances
from skbert._core.cpu.activation import Gate, TensorFunction, is_gelu
from skbert._core.cpu.bindings.encoder import ProductWeights
from skbert._core.cpu.bindings.gemm_int8 import can_multiply_int8
from skbert._core.cpu.inference import InferenceLinear
from skbert._core.cpu.quantized import Int8Linear, Int8MLP
from skbert._core.cpu.trained_layer import TrainedLayer
from skbert._core.cpu.training_linear import Bf16State, TrainingLinear, TrainingMLP
from skbert._core.cpu.watch import Watch
from skbert._core.families.record import LayerParts, PreNormParts

__all__ = ["ComputedLayer", "LayerProducts", "ProductCache", "Result", "has_sizes"]

Result = TypeVar("Result")


class LayerProducts(NamedTuple):
    """The products of one layer.

    Each is from ``(n_tokens, n_in)`` to ``(n_tokens, n_out)`` in the precision of products.
    """

    qkv: TensorFunction  # side by side
    attention_out: TensorFunction
    mlp: TensorFunction  # two products, with the activation between them
    # For so many tokens, packed weights of the four, where kernels compute all of them and GELU.
    packed: Callable[[int], Sequence[ProductWeights] | None] = lambda n_tokens: None
    trained: TrainedLayer | None = None  # where kernels compute all of a layer in training


class _Training(NamedTuple):
    """What is kept of a layer in training."""

    made_for: torch.dtype
    watch: Watch
    made: list[TrainingLinear]
    trained: TrainedLayer | None


class _Inference(NamedTuple):
    """What is kept of a layer in inference."""

    made_for: tuple[torch.dtype, bool]  # the type of products, and whether it is from int8
    watch: Watch
    products: LayerProducts


class ComputedLayer(NamedTuple):
    """A layer that is computed without its module's forward function."""

    module: Any
    parts: Any
    products: LayerProducts

    @property
    def is_recomputed(self) -> bool:
        """Whether the backward pass computes the layer again, as memory is short."""
        return self.module.training and getattr(self.module, "gradient_checkpointing", False)

    def run(self, compute: Callable[..., Result], *arguments: object) -> Result:
        """What a function computes, and in the backward pass again where memory is short."""
        if self.is_recomputed:
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
        self.for_training: _Training | None = None
        self.for_inference: _Inference | None = None

    def __call__(self, dtype: torch.dtype, *, training: bool, int8: bool = False) -> LayerProducts:
        """The products in ``dtype``, for training or for inference, or there from int8."""
        if training:
            return self._training(dtype)
        kept = self.for_inference
        if kept is None or kept.made_for != (dtype, int8) or kept.watch.has_changed():
            products = self._int8() if int8 else self._inference(dtype)
            kept = self.for_inference = _Inference((dtype, int8), self._watch(), products)
        return kept.products

    def _watch(self, *others: torch.nn.Module) -> Watch:
        """A watch over the weights of the linear layers, and over those of other modules."""
        return Watch([*chain(*self.linears), *others])

    @cached_property
    def has_int8_sizes(self) -> bool:
        """Whether the products can be computed in int8."""
        shapes = (
            (sum(len(x.weight) for x in one), one[0].weight.shape[1]) for one in self.linears
        )
        return all(can_multiply_int8(n_in, n_out) for n_out, n_in in shapes)

    def _training(self, dtype: torch.dtype) -> LayerProducts:
        self.for_inference = None  # a step changes the weights, but not their versions
        kept = self.for_training
        if kept is None or kept.made_for != dtype or kept.watch.has_moved():
            kept = self.for_training = self._made_for_training(dtype)
        for product in kept.made:
            product.refresh()
        qkv, attention_out, mlp_in, mlp_out = kept.made
        if isinstance(self.activation, Gate) and self.activation.drops:
            gate = self.activation  # the same numbers could not be dropped twice
            return LayerProducts(qkv, attention_out, lambda x: mlp_out(gate(mlp_in(x))))
        mlp = TrainingMLP(mlp_in, mlp_out, self.activation)
        return LayerProducts(qkv, attention_out, mlp, trained=kept.trained)

    def _made_for_training(self, dtype: torch.dtype) -> _Training:
        made = [TrainingLinear(each, dtype, self.bf16_state) for each in self.linears]
        if not isinstance(self.parts, LayerParts):
            return _Training(dtype, self._watch(), made, None)
        trained = TrainedLayer.made_of(self.parts, made) if is_gelu(self.activation) else None
        return _Training(dtype, self._watch(*self.parts.norms), made, trained)

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
        products = Int8Linear(qkv, outliers=True), Int8Linear(attention_out)
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
