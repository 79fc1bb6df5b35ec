"""The story of one fit: check, encode once, hold out, probe, pass after pass, restore the best.

Is handed the estimator; knows no task by name. Depends on the checks and on ``_core``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import fields
from typing import Any, NamedTuple

import numpy as np
from sklearn.utils import check_random_state

from skbert._check import Texts
from skbert._check_y import check_sample_weight
from skbert._core.device import Precision, pick_device, seeded
from skbert._core.encoder import Network, open_network
from skbert._core.loop import Recipe, train
from skbert._core.probe import probe
from skbert._core.source import find, vet
from skbert._core.task import Items, Task
from skbert._core.watch import Watch, hold_out
from skbert._report import Report, Run, decode_held, validate
from skbert.exceptions import InputError, TruncationWarning

__all__ = ["Lesson", "Run", "encode", "longest_row", "run_fit"]

_SHORTEST = 4  # tokens: the special tokens of a pair and one piece


# From what the task decodes of the rows held out, and which rows of X these are: their score, or
# attributes that are chosen on them.
Metric = Callable[[np.ndarray[Any, Any], np.ndarray[Any, Any]], float]
Tune = Callable[[np.ndarray[Any, Any], np.ndarray[Any, Any]], dict[str, Any]]


class Lesson(NamedTuple):
    """What ``y`` comes to: the task, its targets, and what the estimator learned from them."""

    task: Task
    targets: Any  # what the task's encode takes as y
    learned: dict[str, Any]  # attributes with trailing underscores
    metric: Metric
    strata: np.ndarray[Any, Any] | None = None  # (n_samples,) codes to hold out evenly by
    weights: np.ndarray[Any, Any] | None = None  # (n_samples,) of the loss; None: all alike
    tune: Tune | None = None  # after training


def run_fit(
    estimator: Any, X: Any, y: Any, sample_weight: Any, *, again: bool, epochs: int | None = None
) -> None:
    """Fit an estimator; ``again`` goes on from the weights at hand, if there are any."""
    _check_parameters(estimator)
    device = pick_device(estimator.device)
    precision = Precision(estimator.precision, device)
    old = _old_network(estimator, again=again)
    texts = estimator._read(X, fitting=old is None or estimator._seen is None)
    y, weight = _listed(y), check_sample_weight(_listed(sample_weight), len(texts))
    seed = _draw_seed(estimator.random_state)
    with seeded(seed, device):
        network, lesson = _open(estimator, texts, y, old, weight, precision)
        vars(estimator).pop("_network", None)  # not fitted until this fit is over
        network.to(device, precision.weights)
        if estimator.compile:
            network.compile()
        items = encode(lesson.task, texts, lesson.targets, network)
        learn, held = _split(items, estimator.validation_fraction, lesson, seed)
        recipe = _recipe(estimator, epochs)
        run = Run(network, lesson.task, learn, held, recipe, precision, seed)
        if old is None and estimator.head_init == "probe":
            probe(network, lesson.task, learn, precision)
        with Report(estimator, run, lesson.learned, X, y, sample_weight) as report:
            estimator.history_ = _train(run, lesson.metric, estimator.patience, report)
        estimator.n_iter_, estimator.n_truncated_ = len(estimator.history_), items.n_truncated
        estimator._task = lesson.task
        vars(estimator).update(lesson.learned)
        estimator._finish(run)
        if lesson.tune and held is not None:
            vars(estimator).update(lesson.tune(*decode_held(run)[1:]))
    estimator._network = network
    report.fitted()


def _old_network(estimator: Any, *, again: bool) -> Network | None:
    """The network to go on from; where there is none, the estimator is fitted no more."""
    network: Network | None = vars(estimator).get("_network") if again else None
    if network is None:
        vars(estimator).pop("_network", None)
    return network


def _check_parameters(estimator: Any) -> None:
    estimator._validate_params()
    if estimator.patience is not None and estimator.validation_fraction is None:
        raise InputError(
            f"patience={estimator.patience} watches rows held out from training, and there are "
            "none. Set validation_fraction, to 0.1 for example."
        )


def _listed(values: Any) -> Any:
    """What has no rows of its own, only a way to become an array, as that array."""
    bare = hasattr(values, "__array__") and not hasattr(values, "__len__")
    return np.asarray(values) if bare and not isinstance(values, np.generic) else values


def _open(
    estimator: Any,
    texts: Texts,
    y: Any,
    old: Network | None,
    weight: Any,
    precision: Precision,
) -> tuple[Network, Lesson]:
    """Understand ``y``, and have a network for it: a new one, or the old one adapted."""
    if old is not None:
        room = longest_row(old.max_length, estimator.max_length)
        return old, estimator._teach(y, texts, room, old, weight)
    checkpoint = vet(find(estimator.model))
    room = longest_row(checkpoint.max_length, estimator.max_length)
    lesson: Lesson = estimator._teach(y, texts, room, None, weight)
    pooling = getattr(estimator, "pooling", "auto")  # tokens are read as they are
    if pooling == "auto" and texts.n_columns > 1 and checkpoint.head_pooling is None:
        pooling = "pooler"  # what a sentence encoder declares is for single texts
    network = open_network(
        checkpoint, lesson.task.head(), pooling=pooling, dtype=precision.weights
    )
    return network, lesson


def _train(
    run: Run, metric: Metric, patience: int | None, report: Report
) -> list[dict[str, float]]:
    """Pass after pass: validate, keep the best weights, stop early, report."""
    history: list[dict[str, float]] = []
    watch = Watch(run.network.model, patience)
    for epoch in train(
        run.network, run.task, run.learn, run.recipe, run.precision, run.seed, report.tick
    ):
        record: dict[str, float] = epoch._asdict()
        if run.held is not None:
            record |= validate(run, metric)
            watch.note(record["validation_loss"])
        history.append(record)
        if report.passed(record, last=watch.exhausted):
            break
    watch.restore()
    return history


def encode(task: Task, texts: Texts, targets: Any, network: Network) -> Items:
    """Tokenise once, and say once if texts were cut."""
    items = task.encode(texts, targets, network.text)
    if items.n_truncated:
        windows = "long_text='windows' reads all of a long text; " * hasattr(task, "long_text")
        warnings.warn(
            f"{items.n_truncated} of {len(texts)} rows were longer than max_length and were cut: "
            f"{windows}a larger max_length cuts less, where the model allows it.",
            TruncationWarning,
            stacklevel=2,
        )
    return items


def longest_row(limit: int, wanted: int | None) -> int:
    """The longest row in tokens: ``wanted``, if the model can take that."""
    room = limit if wanted is None else wanted
    if not _SHORTEST <= room <= limit:
        raise InputError(
            f"max_length={room}: this model reads between {_SHORTEST} and {limit} tokens, "
            f"special tokens included. Use max_length=None for {limit}."
        )
    return room


def _split(
    items: Items, fraction: float | None, lesson: Lesson, seed: int
) -> tuple[Items, Items | None]:
    """Items to learn from and items held out, by sample."""
    if fraction is None:
        return items.weighted(lesson.weights), None
    n_samples = int(items.samples[-1]) + 1
    if n_samples < 2:
        raise InputError(
            "validation_fraction needs at least 2 rows, one to learn from and one to hold out; "
            "X has 1. Use validation_fraction=None."
        )
    parts = hold_out(n_samples, fraction, np.random.default_rng(seed), lesson.strata)
    learn, held = (items.of_samples(part).weighted(lesson.weights) for part in parts)
    if not len(learn) or not len(held):
        raise InputError(
            "All rows on one side of the hold-out have a weight of 0. Use "
            "validation_fraction=None, or drop the rows that weigh nothing."
        )
    return learn, held


def _recipe(estimator: Any, epochs: int | None) -> Recipe:
    """How to train; given ``epochs``, at constant rates: part of a stream has no end to near."""
    chosen = {field.name: getattr(estimator, field.name) for field in fields(Recipe)}
    chosen["head_learning_rate"] = estimator.head_learning_rate or estimator.learning_rate
    if epochs is not None:
        chosen |= {"epochs": epochs, "schedule": "constant"}
    return Recipe(**chosen)


def _draw_seed(random_state: Any) -> int:
    """An int from ``random_state``; None draws fresh entropy and leaves numpy's state alone."""
    if random_state is None:
        return int(np.random.default_rng().integers(2**31))
    return int(check_random_state(random_state).randint(2**31 - 1))
