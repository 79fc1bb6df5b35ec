"""What the samples of a step weigh, beside what they weigh on average. Depends on items only."""

from __future__ import annotations

import numpy as np

from skbert._arrays import IntArray
from skbert._core.items import Items

__all__ = ["StepWeights"]


class StepWeights:
    """How much each step counts, where samples have weights.

    The gradients of a step are those of the weighted mean of its losses, in which a sample counts
    as one step at most, whatever its weight. Times the weight of the step they add up over a pass
    to what the weights say, as if each sample were there so many times.

    Parameters
    ----------
    items : Items
        Of all steps.
    """

    def __init__(self, items: Items) -> None:
        self._weights = items.weights
        self._expected = items.base_weights * (items.weights.sum() / items.base_weights.sum())
        self._are_even = np.allclose(self._weights, self._expected, rtol=1e-9, atol=0.0)

    def of_step(self, item_indices: IntArray) -> float:
        """The weight of a step, 1 on average; 1 where all samples weigh the same."""
        if self._are_even:
            return 1.0
        return float(self._weights[item_indices].sum() / self._expected[item_indices].sum())
