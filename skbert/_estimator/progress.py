"""What a fit shows while it runs: a progress bar, and scikit-learn's callbacks.

Depends on scikit-learn, ``_core`` and its neighbours; imports no estimator.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from sklearn.base import BaseEstimator

from skbert._core.models.network import copy_network
from skbert._estimator.bar import Bar
from skbert._estimator.fitted import Fitted
from skbert._estimator.held_out import best_pass
from skbert._estimator.resuming import FitCheckpoints
from skbert._estimator.run import Run

__all__ = ["Report"]


class Report:
    """Shows the steps of a run with loss and metric, and notifies callbacks of each pass.

    Parameters
    ----------
    estimator : TrainedEstimator
        The estimator being fitted; its ``verbose`` turns the bar on.
    fitted : Fitted
        What it has learned so far.
    run : Run
        The training run.
    done : FitCheckpoints
        What was done of it before.
    X, y, sample_weight : array-like
        What ``fit`` was called with, for the callbacks.
    """

    def __init__(
        self, estimator: BaseEstimator, fitted: Fitted, run: Run, done: FitCheckpoints, X: Any,
        y: Any, sample_weight: Any,
    ) -> None:  # fmt: skip
        self.bar = Bar(
            total=run.recipe.epochs * run.recipe.steps_per_pass(run.train_items),
            initial=done.n_steps,
            desc=type(estimator).__name__,
            unit="step",
            disable=not estimator.verbose,
        )
        self.shown: dict[str, str] = {}
        self.n_epochs = run.recipe.epochs
        metadata = None if sample_weight is None else {"sample_weight": sample_weight}
        self.call = {"estimator": estimator, "X": X, "y": y, "metadata": metadata}
        self.partly_fitted = fitted
        # Of each weight, before layers are frozen for the fit.
        self.are_trainable = [x.requires_grad for x in fitted.network.model.parameters()]
        self.context: Any = None
        self.subcontext: Any = None
        self.history, self.n_steps = [*done.history], done.n_steps
        self.is_finished = done.is_finished
        # The methods on_step of the callbacks that have one: they are told the loss of each step.
        self.of_steps: list[Callable[..., object]] = []

    def __enter__(self) -> Self:
        estimator = self.call["estimator"]
        if hasattr(estimator, "_init_callback_context"):
            self.context = estimator._init_callback_context(max_subtasks=self.n_epochs)
            self.context.call_on_fit_task_begin(**self.call)
            callbacks = getattr(estimator, "_skl_callbacks", [])
            self.of_steps = [each.on_step for each in callbacks if hasattr(each, "on_step")]
            if not self.is_finished:
                self._begin_epoch()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self.bar.close()

    def finish_fit(self) -> None:
        """Compare with the linear model, and tell the callbacks that the fit is finished."""
        self._compare(self.call["estimator"])
        if self.context is not None:
            self.context.call_on_fit_task_end(**self.call, reconstruction_attributes={})

    def _compare(self, estimator: BaseEstimator) -> None:
        """Say so where training scores no better than the linear model that it started from."""
        compared = hasattr(estimator, "probe_score_") and "validation_loss" in self.history[0]
        if not (estimator.verbose and compared):
            return
        best = self.history[best_pass(self.history, estimator.scoring)]["validation_score"]
        if best <= estimator.probe_score_:
            self.bar.write(
                "On the validation set a linear model on frozen features scores "
                f"{estimator.probe_score_:.4f}, and the trained model {best:.4f}: "
                "BertTransformer with a linear model would do as well.",
                file=sys.stderr,
            )

    def _state_after_epoch(self) -> dict[str, Any]:
        """Attributes with which a copy of the estimator is as if the fit ended with this pass."""
        network = copy_network(self.partly_fitted.network)
        weights = network.model.parameters()
        for weight, is_trainable in zip(weights, self.are_trainable, strict=True):
            weight.requires_grad_(is_trainable)
        passes = {"history_": [*self.history], "n_iter_": len(self.history)}
        attributes = {**self.partly_fitted.attributes, **passes}
        fitted = replace(self.partly_fitted, network=network, attributes=attributes)
        return {"_fitted": fitted}

    def _begin_epoch(self) -> None:
        self.subcontext = self.context.subcontext(task_name="pass")
        self.subcontext.call_on_fit_task_begin(**self.call)

    def on_step(self, loss: float) -> None:
        """Show one more optimizer step and its loss, and tell the callbacks that ask for it."""
        self.bar.update()
        self.bar.set_postfix(self.shown | {"loss": f"{loss:.4f}"}, refresh=False)
        self.n_steps += 1
        for on_step in self.of_steps:
            on_step(self.call["estimator"], self.subcontext, step=self.n_steps, loss=loss)

    def finish_epoch(self, record: dict[str, float], *, last: bool) -> bool:
        """Show one more pass; whether it was the last, or a callback asks to stop."""
        self.history.append(record)
        self.shown = {
            name: f"{record[name]:.4f}"
            for name in ("validation_loss", "validation_score")
            if name in record
        }
        self.bar.set_postfix(self.shown | {"loss": f"{record['loss']:.4f}"})
        if self.context is None:
            return last
        last |= self.subcontext.call_on_fit_task_end(
            **self.call, reconstruction_attributes=self._state_after_epoch
        )
        if record["epoch"] < self.n_epochs and not last:
            self._begin_epoch()
        return last
