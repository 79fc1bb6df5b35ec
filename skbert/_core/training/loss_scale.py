"""LossScale: the factor on the loss in float16. Depends on the precision only."""

from __future__ import annotations

from collections.abc import Sequence

from skbert._core.runtime.device import Precision

__all__ = ["LossScale"]

_FIRST = 2.0**16
_STEPS_TO_GROW = 2000  # without an overflow, after which the scale is doubled


class LossScale:
    """The factor on the loss that keeps small gradients in the range of float16.

    Attributes
    ----------
    value : float
        1 in precisions that need none.
    """

    def __init__(self, precision: Precision) -> None:
        self.value = _FIRST if precision.needs_loss_scale else 1.0
        self._is_dynamic = precision.needs_loss_scale
        self._n_steps = 0  # without an overflow

    def state(self) -> tuple[float, int]:
        """All that changes."""
        return self.value, self._n_steps

    def load_state(self, state: Sequence[float]) -> None:
        """Go on from a `state`."""
        self.value, self._n_steps = float(state[0]), int(state[1])

    def note_step(self) -> None:
        """Note a step without an overflow; after many of them the scale is doubled."""
        self._n_steps += 1
        if self._is_dynamic and self._n_steps % _STEPS_TO_GROW == 0:
            self.value *= 2.0

    def note_overflow(self) -> None:
        """Halve the scale."""
        self.value, self._n_steps = self.value / 2.0, 0
