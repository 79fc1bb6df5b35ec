"""What a BERT can be pre-trained on: the task of each objective, and what is drawn for it.

Depends on the tasks, the training plan and ``_core``; imports no estimator.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import Any

from skbert._core.families import FAMILIES
from skbert._core.families.record import Family
from skbert._core.models.new_model import Lowercase, NewModel, check_sizes, new_settings
from skbert._core.models.opening import new_tokenizer
from skbert._core.models.vocabulary import Pieces, learn_pieces
from skbert._core.task import Task
from skbert._core.training.loop import DrawItems, as_they_are
from skbert._pretraining.masking import mask, pair, pair_and_mask
from skbert._pretraining.tasks import MaskedWords, NextSentence, NextWord, WordsAndSentences
from skbert._validation.documents import Documents
from skbert.exceptions import InputError

__all__ = ["NEW_FAMILIES", "SIZES", "TASKS", "check_objective", "draw_of", "new_model"]

NEW_FAMILIES = {
    name: family
    for name, family in FAMILIES.items()
    if "masked language modelling" in family.heads
}

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
    family: Family,
    sizes: dict[str, Any],
    documents: Documents,
    vocab_size: int | None,
    *,
    lowercase: Lowercase,
) -> NewModel:
    """A model of a family and of these sizes, with a vocabulary learned from the documents."""
    config = new_settings(family, sizes)
    check_sizes(family, config if vocab_size is None else {**config, "vocab_size": vocab_size})
    kind, texts = family.tokenizers[0], list(chain.from_iterable(documents.rows))
    untrained = new_tokenizer(kind, Pieces.untrained(kind), lowercase).backend_tokenizer
    most = family.default_sizes["vocab_size"]
    pieces = learn_pieces(kind, untrained, texts, vocab_size, most)
    return NewModel(family, {**config, "vocab_size": len(pieces)}, pieces, lowercase)


def check_objective(task: Task, method: str, *objectives: str) -> str:
    """The objective of a fitted task, which must be one of those that the method is for."""
    learned = next(name for name, kind in TASKS.items() if kind is type(task))
    if learned not in objectives:
        raise InputError(
            f"A model with objective={learned!r} has no {method}. Fit with "
            f"objective={' or '.join(map(repr, objectives))}."
        )
    return learned
