"""Several columns of classes: what y says of each row, and what to train for it.

Depends on numpy, the tasks, and the checks of weights; knows no estimator.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from skbert._arrays import Array, IntArray
from skbert._classification.classes import codes_of, grow_classes
from skbert._classification.predictions import measure_columns
from skbert._classification.targets import MOST_WEIGHT, TargetSettings
from skbert._classification.task import SeveralLabels, split, starts_of
from skbert._estimator.plan import TrainingPlan
from skbert._validation.targets import learned_names
from skbert._validation.weights import check_class_weight, rescale_weights
from skbert.exceptions import InputError

__all__ = ["SeveralTargets", "several_form"]


def several_form(n_columns: int) -> str:
    """What a row of several columns of classes holds, in words."""
    return f"{n_columns} columns of classes"


@dataclass(frozen=True)
class SeveralTargets:
    """One class of each of several columns per row, and the names of the columns."""

    columns: list[Array]  # (n_samples,) each
    names: tuple[str, ...] | None

    def __post_init__(self) -> None:
        names = self.names or ()
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise InputError(
                f"y has the column {twice!r} more than once. Predictions have the names of the "
                "columns: give each a name of its own."
            )

    @property
    def form(self) -> str:
        """What a row of y holds, in words."""
        return several_form(len(self.columns))

    @property
    def truth(self) -> Array:
        """All columns as objects, for str and numbers may stand side by side."""
        return np.stack([column.astype(object) for column in self.columns], axis=1)

    def plan(
        self, settings: TargetSettings, weight: Array | None, learned: Mapping[str, Any] | None
    ) -> TrainingPlan:
        """One class out of those of each column, all from one vector."""
        olds = [None] * len(self.columns) if learned is None else learned["classes_"]
        grown = [
            grow_classes(labels, labels[:0], None if old is None else {"classes_": old})
            for labels, old in zip(self.columns, olds, strict=True)
        ]
        classes = [each for each, _ in grown]
        pairs = zip(self.columns, classes, strict=True)
        codes = np.stack([codes_of(labels, each) for labels, each in pairs], axis=1)
        per_class = self._class_weights(settings.class_weight, classes, codes, weight)
        sizes = tuple(map(len, classes))
        task = SeveralLabels(
            sum(sizes), settings.max_length, settings.long_text, settings.label_smoothing, sizes,
            per_class,
        )  # fmt: skip

        def mean_accuracy(scores: Array, rows: Array) -> float:
            best = [part.argmax(axis=1) for part in split(task, scores)]
            return float((np.stack(best, axis=1) == codes[rows]).mean())

        def conform(scores: Array, rows: Array) -> dict[str, Array]:
            return measure_columns(split(task, scores), codes[rows])

        maps = [start + old for start, (_, old) in zip(starts_of(task), grown, strict=True)
                if old is not None]  # fmt: skip
        return TrainingPlan(
            task,
            codes,
            {"classes_": classes, "temperature_": 1.0, **learned_names(self.names)},
            mean_accuracy,
            _strata(codes),
            _weights_of_rows(task, codes, weight),
            conform=conform,
            output_map=np.concatenate(maps) if maps else None,
        )

    def _class_weights(
        self, class_weight: Mapping[Any, Any] | str | None, classes: Sequence[Array],
        codes: Array, weight: Array | None,
    ) -> tuple[float, ...] | None:  # fmt: skip
        """The factor on each class of each column; None for no factors."""
        labels: Sequence[Any] = self.names or range(len(self.columns))
        if class_weight is None:
            return None
        if isinstance(class_weight, str):
            class_weight = dict.fromkeys(labels, class_weight)
        _check_columns(class_weight, labels)
        factors = []
        for label, known, column in zip(labels, classes, codes.T, strict=True):
            found = check_class_weight(class_weight.get(label), known, column, weight)
            factors.append(np.ones(len(known)) if found is None else found)
        return tuple(np.minimum(np.concatenate(factors), MOST_WEIGHT).tolist())


def _check_columns(class_weight: Mapping[Any, Any], labels: Sequence[Any]) -> None:
    """Raise where the keys are no columns of y, or what they stand for no weights of classes."""
    odd = [key for key in class_weight if key not in labels]
    odd += [
        key
        for key, value in class_weight.items()
        if not (value is None or value == "balanced" or isinstance(value, Mapping))
    ]
    if odd:
        raise InputError(
            f"class_weight[{odd[0]!r}] is {class_weight[odd[0]]!r:.80}, but y has the columns "
            f"{reprlib.repr([*labels])}, and class_weight must give each a dict of its own, or "
            f"'balanced'. Type class_weight={{{labels[0]!r}: 'balanced'}}."
        )


def _weights_of_rows(task: SeveralLabels, codes: Array, weight: Array | None) -> Array | None:
    """The weights of rows, times the mean factor on their classes."""
    if task.class_weights is None:
        return weight
    factors = np.asarray(task.class_weights)[codes + starts_of(task)].mean(axis=1)
    return rescale_weights(factors if weight is None else factors * weight)


def _strata(codes: Array) -> IntArray:
    """A code for rows with the same classes; those that no other row has are one stratum."""
    _, alike, counts = np.unique(codes, axis=0, return_inverse=True, return_counts=True)
    return np.where(counts[alike] > 1, alike, len(counts))
