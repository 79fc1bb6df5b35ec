"""TrainedEstimator: the parameters of training, and the course of a fit.

Check, encode once, hold out, probe, pass after pass, restore the best. Depends on scikit-learn
and on ``_core``; knows no task by name.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import partial
from numbers import Integral
from typing import Any, ClassVar, Self

import numpy as np
import pandas as pd
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions

from skbert._core.checkpoints.find import find
from skbert._core.checkpoints.vet import Checkpoint, vet
from skbert._core.checkpoints.weights import check_learned
from skbert._core.models.network import Network
from skbert._core.models.new_model import NewModel
from skbert._core.models.opening import open_network
from skbert._core.models.output import grow_output
from skbert._core.runtime.device import Precision, memory_advice, pick_device, seeded
from skbert._core.runtime.distributed import process_group
from skbert._core.training.optim import SCHEDULES
from skbert._core.training.watch import EarlyStopping
from skbert._estimator.base import COUNT, RealInterval, TextEstimator, encode
from skbert._estimator.callbacks import CallbackSupportMixin
from skbert._estimator.checks import is_count, is_history, resolve_max_length
from skbert._estimator.facts import Source, facts_of, origin_of
from skbert._estimator.fit_data import FitData, read
from skbert._estimator.fitted import Fitted, Learned, apart_from_weights
from skbert._estimator.held_out import (
    HeldOut,
    held_out_items,
    merit_of,
    rows_to_hold_out,
    split,
    tune,
    validate,
)
from skbert._estimator.label_rows import with_label_rows
from skbert._estimator.networks import (
    copy_to_train,
    get_ready,
    is_own_pooling_trained_on_pairs,
    standardize_output,
)
from skbert._estimator.plan import TrainingPlan
from skbert._estimator.progress import Report
from skbert._estimator.recipes import recipe_of
from skbert._estimator.resuming import (
    Every,
    FitCheckpoints,
    check_checkpoints,
    checkpoints_of,
)
from skbert._estimator.run import Run
from skbert._estimator.scoring import Scorer, scored, scorer_of
from skbert._estimator.validation_set import (
    ValidationInput,
    check_unseen,
    in_validation_set,
    needs_validation_set,
)
from skbert._validation.groups import check_groups
from skbert._validation.targets import as_sequence
from skbert.exceptions import InputError

__all__ = ["TrainedEstimator", "draw_seed"]

_POSITIVE = RealInterval(0, None, closed="neither")
_NO_VALIDATION = ValidationInput()


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
    scoring: str | Scorer = "loss"
    gradient_checkpointing: bool = False
    compile: bool = False
    warm_start: bool = False
    random_state: int | np.random.RandomState | None = None
    checkpoint_dir: str | os.PathLike[str] | None = None
    checkpoint_every: int | str = "pass"

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
        "scoring": [str, callable],
        "gradient_checkpointing": ["boolean"],
        "compile": ["boolean"],
        "warm_start": ["boolean"],
        "random_state": ["random_state"],
        "checkpoint_dir": [str, os.PathLike, None],
        "checkpoint_every": [COUNT, Every({"pass"})],
    }
    _is_clone = False  # whether a search or another meta-estimator fits it
    # Parameters that have an effect on rows held out only, unless they have their defaults.
    _of_held_out: ClassVar[tuple[str, ...]] = ("patience", "scoring")

    def history_frame(self) -> pd.DataFrame:
        """Return ``history_`` as a table, a row for each epoch.

        Returns
        -------
        history : DataFrame
            Indexed by ``epoch``, counted from 1. ``loss`` is the mean training loss over the
            epoch, in the units of the loss: nats for classes, tags, answers and choices, squared
            standard deviations of y for numbers. ``learning_rate`` is that of the encoder at the
            end of the epoch, ``n_steps`` the number of optimizer steps, ``n_tokens`` that of
            tokens read, and ``seconds`` the time that training took, without validation. With a
            validation set there are ``validation_loss``, in the units of ``loss``, and
            ``validation_score``, the score that ``scoring`` names, or that of ``score``.

        Raises
        ------
        InputError
            If the estimator was opened from a checkpoint, and has no history.
        sklearn.exceptions.NotFittedError
            If the estimator is not fitted.

        Examples
        --------
        >>> from skbert import BertClassifier
        >>> from skbert.datasets import load_intents
        >>> X, y = load_intents(return_X_y=True)
        >>> classifier = BertClassifier(epochs=2, freeze="all", validation_fraction=0.2)
        >>> history = classifier.fit(X, y).history_frame()
        >>> history.index.tolist(), history.columns[-2:].tolist()
        ([1, 2], ['validation_loss', 'validation_score'])
        """
        attributes = self._state().attributes
        if "history_" not in attributes:
            raise InputError(
                f"This {type(self).__name__} has no history, since it was not trained here but "
                "opened from a checkpoint. Call fit first."
            )
        return pd.DataFrame(attributes["history_"]).set_index("epoch")

    def __sklearn_clone__(self) -> Self:
        """A clone, whose fits keep their checkpoints beside those of others."""
        copied: Self = super().__sklearn_clone__()
        copied._is_clone = True
        return copied

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

    @memory_advice()
    def _learn(
        self, X: Any, y: Any, sample_weight: Any, *, continue_training: bool,
        epochs: int | None = None, validation: ValidationInput = _NO_VALIDATION, **labels: Any,
    ) -> Self:  # fmt: skip
        """Fit; with ``continue_training`` from the weights of the previous fit, if there is one.

        What was learned is assigned in the last step: a fit that is refused, fails or is
        interrupted leaves the estimator as it was. ``labels`` are for ``_prepare_targets``.
        """
        self._check_parameters(validation)
        settings = self._unfitted_copy()
        if epochs is not None:  # a part of a stream
            settings.checkpoint_dir = None
        precision = Precision(settings.precision, pick_device(settings.device))
        previous = self._previous_fit(continue_training=continue_training)
        data = settings._check_data(X, y, sample_weight, previous, validation)
        seed = process_group().broadcast_number(draw_seed(settings.random_state))
        with seeded(seed, precision.device):
            # Another thread may have fitted meanwhile.
            if self._previous_fit(continue_training=continue_training) is not previous:
                previous = self._previous_fit(continue_training=continue_training)
                data = settings._check_data(X, y, sample_weight, previous, validation)
            prepare = partial(settings._prepare, data, previous, precision, epochs, labels)
            fitted, run = prepare(seed)
            with checkpoints_of(settings, run) as checkpoints:
                if checkpoints.seed != seed:  # another was drawn when the fit began
                    fitted, run = prepare(checkpoints.seed)
                run = run.with_states(settings._compute_states(), finished=checkpoints.is_finished)
                if previous is None and checkpoints.is_new:
                    checkpoints.attributes = settings._start(run)
                attributes = {**fitted.attributes, **checkpoints.attributes}
                fitted = replace(fitted, attributes=attributes)
                with Report(self, fitted, run, checkpoints, X, data.y, sample_weight) as report:
                    history = settings._train(run, report, checkpoints)
                trained = settings._complete(run, history, attributes)
                self._fitted = replace(fitted, attributes={**attributes, **trained})
                checkpoints.end()
        report.finish_fit()
        return self

    def _complete(
        self, run: Run, history: list[dict[str, float]], attributes: dict[str, Any]
    ) -> dict[str, Any]:
        """Complete the trained network; the attributes learned from training."""
        passes = {"history_": history, "n_iter_": len(history), "n_truncated_": run.n_truncated}
        finished = self._finish(run, attributes)
        held_out = run.held_out
        tuned = {} if held_out is None else tune(run.network, held_out, run.precision)
        return {**passes, **finished, **tuned}

    def _check_parameters(self, validation: ValidationInput) -> None:
        """Refuse parameters that are wrong, or have no effect without rows held out."""
        self._validate_params()
        if self.scoring != "loss":
            scorer_of(self.scoring)
        check_checkpoints(self.checkpoint_dir, self.checkpoint_every, self.scoring)
        needs_y: bool = self.__sklearn_tags__().target_tags.required
        validation.check(self.validation_fraction, needs_y=needs_y)
        if self.validation_fraction is not None or validation.X is not None:
            return
        for name in self._of_held_out:
            if getattr(self, name) != getattr(type(self), name):
                raise needs_validation_set(self, name)

    def _previous_fit(self, *, continue_training: bool) -> Fitted | None:
        """The fit to continue; None to start a new one."""
        return self._fitted if continue_training and self.__sklearn_is_fitted__() else None

    def _check_data(
        self, X: Any, y: Any, sample_weight: Any, previous: Fitted | None,
        validation: ValidationInput,
    ) -> FitData:  # fmt: skip
        """Read X and X_val, and check that there is a weight for each row."""
        record = None if previous is None else previous.record
        data = read(self, X, y, sample_weight, record)
        columns = self._columns_of(X, data.rows) if record is None else {}
        known = {} if previous is None else apart_from_weights(type(self), previous.attributes)
        data.attributes.update(known, **columns)
        groups = check_groups(as_sequence(validation.groups), len(data.rows))
        if validation.X is None:
            return data._replace(groups=groups)
        with in_validation_set():
            beside = read(self, *validation[:3], data.record)
        return data._replace(validation=beside)

    def _open(
        self, data: FitData, previous: Fitted | None, precision: Precision, labels: dict[str, Any]
    ) -> tuple[Network, TrainingPlan, Source]:
        """Understand ``y``, and open a network for it: a new one, or a copy of the old one.

        What it was opened from, or is a copy of, comes last.
        """
        source: Source = self._source(data.rows) if previous is None else previous.network
        max_length = resolve_max_length(source.max_length, self.max_length, previous)
        plan: TrainingPlan = self._prepare_targets(
            data.y, data.rows, max_length, previous, data.weight, **labels
        )
        head = replace(plan.task.head(), n_features=data.record.n_features)
        pooling = getattr(self, "pooling", "auto")  # tokens are read as they are
        if isinstance(source, Network):
            network = copy_to_train(source, pooling, self.freeze, precision)
            if plan.output_map is not None:
                grow_output(network, head.n_outputs, plan.output_map)
            return network, plan, source
        has_parts = data.rows.n_columns > 1 and not getattr(data.rows, "fields", ())
        if pooling == "auto" and has_parts and source.head_pooling is None:
            # What a sentence encoder declares is for single texts.
            pooling = source.family.head_class(head.job).own_pooling(source.config)
        network = open_network(source, head, pooling=pooling, dtype=precision.weight_dtype)
        return network, plan, source

    def _prepare(
        self, data: FitData, previous: Fitted | None, precision: Precision, epochs: int | None,
        labels: dict[str, Any], seed: int,
    ) -> tuple[Fitted, Run]:  # fmt: skip
        """Open a network, hold rows out, encode, and set the recipe; what is known before."""
        network, plan, source = self._open(data, previous, precision, labels)
        facts = facts_of(self, data, plan, precision, seed, source)
        parts = rows_to_hold_out(self.validation_fraction, data, plan, seed)
        if plan.learned_from is not None:
            plan = plan.learned_from(np.arange(len(data.rows)) if parts is None else parts[0])
            standardize_output(network, plan)
        attributes = {**data.attributes, **plan.attributes}
        fitted = Fitted(network, plan.task, data.record, attributes)
        get_ready(
            network, precision, compiled=self.compile, recomputing=self.gradient_checkpointing
        )
        items = encode(plan.task, data.rows, plan.targets, network)
        held_out: HeldOut | None = None
        if data.validation is not None:
            held_out = self._hold_beside(data.validation, plan, fitted, seed, labels)
        if parts is None:
            training = items.weighted(plan.weights)
        else:
            training, held_out = split(items, parts, plan, seed, network.text_tokenizer)
        training, n_labels = with_label_rows(training, plan.label_rows, plan.task, network)
        if held_out is not None and self.scoring != "loss":
            held_out = scored(self, self.scoring, held_out, fitted, data.validation or data)
        use_encoder_rate = is_own_pooling_trained_on_pairs(network, training, self.freeze)
        recipe = recipe_of(self, training, epochs, use_encoder_rate=use_encoder_rate)
        run = Run(
            network, plan.task, training, held_out, recipe, precision, seed, plan.draw,
            items.n_truncated, n_labels, facts, origin_of(self, fitted, source, seed),
        )  # fmt: skip
        return fitted, run

    def _hold_beside(
        self, data: FitData, plan: TrainingPlan, fitted: Fitted, seed: int, labels: dict[str, Any]
    ) -> HeldOut:
        """The rows of X_val, understood with what was learned from y."""
        network = fitted.network
        max_length = resolve_max_length(network.max_length, self.max_length, fitted)
        with in_validation_set():
            beside: TrainingPlan = self._prepare_targets(
                data.y, data.rows, max_length, fitted, data.weight, **labels
            )
        check_unseen(plan, beside)
        items = encode(plan.task, data.rows, beside.targets, network, "X_val")
        weighted = items.weighted(beside.weights)
        return held_out_items(weighted, beside, seed, network.text_tokenizer)

    def _train(
        self, run: Run, report: Report, checkpoints: FitCheckpoints
    ) -> list[dict[str, float]]:
        """Pass after pass: validate, keep the best weights, stop early, report."""
        history, loop = checkpoints.history, run.loop()
        loop.on_step = report.on_step
        watch = EarlyStopping(run.network.model, self.patience)
        with checkpoints.kept(loop, watch, run.network):
            for epoch in loop:
                record: dict[str, float] = epoch._asdict()
                if run.held_out is not None:
                    record |= validate(run.network, run.held_out, run.precision)
                    watch.note(merit_of(record, self.scoring))
                history.append(record)
                if report.finish_epoch(record, last=watch.is_exhausted):
                    break
                if epoch.epoch < run.recipe.epochs:
                    checkpoints.finish_pass()
        watch.restore()
        check_learned(run.network.model, run.network.head_class.output_layer, run.trained)
        checkpoints.finish_training(run.network)
        return history


def draw_seed(random_state: Any) -> int:
    """An int from ``random_state``; None draws fresh entropy and leaves numpy's state alone."""
    if random_state is None:
        return int(np.random.default_rng().integers(2**31))
    return int(check_random_state(random_state).randint(2**31 - 1))
