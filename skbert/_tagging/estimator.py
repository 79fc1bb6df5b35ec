"""BertTokenTagger: a tag for each word, and the entities that tags mark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import pandas as pd
from scipy.special import softmax
from sklearn.utils._param_validation import StrOptions

from skbert._arrays import Array
from skbert._core.families.record import Job
from skbert._core.models.network import Network, grow_output
from skbert._core.task import Task
from skbert._estimator.callbacks import with_callbacks
from skbert._estimator.checks import are_classes, is_one_of
from skbert._estimator.fitted import Fitted, Learned
from skbert._estimator.fitting import BertEstimator, TrainingPlan
from skbert._estimator.guidance import requires_y
from skbert._estimator.progress import Run
from skbert._tagging.schemes import Chain, guess_scheme, warn_if_prefixed
from skbert._tagging.targets import (
    checked_targets,
    decoded,
    entity_table,
    f1,
    objects,
    plan_tags,
)
from skbert._tagging.task import WordTags
from skbert._validation.columns import FitRecord
from skbert._validation.entities import SCHEMES, entities_of
from skbert._validation.words import WordRows, check_words

__all__ = ["BertTokenTagger"]


@dataclass(eq=False, repr=False, kw_only=True)
class BertTokenTagger(BertEstimator):
    """Give each word a tag with a fine-tuned BERT: names, parts of speech, and their like.

    However long a row is, each of its words gets exactly one tag. Rows of words are tagged, and
    in raw texts the entities are found.

    Parameters
    ----------
    model : str or path-like, default="sentence-transformers/all-MiniLM-L6-v2"
        Folder or id of a BERT checkpoint. An id is looked up in the local cache, in the
        package of the extra ``skbert[offline]``, and only then on the hub.
    epochs : int, default=3
        Number of epochs, that is of passes over the training rows.
    batch_size : int, default=16
        Rows per forward pass; a step learns from ``batch_size * accumulate`` rows.
    learning_rate : float, default=1e-4
        Peak learning rate of the encoder, for AdamW.
    head_learning_rate : float, "auto" or None, default="auto"
        Peak learning rate of the output layer; None takes ``learning_rate``. ``"auto"`` is 1e-3,
        but ``learning_rate`` where the head reads BERT's pooler for one pair of texts a row and
        encoder layers are trained.
    weight_decay : float, default=0.01
        Decoupled weight decay; biases and LayerNorm weights have none.
    warmup : float or int, default=0.1
        Steps of linear warm-up: a share of all steps if below 1, else their number.
    schedule : {"linear", "cosine", "cosine_with_restarts", "polynomial", "constant", \
            "constant_with_warmup"}, default="linear"
        Learning rate after the warm-up, as transformers' schedulers of these names.
    layer_decay : float, default=1.0
        Factor on the learning rate from each layer to the one below it.
    freeze : int or "all", default=0
        0 trains everything; k leaves the embeddings and the first k layers as they are,
        ``"all"`` everything but the output layer.
    max_grad_norm : float or None, default=1.0
        Norm to which the gradient of a step is clipped; None does not clip.
    accumulate : int, default=1
        Batches whose gradients make one step.
    head_init : {"auto", "probe", "random"}, default="auto"
        Start the head from a linear model on the frozen encoder's features, or at random.
        ``"auto"`` uses the linear model, except where the head reads BERT's pooler for one pair of
        texts a row and encoder layers are trained.
    max_length : int or None, default=None
        Longest row in tokens, special tokens included; None takes the model's own limit, at most
        512, or at most 384 in ``BertSpanExtractor``.
    text_columns : str, int, sequence of these, or None, default=None
        Columns of X to read, in this order: one or two columns of texts; for ``BertTokenTagger``
        and ``BertPretrainer`` one column; for ``BertChoiceRanker`` the prompt, then its options.
        None takes all columns.
    missing : {"raise", "empty"}, default="raise"
        Refuse missing texts, or read them as empty ones.
    validation_fraction : float or None, default=None
        Share of the rows held out for validation, in (0, 1). The loss on them is computed after
        each epoch, and the weights with the lowest one are kept. None holds out no rows.
    patience : int or None, default=None
        Epochs without improvement on the held-out rows after which training stops; None never
        stops early.
    precision : {"auto", "float32", "bfloat16", "float16", "float64"}, default="auto"
        Type that matrix products are computed in; weights stay float32, or float64 with
        ``"float64"``. ``"auto"`` is bfloat16 where the hardware is fast at it, else float32.
    device : str, default="auto"
        ``"cpu"``, ``"cuda"``, ``"cuda:1"`` or ``"mps"``; ``"auto"`` takes the best there is.
    gradient_checkpointing : bool, default=False
        Recompute activations in the backward pass instead of storing them: less memory, more time.
    compile : bool, default=False
        Compile the encoder with ``torch.compile``; pays off on long runs only.
    warm_start : bool, default=False
        Go on from the weights of the last fit.
    random_state : int, RandomState instance or None, default=None
        Seed of every draw: order, dropout, hold-out and new weights. With an int, the same fit on
        the same machine with the same number of threads gives bit-identical results.
    verbose : int, default=0
        1 shows a progress bar with loss and validation score.
    label_pieces : {"first", "all"}, default="first"
        Which word pieces of a word are read: the first one, as Devlin et al. did, or all, whose
        logits are averaged. What is read is what is learned from.
    scheme : {"auto", "IOB1", "IOB2", "BIOES", "IO"} or None, default="auto"
        How tags mark entities. ``"auto"`` recognises it from ``y`` and is IOB2 for spans in raw
        texts; None takes tags for labels that stand alone, such as parts of speech.
    decoding : {"viterbi", "argmax"}, default="viterbi"
        Predict the most probable sequence of tags that the scheme allows, or for each word its
        most probable tag.

    Attributes
    ----------
    classes_ : ndarray of shape (n_tags,)
        The tags that are learned, sorted: those of ``y``, in ``learned_scheme_``.
    scheme_ : str or None
        The scheme of ``y`` and of predictions; None for tags without prefixes.
    learned_scheme_ : str or None
        The scheme of ``classes_``: IOB2 where that of ``y`` is IOB1, else the same.
    model_ : transformers.BertForTokenClassification
        The fine-tuned model, an ordinary transformers object.
    tokenizer_ : transformers.PreTrainedTokenizerBase
        Its tokenizer, likewise.
    pooling_ : str
        Not used here: the head reads every token.
    history_ : list of dict
        One record per epoch: loss, learning rate, seconds, and with a hold-out ``validation_loss``
        and ``validation_score``, what ``score`` gives.
    probe_score_ : float
        ``validation_score`` before the first epoch, where rows are held out and the head starts
        from a linear model. If training does not improve on it, ``BertTransformer`` with a linear
        model does as well.
    n_iter_ : int
        Epochs run.
    n_truncated_ : int
        Rows of X that were cut; always 0, as long rows are read in windows.
    n_features_in_ : int
        Columns of X, where it has some: a list or a Series of texts has none.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the columns, where X was a frame with str names.

    See Also
    --------
    skbert.metrics.entity_report : Precision, recall and F1 for each type of entity.

    Notes
    -----
    **X and y.** X holds a list of words per row and y a list of tags as long; or X holds raw
    texts and y per row a list of ``(start, end, label)`` in characters. A fitted tagger takes
    both. In a raw text the words are what the tokenizer takes for words, and a span that begins
    or ends inside one is widened to the whole word.

    **Schemes.** Predictions come back in the scheme of ``y``. What is learned are its tags, so
    that ``classes_``, ``predict_proba`` and the checkpoint's ``id2label`` speak of them too; but
    tags in IOB1 are learned as IOB2, which marks every first word alike. Rows that break their
    scheme, such as ``I-PER`` without a ``B-PER`` in IOB2, are read as the conlleval script reads
    them, with one warning. BILOU is learned and predicted as BIOES.

    **Long rows** are read in windows of whole words that overlap by a quarter, and each word in
    the window where it lies farthest from both ends. A word that gives no word piece counts as
    unknown, and of a very long one the first pieces are read.

    Predictions are lists and no classes, so the estimator is no classifier in scikit-learn's
    sense: folds are not stratified, and ``score`` is its own.

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

    classes_ = Learned[Array](are_classes, "n_outputs")
    scheme_ = Learned[str | None](is_one_of(None, *SCHEMES))
    learned_scheme_ = Learned[str | None](is_one_of(None, *SCHEMES))

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **BertEstimator._parameter_constraints,
        "label_pieces": [StrOptions({"first", "all"})],
        "scheme": [StrOptions({"auto", *SCHEMES}), None],
        "decoding": [StrOptions({"viterbi", "argmax"})],
    }
    _tasks: ClassVar[tuple[type, ...]] = (WordTags,)
    _opens: ClassVar[tuple[Job, ...]] = ("token classification",)
    _y_holds: ClassVar[str] = (
        "a list per row: a tag for each word, or in texts (start, end, label) for each span"
    )

    @requires_y
    @with_callbacks
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fine-tune on rows of words and their tags, or on texts and the spans in them.

        Parameters
        ----------
        X : array-like of lists of str, or of str, of shape (n_samples,)
            The words of each row, or one text per row.
        y : array-like of lists of shape (n_samples,)
            A tag for each word; for texts the ``(start, end, label)`` of each span, in
            characters, the end exclusive.
        sample_weight : array-like of shape (n_samples,), default=None
            Weight of each row, that is of each of its words, in the loss; None weighs all alike.

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
        return self._learn(X, y, sample_weight, continue_training=self.warm_start)

    def predict(self, X: Any) -> Array:
        """Predict a tag for each word; in texts, the spans of the entities.

        Parameters
        ----------
        X : array-like of lists of str, or of str, of shape (n_samples,)
            The words of each row, or one text per row.

        Returns
        -------
        y : ndarray of shape (n_samples,)
            Lists. For rows of words, of as many tags; for texts, of ``(start, end, label)`` in
            characters of the text as it was given.
        """
        fitted = self._state()
        return objects(self._tags(fitted, self._rows(X, fitted.record)))

    def predict_proba(self, X: Any) -> Array:
        """Probability of each tag for each word by itself, whatever its neighbours have.

        Parameters
        ----------
        X : array-like of lists of str, or of str, of shape (n_samples,)
            The words of each row, or one text per row.

        Returns
        -------
        probabilities : ndarray of shape (n_samples,)
            Arrays of shape (n_words, n_tags), columns in the order of ``classes_``; float32, or
            float64 with ``precision="float64"``. The words of a text are those that
            ``tokenizer_(text).word_ids()`` counts.
        """
        fitted = self._state()
        scored = self._outputs(fitted, self._rows(X, fitted.record))
        return objects([softmax(row.logits, axis=1) for row in scored])

    def predict_spans(self, X: Any) -> pd.DataFrame:
        """Find the entities, each with its text and how sure it is.

        Parameters
        ----------
        X : array-like of lists of str, or of str, of shape (n_samples,)
            The words of each row, or one text per row.

        Returns
        -------
        spans : DataFrame
            One line per entity, in order, with the columns ``row``, ``start`` and ``end``
            (numbers of words, for texts of characters, the end exclusive), ``label``, ``score``
            and ``text``. Without a scheme each word whose tag is not ``"O"`` is one. The score is
            the probability that the row has this very entity: over all sequences that the
            decoding allows, the share of those that hold it from its first word to its last and
            no further, by the forward-backward algorithm.
        """
        fitted = self._state()
        rows = self._rows(X, fitted.record)
        return entity_table(self._chain(fitted), rows, self._outputs(fitted, rows))

    @requires_y
    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """F1 of the entities; for tags without a scheme, the share of words tagged rightly.

        An entity counts only if its first word, its last and its type are all right. Tags are
        read as by the conlleval script, those of ``y`` too where they break their scheme.

        Parameters
        ----------
        X : array-like of lists of str, or of str, of shape (n_samples,)
            The words of each row, or one text per row.
        y : array-like of lists of shape (n_samples,)
            The right tags, or for texts the right spans, as in ``fit``.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights of the rows.

        Returns
        -------
        score : float
            Between 0 and 1.

        See Also
        --------
        skbert.metrics.entity_f1 : The score of given predictions.
        """
        fitted = self._state()
        rows = self._rows(X, fitted.record)
        true, predicted = checked_targets(y, rows), self._tags(fitted, rows)
        return f1(true, predicted, fitted.attributes["scheme_"], sample_weight)

    def _rows(self, X: Any, record: FitRecord | None) -> Any:
        return check_words(
            X,
            columns=self.text_columns,
            missing=self.missing,
            fitted=record,
            estimator_name=type(self).__name__,
        )

    def _tags(self, fitted: Fitted, rows: Any) -> list[list[Any]]:
        """The predicted tags of rows of words, or the predicted spans of texts."""
        scheme, in_words = fitted.attributes["scheme_"], isinstance(rows, WordRows)
        return decoded(self._chain(fitted), self._outputs(fitted, rows), scheme, in_words=in_words)

    def _chain(self, fitted: Fitted) -> Chain:
        """The sequences of tags among which predictions are chosen."""
        tags, scheme = fitted.attributes["classes_"], fitted.attributes["learned_scheme_"]
        return Chain(tags.tolist(), scheme, constrained=self.decoding == "viterbi")

    def _prepare_targets(
        self, y: Any, rows: Any, max_length: int, previous: Fitted | None, weight: Any
    ) -> TrainingPlan:
        learned = None if previous is None else previous.attributes
        tags = plan_tags(
            checked_targets(y, rows), self.scheme, learned,
            in_words=isinstance(rows, WordRows), constrained=self.decoding == "viterbi",
        )  # fmt: skip
        classes = tags.attributes["classes_"]
        task = WordTags(len(classes), max_length, self.label_pieces == "all")
        return TrainingPlan(
            task, tags.targets, tags.attributes, tags.score, None, weight,
            output_map=tags.output_map,
        )  # fmt: skip

    def _finish(self, run: Run, attributes: dict[str, Any]) -> dict[str, Any]:
        _describe(run.network, attributes["classes_"])
        return {}

    def _load_checkpoint(self, network: Network, max_length: int) -> tuple[Task, dict[str, Any]]:
        named = network.model.config.id2label
        names = np.array([str(named[code]) for code in range(len(named))], object)
        order = np.argsort(names)
        classes = names[order]
        guessed = guess_scheme([[tag] for tag in classes])
        scheme = guessed if self.scheme == "auto" else self.scheme
        if self.scheme == "auto" and guessed is None:
            warn_if_prefixed({*names}, "the checkpoint's id2label")
        for tag in classes if scheme else ():
            entities_of([tag], scheme, place="the checkpoint's id2label")
        grow_output(network, len(names), np.argsort(order))
        _describe(network, classes)
        attributes = {"classes_": classes, "scheme_": scheme, "learned_scheme_": scheme}
        return WordTags(len(names), max_length, self.label_pieces == "all"), attributes

    def __sklearn_tags__(self) -> Any:
        """Add that there is no fit without ``y``."""
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags


def _describe(network: Network, tags: Array) -> None:
    """Note in the model's configuration what its outputs mean."""
    config = network.model.config
    config.id2label = dict(enumerate(tags))
    config.label2id = {tag: code for code, tag in enumerate(tags)}
