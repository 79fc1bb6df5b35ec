"""What a fit shows while it runs: held-out scores, a progress bar, scikit-learn's callbacks.

Depends on tqdm, scikit-learn and ``_core``; imports no estimator.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from operator import itemgetter
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator
from tqdm.auto import tqdm

from skbert._arrays import Array
from skbert._core.batches import collate
from skbert._core.infer import infer, mean_loss
from skbert._core.models.network import Network, copy_network
from skbert._core.runtime.device import Precision
from skbert._core.task import Items, Task
from skbert._core.text.tokens import Ragged
from skbert._core.training.loop import DrawItems
from skbert._core.training.recipe import Recipe
from skbert._estimator.fitted import Fitted

__all__ = ["Report", "Run", "decode_held", "held_out_loss", "validate"]

_CPU = torch.device("cpu")


class Run(NamedTuple):
    """Everything one training run needs."""

    network: Network
    task: Task
    learn: Items
    held: Items | None
    recipe: Recipe
    precision: Precision
    seed: int
    fresh: DrawItems
    n_truncated: int  # rows of X that were cut


class Report:
    """Shows the steps of a run with loss and metric, and notifies callbacks of each pass.

    Parameters
    ----------
    estimator : TrainedEstimator
        The estimator being fitted; its ``verbose`` turns the bar on.
    fitted : Fitted
        What it learns, as far as that is known.
    run : Run
        What is being run.
    X, y, sample_weight : array-like
        What ``fit`` was called with, for the callbacks.
    """

    def __init__(
        self, estimator: BaseEstimator, fitted: Fitted, run: Run, X: Any, y: Any,
        sample_weight: Any,
    ) -> None:  # fmt: skip
        self.bar = tqdm(
            total=run.recipe.epochs * run.recipe.steps_per_pass(run.learn),
            desc=type(estimator).__name__,
            unit="step",
            disable=not estimator.verbose,
        )
        self.shown: dict[str, str] = {}
        self.n_passes = run.recipe.epochs
        metadata = None if sample_weight is None else {"sample_weight": sample_weight}
        self.call = {"estimator": estimator, "X": X, "y": y, "metadata": metadata}
        self.partly_fitted = fitted
        self.context: Any = None
        self.subcontext: Any = None

    def __enter__(self) -> Self:
        estimator = self.call["estimator"]
        if hasattr(estimator, "_init_callback_context"):
            self.context = estimator._init_callback_context(max_subtasks=self.n_passes)
            self.context.call_on_fit_task_begin(**self.call)
            self._begin_pass()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self.bar.close()

    def fitted(self) -> None:
        """Note that the estimator is fitted, with nothing left to do."""
        self._compare(self.call["estimator"])
        if self.context is not None:
            self.context.call_on_fit_task_end(**self.call, reconstruction_attributes={})

    def _compare(self, estimator: BaseEstimator) -> None:
        """Say so where training came to no more than the linear model that it began with."""
        compared = hasattr(estimator, "probe_score_") and estimator.validation_fraction is not None
        if not (estimator.verbose and compared):
            return
        best = min(estimator.history_, key=itemgetter("validation_loss"))["validation_score"]
        if best <= estimator.probe_score_:
            self.bar.write(
                "On the rows held out a linear model on frozen features scores "
                f"{estimator.probe_score_:.4f}, and after training it is {best:.4f}: "
                "BertTransformer with a linear model would serve as well.",
                file=sys.stderr,
            )

    def _ready(self) -> dict[str, Any]:
        """What makes a copy of the estimator predict as after this pass, then and later."""
        network = copy_network(self.partly_fitted.network)
        return {"_fitted": replace(self.partly_fitted, network=network)}

    def _begin_pass(self) -> None:
        self.subcontext = self.context.subcontext(task_name="pass")
        self.subcontext.call_on_fit_task_begin(**self.call)

    def tick(self, loss: float) -> None:
        """Note one more optimizer step."""
        self.bar.update()
        self.bar.set_postfix(self.shown | {"loss": f"{loss:.4f}"}, refresh=False)

    def passed(self, record: dict[str, float], *, last: bool) -> bool:
        """Note one more pass; True when it was the last, or a callback asks to stop."""
        self.shown = {
            name: f"{record[name]:.4f}"
            for name in ("validation_loss", "validation_score")
            if name in record
        }
        self.bar.set_postfix(self.shown | {"loss": f"{record['loss']:.4f}"})
        if self.context is None:
            return last
        last |= self.subcontext.call_on_fit_task_end(
            **self.call, reconstruction_attributes=self._ready
        )
        if record["epoch"] < self.n_passes and not last:
            self._begin_pass()
        return last


def held_out_loss(run: Run, outputs: Ragged) -> float:
    """Mean loss of the held-out items, computed from the outputs of the head."""
    assert run.held is not None
    batch = collate(run.held, np.arange(len(run.held)), _CPU, run.precision.weight_dtype)
    loss, weight = run.task.loss(torch.from_numpy(outputs.values), batch)
    return float(loss / weight)


def decode_held(run: Run) -> tuple[Ragged, Array, Array]:
    """What the head says of the held-out items, what the task makes of it, and of which rows."""
    assert run.held is not None
    outputs = infer(run.network, run.held, run.precision)
    return outputs, run.task.decode(outputs, run.held), np.unique(run.held.samples)


def validate(run: Run, metric: Callable[..., float] | None) -> dict[str, float]:
    """Loss and metric on the held-out items, as they are after a pass."""
    if metric is None:
        assert run.held is not None
        return {"validation_loss": mean_loss(run.network, run.task, run.held, run.precision)}
    outputs, decoded, rows = decode_held(run)
    return {
        "validation_loss": held_out_loss(run, outputs),
        "validation_score": metric(decoded, rows),
    }
