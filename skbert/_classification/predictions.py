"""What a classifier's scores mean: one small object per kind of target.

Depends on numpy, scipy and the tasks; knows no estimator.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.special import expit, softmax

from skbert._arrays import Array
from skbert._classification.task import MultiLabel
from skbert._estimator.fitted import Fitted

__all__ = ["Predictions", "predictions_of"]


class Predictions(Protocol):
    """The scores of some rows, ``(n_samples, n_classes)``, and what they mean."""

    def labels(self) -> Array:
        """What is predicted of each row."""

    def probabilities(self) -> Array:
        """The probability of each class, ``(n_samples, n_classes)``."""

    def decisions(self) -> Array:
        """The score of each class; one column is left of two that say the same."""


@dataclass(frozen=True)
class _OneLabel:
    """The logits of classes that exclude each other."""

    scores: Array
    classes: Array

    def labels(self) -> Array:
        return np.asarray(self.classes[self.scores.argmax(axis=1)])

    def probabilities(self) -> Array:
        return np.asarray(softmax(self.scores, axis=1))

    def decisions(self) -> Array:
        scores = self.scores
        return np.asarray(scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores)


@dataclass(frozen=True)
class _AnyLabels:
    """The logits of labels, each by itself."""

    scores: Array
    thresholds: Array

    def labels(self) -> Array:
        return np.asarray((self.probabilities() >= self.thresholds).astype(np.int64))

    def probabilities(self) -> Array:
        return np.asarray(expit(self.scores))

    def decisions(self) -> Array:
        return np.asarray(self.scores)


def predictions_of(fitted: Fitted, scores: Array) -> Predictions:
    """What scores mean for a fitted classifier."""
    learned = fitted.attributes
    if isinstance(fitted.task, MultiLabel):
        return _AnyLabels(scores, learned["thresholds_"])
    return _OneLabel(scores, learned["classes_"])
