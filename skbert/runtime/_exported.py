"""What an exported folder knows, and the outputs of its graph for rows.

Depends on the items and on an engine; knows no job.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from skbert._core.export.engines import Graph
from skbert._core.export.rows import outputs_of, padded_batches
from skbert._core.items import Head, Items
from skbert._core.text.tokens import Ragged, TextTokenizer, TokenTable
from skbert._validation.columns import FitRecord

__all__ = ["Exported"]


@dataclass(frozen=True)
class Exported:
    """What was learned, and the graph that computes with it."""

    graph: Graph
    tokenizer: TextTokenizer
    task: Any
    record: FitRecord | None  # the columns of X in fit; None: opened from a checkpoint
    attributes: Mapping[str, Any]  # the public ones, whose names end with an underscore
    equal_lengths: bool  # whether only rows of one length are computed together

    @property
    def head(self) -> Head:
        """What the graph reads, and how many outputs it has."""
        head: Head = self.task.head()
        return head if self.record is None else replace(head, n_features=self.record.n_features)

    @cached_property
    def n_outputs(self) -> int:
        """How many outputs the graph has of a row, which is computed to find out."""
        ids = np.array([*self.tokenizer.prefix, *self.tokenizer.suffix, 0], np.int32)
        tokens = TokenTable(Ragged.of(ids, np.array([len(ids)])), np.array([len(ids)]))
        features = np.zeros((1, self.head.n_features), np.float32)
        row = Items(tokens, np.arange(2), np.arange(1), np.ones(1), features=features)
        ((_, inputs),) = padded_batches(row)
        return int(self.graph.run(inputs).shape[-1])

    def check_graph(self) -> None:
        """Raise unless the graph takes a row, and has as many outputs as the task reads."""
        found, expected = self.n_outputs, self.head.n_outputs
        if expected and found != expected:
            raise ValueError(f"the graph has {found} outputs, where {expected} are read")

    def run(self, items: Items) -> Ragged:
        """The outputs of the graph for each item, one row of the result each.

        Raises
        ------
        NonFiniteError
            If an output is NaN or infinite.
        """
        return outputs_of(self.graph.run, items, self.head, equal_lengths=self.equal_lengths)
