"""Linear layers in int8, for inference. Depends on torch only."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch.nn import functional as F

from skbert._core.cpu.bindings import module
from skbert._core.cpu.bindings.checks import (
    address_of,
    addresses,
    check_integer,
    check_multiple,
    check_type,
    optional_address,
    shape_of,
)
from skbert._core.cpu.bindings.module import DTYPES, LANES, PANEL, has_int8_products

__all__ = ["Int8Weights", "can_multiply_int8", "int8_linears"]

_MOST_INPUTS = 1 << 16  # whose sum fits in 32 bits, with outliers
_TILE = 64  # inputs in a row of a tile
_MOST_LAYERS = 2  # of a call


def can_multiply_int8(n_in: int, n_out: int) -> bool:
    """Whether `Int8Weights` takes a weight of these sizes."""
    return not n_out % PANEL and not n_in % LANES and n_in <= _MOST_INPUTS


class Int8Weights:
    """A copy of a linear layer's weight, rounded to int8 by output, and of its bias.

    Parameters
    ----------
    weight : Tensor of shape (n_out, n_in)
        In float32.
    bias : Tensor of shape (n_out,) or None
        In float32.
    gelu : bool
        Whether GELU follows.
    outliers : bool
        Whether inputs that are much larger than others of a token get more than 8 bits.
    """

    def __init__(
        self, *, weight: torch.Tensor, bias: torch.Tensor | None, gelu: bool = False,
        outliers: bool = False,
    ) -> None:  # fmt: skip
        self.n_out, self.n_in = shape = shape_of("weight", weight, 2)
        check_multiple("a number of outputs", self.n_out, PANEL)
        check_multiple("a number of inputs", self.n_in, LANES)
        check_integer("a number of inputs", self.n_in, LANES, _MOST_INPUTS)
        address_of("weight", weight, shape, torch.float32)
        optional_address("bias", bias, (self.n_out,), torch.float32)
        weight = weight.detach()
        scale = weight.abs().amax(1) / 127
        whole = (weight / torch.where(scale > 0, scale, 1.0)[:, None]).round_()
        sums = scale * whole.sum(1)
        added = torch.zeros_like(sums) if bias is None else bias.detach()
        self.columns = torch.stack([scale, sums, added])
        self.panels = _packed(whole.to(torch.int8))
        self.gelu, self.outliers = bool(gelu), bool(outliers)

    def row(self) -> list[int]:
        """What C reads of it."""
        sizes = self.n_in, self.n_out
        return [*addresses(self.panels, self.columns), *sizes, self.gelu, self.outliers]


def int8_linears(*, x: torch.Tensor, layers: Sequence[Int8Weights]) -> torch.Tensor:
    """A linear layer of ``(n_tokens, n_in)``, or two of which the second reads the first.

    The result is in the type of ``x``, float32 or bfloat16, and so is what lies between them.
    """
    _check_layers(layers)
    n_tokens, n_in = shape_of("x", x, 2)
    if n_in != layers[0].n_in or x.dtype not in DTYPES:
        raise ValueError(
            f"a kernel multiplies no {tuple(x.shape)} of {x.dtype} by {layers[0].n_in} inputs"
        )
    address = address_of("x", x, x.shape, x.dtype)
    output = x.new_empty(n_tokens, layers[-1].n_out)
    table = torch.tensor([layer.row() for layer in layers], dtype=torch.int64, device="cpu")
    module.kernels.int8_linears(
        *addresses(table), len(layers), address, *addresses(output), n_tokens,
        x.dtype == torch.bfloat16, bool(module.kernels.has_amx), torch.get_num_threads(),
    )  # fmt: skip
    return output


def _check_layers(layers: Sequence[Int8Weights]) -> None:
    if not has_int8_products():
        raise RuntimeError("no kernel multiplies int8 on this processor")
    check_integer("a number of layers", len(layers), 1, _MOST_LAYERS)
    for layer in layers:
        check_type("a layer", layer, Int8Weights)
    if any(first.n_out != second.n_in for first, second in pairwise(layers)):
        raise ValueError("a kernel takes layers of which each reads what the one before computes")


def _packed(whole: torch.Tensor) -> torch.Tensor:
    """Weights ``(n_out, n_in)`` as ``(n_out / PANEL, n_in / 4, PANEL, 4)``, with zeros behind."""
    n_out, n_in = whole.shape
    filled = F.pad(whole, (0, -n_in % _TILE)).view(n_out // PANEL, PANEL, -1, 4)
    return filled.transpose(1, 2).contiguous()
