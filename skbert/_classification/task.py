"""The two classification tasks.

They see codes and indicators only; the labels themselves stay in ``classes_``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.special import expit, logit, softmax
from torch.nn import functional as F

from skbert._arrays import Array
from skbert._core.task import Batch, Head, Items, Task
from skbert._core.text.fields import encode_rows
from skbert._core.text.tokens import LongText, Ragged, TextTokenizer
from skbert._core.text.windows import mean_by_sample
from skbert._validation.texts import Texts

__all__ = ["MultiLabel", "SingleLabel", "describe"]


@dataclass(frozen=True)
class SingleLabel:
    """One of ``n_classes`` classes per sample. Targets are codes, ``(n_items,)`` int64."""

    n_classes: int
    max_length: int
    long_text: LongText = "truncate"
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.label_smoothing <= 1:
            raise ValueError(f"label_smoothing={self.label_smoothing} is no share.")

    def encode(self, X: Texts, y: Any, tokenizer: TextTokenizer) -> Items:
        """One item per text, or per window of a long one."""
        rows = encode_rows(tokenizer, X, self.max_length, self.long_text)
        return Items.one_row_each(rows, y, X.features)

    def head(self) -> Head:
        """One logit per class."""
        return Head("sequence classification", self.n_classes)

    def loss(self, logits: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Cross-entropy."""
        assert batch.targets is not None
        losses = F.cross_entropy(
            logits, batch.targets, reduction="none", label_smoothing=self.label_smoothing
        )
        return (losses * batch.weights).sum(), batch.weights.sum()

    def decode(self, outputs: Ragged, items: Items) -> Array:
        """Scores ``(n_samples, n_classes)`` whose softmax is the probability.

        Logits as they are where a sample is one item, else the log of the mean probability.
        """
        return _pooled(outputs, items, lambda scores: softmax(scores, axis=1), np.log)


@dataclass(frozen=True)
class MultiLabel(SingleLabel):
    """Any of ``n_classes`` labels per sample. Targets are 0 or 1, ``(n_items, n_classes)``."""

    positive_weights: tuple[float, ...] | None = None  # factor on a label where it is there

    def loss(self, logits: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Binary cross-entropy; a row weighs its weight once for each label."""
        assert batch.targets is not None
        smooth = self.label_smoothing
        factors = None if self.positive_weights is None else logits.new_tensor(
            self.positive_weights)  # fmt: skip
        losses = F.binary_cross_entropy_with_logits(
            logits, batch.targets * (1 - smooth) + smooth / 2,
            reduction="none", pos_weight=factors,
        )  # fmt: skip
        return (losses.sum(dim=1) * batch.weights).sum(), batch.weights.sum() * self.n_classes

    def decode(self, outputs: Ragged, items: Items) -> Array:
        """Scores ``(n_samples, n_classes)`` whose logistic function is the probability."""
        return _pooled(outputs, items, expit, logit)


def _pooled(
    outputs: Ragged,
    items: Items,
    probability: Callable[[Array], Array],
    score: Callable[[Array], Array],
) -> Array:
    """Scores as they are where a sample is one item, else the score of its mean probability.

    What a sample gets depends on itself alone, and is finite.
    """
    scores = outputs.values
    _, first, counts = np.unique(items.samples, return_index=True, return_counts=True)
    if len(counts) == len(items):
        return scores
    limits = np.finfo(scores.dtype)
    mean = mean_by_sample(probability(scores), items.samples)
    pooled = score(np.clip(mean, limits.tiny, 1 - limits.epsneg))
    return np.where((counts == 1)[:, None], scores[first], pooled)


def describe(config: Any, task: Task, classes: Array) -> None:
    """Note in a model's configuration what its outputs mean."""
    multi_label = isinstance(task, MultiLabel)
    config.problem_type = f"{'multi' if multi_label else 'single'}_label_classification"
    if not multi_label:
        config.id2label = {i: str(name) for i, name in enumerate(classes)}
        config.label2id = {str(name): i for i, name in enumerate(classes)}
