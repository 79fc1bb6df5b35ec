"""What a BERT can be pre-trained on: the task of each objective, and what is drawn for it.

Depends on the tasks, the training plan and ``_core``; imports no estimator.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import Any

from skbert._core.families import NEW
from skbert._core.models.new_model import NewModel, check_sizes, learn_vocabulary
from skbert._core.task import Task
from skbert._core.training.loop import DrawItems, as_they_are
from skbert._pretraining.masking import mask, pair, pair_and_mask
from skbert._pretraining.tasks import MaskedWords, NextSentence, NextWord, WordsAndSentences
from skbert._validation.documents import Documents
from skbert.exceptions import InputError

__all__ = ["SIZES", "TASKS", "check_objective", "draw_of", "new_model"]

TASKS: dict[str, Callable[[int], Task]] = {
    "mlm": MaskedWords,
    "mlm+nsp": WordsAndSentences,
    "nsp": NextSentence,
    "clm": NextWord,
}
SIZES = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
    "max_position_embeddings",
)  # fmt: skip


def draw_of(objective: str, max_length: int, fraction: float, *, whole_words: bool) -> DrawItems:
    """What draws the items of each pass."""
    masks: dict[str, Any] = {"fraction": fraction, "whole_words": whole_words}
    draws: dict[str, DrawItems] = {
        "mlm": partial(mask, **masks),
        "nsp": partial(pair, max_length=max_length),
        "mlm+nsp": partial(pair_and_mask, max_length=max_length, **masks),
        "clm": as_they_are,
    }
    return draws[objective]


def new_model(
    config: dict[str, Any], documents: Documents, vocab_size: int | None, *, lowercase: bool
) -> NewModel:
    """A model of the sizes in ``config``, with a vocabulary learned from the documents."""
    check_sizes(NEW, config if vocab_size is None else {**config, "vocab_size": vocab_size})
    texts = list(chain.from_iterable(documents.rows))
    vocabulary = learn_vocabulary(texts, vocab_size, lowercase=lowercase)
    return NewModel(NEW, {**config, "vocab_size": len(vocabulary)}, vocabulary, lowercase)


def check_objective(task: Task, method: str, *objectives: str) -> str:
    """The objective of a fitted task, which must be one of those that the method is for."""
    learned = next(name for name, kind in TASKS.items() if kind is type(task))
    if learned not in objectives:
        raise InputError(
            f"A model with objective={learned!r} has no {method}. Fit with "
            f"objective={' or '.join(map(repr, objectives))}."
        )
    return learned
