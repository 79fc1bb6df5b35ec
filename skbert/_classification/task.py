"""The two classification tasks, and the classes that labels make.

Tasks see codes and indicators only; the labels themselves stay in ``classes_``.
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
from skbert._core.text.tokens import LongText, Ragged, TextTokenizer, encode_texts
from skbert._core.text.windows import mean_by_sample
from skbert._validation.texts import Texts
from skbert.exceptions import InputError, InputTypeError

__all__ = [
    "MultiLabel", "SingleLabel", "codes_of", "describe", "indicator_columns", "is_right",
    "union_of",
]  # fmt: skip

_Labels = Array


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
        rows = encode_texts(tokenizer, X.first, X.second, self.max_length, self.long_text)
        return Items.one_row_each(rows, y)

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


def indicator_columns(n_classes: int, known: int, named: Array) -> Array:
    """The labels of an indicator matrix, which are its column numbers."""
    if n_classes != known:
        raise InputError(
            f"y has {n_classes} columns, but the fitted estimator knows {known} labels. Give the "
            "same columns, or fit anew with warm_start=False."
        )
    classes = np.arange(n_classes)
    if len(named) and not np.array_equal(np.unique(named), classes):
        raise InputError(
            f"classes={named.tolist()!r:.80} does not fit y, an indicator matrix of {n_classes} "
            "columns, whose labels are the column numbers. Leave classes out, and give y a column "
            "for every label there will be."
        )
    return classes


def describe(config: Any, task: Task, classes: Array) -> None:
    """Note in a model's configuration what its outputs mean."""
    multi_label = isinstance(task, MultiLabel)
    config.problem_type = f"{'multi' if multi_label else 'single'}_label_classification"
    if not multi_label:
        config.id2label = {i: str(name) for i, name in enumerate(classes)}
        config.label2id = {str(name): i for i, name in enumerate(classes)}


def is_right(labels: _Labels, predicted: _Labels, classes: _Labels) -> _Labels:
    """Whether what was predicted of each row is its label, or all its labels."""
    if labels.shape != predicted.shape:
        one, several = "one label", "an indicator matrix of {} columns"
        forms = [one if part.ndim == 1 else several.format(part.shape[1])
                 for part in (labels, predicted)]  # fmt: skip
        raise InputError(
            f"y holds {forms[0]} per row, but the estimator predicts {forms[1]}. Give y in the "
            "form that it had in fit."
        )
    if labels.ndim == 2:
        return np.asarray((labels == predicted).all(axis=1))
    _refuse_other_kind(labels, classes)
    # As objects: numpy rounds integers of 64 bits that it compares with floats.
    return np.asarray(labels.astype(object) == predicted.astype(object))


def _refuse_other_kind(labels: _Labels, known: _Labels) -> None:
    """Raise where labels are str and classes numbers, or the other way round."""
    label, other = labels.tolist()[0], known.tolist()[0]
    if isinstance(label, str) != isinstance(other, str):
        raise InputTypeError(
            f"y mixes str and numbers: row 0 is {label!r}, but the classes known or given are "
            f"like {other!r}. Labels must be of one kind; type y = [str(label) for label in y], "
            "or fit anew with warm_start=False."
        )


def union_of(labels: _Labels, *known: _Labels) -> _Labels:
    """All classes there are, sorted: those in ``labels`` and those known before."""
    known = tuple(part for part in known if len(part))
    for other in known:
        _refuse_other_kind(labels, other)
    parts = [np.unique(part) for part in (labels, *known)]
    if isinstance(parts[0].tolist()[0], str):
        return np.unique(np.concatenate(parts))
    for dtype in (np.result_type(*parts), np.dtype(np.int64), np.dtype(np.uint64)):
        with np.errstate(invalid="ignore"):  # numbers that this type does not hold
            whole = [part.astype(dtype) for part in parts]
        if [part.tolist() for part in whole] == [part.tolist() for part in parts]:
            return np.unique(np.concatenate(whole))
    raise InputError(
        f"No type of numbers holds all labels: y has {_ends(parts[0])}, and the classes known or "
        f"given are {', '.join(map(_ends, parts[1:]))}. Type y = [str(label) for label in y], and "
        "fit anew with warm_start=False."
    )


def _ends(part: _Labels) -> str:
    """The smallest and the largest of sorted labels, and their type."""
    return f"{part[0]} to {part[-1]} ({part.dtype})"


def codes_of(labels: _Labels, classes: _Labels) -> _Labels:
    """Position of each label in the classes."""
    if classes.dtype.kind in "biuf":  # else numpy compares integers of two types as floats
        labels = labels.astype(classes.dtype)
    return np.searchsorted(classes, labels)
