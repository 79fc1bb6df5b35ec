"""Gradients of the word embeddings that touch only the rows of a batch.

A batch meets some hundred words of thirty thousand. Autograd would fill a fresh matrix of the
size of the whole table with zeros at every step, which on a CPU costs more than the layers'
arithmetic on short texts; here one matrix is kept and only the rows used are cleared. The
gradient is the same. Depends on torch only.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

__all__ = ["RowGradients"]


class RowGradients:
    """Looks words up in an embedding table, and keeps the table's gradient between steps."""

    def __init__(self, table: torch.nn.Parameter) -> None:
        self.table = table
        self.kept = torch.zeros_like(table)
        self.used: list[torch.Tensor] = []

    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        """Embeddings of ``ids``, one more axis at the end."""
        if not (torch.is_grad_enabled() and self.table.requires_grad):
            return F.embedding(ids, self.table)
        found: torch.Tensor = _Lookup.apply(self.table, ids, self)  # type: ignore[no-untyped-call]
        return found

    def add(self, ids: torch.Tensor, gradient: torch.Tensor) -> None:
        """Add the gradient of some rows to that of the table."""
        self.table.grad = self.kept
        self.kept.index_add_(0, ids, gradient)
        self.used.append(ids)

    def clear(self) -> None:
        """Forget the gradient."""
        self.table.grad = None
        if self.used:
            self.kept.index_fill_(0, torch.cat(self.used), 0.0)
            self.used = []


class _Lookup(torch.autograd.Function):
    """An embedding whose backward pass hands its rows to their keeper."""

    @staticmethod
    def forward(
        ctx: Any, table: torch.Tensor, ids: torch.Tensor, keeper: RowGradients
    ) -> torch.Tensor:
        ctx.keeper = keeper
        ctx.save_for_backward(ids)
        return F.embedding(ids, table)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[None, None, None]:
        (ids,) = ctx.saved_tensors
        (gradient,) = gradients
        ctx.keeper.add(ids.flatten(), gradient.flatten(0, -2))
        return None, None, None
