"""BertTokenTagger: a tag for each word, and the entities that tags mark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.utils._param_validation import StrOptions

from skbert._arrays import Array
from skbert._core.families.record import Job
from skbert._core.items import name_outputs
from skbert._core.models.network import Network
from skbert._core.models.output import grow_output
from skbert._core.task import Task
from skbert._estimator.calibration import CalibratedEstimator
from skbert._estimator.callbacks import with_callbacks
from skbert._estimator.fitted import Fitted
from skbert._estimator.guidance import requires_y
from skbert._estimator.plan import TrainingPlan
from skbert._estimator.run import Run
from skbert._estimator.validation_set import ValidationInput
from skbert._tagging.predicting import PredictsTags
from skbert._tagging.schemes import guess_scheme, warn_if_prefixed, whole_words
from skbert._tagging.targets import (
    checked_names,
    checked_targets,
    f1,
    plan_tags,
    written_in,
)
from skbert._tagging.task import WordTags, widened
from skbert._validation.entities import SCHEMES
from skbert._validation.texts import Texts
from skbert._validation.words import WordRows

__all__ = ["BertTokenTagger"]

Tags = Sequence[str] | Array | None


@dataclass(eq=False, repr=False, kw_only=True)
class BertTokenTagger(PredictsTags, CalibratedEstimator):
    """Tag each word with a fine-tuned BERT, as for named entities or parts of speech.

    Each word gets exactly one tag, however long its row is. For rows of words the estimator
    predicts tags, for raw texts the spans of entities.

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
    head_init : {"auto", "probe", "random"}, default="auto"
        Initial weights of the head: those of a linear model fitted on the frozen encoder's
        features (``"probe"``), or random ones. ``"auto"`` uses the linear model, unless encoder
        layers are trained and the targets are numbers or the head reads one pair of texts per row
        as models of its type do.
    max_length : int or None, default=None
        Maximum length of a row in tokens, special tokens included. None uses the limit of the
        model, but at most 384 in ``BertSpanExtractor``, and where training goes on, what the fit
        before used. Long rows take more memory and time.
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
    label_pieces : {"first", "all"}, default="first"
        Which word pieces of a word are read, in training and in prediction: the first one, as in
        Devlin et al., or all of them, whose logits are averaged.
    scheme : {"auto", "IOB1", "IOB2", "BIOES", "IO"} or None, default="auto"
        How tags mark entities. ``"auto"`` recognises the scheme of ``y``, and uses IOB2 for spans
        in raw texts. None treats tags as labels that stand alone, such as parts of speech.
    decoding : {"viterbi", "argmax"}, default="viterbi"
        Predict the most probable sequence of tags that the scheme allows, or the most probable tag
        of each word.
    calibrate : bool, default=False
        Divide the logits by a temperature that is fitted on the validation set (Guo et al. 2017,
        "On calibration of modern neural networks"); needs ``validation_fraction`` or
        ``X_val``.

    Attributes
    ----------
    classes_ : ndarray of shape (n_tags,)
        The sorted tags that the model learns: those of ``y``, written in ``learned_scheme_``.
    scheme_ : str or None
        The scheme of ``y`` and of predictions; None for tags without prefixes.
    learned_scheme_ : str or None
        The scheme of ``classes_``: IOB2 if ``scheme_`` is IOB1, otherwise the same as ``scheme_``.
    model_ : transformers.BertForTokenClassification
        The fine-tuned model, an ordinary transformers object.
    tokenizer_ : transformers.PreTrainedTokenizerBase
        The tokenizer of ``model_``, an ordinary transformers object.
    pooling_ : str
        Not used here: the head reads every token.
    history_ : list of dict
        One dict per epoch: loss, learning rate, seconds, and with a validation set
        ``validation_loss`` and ``validation_score``, as computed by ``score``.
    probe_score_ : float
        ``validation_score`` before the first epoch, if there is a validation set and the head
        starts from a linear model. If training does not improve it, ``BertTransformer`` with a
        linear model does as well.
    n_iter_ : int
        Number of epochs that were run.
    n_truncated_ : int
        Number of rows of X that were cut; always 0, since long rows are read in windows.
    temperature_ : float
        The number by which the logits are divided; 1.0 without ``calibrate``.
    conformity_scores_ : ndarray of shape (n_words,)
        1 minus the probability of the right tag of each word in the rows held out, ascending, for
        ``predict_set``. Only if ``fit`` had rows to validate on, or after ``conformalize``.
    conformity_weights_ : ndarray of shape (n_words,)
        The share of each of these words in its row.
    n_features_in_ : int
        Number of columns of X in ``fit``. Not defined if X was a list or a Series of texts, which
        has no columns.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the columns of X in ``fit``. Defined only if X was a frame whose column names were
        all str.

    See Also
    --------
    skbert.metrics.entity_report : Precision, recall and F1 for each type of entity.

    Notes
    -----
    **X and y.** Either X holds a list of words per row, and y a list of as many tags; or X holds
    raw texts, and y a list of ``(start, end, label)`` in characters per row. A fitted tagger
    accepts both. The tokenizer splits a raw text into words, and a span that begins or ends inside
    a word is widened to the whole word.

    **Schemes.** Predictions are in the scheme of ``y``. The model learns the tags of ``y``, and
    ``classes_``, ``predict_proba`` and the checkpoint's ``id2label`` use them too. The exception
    is IOB1: it is learned as IOB2, which marks the first word of every entity in the same way.
    Rows that break their scheme, such as ``I-PER`` without a ``B-PER`` in IOB2, are read as the
    conlleval script reads them, with one warning. BILOU is learned and predicted as BIOES.

    **Long rows** are read in windows of whole words that overlap by a quarter. Each word is used
    in the window where it is farthest from both ends. A word without word pieces counts as
    unknown, and only the first pieces of a very long word are read.

    Predictions are lists, not classes, so the estimator is not a classifier in scikit-learn's
    sense: folds are not stratified, and it has its own ``score``.

    References
    ----------
    Devlin et al. 2019, "BERT: Pre-training of deep bidirectional transformers for language
    understanding", section 5.3, for the head; Ramshaw and Marcus 1995, "Text chunking using
    transformation-based learning", for tags that mark spans; Tjong Kim Sang and De Meulder 2003,
    "Introduction to the CoNLL-2003 shared task", for the score.

    Examples
    --------
    >>> from skbert import BertTokenTagger
    >>> from skbert.datasets import load_entities
    >>> X, y = load_entities(return_X_y=True)
    >>> tagger = BertTokenTagger(epochs=1, freeze="all", random_state=0).fit(X, y)
    >>> tagger.predict([["Hedda", "moved", "to", "Paris", "."]])[0]
    ['B-PER', 'O', 'O', 'B-LOC', 'O']
    >>> tagger.predict(["Hedda moved to Paris."])[0]
    [(0, 5, 'PER'), (15, 20, 'LOC')]
    """

    label_pieces: str = "first"
    scheme: str | None = "auto"
    decoding: str = "viterbi"

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **CalibratedEstimator._parameter_constraints,
        "label_pieces": [StrOptions({"first", "all"})],
        "scheme": [StrOptions({"auto", *SCHEMES}), None],
        "decoding": [StrOptions({"viterbi", "argmax"})],
    }
    _opens: ClassVar[tuple[Job, ...]] = ("token classification",)
    _y_holds: ClassVar[str] = (
        "a list per row: a tag for each word, or in texts (start, end, label) for each span"
    )

    @requires_y
    @with_callbacks
    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, *, X_val: object = None,
        y_val: object = None, sample_weight_val: object = None, groups: object = None,
    ) -> Self:  # fmt: skip
        """Fine-tune on rows of words and their tags, or on texts and the spans in them.

        Parameters
        ----------
        X : array-like of lists of str, or of str, of shape (n_samples,)
            The words of each row, or one text per row.
        y : array-like of lists of shape (n_samples,)
            A tag for each word; for texts the ``(start, end, label)`` of each span, in
            characters, the end exclusive.
        sample_weight : array-like of shape (n_samples,), default=None
            Weight of each row in the loss, applied to each of its words; None gives all rows the
            same weight.
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
        self : BertTokenTagger
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
    @with_callbacks
    def partial_fit(self, X: Any, y: Any, classes: Tags = None, sample_weight: Any = None) -> Self:
        """Learn from one more batch of rows, in one pass at constant learning rates.

        New tags are allowed, in the scheme of the first batch: the output layer grows and keeps
        what it has learned. ``warmup`` and ``schedule`` apply to ``fit`` only.

        Parameters
        ----------
        X : array-like of lists of str, or of str, of shape (n_samples,)
            The words of each row, or one text per row.
        y : array-like of lists of shape (n_samples,)
            A tag for each word, or for texts the spans, as in ``fit``.
        classes : array-like of str of shape (n_tags,), default=None
            Further tags for ``classes_``, for texts too, which need not be in ``y``. In the first
            batch they also show the scheme.
        sample_weight : array-like of shape (n_samples,), default=None
            Weight of each row in the loss, applied to each of its words; None gives all rows the
            same weight.

        Returns
        -------
        self : BertTokenTagger
            The fitted estimator.

        Raises
        ------
        InputError, InputTypeError
            If X, y, a weight or a tag cannot be used, or ``y`` follows another scheme than the
            first batch; the message names the first bad row.

        Examples
        --------
        >>> from skbert import BertTokenTagger
        >>> from skbert.datasets import load_entities
        >>> X, y = load_entities(return_X_y=True)
        >>> tagger = BertTokenTagger(freeze="all", random_state=0)
        >>> for start in range(0, len(X), 100):
        ...     part = slice(start, start + 100)
        ...     tagger = tagger.partial_fit(X[part], y[part])
        >>> tagger.predict([["Hedda", "moved", "to", "Paris", "."]])[0]
        ['B-PER', 'O', 'O', 'B-LOC', 'O']
        """
        return self._learn(X, y, sample_weight, continue_training=True, epochs=1, classes=classes)

    @requires_y
    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the F1 of entities; without a scheme, the share of words with the right tag.

        An entity counts only if its first word, its last word and its type are all right; a span
        of ``y`` stands for the whole words that it touches, as in ``fit``. Tags that break their
        scheme, in ``y`` too, are read as by the conlleval script.

        Parameters
        ----------
        X : array-like of lists of str, or of str, of shape (n_samples,)
            The words of each row, or one text per row.
        y : array-like of lists of shape (n_samples,)
            The true tags, or for texts the true spans, as in ``fit``.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights of the rows.

        Returns
        -------
        score : float
            Between 0 and 1.

        See Also
        --------
        skbert.metrics.entity_f1 : The same score, computed from predictions.
        """
        fitted = self._state()
        rows = self._rows(X, fitted.record)
        true, scored = checked_targets(y, rows), self._outputs(fitted, rows)
        if not isinstance(rows, WordRows):
            true = whole_words(true, [row.places for row in scored])
        predicted = self._tags(fitted, rows, scored)
        return f1(true, predicted, fitted.attributes["scheme_"], sample_weight)

    def _whole_words(self, spans: list[Any], rows: Texts) -> list[Any]:
        return widened(spans, rows, self._state().network.text_tokenizer)

    def _prepare_targets(
        self,
        y: Any,
        rows: Any,
        max_length: int,
        previous: Fitted | None,
        weight: Array | None,
        classes: Tags = None,
    ) -> TrainingPlan:
        learned = None if previous is None else previous.attributes
        tags = plan_tags(
            checked_targets(y, rows), self.scheme, learned, checked_names(classes),
            in_words=isinstance(rows, WordRows), constrained=self.decoding == "viterbi",
        )  # fmt: skip
        classes = tags.attributes["classes_"]
        task = WordTags(len(classes), max_length, self.label_pieces == "all")
        return TrainingPlan(
            task, tags.targets, tags.attributes, tags.score, None, weight,
            conform=tags.conform, output_map=tags.output_map,
        )  # fmt: skip

    def _finish(self, run: Run, attributes: dict[str, Any]) -> dict[str, Any]:
        _describe(run.network, attributes)
        return super()._finish(run, attributes)

    def _load_checkpoint(self, network: Network, max_length: int) -> tuple[Task, dict[str, Any]]:
        named = network.model.config.id2label
        names = [str(named[code]) for code in range(len(named))]
        # A scheme is noted where another was learned: IOB2 for IOB1, which has the same names.
        noted = getattr(network.model.config, "skbert_scheme", None)
        guessed = noted or guess_scheme([[tag] for tag in names])
        scheme = guessed if self.scheme == "auto" else self.scheme
        learned = "IOB2" if noted and scheme == noted else scheme
        if self.scheme == "auto" and guessed is None:
            warn_if_prefixed({*names}, "the checkpoint's id2label")
        tags = np.array(written_in(learned, names, "the checkpoint's id2label"), object)
        order = np.argsort(tags)
        grow_output(network, len(tags), np.argsort(order))
        attributes = {
            "classes_": tags[order], "scheme_": scheme, "learned_scheme_": learned,
            "temperature_": 1.0,
        }  # fmt: skip
        _describe(network, attributes)
        return WordTags(len(tags), max_length, self.label_pieces == "all"), attributes

    def __sklearn_tags__(self) -> Any:
        """Add that there is no fit without ``y``."""
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags


def _describe(network: Network, learned: Mapping[str, Any]) -> None:
    """Note in the model's configuration what its outputs mean."""
    config, tags, scheme = network.model.config, learned["classes_"], learned["scheme_"]
    vars(config).pop("skbert_scheme", None)
    if scheme != learned["learned_scheme_"]:
        config.skbert_scheme = scheme
    name_outputs(config, tags)
