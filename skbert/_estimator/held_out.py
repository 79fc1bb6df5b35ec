"""HeldOut: the rows that a fit does not train on, and the loss and score of the network on them.

Depends on the plan of a fit and on ``_core``; imports no estimator.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from skbert._arrays import Array
from skbert._core.batches import collate
from skbert._core.infer import infer, mean_loss
from skbert._core.models.network import Network
from skbert._core.runtime.device import Precision
from skbert._core.task import Items, Task
from skbert._core.text.tokens import Ragged, TextTokenizer
from skbert._core.training.watch import hold_out
from skbert._estimator.plan import Metric, TrainingPlan, Tune
from skbert.exceptions import InputError

__all__ = ["HeldOut", "decode", "loss_of", "split", "validate"]

_CPU = torch.device("cpu")


@dataclass(frozen=True)
class HeldOut:
    """The rows that a fit does not train on, and what is computed on them."""

    items: Items
    task: Task
    metric: Metric | None
    tune: Tune | None  # after training


def split(
    items: Items, fraction: float | None, plan: TrainingPlan, seed: int, tokenizer: TextTokenizer
) -> tuple[Items, HeldOut | None]:
    """Items to train on and rows held out, by sample; items held out are drawn only once."""
    if fraction is None:
        return items.weighted(plan.weights), None
    n_samples = int(items.samples[-1]) + 1
    if n_samples < 2:
        raise InputError(
            "validation_fraction needs at least 2 rows, one to train on and one to hold out; "
            "X has 1. Use validation_fraction=None."
        )
    parts = hold_out(n_samples, fraction, np.random.default_rng(seed), plan.strata)
    training, validation = (items.of_samples(part).weighted(plan.weights) for part in parts)
    if not len(training) or not len(validation):
        raise InputError(
            "All training rows or all validation rows have a weight of 0. Use "
            "validation_fraction=None, or drop the rows with a weight of 0."
        )
    drawn = plan.draw(tokenizer, validation, np.random.default_rng(seed))
    return training, HeldOut(drawn, plan.task, plan.metric, plan.tune)


def loss_of(outputs: Ragged, held_out: HeldOut, precision: Precision) -> float:
    """Mean loss of the rows held out, computed from the outputs of the head."""
    items = held_out.items
    batch = collate(items, np.arange(len(items)), _CPU, precision.weight_dtype)
    loss, weight = held_out.task.loss(torch.from_numpy(outputs.values), batch)
    return float(loss / weight)


def decode(
    network: Network, held_out: HeldOut, precision: Precision
) -> tuple[Ragged, Array, Array]:
    """The head's outputs for the items held out, what the task decodes from them, and the rows."""
    items = held_out.items
    outputs = infer(network, items, precision)
    return outputs, held_out.task.decode(outputs, items), np.unique(items.samples)


def validate(network: Network, held_out: HeldOut, precision: Precision) -> dict[str, float]:
    """Loss and score on the rows held out with the weights as they are now."""
    if held_out.metric is None:
        loss = mean_loss(network, held_out.task, held_out.items, precision)
        return {"validation_loss": loss}
    outputs, decoded, rows = decode(network, held_out, precision)
    return {
        "validation_loss": loss_of(outputs, held_out, precision),
        "validation_score": held_out.metric(decoded, rows),
    }
