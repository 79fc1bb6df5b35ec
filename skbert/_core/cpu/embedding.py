"""Word embeddings while they are trained: only the rows that the training texts use.

A corpus meets some thousand words of thirty thousand, and a batch some hundred. Autograd would
fill a fresh matrix of the size of the whole table with zeros at every step, and AdamW would pass
over that table and its two moments, which on a CPU costs more than the layers' arithmetic on
short texts. Here the rows in use are a table of their own, with a gradient that is kept between
steps and cleared by row. All that AdamW does to the other rows, whose gradients are zero, is to
shrink them; that is done at once where the table is put together. Depends on torch only.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

__all__ = ["RowGradients"]


class RowGradients:
    """Looks words up in an embedding table, and trains the rows in use.

    Parameters
    ----------
    table : Parameter of shape (n_words, size)
        The whole table, which is up to date after `put_together`.
    """

    def __init__(self, table: torch.nn.Parameter) -> None:
        self.table = table
        self.used = torch.empty(0, dtype=torch.long)  # ids of the rows in use
        self.place = torch.full((len(table),), -1)  # of each id among them
        self.left = 1.0  # of the other rows, since the table was put together
        self.rows = torch.nn.Parameter(table.detach()[:0])
        self.kept = torch.zeros_like(self.rows)
        self.touched: list[torch.Tensor] = []

    def cover(self, ids: torch.Tensor) -> int:
        """Have these ids in use, too; the table must be whole. Returns how many are new."""
        ids = torch.unique(ids)
        new = ids[self.place[ids] < 0]
        if len(new):
            self.place[new] = len(self.used) + torch.arange(len(new))
            self.used = torch.cat([self.used, new])
            self.rows = torch.nn.Parameter(self.table.detach()[self.used])
            self.kept = torch.zeros_like(self.rows)
        return len(new)

    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        """Embeddings of ``ids``, one more axis at the end."""
        if not torch.is_grad_enabled():
            return F.embedding(ids, self.table)
        found: torch.Tensor = _Lookup.apply(self.rows, self.place[ids], self)  # type: ignore[no-untyped-call]
        return found

    def add(self, places: torch.Tensor, gradient: torch.Tensor) -> None:
        """Add the gradient of some rows to that of the table."""
        self.rows.grad = self.kept
        self.kept.index_add_(0, places, gradient)
        self.touched.append(places)

    def clear(self) -> None:
        """Forget the gradient."""
        self.rows.grad = None
        if self.touched:
            self.kept.index_fill_(0, torch.cat(self.touched), 0.0)
            self.touched = []

    def decay(self, groups: list[dict[str, Any]]) -> None:
        """Note what a step of AdamW on these groups would have done to the other rows."""
        (own,) = (group for group in groups if any(p is self.rows for p in group["params"]))
        self.left *= 1.0 - own["lr"] * own["weight_decay"]

    def put_together(self) -> None:
        """Bring the whole table up to date."""
        with torch.no_grad():
            if self.left != 1.0:
                self.table.mul_(self.left)
            self.table[self.used] = self.rows
        self.left = 1.0


class _Lookup(torch.autograd.Function):
    """An embedding whose backward pass hands its rows to their keeper."""

    @staticmethod
    def forward(
        ctx: Any, rows: torch.Tensor, places: torch.Tensor, keeper: RowGradients
    ) -> torch.Tensor:
        ctx.keeper = keeper
        ctx.save_for_backward(places)
        return F.embedding(places, rows)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[None, None, None]:
        (places,) = ctx.saved_tensors
        (gradient,) = gradients
        ctx.keeper.add(places.flatten(), gradient.flatten(0, -2))
        return None, None, None
