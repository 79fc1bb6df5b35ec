"""What is held out, what was best on it, and when to stop.

Depends on numpy and torch; knows no model but as a bag of weights.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from skbert._arrays import IntArray, numbers_within

__all__ = ["Watch", "hold_out"]


def hold_out(
    n_samples: int, fraction: float, rng: np.random.Generator, strata: IntArray | None = None
) -> tuple[IntArray, IntArray]:
    """Samples to learn from and samples held out, both ascending.

    With ``strata``, ``(n_samples,)``, each stratum gives about its share. At least one sample
    is on either side.
    """
    order = rng.permutation(n_samples)
    if strata is not None:
        grouped = order[np.argsort(strata[order], kind="stable")]
        counts = np.bincount(strata)
        place = numbers_within(counts)
        share = (place + rng.random(len(counts))[strata[grouped]]) / counts[strata[grouped]]
        order = grouped[np.argsort(share, kind="stable")]
    n_out = min(max(1, round(fraction * n_samples)), n_samples - 1)
    return np.sort(order[n_out:]), np.sort(order[:n_out])


class Watch:
    """Keeps the best weights seen, in memory, and says when patience has run out."""

    def __init__(self, model: torch.nn.Module, patience: int | None) -> None:
        self.model = model
        self.patience = math.inf if patience is None else patience
        self.best = math.inf
        self.waited = 0
        self.weights: dict[str, Any] = {}

    def note(self, loss: float) -> None:
        """Note the loss after one more pass."""
        if not loss < self.best:  # NaN is no improvement
            self.waited += 1
            return
        self.best, self.waited = loss, 0
        for name, tensor in self.model.state_dict().items():
            self.weights.setdefault(name, torch.empty_like(tensor)).copy_(tensor)

    @property
    def exhausted(self) -> bool:
        """Whether it is time to stop."""
        return self.waited >= self.patience

    def restore(self) -> None:
        """Put the best weights back."""
        if self.weights:
            self.model.load_state_dict(self.weights)
