"""The task of the choice ranker: questions with options, one row for each option.

Depends on numpy, scipy, torch and ``_core``; knows no estimator.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from skbert._arrays import Array
from skbert._core.items import Head, Items
from skbert._core.scores import log_softmax
from skbert._core.text.tokens import EncodedTexts, LongText, Ragged, TextTokenizer, encode_texts
from skbert._validation.choices import Choices

if TYPE_CHECKING:
    import torch

    from skbert._core.task import Batch

__all__ = ["Choice"]


@dataclass(frozen=True)
class Choice:
    """Choose one of the options of each sample. Targets are positions ``(n_items,)``."""

    max_length: int
    cut: LongText = "truncate"

    def encode(self, X: Choices, y: Any, tokenizer: TextTokenizer) -> Items:
        """Return one item per question, with a row of prompt and option for each option."""
        counts = np.array([len(places) for places in X.places])
        owner = np.repeat(np.arange(len(X)), counts)
        options = [option for places in X.places for option in places]
        if X.second is not None:
            options = [f"{X.second[i]} {o}" for i, o in zip(owner, options, strict=True)]
        prompts = [X.first[i] for i in owner]

        def rows(which: Any, max_length: int) -> EncodedTexts:
            first, second = ([side[i] for i in which] for side in (prompts, options))
            return encode_texts(tokenizer, first, second, max_length, self.cut)

        tokens, _, n_cut, _ = rows(range(len(owner)), self.max_length)
        if n_cut:  # count the questions among the rows that are full
            full = np.flatnonzero(tokens.lengths == self.max_length)
            longer = rows(full, self.max_length + 1).tokens.lengths > self.max_length
            n_cut = len(np.unique(owner[full[longer]]))
        starts = np.concatenate([[0], np.cumsum(counts)])
        samples = np.arange(len(X))
        return Items(tokens, starts, samples, np.ones(len(X)), y, n_truncated=n_cut)

    def head(self) -> Head:
        """Return a head with one logit per row."""
        return Head("multiple choice", 1)

    def loss(self, logits: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the cross-entropy over the options of each question."""
        import torch

        from skbert._core.segments import log_softmax_within

        assert batch.targets is not None
        counts = batch.rows_per_item
        scores = log_softmax_within(logits, counts, batch.most_rows)[:, 0]
        losses = -scores[torch.cumsum(counts, 0) - counts + batch.targets]
        return (losses * batch.weights).sum(), batch.weights.sum()

    def decode(self, outputs: Ragged, items: Items) -> Array:
        """Return the log-probabilities of the options of each sample, ``(n_options,)`` each."""
        scores = np.empty(len(items), dtype=object)
        for sample in range(len(scores)):
            scores[sample] = log_softmax(outputs[sample][:, 0])
        return scores
