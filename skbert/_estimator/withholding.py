"""Predictions that are withheld where the best probability is low. Depends on numpy."""

from __future__ import annotations

import numpy as np

from skbert._arrays import Array, FloatArray
from skbert._validation.numbers import check_share

__all__ = ["check_reject_below", "confidences", "withheld"]


def confidences(chances: Array, is_right: Array) -> dict[str, FloatArray]:
    """The attribute that holds the best probability of each row, and 1 where it was right."""
    return {"held_out_confidences_": np.stack([chances, is_right], axis=1).astype(np.float64)}


def check_reject_below(value: object) -> float:
    """The probability below which nothing is predicted."""
    return check_share("reject_below", value, "0.8, or what reject_threshold returns", closed=True)


def withheld(predictions: Array, chances: Array, limit: float) -> Array:
    """Predictions as objects, None where the best probability is below the limit."""
    answers = predictions.astype(object)
    answers[chances.astype(np.float64) < limit] = None
    return answers
