"""What a classifier tunes on held-out rows after training: a temperature, thresholds.

Depends on scipy, scikit-learn's metrics and the rows held out; knows no task by name.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import expit
from sklearn.metrics import precision_recall_curve

from skbert._arrays import Array
from skbert._core.runtime.device import Precision
from skbert._core.text.tokens import Ragged
from skbert._estimator.held_out import HeldOut, loss_of

__all__ = ["best_thresholds", "fit_temperature"]


def fit_temperature(outputs: Ragged, held_out: HeldOut, precision: Precision) -> float:
    """Temperature with the lowest loss on the held-out items, between 1/20 and 20."""
    task = replace(held_out.task, label_smoothing=0.0)  # type: ignore[type-var]
    plain = replace(held_out, task=task)

    def loss(log_temperature: float) -> float:
        cooled = outputs.values / math.exp(log_temperature)
        return loss_of(Ragged(cooled, outputs.starts), plain, precision)

    best = minimize_scalar(loss, bounds=(-math.log(20), math.log(20)), method="bounded")
    return math.exp(best.x)


def best_thresholds(present: Array, scores: Array) -> Array:
    """For each label the threshold with the best F1; 0.5 for a label never present.

    It lies midway to the next lower score, so that no rounding in the last bits crosses it.
    """
    thresholds = np.full(present.shape[1], 0.5)
    for label in np.flatnonzero(present.any(axis=0)):
        rounded = np.round(scores[:, label].astype(np.float64), 3)
        precision, recall, steps = precision_recall_curve(present[:, label], rounded)
        f1 = 2 * precision * recall / np.maximum(precision + recall, 1e-12)
        best = f1[:-1].argmax()
        below = steps[best - 1] if best else steps[best] - 1.0
        thresholds[label] = expit((steps[best] + below) / 2)
    return thresholds
