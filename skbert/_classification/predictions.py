"""What a classifier's scores mean: one small object per kind of target.

Depends on numpy, the tasks, and on what is measured on rows held out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from skbert._arrays import Array, FloatArray, objects
from skbert._classification.classes import is_right
from skbert._classification.task import MultiLabel, SeveralLabels, split
from skbert._core.scores import expit, softmax
from skbert._estimator.checks import are_classes
from skbert._estimator.conformity import Conformity
from skbert._estimator.predicting import Known
from skbert._estimator.withholding import confidences, withheld
from skbert.exceptions import InputError

__all__ = [
    "Predictions", "are_classes_of_columns", "check_columns", "measure_classes",
    "measure_columns", "measure_labels", "predictions_of",
]  # fmt: skip


class Predictions(Protocol):
    """The scores of some rows, ``(n_samples, n_classes)``, and what they mean."""

    def labels(self) -> Any:
        """What is predicted of each row."""

    def answers(self, reject_below: float) -> Any:
        """The same as objects, None where the best probability is lower than that."""

    def sets(self, level: FloatArray) -> Any:
        """The labels of each row whose probability is at least ``1 - level``, best first."""

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

    def answers(self, reject_below: float) -> Array:
        return withheld(self.labels(), self.probabilities().max(axis=1), reject_below)

    def sets(self, level: FloatArray) -> Array:
        return _sets(self.probabilities(), self.classes, level)

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
    classes: Array
    thresholds: Array

    def labels(self) -> Array:
        return np.asarray((self.probabilities() >= self.thresholds).astype(np.int64))

    def answers(self, reject_below: float) -> Array:
        raise InputError(
            f"reject_below={reject_below!r} is for one label per row, but the estimator was "
            "fitted on several. Each label has a threshold of its own: assign thresholds_, or fit "
            "with tune_thresholds=True."
        )

    def sets(self, level: FloatArray) -> Array:
        return _sets(self.probabilities(), self.classes, level)

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
        return self._framed([column.labels() for column in self.columns])

    def answers(self, reject_below: float) -> Any:
        return self._framed([column.answers(reject_below) for column in self.columns])

    def sets(self, level: FloatArray) -> Any:
        pairs = zip(self.columns, level, strict=True)
        return self._framed([column.sets(each) for column, each in pairs])

    def _framed(self, columns: list[Array]) -> Any:
        """What is said of each column, as a frame where the columns have names."""
        if self.names is not None:
            import pandas as pd

            return pd.DataFrame(dict(zip(self.names, columns, strict=True)), index=self.index)
        if len({each.dtype.kind for each in columns}) > 1:  # numpy would turn numbers into str
            columns = [each.astype(object) for each in columns]
        return np.stack(columns, axis=1)

    def probabilities(self) -> list[Array]:
        return [column.probabilities() for column in self.columns]

    def decisions(self) -> list[Array]:
        return [column.decisions() for column in self.columns]

    def right(self, truth: Array) -> Array:
        columns = zip(self.columns, truth.T, strict=True)
        return np.asarray(np.mean([each.right(labels) for each, labels in columns], axis=0))


def _sets(chances: Array, classes: Array, level: FloatArray) -> Array:
    """The labels of each row whose probability is at least ``1 - level``, best first."""
    distances = 1 - chances.astype(np.float64)
    order = np.argsort(distances, axis=1, kind="stable")
    counts = (distances <= level).sum(axis=1)
    return objects([
        classes[codes[:n]].tolist() for codes, n in zip(order, counts, strict=True)
    ])  # fmt: skip


def measure_classes(scores: Array, codes: Array) -> dict[str, FloatArray]:
    """What is kept of rows whose classes are known: their probabilities, and what was right."""
    chances = softmax(scores, axis=1)
    return {
        **Conformity(_distances(chances, codes)).attributes(),
        **confidences(chances.max(axis=1), chances.argmax(axis=1) == codes),
    }


def measure_columns(columns: list[Array], codes: Array) -> dict[str, FloatArray]:
    """The same of rows whose class of each column is known; nothing of all columns together."""
    pairs = zip(columns, codes.T, strict=True)
    distances = [_distances(softmax(scores, axis=1), own) for scores, own in pairs]
    return Conformity(np.stack(distances, axis=1)).attributes()


def _distances(chances: Array, codes: Array) -> FloatArray:
    """1 minus the probability of the class of each row."""
    true = np.take_along_axis(chances, codes[:, None], axis=1)[:, 0]
    return 1 - true.astype(np.float64)


def measure_labels(scores: Array, present: Array) -> dict[str, FloatArray]:
    """What is kept of rows whose labels are known; the least probable one present counts."""
    distances = 1 - expit(scores).astype(np.float64)
    return Conformity(np.where(present, distances, 0.0).max(axis=1)).attributes()


def predictions_of(fitted: Known, scores: Array, X: object) -> Predictions:
    """What scores of the rows of X mean for a fitted classifier."""
    learned, task = fitted.attributes, fitted.task
    if isinstance(task, MultiLabel):
        return _AnyLabels(scores, learned["classes_"], learned["thresholds_"])
    if not isinstance(task, SeveralLabels):
        return _OneLabel(scores, learned["classes_"])
    columns = [*map(_OneLabel, split(task, scores), learned["classes_"])]
    index = getattr(X, "index", None) if hasattr(X, "iloc") else None  # a list has a method index
    return _SeveralLabels(columns, learned.get("target_names_"), index)


def are_classes_of_columns(value: object) -> bool:
    """Whether these are classes, or a list of the classes of each column."""
    return all(map(are_classes, value)) if isinstance(value, list) else are_classes(value)


def check_columns(task: object, learned: Mapping[str, Any]) -> None:
    """Refuse classes, names and conformity scores that are not those of the task's columns."""
    classes = learned["classes_"]
    sizes = task.sizes if isinstance(task, SeveralLabels) else None
    found = tuple(map(len, classes)) if isinstance(classes, list) else None
    if sizes != found:
        raise ValueError(f"classes_ of sizes {found}, where the task has {sizes}")
    columns = () if sizes is None else (len(sizes),)
    shapes = ("target_names_", 0, (len(classes),)), ("conformity_scores_", 1, columns)
    for name, axis, shape in shapes:
        if name in learned and learned[name].shape[axis:] != shape:
            raise ValueError(f"{name} of shape {learned[name].shape}, where the task has {sizes}")
