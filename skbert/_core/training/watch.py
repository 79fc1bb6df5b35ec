"""Held-out samples, the best weights on them, and early stopping.

Depends on numpy and torch; knows of a model its weights only.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from skbert._arrays import IntArray, arange_within

__all__ = ["EarlyStopping", "hold_out", "hold_out_groups"]


def hold_out(
    n_samples: int, fraction: float, rng: np.random.Generator, strata: IntArray | None = None
) -> tuple[IntArray, IntArray]:
    """Samples to train on and samples held out, both ascending.

    With ``strata``, ``(n_samples,)``, each stratum gives about its share, and its last sample
    only after those of all others: nothing is learned of a class without samples. At least one
    sample is on either side.
    """
    order = rng.permutation(n_samples)
    if strata is not None:
        # There is no draw for a stratum without samples.
        _, strata, counts = np.unique(strata, return_inverse=True, return_counts=True)
        grouped = order[np.argsort(strata[order], kind="stable")]
        place = arange_within(counts)
        share = (place + rng.random(len(counts))[strata[grouped]]) / counts[strata[grouped]]
        is_last = place == counts[strata[grouped]] - 1
        order = grouped[np.argsort(share + is_last, kind="stable")]
    n_out = _number_held_out(n_samples, fraction)
    return np.sort(order[n_out:]), np.sort(order[:n_out])


def hold_out_groups(
    groups: IntArray, fraction: float, rng: np.random.Generator
) -> tuple[IntArray, IntArray]:
    """Samples to train on and samples held out, each group on one side; both ascending.

    ``groups``, ``(n_samples,)``, has the code of at least two groups. In a random order, a group
    is held out if that brings the number of samples held out nearer to the fraction.
    """
    sizes = np.bincount(groups)
    wanted, n_out = _number_held_out(len(groups), fraction), 0
    is_out = np.zeros(len(sizes), bool)
    for group in rng.permutation(len(sizes)):
        if abs(n_out + sizes[group] - wanted) < abs(n_out - wanted):
            is_out[group] = True
            n_out += sizes[group]
    if is_out.all() or not is_out.any():
        is_out[sizes.argmin()] ^= True
    is_held_out = is_out[groups]
    return np.flatnonzero(~is_held_out), np.flatnonzero(is_held_out)


def _number_held_out(n_samples: int, fraction: float) -> int:
    """How many samples to hold out, so that at least one is on either side."""
    return min(max(1, round(fraction * n_samples)), n_samples - 1)


class EarlyStopping:
    """Keeps the best weights in memory, and says when patience has run out.

    Attributes
    ----------
    best : float
        The best score so far.
    """

    def __init__(self, model: torch.nn.Module, patience: int | None) -> None:
        self._model = model
        self._patience = math.inf if patience is None else patience
        self.best = -math.inf
        self._waited = 0
        self._weights: dict[str, Any] = {}

    def note(self, score: float) -> None:
        """Note the score after one more pass, of which a larger one is better."""
        if not score > self.best:  # NaN is no improvement
            self._waited += 1
            return
        self.best, self._waited = score, 0
        for name, tensor in self._model.state_dict().items():
            self._weights.setdefault(name, torch.empty_like(tensor)).copy_(tensor)

    @property
    def is_exhausted(self) -> bool:
        """Whether no pass of the last ``patience`` ones was an improvement."""
        return self._waited >= self._patience

    def state(self) -> tuple[float, int, dict[str, Any]]:
        """The best score, how many passes it is ago, and its weights."""
        return self.best, self._waited, self._weights

    def load_state(self, best: float, waited: int, weights: dict[str, Any]) -> None:
        """Go on from a `state`."""
        self.best, self._waited, self._weights = best, waited, weights

    def restore(self) -> None:
        """Put the best weights back."""
        if self._weights:
            self._model.load_state_dict(self._weights)
