"""What y says of each row, and what to train for it: one small object per kind of target.

Depends on numpy, the tasks, and the checks of y and weights; knows no estimator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from skbert._arrays import Array, IntArray
from skbert._classification.classes import codes_of, grow_classes
from skbert._classification.predictions import measure_classes, measure_labels
from skbert._classification.task import MultiLabel, SingleLabel, mean_factors
from skbert._classification.thresholds import best_thresholds
from skbert._core.text.tokens import LongText
from skbert._estimator.plan import TrainingPlan
from skbert._validation.targets import learned_names
from skbert._validation.weights import check_class_weight, rescale_weights

__all__ = [
    "MOST_WEIGHT",
    "ONE_LABEL",
    "IndicatorTargets",
    "SingleTargets",
    "SoftTargets",
    "TargetSettings",
    "Targets",
    "indicator_form",
    "is_one_hot",
    "learned_of_indicator",
]

MOST_WEIGHT = 2.0**40  # a factor on a label beside which float32 loses the rows without it
ONE_LABEL = "one label per row"  # what a row of y holds, in words


class TargetSettings(NamedTuple):
    """The parameters that say how targets are learned."""

    max_length: int
    long_text: LongText
    label_smoothing: float
    class_weight: Mapping[Any, float] | str | None
    tune_thresholds: bool


class Targets(Protocol):
    """What y says of each row."""

    @property
    def form(self) -> str:
        """What a row of y holds, in words."""

    @property
    def truth(self) -> Array:
        """The labels in the form in which they are predicted."""

    def plan(
        self, settings: TargetSettings, weight: Array | None, learned: Mapping[str, Any] | None
    ) -> TrainingPlan:
        """What to train; ``learned`` are the attributes of the fit that this one continues."""


@dataclass(frozen=True)
class SingleTargets:
    """One label per row, ``(n_samples,)``, and further classes there will be."""

    truth: Array
    more: Array

    form: ClassVar[str] = ONE_LABEL

    def plan(
        self, settings: TargetSettings, weight: Array | None, learned: Mapping[str, Any] | None
    ) -> TrainingPlan:
        """One class out of all those given or known."""
        classes, output_map = grow_classes(self.truth, self.more, learned)
        codes = codes_of(self.truth, classes)
        per_class = check_class_weight(settings.class_weight, classes, codes, weight)
        if per_class is not None:
            weight = rescale_weights(per_class[codes] * (1.0 if weight is None else weight))
        return _plan_of_one_label(settings, classes, codes, codes, weight, output_map)


@dataclass(frozen=True)
class SoftTargets:
    """Probabilities of classes, ``(n_samples, n_columns)``, and the class of each column."""

    shares: Array
    names: Array

    form: ClassVar[str] = ONE_LABEL

    @property
    def truth(self) -> Array:
        """The most probable label of each row, in the order of the columns if two are."""
        return np.asarray(self.names[self.shares.argmax(axis=1)])

    def plan(
        self, settings: TargetSettings, weight: Array | None, learned: Mapping[str, Any] | None
    ) -> TrainingPlan:
        """The same as if each row were there once with each label, weighted by its probability."""
        if is_one_hot(self.shares):
            return SingleTargets(self.truth, self.names).plan(settings, weight, learned)
        classes, output_map = grow_classes(self.names, self.names, learned)
        shares = np.zeros((len(self.shares), len(classes)))
        shares[:, codes_of(self.names, classes)] = self.shares
        best = codes_of(self.truth, classes)
        split = shares if weight is None else shares * weight[:, None]
        codes = np.broadcast_to(np.arange(len(classes)), split.shape)
        per_class = check_class_weight(
            settings.class_weight, classes, codes.ravel(), split.ravel()
        )
        if per_class is not None:
            split = split * per_class
            weight = rescale_weights(split.sum(axis=1))
            shares = shares * per_class
            shares /= np.maximum(shares.sum(axis=1, keepdims=True), np.finfo(float).tiny)
        return _plan_of_one_label(settings, classes, shares, best, weight, output_map)


def is_one_hot(shares: Array) -> bool:
    """Whether every row is a 1 among zeros."""
    return bool(((shares == 0) | (shares == 1)).all() and (shares.sum(axis=1) == 1).all())


def _plan_of_one_label(
    settings: TargetSettings, classes: Array, targets: Array, best: IntArray,
    weight: Array | None, output_map: IntArray | None,
) -> TrainingPlan:  # fmt: skip
    """The plan for classes that exclude each other; ``best`` are the codes of the true ones."""
    task = SingleLabel(
        len(classes), settings.max_length, settings.long_text, settings.label_smoothing
    )

    def accuracy(scores: Array, rows: Array) -> float:
        return float((scores.argmax(axis=1) == best[rows]).mean())

    def conform(scores: Array, rows: Array) -> dict[str, Array]:
        return measure_classes(scores, best[rows])

    learned = {"classes_": classes, "temperature_": 1.0}
    return TrainingPlan(
        task, targets, learned, accuracy, best, weight, conform=conform, output_map=output_map
    )


@dataclass(frozen=True)
class IndicatorTargets:
    """Any number of labels per row, ``(n_samples, n_classes)`` of 0 and 1, and their names."""

    truth: Array
    names: tuple[str, ...] | None = None

    @property
    def form(self) -> str:
        """What a row of y holds, in words."""
        return indicator_form(self.truth.shape[1])

    def plan(
        self, settings: TargetSettings, weight: Array | None, learned: Mapping[str, Any] | None
    ) -> TrainingPlan:
        """Each label by itself."""
        present, n_classes = self.truth, self.truth.shape[1]
        factors = self._factors(settings.class_weight, weight)
        task = MultiLabel(
            n_classes, settings.max_length, settings.long_text, settings.label_smoothing, factors
        )
        if factors is not None:
            means = mean_factors(task, present)
            weight = rescale_weights(means if weight is None else means * weight)

        def subset_accuracy(scores: Array, rows: Array) -> float:
            return float(((scores > 0) == present[rows]).all(axis=1).mean())

        def thresholds(scores: Array, rows: Array) -> dict[str, Array]:
            return {"thresholds_": best_thresholds(present[rows], scores)}

        def conform(scores: Array, rows: Array) -> dict[str, Array]:
            return measure_labels(scores, present[rows])

        tune = thresholds if settings.tune_thresholds else None
        targets = present.astype(np.float64)
        attributes = learned_of_indicator(n_classes) | learned_names(self.names)
        if learned is not None:
            attributes["thresholds_"] = learned.get("thresholds_", attributes["thresholds_"])
        return TrainingPlan(
            task, targets, attributes, subset_accuracy, None, weight, tune, conform
        )

    def _factors(
        self, factors: Mapping[Any, float] | str | None, weight: Array | None
    ) -> tuple[float, ...] | None:
        """The factor on each label where it is present."""
        present, classes = self.truth, np.arange(self.truth.shape[1])
        if factors == "balanced":
            weights = np.ones(len(present)) if weight is None else weight
            total = weights.sum()
            least = 1e-9 * total + np.finfo(float).tiny
            per_label = total / (2 * np.maximum(weights @ present, least))
            factors = dict(enumerate(np.where(present.any(axis=0), per_label, 1.0)))
        per_class = check_class_weight(factors, classes, present.argmax(axis=1), weight)
        return None if per_class is None else tuple(np.minimum(per_class, MOST_WEIGHT).tolist())


def indicator_form(n_columns: int) -> str:
    """What a row of an indicator matrix holds, in words."""
    return f"an indicator matrix of {n_columns} columns"


def learned_of_indicator(n_classes: int) -> dict[str, Any]:
    """What a fit on an indicator matrix learns before it trains."""
    return {
        "classes_": np.arange(n_classes),
        "temperature_": 1.0,
        "thresholds_": np.full(n_classes, 0.5),
    }
