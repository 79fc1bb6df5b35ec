"""A layer as BERT's in a training step, forward and backward. Depends on torch only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from skbert._core.attention.settings import AttentionSettings
from skbert._core.cpu.bindings import module
from skbert._core.cpu.bindings.attention import (
    PackedRows,
    arguments_of_attention,
    check_attention,
)
from skbert._core.cpu.bindings.attention_tiles import check_tiles
from skbert._core.cpu.bindings.checks import (
    address_of,
    addresses,
    addresses_of,
    check_dropout,
    check_integer,
    check_multiple,
    check_no_overlap,
    check_real,
    check_type,
    optional_address,
    shape_of,
)
from skbert._core.cpu.bindings.encoder import sizes_of_layer
from skbert._core.cpu.bindings.module import PANEL, check_processor, has_amx

__all__ = [
    "LayerGrads", "LayerPass", "SavedLayer", "TrainedNorm", "TrainedProduct", "TrainedWeights",
    "trained_layer_backward", "trained_layer_forward",
]  # fmt: skip

_MOST_WEIGHTS = 3  # of query, key and value


class TrainedProduct(NamedTuple):
    """Linear layers of one shape side by side, in float32."""

    weights: Sequence[torch.Tensor]  # each (n_rows, n_in)
    biases: Sequence[torch.Tensor]  # each (n_rows,), or none


class TrainedNorm(NamedTuple):
    """What a layer normalisation multiplies by, and adds; in float32."""

    weight: torch.Tensor
    bias: torch.Tensor | None


class TrainedWeights:
    """The weights of a layer, which each pass reads where they are then.

    Parameters
    ----------
    products : sequence of TrainedProduct
        Query, key and value, the product after attention, and those before and after GELU.
    norms : sequence of TrainedNorm
        After attention, and at the end.
    """

    def __init__(self, products: Sequence[TrainedProduct], norms: Sequence[TrainedNorm]) -> None:
        if len(products) != 4 or len(norms) != 2:
            raise ValueError("a kernel takes layers of four products and two norms")
        self.products, self.norms = [*products], [*norms]
        self.sizes = [_sizes_of(each) for each in products]
        shape = [(n_in, n_rows * n) for n_in, n_rows, n in self.sizes]
        self.size, self.width, self.mlp_size = sizes_of_layer(shape)
        for n_in, n_rows, n_weights in self.sizes:
            check_integer("a number of weights", n_weights, 1, _MOST_WEIGHTS)
            check_multiple("a number of inputs", n_in, PANEL)
            check_multiple("a number of outputs", n_rows, PANEL)
        self._tensors = [x for each in products for x in (*each.weights, *each.biases)]
        self._tensors += [x for norm in norms for x in norm if x is not None]
        self._seen: list[int] = []
        self.table()

    def table(self) -> torch.Tensor:
        """What C reads of the layer now; an error unless a kernel can read all weights."""
        begins = [*addresses_of(self._tensors)]
        if begins != self._seen:
            row: list[int] = []
            for product, sizes in zip(self.products, self.sizes, strict=True):
                row += [*_addresses_of(product, sizes), *sizes]
            for norm in self.norms:
                row.append(address_of("weight", norm.weight, (self.size,), torch.float32))
                row.append(optional_address("bias", norm.bias, (self.size,), torch.float32))
            self._table = torch.tensor(row, dtype=torch.int64, device="cpu")
            self._seen = begins
        return self._table


def _sizes_of(product: TrainedProduct) -> tuple[int, int, int]:
    """Inputs, rows of a weight, and weights."""
    n_rows, n_in = shape_of("weights", product.weights[0], 2)
    return n_in, n_rows, len(product.weights)


def _addresses_of(product: TrainedProduct, sizes: tuple[int, int, int]) -> list[int]:
    """Those of three weights and of three biases, 0 where there is none."""
    n_in, n_rows, n_weights = sizes
    weights = [address_of("weights", x, (n_rows, n_in), torch.float32) for x in product.weights]
    biases = [address_of("biases", x, (n_rows,), torch.float32) for x in product.biases]
    if len(biases) not in {0, n_weights}:
        raise ValueError("a kernel takes a bias for each weight of a product, or none")
    n_more = _MOST_WEIGHTS - n_weights
    return [*weights, *[0] * n_more, *biases, *[0] * (_MOST_WEIGHTS - len(biases))]


class LayerPass(NamedTuple):
    """What both passes over a layer compute with, beside tensors."""

    rows: PackedRows
    settings: AttentionSettings
    in_tiles: bool  # attention
    seed: int  # of attention
    epsilons: tuple[float, float]  # of both norms
    dropouts: tuple[float, float]  # of what each adds to the residual
    seeds: tuple[int, int]  # of these


class SavedLayer(NamedTuple):
    """What a forward pass leaves for the backward pass; in bfloat16, or float32 where it says."""

    x: torch.Tensor  # (n_tokens, size)
    qkv: torch.Tensor  # (n_tokens, 3 * width)
    context: torch.Tensor  # (n_tokens, width)
    logsumexp: torch.Tensor  # (n_tokens, n_heads), float32
    normalized: torch.Tensor  # (n_tokens, size), after attention, before weight and bias
    rounded: torch.Tensor  # the same after these
    rstd: torch.Tensor  # (n_tokens,), float32
    hidden: torch.Tensor  # (n_tokens, mlp_size), before GELU
    last_normalized: torch.Tensor  # as above, at the end of the layer
    last_rstd: torch.Tensor


class LayerGrads(NamedTuple):
    """Gradients that a backward pass computes."""

    states: torch.Tensor
    x: torch.Tensor | None
    norms: torch.Tensor  # (2, 2, size): of weight and bias of both norms


def trained_layer_forward(
    *, weights: TrainedWeights, states: torch.Tensor, x: torch.Tensor, how: LayerPass
) -> tuple[torch.Tensor, torch.Tensor, SavedLayer]:
    """States ``(n_tokens, size)`` after a layer, in float32 and as ``x``, from such before it."""
    shape = shape_of("x", x, 2)
    address = address_of("states", states, shape, torch.float32)
    address_of("x", x, shape, torch.bfloat16)
    arguments, n_heads = _check_pass(weights, shape, how)
    n_tokens, width = shape[0], weights.width
    saved = SavedLayer(
        x, x.new_empty(n_tokens, 3 * width), x.new_empty(n_tokens, width),
        states.new_empty(n_tokens, n_heads), torch.empty_like(x), torch.empty_like(x),
        states.new_empty(n_tokens), x.new_empty(n_tokens, weights.mlp_size),
        torch.empty_like(x), states.new_empty(n_tokens),
    )  # fmt: skip
    output, rounded, table = torch.empty_like(states), torch.empty_like(x), weights.table()
    module.kernels.trained_layer_forward(
        address, *addresses(output, rounded, table, *saved), *arguments
    )
    return output, rounded, saved


def trained_layer_backward(
    *,
    weights: TrainedWeights,
    saved: SavedLayer,
    grad_output: torch.Tensor | None,
    grad_rounded: torch.Tensor | None,
    grad_products: Sequence[tuple[torch.Tensor, torch.Tensor | None]],
    how: LayerPass,
    needs_grad: bool,
) -> LayerGrads:
    """Gradients from those of both outputs; those of products, in bfloat16, are written.

    That of ``x`` only if it needs one.
    """
    shape = shape_of("x", saved.x, 2)
    arguments, n_heads = _check_pass(weights, shape, how)
    given = (
        optional_address("grad_output", grad_output, shape, torch.float32),
        optional_address("grad_rounded", grad_rounded, shape, torch.bfloat16),
    )
    places = _addresses_of_saved(weights, saved, n_heads)
    written = _addresses_of_grads(weights, grad_products)
    states = torch.empty_like(saved.x, dtype=torch.float32)
    x = torch.empty_like(saved.x) if needs_grad else None
    norms = states.new_zeros(2, torch.get_num_threads(), 2, weights.size)
    table = weights.table()
    module.kernels.trained_layer_backward(
        *given, *addresses(states, x, norms), *written, *addresses(table), *places, *arguments
    )
    return LayerGrads(states, x, norms.sum(1))


def _check_pass(
    weights: TrainedWeights, shape: torch.Size, how: LayerPass
) -> tuple[list[Any], int]:
    """What both passes take behind addresses, checked, and the number of heads."""
    check_processor()
    check_type("weights", weights, TrainedWeights)
    check_type("how", how, LayerPass)
    n_tokens, size = shape
    check_integer("a size", size, weights.size, weights.size)
    like_qkv = _LIKE_QKV.expand(n_tokens, 3 * weights.width)
    check = check_tiles if how.in_tiles else check_attention
    n_heads = check(like_qkv, how.rows, how.settings, how.seed)[1]
    check_integer("a number of tokens", n_tokens, 1, how.rows.n_tokens)
    check_integer("the first token of rows", how.rows.first_token, 0, 0)
    norms: list[Any] = []
    for each in zip(how.epsilons, how.dropouts, how.seeds, strict=True):
        check_real("epsilon", each[0], 0)
        check_dropout(*each[1:])
        norms += each
    attention = arguments_of_attention(like_qkv.dtype, n_heads, how.rows, how.settings, how.seed)
    return [n_tokens, has_amx(), bool(how.in_tiles), *norms, *attention], n_heads


_LIKE_QKV = torch.empty((), dtype=torch.bfloat16, device="cpu")


def _addresses_of_saved(weights: TrainedWeights, saved: SavedLayer, n_heads: int) -> list[int]:
    """Checked: a caller may have changed what was saved."""
    n_tokens, size = saved.x.shape
    sizes = (
        (size,), (3 * weights.width,), (weights.width,), (n_heads,), (size,), (size,), (),
        (weights.mlp_size,), (size,), (),
    )  # fmt: skip
    return [
        address_of(
            name, x, (n_tokens, *rest), torch.float32 if name in _IN_FLOAT32 else torch.bfloat16
        )
        for name, x, rest in zip(SavedLayer._fields, saved, sizes, strict=True)
    ]


_IN_FLOAT32 = {"logsumexp", "rstd", "last_rstd"}


def _addresses_of_grads(
    weights: TrainedWeights, grads: Sequence[tuple[torch.Tensor, torch.Tensor | None]]
) -> list[int]:
    """Of the gradients of weights and biases, which are to be written."""
    written: list[int] = []
    for (n_in, n_rows, n), (weight, bias) in zip(weights.sizes, grads, strict=True):
        written.append(address_of("grad_products", weight, (n * n_rows, n_in), torch.bfloat16))
        written.append(optional_address("grad_products", bias, (n * n_rows,), torch.bfloat16))
    check_no_overlap([x for pair in grads for x in pair if x is not None], [])
    return written
