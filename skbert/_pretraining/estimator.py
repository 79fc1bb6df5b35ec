"""BertPretrainer: pre-training on texts without labels, from scratch or continued."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
import pandas as pd
from sklearn.utils._param_validation import StrOptions

from skbert._arrays import Array
from skbert._core.checkpoints.vet import Checkpoint
from skbert._core.families import NEW
from skbert._core.families.record import Job
from skbert._core.infer import mean_loss
from skbert._core.items import Head
from skbert._core.models.network import Network, twin_of
from skbert._core.models.new_model import Lowercase, NewModel
from skbert._core.runtime.device import Precision
from skbert._core.task import Task
from skbert._core.training.loop import DrawItems
from skbert._estimator.bar import ProgressBar
from skbert._estimator.base import COUNT, RealInterval, encode, predict_rows
from skbert._estimator.callbacks import with_callbacks
from skbert._estimator.fitted import Fitted
from skbert._estimator.fitting import TrainedEstimator, draw_seed
from skbert._estimator.plan import TrainingPlan
from skbert._estimator.validation_set import ValidationInput
from skbert._pretraining.completion import (
    check_temperature,
    continue_texts,
    fill_masks,
)
from skbert._pretraining.objectives import (
    NEW_FAMILIES,
    SIZES,
    TASKS,
    check_objective,
    draw_of,
    new_model,
)
from skbert._pretraining.tasks import MaskedWords, NextSentence
from skbert._validation.columns import FitRecord
from skbert._validation.documents import check_documents, check_sentences
from skbert._validation.numbers import check_count
from skbert._validation.texts import check_texts
from skbert.exceptions import InputError

__all__ = ["BertPretrainer"]


@dataclass(eq=False, repr=False, kw_only=True)
class BertPretrainer(TrainedEstimator):
    """Pre-train a BERT on texts without labels, from scratch or from a checkpoint.

    Every other estimator accepts the saved folder as ``model``.

    Parameters
    ----------
    model : str or path-like, default="sentence-transformers/all-MiniLM-L6-v2"
        Folder or id of a checkpoint of BERT or another encoder. An id is looked up in the local
        cache, in the package that the extra ``skbert[offline]`` installs, and only then on the
        Hugging Face hub.
    objective : {"mlm", "mlm+nsp", "nsp", "clm"}, default="mlm"
        What the model learns to predict: masked words; masked words and whether a sentence follows
        another, as in the original BERT; only the latter; or the next word from the words before
        it.
    mask_fraction : float, default=0.15
        Fraction of the word pieces of a row that are selected for prediction, in (0, 1). Of these,
        80 % are masked, 10 % are replaced by a random piece and 10 % stay as they are.
    whole_words : bool, default=False
        Select whole words instead of single word pieces; of more than 16 pieces without a blank,
        as in Japanese, each counts as a word.
    family : str, default="bert"
        Family of a new model: ``"bert"``, ``"roberta"``, ``"modernbert"`` or any other that has a
        head for masked words. Its tokenizer is of the family's usual kind: WordPiece, byte-level
        BPE or Unigram.
    vocab_size : int or None, default=None
        Number of word pieces in the vocabulary that a new model learns from X. None takes as many
        as X supports, at most as many as the family usually has, 30 522 for BERT.
    lowercase : bool or "auto", default="auto"
        Whether a new model reads texts in lower case and without accents. ``"auto"`` is what the
        tokenizer of the family usually does: True for BERT, False for RoBERTa.
    hidden_size : int, default=256
        Width of a new model.
    num_hidden_layers : int, default=4
        Number of layers of a new model.
    num_attention_heads : int, default=4
        Number of attention heads in each layer of a new model, a divisor of ``hidden_size``.
    intermediate_size : int, default=1024
        Width of the feed-forward part of a new model's layers.
    max_position_embeddings : int, default=512
        Maximum length of a row that a new model can read, in tokens, special tokens included.
    position_embedding_type : {"absolute", "relative_key", "relative_key_query"}, \
            default="absolute"
        How a new model represents the positions of tokens: by a vector for each position, or by
        the distances between tokens in every layer (Shaw et al. 2018; Huang et al. 2020).
        transformers 5 supports only ``"absolute"``.
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
    model_ : transformers.PreTrainedModel
        The trained model: BertForMaskedLM, BertForPreTraining, BertForNextSentencePrediction or
        BertLMHeadModel, depending on ``objective``.
    tokenizer_ : transformers.PreTrainedTokenizerBase
        The tokenizer of ``model_``, an ordinary transformers object.
    pooling_ : str
        The pooling that other estimators use for this model with ``pooling="auto"``.
    history_ : list of dict
        One dict per epoch: loss, learning rate, seconds, and with a validation set
        ``validation_loss``.
    n_iter_ : int
        Number of epochs that were run.
    n_truncated_ : int
        Number of rows of X with a sentence that was cut, if the objective has next sentences;
        otherwise 0.
    n_features_in_ : int
        Number of columns of X in ``fit``. Not defined if X was a list or a Series of texts, which
        has no columns.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the columns of X in ``fit``. Defined only if X was a frame whose column names were
        all str.

    See Also
    --------
    BertClassifier : Learns from labels; takes a saved folder as ``model``.

    Notes
    -----
    ``model=None`` trains a new model from scratch: a vocabulary is learned from X, and the model
    starts with random weights in the sizes set by the parameters; 1e-3 is a good ``learning_rate``
    for a small one. Otherwise the vocabulary, sizes and head of ``model`` are kept.

    A text longer than ``max_length`` is split into several consecutive rows. Masks and pairs are
    drawn anew in each epoch, from ``random_state``, and only once for the validation set. A scorer
    given as ``scoring`` is a function, called with None as y.

    With next sentences, a row is made of consecutive sentences of one document, split in two
    between sentences; in half of the rows the second part comes from another document. A str is
    split into sentences at line breaks, after ``.``, ``!``, ``?`` and ``…`` before white space,
    and after their wide Chinese forms.

    References
    ----------
    Devlin et al. 2019, "BERT", section 3.1 and appendix A.

    Examples
    --------
    >>> from skbert import BertPretrainer
    >>> from skbert.datasets import load_intents
    >>> X, _ = load_intents(return_X_y=True)
    >>> pretrainer = BertPretrainer(
    ...     None, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, random_state=0
    ... ).fit(X)
    >>> list(pretrainer.predict_masked(["I forgot my [MASK]."], top_k=3).columns)
    ['row', 'mask', 'token', 'probability']
    """

    model: str | os.PathLike[str] | None = field(
        default="sentence-transformers/all-MiniLM-L6-v2", kw_only=False
    )  # type: ignore[assignment]
    objective: str = "mlm"
    mask_fraction: float = 0.15
    whole_words: bool = False
    family: str = NEW.model_type
    vocab_size: int | None = None
    lowercase: bool | str = "auto"
    hidden_size: int = 256
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    intermediate_size: int = 1024
    max_position_embeddings: int = 512
    position_embedding_type: str = "absolute"

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **TrainedEstimator._parameter_constraints,
        "model": [str, os.PathLike, None],
        "scoring": [StrOptions({"loss"}), callable],
        "objective": [StrOptions(set(TASKS))],
        "mask_fraction": [RealInterval(0, 1, closed="neither")],
        "whole_words": ["boolean"],
        "family": [StrOptions(set(NEW_FAMILIES))],
        "vocab_size": [COUNT, None],
        "lowercase": ["boolean", StrOptions({"auto"})],
        **{size: [COUNT] for size in SIZES},
        "position_embedding_type": [StrOptions(set(NEW.choices["position_embedding_type"]))],
    }
    _tasks: ClassVar[tuple[Any, ...]] = tuple(TASKS.values())
    _opens: ClassVar[tuple[Job, ...]] = (
        "masked language modelling", "causal language modelling", "next sentence prediction",
        "pre-training",
    )  # fmt: skip

    @with_callbacks
    def fit(self, X: Any, y: Any = None, *, X_val: object = None, groups: object = None) -> Self:
        """Pre-train on texts.

        Parameters
        ----------
        X : array-like of str, or of lists of str, of shape (n_samples,)
            One text per row, or one document as a list of its sentences.
        y : object, default=None
            Not used.
        X_val : array-like of str, or of lists of str, default=None
            Texts to validate on, in the form of X; none of X is then held out, whatever
            ``validation_fraction`` is.
        groups : array-like of shape (n_samples,), default=None
            Group of each row of X, such as its author. With ``validation_fraction`` all rows of a
            group are held out, or none of them.

        Returns
        -------
        self : BertPretrainer
            The fitted estimator.

        Raises
        ------
        InputError, InputTypeError
            If X cannot be used; the message names the first bad row.
        ModelError
            If ``model`` is not found or not safe to open.
        NonFiniteError
            If a loss or gradient is not finite; the estimator then stays as it was.
        """
        validation = ValidationInput(X_val, groups=groups)
        return self._learn(X, y, None, continue_training=self.warm_start, validation=validation)

    def score(self, X: Any, y: Any = None) -> float:  # noqa: ARG002
        """Return the negative loss on texts.

        Parameters
        ----------
        X : array-like of str, or of lists of str, of shape (n_samples,)
            Texts or documents, as in ``fit``.
        y : object, default=None
            Not used.

        Returns
        -------
        score : float
            The mean cross-entropy in nats, negated; with ``"mlm+nsp"`` the sum of both losses.
            Masks and pairs are the same in every call.
        """
        fitted = self._state()
        objective = check_objective(fitted.task, "score", *TASKS)
        return -self._loss(fitted, self._rows(X, fitted.record), objective)

    def perplexity(self, X: Any) -> float:
        """Return the perplexity of texts: the exponential of the mean loss of their words.

        Parameters
        ----------
        X : array-like of str, or of lists of str, of shape (n_samples,)
            Texts or documents, as in ``fit``.

        Returns
        -------
        perplexity : float
            The best value is 1. Masks are the same in every call, so that models with the same
            vocabulary, ``mask_fraction``, ``whole_words`` and ``max_length`` can be compared.

        Raises
        ------
        InputError
            If the objective is next sentences alone.
        """
        fitted = self._state()
        objective = check_objective(fitted.task, "perplexity", "mlm", "mlm+nsp", "clm")
        of_words = objective.removesuffix("+nsp")
        return float(np.exp(self._loss(fitted, self._rows(X, fitted.record), of_words)))

    def predict_masked(self, X: Any, top_k: int = 5) -> pd.DataFrame:
        """Predict the words under the masks.

        Parameters
        ----------
        X : array-like of str, or of lists of str, of shape (n_samples,)
            Texts in which the tokenizer's mask, such as ``[MASK]`` or ``<mask>``, stands for a
            word piece.
        top_k : int, default=5
            Number of word pieces to return for each mask.

        Returns
        -------
        words : DataFrame
            One line per prediction, the most probable first: ``row``, ``mask`` (counted within the
            row), ``token`` and ``probability``.

        Raises
        ------
        InputError, InputTypeError
            If X has no mask, or one beyond ``max_length``; if ``top_k`` is no int of at least 1;
            or if the objective has no masked words.
        """
        fitted = self._state()
        check_objective(fitted.task, "predict_masked", "mlm", "mlm+nsp")
        check_count(top_k, "top_k", 5)
        task = MaskedWords(fitted.task.max_length)
        network, precision = self._reader(fitted, task)
        items = encode(task, self._rows(X, fitted.record), None, network)
        with ProgressBar(self, len(items)) as bar:
            return fill_masks(network, task, precision, items, top_k, bar.on_rows)

    def next_sentence_proba(self, pairs: Any) -> Array:
        """Predict the probability that the second text of each pair follows the first.

        Parameters
        ----------
        pairs : array-like of pairs of str of shape (n_samples, 2)
            A list of ``(text, next text)``, or two columns.

        Returns
        -------
        probabilities : ndarray of shape (n_samples,)
            float32, or float64 with ``precision="float64"``.

        Raises
        ------
        InputError
            If the rows are not pairs, or if the objective has no next sentences.
        """
        fitted = self._state()
        check_objective(fitted.task, "next_sentence_proba", "mlm+nsp", "nsp")
        texts = check_texts(pairs, missing=self.missing, estimator_name=type(self).__name__)
        if texts.second is None:
            raise InputError(
                "pairs holds one text per row. Give two: [('It rained.', 'We got wet.'), ...]."
            )
        task = NextSentence(fitted.task.max_length)
        network, precision = self._reader(fitted, task)
        with ProgressBar(self, len(texts)) as bar:
            return predict_rows(task, texts, network, precision, bar.on_rows)

    def generate(self, X: Any, max_new_tokens: int = 20, temperature: float = 0.0) -> Array:
        """Continue texts.

        Parameters
        ----------
        X : array-like of str, or of lists of str, of shape (n_samples,)
            The beginning of each text, which may be empty.
        max_new_tokens : int, default=20
            Maximum number of word pieces to add; the model may end a text earlier.
        temperature : float, default=0.0
            0 takes the most probable word piece. Otherwise it is drawn with ``random_state``,
            after dividing the logits by this number.

        Returns
        -------
        texts : ndarray of shape (n_samples,)
            Object array of str: beginning and continuation, as the tokenizer spells them.

        Raises
        ------
        InputError, InputTypeError
            If a text leaves no room for another word piece, ``max_new_tokens`` or ``temperature``
            cannot be used, or the objective is not ``"clm"``.
        """
        fitted = self._state()
        check_objective(fitted.task, "generate", "clm")
        check_count(max_new_tokens, "max_new_tokens", 20)
        check_temperature(temperature)
        network, precision = self._reader(fitted, fitted.task)
        items = encode(fitted.task, self._rows(X, fitted.record), None, network)
        rng = np.random.default_rng(draw_seed(self.random_state))
        how = fitted.task.max_length, max_new_tokens, temperature, rng
        with ProgressBar(self, len(items) * max_new_tokens, unit="piece") as bar:
            return continue_texts(network, precision, items, *how, bar.on_rows)

    def _rows(self, X: Any, record: FitRecord | None) -> Any:
        return check_documents(
            X,
            columns=self.text_columns,
            missing=self.missing,
            fitted=record,
            estimator_name=type(self).__name__,
        )

    def _source(self, rows: Any) -> Checkpoint | NewModel:
        if self.model is not None:
            return self._of_family(super()._source(rows))
        family = NEW_FAMILIES[self.family]
        family.head_class(TASKS[self.objective](0).head().job)
        sizes: dict[str, Any] = {name: int(getattr(self, name)) for name in SIZES}
        sizes["position_embedding_type"] = self.position_embedding_type
        lowercase: Lowercase = "auto" if self.lowercase == "auto" else bool(self.lowercase)
        return new_model(family, sizes, rows, self.vocab_size, lowercase=lowercase)

    def _of_family(self, checkpoint: Checkpoint | NewModel) -> Checkpoint | NewModel:
        """The checkpoint, unless ``family`` names another than its own."""
        own = checkpoint.family.model_type
        if self.family not in {own, NEW.model_type}:
            raise InputError(
                f"family={self.family!r}, but model is of the family {own!r}. Use model=None for "
                "a new model of that family, or leave family out."
            )
        return checkpoint

    def _prepare_targets(
        self, y: Any, rows: Any, max_length: int, previous: Fitted | None, weight: Any
    ) -> TrainingPlan:
        del y, weight
        if "nsp" in self.objective:
            check_sentences(rows, self.objective)
        task = TASKS[self.objective](max_length)
        if previous is not None and previous.network.head != task.head():
            raise InputError(
                f"objective={self.objective!r}, but the fitted model learned another one. Keep "
                "the objective, or fit anew with warm_start=False."
            )
        return TrainingPlan(task, True, {}, None, draw=self._draw(self.objective, max_length))

    def _draw(self, objective: str, max_length: int) -> DrawItems:
        """What draws the items of each pass."""
        return draw_of(objective, max_length, self.mask_fraction, whole_words=self.whole_words)

    def _reader(self, fitted: Fitted, task: Task) -> tuple[Network, Precision]:
        """The network with the head that the task needs: its own, or a part of it."""
        precision = self._move_to_device(fitted.network)
        network = twin_of(fitted.network)
        network.head = task.head()
        return network, precision

    def _loss(self, fitted: Fitted, rows: Any, objective: str) -> float:
        """Mean loss on the objective of the fit or a part of it, always with the same masks."""
        if "nsp" in objective:
            check_sentences(rows, objective)
        max_length = fitted.task.max_length
        task = TASKS[objective](max_length)
        network, precision = self._reader(fitted, task)
        items = encode(task, rows, True, network)
        items = self._draw(objective, max_length)(
            network.text_tokenizer, items, np.random.default_rng(0)
        )
        with ProgressBar(self, len(np.unique(items.samples))) as bar:
            return mean_loss(network, task, items, precision, bar.on_rows)

    def _checkpoint_head(self, n_outputs: int) -> Head:  # noqa: ARG002 - the vocabulary says
        return TASKS[self.objective](0).head()

    def _load_checkpoint(
        self,
        network: Network,  # noqa: ARG002 - as it is
        max_length: int,
    ) -> tuple[Task, dict[str, Any]]:
        return TASKS[self.objective](max_length), {}
