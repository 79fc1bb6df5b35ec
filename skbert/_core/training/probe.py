"""Start the head from a linear model on frozen features, before anything else trains.

Linear probing first keeps fine-tuning from distorting good features while the head is still
random (Kumar et al. 2022, "Fine-tuning can distort pretrained features and underperform
out-of-distribution"). Depends on torch, a network and a task's own loss, so that it serves
every task alike.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from skbert._core.batches import collate
from skbert._core.infer import infer
from skbert._core.items import Items
from skbert._core.models.network import Network
from skbert._core.runtime.device import Precision
from skbert._core.runtime.forks import deferred_forks
from skbert._core.runtime.interrupts import raise_deferred
from skbert._core.task import Task
from skbert._core.training.kept_heads import KEPT_HEADS, key_of

__all__ = ["probe"]

_ITERATIONS = 60
_TOLERANCE = 1e-4  # on the largest entry of the gradient of the mean loss
_MAX_TOKENS = 100_000  # about how many to compute features of at most


def probe(
    network: Network,
    task: Task,
    items: Items,
    precision: Precision,
    n_label_items: int = 0,
    origin: object = None,
) -> None:
    """Fit the output layer on frozen features, by L-BFGS on the task's loss.

    The L2 penalty is half the squared norm of the weights over the total sample weight, which for
    a cross-entropy of three classes or more is scikit-learn's ``LogisticRegression(C=1)``; it is
    larger where the task's head says so. For numbers of variance 1 it is the variance of the
    features, as if they explained half of the numbers.

    The last ``n_label_items`` items are texts of labels. Such texts are short, and the mean of few
    tokens is a longer vector than that of many: their features get the length that those of the
    other items have on average, or they themselves where there are no others.

    ``origin`` is equal for equal networks and tasks, or None where nothing is known of them. What
    was fitted to the same items for these is not fitted again, as for the candidates of a search.
    """
    share = _MAX_TOKENS / items.sizes.sum()
    if share < 1.0:
        n_others = len(items) - n_label_items
        some = torch.randperm(n_others)[: max(1, int(share * n_others))].sort().values.numpy()
        items = items.take(np.concatenate([some, np.arange(n_others, len(items))]))
    if origin is None:
        _fit(network, task, items, precision, n_label_items)
        return
    key = key_of(origin, items, precision, n_label_items)
    if not KEPT_HEADS.take(key, network.output_layer):
        _fit(network, task, items, precision, n_label_items)
        KEPT_HEADS.keep(key, network.output_layer)


def _fit(
    network: Network, task: Task, items: Items, precision: Precision, n_label_items: int
) -> None:
    """Fit the output layer on features of all of these items."""
    layer = network.output_layer
    features = torch.from_numpy(infer(network, items, precision, forward=Network.features).values)
    if n_label_items:
        _scale_last(features, n_label_items)
    features = features.to(network.device)
    items = replace(items, states=None)  # they have been read, and may be large
    everything = collate(items, np.arange(len(items)), network.device, precision.weight_dtype)
    least = _variance(features, everything.weights) if network.head.has_standard_targets else 1.0
    optimizer = torch.optim.LBFGS(
        layer.parameters(),
        max_iter=_ITERATIONS,
        tolerance_grad=_TOLERANCE,
        line_search_fn="strong_wolfe",
    )

    @deferred_forks()
    def mean_loss() -> torch.Tensor:
        raise_deferred()
        optimizer.zero_grad()
        total, weight = task.loss(layer(features), everything)
        ridge = torch.clamp(network.head.ridge * weight.square(), min=least)
        loss: torch.Tensor = (total + 0.5 * ridge * layer.weight.square().sum()) / weight
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimizer.step(mean_loss)  # type: ignore[no-untyped-call]
    optimizer.zero_grad()


def _variance(features: torch.Tensor, weights: torch.Tensor) -> float:
    """Sum of the variances of the features ``(n_rows, n_features)`` of weighted rows."""
    shares = (weights / weights.sum()).to(features.dtype)
    deviations = features - shares @ features
    return float(shares @ deviations.square().sum(dim=1))


def _scale_last(features: torch.Tensor, n_last: int) -> None:
    """Give the last rows the mean length of those before, or of all where there are no others."""
    lengths = features.norm(dim=1, keepdim=True)
    usual = (lengths[:-n_last] if n_last < len(features) else lengths).mean()
    features[-n_last:] *= usual / lengths[-n_last:].clamp(min=torch.finfo(lengths.dtype).tiny)
