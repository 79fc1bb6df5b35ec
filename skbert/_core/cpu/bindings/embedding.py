"""Embeddings, the normalised sum of rows of some tables, for inference. Depends on torch only."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

import torch

from skbert._core.cpu.bindings import module
from skbert._core.cpu.bindings.checks import (
    address_of,
    address_of_array,
    addresses,
    check_integer,
    check_multiple,
    check_real,
    optional_address,
    shape_of,
)
from skbert._core.cpu.bindings.module import LANES

__all__ = ["Table", "embed"]

_MOST_TABLES, _MOST_TOKENS = 3, 2**31 - 1


class Table(NamedTuple):
    """A table, and which of its rows each token has, or the first where there are no ids."""

    rows: torch.Tensor
    ids: torch.Tensor | None


def embed(
    *,
    tables: Sequence[Table],
    n_tokens: int,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    epsilon: float,
) -> torch.Tensor:
    """The layer normalisation of the sum of these rows, ``(n_tokens, size)`` in float32.

    Ids are 64 bit integers. One outside its table raises IndexError.
    """
    check_integer("a number of tables", len(tables), 1, _MOST_TABLES)
    check_integer("a number of tokens", n_tokens, 1, _MOST_TOKENS)
    (size,) = shape_of("weight", weight, 1)
    check_multiple("the size", size, LANES)
    check_real("epsilon", epsilon, 0)
    table = array("q")
    for rows, ids in tables:
        n_rows, _ = shape_of("a table", rows, 2)
        check_multiple("a number of rows", n_rows, 1)
        table.append(address_of("a table", rows, (n_rows, size), torch.float32))
        table.append(n_rows)
        table.append(optional_address("ids", ids, (n_tokens,), torch.int64))
    inputs = (
        address_of_array(table),
        address_of("weight", weight, (size,), torch.float32),
        optional_address("bias", bias, (size,), torch.float32),
    )
    output = weight.new_empty(n_tokens, size)
    module.kernels.embed(
        *inputs, *addresses(output), n_tokens, size, len(tables), epsilon,
        torch.get_num_threads(),
    )  # fmt: skip
    return output
