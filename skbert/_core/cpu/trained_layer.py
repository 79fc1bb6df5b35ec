"""Layers as BERT's in a training step, some together in one call forward and one backward.

Where kernels compute all of their steps in bfloat16, of a few texts these take less time than
torch takes to call them one by one. What results is the same to the last bit. Depends on torch,
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
    LayerSettings,
    LayersPass,
    SavedLayer,
    TrainedNorm,
    TrainedProduct,
    TrainedWeights,
    trained_layers_backward,
    trained_layers_forward,
)
from skbert._core.cpu.fused import can_attend_in_tiles, can_fuse_attention, can_fuse_layernorm
from skbert._core.cpu.training_linear import TrainingLinear
from skbert._core.families.record import LayerParts
from skbert._core.runtime.autograd import Context, add_gradient, draw_seeds
from skbert._core.runtime.distributed import process_group

__all__ = ["TrainedLayer", "run_together"]


class TrainedLayer:
    """A layer that kernels compute in training steps.

    `made_of` says whether there is one. Its backward pass adds to the gradients of linear layers
    itself.
    """

    def __init__(self, parts: LayerParts[Any], products: Sequence[TrainingLinear]) -> None:
        self.parts, self.bf16_grads = parts, products[0].bf16_grads
        self.weights = TrainedWeights(
            [_product_of(each) for each in products],
            [TrainedNorm(norm.weight, norm.bias) for norm in parts.norms],
        )
        self.trained = [weight for product in products for weight in product.weights]
        # Several processes send each other a gradient as soon as torch's graph has passed its
        # weight. Otherwise one there says that there is something to train.
        self.is_alone = process_group().size > 1
        self.shown = self.trained if self.is_alone else self.trained[:1]
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
            and can_fuse_attention(x, rows.layout, settings)
            and len(x) == rows.packed.n_tokens > 0
            and all(weight.requires_grad for weight in self.trained)
        )

    @property
    def dropout_rates(self) -> tuple[float, float]:
        """The shares that are dropped now of what is added to the residual, before each norm."""
        parts = self.parts
        return dropout_rate(parts.attention_dropout), dropout_rate(parts.mlp_dropout)

    def add_grads(self, products: torch.Tensor) -> None:
        """Add to the gradients of the linear layers, which lie one behind the other."""
        parts: Sequence[torch.Tensor] = _unflatten_dense_tensors(products, self.trained)  # type: ignore[no-untyped-call]
        for weight, gradient in zip(self.trained, parts, strict=True):
            if weight.requires_grad:
                add_gradient(weight, gradient, self.bf16_grads)


def run_together(
    layers: Sequence[TrainedLayer],
    states: torch.Tensor,
    x: torch.Tensor,
    rows: Rows,
    settings: AttentionSettings,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Hidden states after some layers, and the same rounded, from such before them."""
    in_tiles = can_attend_in_tiles(x, rows.layout.max_seqlen, settings)
    weights = [layer.weights for layer in layers]
    own = _settings_of(layers, settings.dropout)
    how = LayersPass(weights, rows.packed, settings, own, in_tiles=in_tiles)
    # The last first, as their gradients are added up where layers share weights.
    trained = *layers[0].shown, *chain.from_iterable(each.of_norms for each in layers[::-1])
    output: tuple[torch.Tensor, torch.Tensor] = _Layers.apply(states, x, layers, how, *trained)  # type: ignore[no-untyped-call]
    return output


def _settings_of(layers: Sequence[TrainedLayer], in_attention: float) -> list[LayerSettings]:
    """What each layer computes with, beside tensors; its seeds are drawn in order."""
    rates = [layer.dropout_rates for layer in layers]
    seeds = iter(draw_seeds(*(rate for own in rates for rate in (in_attention, *own))))
    return [
        LayerSettings(next(seeds), [
            (norm.eps, rate, next(seeds))
            for norm, rate in zip(layer.parts.norms, own, strict=True)
        ])
        for layer, own in zip(layers, rates, strict=True)
    ]  # fmt: skip


class _Layers(torch.autograd.Function):
    """Layers, as `run_together` computes them."""

    @staticmethod
    def forward(
        ctx: Context,
        states: torch.Tensor,
        x: torch.Tensor,
        layers: Sequence[TrainedLayer],
        how: LayersPass,
        *_weights: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        output, rounded, saved = trained_layers_forward(
            how=how, states=states.contiguous(), x=x.contiguous()
        )
        ctx.save_for_backward(*chain.from_iterable(saved))
        ctx.settings = layers, how
        ctx.set_materialize_grads(False)
        return output, rounded

    @staticmethod
    def backward(ctx: Context, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        layers, how = ctx.settings
        saved = zip(*[iter(ctx.saved_tensors)] * len(SavedLayer._fields), strict=True)
        grad_output, grad_rounded = (None if g is None else g.contiguous() for g in gradients)
        grads = trained_layers_backward(
            how=how, saved=[*map(SavedLayer._make, saved)], grad_output=grad_output,
            grad_rounded=grad_rounded, needs_grad=ctx.needs_input_grad[1],
        )  # fmt: skip
        of_weights: list[torch.Tensor | None] = [None] * len(layers[0].shown)
        of_layers = [*zip(layers, grads.products, grads.norms.unbind(), strict=True)]
        for layer, products, norms in of_layers[::-1]:
            layer.add_grads(products)
            every = zip(norms.unbind(), chain(*layer.weights.norms), strict=True)
            of_weights += [grad for grad, x in every if x is not None]
        return grads.states, grads.x, None, None, *of_weights


def _product_of(product: TrainingLinear) -> TrainedProduct:
    n = len(product.sizes)
    return TrainedProduct(product.weights[:n], product.weights[n:])
