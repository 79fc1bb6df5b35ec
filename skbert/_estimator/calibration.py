"""CalibratedEstimator: a temperature, by which logits are divided, fitted on rows held out.

Depends on scipy and on the course of a fit; knows no task by name.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from scipy.optimize import minimize_scalar

from skbert._core.infer import infer
from skbert._core.items import one_item_each
from skbert._core.models.output import linear_output, scale_output
from skbert._core.runtime.device import Precision
from skbert._core.text.tokens import Ragged
from skbert._estimator.checks import is_positive
from skbert._estimator.conformal import ConformalEstimator
from skbert._estimator.fit_data import FitData
from skbert._estimator.fitted import Fitted, Learned
from skbert._estimator.held_out import HeldOut, loss_of
from skbert._estimator.run import Run

__all__ = ["CalibratedEstimator"]


@dataclass(eq=False, repr=False, kw_only=True)
class CalibratedEstimator(ConformalEstimator):
    """Base of the estimators that predict probabilities; use one of its subclasses."""

    calibrate: bool = False

    temperature_ = Learned[float](is_positive, optional=True, only_says=True)

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **ConformalEstimator._parameter_constraints,
        "calibrate": ["boolean"],
    }
    _of_held_out: ClassVar[tuple[str, ...]] = (*ConformalEstimator._of_held_out, "calibrate")

    def _prepare(
        self, data: FitData, previous: Fitted | None, precision: Precision, epochs: int | None,
        labels: dict[str, Any], seed: int,
    ) -> tuple[Fitted, Run]:  # fmt: skip
        fitted, run = super()._prepare(data, previous, precision, epochs, labels, seed)
        if self.calibrate and run.held_out is not None:
            linear_output(run.network)  # which is scaled after training
        return fitted, run

    def _finish(self, run: Run, attributes: dict[str, Any]) -> dict[str, Any]:
        finished = super()._finish(run, attributes)
        if run.held_out is None or not self.calibrate:
            return {**finished, "temperature_": 1.0}
        outputs = infer(run.network, run.held_out.items, run.precision)
        temperature = _best_temperature(outputs, run.held_out, run.precision)
        scale_output(run.network, 1 / temperature)
        return {**finished, "temperature_": temperature}


def _best_temperature(outputs: Ragged, held_out: HeldOut, precision: Precision) -> float:
    """Temperature with the lowest loss on the rows held out, between 1/20 and 20."""
    task: Any = held_out.task
    items, pools_scores = held_out.items, getattr(task, "pools_scores", False)
    if hasattr(task, "label_smoothing"):
        held_out = replace(held_out, task=replace(task, label_smoothing=0.0))
    if pools_scores:
        held_out = replace(held_out, items=one_item_each(items))

    def loss(log_temperature: float) -> float:
        cooled = Ragged(outputs.values / math.exp(log_temperature), outputs.starts)
        if pools_scores:  # of the windows of a row, as it is predicted
            scores = task.decode(cooled, items)
            cooled = Ragged(scores, np.arange(len(scores) + 1))
        return loss_of(cooled, held_out, precision)

    best = minimize_scalar(loss, bounds=(-math.log(20), math.log(20)), method="bounded")
    return math.exp(best.x)
