"""One optimizer step after another: micro-batches, gradient accumulation, and what can fail.

A step starts over when memory runs out, or gradients leave the range of float16. Depends on
torch, a network, a task's own loss and ``optim``.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from skbert._arrays import IntArray
from skbert._core.batches import by_budget, collate
from skbert._core.cpu.embedding import UsedRowsEmbedding, distinct_ids
from skbert._core.cpu.training_linear import Bf16State
from skbert._core.gpu.graphs import LayerGraphs, graphs_on
from skbert._core.items import Items
from skbert._core.models.network import Network
from skbert._core.models.shared import take_back
from skbert._core.runtime.device import AsyncCopy, Budget, Precision, is_out_of_memory
from skbert._core.runtime.distributed import process_group
from skbert._core.runtime.forks import deferred_forks
from skbert._core.task import Batch, Task
from skbert._core.training.loss_scale import LossScale
from skbert._core.training.optim import (
    AdamW,
    adamw,
    freeze,
    gradient_norm,
    parameter_groups,
    rate_factor,
    take_step,
    warmup_steps,
)
from skbert._core.training.recipe import Recipe
from skbert._core.training.recomputing import begin_recomputing, end_recomputing
from skbert._core.training.reducing import GradientReducer
from skbert._core.training.step_weights import StepWeights
from skbert.exceptions import InputError, NonFiniteError

__all__ = ["TRAINING_TOKENS", "Stepper"]

TRAINING_TOKENS = {"cpu": 8192, "cuda": 32768, "mps": 8192}


class StepGradients(NamedTuple):
    """The gradients of a step, which are still to be divided."""

    tensors: list[torch.Tensor]
    divisor: float | torch.Tensor
    scalars: torch.Tensor  # (3,): loss, weight, norm of the divided gradients


class StepResult(NamedTuple):
    """The outcome of a step, which the device may have yet to compute."""

    scalars: AsyncCopy  # loss, weight, norm of the gradients
    items: IntArray
    number: int  # of the step, counted from 1
    learning_rate: float


class Stepper:
    """Takes optimizer steps without waiting for the device to compute them.

    A step whose loss or gradient is not finite changes no weight, nor does any step after it.

    Attributes
    ----------
    group : ProcessGroup
        The processes that take the steps together.
    learning_rate : float
        The encoder's, in the newest step.
    """

    def __init__(
        self,
        network: Network,
        task: Task,
        recipe: Recipe,
        precision: Precision,
        n_steps: int,
    ) -> None:
        self.group, self.learning_rate = process_group(), recipe.learning_rate
        self._network, self._task, self._recipe, self._precision = network, task, recipe, precision
        self._budget = Budget(TRAINING_TOKENS[network.device.type])
        self._loss_scale = LossScale(precision)
        self._n_steps, self._n_steps_done = n_steps, 0
        self._pending: deque[StepResult] = deque()
        self._failed = torch.zeros((), device=network.device, dtype=torch.float32)  # 1: not finite
        if network.is_handed_out:
            take_back(network)
        weights = network.model.parameters()
        self._fixed = [weight for weight in weights if not weight.requires_grad]  # by the caller
        with _thawed_on_failure(network.model, self._fixed):
            freeze(network.model, network.head_class.prefixes, recipe.freeze)
            _fix(self._fixed)
            self._optimizer = _optimizer_of(network, recipe)
            bf16_state = _bf16_state(network, self._optimizer)
            graphs = _graphs(network, recipe, self.group.size, bf16_state)
            network.layer_runner.reset(bf16_state, graphs)
            if recipe.gradient_checkpointing:
                begin_recomputing(network.model)
            self.group.broadcast([tensor.detach() for tensor in network.model.parameters()])
            if _can_train_used_rows(network):
                table = network.model.get_input_embeddings().weight
                network.word_embedding = UsedRowsEmbedding(table)
                self._optimizer.replace(table, network.word_embedding.rows)
            sent = torch.bfloat16 if precision.compute_dtype == torch.bfloat16 else network.dtype
            self._reducer = GradientReducer(
                self.group, self._optimizer, [*network.model.parameters()], sent
            )

    def set_items(self, items: Items) -> None:
        """Set the items that the following steps are taken on."""
        self._items, self._sizes = items, items.sizes
        self._weights = StepWeights(items, self._recipe.samples_per_step)
        embedding = self._network.word_embedding
        if embedding is not None:
            before = embedding.rows
            ids = distinct_ids(items.tokens.ids.values, len(embedding.table))
            if n_new := embedding.add_ids(ids):
                self._optimizer.replace(before, embedding.rows)
                state = self._optimizer.state.pop(before, {})
                for name in ("exp_avg", "exp_avg_sq") if state else ():
                    state[name] = F.pad(state[name], (0, 0, 0, n_new))
                self._optimizer.state[embedding.rows] = state

    def state(self) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        """The numbers and tensors that the next step depends on; no tensor is a copy."""
        numbers = {
            "n_steps": self._n_steps_done,
            "tokens": self._budget.tokens,
            "loss_scale": list(self._loss_scale.state()),
            "learning_rate": self.learning_rate,
        }
        parts = {"model": self._network.model.state_dict(), "moments": self._optimizer.moments()}
        if self._network.word_embedding is not None:
            parts["words"] = self._network.word_embedding.state()
        return numbers, {f"{part}.{n}": x for part, own in parts.items() for n, x in own.items()}

    def load_state(self, numbers: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> None:
        """Go on from the `state` of a stepper with the same settings."""
        self._n_steps_done, self._budget.tokens = int(numbers["n_steps"]), int(numbers["tokens"])
        self._loss_scale.load_state(numbers["loss_scale"])
        self.learning_rate = float(numbers["learning_rate"])
        parts: dict[str, dict[str, torch.Tensor]] = {"model": {}, "moments": {}, "words": {}}
        for name, tensor in tensors.items():
            part, _, rest = name.partition(".")
            parts[part][rest] = tensor
        self._network.model.load_state_dict(parts["model"])
        embedding = self._network.word_embedding
        if embedding is not None:
            before = embedding.rows
            embedding.load_state(parts["words"])
            self._optimizer.replace(before, embedding.rows)
        self._optimizer.load_moments(parts["moments"])

    def results(self, *, wait: bool = False) -> Iterator[tuple[float, float]]:
        """Yield loss and weight of the steps whose results are known, or of all steps so far."""
        while self._pending and (wait or self._pending[0].scalars.is_ready()):
            result = self._pending.popleft()
            _check_finite(result, self._items, self._n_steps)
            loss, weight, _ = result.scalars.read().tolist()
            yield loss, weight

    @deferred_forks()
    def step(self, item_indices: IntArray) -> None:
        """Take one optimizer step on the items with these indices."""
        self._update_learning_rates()
        gradients = self._compute_gradients(item_indices)
        scalars = gradients.scalars
        self._n_steps_done += 1
        result = StepResult(
            AsyncCopy(scalars), item_indices, self._n_steps_done, self.learning_rate
        )
        self._pending.append(result)
        if result.scalars.is_ready():
            _check_finite(result, self._items, self._n_steps)
        self._failed = torch.maximum(self._failed, (~scalars.isfinite().all()).to(self._failed))
        max_norm = self._recipe.max_grad_norm or math.inf
        clipping = torch.clamp((scalars[2] + 1e-6) / max_norm, min=1.0)
        weight = self._weights.of_step(item_indices)
        divisor = gradients.divisor if weight == 1.0 else gradients.divisor / weight
        take_step(self._optimizer, gradients.tensors, clipping * divisor, self._failed)
        if self._network.word_embedding is not None:
            self._network.word_embedding.note_decay(self._optimizer.param_groups)
        self._loss_scale.note_step()

    def _compute_gradients(self, item_indices: IntArray) -> StepGradients:
        """The gradients of a step, computed again where memory or the range of float16 fails."""
        while True:
            self._reducer.begin()
            sums, divisor = self._backward_in_memory(item_indices)
            if self.group.size > 1:
                self._reducer.finish(sums)
                divisor = self._loss_scale.value * sums[1]
            tensors = self._optimizer.gradients()
            norm = gradient_norm(tensors) / divisor
            scalars = torch.cat([sums, norm[None].to(sums)])
            if self._loss_scale.value == 1.0 or not _has_overflow(scalars):
                return StepGradients(tensors, divisor, scalars)
            self._loss_scale.note_overflow()

    def _backward_in_memory(
        self, item_indices: IntArray
    ) -> tuple[torch.Tensor, float | torch.Tensor]:
        """Accumulate gradients in micro-batches that memory is enough for."""
        while True:
            self._clear_gradients()
            try:
                return self._backward(item_indices)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                if self._network.layer_runner.graphs is not None:
                    self._network.layer_runner.graphs = None  # which keep memory
                    continue
                rows = self._items.take(item_indices).tokens
                self._budget.halve(error, self._network.device, int(rows.lengths.min()))

    def finish_pass(self) -> None:
        """Bring the network up to date after the steps of a pass, and into eval mode."""
        if self._network.word_embedding is not None:
            self._network.word_embedding.write_back()
        self._network.model.eval()

    def close(self) -> None:
        """Leave an ordinary model in eval mode, as trainable as it was and without gradients."""
        self.finish_pass()
        self._clear_gradients()
        model = self._network.model
        self._reducer.close()
        self._network.word_embedding = None
        self._network.layer_runner.reset()
        _thaw(model.eval(), self._fixed)
        if self._recipe.gradient_checkpointing:
            end_recomputing(model)

    def _clear_gradients(self) -> None:
        if self._network.word_embedding is not None:
            self._network.word_embedding.zero_grad()
        self._optimizer.zero_grad()

    def _backward(self, item_indices: IntArray) -> tuple[torch.Tensor, float | torch.Tensor]:
        """Accumulate gradients over the micro-batches of this process's share of a step.

        Returns the sums of the losses and of their weights, ``(2,)``, and what to divide the
        gradients by. The loss of a single micro-batch is divided before its backward pass.
        """
        item_indices, factor = self.group.share(item_indices)
        micro_batches = self._micro_batches(item_indices)
        is_single = len(micro_batches) == self.group.size == 1
        scale = self._loss_scale.value
        sums = torch.zeros(2, device=self._network.device, dtype=self._network.dtype)
        for part in micro_batches:
            self._reducer.begin_micro_batch(is_last=part is micro_batches[-1])
            batch = collate(self._items, part, self._network.device, self._precision.weight_dtype)
            with self._precision.autocast():
                logits = self._logits(part, batch)
            loss, weight = self._task.loss(logits, batch)
            divided = loss / weight if is_single else loss
            (divided * (factor * scale)).backward()  # type: ignore[no-untyped-call]
            sums = sums + factor * torch.stack([loss.detach(), weight.to(loss)])
        return sums, scale if is_single else scale * sums[1]

    def _micro_batches(self, item_indices: IntArray) -> list[IntArray]:
        """The items of each micro-batch: ``accumulate`` of them, or more within the budget."""
        parts = np.array_split(item_indices, min(self._recipe.accumulate, len(item_indices)))
        budget = self._budget.tokens
        return [part[cut] for part in parts for cut in by_budget(self._sizes[part], budget)]

    def _logits(self, part: IntArray, batch: Batch) -> Any:
        """Logits of a micro-batch; the rows of an item beyond the budget are computed in parts.

        Each part is computed again in the backward pass, so that only one is in memory.
        """
        network, budget = self._network, self._budget.tokens
        rows = self._items.take(part).by_row() if len(part) == 1 else None
        if rows is None or len(rows) == 1 or rows.sizes.sum() <= budget:
            return network.logits(batch)
        row_batches = (
            collate(rows, np.arange(len(rows))[cut], network.device, self._precision.weight_dtype)
            for cut in by_budget(rows.sizes, budget)
        )
        compute = partial(network.layer_runner.without_graphs, network.logits)
        return torch.cat([checkpoint(compute, each, use_reentrant=False) for each in row_batches])

    def _update_learning_rates(self) -> None:
        """Set the learning rates of the next step, as the schedule says."""
        recipe, n_steps = self._recipe, self._n_steps
        n_warmup = warmup_steps(recipe.warmup, n_steps)

        def scheduled(rate: float) -> float:
            return rate * rate_factor(recipe.schedule, self._n_steps_done, n_steps, n_warmup, rate)

        for group in self._optimizer.param_groups:
            group["lr"] = scheduled(group["initial_lr"])
        self.learning_rate = scheduled(recipe.learning_rate)


def _check_finite(result: StepResult, items: Items, n_steps: int) -> None:
    """Raise where the loss or the gradients of a step are not finite."""
    loss, _, norm = result.scalars.read().tolist()
    if math.isfinite(norm) and math.isfinite(loss):
        return
    samples = np.unique(items.samples[result.items])
    raise NonFiniteError(
        f"At step {result.number} of {n_steps} the loss is {loss:g} and the norm of "
        f"the gradient {norm:g}, on rows {samples[:8].tolist()} of the training data "
        f"({len(samples)} rows in the step), learning rate {result.learning_rate:g}. No "
        "weight was changed by this step. Use a lower learning_rate, more warmup, or "
        "precision='float32'."
    )


def _thaw(model: torch.nn.Module, fixed: list[torch.nn.Parameter]) -> None:
    """Make all weights trainable but those that are to stay as they are."""
    model.requires_grad_(True)
    _fix(fixed)


@contextmanager
def _thawed_on_failure(model: torch.nn.Module, fixed: list[torch.nn.Parameter]) -> Iterator[None]:
    """Undo `freeze` after an error: a network that was copied shares its frozen weights."""
    try:
        yield
    except BaseException:
        _thaw(model, fixed)
        raise


def _fix(weights: list[torch.nn.Parameter]) -> None:
    """Let weights stay as they are, as whoever holds the model wants it, peft for one."""
    for weight in weights:
        weight.requires_grad_(False)


def _optimizer_of(network: Network, recipe: Recipe) -> AdamW:
    """The optimizer of all weights that are trained."""
    head_class = network.head_class
    # The layers below a fresh output layer start as good as trained.
    own = f"{head_class.output_layer}." if network.head.fresh else head_class.prefixes
    groups = parameter_groups(
        network.model,
        own,
        learning_rate=recipe.learning_rate,
        head_learning_rate=recipe.head_learning_rate,
        weight_decay=recipe.weight_decay,
        layer_decay=recipe.layer_decay,
    )
    if not groups:
        raise InputError(
            "There is nothing to train: all weights of model_ that freeze leaves are fixed. Set"
            " requires_grad of some to True."
        )
    return adamw(groups, network.device)


def _bf16_state(network: Network, optimizer: AdamW) -> Bf16State | None:
    """What training keeps in bfloat16; no copies of weights that a caller may change unnoticed."""
    state = optimizer.bf16_state
    return state._replace(weights=None) if state and network.is_handed_out else state


def _graphs(
    network: Network, recipe: Recipe, n_processes: int, bf16_state: Bf16State | None
) -> LayerGraphs | None:
    """Graphs of layers that nobody else may change, and whose activations are kept."""
    if network.is_handed_out or recipe.gradient_checkpointing:
        return None
    return graphs_on(network.device, n_processes, bf16_state and bf16_state.grads)


def _has_overflow(scalars: torch.Tensor) -> bool:
    """Whether gradients left the range of float16 where the loss did not."""
    loss, _, norm = scalars.tolist()  # waits for the device
    return math.isfinite(loss) and not math.isfinite(norm)


def _can_train_used_rows(network: Network) -> bool:
    """Whether nothing but the look-up of packed batches needs the table of word embeddings."""
    model = network.model
    is_tied = model.get_output_embeddings() is not None
    is_trained = model.get_input_embeddings().weight.requires_grad
    return network.is_packed and network.device.type == "cpu" and is_trained and not is_tied
