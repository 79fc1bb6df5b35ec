"""Inference: the head's outputs for every item, in order, within a budget of tokens.

Depends on a network and on plans; knows no task by name.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import torch

from skbert._arrays import Array, FloatArray, IntArray
from skbert._core.batches import by_length, collate
from skbert._core.items import Items, gathered
from skbert._core.models.int8 import check_int8
from skbert._core.models.network import Network, inference_network
from skbert._core.runtime.device import AsyncCopy, Budget, Precision, is_out_of_memory
from skbert._core.runtime.forks import deferred_forks
from skbert._core.runtime.freed_memory import keep_freed_memory
from skbert._core.runtime.interrupts import deferred_interrupts, raise_deferred
from skbert._core.runtime.modes import default_modes
from skbert._core.runtime.wait_policy import adaptive_wait_policy
from skbert._core.task import Batch, Task
from skbert._core.text.tokens import Ragged

__all__ = [
    "INFERENCE_TOKENS", "OnSamples", "in_parts", "infer", "mean_loss", "sample_losses",
]  # fmt: skip

Computed = TypeVar("Computed")
OnSamples = Callable[[int], object]  # called with the number of samples completed by a batch

_NOT_FINITE = (
    "The model gives outputs that are NaN or infinite, first in the batch of row {row}: its"
    " weights are too large. Give a model that was trained with a smaller learning rate, or use"
    " precision='float32'."
)
INFERENCE_TOKENS = {"cpu": 4096, "cuda": 65536, "mps": 8192}
# On a CPU fewer, down to the second number, so that what lies between a layer's last two products
# takes no more bytes: a larger result gets fresh memory each time, which is slow to touch first.
_MOST_BYTES, _FEWEST_TOKENS = 24 << 20, 1024


@deferred_interrupts()
@adaptive_wait_policy()
@default_modes(inference=True)
def infer(
    network: Network,
    items: Items,
    precision: Precision,
    *,
    forward: Callable[[Network, Batch], torch.Tensor] | None = None,
    on_samples: OnSamples | None = None,
) -> Ragged:
    """Logits of each item as float32 (float64 in that precision), one row of the result each.

    What ``forward`` computes of a batch is returned instead of the logits. Texts of similar length
    are computed together, so that no token is padding, and the rows of an item need not be
    computed together; the order of the result is that of the items. Of equal rows only one is
    computed. ``on_samples`` is called after each batch.

    Raises
    ------
    NonFiniteError
        If an output is NaN or infinite.
    """
    network = inference_network(network)
    compute = Network.logits if forward is None else forward
    every_row = items.by_row()
    distinct, equal_to = _distinct_rows(every_row)
    rows = every_row.take(distinct)
    dtype = precision.weight_dtype
    copies = _batch_by_batch(
        network, rows, precision, lambda batch: AsyncCopy(compute(network, batch).to(dtype))
    )
    counted = _counted(_arrived(copies), every_row.samples, equal_to, on_samples)
    outputs = gathered(rows, network.head, counted, _NOT_FINITE).take(equal_to)
    return Ragged(outputs.values, outputs.starts[items.rows])


def _arrived(
    copies: Iterator[tuple[IntArray, AsyncCopy]],
) -> Iterator[tuple[IntArray, Array]]:
    """What was copied of each batch; a GPU computes the next one while it is waited for."""
    pending: deque[tuple[IntArray, AsyncCopy]] = deque()
    for each in copies:
        pending.append(each)
        while len(pending) > 1 or (pending and pending[0][1].is_ready()):
            item_indices, copied = pending.popleft()
            yield item_indices, copied.read().numpy()
    for item_indices, copied in pending:
        yield item_indices, copied.read().numpy()


def _distinct_rows(rows: Items) -> tuple[IntArray, IntArray]:
    """The first of all equal rows, and for each row which of these it is equal to."""
    table, selected = rows.tokens.ids, rows.selected_tokens
    keys: list[Any] = list(zip(_bytes_of_rows(table), rows.tokens.second.tolist(), strict=True))
    if selected is not None:
        keys = list(zip(keys, _bytes_of_rows(selected), strict=True))
    if rows.features is not None:
        keys = list(zip(keys, map(bytes, rows.features), strict=True))
    numbers: dict[Any, int] = {}
    equal_to = np.array([numbers.setdefault(key, len(numbers)) for key in keys])
    if len(numbers) == len(equal_to):
        return equal_to, equal_to
    _, firsts = np.unique(equal_to, return_index=True)
    return firsts, equal_to


def _bytes_of_rows(table: Ragged) -> Iterator[bytes]:
    data, ends = table.values.tobytes(), (table.starts * table.values.itemsize).tolist()
    return (data[begin:end] for begin, end in pairwise(ends))


@deferred_interrupts()
@adaptive_wait_policy()
@default_modes(inference=True)
def mean_loss(
    network: Network,
    task: Task,
    items: Items,
    precision: Precision,
    on_samples: OnSamples | None = None,
) -> float:
    """Loss of the task on the items per unit of weight, without keeping the outputs."""
    network = inference_network(network)
    total, weight = 0.0, 0.0
    batches = _batch_by_batch(
        network, items, precision, lambda batch: task.loss(network.logits(batch), batch)
    )
    counted = _counted(batches, items.samples, np.arange(len(items)), on_samples)
    for _, (batch_loss, batch_weight) in counted:
        total, weight = total + float(batch_loss), weight + float(batch_weight)
    return total / weight


@deferred_interrupts()
@adaptive_wait_policy()
@default_modes(inference=True)
def sample_losses(
    network: Network, task: Task, items: Items, precision: Precision, n_samples: int
) -> FloatArray:
    """Loss of the task on the items of each sample, ``(n_samples,)``; 0 for one without items.

    A loss is a weighted sum over items, so that its gradient with respect to their weights is the
    loss of each.
    """
    network = inference_network(network)

    def compute(batch: Batch) -> FloatArray:
        logits = network.logits(batch)
        with torch.inference_mode(False), torch.enable_grad():
            batch = replace(batch, weights=batch.weights.clone().requires_grad_())
            loss, _ = task.loss(logits.clone(), batch)
            (losses,) = torch.autograd.grad(loss, batch.weights)
        return losses.cpu().numpy()

    by_sample = np.zeros(n_samples)
    for item_indices, losses in _batch_by_batch(network, items, precision, compute):
        weighted = losses * items.weights[item_indices]
        np.add.at(by_sample, items.samples[item_indices], weighted)
    return by_sample


def _counted(
    batches: Iterator[tuple[IntArray, Computed]], samples: IntArray, equal_to: IntArray,
    on_samples: OnSamples | None,
) -> Iterator[tuple[IntArray, Computed]]:  # fmt: skip
    """The same batches; after each, ``on_samples`` hears how many more samples are complete.

    ``samples`` says whose each row is, and ``equal_to`` which of the computed rows it is equal to.
    """
    if on_samples is None:
        yield from batches
        return
    is_waiting = np.ones(len(samples), bool)
    n_waiting = len(np.unique(samples))
    for item_indices, computed in batches:
        yield item_indices, computed
        is_waiting[item_indices] = False
        n_left = int(np.count_nonzero(np.bincount(samples, is_waiting[equal_to])))
        on_samples(n_waiting - n_left)
        n_waiting = n_left


def in_parts(
    sizes: IntArray, budget: int, compute: Callable[[IntArray], Computed]
) -> Iterator[tuple[IntArray, Computed]]:
    """Indices of up to ``budget`` tokens, and what is computed for them.

    Where memory runs out, half as many are computed together.
    """
    waiting = by_length(sizes, budget)
    while waiting:
        item_indices = waiting.pop()
        try:
            with deferred_forks():
                computed = compute(item_indices)
        except Exception as error:
            if not is_out_of_memory(error) or len(item_indices) == 1:
                raise
            waiting += np.array_split(item_indices, 2)
            continue
        yield item_indices, computed


def _most_tokens(network: Network, precision: Precision) -> int:
    """How many tokens are computed together while memory lasts."""
    most = INFERENCE_TOKENS[precision.device.type]
    if precision.device.type != "cpu":
        return most
    name = network.family.settings.get("intermediate_size", "intermediate_size")
    width: int = getattr(network.model.config, name)
    token_bytes = width * precision.compute_dtype.itemsize
    return min(most, max(_FEWEST_TOKENS, _MOST_BYTES // token_bytes))


def _batch_by_batch(
    network: Network, items: Items, precision: Precision, compute: Callable[[Batch], Computed]
) -> Iterator[tuple[IntArray, Computed]]:
    """Item indices, and what is computed for them, in smaller batches where memory runs out."""
    if precision.is_int8:
        check_int8(network)
    keep_freed_memory()
    budget = Budget(_most_tokens(network, precision))
    sizes = items.sizes
    waiting = by_length(sizes, budget.tokens)[::-1]
    while waiting:
        item_indices = waiting.pop()
        try:
            with deferred_forks(), precision.autocast():
                batch = collate(items, item_indices, precision.device, precision.weight_dtype)
                computed = compute(batch)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            budget.halve(error, precision.device, int(sizes[item_indices].min()))
            rest = np.concatenate([item_indices, *waiting[::-1]])  # all of it is planned again
            parts = by_length(sizes[rest], budget.tokens)
            waiting = [rest[part] for part in parts][::-1]
            continue
        raise_deferred()
        yield item_indices, computed
