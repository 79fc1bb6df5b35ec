"""BertChoiceRanker: the best of the options of each row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.utils._param_validation import StrOptions

from skbert._arrays import Array
from skbert._choice.predicting import RanksOptions, best_options
from skbert._choice.task import Choice
from skbert._core.families.record import Job
from skbert._core.items import Head
from skbert._core.models.network import Network
from skbert._core.task import Task
from skbert._core.text.tokens import LongText
from skbert._estimator.base import ROW_HEAD_CONSTRAINTS
from skbert._estimator.callbacks import with_callbacks
from skbert._estimator.conformity import Conformity
from skbert._estimator.fitted import Fitted
from skbert._estimator.guidance import requires_y
from skbert._estimator.plan import TrainingPlan
from skbert._estimator.rejection import RejectingEstimator
from skbert._estimator.validation_set import ValidationInput
from skbert._estimator.withholding import confidences
from skbert._validation.choices import Choices, check_picks
from skbert._validation.weights import check_sample_weight

__all__ = ["BertChoiceRanker"]


@dataclass(eq=False, repr=False, kw_only=True)
class BertChoiceRanker(RanksOptions, RejectingEstimator):
    """Choose the best of several options in each row with a fine-tuned BERT.

    This is multiple choice. The model reads every option together with its prompt and computes one
    score for it; a softmax over the options of a row turns the scores into probabilities. Rows may
    have any number of options, in ``fit`` too.

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
    calibrate : bool, default=False
        Divide the logits by a temperature that is fitted on the validation set (Guo et al. 2017,
        "On calibration of modern neural networks"); needs ``validation_fraction`` or
        ``X_val``.

    Attributes
    ----------
    model_ : transformers.BertForMultipleChoice
        The fine-tuned model, an ordinary transformers object.
    tokenizer_ : transformers.PreTrainedTokenizerBase
        The tokenizer of ``model_``, an ordinary transformers object.
    pooling_ : str
        The pooling in use, with ``"auto"`` resolved.
    history_ : list of dict
        One dict per epoch: loss, learning rate, seconds, and with a validation set
        ``validation_loss`` and ``validation_score``, the accuracy.
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
    conformity_scores_ : ndarray of shape (n_held_out,)
        1 minus the probability of the right option in each row held out, ascending, for
        ``predict_set``. Only if ``fit`` had rows to validate on, or after ``conformalize``.
    held_out_confidences_ : ndarray of shape (n_held_out, 2)
        Probability of the predicted option of each row held out, and 1 where it was right, for
        ``reject_threshold``. Only if ``fit`` had rows to validate on, or after ``conformalize``.
    n_features_in_ : int
        Number of columns of X in ``fit``; if they have no names, all options together count as
        one.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the columns of X in ``fit``. Defined only if X was a frame whose column names were
        all str.

    See Also
    --------
    BertClassifier : The same classes for all rows.
    skbert.metrics.mean_reciprocal_rank : A score for the whole ranking.

    Notes
    -----
    **X.** If the last column holds lists, these are the options. One column before it is the
    prompt; two columns are the prompt and a second text that comes before every option, as in
    SWAG. Otherwise the first column is the prompt and every other column an option; if a cell is
    missing, the row does not have that option. X may also be a list of
    ``(prompt, [option, ...])``. ``text_columns`` selects and orders the columns first, and may
    name any number of them.

    **Options** are counted from 0 in the order of X. An option that a row repeats counts once, at
    its first position; its repetitions have probability 0. If a row has only one option, that one
    is predicted.

    **Long rows** are cut, since the scores of windows could not be compared: ``long_text`` must be
    ``"truncate"`` or ``"head_tail"``.

    The predictions are positions within a row, not classes, so the estimator is not a classifier
    in scikit-learn's sense: folds are not stratified, and it has its own ``score``.

    References
    ----------
    Zellers et al. 2018, "SWAG: A large-scale adversarial dataset for grounded commonsense
    inference"; Devlin et al. 2019, "BERT: Pre-training of deep bidirectional transformers for
    language understanding", section 4.4, for the head and the loss.

    Examples
    --------
    >>> from skbert import BertChoiceRanker
    >>> from skbert.datasets import load_choices
    >>> X, y = load_choices(return_X_y=True)
    >>> ranker = BertChoiceRanker(epochs=1, freeze="all", random_state=0).fit(X, y)
    >>> ranker.predict_text([("The milk stood in the sun all day and", ["sang", "turned sour"])])
    array(['turned sour'], dtype=object)
    """

    pooling: str = "auto"
    long_text: LongText = "truncate"

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **RejectingEstimator._parameter_constraints,
        **ROW_HEAD_CONSTRAINTS,
        "long_text": [StrOptions({"truncate", "head_tail"})],
    }
    _opens: ClassVar[tuple[Job, ...]] = ("multiple choice",)
    _y_holds: ClassVar[str] = (
        "the right option of each row: its position, counted from 0, or its text"
    )

    @requires_y
    @with_callbacks
    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, *, X_val: object = None,
        y_val: object = None, sample_weight_val: object = None, groups: object = None,
    ) -> Self:  # fmt: skip
        """Fine-tune on prompts with options ``X`` and the right options ``y``.

        Parameters
        ----------
        X : array-like of (prompt, options) of shape (n_samples, 2), or as in the notes above
            The prompts and their options.
        y : array-like of int or str of shape (n_samples,)
            The right option of each row: its position, counted from 0, or its text.
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

        Returns
        -------
        self : BertChoiceRanker
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
        validation = ValidationInput(X_val, y_val, sample_weight_val, groups)
        return self._learn(
            X, y, sample_weight, continue_training=self.warm_start, validation=validation
        )

    @requires_y
    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the accuracy, the share of rows whose best option is the right one.

        Parameters
        ----------
        X : array-like of (prompt, options) of shape (n_samples, 2), or as in the notes above
            The prompts and their options.
        y : array-like of int or str of shape (n_samples,)
            The right options, as positions or texts.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights of the rows.

        Returns
        -------
        accuracy : float
            Between 0 and 1.
        """
        fitted = self._state()
        rows = self._rows(X, fitted.record)
        picks = check_picks(y, rows, estimator_name=type(self).__name__)
        weight = check_sample_weight(sample_weight, len(rows))
        best = best_options(rows, self._outputs(fitted, rows))
        return float(np.average(best == picks, weights=weight))

    def _prepare_targets(
        self,
        y: Any,
        rows: Any,
        max_length: int,
        previous: Fitted | None,  # noqa: ARG002 - nothing in it depends on y
        weight: Any,
    ) -> TrainingPlan:
        picks = check_picks(y, rows, estimator_name=type(self).__name__)
        pairs = zip(rows.places, picks, strict=True)
        numbers = np.array([list(places.values()).index(pick) for places, pick in pairs])

        def accuracy(scores: Array, held_out: Array) -> float:
            return float(np.mean([s.argmax() for s in scores] == numbers[held_out]))

        def conform(scores: Array, held_out: Array) -> dict[str, Any]:
            rights = numbers[held_out]
            chances = [np.exp(score) for score in scores]
            best = np.array([row.argmax() for row in chances])
            true = [1 - float(row[at]) for row, at in zip(chances, rights, strict=True)]
            return {
                **Conformity(np.array(true)).attributes(),
                **confidences(np.array([row.max() for row in chances]), best == rights),
            }

        task = Choice(max_length, self.long_text)
        return TrainingPlan(task, numbers, {}, accuracy, None, weight, conform=conform)

    @classmethod
    def _checkpoint_head(cls, n_outputs: int) -> Head:  # noqa: ARG003 - one, whatever is declared
        return Choice(0).head()

    def _columns_of(self, X: object, rows: Choices) -> dict[str, Any]:
        columns = super()._columns_of(X, rows)
        if not rows.names:  # rows differ in their numbers of options
            columns["n_features_in_"] = rows.n_columns
        return columns

    def _load_checkpoint(
        self,
        network: Network,  # noqa: ARG002 - it has no labels
        max_length: int,
    ) -> tuple[Task, dict[str, Any]]:
        return Choice(max_length, self.long_text), {"temperature_": 1.0}

    def __sklearn_tags__(self) -> Any:
        """Add that there is no fit without ``y``."""
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags
