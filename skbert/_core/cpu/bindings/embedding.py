"""Embeddings, the normalised sum of rows of some tables, and their gradients.

Depends on torch only.
"""

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
    check_no_overlap,
    check_real,
    check_type,
    optional_address,
    shape_of,
)
from skbert._core.cpu.bindings.module import LANES

__all__ = ["Embedded", "EmbeddingWeights", "Table", "embed", "embed_backward"]

_MOST_TABLES, _MOST_TOKENS = 3, 2**31 - 1


class Table(NamedTuple):
    """A table, and which of its rows each token has, or the first where there are no ids."""

    rows: torch.Tensor
    ids: torch.Tensor | None


class EmbeddingWeights:
    """Tables of one width, and the norm of the sum of their rows, for `embed`; all in float32.

    They are checked here, and read where they are now.
    """

    def __init__(
        self,
        *,
        tables: Sequence[torch.Tensor],
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        epsilon: float,
    ) -> None:
        check_real("epsilon", epsilon, 0)
        (size,) = shape_of("weight", weight, 1)
        _check_tables(size, len(tables))
        self.places = [_place_of(rows, size) for rows in tables]
        self.norm = (
            address_of("weight", weight, (size,), torch.float32),
            optional_address("bias", bias, (size,), torch.float32),
        )
        self.tables, self.weight, self.bias = [*tables], weight, bias  # live as long as this
        self.size, self.epsilon = size, epsilon


class Embedded(NamedTuple):
    """Embeddings, and what their gradient needs, if one is needed; in float32."""

    output: torch.Tensor  # (n_tokens, size)
    normalized: torch.Tensor | None  # the same before weight and bias
    rstd: torch.Tensor | None  # (n_tokens,), 1 / deviation of each token


def embed(
    *,
    weights: EmbeddingWeights,
    ids: Sequence[torch.Tensor | None],
    n_tokens: int,
    with_normalized: bool = False,
) -> Embedded:
    """The layer normalisation of the sum of rows, of which each token has one of each table.

    Ids are 64 bit integers, or None: the first row. One outside its table raises IndexError.
    """
    check_type("weights", weights, EmbeddingWeights)
    check_integer("a number of tokens", n_tokens, 1, _MOST_TOKENS)
    rows = array("q")
    for place, own in zip(weights.places, ids, strict=True):
        rows.extend((*place, optional_address("ids", own, (n_tokens,), torch.int64), 0))
    output = weights.weight.new_empty(n_tokens, weights.size)
    found = Embedded(
        output, torch.empty_like(output) if with_normalized else None,
        output.new_empty(n_tokens) if with_normalized else None,
    )  # fmt: skip
    module.kernels.embed(
        address_of_array(rows), *weights.norm, *addresses(*found), n_tokens, weights.size,
        len(weights.places), weights.epsilon, torch.get_num_threads(),
    )  # fmt: skip
    return found


def embed_backward(
    *,
    tables: Sequence[Table],
    grads: Sequence[torch.Tensor | None],
    weight: torch.Tensor,
    normalized: torch.Tensor,
    rstd: torch.Tensor,
    grad_output: torch.Tensor,
) -> torch.Tensor:
    """Add to the gradients of tables, each like its rows; those of weight and bias, ``(2, size)``.

    An id outside its table raises IndexError, and adds to none.
    """
    shape = n_tokens, size = shape_of("grad_output", grad_output, 2)
    rows = _rows_of(tables, grads, n_tokens, size)
    inputs = (
        address_of_array(rows),
        address_of("weight", weight, (size,), torch.float32),
        address_of("normalized", normalized, shape, torch.float32),
        address_of("rstd", rstd, (n_tokens,), torch.float32),
        address_of("grad_output", grad_output, shape, torch.float32),
    )
    read = [x for each in tables for x in each if x is not None]
    added_to = [x for x in grads if x is not None]
    check_no_overlap(added_to, [*read, weight, normalized, rstd, grad_output])
    grad_sum, grad_weights = torch.empty_like(grad_output), weight.new_empty(2, size)
    module.kernels.embed_backward(
        *inputs, *addresses(grad_sum, grad_weights), n_tokens, size, len(tables),
        torch.get_num_threads(),
    )  # fmt: skip
    return grad_weights


def _rows_of(
    tables: Sequence[Table], grads: Sequence[torch.Tensor | None], n_tokens: int, size: int
) -> array[int]:
    """What C reads of tables, with what it adds their gradients to; checked."""
    _check_tables(size, len(tables))
    check_integer("a number of tokens", n_tokens, 1, _MOST_TOKENS)
    found = array("q")
    for (rows, ids), gradient in zip(tables, grads, strict=True):
        address, n_rows = _place_of(rows, size)
        found.append(address)
        found.append(n_rows)
        found.append(optional_address("ids", ids, (n_tokens,), torch.int64))
        found.append(optional_address("a gradient", gradient, (n_rows, size), torch.float32))
    return found


def _check_tables(size: int, n_tables: int) -> None:
    check_multiple("the size", size, LANES)
    check_integer("a number of tables", n_tables, 1, _MOST_TABLES)


def _place_of(rows: torch.Tensor, size: int) -> tuple[int, int]:
    """Where the rows of a table lie, and how many."""
    n_rows, _ = shape_of("a table", rows, 2)
    check_multiple("a number of rows", n_rows, 1)
    return address_of("a table", rows, (n_rows, size), torch.float32), n_rows
