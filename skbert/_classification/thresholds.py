"""Thresholds of labels, chosen on rows held out. Depends on scikit-learn's metrics."""

from __future__ import annotations

import numpy as np
from sklearn.metrics import precision_recall_curve

from skbert._arrays import Array
from skbert._core.scores import expit

__all__ = ["best_thresholds"]


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
