"""HeldOut: the rows that a fit does not train on, and the loss and score of the network on them.

Depends on the plan of a fit and on ``_core``; imports no estimator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from skbert._arrays import Array, IntArray
from skbert._core.batches import collate
from skbert._core.infer import infer, mean_loss
from skbert._core.items import Items
from skbert._core.models.network import Network
from skbert._core.runtime.device import Precision
from skbert._core.task import Task
from skbert._core.text.tokens import Ragged, TextTokenizer
from skbert._core.training.watch import hold_out, hold_out_groups
from skbert._estimator.fit_data import FitData
from skbert._estimator.plan import Metric, TrainingPlan, Tune
from skbert.exceptions import InputError

__all__ = [
    "HeldOut", "best_pass", "held_out_items", "loss_of", "merit_of", "rows_to_hold_out", "split",
    "tune", "validate",
]  # fmt: skip

_CPU = torch.device("cpu")


@dataclass(frozen=True)
class HeldOut:
    """The rows that a fit does not train on, and what is computed on them."""

    items: Items
    task: Task
    metric: Metric | None
    tune: Tune | None  # after training
    conform: Tune | None = None  # after that
    scoring: Callable[[], float] | None = None  # computes the score in place of the metric

    @property
    def rows(self) -> IntArray:
        """The numbers of the rows, ascending; those with a weight of 0 are left out."""
        return np.unique(self.items.samples)


def rows_to_hold_out(
    fraction: float | None, data: FitData, plan: TrainingPlan, seed: int
) -> tuple[IntArray, IntArray] | None:
    """Rows of X to train on and rows to hold out, by group or else by stratum; None: all."""
    if fraction is None or data.validation is not None:
        return None
    n_rows, rng = len(data.rows), np.random.default_rng(seed)
    if n_rows < 2:
        raise InputError(
            "validation_fraction needs at least 2 rows, one to train on and one to hold out; "
            "X has 1. Use validation_fraction=None."
        )
    if data.groups is not None:
        return hold_out_groups(data.groups, fraction, rng)
    return hold_out(n_rows, fraction, rng, plan.strata)


def split(
    items: Items, parts: tuple[IntArray, IntArray], plan: TrainingPlan, seed: int,
    tokenizer: TextTokenizer,
) -> tuple[Items, HeldOut]:  # fmt: skip
    """Items of the rows to train on, and of the rows held out."""
    training, validation = (items.of_samples(part).weighted(plan.weights) for part in parts)
    if not len(training) or not len(validation):
        raise InputError(
            "All training rows or all validation rows have a weight of 0 or hold nothing to learn "
            "from. Use validation_fraction=None, or drop such rows."
        )
    return training, held_out_items(validation, plan, seed, tokenizer)


def held_out_items(
    items: Items, plan: TrainingPlan, seed: int, tokenizer: TextTokenizer
) -> HeldOut:
    """These items, to validate on; what a pass draws from them is drawn only once."""
    if not len(items):
        raise InputError(
            "All rows to validate on have a weight of 0 or hold nothing to learn from. Give other "
            "ones, or leave out validation_fraction and X_val."
        )
    drawn = plan.draw(tokenizer, items, np.random.default_rng(seed))
    return HeldOut(drawn, plan.task, plan.metric, plan.tune, plan.conform)


def loss_of(outputs: Ragged, held_out: HeldOut, precision: Precision) -> float:
    """Mean loss of the rows held out, computed from the outputs of the head."""
    items = replace(held_out.items, states=None)  # which no loss reads
    batch = collate(items, np.arange(len(items)), _CPU, precision.weight_dtype)
    loss, weight = held_out.task.loss(torch.from_numpy(outputs.values), batch)
    return float(loss / weight)


def decode(
    network: Network, held_out: HeldOut, precision: Precision
) -> tuple[Ragged, Array, Array]:
    """The head's outputs for the items held out, what the task decodes from them, and the rows."""
    items = held_out.items
    outputs = infer(network, items, precision)
    return outputs, held_out.task.decode(outputs, items), held_out.rows


def tune(network: Network, held_out: HeldOut, precision: Precision) -> dict[str, Any]:
    """The attributes that are tuned or measured on the rows held out, with the final weights."""
    uses = [use for use in (held_out.tune, held_out.conform) if use is not None]
    if not uses:
        return {}
    _, decoded, rows = decode(network, held_out, precision)
    return {name: value for use in uses for name, value in use(decoded, rows).items()}


def validate(network: Network, held_out: HeldOut, precision: Precision) -> dict[str, float]:
    """Loss and score on the rows held out with the weights as they are now."""
    if held_out.metric is None:
        record = {"validation_loss": mean_loss(network, held_out.task, held_out.items, precision)}
    else:
        outputs, decoded, rows = decode(network, held_out, precision)
        record = {
            "validation_loss": loss_of(outputs, held_out, precision),
            "validation_score": held_out.metric(decoded, rows),
        }
    if held_out.scoring is not None:
        record["validation_score"] = held_out.scoring()
    return record


def merit_of(record: Mapping[str, float], scoring: object) -> float:
    """How good the weights are after a pass, as ``scoring`` says; a larger number is better."""
    return -record["validation_loss"] if scoring == "loss" else record["validation_score"]


def best_pass(history: Sequence[Mapping[str, float]], scoring: object) -> int:
    """The first of the best passes, which is the one whose weights are kept; the last without."""
    merits = np.array([merit_of(record, scoring) for record in history])
    return len(merits) - 1 if np.isnan(merits).all() else int(np.nanargmax(merits))
