"""BertEstimator: the parameters of fine-tuning, and the story of one fit.

Check, encode once, hold out, probe, pass after pass, restore the best. Speaks to scikit-learn
above and to ``_core`` below; knows no task by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import partial
from numbers import Integral
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions

from skbert._arrays import Array, IntArray
from skbert._core.checkpoints.find import find
from skbert._core.checkpoints.vet import Checkpoint, vet
from skbert._core.checkpoints.weights import check_learned
from skbert._core.models.network import Network, copy_network, grow_output
from skbert._core.models.new_model import NewModel
from skbert._core.models.opening import open_network
from skbert._core.runtime.device import Precision, pick_device, seeded
from skbert._core.runtime.distributed import process_group
from skbert._core.task import Items, Task
from skbert._core.text.tokens import TextTokenizer
from skbert._core.training.loop import DrawItems, train
from skbert._core.training.optim import SCHEDULES, freezes_encoder, learning_parameters
from skbert._core.training.probe import probe
from skbert._core.training.recipe import Recipe
from skbert._core.training.watch import EarlyStopping, hold_out
from skbert._estimator.base import COUNT, RealInterval, TextEstimator, encode, longest_row
from skbert._estimator.callbacks import CallbackSupportMixin, with_callbacks
from skbert._estimator.guidance import requires_y
from skbert._estimator.learned import draft_of, take_over
from skbert._estimator.progress import Report, Run, decode_held, validate
from skbert._validation.targets import listed
from skbert._validation.texts import Texts
from skbert._validation.weights import check_sample_weight, to_learn_from
from skbert.exceptions import InputError

__all__ = [
    "BertEstimator",
    "Draw",
    "Run",
    "TrainedEstimator",
    "TrainingPlan",
    "as_they_are",
    "draw_seed",
    "run_fit",
]

_POSITIVE = RealInterval(0, None, closed="neither")
_HEAD_RATE = 1e-3  # ten times what the encoder gets by default

# From what the task decodes of the rows held out, and which rows of X these are: their score, or
# attributes that are chosen on them.
Metric = Callable[[Array, Array], float]
Tune = Callable[[Array, Array], dict[str, Any]]
# What is drawn anew for each pass: from all items the items of one pass, as many of them.
Draw = Callable[[TextTokenizer, Items, np.random.Generator], Items]


def as_they_are(_tokenizer: TextTokenizer, items: Items, _rng: np.random.Generator) -> Items:
    """The same items in every pass."""
    return items


class TrainingPlan(NamedTuple):
    """What ``y`` comes to: the task, its targets, and what the estimator learned from them.

    Without a metric the loss alone is watched on the rows held out.
    """

    task: Task
    targets: Any  # what the task's encode takes as y
    learned: dict[str, Any]  # attributes with trailing underscores
    metric: Metric | None
    strata: Array | None = None  # (n_samples,) codes to hold out evenly by
    weights: Array | None = None  # (n_samples,) of the loss; None: all alike
    tune: Tune | None = None  # after training
    draw: Draw = as_they_are
    kept: IntArray | None = None  # place of each output of before among the task's; None: as it is


@dataclass(eq=False, repr=False, kw_only=True)
class TrainedEstimator(CallbackSupportMixin, TextEstimator):
    """Base of all that is trained; use one of the estimators.

    A subclass says in ``_prepare_targets`` what is to be learned.
    """

    epochs: int = 3
    batch_size: int = 16
    learning_rate: float = 1e-4
    head_learning_rate: float | str | None = "auto"
    weight_decay: float = 0.01
    warmup: float = 0.1
    schedule: str = "linear"
    layer_decay: float = 1.0
    freeze: int | str = 0
    max_grad_norm: float | None = 1.0
    accumulate: int = 1
    validation_fraction: float | None = None
    patience: int | None = None
    gradient_checkpointing: bool = False
    compile: bool = False
    warm_start: bool = False
    random_state: int | np.random.RandomState | None = None
    verbose: int = 0

    if TYPE_CHECKING:  # set by a fit
        history_: list[dict[str, float]] = field(init=False)
        n_iter_: int = field(init=False)
        n_truncated_: int = field(init=False)

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **TextEstimator._parameter_constraints,
        "epochs": [COUNT],
        "batch_size": [COUNT],
        "learning_rate": [_POSITIVE],
        "head_learning_rate": [_POSITIVE, StrOptions({"auto"}), None],
        "weight_decay": [RealInterval(0, None, closed="left")],
        "warmup": [RealInterval(0, None, closed="left")],
        "schedule": [StrOptions(set(SCHEDULES))],
        "layer_decay": [RealInterval(0, 1, closed="right")],
        "freeze": [Interval(Integral, 0, None, closed="left"), StrOptions({"all"})],
        "max_grad_norm": [_POSITIVE, None],
        "accumulate": [COUNT],
        "validation_fraction": [RealInterval(0, 1, closed="neither"), None],
        "patience": [COUNT, None],
        "gradient_checkpointing": ["boolean"],
        "compile": ["boolean"],
        "warm_start": ["boolean"],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }
    _saved_attributes: ClassVar[tuple[str, ...]] = (
        *TextEstimator._saved_attributes, "history_", "n_iter_", "n_truncated_",
    )  # fmt: skip

    def _prepare_targets(
        self, y: Any, texts: Any, room: int, network: Network | None, weight: Any
    ) -> TrainingPlan:
        """Check ``y`` for these rows, and say what to learn; nothing is changed.

        With a ``network`` what is learned goes on from it, and from the attributes at hand.
        """
        raise NotImplementedError

    def _source(self, texts: Any) -> Checkpoint | NewModel:  # noqa: ARG002 - for who learns from it
        """What to open a model from."""
        return vet(find(self.model))

    def _start(self, run: Run, metric: Metric | None) -> None:
        """Do what there is to do before the first pass with a new network."""

    def _finish(self, run: Run) -> None:
        """Do what is left to do with the held-out samples after the last pass."""


@dataclass(eq=False, repr=False, kw_only=True)
class BertEstimator(TrainedEstimator):
    """Base of the estimators that are fine-tuned; use one of those.

    A subclass says what ``y`` means in ``_prepare_targets`` and reads outputs in ``predict``.
    """

    head_init: str = "auto"

    if TYPE_CHECKING:  # set by a fit
        probe_score_: float = field(init=False)

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **TrainedEstimator._parameter_constraints,
        "head_init": [StrOptions({"auto", "probe", "random"})],
    }
    _saved_attributes: ClassVar[tuple[str, ...]] = (
        *TrainedEstimator._saved_attributes, "probe_score_",
    )  # fmt: skip

    @requires_y
    @with_callbacks
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fine-tune on texts ``X`` and targets ``y``.

        Parameters
        ----------
        X : array-like of str of shape (n_samples,), or pairs of shape (n_samples, 2)
            One text, or one pair of texts, per row.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            What to predict.
        sample_weight : array-like of shape (n_samples,), default=None
            Weight of each row in the loss; None weighs all alike.

        Returns
        -------
        self : estimator
            The fitted estimator.

        Raises
        ------
        InputError, InputTypeError
            If X, y or a weight cannot be used; the message names the first bad row.
        ModelError
            If ``model`` is not found or not safe to open.
        NonFiniteError
            If a loss or gradient is not finite; the estimator then stays as it was.
        """
        run_fit(self, X, y, sample_weight, again=self.warm_start)
        return self

    def _start(self, run: Run, metric: Metric | None) -> None:
        random = _pooler_learns_pairs(run.network, run.learn, self.freeze)
        if self.head_init == "probe" or (self.head_init == "auto" and not random):
            probe(run.network, run.task, run.learn, run.precision)
            if run.held is not None:
                self.probe_score_ = validate(run, metric)["validation_score"]


def _pooler_learns_pairs(network: Network, items: Items, layers: int | str) -> bool:
    """Whether the head reads BERT's pooler of a pair, and layers below it are trained as well.

    The pooler says little of a pair without that, and a random head learns as much beside it.
    """
    tokens = items.tokens
    pooled = network.head.reads == "rows" and network.pooling == "pooler"
    single = len(tokens) == len(items)  # options are compared with each other
    pairs = pooled and single and bool((tokens.second < tokens.lengths).any())
    return pairs and not freezes_encoder(network.model, layers)


def run_fit(
    estimator: Any, X: Any, y: Any, sample_weight: Any, *, again: bool, epochs: int | None = None,
    **labels: Any,
) -> None:  # fmt: skip
    """Fit an estimator; ``again`` goes on from the weights at hand, if there are any.

    It is a draft that learns, and the estimator has what was learned in the last step: whatever
    comes between leaves it as it was. ``labels`` are for ``_prepare_targets``, beside ``y``.
    """
    _check_parameters(estimator)
    device = pick_device(estimator.device)
    precision = Precision(estimator.precision, device)
    draft, texts = _begin(estimator, X, again=again)
    y = listed(y)
    weight = to_learn_from(check_sample_weight(listed(sample_weight), len(texts)))
    seed = process_group().broadcast_number(draw_seed(estimator.random_state))
    with seeded(seed, device):
        if again and _network_of(estimator) is not _network_of(draft):  # by another thread
            draft, texts = _begin(estimator, X, again=True)
        network, lesson = _open(draft, texts, y, weight, precision, labels)
        network.to(device, precision.weights)
        if draft.compile:
            network.compile()
        items = encode(lesson.task, texts, lesson.targets, network)
        fresh = partial(lesson.draw, network.text)
        learn, held = _split(items, draft.validation_fraction, lesson, seed, fresh)
        low = _pooler_learns_pairs(network, learn, draft.freeze)
        recipe = _recipe(draft, learn, epochs, low=low)
        run = Run(network, lesson.task, learn, held, recipe, precision, seed, fresh)
        if _network_of(draft) is None:
            draft._start(run, lesson.metric)
        draft._network, draft._task = network, lesson.task
        vars(draft).update(lesson.learned)
        with Report(estimator, draft, run, X, y, sample_weight) as report:
            draft.history_ = _train(run, lesson.metric, draft.patience, report)
        draft.n_iter_, draft.n_truncated_ = len(draft.history_), items.n_truncated
        draft._finish(run)
        if lesson.tune and held is not None:
            vars(draft).update(lesson.tune(*decode_held(run)[1:]))
        take_over(estimator, draft)
    report.fitted()


def _network_of(estimator: Any) -> Network | None:
    network: Network | None = vars(estimator).get("_network")
    return network


def _begin(estimator: Any, X: Any, *, again: bool) -> tuple[Any, Any]:
    """A draft of the estimator, and X as rows for it."""
    draft = draft_of(estimator, learned=again and _network_of(estimator) is not None)
    is_new = _network_of(draft) is None or draft._seen is None
    return draft, draft._read(X, fitting=is_new)


def _check_parameters(estimator: Any) -> None:
    estimator._validate_params()
    if estimator.patience is not None and estimator.validation_fraction is None:
        raise InputError(
            f"patience={estimator.patience} watches rows held out from training, and there are "
            "none. Set validation_fraction, to 0.1 for example."
        )


def _open(
    draft: Any,
    texts: Texts,
    y: Any,
    weight: Any,
    precision: Precision,
    labels: dict[str, Any],
) -> tuple[Network, TrainingPlan]:
    """Understand ``y``, and have a network for it: a new one, or a copy of the one there is."""
    old = _network_of(draft)
    if old is not None:
        room = longest_row(old.max_length, draft.max_length)
        lesson: TrainingPlan = draft._prepare_targets(y, texts, room, old, weight, **labels)
        network = _copy_to_learn(old, draft.freeze, precision)
        if lesson.kept is not None:
            grow_output(network, lesson.task.head().n_outputs, lesson.kept)
        return network, lesson
    checkpoint = draft._source(texts)
    room = longest_row(checkpoint.max_length, draft.max_length)
    lesson = draft._prepare_targets(y, texts, room, None, weight, **labels)
    pooling = getattr(draft, "pooling", "auto")  # tokens are read as they are
    if pooling == "auto" and texts.n_columns > 1 and checkpoint.head_pooling is None:
        pooling = "pooler"  # what a sentence encoder declares is for single texts
    head = lesson.task.head()
    return open_network(checkpoint, head, pooling=pooling, dtype=precision.weights), lesson


def _copy_to_learn(network: Network, freeze: int | str, precision: Precision) -> Network:
    """A network to go on from, which shares with the given one what does not learn."""
    if (network.device, network.dtype) != (precision.device, precision.weights):
        return copy_network(network)
    learning = learning_parameters(network.model, network.output_path, freeze)
    learns = set(map(id, learning))
    still = [p for p in network.model.parameters() if id(p) not in learns]
    return copy_network(network, still)


def _train(
    run: Run, metric: Metric | None, patience: int | None, report: Report
) -> list[dict[str, float]]:
    """Pass after pass: validate, keep the best weights, stop early, report."""
    history: list[dict[str, float]] = []
    watch = EarlyStopping(run.network.model, patience)
    for epoch in train(
        run.network, run.task, run.learn, run.recipe, run.precision, run.seed, report.tick,
        run.fresh,
    ):  # fmt: skip
        record: dict[str, float] = epoch._asdict()
        if run.held is not None:
            record |= validate(run, metric)
            watch.note(record["validation_loss"])
        history.append(record)
        if report.passed(record, last=watch.is_exhausted):
            break
    watch.restore()
    check_learned(run.network.model, run.network.output_path)
    return history


def _split(
    items: Items, fraction: float | None, lesson: TrainingPlan, seed: int, fresh: DrawItems
) -> tuple[Items, Items | None]:
    """Items to learn from and items held out, by sample; what is drawn for these stays."""
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
    return learn, fresh(held, np.random.default_rng(seed))


def _recipe(estimator: Any, items: Items, epochs: int | None, *, low: bool) -> Recipe:
    """How to train; given ``epochs``, at constant rates: part of a stream has no end to near.

    A head that chooses its own rate takes the encoder's if that is to be ``low``.
    """
    chosen = {field.name: getattr(estimator, field.name) for field in fields(Recipe)}
    if epochs is None:  # of a stream a part may be small
        _check_accumulate(len(np.unique(items.units)), estimator.accumulate, estimator.batch_size)
    rate = estimator.head_learning_rate
    if rate == "auto":
        rate = None if low else _HEAD_RATE
    chosen["head_learning_rate"] = rate or estimator.learning_rate
    if epochs is not None:
        chosen |= {"epochs": epochs, "schedule": "constant"}
    return Recipe(**chosen)


def _check_accumulate(n_rows: int, n_parts: int, size: int) -> None:
    if n_parts > n_rows:
        raise InputError(
            f"accumulate={n_parts} batches of batch_size={size} make steps of {n_parts * size} "
            f"rows, but there are {n_rows} to learn from, fewer than a row for each batch. Use "
            f"accumulate={-(-n_rows // size)} to learn from all of them in one step."
        )


def draw_seed(random_state: Any) -> int:
    """An int from ``random_state``; None draws fresh entropy and leaves numpy's state alone."""
    if random_state is None:
        return int(np.random.default_rng().integers(2**31))
    return int(check_random_state(random_state).randint(2**31 - 1))
