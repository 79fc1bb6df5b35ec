"""What a classifier's scores mean: one small object per kind of target.

Depends on numpy, scipy and the tasks; knows no estimator.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from scipy.special import expit, softmax

from skbert._arrays import Array
from skbert._classification.classes import is_right
from skbert._classification.task import MultiLabel, SeveralLabels, split
from skbert._estimator.fitted import Fitted

__all__ = ["Predictions", "predictions_of"]


class Predictions(Protocol):
    """The scores of some rows, ``(n_samples, n_classes)``, and what they mean."""

    def labels(self) -> Any:
        """What is predicted of each row."""

    def probabilities(self) -> Any:
        """The probability of each class, ``(n_samples, n_classes)``, or a list of such arrays."""

    def decisions(self) -> Any:
        """The score of each class; one column is left of two that say the same."""

    def right(self, truth: Array) -> Array:
        """Whether the prediction of each row is what is true of it, or how much of it."""


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

    def right(self, truth: Array) -> Array:
        return is_right(truth, self.labels(), self.classes)


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

    def right(self, truth: Array) -> Array:
        return np.asarray((truth == self.labels()).all(axis=1))


@dataclass(frozen=True)
class _SeveralLabels:
    """The logits of several columns of classes."""

    columns: list[_OneLabel]
    names: Array | None
    index: Any  # of the frame of predictions; None: the row numbers

    def labels(self) -> Any:
        labels = [column.labels() for column in self.columns]
        if self.names is not None:
            import pandas as pd

            return pd.DataFrame(dict(zip(self.names, labels, strict=True)), index=self.index)
        if len({each.dtype.kind for each in labels}) > 1:  # numpy would turn numbers into str
            labels = [each.astype(object) for each in labels]
        return np.stack(labels, axis=1)

    def probabilities(self) -> list[Array]:
        return [column.probabilities() for column in self.columns]

    def decisions(self) -> list[Array]:
        return [column.decisions() for column in self.columns]

    def right(self, truth: Array) -> Array:
        columns = zip(self.columns, truth.T, strict=True)
        return np.asarray(np.mean([each.right(labels) for each, labels in columns], axis=0))


def predictions_of(fitted: Fitted, scores: Array, X: object) -> Predictions:
    """What scores of the rows of X mean for a fitted classifier."""
    learned, task = fitted.attributes, fitted.task
    if isinstance(task, MultiLabel):
        return _AnyLabels(scores, learned["thresholds_"])
    if not isinstance(task, SeveralLabels):
        return _OneLabel(scores, learned["classes_"])
    columns = [*map(_OneLabel, split(task, scores), learned["classes_"])]
    index = getattr(X, "index", None) if hasattr(X, "iloc") else None  # a list has a method index
    return _SeveralLabels(columns, learned.get("target_names_"), index)
