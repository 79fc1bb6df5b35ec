"""Run: everything one training run needs. Depends on ``_core`` and on what is held out."""

from __future__ import annotations

from typing import NamedTuple

from skbert._core.models.network import Network
from skbert._core.runtime.device import Precision
from skbert._core.task import Items, Task
from skbert._core.training.loop import DrawItems, TrainingLoop
from skbert._core.training.recipe import Recipe
from skbert._estimator.held_out import HeldOut

__all__ = ["Run"]


class Run(NamedTuple):
    """Everything one training run needs."""

    network: Network
    task: Task
    train_items: Items
    held_out: HeldOut | None
    recipe: Recipe
    precision: Precision
    seed: int
    draw_items: DrawItems
    n_truncated: int  # rows of X that were cut
    n_label_items: int = 0  # the last items to train on, which are texts of labels
    facts: dict[str, str] | None = None  # what is fitted, if checkpoints of it are kept

    def loop(self) -> TrainingLoop:
        """The steps of the run, which have not begun."""
        return TrainingLoop(
            self.network, self.task, self.train_items, self.recipe, self.precision, self.seed,
            self.draw_items,
        )  # fmt: skip
