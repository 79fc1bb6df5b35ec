"""The training loop: a generator that yields after each pass over the items.

It neither validates nor prints nor stops early: the caller does that between passes. Depends on
the other modules of this folder.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch

from skbert._core.batches import steps_of_a_pass
from skbert._core.items import Items
from skbert._core.models.network import Network
from skbert._core.runtime.device import Precision, generator_state, seeded, set_generator_state
from skbert._core.runtime.freed_memory import all_memory_kept
from skbert._core.runtime.interrupts import raise_deferred
from skbert._core.task import Task
from skbert._core.text.tokens import TextTokenizer
from skbert._core.training.optim import frozen_parts
from skbert._core.training.recipe import Recipe
from skbert._core.training.stepper import Stepper
from skbert.exceptions import SaveError

__all__ = ["DrawItems", "Epoch", "TrainingLoop", "TrainingState", "as_they_are"]

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


class TrainingState(NamedTuple):
    """All that the steps still to be taken depend on, beside what the loop was made with."""

    numbers: dict[str, Any]  # JSON values
    tensors: dict[str, torch.Tensor]


class _Pass(NamedTuple):
    """The steps of a pass that have been taken."""

    epoch: int  # counted from 1
    n_steps: int = 0
    loss: float = 0.0  # sum
    weight: float = 0.0
    seconds: float = 0.0


def as_they_are(_tokenizer: TextTokenizer, items: Items, _rng: np.random.Generator) -> Items:
    """The same items in every pass."""
    return items


class TrainingLoop:
    """Fine-tunes a network in place, one pass at a time.

    ``seed`` fixes what ``draw_items`` makes of the items for each pass, and the order of the
    samples; dropout draws from torch's global generator, which the caller seeds.

    Attributes
    ----------
    n_steps : int
        Optimizer steps of one pass.
    on_step : callable
        Called with the loss of each step as it becomes known.
    between_steps : callable
        Called after each step; the loop has a `state` then.
    """

    def __init__(
        self,
        network: Network,
        task: Task,
        items: Items,
        recipe: Recipe,
        precision: Precision,
        seed: int,
        draw_items: DrawItems = as_they_are,
    ) -> None:
        self._network, self._task, self._items, self._recipe = network, task, items, recipe
        self._precision, self._seed, self._draw_items = precision, seed, draw_items
        self.n_steps = recipe.steps_per_pass(items)
        self.on_step: Callable[[float], object] = lambda loss: None
        self.between_steps: Callable[[], object] = lambda: None
        self._pass = _Pass(1)
        self._began: float | None = None  # when, if steps are being taken
        self._stepper: Stepper | None = None
        self._resumed: TrainingState | None = None

    def resume(self, state: TrainingState) -> None:
        """Go on from a `state` of a loop that was made with the same arguments.

        What no such loop has is refused, here or before the first step, by a SaveError.
        """
        with _describing():
            self._check(state.numbers)
            self._resumed, self._pass = state, _Pass(*state.numbers["pass"])

    def _check(self, numbers: Mapping[str, Any]) -> None:
        """ValueError for numbers that are out of bounds."""
        done, (scale, n_whole) = _Pass._make(numbers["pass"]), numbers["loss_scale"]
        counts = (
            (done.epoch, 1, self._recipe.epochs),
            (done.n_steps, 0, self.n_steps),
            (numbers["n_steps"], 0, self.n_steps * self._recipe.epochs),
            (n_whole, 0, sys.maxsize),
            *((tokens, 1, sys.maxsize) for tokens in numbers["tokens"]),
        )
        sizes = (done.weight, done.seconds, numbers["learning_rate"], scale)
        for count, least, most in counts:
            if type(count) is not int or not least <= count <= most:
                raise ValueError(f"{count!r:.80} is no whole number from {least} to {most}")
        for size in sizes:
            if not 0 <= size < math.inf:
                raise ValueError(f"{size!r:.80} is no finite number from 0")
        if not math.isfinite(done.loss):
            raise ValueError(f"the loss is {done.loss!r:.80}")

    def skip_pass(self) -> None:
        """Go on with the next pass: all steps of this one had been taken."""
        self._pass = _Pass(self._pass.epoch + 1)

    def skip_passes(self) -> None:
        """Take no more steps."""
        self._pass = _Pass(self._recipe.epochs + 1)

    def __iter__(self) -> Iterator[Epoch]:
        """Take the steps of pass after pass, and yield the results of each."""
        self._stepper = stepper = Stepper(
            self._network, self._task, self._recipe, self._precision,
            self.n_steps * self._recipe.epochs,
        )  # fmt: skip
        rank = stepper.group.rank  # 0 keeps the generator that the caller seeded
        dropout_seed = seeded(self._seed + rank, self._network.device) if rank else nullcontext()
        with dropout_seed, closing(stepper), all_memory_kept():
            self._load()
            while self._pass.epoch <= self._recipe.epochs:
                yield self._run_pass(stepper)
                self.skip_pass()

    def _run_pass(self, stepper: Stepper) -> Epoch:
        """Take the steps of a pass that are left."""
        network = self._network
        began = self._began = time.perf_counter() - self._pass.seconds
        rng = np.random.default_rng([self._seed, self._pass.epoch])
        network.model.train()
        for part in frozen_parts(network.model, self._recipe.freeze):
            part.eval()  # without dropout it gives the same in every pass
        drawn = self._draw_items(network.text_tokenizer, self._items, rng)
        stepper.set_items(drawn)
        for item_indices in steps_of_a_pass(drawn, self._recipe.samples_per_step, rng)[
            self._pass.n_steps :
        ]:
            stepper.step(item_indices)
            self._pass = self._pass._replace(n_steps=self._pass.n_steps + 1)
            self._note_results()
            self.between_steps()
            raise_deferred()
        self._note_results(wait=True)
        stepper.finish_pass()
        self._began, seconds = None, time.perf_counter() - began
        self._pass = self._pass._replace(seconds=seconds)
        epoch, _, loss, weight, _ = self._pass
        n_tokens, rate = int(drawn.sizes.sum()), stepper.learning_rate
        return Epoch(epoch, loss / weight, rate, self.n_steps, n_tokens, seconds)

    def _note_results(self, *, wait: bool = False) -> None:
        """Add the results of steps up, as far as they are known or of all of them."""
        assert self._stepper is not None
        for loss, weight in self._stepper.results(wait=wait):
            done = self._pass
            self._pass = done._replace(loss=done.loss + loss, weight=done.weight + weight)
            self.on_step(loss / weight)

    def state(self) -> TrainingState:
        """All that the next step depends on; the tensors are not copied.

        All processes of a group ask for it together, and all get the same.
        """
        assert self._stepper is not None
        stepper, group = self._stepper, self._stepper.group
        self._note_results(wait=True)
        seconds = self._pass.seconds if self._began is None else time.perf_counter() - self._began
        numbers, tensors = stepper.state()
        numbers["pass"] = list(self._pass._replace(seconds=seconds))
        numbers["tokens"] = group.gather(torch.tensor([numbers["tokens"]])).flatten().tolist()
        generators = group.gather(generator_state(self._network.device))
        return TrainingState(numbers, {**tensors, "generators": generators})

    def _load(self) -> None:
        """Go on from the state that `resume` was given, if it was."""
        if self._resumed is None or self._stepper is None:
            return
        numbers, tensors = self._resumed
        rank, own = self._stepper.group.rank, dict(tensors)
        with _describing():
            set_generator_state(own.pop("generators")[rank], self._network.device)
            self._stepper.load_state({**numbers, "tokens": numbers["tokens"][rank]}, own)
        self._resumed = None


@contextmanager
def _describing() -> Iterator[None]:
    """Raise a SaveError for whatever is wrong with a state."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise SaveError(
            f"A checkpoint in checkpoint_dir is whole, but no fit has written it: {error!r:.300}."
            " Delete it, and fit again."
        ) from error
