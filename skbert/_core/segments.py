"""Softmax over segments of different lengths: the tokens of an item, or its rows.

Depends on torch only.
"""

from __future__ import annotations

import torch

__all__ = ["log_softmax_within"]


def log_softmax_within(logits: torch.Tensor, counts: torch.Tensor, max_count: int) -> torch.Tensor:
    """Log-softmax of each column within each segment.

    ``logits`` is ``(n, k)``, ``counts`` is ``(n_segments,)``, none of them 0, and their sum is
    ``n``; ``max_count`` is at least the largest of them. The result has the shape of ``logits``.
    """
    owner = torch.repeat_interleave(
        torch.arange(len(counts), device=counts.device), counts, output_size=len(logits)
    )
    starts = torch.cumsum(counts, 0) - counts
    index = torch.arange(len(owner), device=owner.device) - starts[owner]
    shape = (len(counts), max_count, logits.shape[1])
    table = logits.new_full(shape, -torch.inf)
    table = table.index_put((owner, index), logits)
    return table.log_softmax(dim=1)[owner, index]
