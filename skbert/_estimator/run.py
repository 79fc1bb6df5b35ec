"""Run: everything one training run needs. Depends on ``_core`` and on what is held out."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch

from skbert._core.items import Items
from skbert._core.models.network import Network
from skbert._core.runtime.device import Precision
from skbert._core.task import Task
from skbert._core.training.frozen import ComputeStates, with_states
from skbert._core.training.loop import DrawItems, TrainingLoop, as_they_are
from skbert._core.training.optim import trainable_parameters
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
    origin: object = None  # equal for equal networks and tasks; None where it is not known

    @property
    def trained(self) -> list[torch.nn.Parameter]:
        """The weights that steps change."""
        network = self.network
        prefixes = network.head_class.prefixes
        return trainable_parameters(network.model, prefixes, self.recipe.freeze)

    def with_states(self, compute: ComputeStates, *, finished: bool) -> Run:
        """The run, with what frozen layers give for its items, the same in all passes.

        ``finished`` says that no pass is left, which would read those to train on.
        """
        if self.draw_items is not as_they_are:
            return self
        train_items, held_out = self.train_items, self.held_out
        parts = [] if finished else [(train_items, self.precision.of_training)]
        if held_out is not None:
            parts.append((held_out.items, self.precision))
        found = with_states(self.network, parts, self.recipe.freeze, compute)
        if held_out is not None:
            held_out = replace(held_out, items=found.pop())
        return self._replace(train_items=train_items if finished else found[0], held_out=held_out)

    def loop(self) -> TrainingLoop:
        """The steps of the run, which have not begun."""
        return TrainingLoop(
            self.network, self.task, self.train_items, self.recipe, self.precision, self.seed,
            self.draw_items,
        )  # fmt: skip
