"""The training loop: a generator that yields after each pass over the items.

It neither validates nor prints nor stops early: the caller does that between passes. Depends on
the other modules of this folder.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from typing import NamedTuple

import numpy as np

from skbert._core.batches import steps_of_a_pass
from skbert._core.models.network import Network
from skbert._core.runtime.device import Precision, seeded
from skbert._core.runtime.interrupts import raise_deferred
from skbert._core.task import Items, Task
from skbert._core.text.tokens import TextTokenizer
from skbert._core.training.recipe import Recipe
from skbert._core.training.stepper import Stepper

__all__ = ["DrawItems", "Epoch", "as_they_are", "train"]

# Draws the items of one pass from all items; they take as many steps as all items would.
DrawItems = Callable[[TextTokenizer, Items, np.random.Generator], Items]


class Epoch(NamedTuple):
    """The results of one pass."""

    epoch: int  # counted from 1
    loss: float  # mean over the pass, per unit of weight
    learning_rate: float  # the encoder's, at the end of the pass
    n_steps: int
    n_tokens: int
    seconds: float


def as_they_are(_tokenizer: TextTokenizer, items: Items, _rng: np.random.Generator) -> Items:
    """The same items in every pass."""
    return items


def train(
    network: Network,
    task: Task,
    items: Items,
    recipe: Recipe,
    precision: Precision,
    seed: int,
    on_step: Callable[[float], object] = lambda loss: None,
    draw_items: DrawItems = as_they_are,
) -> Iterator[Epoch]:
    """Fine-tune the network in place, one pass at a time.

    ``seed`` fixes what ``draw_items`` makes of the items for each pass, and the order of the
    samples; dropout draws from torch's global generator, which the caller seeds. ``on_step`` is
    called with the loss of each optimizer step.
    """
    n_steps = recipe.steps_per_pass(items)
    stepper = Stepper(network, task, recipe, precision, n_steps * recipe.epochs)
    rank = stepper.group.rank  # 0 keeps the generator that the caller seeded
    dropout_seed = seeded(seed + rank, network.device) if rank else nullcontext()
    with dropout_seed, closing(stepper):
        for number in range(1, recipe.epochs + 1):
            began, total, weight = time.perf_counter(), 0.0, 0.0
            rng = np.random.default_rng([seed, number])
            network.model.train()
            drawn = draw_items(network.text_tokenizer, items, rng)
            stepper.set_items(drawn)
            steps = steps_of_a_pass(drawn, recipe.samples_per_step, rng)
            for step_loss, step_weight in stepper.run(steps):
                total, weight = total + step_loss, weight + step_weight
                on_step(step_loss / step_weight)
                raise_deferred()
            stepper.finish_pass()
            n_tokens, seconds = int(drawn.sizes.sum()), time.perf_counter() - began
            rate = stepper.learning_rate
            yield Epoch(number, total / weight, rate, n_steps, n_tokens, seconds)
