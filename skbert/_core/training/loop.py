"""The training loop: a generator that yields after each pass over the items.

No validation, no printing, no stopping, nothing of any one task: the caller's ``for`` does
all that between passes. Depends on the other modules of this folder.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from skbert._arrays import IntArray
from skbert._core.batches import by_budget, collate, steps_of_a_pass
from skbert._core.cpu.embedding import RowGradients
from skbert._core.models.network import Network, can_pack
from skbert._core.runtime.device import AsyncScalars, Budget, Precision, is_out_of_memory, seeded
from skbert._core.runtime.distributed import join
from skbert._core.runtime.interrupts import let_through
from skbert._core.task import Batch, Items, Task
from skbert._core.training.optim import (
    adamw,
    freeze,
    gradient_norm,
    multiplier,
    parameter_groups,
    take_step,
    warmup_steps,
)
from skbert.exceptions import NonFiniteError

__all__ = ["Epoch", "Fresh", "Recipe", "train"]

# From all items and what to draw with: those of one pass, as many steps of them as before.
Fresh = Callable[[Items, np.random.Generator], Items]

TRAINING_TOKENS = {"cpu": 8192, "cuda": 32768, "mps": 8192}
_FIRST_LOSS_SCALE = 2.0**16
_STEPS_TO_GROW = 2000  # without an overflow, after which the loss scale is doubled


@dataclass(frozen=True)
class Recipe:
    """How to train, in the field's names; see the estimators for what each one means."""

    epochs: int = 3
    batch_size: int = 16
    accumulate: int = 1
    learning_rate: float = 1e-4
    head_learning_rate: float = 1e-3
    weight_decay: float = 0.01
    warmup: float = 0.1
    schedule: str = "linear"
    layer_decay: float = 1.0
    freeze: int | str = 0
    max_grad_norm: float | None = 1.0
    gradient_checkpointing: bool = False

    def steps_per_pass(self, items: Items) -> int:
        """Optimizer steps that one pass over the items takes."""
        return -(-len(np.unique(items.units)) // (self.batch_size * self.accumulate))


class Epoch(NamedTuple):
    """What one pass came to."""

    epoch: int  # counted from 1
    loss: float  # mean over the pass, per unit of weight
    learning_rate: float  # the encoder's, at the end of the pass
    n_steps: int
    n_tokens: int
    seconds: float


def train(
    network: Network,
    task: Task,
    items: Items,
    recipe: Recipe,
    precision: Precision,
    seed: int,
    tick: Callable[[float], object] = lambda loss: None,
    fresh: Fresh = lambda items, rng: items,
) -> Iterator[Epoch]:
    """Fine-tune the network in place, one pass at a time.

    ``seed`` fixes what ``fresh`` makes of the items for each pass, and the order of the samples;
    dropout draws from torch's global generator, which the caller seeds. ``tick`` is given the
    loss of each optimizer step.
    """
    n_steps, per_step = recipe.steps_per_pass(items), recipe.batch_size * recipe.accumulate
    stepper = _Stepper(network, task, recipe, precision, n_steps * recipe.epochs)
    other = stepper.world.rank  # 0 goes on with what the caller seeded
    for_dropout = seeded(seed + other, network.device) if other else nullcontext()
    with for_dropout, closing(stepper):
        for number in range(1, recipe.epochs + 1):
            began, total, weight = time.perf_counter(), 0.0, 0.0
            rng = np.random.default_rng([seed, number])
            network.model.train()
            stepper.set_items(fresh(items, rng))
            for step_loss, step_weight in stepper.learn(
                steps_of_a_pass(stepper.items, per_step, rng)
            ):
                total, weight = total + step_loss, weight + step_weight
                tick(step_loss / step_weight)
                let_through()
            stepper.put_together()
            n_tokens, seconds = int(stepper.sizes.sum()), time.perf_counter() - began
            yield Epoch(number, total / weight, stepper.rate, n_steps, n_tokens, seconds)


class StepResult(NamedTuple):
    """What a step has to tell."""

    numbers: AsyncScalars  # loss, weight, norm of the gradient
    chosen: IntArray
    number: int  # of the step, counted from 1
    rate: float


class _Stepper:
    """One optimizer step after another, without waiting for the device to have computed it.

    A step that is not finite changes nothing, and neither does any step after it.
    """

    def __init__(
        self,
        network: Network,
        task: Task,
        recipe: Recipe,
        precision: Precision,
        n_steps: int,
    ) -> None:
        self.network, self.task, self.world = network, task, join()
        self.recipe, self.precision = recipe, precision
        self.budget = Budget(TRAINING_TOKENS[network.device.type])
        self.scale = _FIRST_LOSS_SCALE if precision.needs_loss_scale else 1.0
        self.n_steps, self.done, self.calm = n_steps, 0, 0
        self.rate = recipe.learning_rate
        self._divisor: float | torch.Tensor = 1.0  # of the gradients of a step
        self.waiting: deque[StepResult] = deque()
        self.failed = torch.zeros((), device=network.device, dtype=torch.float32)  # 1: not finite
        if network.is_handed_out:
            network.is_packed = can_pack(network)
            for weight in network.model.parameters():  # each to learn in memory of its own
                weight.data = weight.data.contiguous()
        freeze(network.model, network.output_path, recipe.freeze)
        groups = parameter_groups(
            network.model,
            network.output_path,
            learning_rate=recipe.learning_rate,
            head_learning_rate=recipe.head_learning_rate,
            weight_decay=recipe.weight_decay,
            layer_decay=recipe.layer_decay,
        )
        self.optimizer = adamw(groups, network.device)
        network.layer_runner.forget(self.optimizer.bf16_grads if self.world.size == 1 else None)
        if recipe.gradient_checkpointing:
            _checkpointing("enable", network.model)({"use_reentrant": False})
        self.world.agree([tensor.detach() for tensor in network.model.parameters()])
        if self.world.size == 1 and _trains_words_by_row(network):
            network.words = RowGradients(network.model.get_input_embeddings().weight)
            self._exchange(network.words.table, network.words.rows)

    def set_items(self, items: Items) -> None:
        """Have these items for the steps that follow."""
        self.items, self.sizes = items, items.sizes
        words = self.network.words
        if words is not None:
            before, ids = words.rows, torch.from_numpy(items.tokens.ids.values.astype(np.int64))
            if n_new := words.cover(ids):
                self._exchange(before, words.rows)
                state = self.optimizer.state.pop(before, {})
                for name in ("exp_avg", "exp_avg_sq") if state else ():
                    state[name] = F.pad(state[name], (0, 0, 0, n_new))
                self.optimizer.state[words.rows] = state

    def _exchange(self, old: torch.nn.Parameter, new: torch.nn.Parameter) -> None:
        """Let the optimizer have another parameter in the place of one."""
        for group in self.optimizer.param_groups:
            group["params"] = [new if p is old else p for p in group["params"]]

    def learn(self, steps: list[IntArray]) -> Iterator[tuple[float, float]]:
        """Take these steps; the sum of the losses and the weight of each, once they are known."""
        for chosen in steps:
            self.step(chosen)
            while self.waiting and self.waiting[0].numbers.ready():
                yield self._pop_result()
        while self.waiting:
            yield self._pop_result()

    def step(self, chosen: IntArray) -> None:
        """Learn from the chosen items."""
        self._follow_schedule()
        numbers, gradients = self._gradients(chosen)
        self.done += 1
        self.waiting.append(StepResult(AsyncScalars(numbers), chosen, self.done, self.rate))
        if self.waiting[-1].numbers.ready():
            self._stop_if_failed(self.waiting[-1])
        self.failed = torch.maximum(self.failed, (~numbers.isfinite().all()).to(self.failed))
        limit = self.recipe.max_grad_norm or math.inf
        over = torch.clamp((numbers[2] + 1e-6) / limit, min=1.0)
        take_step(self.optimizer, gradients, over * self._divisor, self.failed)
        if self.network.words is not None:
            self.network.words.decay(self.optimizer.param_groups)
        self.calm += 1
        if self.precision.needs_loss_scale and self.calm % _STEPS_TO_GROW == 0:
            self.scale *= 2.0

    def _gradients(self, chosen: IntArray) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Loss, weight and norm of a step, and its gradients, to be divided by ``_divisor``.

        They are computed again where memory or the range of float16 failed.
        """
        while True:
            self._clear_gradients()
            try:
                sums = self._backward(chosen)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                self.budget.halve(error, self.network.device)
                continue
            gradients = self.optimizer.gradients()
            sums = self._add_up(gradients, sums)
            norm = gradient_norm(gradients) / self._divisor
            numbers = torch.cat([sums, norm[None].to(sums)])
            if self.scale == 1.0 or not _overflows(numbers):
                return numbers, gradients
            self.scale, self.calm = self.scale / 2.0, 0

    def put_together(self) -> None:
        """Have the network whole, and in eval mode."""
        if self.network.words is not None:
            self.network.words.put_together()
        self.network.model.eval()

    def close(self) -> None:
        """Leave the network as an ordinary model in eval mode, and let go of the gradients."""
        self.put_together()
        self._clear_gradients()
        model = self.network.model
        self.network.words = None
        self.network.layer_runner.forget()
        model.eval().requires_grad_(True)
        if self.recipe.gradient_checkpointing:
            _checkpointing("disable", model)()

    def _clear_gradients(self) -> None:
        if self.network.words is not None:
            self.network.words.clear()
        self.optimizer.zero_grad()

    def _add_up(self, gradients: list[torch.Tensor], sums: torch.Tensor) -> torch.Tensor:
        """Have the gradients, loss and weight of the step from all processes."""
        if self.world.size > 1:
            self.world.add_up([sums])
            self.world.add_up(gradients)
            self._divisor = self.scale * sums[1]
        return sums

    def _backward(self, chosen: IntArray) -> torch.Tensor:
        """Accumulate gradients over the micro-batches of this process's share of a step.

        Returns the sum of the losses and of their weights.
        """
        chosen, factor = self.world.share(chosen)
        parts = np.array_split(chosen, min(self.recipe.accumulate, len(chosen)))
        micro = [part[cut] for part in parts
                 for cut in by_budget(self.sizes[part], self.budget.tokens)]  # fmt: skip
        alone = len(micro) == self.world.size == 1
        sums = torch.zeros(2, device=self.network.device, dtype=self.network.dtype)
        for part in micro:
            batch = collate(self.items, part, self.network.device, self.precision.weights)
            with self.precision.context():
                logits = self._logits(part, batch)
            loss, weight = self.task.loss(logits, batch)
            divided = loss / weight if alone else loss
            (divided * (factor * self.scale)).backward()  # type: ignore[no-untyped-call]
            sums = sums + factor * torch.stack([loss.detach(), weight.to(loss)])
        self._divisor = self.scale if alone else self.scale * sums[1]
        return sums

    def _logits(self, part: IntArray, batch: Batch) -> Any:
        """Logits of a micro-batch; an item beyond the budget has its rows computed in turns.

        Its turns are computed once more on the way back, so that only one is in memory.
        """
        rows = self.items.take(part).by_row()
        if len(part) > 1 or len(rows) == 1 or rows.sizes.sum() <= self.budget.tokens:
            return self.network.logits(batch)
        turns = (
            collate(rows, np.arange(len(rows))[cut], self.network.device, self.precision.weights)
            for cut in by_budget(rows.sizes, self.budget.tokens)
        )
        parts = [checkpoint(self.network.logits, turn, use_reentrant=False) for turn in turns]
        return torch.cat(parts)

    def _follow_schedule(self) -> None:
        n_warmup = warmup_steps(self.recipe.warmup, self.n_steps)
        for group in self.optimizer.param_groups:
            rate = group["initial_lr"]
            group["lr"] = rate * multiplier(
                self.recipe.schedule, self.done, self.n_steps, n_warmup, rate
            )
        self.rate = self.recipe.learning_rate * multiplier(
            self.recipe.schedule, self.done, self.n_steps, n_warmup, self.recipe.learning_rate
        )

    def _pop_result(self) -> tuple[float, float]:
        """Loss and weight of the first step that has not told them yet."""
        told = self.waiting.popleft()
        self._stop_if_failed(told)
        loss, weight, _ = told.numbers.read()
        return loss, weight

    def _stop_if_failed(self, told: StepResult) -> None:
        loss, _, norm = told.numbers.read()
        if math.isfinite(norm) and math.isfinite(loss):
            return
        samples = np.unique(self.items.samples[told.chosen])
        raise NonFiniteError(
            f"At step {told.number} of {self.n_steps} the loss is {loss:g} and the norm of "
            f"the gradient {norm:g}, on rows {samples[:8].tolist()} of the training data "
            f"({len(samples)} rows in the step), learning rate {told.rate:g}. No weight was "
            "changed by this step. Use a lower learning_rate, more warmup, or "
            "precision='float32'."
        )


def _overflows(numbers: torch.Tensor) -> bool:
    """Whether gradients left the range of float16 where the loss did not."""
    loss, _, norm = numbers.tolist()  # waits for the device
    return math.isfinite(loss) and not math.isfinite(norm)


def _trains_words_by_row(network: Network) -> bool:
    """Whether it can: nothing but the look-up of packed batches may need the whole table."""
    model = network.model
    tied = model.get_output_embeddings() is not None
    learns = model.get_input_embeddings().weight.requires_grad
    return network.is_packed and network.device.type == "cpu" and learns and not tied


def _checkpointing(verb: str, model: Any) -> Callable[..., None]:
    """The method that turns it on or off; transformers 5 gave it another name on the way."""
    old = f"gradient_checkpointing_{verb}"
    new = f"activation_checkpointing_{verb}"
    method: Callable[..., None] = getattr(model, new if hasattr(model, new) else old)
    return method
