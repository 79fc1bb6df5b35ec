"""LabelRows: texts that say what labels mean, as rows to train on beside those of X.

Depends on the engine and on how texts are encoded; imports no job.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from skbert._arrays import Array
from skbert._core.items import Items, joined
from skbert._core.models.network import Network
from skbert._core.task import Task
from skbert._estimator.base import encode
from skbert.exceptions import InputError

__all__ = ["LabelRows", "with_label_rows"]


class LabelRows(NamedTuple):
    """Texts of labels, as rows to train on; they are never held out."""

    texts: Any | None  # what the task's encode takes as X; None: X holds nothing else
    targets: Array  # what it takes as y
    weights: Array  # (n_texts,) of the loss


def with_label_rows(
    items: Items, rows: LabelRows | None, task: Task, network: Network
) -> tuple[Items, int]:
    """The items of X, and then those of texts of labels; how many of them are of such texts."""
    if rows is None:
        if not len(items):
            raise InputError(
                "All rows have a weight of 0, which is that of sample_weight times class_weight. "
                "Give one of them a weight above 0."
            )
        return items, 0
    if rows.texts is None:
        return items, len(items)
    own = encode(task, rows.texts, rows.targets, network, "label_texts").weighted(rows.weights)
    n_samples = int(items.samples[-1]) + 1 if len(items) else 0
    both = joined([(replace(items, places=None), n_samples), (own, len(own))])
    unweighted = np.concatenate([items.base_weights, own.base_weights])
    return replace(both, unweighted=unweighted), len(own)
