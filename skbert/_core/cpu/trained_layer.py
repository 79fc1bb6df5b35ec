"""A layer as BERT's in a training step, in one call forward and one backward.

Where kernels compute all of its steps in bfloat16, of a few texts these take less time than torch
takes to call them one by one. What results is the same to the last bit. Depends on torch,
``attention``, ``fused``, ``training_linear``, ``bindings`` and the parts of a layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from torch._utils import _unflatten_dense_tensors

from skbert._core.attention.relative import has_distances
from skbert._core.attention.settings import AttentionSettings
from skbert._core.cpu.attention import Rows, dropout_rate
from skbert._core.cpu.bindings.trained_layer import (
    LayerPass,
    SavedLayer,
    TrainedNorm,
    TrainedProduct,
    TrainedWeights,
    trained_layer_backward,
    trained_layer_forward,
)
from skbert._core.cpu.fused import can_attend_in_tiles, can_fuse_attention, can_fuse_layernorm
from skbert._core.cpu.training_linear import TrainingLinear
from skbert._core.families.record import LayerParts
from skbert._core.runtime.autograd import Context, add_gradient, draw_seeds
from skbert._core.runtime.distributed import process_group

__all__ = ["TrainedLayer"]


class TrainedLayer:
    """Computes a layer of a training step, and adds to the gradients of its linear layers.

    `made_of` says whether there is one.
    """

    def __init__(self, parts: LayerParts[Any], products: Sequence[TrainingLinear]) -> None:
        self.parts, self.bf16_grads = parts, products[0].bf16_grads
        self.weights = TrainedWeights(
            [_product_of(each) for each in products],
            [TrainedNorm(norm.weight, norm.bias) for norm in parts.norms],
        )
        self.trained = [weight for product in products for weight in product.weights]
        # In torch's graph: one says that there is something to train. Several processes send each
        # other a gradient as soon as the graph has passed its weight.
        self.shown = self.trained if process_group().size > 1 else self.trained[:1]
        # What autograd adds to itself.
        self.of_norms = [x for norm in self.weights.norms for x in norm if x is not None]

    @classmethod
    def made_of(
        cls, parts: LayerParts[Any], products: Sequence[TrainingLinear]
    ) -> TrainedLayer | None:
        """A layer with GELU; None where kernels do not compute all of its other steps."""
        chunked = parts.attention.config.chunk_size_feed_forward
        fused = all(product.fused for product in products)
        if chunked or not fused or has_distances(parts.attention):
            return None
        like_states = products[0].weights[0].detach()
        for norm in parts.norms:
            if not can_fuse_layernorm(like_states, like_states, norm.weight, norm.bias):
                return None
        return cls(parts, products)

    def can_train(self, x: torch.Tensor, rows: Rows, settings: AttentionSettings) -> bool:
        """Whether kernels compute attention in such rows, and all linear layers are trained."""
        return (
            x.dtype == torch.bfloat16
            and len(x) == rows.packed.n_tokens > 0
            and can_fuse_attention(x, rows.layout, settings)
            and all(weight.requires_grad for weight in self.trained)
        )

    def __call__(
        self, states: torch.Tensor, x: torch.Tensor, rows: Rows, settings: AttentionSettings
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Hidden states after the layer, and the same rounded, from such before it."""
        parts = self.parts
        rates = dropout_rate(parts.attention_dropout), dropout_rate(parts.mlp_dropout)
        seed, *seeds = draw_seeds(settings.dropout, *rates)
        epsilons = (norm.eps for norm in parts.norms)
        norms = [*zip(epsilons, rates, seeds, strict=True)]
        in_tiles = can_attend_in_tiles(x, rows.layout.max_seqlen, settings)
        how = LayerPass(self.weights, rows.packed, settings, norms, seed=seed, in_tiles=in_tiles)
        arguments = states, x, self, how, *self.of_norms, *self.shown
        output: tuple[torch.Tensor, torch.Tensor] = _Layer.apply(*arguments)  # type: ignore[no-untyped-call]
        return output

    def backward(
        self, saved: SavedLayer, how: LayerPass, *gradients: torch.Tensor | None, needs_grad: bool
    ) -> list[torch.Tensor | None]:
        """The gradients of states, of these rounded, and of the weights and biases of norms."""
        grad_output, grad_rounded = (None if g is None else g.contiguous() for g in gradients)
        grads = trained_layer_backward(
            how=how, saved=saved, grad_output=grad_output, grad_rounded=grad_rounded,
            needs_grad=needs_grad,
        )  # fmt: skip
        parts: Sequence[torch.Tensor] = _unflatten_dense_tensors(grads.products, self.trained)  # type: ignore[no-untyped-call]
        for weight, gradient in zip(self.trained, parts, strict=True):
            if weight.requires_grad:
                add_gradient(weight, gradient, self.bf16_grads)
        every = zip(grads.norms.unbind(), chain(*self.weights.norms), strict=True)
        return [grads.states, grads.x, *(grad for grad, x in every if x is not None)]


class _Layer(torch.autograd.Function):
    """A layer, as `TrainedLayer` computes it."""

    @staticmethod
    def forward(
        ctx: Context,
        states: torch.Tensor,
        x: torch.Tensor,
        layer: TrainedLayer,
        how: LayerPass,
        *_weights: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        output, rounded, saved = trained_layer_forward(
            how=how, states=states.contiguous(), x=x.contiguous()
        )
        ctx.save_for_backward(*saved)
        ctx.settings = layer, how
        ctx.set_materialize_grads(False)
        return output, rounded

    @staticmethod
    def backward(ctx: Context, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        layer, how = ctx.settings
        needs_grad = ctx.needs_input_grad[1]
        saved = SavedLayer(*ctx.saved_tensors)
        grad_states, grad_x, *of_norms = layer.backward(
            saved, how, *gradients, needs_grad=needs_grad
        )
        return grad_states, grad_x, None, None, *of_norms, *[None] * len(layer.shown)


def _product_of(product: TrainingLinear) -> TrainedProduct:
    n = len(product.sizes)
    return TrainedProduct(product.weights[:n], product.weights[n:])
