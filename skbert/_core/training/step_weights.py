"""What the samples of a step weigh, beside those of other steps. Depends on items only."""

from __future__ import annotations

import numpy as np

from skbert._arrays import IntArray
from skbert._core.items import Items

__all__ = ["StepWeights"]

# A step counts as much as so many usual ones at most: after far larger gradients AdamW takes small
# steps for long, and learns little of the other samples.
_MOST = 10.0


class StepWeights:
    """How much each step counts, where samples have weights.

    The gradients of a step are those of the weighted mean of its losses, in which a sample counts
    as one step at most, whatever its weight. Times the weight of the step they add up over a pass
    to what the weights say, as if each sample were there so many times.

    Parameters
    ----------
    items : Items
        Of all steps.
    n_in_step : int
        How many units a step has: samples, whatever they are cut into.
    """

    def __init__(self, items: Items, n_in_step: int) -> None:
        self._weights, self._base = items.weights, items.base_weights
        ratio = self._weights.sum() / self._base.sum()
        self._are_even = np.allclose(self._weights, ratio * self._base, rtol=1e-9, atol=0.0)
        if not self._are_even:
            units = items.of_units
            order = np.random.default_rng(0).permutation(len(units))
            steps = np.array_split(order, -(-len(units) // n_in_step))
            means = [self._mean(units.take(step).values) for step in steps]
            self._usual = float(np.median(means))

    def _mean(self, item_indices: IntArray) -> float:
        return float(self._weights[item_indices].sum() / self._base[item_indices].sum())

    def of_step(self, item_indices: IntArray) -> float:
        """The weight of a step, 1 of a usual one; 1 where all samples weigh the same."""
        return 1.0 if self._are_even else min(self._mean(item_indices) / self._usual, _MOST)
