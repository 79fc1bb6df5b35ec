"""TrainingPlan: what to train, as an estimator understands ``y``.

Depends on the task of ``_core``, and on the rows that texts of labels make.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from skbert._arrays import Array, FloatArray, IntArray
from skbert._core.task import Task
from skbert._core.training.loop import DrawItems, as_they_are
from skbert._estimator.label_rows import LabelRows

__all__ = ["Metric", "TrainingPlan", "Tune"]

# Called with what the task decodes for the rows held out and their row numbers: the first returns
# their score, the second attributes that are tuned on them.
Metric = Callable[[Array, Array], float]
Tune = Callable[[Array, Array], dict[str, Any]]


class TrainingPlan(NamedTuple):
    """What to train, as understood from ``y``: the task, its targets, and the attributes learned.

    Without a metric only the loss is computed on the rows held out.
    """

    task: Task
    targets: Any  # what the task's encode takes as y
    attributes: dict[str, Any]  # learned from y, by name
    metric: Metric | None
    strata: Array | None = None  # (n_samples,) codes to hold out evenly by
    weights: Array | None = None  # (n_samples,) of the loss; None: all alike
    tune: Tune | None = None  # after training
    conform: Tune | None = None  # after that: what is kept of the rows held out, for sets
    draw: DrawItems = as_they_are
    output_map: IntArray | None = None  # index of each old output among the new; None: unchanged
    # By what the outputs of the fit before are to be multiplied, and what is added; None: nothing.
    output_scale: tuple[FloatArray, FloatArray] | None = None
    # The plan to train by, with what y is standardised by learned from these rows only.
    learned_from: Callable[[IntArray], TrainingPlan] | None = None
    label_rows: LabelRows | None = None  # to train on beside X
