"""What a BERT can be pre-trained on: the task of each objective, what is drawn for it, its loss.

Depends on the tasks, the stairs and ``_core``; is handed estimators, never imports one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from skbert._core.infer import mean_loss
from skbert._core.models.network import Network, twin_of
from skbert._core.models.new_model import NewModel, check_sizes, learn_vocabulary
from skbert._core.runtime.device import Precision, pick_device
from skbert._core.task import Task
from skbert._estimator.base import encode
from skbert._estimator.fitting import Draw, as_they_are
from skbert._pretraining.masking import mask, pair, pair_and_mask
from skbert._pretraining.tasks import MaskedWords, NextSentence, NextWord, WordsAndSentences
from skbert._validation.documents import Documents, check_sentences
from skbert.exceptions import InputError

__all__ = ["SIZES", "TASKS", "blank_for", "draw_of", "loss_of", "reader", "require"]

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


def draw_of(estimator: Any, objective: str, max_length: int) -> Draw:
    """What is drawn anew for each pass."""
    how = {"fraction": estimator.mask_fraction, "whole_words": estimator.whole_words}
    draws: dict[str, Draw] = {
        "mlm": partial(mask, **how),
        "nsp": partial(pair, max_length=max_length),
        "mlm+nsp": partial(pair_and_mask, max_length=max_length, **how),
        "clm": as_they_are,
    }
    return draws[objective]


def blank_for(estimator: Any, documents: Documents) -> NewModel:
    """A model of the estimator's sizes, its vocabulary learned from the documents."""
    config: dict[str, Any] = {name: int(getattr(estimator, name)) for name in SIZES}
    config["position_embedding_type"] = estimator.position_embedding_type
    asked = {} if estimator.vocab_size is None else {"vocab_size": int(estimator.vocab_size)}
    check_sizes({**config, **asked})
    texts = list(chain.from_iterable(documents.rows))
    lowercase = bool(estimator.lowercase)
    vocabulary = learn_vocabulary(texts, estimator.vocab_size, lowercase=lowercase)
    return NewModel({**config, "vocab_size": len(vocabulary)}, vocabulary, lowercase)


def require(estimator: Any, method: str, *objectives: str) -> str:
    """The objective that the estimator is fitted to, which must be one of those given."""
    check_is_fitted(estimator)
    learned = next(name for name, task in TASKS.items() if task is type(estimator._task))
    if learned not in objectives:
        raise InputError(
            f"A model with objective={learned!r} has no {method}. Fit with "
            f"objective={' or '.join(map(repr, objectives))}."
        )
    return learned


def reader(estimator: Any, task: Task) -> tuple[Network, Precision]:
    """The network with the head that the task needs, which is its own or a part of it."""
    precision = Precision(estimator.precision, pick_device(estimator.device))
    estimator._network.to(precision.device, precision.weights)
    network = twin_of(estimator._network)
    network.head = task.head()
    return network, precision


def loss_of(estimator: Any, documents: Any, objective: str) -> float:
    """Mean loss on an objective, which is the fitted estimator's or a part of it.

    What is drawn is drawn alike in every call.
    """
    if "nsp" in objective:
        check_sentences(documents, objective)
    max_length = estimator._task.max_length
    task = TASKS[objective](max_length)
    network, precision = reader(estimator, task)
    items = encode(task, documents, True, network)
    draw = draw_of(estimator, objective, max_length)
    items = draw(network.text, items, np.random.default_rng(0))
    return mean_loss(network, task, items, precision)
