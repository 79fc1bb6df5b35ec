"""What y says of each row, and what to train for it: one small object per kind of target.

Depends on numpy, the tasks, and the checks of y and weights; knows no estimator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from skbert._arrays import Array
from skbert._classification.calibration import best_thresholds
from skbert._classification.classes import codes_of, indicator_columns, union_of
from skbert._classification.task import MultiLabel, SingleLabel
from skbert._core.text.tokens import LongText
from skbert._estimator.fitted import Fitted
from skbert._estimator.plan import TrainingPlan
from skbert._validation.targets import check_classes, check_labels
from skbert._validation.weights import check_class_weight, rescale_weights
from skbert.exceptions import InputError

__all__ = [
    "IndicatorTargets",
    "SingleTargets",
    "TargetSettings",
    "Targets",
    "learned_of_indicator",
    "read_targets",
]

_MOST = 2.0**40  # a factor on a label beside which float32 loses the rows without it


class TargetSettings(NamedTuple):
    """The parameters that say how targets are learned."""

    max_length: int
    long_text: LongText
    label_smoothing: float
    class_weight: Mapping[Any, float] | str | None
    tune_thresholds: bool


class Targets(Protocol):
    """What y says of each row."""

    task: ClassVar[type[SingleLabel]]  # that learns it
    form: ClassVar[str]  # of a row of y, in words

    def plan(
        self, settings: TargetSettings, weight: Array | None, known: Array | None
    ) -> TrainingPlan:
        """What to train; ``known`` are the classes of the fit that this one continues."""


@dataclass(frozen=True)
class SingleTargets:
    """One label per row, ``(n_samples,)``, and further classes there will be."""

    labels: Array
    more: Array

    task: ClassVar[type[SingleLabel]] = SingleLabel
    form: ClassVar[str] = "one label"

    def plan(
        self, settings: TargetSettings, weight: Array | None, known: Array | None
    ) -> TrainingPlan:
        """One class out of all those given or known."""
        old = self.labels[:0] if known is None else known
        classes = union_of(self.labels, self.more, old)
        codes = codes_of(self.labels, classes)
        per_class = check_class_weight(settings.class_weight, classes, codes, weight)
        if per_class is not None:
            weight = rescale_weights(per_class[codes] * (1.0 if weight is None else weight))
        output_map = None if known is None else codes_of(old, classes)
        task = SingleLabel(
            len(classes), settings.max_length, settings.long_text, settings.label_smoothing
        )

        def accuracy(scores: Array, rows: Array) -> float:
            return float((scores.argmax(axis=1) == codes[rows]).mean())

        learned = {"classes_": classes, "temperature_": 1.0}
        return TrainingPlan(task, codes, learned, accuracy, codes, weight, output_map=output_map)


@dataclass(frozen=True)
class IndicatorTargets:
    """Any number of labels per row, ``(n_samples, n_classes)`` of 0 and 1."""

    present: Array
    more: Array

    task: ClassVar[type[SingleLabel]] = MultiLabel
    form: ClassVar[str] = "several labels"

    def plan(
        self, settings: TargetSettings, weight: Array | None, known: Array | None
    ) -> TrainingPlan:
        """Each label by itself."""
        present, n_classes = self.present, self.present.shape[1]
        classes = indicator_columns(
            n_classes, n_classes if known is None else len(known), self.more
        )
        task = MultiLabel(
            n_classes, settings.max_length, settings.long_text, settings.label_smoothing,
            self._factors(settings.class_weight, classes, weight),
        )  # fmt: skip

        def subset_accuracy(scores: Array, rows: Array) -> float:
            return float(((scores > 0) == present[rows]).all(axis=1).mean())

        def thresholds(scores: Array, rows: Array) -> dict[str, Array]:
            return {"thresholds_": best_thresholds(present[rows], scores)}

        learned = learned_of_indicator(n_classes)
        tune = thresholds if settings.tune_thresholds else None
        targets = present.astype(np.float64)
        return TrainingPlan(task, targets, learned, subset_accuracy, None, weight, tune)

    def _factors(
        self, factors: Mapping[Any, float] | str | None, classes: Array, weight: Array | None
    ) -> tuple[float, ...] | None:
        """The factor on each label where it is present."""
        present = self.present
        if factors == "balanced":
            weights = np.ones(len(present)) if weight is None else weight
            per_label = weights.sum() / (2 * np.maximum(weights @ present, 1e-9))
            factors = dict(enumerate(np.where(present.any(axis=0), per_label, 1.0)))
        per_class = check_class_weight(factors, classes, present.argmax(axis=1), weight)
        return None if per_class is None else tuple(np.minimum(per_class, _MOST).tolist())


def learned_of_indicator(n_classes: int) -> dict[str, Any]:
    """What a fit on an indicator matrix learns before it trains."""
    return {
        "classes_": np.arange(n_classes),
        "temperature_": 1.0,
        "thresholds_": np.full(n_classes, 0.5),
    }


def read_targets(
    y: object, n: int, classes: object, previous: Fitted | None, estimator_name: str
) -> Targets:
    """What y says of ``n`` rows, in the form that it had in the fit that this one continues."""
    labels, is_indicator = check_labels(y, n, estimator_name=estimator_name)
    targets: Targets = (IndicatorTargets if is_indicator else SingleTargets)(
        labels, check_classes(classes)
    )
    if previous is not None and type(previous.task) is not targets.task:
        raise InputError(
            f"y holds {targets.form} per row, but the estimator was fitted on the other kind. "
            "Give the same kind of y, or fit anew with warm_start=False."
        )
    return targets
