"""TrainedEstimator and BertEstimator: the parameters of training, and the course of a fit.

Check, encode once, hold out, probe, pass after pass, restore the best. Depends on scikit-learn
and on ``_core``; knows no task by name.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from numbers import Integral
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions

from skbert._arrays import Array
from skbert._core.checkpoints.find import find
from skbert._core.checkpoints.vet import Checkpoint, vet
from skbert._core.checkpoints.weights import check_learned
from skbert._core.models.network import Network, copy_network
from skbert._core.models.new_model import NewModel
from skbert._core.models.opening import open_network
from skbert._core.models.output import grow_output
from skbert._core.runtime.device import Precision, pick_device, seeded
from skbert._core.runtime.distributed import process_group
from skbert._core.task import Items
from skbert._core.training.loop import train
from skbert._core.training.optim import SCHEDULES, is_encoder_frozen, trainable_parameters
from skbert._core.training.probe import probe
from skbert._core.training.recipe import Recipe
from skbert._core.training.stepper import check_compiling, check_recomputing
from skbert._core.training.watch import EarlyStopping
from skbert._estimator.base import COUNT, RealInterval, TextEstimator, encode
from skbert._estimator.callbacks import CallbackSupportMixin, with_callbacks
from skbert._estimator.checks import is_count, is_history, is_score, resolve_max_length
from skbert._estimator.fitted import Fitted, Learned
from skbert._estimator.guidance import requires_y
from skbert._estimator.held_out import decode, split, validate
from skbert._estimator.plan import TrainingPlan
from skbert._estimator.progress import Report
from skbert._estimator.run import Run
from skbert._validation.columns import FitRecord
from skbert._validation.targets import as_sequence
from skbert._validation.weights import check_sample_weight, rescale_weights
from skbert.exceptions import InputError

__all__ = ["BertEstimator", "TrainedEstimator", "draw_seed"]

_POSITIVE = RealInterval(0, None, closed="neither")
_HEAD_RATE = 1e-3  # ten times what the encoder gets by default


class _Data(NamedTuple):
    """What ``fit`` was called with, checked."""

    rows: Any
    y: Any
    weight: Array | None  # (n_samples,)
    record: FitRecord
    attributes: dict[str, Any]  # those of the previous fit, and what X adds to them


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

    history_ = Learned[list[dict[str, float]]](is_history, optional=True)
    n_iter_ = Learned[int](is_count, optional=True)
    n_truncated_ = Learned[int](is_count, optional=True)

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
    }

    def _prepare_targets(
        self, y: Any, rows: Any, max_length: int, previous: Fitted | None, weight: Any
    ) -> TrainingPlan:
        """Check ``y`` for these rows, and return what to train; nothing is changed.

        ``previous`` is the fit that this one continues, if it continues one.
        """
        raise NotImplementedError

    def _source(self, rows: Any) -> Checkpoint | NewModel:  # noqa: ARG002 - subclasses use it
        """What to open a model from."""
        return vet(find(self.model))

    def _start(self, run: Run) -> dict[str, Any]:  # noqa: ARG002
        """Prepare a new network for the first pass; the attributes learned from that."""
        return {}

    def _finish(self, run: Run, attributes: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        """Describe the trained network, or adjust it; the attributes learned from that."""
        return {}

    def _learn(
        self, X: Any, y: Any, sample_weight: Any, *, continue_training: bool,
        epochs: int | None = None, **labels: Any,
    ) -> Self:  # fmt: skip
        """Fit; with ``continue_training`` from the weights of the previous fit, if there is one.

        What was learned is assigned in the last step: a fit that is refused, fails or is
        interrupted leaves the estimator as it was. ``labels`` are for ``_prepare_targets``.
        """
        self._check_parameters()
        settings = self._unfitted_copy()
        precision = Precision(settings.precision, pick_device(settings.device))
        previous = self._previous_fit(continue_training=continue_training)
        data = settings._check_data(X, y, sample_weight, previous)
        seed = process_group().broadcast_number(draw_seed(settings.random_state))
        with seeded(seed, precision.device):
            # Another thread may have fitted meanwhile.
            if self._previous_fit(continue_training=continue_training) is not previous:
                previous = self._previous_fit(continue_training=continue_training)
                data = settings._check_data(X, y, sample_weight, previous)
            network, plan = settings._open(data, previous, precision, labels)
            run = settings._make_run(network, plan, data.rows, precision, seed, epochs)
            attributes = {**data.attributes, **plan.attributes}
            if previous is None:
                attributes |= settings._start(run)
            fitted = self._fitted_type(network, plan.task, data.record, attributes)
            with Report(self, fitted, run, X, data.y, sample_weight) as report:
                history = settings._train(run, report)
            trained = settings._complete(run, history, attributes)
            self._fitted = replace(fitted, attributes={**attributes, **trained})
        report.finish_fit()
        return self

    def _complete(
        self, run: Run, history: list[dict[str, float]], attributes: dict[str, Any]
    ) -> dict[str, Any]:
        """Complete the trained network; the attributes learned from training."""
        passes = {"history_": history, "n_iter_": len(history), "n_truncated_": run.n_truncated}
        finished = self._finish(run, attributes)
        held_out = run.held_out
        if held_out is None or held_out.tune is None:
            return {**passes, **finished}
        tuned = held_out.tune(*decode(run.network, held_out, run.precision)[1:])
        return {**passes, **finished, **tuned}

    def _check_parameters(self) -> None:
        self._validate_params()
        if self.patience is not None and self.validation_fraction is None:
            raise InputError(
                f"patience={self.patience} needs a validation set, but validation_fraction is "
                "None. Set validation_fraction, for example to 0.1."
            )

    def _previous_fit(self, *, continue_training: bool) -> Fitted | None:
        """The fit to continue; None to start a new one."""
        return self._fitted if continue_training and self.__sklearn_is_fitted__() else None

    def _check_data(self, X: Any, y: Any, sample_weight: Any, previous: Fitted | None) -> _Data:
        """Read X, and check that there is a weight for each row."""
        record = None if previous is None else previous.record
        rows = self._rows(X, record)
        columns = self._columns_of(X, rows) if record is None else {}
        y = as_sequence(y)
        weight = rescale_weights(check_sample_weight(as_sequence(sample_weight), len(rows)))
        attributes = {**({} if previous is None else previous.attributes), **columns}
        return _Data(rows, y, weight, record or FitRecord(rows.names, rows.n_columns), attributes)

    def _open(
        self, data: _Data, previous: Fitted | None, precision: Precision, labels: dict[str, Any]
    ) -> tuple[Network, TrainingPlan]:
        """Understand ``y``, and open a network for it: a new one, or a copy of the old one."""
        source = self._source(data.rows) if previous is None else previous.network
        max_length = resolve_max_length(source.max_length, self.max_length)
        plan: TrainingPlan = self._prepare_targets(
            data.y, data.rows, max_length, previous, data.weight, **labels
        )
        head = plan.task.head()
        if isinstance(source, Network):
            network = _copy_to_train(source, self.freeze, precision)
            if plan.output_map is not None:
                grow_output(network, head.n_outputs, plan.output_map)
            return network, plan
        pooling = getattr(self, "pooling", "auto")  # tokens are read as they are
        has_parts = data.rows.n_columns > 1 and not getattr(data.rows, "fields", ())
        if pooling == "auto" and has_parts and source.head_pooling is None:
            # What a sentence encoder declares is for single texts.
            pooling = source.family.head_class(head.job).own_pooling(source.config)
        return open_network(source, head, pooling=pooling, dtype=precision.weight_dtype), plan

    def _make_run(
        self, network: Network, plan: TrainingPlan, rows: Any, precision: Precision, seed: int,
        epochs: int | None,
    ) -> Run:  # fmt: skip
        """Encode the rows, hold some out, and set the recipe."""
        if self.gradient_checkpointing:
            check_recomputing(network.model)
        network.to(precision.device, precision.weight_dtype)
        if self.compile:
            check_compiling(network)
            network.compile()
        items = encode(plan.task, rows, plan.targets, network)
        parts = split(items, self.validation_fraction, plan, seed, network.text_tokenizer)
        use_encoder_rate = _is_own_pooling_trained_on_pairs(network, parts[0], self.freeze)
        recipe = self._recipe(parts[0], epochs, use_encoder_rate=use_encoder_rate)
        n_cut = items.n_truncated
        return Run(network, plan.task, *parts, recipe, precision, seed, plan.draw, n_cut)

    def _recipe(self, items: Items, epochs: int | None, *, use_encoder_rate: bool) -> Recipe:
        """How to train; with ``epochs``, at constant rates, as a part of a stream is not its end.

        ``use_encoder_rate`` says what ``head_learning_rate="auto"`` is: the rate of the encoder.
        """
        settings = {field.name: getattr(self, field.name) for field in fields(Recipe)}
        if epochs is None:  # a part of a stream may be small
            _check_accumulate(len(np.unique(items.units)), self.accumulate, self.batch_size)
        rate = self.head_learning_rate
        if rate == "auto":
            rate = None if use_encoder_rate else _HEAD_RATE
        settings["head_learning_rate"] = rate or self.learning_rate
        if epochs is not None:
            settings |= {"epochs": epochs, "schedule": "constant"}
        return Recipe(**settings)

    def _train(self, run: Run, report: Report) -> list[dict[str, float]]:
        """Pass after pass: validate, keep the best weights, stop early, report."""
        history: list[dict[str, float]] = []
        watch = EarlyStopping(run.network.model, self.patience)
        for epoch in train(
            run.network, run.task, run.train_items, run.recipe, run.precision, run.seed,
            report.on_step, run.draw_items,
        ):  # fmt: skip
            record: dict[str, float] = epoch._asdict()
            if run.held_out is not None:
                record |= validate(run.network, run.held_out, run.precision)
                watch.note(record["validation_loss"])
            history.append(record)
            if report.finish_epoch(record, last=watch.is_exhausted):
                break
        watch.restore()
        check_learned(run.network.model, run.network.head_class.output_layer)
        return history


@dataclass(eq=False, repr=False, kw_only=True)
class BertEstimator(TrainedEstimator):
    """Base of the estimators that are fine-tuned; use one of its subclasses.

    A subclass says what ``y`` means in ``_prepare_targets`` and reads outputs in ``predict``.
    """

    head_init: str = "auto"

    probe_score_ = Learned[float](is_score, optional=True)

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **TrainedEstimator._parameter_constraints,
        "head_init": [StrOptions({"auto", "probe", "random"})],
    }

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
            Weight of each row in the loss; None gives all rows the same weight.

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
        return self._learn(X, y, sample_weight, continue_training=self.warm_start)

    def _start(self, run: Run) -> dict[str, Any]:
        if self.head_init == "random" or (self.head_init == "auto" and self._starts_random(run)):
            return {}
        probe(run.network, run.task, run.train_items, run.precision)
        if run.held_out is None:
            return {}
        scores = validate(run.network, run.held_out, run.precision)
        return {"probe_score_": scores["validation_score"]}

    def _starts_random(self, run: Run) -> bool:
        """Whether ``head_init="auto"`` means random weights."""
        return _is_own_pooling_trained_on_pairs(run.network, run.train_items, self.freeze)


def _is_own_pooling_trained_on_pairs(network: Network, items: Items, layers: int | str) -> bool:
    """Whether a head over pairs reads what its class does, and layers below are trained as well.

    BERT's pooler says little of a pair without that, and a random head learns as much beside it.
    """
    tokens = items.tokens
    pooled = network.head.reads == "rows" and network.pooling == network.head_class.pooling
    single = len(tokens) == len(items)  # options are compared with each other
    pairs = pooled and single and bool((tokens.second < tokens.lengths).any())
    return pairs and not is_encoder_frozen(network.model, layers)


def _copy_to_train(network: Network, freeze: int | str, precision: Precision) -> Network:
    """A copy of a network to train further; weights that are not trained are shared."""
    if (network.device, network.dtype) != (precision.device, precision.weight_dtype):
        return copy_network(network)
    trainable = trainable_parameters(network.model, network.head_class.prefixes, freeze)
    trainable_ids = set(map(id, trainable))
    frozen = [p for p in network.model.parameters() if id(p) not in trainable_ids]
    return copy_network(network, frozen)


def _check_accumulate(n_rows: int, n_parts: int, size: int) -> None:
    if n_parts > n_rows:
        raise InputError(
            f"accumulate={n_parts} batches of batch_size={size} make steps of {n_parts * size} "
            f"rows, but there are only {n_rows} training rows, fewer than one per batch. Use "
            f"accumulate={-(-n_rows // size)} to use all of them in one step."
        )


def draw_seed(random_state: Any) -> int:
    """An int from ``random_state``; None draws fresh entropy and leaves numpy's state alone."""
    if random_state is None:
        return int(np.random.default_rng().integers(2**31))
    return int(check_random_state(random_state).randint(2**31 - 1))
