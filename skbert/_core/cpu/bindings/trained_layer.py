"""A layer as BERT's in a training step, forward and backward. Depends on torch only."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import torch

from skbert._core.attention.settings import AttentionSettings
from skbert._core.cpu.bindings import module
from skbert._core.cpu.bindings.attention import PackedRows, arguments_of_attention, heads_of
from skbert._core.cpu.bindings.attention_tiles import check_fits_tiles
from skbert._core.cpu.bindings.checks import (
    address_of,
    addresses,
    addresses_of,
    check_dropout,
    check_integer,
    check_multiple,
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
_LINE = 64  # bytes of a cache line


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

    Attributes
    ----------
    n_grads : int
        Numbers in the gradients of the products.
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
        self.n_grads = sum(x.numel() for x in self._tensors)
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


class LayerPass:
    """What both passes over a layer compute with, beside tensors; checked once for both.

    Parameters
    ----------
    weights : TrainedWeights
        The layer's.
    rows : PackedRows
        The rows, of which the first begins with the first token.
    settings : AttentionSettings
        What attention computes.
    norms : sequence of tuple
        Of both norms epsilon, and the dropout of what it adds to the residual, with its seed.
    seed : int
        Of attention's dropout.
    in_tiles : bool
        Whether attention is computed in tiles.

    Attributes
    ----------
    shape : tuple of int
        Of hidden states, ``(n_tokens, size)``.
    arguments : list
        What the kernels of both passes take last.
    n_others : int
        Numbers in ``SavedLayer.others``.
    """

    def __init__(
        self,
        weights: TrainedWeights,
        rows: PackedRows,
        settings: AttentionSettings,
        norms: Sequence[tuple[float, float, int]],
        *,
        seed: int,
        in_tiles: bool,
    ) -> None:
        check_processor()
        check_type("weights", weights, TrainedWeights)
        check_type("rows", rows, PackedRows)
        n_heads = heads_of(3 * weights.width, torch.bfloat16, settings, seed)
        if in_tiles:
            check_fits_tiles(rows, settings)
        if not rows.n_tokens:
            raise ValueError("a kernel takes a layer of one token or more")
        check_integer("the first token of rows", rows.first_token, 0, 0)
        if len(norms) != 2:
            raise ValueError(f"a kernel takes two norms, not {len(norms)}")
        for epsilon, dropout, seed_of_norm in norms:
            check_real("epsilon", epsilon, 0)
            check_dropout(dropout, seed_of_norm)
        self.weights, self.n_tokens = weights, rows.n_tokens
        self._rows = rows  # C reads its array as long as this lives
        attention = arguments_of_attention(torch.bfloat16, n_heads, rows, settings, seed)
        self.arguments = [
            self.n_tokens, has_amx(), bool(in_tiles), *norms[0], *norms[1], *attention,
        ]  # fmt: skip
        self.shape = self.n_tokens, weights.size
        self._begins, self.n_others = _begins_of_others(self.shape, weights.width, n_heads)

    def places_of(self, saved: SavedLayer) -> list[int]:
        """What the kernel reads or writes of a forward pass, in its order; checked."""
        sizes = self.weights.size, 3 * self.weights.width, self.weights.mlp_size
        begins = [
            address_of(name, x, (self.n_tokens, size), torch.bfloat16)
            for name, x, size in zip(SavedLayer._fields, saved, sizes, strict=False)
        ]
        others = address_of("others", saved.others, (self.n_others,), torch.float32)
        return [self.weights.table().data_ptr(), *begins, *(others + x for x in self._begins)]


def _begins_of_others(shape: tuple[int, int], width: int, n_heads: int) -> tuple[list[int], int]:
    """The bytes before each part of ``SavedLayer.others``, and how many numbers all are."""
    n_tokens, size = shape
    of_states, of_numbers = 2 * n_tokens * size, 4 * n_tokens
    of_attention = [2 * n_tokens * width, of_numbers * n_heads]
    of_norms = [of_states, of_states, of_numbers, of_states, of_numbers]
    lines = [-(-n_bytes // _LINE) * _LINE for n_bytes in (*of_attention, *of_norms)]
    *begins, end = accumulate(lines, initial=0)
    return begins, end // 4


class SavedLayer(NamedTuple):
    """What a forward pass leaves for the backward pass, in bfloat16 but for the last."""

    x: torch.Tensor  # (n_tokens, size)
    qkv: torch.Tensor  # (n_tokens, 3 * width)
    hidden: torch.Tensor  # (n_tokens, mlp_size), before GELU
    # Memory of what attention returns, (n_tokens, width), and in float32 its (n_tokens, n_heads)
    # logsumexp; of the norm behind it what is before weight and bias, the same after these, and in
    # float32 (n_tokens,) rstd; and the first and last of the norm at the end. One behind the other
    # as module.c lists them, each a multiple of a cache line.
    others: torch.Tensor


class LayerGrads(NamedTuple):
    """Gradients that a backward pass computes."""

    states: torch.Tensor
    x: torch.Tensor | None
    products: torch.Tensor  # (n_grads,), in bfloat16: product by product, its weights and biases
    norms: torch.Tensor  # (4, size): of weight and bias of both norms


def trained_layer_forward(
    *, how: LayerPass, states: torch.Tensor, x: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, SavedLayer]:
    """States ``(n_tokens, size)`` after a layer, in float32 and as ``x``, from such before it."""
    check_type("how", how, LayerPass)
    n_tokens, weights = how.n_tokens, how.weights
    address = address_of("states", states, how.shape, torch.float32)
    saved = SavedLayer(
        x, x.new_empty(n_tokens, 3 * weights.width), x.new_empty(n_tokens, weights.mlp_size),
        states.new_empty(how.n_others),
    )  # fmt: skip
    places = how.places_of(saved)
    output, rounded = torch.empty_like(states), torch.empty_like(x)
    module.kernels.trained_layer_forward(
        address, *addresses(output, rounded), *places, *how.arguments
    )
    return output, rounded, saved


def trained_layer_backward(
    *,
    how: LayerPass,
    saved: SavedLayer,
    grad_output: torch.Tensor | None,
    grad_rounded: torch.Tensor | None,
    needs_grad: bool,
) -> LayerGrads:
    """Gradients from those of both outputs; that of ``x`` only if it needs one."""
    check_type("how", how, LayerPass)
    given = (
        optional_address("grad_output", grad_output, how.shape, torch.float32),
        optional_address("grad_rounded", grad_rounded, how.shape, torch.bfloat16),
    )
    places, x = how.places_of(saved), saved.x
    grads = LayerGrads(
        torch.empty_like(x, dtype=torch.float32), torch.empty_like(x) if needs_grad else None,
        x.new_empty(how.weights.n_grads), x.new_empty(4, how.weights.size, dtype=torch.float32),
    )  # fmt: skip
    written = addresses(grads.states, grads.x, grads.norms, grads.products)
    module.kernels.trained_layer_backward(*given, *written, *places, *how.arguments)
    return grads
