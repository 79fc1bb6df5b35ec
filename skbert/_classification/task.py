"""The classification tasks.

They see codes, probabilities and indicators only; the labels themselves stay in ``classes_``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from skbert._arrays import Array, IntArray, is_arange
from skbert._core.items import Head, Items, name_outputs
from skbert._core.scores import expit, logit, softmax
from skbert._core.text.fields import encode_rows
from skbert._core.text.tokens import LongText, Ragged, TextTokenizer
from skbert._core.text.windows import mean_by_sample
from skbert._validation.texts import Texts
from skbert.exceptions import ModelError

if TYPE_CHECKING:
    import torch

    from skbert._core.task import Batch, Task

__all__ = [
    "ONE_CLASS",
    "SEVERAL",
    "MultiLabel",
    "SeveralLabels",
    "SingleLabel",
    "columns_of",
    "describe",
    "split",
    "starts_of",
]

# In config.json, of a model whose outputs are those of several columns, or of one class alone.
SEVERAL, ONE_CLASS = "several classes", "one class"


@dataclass(frozen=True)
class SingleLabel:
    """One of ``n_classes`` classes per sample.

    Targets are codes, ``(n_items,)`` int64, or probabilities, ``(n_items, n_classes)``.
    """

    n_classes: int
    max_length: int
    long_text: LongText = "truncate"
    label_smoothing: float = 0.0
    pools_scores: ClassVar[bool] = True  # `decode` gives what `loss` reads, of whole samples

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
        from torch.nn import functional as F

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

    # Factor on a label where it is there; the weight of a row is their mean already.
    positive_weights: tuple[float, ...] | None = None

    def loss(self, logits: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Binary cross-entropy; a row weighs its weight once for each label."""
        from torch.nn import functional as F

        assert batch.targets is not None
        smooth = self.label_smoothing
        weights: torch.Tensor | None = None
        if self.positive_weights is not None:  # of both parts of a smoothed label
            factors = 1 + batch.targets * (logits.new_tensor(self.positive_weights) - 1)
            weights = _of_mean_1(factors)
        losses = F.binary_cross_entropy_with_logits(
            logits, batch.targets * (1 - smooth) + smooth / 2, weights, reduction="none"
        )
        return (losses.sum(dim=1) * batch.weights).sum(), batch.weights.sum() * self.n_classes

    def decode(self, outputs: Ragged, items: Items) -> Array:
        """Scores ``(n_samples, n_classes)`` whose logistic function is the probability."""
        return _pooled(outputs, items, expit, logit)


@dataclass(frozen=True)
class SeveralLabels(SingleLabel):
    """One class of each of several columns per sample.

    Targets are codes, ``(n_items, n_columns)`` int64. The outputs are those of the first column,
    then those of the second, and so on.
    """

    sizes: tuple[int, ...] = ()  # number of classes of each column
    # Factor on a class, for all outputs; the weight of a row is their mean already.
    class_weights: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        weights = self.class_weights
        is_whole = sum(self.sizes) == self.n_classes and min(self.sizes, default=1) > 0
        if not is_whole or (weights is not None and len(weights) != self.n_classes):
            raise ValueError(f"sizes={self.sizes} of {self.n_classes} outputs")

    def loss(self, logits: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Cross-entropy of all columns; a row weighs its weight once for each column."""
        import torch
        from torch.nn import functional as F

        assert batch.targets is not None
        weights = batch.weights[:, None] * _of_mean_1(self._factors(logits, batch.targets))
        blocks, columns = torch.split(logits, [*self.sizes], dim=1), batch.targets.unbind(dim=1)
        losses = [
            F.cross_entropy(block, codes, reduction="none", label_smoothing=self.label_smoothing)
            for block, codes in zip(blocks, columns, strict=True)
        ]
        return (torch.stack(losses, dim=1) * weights).sum(), weights.sum()

    def _factors(self, logits: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
        """The factor on the class of each sample in each column."""
        import torch

        if self.class_weights is None:
            return logits.new_ones(codes.shape)
        starts = torch.as_tensor(starts_of(self), device=codes.device)
        return logits.new_tensor(self.class_weights)[codes + starts]

    def decode(self, outputs: Ragged, items: Items) -> Array:
        """Scores ``(n_samples, n_classes)`` of which each column's softmax is the probability."""
        return _pooled(outputs, items, self._probability, np.log)

    def _probability(self, scores: Array) -> Array:
        return np.concatenate([softmax(part, axis=1) for part in split(self, scores)], axis=1)


def starts_of(task: SeveralLabels) -> IntArray:
    """Where the outputs of each column begin."""
    return np.asarray(np.cumsum(task.sizes) - task.sizes)


def split(task: SeveralLabels, scores: Array) -> list[Array]:
    """The scores of each column, ``(n_samples, its n_classes)``."""
    return np.split(scores, starts_of(task)[1:], axis=1)


def mean_factors(task: MultiLabel, present: Array) -> Array:
    """The mean factor on the labels of each row, ``(n,)``, of an indicator matrix."""
    n_classes = present.shape[1]
    factors = np.ones(n_classes) if task.positive_weights is None else task.positive_weights
    means: Array = 1 + present @ (np.asarray(factors) - 1) / n_classes
    return means


def _of_mean_1(factors: torch.Tensor) -> torch.Tensor:
    """Factors, ``(n_items, n)``, divided by their mean in each row; 0 where all of a row are."""
    mean = factors.mean(dim=1, keepdim=True)
    return factors / mean.masked_fill(mean == 0, 1.0)


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
    if is_arange(items.samples, len(items)):
        return scores
    _, first, counts = np.unique(items.samples, return_index=True, return_counts=True)
    limits = np.finfo(scores.dtype)
    mean = mean_by_sample(probability(scores), items.samples)
    pooled = score(np.clip(mean, limits.tiny, 1 - limits.epsneg))
    return np.where((counts == 1)[:, None], scores[first], pooled)


def describe(config: Any, task: Task, classes: Any, columns: Iterable[str] = ()) -> None:
    """Note in a model's configuration what its outputs mean; ``columns`` are names of y's."""
    names = classes
    vars(config).pop("skbert_targets", None)
    config.problem_type = "single_label_classification"
    if isinstance(task, SingleLabel) and len(classes) == 1:  # transformers has no type for it
        config.skbert_targets, config.problem_type = ONE_CLASS, None
    if isinstance(task, SeveralLabels):  # and none for these
        names = [f"{at}: {name}" for at, column in enumerate(classes) for name in column]
        config.skbert_targets, config.problem_type = SEVERAL, None
    if isinstance(task, MultiLabel):
        config.problem_type, names = "multi_label_classification", columns
    name_outputs(config, names)


def columns_of(outputs: list[str]) -> list[Array]:
    """The classes of each column, in the order of the outputs, whose names `describe` noted.

    Raises
    ------
    ModelError
        If the names of the outputs are no such notes.
    """
    names = [output.partition(": ") for output in outputs]
    columns = {at: [name for number, _, name in names if number == at] for at, *_ in names}
    numbers = [str(at) for at, column in enumerate(columns.values()) for _ in column]
    if numbers != [number for number, *_ in names]:
        raise ModelError(
            "The checkpoint predicts several columns of classes, but the names in id2label of its"
            " config.json do not begin with '0: ' and so on. Restore that file from a whole copy."
        )
    return [np.array(column) for column in columns.values()]
