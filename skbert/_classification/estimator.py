"""BertClassifier: one label or several per text or pair."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils._param_validation import StrOptions

from skbert._classification.label_texts import (
    LabelTextsLike,
    check_label_texts,
    label_rows,
    read_label_texts,
    with_labels,
)
from skbert._classification.predicting import PredictsLabels
from skbert._classification.predictions import check_columns, predictions_of
from skbert._classification.reading import read_targets
from skbert._classification.targets import (
    IndicatorTargets,
    SingleTargets,
    Targets,
    TargetSettings,
    learned_of_indicator,
)
from skbert._classification.task import (
    ONE_CLASS,
    SEVERAL,
    MultiLabel,
    SeveralLabels,
    SingleLabel,
    columns_of,
    describe,
)
from skbert._core.families.record import Job
from skbert._core.models.network import Network
from skbert._core.models.output import grow_output
from skbert._core.models.sentence_folder import has_class
from skbert._core.task import Task
from skbert._core.text.tokens import LongText
from skbert._estimator.base import ROW_HEAD_CONSTRAINTS, RealInterval
from skbert._estimator.callbacks import with_callbacks
from skbert._estimator.features import FeatureEstimator
from skbert._estimator.fitted import Fitted
from skbert._estimator.guidance import requires_y
from skbert._estimator.plan import TrainingPlan
from skbert._estimator.rejection import RejectingEstimator
from skbert._estimator.run import Run
from skbert._estimator.validation_set import ValidationInput
from skbert._validation.targets import as_sequence
from skbert._validation.weights import check_sample_weight
from skbert.exceptions import InputError, ModelError

__all__ = ["BertClassifier"]


@dataclass(eq=False, repr=False, kw_only=True)
class BertClassifier(PredictsLabels, ClassifierMixin, RejectingEstimator, FeatureEstimator):
    """Classify texts or pairs of texts with a fine-tuned BERT.

    It supports binary and multiclass targets, also as probabilities (soft labels), multi-label
    ones as an indicator matrix, and several columns of classes at once.

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
    class_weight : dict, "balanced" or None, default=None
        Factor for each class by which the weights of its rows are multiplied. ``"balanced"`` gives
        every class the same total weight. For multi-label targets the keys are column numbers, and
        the factor applies where the label is present. For several columns of classes
        ``"balanced"`` applies to each, and a dict has the names of columns as keys (numbers, if
        they have none), with such a dict, ``"balanced"`` or None for each.
    label_smoothing : float, default=0.0
        Fraction of the target that is spread over all classes, in [0, 1).
    calibrate : bool, default=False
        Divide the logits by a temperature that is fitted on the validation set (Guo et al. 2017,
        "On calibration of modern neural networks"); needs ``validation_fraction`` or
        ``X_val``.
    tune_thresholds : bool, default=False
        For each label, choose the threshold with the best F1 on the validation set; for
        multi-label targets only, needs ``validation_fraction`` or
        ``X_val``.
    label_texts : dict, list, bool or None, default=None
        Texts that say what labels mean, from which the head starts: ``{label: text}`` or
        ``{label: [text, ...]}``. A list of labels, or True for those in y, means the labels
        themselves, with ``_``, ``-``, ``.`` and ``/`` read as spaces. Each text is a row to train
        on beside those of X, in every fit, and labels that y lacks are classes too. For
        multi-label targets the keys are column numbers.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,), or list of such arrays
        The sorted labels; for multi-label targets, the column numbers; for several columns of
        classes, an array for each.
    target_names_ : ndarray of shape (n_columns,)
        Names of the columns of y in ``fit``. Defined only if y was a frame whose columns are an
        indicator, or classes each, and whose names were all str.
    model_ : transformers.BertForSequenceClassification
        The fine-tuned model, an ordinary transformers object.
    tokenizer_ : transformers.PreTrainedTokenizerBase
        The tokenizer of ``model_``, an ordinary transformers object.
    pooling_ : str
        The pooling in use, with ``"auto"`` resolved.
    history_ : list of dict
        One dict per epoch: loss, learning rate, seconds, and with a validation set
        ``validation_loss`` and ``validation_score``.
    probe_score_ : float
        ``validation_score`` before the first epoch, if there is a validation set and the head
        starts from a linear model. If training does not improve it, ``BertTransformer`` with a
        linear model does as well.
    n_iter_ : int
        Number of epochs that were run.
    n_truncated_ : int
        Number of rows of X that were cut to ``max_length`` in ``fit``.
    temperature_ : float
        The number by which the logits are divided; 1.0 without ``calibrate``.
    thresholds_ : ndarray of shape (n_classes,)
        Lowest probability at which each label is predicted; for multi-label targets only.
    conformity_scores_ : ndarray of shape (n_held_out,) or (n_held_out, n_columns)
        1 minus the probability of the right label in each row held out, ascending, for
        ``predict_set``; of several labels, the least probable one; of several columns of classes,
        in each column. Only if ``fit`` had rows to validate on, or after ``conformalize``.
    held_out_confidences_ : ndarray of shape (n_held_out, 2)
        Probability of the predicted label of each row held out, and 1 where it was right, for
        ``reject_threshold``. Only with rows to validate on, or after ``conformalize``, and with
        one label per row.
    n_features_in_ : int
        Number of columns of X in ``fit``. Not defined if X was a list or a Series of texts, which
        has no columns.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the columns of X in ``fit``. Defined only if X was a frame whose column names were
        all str.

    See Also
    --------
    BertRegressor : The same for numbers.

    References
    ----------
    Devlin et al. 2019, "BERT", section 4.1, for the head and the hyperparameters; Kumar et al.
    2022, "Fine-tuning can distort pretrained features and underperform out-of-distribution".

    Examples
    --------
    >>> from skbert import BertClassifier
    >>> from skbert.datasets import load_intents
    >>> X, y = load_intents(return_X_y=True)
    >>> classifier = BertClassifier(epochs=1, freeze="all", random_state=0).fit(X, y)
    >>> classifier.predict(["I forgot my password and cannot sign in"])
    array(['login'], dtype=object)

    Columns of a frame as fields of one text:

    >>> table = X.to_frame("message").assign(subject=X.str[:20], channel="mail")
    >>> fields = ["channel", "subject", "message"]
    >>> classifier = BertClassifier(text_columns=fields, epochs=1, freeze="all", random_state=0)
    >>> classifier.fit(table, y).predict(table[:1])
    array(['payment'], dtype=object)
    """

    pooling: str = "auto"
    long_text: LongText = "truncate"
    class_weight: Mapping[Any, float] | str | None = None
    label_smoothing: float = 0.0
    tune_thresholds: bool = False
    label_texts: LabelTextsLike | bool | None = None

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **FeatureEstimator._parameter_constraints,
        **RejectingEstimator._parameter_constraints,
        **ROW_HEAD_CONSTRAINTS,
        "class_weight": [dict, StrOptions({"balanced"}), None],
        "label_smoothing": [RealInterval(0, 1, closed="left")],
        "tune_thresholds": ["boolean"],
        "label_texts": [dict, "array-like", "boolean", None],
    }
    _of_held_out: ClassVar[tuple[str, ...]] = (
        *RejectingEstimator._of_held_out, "tune_thresholds",
    )  # fmt: skip
    _opens: ClassVar[tuple[Job, ...]] = ("sequence classification",)
    _y_holds: ClassVar[str] = "a label per row, or an indicator matrix"
    _without_rows: ClassVar[str] = (
        " Without rows the texts of labels can do: type "
        "BertClassifier.from_label_texts({'refund': 'the customer wants money back', ...})."
    )

    @classmethod
    def from_label_texts(cls, label_texts: LabelTextsLike, **params: Any) -> Self:
        """Train on nothing but texts that say what labels mean, without a row of X.

        It is a fit on these texts as rows. The parameter ``label_texts`` is set, so that a later
        ``fit`` on rows trains on the texts beside them.

        Parameters
        ----------
        label_texts : dict or list
            ``{label: text}``, ``{label: [text, ...]}``, or a list of labels that say what they
            mean themselves.
        **params : dict
            Other parameters of the estimator.

        Returns
        -------
        estimator : BertClassifier
            The fitted estimator.

        Raises
        ------
        InputError, InputTypeError
            If there is a label without a text, or a parameter that needs rows.

        Examples
        --------
        >>> from skbert import BertClassifier
        >>> classifier = BertClassifier.from_label_texts(
        ...     {"refund": "the customer wants money back",
        ...      "login": "the customer cannot sign in"}, random_state=0)
        >>> classifier.predict(["I forgot my password"])
        array(['login'], dtype='<U6')
        """
        estimator = cls(label_texts=label_texts, **params)
        if estimator.validation_fraction is not None:
            raise InputError(
                f"validation_fraction={estimator.validation_fraction} holds out rows of X, and "
                "from_label_texts has none. Leave it out, and set it before a fit on rows."
            )
        labels, texts = read_label_texts(label_texts)
        return estimator._learn(texts, labels, None, continue_training=False, are_label_texts=True)

    @requires_y
    @with_callbacks
    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, *, X_val: object = None,
        y_val: object = None, sample_weight_val: object = None, groups: object = None,
        classes: object = None,
    ) -> Self:  # fmt: skip
        """Fine-tune on texts ``X`` and their labels ``y``.

        Parameters
        ----------
        X : array-like of str of shape (n_samples,), or pairs of shape (n_samples, 2)
            One text, or one pair of texts, per row.
        y : array-like of shape (n_samples,) or (n_samples, n_columns)
            A label per row; or an indicator matrix, for several labels per row; or the
            probabilities of classes, as soft labels; or a column of labels for each of several
            targets. Which one a matrix or frame is, its values say: see the Notes.
        sample_weight : array-like of shape (n_samples,), default=None
            Weight of each row in the loss; None gives all rows the same weight.
        X_val : array-like, default=None
            Rows to validate on, in the form of X; none of X is then held out, whatever
            ``validation_fraction`` is.
        y_val : array-like, default=None
            What is right for the rows of X_val, in the form of y.
        sample_weight_val : array-like of shape (n_val_samples,), default=None
            Weight of each row of X_val in the validation loss.
        groups : array-like of shape (n_samples,), default=None
            Group of each row of X, such as its document or its author. With
            ``validation_fraction`` all rows of a group are held out, or none of them; groups are
            drawn regardless of y, so that classes may be held out unevenly.
        classes : array-like of shape (n_classes,), default=None
            For soft labels, the class of each column. The columns of a frame name themselves;
            other columns are those of ``classes_`` where an earlier fit is continued, and
            otherwise have their numbers as names. With ``classes`` a matrix of only 0 and 1 is
            soft labels too. For one label per row, further labels for ``classes_``, which need
            not be in ``y``.

        Returns
        -------
        self : BertClassifier
            The fitted estimator.

        Raises
        ------
        InputError, InputTypeError
            If X, y or a weight cannot be used; the message names the first bad row.
        ModelError
            If ``model`` is not found or not safe to open.
        NonFiniteError
            If a loss or gradient is not finite; the estimator then stays as it was.

        Notes
        -----
        A matrix or frame of only 0 and 1 is an indicator matrix, unless ``classes`` is given.
        Other numbers are soft labels if any of them is no whole number. Anything else is a class
        per column, in a frame or a 2-D array.

        A row of soft labels sums to 1 within 0.001, and is divided by its sum. It counts like one
        row for each class, with the label of the class and its probability as weight; so
        ``class_weight`` and ``label_smoothing`` mean the same for both. In scores the most
        probable class is the label.
        """
        validation = ValidationInput(X_val, y_val, sample_weight_val, groups)
        return self._learn(
            X, y, sample_weight, continue_training=self.warm_start, validation=validation,
            classes=classes,
        )  # fmt: skip

    @requires_y
    @with_callbacks
    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Learn from one more batch of rows, in one pass at constant learning rates.

        New labels are allowed: the output layer grows and keeps what it has learned. ``warmup``
        and ``schedule`` apply to ``fit`` only.

        Parameters
        ----------
        X : array-like of str of shape (n_samples,), or pairs of shape (n_samples, 2)
            One text, or one pair of texts, per row.
        y : array-like of shape (n_samples,) or (n_samples, n_columns)
            The labels, in one of the forms that ``fit`` takes.
        classes : array-like of shape (n_classes,), default=None
            For one label per row, further labels for ``classes_``, which need not be in ``y``;
            for soft labels, the class of each column.
        sample_weight : array-like of shape (n_samples,), default=None
            Weight of each row in the loss; None gives all rows the same weight.

        Returns
        -------
        self : BertClassifier
            The fitted estimator.
        """
        return self._learn(X, y, sample_weight, continue_training=True, epochs=1, classes=classes)

    @requires_y
    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the accuracy; for multi-label targets, the share of rows with all labels right.

        Of several columns of classes it is the mean of their accuracies.

        Parameters
        ----------
        X : array-like of str of shape (n_samples,), or pairs of shape (n_samples, 2)
            The texts.
        y : array-like of shape (n_samples,) or (n_samples, n_classes)
            The true labels in the form of ``fit``; a label that ``fit`` has not seen counts as an
            error. Of soft labels the most probable one is true; without names their columns are
            those of ``classes_``.
        sample_weight : array-like of shape (n_samples,), default=None
            Weight of each row; None gives all rows the same weight.

        Returns
        -------
        accuracy : float
            In [0, 1].

        Raises
        ------
        InputError, InputTypeError
            If X, y or a weight cannot be used; the message names the first bad row.
        """
        fitted = self._state()
        scores = self._outputs(fitted, self._rows(X, fitted.record))
        n = len(scores)
        targets = read_targets(as_sequence(y), n, None, fitted, type(self).__name__)
        right = predictions_of(fitted, scores, X).right(targets.truth)
        weight = check_sample_weight(as_sequence(sample_weight), n)
        return float(np.average(right, weights=weight))

    def _prepare_targets(
        self,
        y: Any,
        rows: Any,
        max_length: int,
        previous: Fitted | None,
        weight: Any,
        classes: Any = None,
        are_label_texts: bool = False,  # whether the rows are those texts, and y their labels
    ) -> TrainingPlan:
        if are_label_texts:
            targets: Targets = SingleTargets(y, y[:0])
        else:
            targets = read_targets(y, len(rows), classes, previous, type(self).__name__)
        _check_tuning(self, targets)
        settings = TargetSettings(
            max_length, self.long_text, self.label_smoothing, self.class_weight,
            self.tune_thresholds,
        )  # fmt: skip
        learned = None if previous is None else previous.attributes
        given = self.label_texts
        if given is None or given is False:
            return targets.plan(settings, weight, learned)
        check_label_texts(self.head_init, rows)
        texts = None if given is True else read_label_texts(given)
        plan = with_labels(targets, texts).plan(settings, weight, learned)
        return plan._replace(
            label_rows=label_rows(texts, plan, self.class_weight, are_all=are_label_texts)
        )

    def _finish(self, run: Run, attributes: dict[str, Any]) -> dict[str, Any]:
        config, columns = run.network.model.config, attributes.get("target_names_", ())
        describe(config, run.task, attributes["classes_"], columns)
        return super()._finish(run, attributes)

    def _load_checkpoint(self, network: Network, max_length: int) -> tuple[Task, dict[str, Any]]:
        config = network.model.config
        n_classes = config.num_labels
        targets = getattr(config, "skbert_targets", None)
        if targets == SEVERAL:
            return self._load_columns(network, max_length)
        is_number = n_classes == 1 and not config.problem_type and targets != ONE_CLASS
        if config.problem_type == "regression" or is_number:
            raise ModelError(
                "The checkpoint predicts numbers, not classes. Open it with "
                "BertRegressor.from_pretrained."
            )
        if config.problem_type == "multi_label_classification":
            learned = learned_of_indicator(n_classes)
            return MultiLabel(n_classes, max_length, self.long_text), learned
        names = np.array([config.id2label[i] for i in range(n_classes)])
        order = np.argsort(names)
        grow_output(network, n_classes, np.argsort(order))
        classes = names[order]
        task = SingleLabel(n_classes, max_length, self.long_text)
        describe(config, task, classes)
        return task, {"classes_": classes, "temperature_": 1.0}

    def _load_columns(self, network: Network, max_length: int) -> tuple[Task, dict[str, Any]]:
        """The same of a checkpoint that predicts several columns; their names are not in it."""
        named = network.model.config.id2label
        columns = columns_of([named[at] for at in range(len(named))])
        starts = np.cumsum([0, *map(len, columns)])
        order = np.concatenate(
            [begin + np.argsort(names) for begin, names in zip(starts, columns, strict=False)]
        )
        grow_output(network, len(order), np.argsort(order))
        classes = [np.sort(names) for names in columns]
        sizes = tuple(map(len, columns))
        task = SeveralLabels(len(order), max_length, self.long_text, sizes=sizes)
        describe(network.model.config, task, classes)
        return task, {"classes_": classes, "temperature_": 1.0}

    def _exported(self, fitted: Fitted) -> Network:
        """The network, unless transformers would take several columns for one."""
        if isinstance(fitted.task, SeveralLabels) and has_class(fitted.network):
            raise ModelError(
                f"The estimator predicts {len(fitted.task.sizes)} columns of classes, and "
                "transformers has no class for them: its model would give other predictions. Use "
                "save(path) to keep the estimator as it is, export(path) to predict without "
                "torch, or fit with another pooling than "
                f"{fitted.network.pooling!r}: its folder is one of sentence-transformers."
            )
        return fitted.network

    def _after_load(self, folder: Path | None) -> None:
        super()._after_load(folder)
        check_columns(self._fitted.task, self._fitted.attributes)

    def __sklearn_tags__(self) -> Any:
        """Add that indicator matrices and several columns of classes are welcome."""
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        tags.target_tags.multi_output = True
        return tags


def _check_tuning(classifier: BertClassifier, targets: Targets) -> None:
    """Refuse to tune where there is nothing to tune."""
    if classifier.tune_thresholds and not isinstance(targets, IndicatorTargets):
        raise InputError(
            f"tune_thresholds=True is for multi-label targets, and y has {targets.form}. "
            "For a binary y use sklearn.model_selection.TunedThresholdClassifierCV."
        )
