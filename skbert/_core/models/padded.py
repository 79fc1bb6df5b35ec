"""Packed batches as the padded rows that transformers' models take.

Depends on torch and the record of the model's family.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from skbert._core.families.record import Family
from skbert._core.task import Batch

__all__ = ["Padded", "padded_parts"]


class Padded(NamedTuple):
    """Rows of a packed batch as a model takes them."""

    inputs: dict[str, torch.Tensor]  # (n_rows, length) each
    at: tuple[torch.Tensor, torch.Tensor]  # row and column of each token, in packed order


def padded_parts(
    family: Family, batch: Batch, pad_token_id: int, token_types: torch.Tensor | None
) -> list[Padded]:
    """All rows of a packed batch, or those of each length alone where padding would tell.

    ``token_types``, ``(1, n_tokens)``, are given to models that know some.
    """
    layout = batch.layout
    parts = [(slice(None), len(layout.lengths), layout.max_seqlen)]
    if family.mixes_neighbours:
        parts = [
            (slice(begin, begin + count * length), count, length)
            for begin, count, length in layout.runs
        ]
    return [_padded(family, batch, pad_token_id, token_types, *part) for part in parts]


def _padded(
    family: Family, batch: Batch, pad_token_id: int, token_types: torch.Tensor | None,
    tokens: slice, n_rows: int, length: int,
) -> Padded:  # fmt: skip
    """Rows of a packed batch, given by their tokens."""
    row, column = batch.layout.row_of_token[tokens], batch.position_ids[0, tokens]
    at = row - row[0], column

    def pad(values: torch.Tensor, padding: int = 0) -> torch.Tensor:
        padded = values.new_full((n_rows, length), padding)
        padded[at] = values
        return padded

    ids = batch.input_ids[0, tokens]
    inputs = {"input_ids": pad(ids, pad_token_id), "attention_mask": pad(torch.ones_like(ids))}
    if family.counts_from_padding:  # the library would skip an id of padding within a text
        inputs["position_ids"] = pad(column + family.first_position(pad_token_id), pad_token_id)
    if token_types is not None:
        inputs["token_type_ids"] = pad(token_types[0, tokens])
    return Padded(inputs, at)
