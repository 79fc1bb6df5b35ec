"""Layers as BERT's in a training step, forward and backward. Depends on torch only."""

from __future__ import annotations

from array import array
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
    address_of_array,
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
    "LayerSettings", "LayersGrads", "LayersPass", "SavedLayer", "TrainedNorm", "TrainedProduct",
    "TrainedWeights", "trained_layers_backward", "trained_layers_forward",
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


class LayerSettings(NamedTuple):
    """What a layer computes with, beside tensors and what all layers share."""

    seed: int  # of attention's dropout
    # Of both norms epsilon, and the dropout of what it adds to the residual, with its seed.
    norms: Sequence[tuple[float, float, int]]


class LayersPass:
    """What both passes over some layers compute with, beside tensors; checked once for both.

    Parameters
    ----------
    weights : sequence of TrainedWeights
        Those of each layer, all of one size.
    rows : PackedRows
        The rows, of which the first begins with the first token.
    settings : AttentionSettings
        What attention computes.
    own : sequence of LayerSettings
        What else each layer computes with.
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
        weights: Sequence[TrainedWeights],
        rows: PackedRows,
        settings: AttentionSettings,
        own: Sequence[LayerSettings],
        *,
        in_tiles: bool,
    ) -> None:
        check_processor()
        for each in weights:
            check_type("weights", each, TrainedWeights)
        check_type("rows", rows, PackedRows)
        if len({(x.size, x.width, x.mlp_size) for x in weights}) != 1 or len(own) != len(weights):
            raise ValueError("a kernel takes layers of one size, one or more, with settings each")
        first = weights[0]
        if in_tiles:
            check_fits_tiles(rows, settings)
        if not rows.n_tokens:
            raise ValueError("a kernel takes layers of one token or more")
        check_integer("the first token of rows", rows.first_token, 0, 0)
        n_heads = heads_of(3 * first.width, torch.bfloat16, settings)
        self._factors = array("f")
        self._seeds = [self._seeds_of(settings, each) for each in own]
        self.weights, self.n_tokens = [*weights], rows.n_tokens
        self._rows = rows  # C reads its array as long as this lives
        self.arguments = [
            address_of_array(self._factors), len(weights), self.n_tokens, has_amx(),
            bool(in_tiles), *arguments_of_attention(torch.bfloat16, n_heads, rows, settings, 0),
        ]  # fmt: skip
        self.shape = self.n_tokens, first.size
        self._begins, self.n_others = _begins_of_others(self.shape, first.width, n_heads)

    def _seeds_of(self, settings: AttentionSettings, own: LayerSettings) -> list[int]:
        """The seeds of a layer, whose factors are noted; checked."""
        check_dropout(settings.dropout, own.seed)
        if len(own.norms) != 2:
            raise ValueError(f"a kernel takes two norms, not {len(own.norms)}")
        for epsilon, dropout, seed in own.norms:
            check_real("epsilon", epsilon, 0)
            check_dropout(dropout, seed)
            self._factors.extend((epsilon, dropout))
        return [own.seed, *(seed for _, _, seed in own.norms)]

    def saved_like(self, x: torch.Tensor) -> SavedLayer:
        """Memory for what a layer leaves that reads ``x``."""
        first = self.weights[0]
        return SavedLayer(
            x, x.new_empty(self.n_tokens, 3 * first.width),
            x.new_empty(self.n_tokens, first.mlp_size),
            x.new_empty(self.n_others, dtype=torch.float32),
        )  # fmt: skip

    def table_of(
        self, saved: Sequence[SavedLayer], written: Sequence[tuple[int, ...]]
    ) -> array[int]:
        """What C reads of each layer.

        ``written`` has three addresses a layer: of the states after it, rounded, and of the
        gradients of its products and of its norms; 0 for what the pass does not write.
        """
        table = array("q")
        for weights, layer, own, seeds in zip(
            self.weights, saved, written, self._seeds, strict=True
        ):
            table.extend((*self._places_of(weights, layer), *own, *seeds))
        return table

    def _places_of(self, weights: TrainedWeights, saved: SavedLayer) -> list[int]:
        """Where the weights lie, and what a forward pass writes; checked."""
        sizes = weights.size, 3 * weights.width, weights.mlp_size
        begins = [
            address_of(name, x, (self.n_tokens, size), torch.bfloat16)
            for name, x, size in zip(SavedLayer._fields, saved, sizes, strict=False)
        ]
        others = address_of("others", saved.others, (self.n_others,), torch.float32)
        return [weights.table().data_ptr(), *begins, *(others + x for x in self._begins)]


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
    # as in TrainedPlaces of kernels.h, each a multiple of a cache line.
    others: torch.Tensor


class LayersGrads(NamedTuple):
    """Gradients that a backward pass computes."""

    states: torch.Tensor
    x: torch.Tensor | None
    # Of each layer (n_grads,), in bfloat16: product by product, its weights and biases.
    products: Sequence[torch.Tensor]
    norms: torch.Tensor  # (n_layers, 4, size): of weight and bias of both norms


def trained_layers_forward(
    *, how: LayersPass, states: torch.Tensor, x: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, list[SavedLayer]]:
    """States ``(n_tokens, size)`` after layers, in float32 and as ``x``, from such before them."""
    check_type("how", how, LayersPass)
    address = address_of("states", states, how.shape, torch.float32)
    saved, rounded = [], [x]
    for _ in how.weights:
        saved.append(how.saved_like(rounded[-1]))
        rounded.append(torch.empty_like(x))
    output = torch.empty_like(states)
    table = how.table_of(saved, [(begin, 0, 0) for begin in addresses(*rounded[1:])])
    module.kernels.trained_layers_forward(
        address, *addresses(output), address_of_array(table), *how.arguments
    )
    return output, rounded[-1], saved


def trained_layers_backward(
    *,
    how: LayersPass,
    saved: Sequence[SavedLayer],
    grad_output: torch.Tensor | None,
    grad_rounded: torch.Tensor | None,
    needs_grad: bool,
) -> LayersGrads:
    """Gradients from those of both outputs; that of ``x`` only if it needs one."""
    check_type("how", how, LayersPass)
    given = (
        optional_address("grad_output", grad_output, how.shape, torch.float32),
        optional_address("grad_rounded", grad_rounded, how.shape, torch.bfloat16),
    )
    x, n_layers = saved[0].x, len(how.weights)
    grad_x = torch.empty_like(x) if needs_grad or n_layers > 1 else None
    grads = LayersGrads(
        torch.empty_like(x, dtype=torch.float32), grad_x,
        [x.new_empty(weights.n_grads) for weights in how.weights],
        x.new_empty(n_layers, 4, how.weights[0].size, dtype=torch.float32),
    )  # fmt: skip
    written = zip(addresses(*grads.products), addresses(*grads.norms), strict=True)
    table = how.table_of(saved, [(0, *each) for each in written])
    module.kernels.trained_layers_backward(
        *given, *addresses(grads.states, grad_x), bool(needs_grad), address_of_array(table),
        *how.arguments,
    )  # fmt: skip
    return grads if needs_grad else grads._replace(x=None)
