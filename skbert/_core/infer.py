"""Inference: the head's outputs for every item, in order, within a budget of tokens.

Depends on a network and on plans; knows no task.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from skbert._core.batches import by_length, collate
from skbert._core.device import Budget, Precision, is_out_of_memory
from skbert._core.encoder import Network
from skbert._core.task import Batch, Items
from skbert._core.tokens import Ragged

__all__ = ["INFERENCE_TOKENS", "infer"]

INFERENCE_TOKENS = {"cpu": 4096, "cuda": 65536, "mps": 8192}


def infer(
    network: Network, items: Items, precision: Precision, *, features: bool = False
) -> Ragged:
    """Logits of each item as float32 (float64 in that precision), one row of the result each.

    With ``features=True`` what the head reads is returned instead of the logits. Texts of
    similar length are computed together, so that no token is padding, and the rows of an item
    need not be computed together; the order of the result is that of the items.
    """
    forward: Callable[[Batch], torch.Tensor] = network.features if features else network.logits
    budget = Budget(INFERENCE_TOKENS[network.device.type])
    rows = items.by_row()
    counts = np.ones_like(rows.sizes) if network.head.reads == "rows" else rows.sizes
    where = Ragged.of(np.arange(int(counts.sum())), counts)
    waiting = by_length(rows.sizes, budget.tokens)[::-1]
    out: np.ndarray[tuple[int, int], np.dtype[np.floating]] | None = None
    while waiting:
        chosen = waiting.pop()
        try:
            with torch.inference_mode(), precision.context():
                batch = collate(rows, chosen, network.device, precision.weights)
                values = forward(batch).to(precision.weights).cpu().numpy()
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            budget.halve(error, network.device)
            rest = np.concatenate([chosen, *waiting[::-1]])  # all that waits is planned anew
            parts = by_length(rows.sizes[rest], budget.tokens)
            waiting = [rest[part] for part in parts][::-1]
            continue
        if out is None:
            out = np.empty((len(where.values), values.shape[1]), values.dtype)
        out[where.take(chosen).values] = values
    assert out is not None, "items are never empty: X is checked first"
    return Ragged(out, where.starts[items.rows])
