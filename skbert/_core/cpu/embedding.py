"""Word embeddings while they are trained: only the rows that the training texts use.

A corpus uses some thousand of thirty thousand words, and a batch some hundred. Autograd would
fill a fresh matrix of the size of the whole table with zeros at every step, and AdamW would pass
over that table and its two moments, which on a CPU costs more than the layers' arithmetic on
short texts. Here the rows in use are a table of their own, with a gradient that is kept between
steps and cleared by row. All that AdamW does to the other rows, whose gradients are zero, is to
shrink them; that is done in one go when the rows are written back. Depends on torch and numpy.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from skbert._arrays import IntArray

__all__ = ["UsedRowsEmbedding", "distinct_ids"]

_READ_TOGETHER = 1 << 20  # ids, which take more memory when they are read than where they lie


class UsedRowsEmbedding:
    """An embedding of words that trains only the rows of its table that are in use.

    Parameters
    ----------
    table : Parameter of shape (n_words, size)
        The whole table, which is up to date after `write_back`.
    """

    def __init__(self, table: torch.nn.Parameter) -> None:
        self.table = table
        self.used_ids = torch.empty(0, dtype=torch.long)  # whose rows are in use
        self.position_of = torch.full((len(table),), -1)  # of each id among them, -1 for none
        self.unused_factor = 1.0  # weight decay of the other rows since `write_back`
        self.rows = torch.nn.Parameter(table.detach()[:0])
        self.grad_buffer = torch.zeros_like(self.rows)
        self.touched: list[torch.Tensor] = []

    def add_ids(self, ids: torch.Tensor) -> int:
        """Train the rows of these ids from now on, too; return how many are new.

        The table must be up to date.
        """
        ids = torch.unique(ids)
        new = ids[self.position_of[ids] < 0]
        if len(new):
            self.position_of[new] = len(self.used_ids) + torch.arange(len(new))
            self.used_ids = torch.cat([self.used_ids, new])
            self.rows = torch.nn.Parameter(self.table.detach()[self.used_ids])
            self.grad_buffer = torch.zeros_like(self.rows)
        return len(new)

    def state(self) -> dict[str, torch.Tensor]:
        """All that differs from the table: the rows in use, and what is to be done to others."""
        factor = torch.tensor(self.unused_factor, dtype=torch.float64)
        return {"used_ids": self.used_ids, "rows": self.rows.detach(), "unused_factor": factor}

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        """Go on from a `state` of an embedding that had the same table; ValueError for others."""
        ids, rows = state["used_ids"], state["rows"]
        is_inside = ids.dtype == torch.long and bool(((ids >= 0) & (ids < len(self.table))).all())
        if not is_inside or rows.shape != (len(torch.unique(ids)), self.table.shape[1]):
            raise ValueError("words whose rows are not those of the table")
        self.add_ids(ids)
        self.used_ids = ids.clone()
        self.position_of[self.used_ids] = torch.arange(len(self.used_ids))
        self.rows.data.copy_(rows)
        self.unused_factor = float(state["unused_factor"])

    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        """Embeddings of ``ids``, one more axis at the end."""
        if not torch.is_grad_enabled():
            return F.embedding(ids, self.table)
        embeddings: torch.Tensor = _Lookup.apply(self.rows, self.position_of[ids], self)  # type: ignore[no-untyped-call]
        return embeddings

    def gradient_at(self, positions: torch.Tensor) -> torch.Tensor:
        """The gradient of the rows, to be added to at these positions."""
        self.rows.grad = self.grad_buffer
        self.touched.append(positions)
        return self.grad_buffer

    def zero_grad(self) -> None:
        """Reset the gradient."""
        self.rows.grad = None
        if self.touched:
            self.grad_buffer.index_fill_(0, torch.cat(self.touched), 0.0)
            self.touched = []

    def note_decay(self, groups: list[dict[str, Any]]) -> None:
        """Note the weight decay that a step of AdamW has to apply to the other rows."""
        (own,) = (group for group in groups if any(p is self.rows for p in group["params"]))
        self.unused_factor *= 1.0 - own["lr"] * own["weight_decay"]

    def write_back(self) -> None:
        """Bring the whole table up to date."""
        with torch.no_grad():
            if self.unused_factor != 1.0:
                self.table.mul_(self.unused_factor)
            self.table[self.used_ids] = self.rows
        self.unused_factor = 1.0


def distinct_ids(ids: IntArray, n_words: int) -> torch.Tensor:
    """The ids that occur, ascending, without a copy of all of them."""
    occurs = np.zeros(n_words, bool)
    for begin in range(0, len(ids), _READ_TOGETHER):
        occurs[ids[begin : begin + _READ_TOGETHER]] = True
    return torch.from_numpy(np.flatnonzero(occurs))


class _Lookup(torch.autograd.Function):
    """A look-up whose backward pass adds to the gradient that `UsedRowsEmbedding` keeps."""

    @staticmethod
    def forward(
        ctx: Any, rows: torch.Tensor, positions: torch.Tensor, embedding: UsedRowsEmbedding
    ) -> torch.Tensor:
        ctx.embedding = embedding
        ctx.save_for_backward(positions)
        return F.embedding(positions, rows)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[None, None, None]:
        (positions,) = ctx.saved_tensors
        (gradient,) = gradients
        at = positions.flatten()
        ctx.embedding.gradient_at(at).index_add_(0, at, gradient.flatten(0, -2))
        return None, None, None
