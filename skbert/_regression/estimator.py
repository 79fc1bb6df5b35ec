"""BertRegressor: one number or several per text or pair."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score

from skbert._arrays import Array, IntArray
from skbert._core.families.record import Job
from skbert._core.items import Head, name_outputs
from skbert._core.models.network import Network
from skbert._core.models.output import scale_output
from skbert._core.task import Task
from skbert._core.text.tokens import LongText
from skbert._core.training.optim import is_encoder_frozen
from skbert._estimator.base import ROW_HEAD_CONSTRAINTS
from skbert._estimator.callbacks import with_callbacks
from skbert._estimator.conformal import ConformalEstimator
from skbert._estimator.conformity import Conformity
from skbert._estimator.features import FeatureEstimator
from skbert._estimator.fitted import Fitted
from skbert._estimator.guidance import requires_y
from skbert._estimator.plan import TrainingPlan
from skbert._estimator.run import Run
from skbert._regression.predicting import PredictsNumbers, tells_apart
from skbert._regression.task import Numbers
from skbert._validation.targets import (
    TargetTable,
    as_sequence,
    check_target_names,
    learned_names,
    read_target_table,
)
from skbert._validation.weights import check_sample_weight
from skbert.exceptions import InputError, ModelError

__all__ = ["BertRegressor"]


@dataclass(eq=False, repr=False, kw_only=True)
class BertRegressor(PredictsNumbers, RegressorMixin, ConformalEstimator, FeatureEstimator):
    """Predict numbers from texts or pairs of texts with a fine-tuned BERT.

    Each target is standardised internally, so that the learning rates suit targets of any scale.

    Parameters
    ----------
    model : str or path-like, default="sentence-transformers/all-MiniLM-L6-v2"
        Folder or id of a checkpoint of BERT or another encoder. An id is looked up in the local
        cache, in the package that the extra ``skbert[offline]`` installs, and only then on the
        Hugging Face hub.
    epochs : int, default=3
        Number of passes over the training data.
    batch_size : int, default=16
        Number of rows per batch; an optimizer step uses ``batch_size * accumulate`` rows.
    learning_rate : float, default=1e-4
        Peak learning rate of AdamW for the encoder.
    head_learning_rate : float, "auto" or None, default="auto"
        Peak learning rate of AdamW for the output layer; None uses ``learning_rate``. ``"auto"``
        uses 1e-3, but ``learning_rate`` if encoder layers are trained and the head reads one pair
        of texts per row as models of its type do: BERT by its pooler, RoBERTa by its first token.
    weight_decay : float, default=0.01
        Weight decay of AdamW; it is not applied to biases and LayerNorm weights.
    warmup : float or int, default=0.1
        Length of the linear warm-up: a fraction of all steps if below 1, otherwise a number of
        steps.
    schedule : {"linear", "cosine", "cosine_with_restarts", "polynomial", "constant", \
            "constant_with_warmup"}, default="linear"
        Schedule of the learning rate after the warm-up, as in transformers under the same name.
    layer_decay : float, default=1.0
        Factor by which the learning rate changes from each layer to the one below it.
    freeze : int or "all", default=0
        Weights that are not trained: none for 0, the embeddings and the first k layers for k, and
        everything except the head for ``"all"``. Frozen layers run without dropout. If the
        rows are the same in every pass, a frozen encoder, and frozen layers that kernels compute,
        read each row once: a vector of each row or token is kept, up to 1 GB in all.
    max_grad_norm : float or None, default=1.0
        Maximum norm of the gradient of a step, to which a larger one is clipped, before the step
        is weighted by its rows; None does not clip.
    accumulate : int, default=1
        Number of batches whose gradients are added up for one optimizer step.
    pooling : {"auto", "pooler", "cls", "mean", "max"}, default="auto"
        How the token vectors of a row are combined into one vector. ``"auto"`` uses what the
        checkpoint declares, as sentence encoders do for single texts; otherwise, and for pairs, it
        uses what is usual for models of its type: BERT's pooler, ``"cls"`` or ``"mean"``.
    head_init : {"auto", "probe", "random"}, default="auto"
        Initial weights of the head: those of a linear model fitted on the frozen encoder's
        features (``"probe"``), or random ones. ``"auto"`` uses the linear model, unless encoder
        layers are trained and the targets are numbers or the head reads one pair of texts per row
        as models of its type do.
    max_length : int or None, default=None
        Maximum length of a row in tokens, special tokens included. None uses the limit of the
        model, but at most 384 in ``BertSpanExtractor``, and where training goes on, what the fit
        before used. Long rows take more memory and time.
    long_text : {"truncate", "head_tail", "windows"}, default="truncate"
        What to do with rows that are too long: ``"truncate"`` keeps the start (in a pair, the
        longer text is shortened first), ``"head_tail"`` keeps a quarter from the start and the
        rest from the end, and ``"windows"`` reads overlapping windows and averages their results.
        Fields are shortened one by one, or only the longest is read in windows.
        ``BertChoiceRanker`` does not support ``"windows"``.
    text_columns : str, int, sequence of these, dict or None, default=None
        Columns of X to read, in this order: one column of texts, or two columns of pairs. Three or
        more are fields of one text, each with the name of its column before it; a dict ``{column:
        name}`` gives other names, and makes fields of two columns. All fields of a row have equal
        shares of ``max_length``; what one does not need is shared by the others.
        ``BertSpanExtractor`` reads two columns, ``BertTokenTagger`` and ``BertPretrainer`` read
        one, and ``BertChoiceRanker`` reads the prompt, then its options. None uses all columns.
    feature_columns : str, int, sequence of these, or None, default=None
        Columns of numbers and categories that the output layer reads beside the vector of a row;
        with ``text_columns=None`` all other columns are texts. ``fit`` decides by its values what
        a column holds. Numbers are standardised; for missing ones the median stands in, and if
        some are missing in ``fit`` there is a feature that says so. Categories, such as str, are
        one-hot encoded, missing ones as a category of their own; one that ``fit`` has not seen is
        all zeros. With such columns ``"auto"`` is ``"probe"`` for ``head_init`` and 1e-3 for
        ``head_learning_rate``.
    missing : {"raise", "empty"}, default="raise"
        Raise an error if texts are missing, or read missing texts as empty texts.
    memory : str, path-like, joblib.Memory or None, default=None
        Folder in which vectors are kept for other folds, candidates, processes and runs with the
        same settings; None keeps none. `BertTransformer` keeps that of each text, so that no text
        is encoded twice. Estimators with ``freeze`` keep what their frozen layers give for all
        rows of a fit, and of a prediction of up to 8,192 rows, to be read for the same rows again.
    validation_fraction : float or None, default=None
        Fraction of the rows to hold out as a validation set, in (0, 1). It is validated after each
        epoch, and the best weights are kept, as ``scoring`` says. None holds out no rows;
        ``X_val`` of ``fit`` takes the place of rows held out.
    patience : int or None, default=None
        Number of epochs without an improvement on the validation set after which training stops;
        None never stops early.
    scoring : str or callable, default="loss"
        What says which weights are best on the validation set: ``"loss"``, the lowest loss; the
        name of a scorer of scikit-learn, such as ``"f1_macro"``, or of
        :func:`skbert.metrics.get_scorer`; or a scorer, called with ``(estimator, X, y)``, larger
        being better. The first of equal scores is kept, and NaN is no improvement.
    precision : {"auto", "float32", "bfloat16", "float16", "float64", "int8"}, default="auto"
        Type of matrix products; weights stay in float32, or in float64 with ``"float64"``.
        ``"auto"`` is bfloat16 if the hardware is fast at it, otherwise float32. ``"int8"`` is for
        predictions on a CPU with AVX512-VNNI; training is then as with ``"auto"``.
    device : str, default="auto"
        ``"cpu"``, ``"cuda"``, ``"cuda:1"`` or ``"mps"``; ``"auto"`` uses the best one available.
    gradient_checkpointing : bool, default=False
        Recompute activations in the backward pass instead of storing them, which takes less memory
        and more time.
    compile : bool, default=False
        Compile the encoder with ``torch.compile``; this saves time only if training takes long.
    warm_start : bool, default=False
        Continue training from the weights of the previous fit; ``model`` is then not opened.
        With ``validation_fraction`` and an int as ``random_state`` the same rows are held out of
        the same X; otherwise the previous fit may have learned from some of them.
    random_state : int, RandomState instance or None, default=None
        Controls all randomness, such as the order of rows, dropout, the validation set and new
        weights. With an int, the same fit on the same machine with the same number of threads
        gives bit-identical results; on a GPU the last digits may differ.
    checkpoint_dir : str, path-like or None, default=None
        Folder in which a fit keeps its last two checkpoints, so that it can be stopped at any
        moment: the same fit goes on from there and ends with the same bits. A fit of other
        parameters or data is refused while a stopped one is there. A finished fit removes its
        checkpoints; those of clones, as in a search, leave their weights, so that a search goes
        on where it was. ``partial_fit`` writes none. None writes none.
    checkpoint_every : {"pass"}, int or str, default="pass"
        When checkpoints are written: after each epoch, after a number of optimizer steps, or after
        a number of minutes, such as ``"10min"``. Ctrl-C and SIGTERM write one, too.
    verbose : int, default=0
        1 shows progress bars: in training with loss and validation score, and with rows per second
        and time left wherever else computing takes more than a second.

    Attributes
    ----------
    model_ : transformers.BertForSequenceClassification
        The fine-tuned model, an ordinary transformers object; its outputs are standardised
        targets.
    tokenizer_ : transformers.PreTrainedTokenizerBase
        The tokenizer of ``model_``, an ordinary transformers object.
    pooling_ : str
        The pooling in use, with ``"auto"`` resolved.
    n_outputs_ : int
        Number of targets, that is of numbers predicted per row.
    mean_, scale_ : ndarray of shape (`n_outputs_`,)
        Weighted mean and standard deviation of the targets in ``fit``, or in the first call of
        ``partial_fit``; for a constant target ``scale_`` is 1. After ``from_pretrained`` they are
        0 and 1 until then.
    target_names_ : ndarray of shape (`n_outputs_`,)
        Names of the columns of y in ``fit``. Defined only if y was a frame with several columns
        whose names were all str.
    history_ : list of dict
        One dict per epoch: loss, learning rate, seconds, and with a validation set
        ``validation_loss`` and ``validation_score``, R² averaged over the outputs.
    probe_score_ : float
        ``validation_score`` before the first epoch, if there is a validation set and the head
        starts from a linear model. If training does not improve it, ``BertTransformer`` with a
        linear model does as well.
    n_iter_ : int
        Number of epochs that were run.
    n_truncated_ : int
        Number of rows of X that were cut to ``max_length`` in ``fit``.
    conformity_scores_ : ndarray of shape (n_held_out, n_outputs)
        Absolute errors in the rows held out, each column ascending, for ``predict_set``. Only if
        ``fit`` had rows to validate on, or after ``conformalize``.
    n_features_in_ : int
        Number of columns of X in ``fit``. Not defined if X was a list or a Series of texts, which
        has no columns.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the columns of X in ``fit``. Defined only if X was a frame whose column names were
        all str.

    See Also
    --------
    BertClassifier : The same for labels.

    References
    ----------
    Devlin et al. 2019, "BERT: Pre-training of deep bidirectional transformers for language
    understanding", whose model for STS-B has this head.

    Examples
    --------
    >>> from skbert import BertRegressor
    >>> from skbert.datasets import load_ratings
    >>> X, y = load_ratings(return_X_y=True)
    >>> regressor = BertRegressor(epochs=1, freeze="all", random_state=0).fit(X, y)
    >>> good, bad = regressor.predict(["Works perfectly, I love it", "Broke on the first day"])
    >>> bool(good > bad)
    True
    """

    pooling: str = "auto"
    long_text: LongText = "truncate"

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **FeatureEstimator._parameter_constraints,
        **ROW_HEAD_CONSTRAINTS,
    }
    _opens: ClassVar[tuple[Job, ...]] = ("sequence classification",)
    _y_holds: ClassVar[str] = "a number per row, or several"

    @requires_y
    @with_callbacks
    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn from one more batch of rows, in one pass at constant learning rates.

        Targets are standardised by ``mean_`` and ``scale_`` of the first batch, so it should hold
        numbers of the size that later ones have. ``warmup`` and ``schedule`` apply to ``fit``
        only.

        Parameters
        ----------
        X : array-like of str of shape (n_samples,), or pairs of shape (n_samples, 2)
            One text, or one pair of texts, per row.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            A number per row, or several.
        sample_weight : array-like of shape (n_samples,), default=None
            Weight of each row in the loss; None gives all rows the same weight.

        Returns
        -------
        self : BertRegressor
            The fitted estimator.

        Raises
        ------
        InputError, InputTypeError
            If X, y or a weight cannot be used; the message names the first bad row.

        Examples
        --------
        >>> from skbert import BertRegressor
        >>> from skbert.datasets import load_ratings
        >>> X, y = load_ratings(return_X_y=True)
        >>> regressor = BertRegressor(freeze="all", random_state=0)
        >>> for start in range(0, len(X), 100):
        ...     part = slice(start, start + 100)
        ...     regressor = regressor.partial_fit(X[part], y[part])
        >>> good, bad = regressor.predict(["Works perfectly, I love it", "Broke on the first day"])
        >>> bool(good > bad)
        True
        """
        return self._learn(X, y, sample_weight, continue_training=True, epochs=1)

    @requires_y
    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return R², the share of the variance of y that the predictions explain.

        Parameters
        ----------
        X : array-like of str of shape (n_samples,), or pairs of shape (n_samples, 2)
            The texts.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            The true numbers.
        sample_weight : array-like of shape (n_samples,), default=None
            Weight of each row; None gives all rows the same weight.

        Returns
        -------
        r2 : float
            Averaged over the targets. The best value is 1; always predicting the mean of y gives
            0.

        Raises
        ------
        InputError, InputTypeError
            If X, y or a weight cannot be used; the message names the first bad row.
        """
        fitted = self._state()
        predicted = self._numbers(fitted, self._rows(X, fitted.record))
        table = read_target_table(
            as_sequence(y), len(predicted), predicted.dtype, estimator_name=type(self).__name__
        )
        _check_columns(table, fitted)
        weight = check_sample_weight(as_sequence(sample_weight), len(predicted))
        both = np.stack([table.numbers, predicted])
        exponents = np.frexp(np.abs(both).max(axis=(0, 1)))[1]
        both = np.ldexp(both, -exponents)  # so that no square is infinite
        return float(r2_score(*both, sample_weight=weight))

    def _prepare_targets(
        self, y: Any, rows: Any, max_length: int, previous: Fitted | None, weight: Any
    ) -> TrainingPlan:
        dtype = np.float64 if self.precision == "float64" else np.float32
        table = read_target_table(y, len(rows), dtype, estimator_name=type(self).__name__)
        columns = table.numbers.reshape(len(rows), -1)
        task = Numbers(columns.shape[1], max_length, self.long_text)
        if previous is not None:
            _check_columns(table, previous)
        if previous is not None and not previous.task.is_raw:
            learned = previous.attributes
            return _plan(task, columns, weight, learned["mean_"], learned["scale_"], table.names)

        def learned_from(rows: IntArray) -> TrainingPlan:
            is_weighted = weight is not None and weight[rows].any()
            own_weight = weight[rows] if is_weighted else None
            mean, scale = _standard(columns[rows], own_weight)
            plan = _plan(task, columns, weight, mean, scale, table.names)
            if previous is not None:  # whose outputs are raw
                plan = plan._replace(output_scale=(1 / scale, -mean / scale))
            return plan

        if previous is None:
            return learned_from(np.arange(len(rows)))._replace(learned_from=learned_from)
        raw, zero = replace(task, is_raw=True), np.zeros(columns.shape[1])
        plan = _plan(raw, columns, weight, zero, zero + 1.0, table.names)
        can_scale = isinstance(previous.network.output_layer, torch.nn.Linear)  # no adapter's
        return plan._replace(learned_from=learned_from) if can_scale else plan

    def _starts_random(self, run: Run) -> bool:
        # A linear model of few rows leaves the encoder no errors to learn from. But weights of
        # features would take too many steps to learn.
        network = run.network
        return not network.head.n_features and not is_encoder_frozen(network.model, self.freeze)

    def _checkpoint_head(self, n_outputs: int) -> Head:
        return replace(super()._checkpoint_head(n_outputs), is_raw=True)

    def _load_checkpoint(self, network: Network, max_length: int) -> tuple[Task, dict[str, Any]]:
        n_outputs = network.model.config.num_labels
        problem = network.model.config.problem_type
        if problem != "regression" and (problem or n_outputs > 1):
            raise ModelError(
                f"The checkpoint predicts {n_outputs} classes, not numbers. "
                "Open it with BertClassifier.from_pretrained."
            )
        attributes = {
            "n_outputs_": n_outputs, "mean_": np.zeros(n_outputs), "scale_": np.ones(n_outputs)
        }  # fmt: skip
        return Numbers(n_outputs, max_length, self.long_text, is_raw=True), attributes

    def _finish(self, run: Run, attributes: dict[str, Any]) -> dict[str, Any]:
        config = run.network.model.config
        config.problem_type = "regression"
        name_outputs(config, attributes.get("target_names_", ()))
        return {}

    def _exported(self, fitted: Fitted) -> Network:
        """A network that gives the numbers themselves, not standardised ones."""
        if not tells_apart(np.float32, fitted.attributes):
            raise ModelError(
                "The weights of a plain model are float32, which would round away what the"
                " targets of fit differ by, so far from 0 as they lie. Use save(path) or"
                " export(path), or fit on the differences from a number near their mean."
            )
        network: Network = copy.deepcopy(fitted.network)
        scale_output(network, fitted.attributes["scale_"], fitted.attributes["mean_"])
        return network


def _plan(
    task: Numbers, columns: Array, weight: Array | None, mean: Array, scale: Array,
    names: tuple[str, ...] | None,
) -> TrainingPlan:  # fmt: skip
    """The plan for columns of numbers that are standardised by these."""
    with np.errstate(over="ignore"):
        targets = (columns - mean) / scale
    targets = np.where(np.isfinite(targets), targets, columns / scale - mean / scale)

    def r2(predicted: Array, held_out: Array) -> float:
        is_defined = len(held_out) > 1
        return float(r2_score(targets[held_out], predicted)) if is_defined else np.nan

    def conform(predicted: Array, held_out: Array) -> dict[str, Any]:
        errors = np.abs(predicted.astype(np.float64) - targets[held_out]) * scale
        return Conformity(np.minimum(errors, np.finfo(np.float64).max)).attributes()

    attributes = {"mean_": mean, "scale_": scale, "n_outputs_": columns.shape[1]}
    attributes |= learned_names(names)
    return TrainingPlan(task, targets, attributes, r2, None, weight, conform=conform)


def _check_columns(table: TargetTable, fitted: Fitted) -> None:
    """Raise where y has other columns than in fit."""
    n_outputs = 1 if table.numbers.ndim == 1 else table.numbers.shape[1]
    known = fitted.attributes["n_outputs_"]
    if n_outputs != known:
        raise InputError(
            f"y has {n_outputs} columns, but the fitted estimator predicts {known}. Give the "
            "same columns, or fit anew with warm_start=False."
        )
    check_target_names(table.names, fitted.attributes)


def _standard(columns: Array, weight: Array | None) -> tuple[Array, Array]:
    """Weighted mean and standard deviation of each column, safe for any finite numbers."""
    largest = np.abs(columns).max(axis=0)
    unit = np.where(largest > 0, largest, 1.0)
    mean = np.average(columns / unit, axis=0, weights=weight)
    spread = np.sqrt(np.average((columns / unit - mean) ** 2, axis=0, weights=weight))
    scale = np.where(spread > 1e-10, spread * unit, 1.0)
    return mean * unit, np.maximum(scale, np.finfo(scale.dtype).tiny)
