"""Rotary positions of query and key, and their gradient. Depends on torch only."""

from __future__ import annotations

import torch

from skbert._core.cpu.bindings import module
from skbert._core.cpu.bindings.checks import (
    address_of,
    addresses,
    check_integer,
    check_multiple,
    check_type,
    shape_of,
)
from skbert._core.cpu.bindings.module import DTYPES, LANES

__all__ = ["RotaryTable", "rotate"]

_MAX_SIZE = 1 << 14  # of a head


class RotaryTable:
    """The angles by which each token is turned, checked once for all layers.

    Parameters
    ----------
    cosines, sines : Tensor of shape (n_positions, head_size / 2)
        In float32.
    positions : Tensor of shape (n_tokens,)
        Which row of these each token has, in int32.
    """

    def __init__(
        self, *, cosines: torch.Tensor, sines: torch.Tensor, positions: torch.Tensor
    ) -> None:
        shape = n_positions, self.half = shape_of("cosines", cosines, 2)
        check_multiple("half of a head", self.half, LANES)
        check_integer("head_size", 2 * self.half, 2 * LANES, _MAX_SIZE)
        address_of("cosines", cosines, shape, torch.float32)
        address_of("sines", sines, shape, torch.float32)
        address_of("positions", positions, shape_of("positions", positions, 1), torch.int32)
        ends = [*positions.aminmax()] if len(positions) else []
        if any(not 0 <= int(end) < n_positions for end in ends):
            raise ValueError(f"a kernel takes positions from 0 to {n_positions - 1}")
        self.cosines, self.sines, self.positions = (x.clone() for x in (cosines, sines, positions))


def rotate(
    *, qkv: torch.Tensor, table: RotaryTable, in_place: bool, backward: bool = False
) -> torch.Tensor:
    """Query and key turned by the angles of their positions, or back; value as it is.

    They lie side by side, ``(n_tokens, 3 * n_heads * head_size)``.
    """
    check_type("table", table, RotaryTable)
    n_tokens, width = shape_of("qkv", qkv, 2)
    n_heads, rest = divmod(width, 6 * table.half)
    if rest or not n_heads or n_tokens != len(table.positions) or qkv.dtype not in DTYPES:
        raise ValueError(
            f"a kernel turns no {tuple(qkv.shape)} of {qkv.dtype} with {len(table.positions)} "
            f"positions and heads of {2 * table.half}"
        )
    address = address_of("qkv", qkv, qkv.shape, qkv.dtype)
    output = qkv if in_place else torch.empty_like(qkv)
    module.kernels.rotate(
        address, *addresses(output, table.cosines, table.sines, table.positions),
        n_tokens, n_heads, 2 * table.half, qkv.dtype == torch.bfloat16, bool(backward),
        torch.get_num_threads(),
    )  # fmt: skip
    return output
