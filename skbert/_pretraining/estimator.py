"""BertPretrainer: a BERT that learns from texts alone, its own or another's."""

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
from skbert._core.models.network import Network, twin_of
from skbert._core.models.new_model import NewModel
from skbert._core.runtime.device import Precision
from skbert._core.task import Head, Task
from skbert._core.training.loop import DrawItems
from skbert._estimator.base import COUNT, RealInterval, encode, predict_rows
from skbert._estimator.callbacks import with_callbacks
from skbert._estimator.fitted import Fitted
from skbert._estimator.fitting import TrainedEstimator, TrainingPlan, draw_seed
from skbert._pretraining.completion import (
    check_count,
    check_temperature,
    continue_texts,
    fill_masks,
)
from skbert._pretraining.objectives import (
    SIZES,
    TASKS,
    check_objective,
    draw_of,
    new_model,
)
from skbert._pretraining.tasks import MaskedWords, NextSentence
from skbert._validation.columns import FitRecord
from skbert._validation.documents import check_documents, check_sentences
from skbert._validation.texts import check_texts
from skbert.exceptions import InputError

__all__ = ["BertPretrainer"]


@dataclass(eq=False, repr=False, kw_only=True)
class BertPretrainer(TrainedEstimator):
    """Pre-train a BERT on texts without labels, or go on with one.

    What it saves is a model for every other estimator.

    Parameters
    ----------
    model : str or path-like, default="sentence-transformers/all-MiniLM-L6-v2"
        Folder or id of a BERT checkpoint. An id is looked up in the local cache, in the
        package of the extra ``skbert[offline]``, and only then on the hub.
    objective : {"mlm", "mlm+nsp", "nsp", "clm"}, default="mlm"
        Masked words; masked words and next sentences, as BERT was trained; next sentences
        alone; or the next word from those before it.
    mask_fraction : float, default=0.15
        Share of the word pieces of a row that are chosen, in (0, 1). Of these 80 % are masked,
        10 % become a random piece and 10 % stay.
    whole_words : bool, default=False
        Choose whole words, not single word pieces.
    vocab_size : int or None, default=None
        Word pieces to learn from X for a new model; None takes as many as X supports, 30 522
        at most.
    lowercase : bool, default=True
        Whether a new model reads texts in lower case and without accents.
    hidden_size : int, default=256
        Width of a new model.
    num_hidden_layers : int, default=4
        Layers of a new model.
    num_attention_heads : int, default=4
        Attention heads in each layer of a new model, a divisor of ``hidden_size``.
    intermediate_size : int, default=1024
        Width of the feed-forward part of a new model's layers.
    max_position_embeddings : int, default=512
        Longest row that a new model can read, in tokens.
    position_embedding_type : {"absolute", "relative_key", "relative_key_query"}, \
            default="absolute"
        How a new model knows where a token stands: by a vector for each place, or by distances
        in every layer (Shaw et al. 2018; Huang et al. 2020). transformers 5 opens only the first.
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

    Attributes
    ----------
    model_ : transformers.PreTrainedModel
        The trained model: BertForMaskedLM, BertForPreTraining, BertForNextSentencePrediction
        or BertLMHeadModel by objective.
    tokenizer_ : transformers.PreTrainedTokenizerBase
        Its tokenizer.
    pooling_ : str
        The pooling that other estimators use for this model with ``pooling="auto"``.
    history_ : list of dict
        One record per epoch: loss, learning rate, seconds, and with a hold-out
        ``validation_loss``.
    n_iter_ : int
        Epochs run.
    n_truncated_ : int
        Rows of X with a sentence that was cut, where pairs are learned; else 0.
    n_features_in_ : int
        Columns of X, where it has some: a list or a Series of texts has none.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the columns, where X was a frame with str names.

    See Also
    --------
    BertClassifier : Learns from labels; takes a saved folder as ``model``.

    Notes
    -----
    ``model=None`` starts from nothing: a vocabulary is learned from X, and a model of the given
    sizes has random weights; 1e-3 is a good ``learning_rate`` for a small one. With a ``model``
    its vocabulary, its sizes and its head stay.

    A text longer than ``max_length`` is several rows, end to end. Masks and pairs are drawn anew
    for each pass, from ``random_state``, and once for the rows held out.

    Where pairs are learned, a row is a run of neighbouring sentences of one document, cut in two
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
    vocab_size: int | None = None
    lowercase: bool = True
    hidden_size: int = 256
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    intermediate_size: int = 1024
    max_position_embeddings: int = 512
    position_embedding_type: str = "absolute"

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **TrainedEstimator._parameter_constraints,
        "model": [str, os.PathLike, None],
        "objective": [StrOptions(set(TASKS))],
        "mask_fraction": [RealInterval(0, 1, closed="neither")],
        "whole_words": ["boolean"],
        "vocab_size": [COUNT, None],
        "lowercase": ["boolean"],
        **{size: [COUNT] for size in SIZES},
        "position_embedding_type": [StrOptions(set(NEW.choices["position_embedding_type"]))],
    }
    _tasks: ClassVar[tuple[Any, ...]] = tuple(TASKS.values())
    _opens: ClassVar[tuple[Job, ...]] = (
        "masked language modelling", "causal language modelling", "next sentence prediction",
        "pre-training",
    )  # fmt: skip

    @with_callbacks
    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn from texts.

        Parameters
        ----------
        X : array-like of str, or of lists of str, of shape (n_samples,)
            One text per row, or one document as a list of its sentences.
        y : object, default=None
            Not used.

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
        return self._learn(X, y, None, continue_training=self.warm_start)

    def score(self, X: Any, y: Any = None) -> float:  # noqa: ARG002
        """Negative loss on texts.

        Parameters
        ----------
        X : array-like of str, or of lists of str, of shape (n_samples,)
            Texts or documents, as in ``fit``.
        y : object, default=None
            Not used.

        Returns
        -------
        score : float
            Minus the mean cross-entropy in nats; those of words and pairs added up where both
            are learned. Masks and pairs are drawn alike in every call.
        """
        fitted = self._state()
        objective = check_objective(fitted.task, "score", *TASKS)
        return -self._loss(fitted, self._rows(X, fitted.record), objective)

    def perplexity(self, X: Any) -> float:
        """Perplexity of the words of other texts: the exponential of their mean loss.

        Parameters
        ----------
        X : array-like of str, or of lists of str, of shape (n_samples,)
            Texts or documents, as in ``fit``.

        Returns
        -------
        perplexity : float
            1 at best. Masks are drawn alike in every call, so that it compares models of one
            vocabulary.

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
            Texts with ``[MASK]`` in the place of word pieces.
        top_k : int, default=5
            How many word pieces to give for each mask.

        Returns
        -------
        words : DataFrame
            A line per prediction, the most probable first: ``row``, ``mask`` (counted within
            the row), ``token`` and ``probability``.

        Raises
        ------
        InputError
            If there is no ``[MASK]``, or one beyond ``max_length``; if no words are masked.
        """
        fitted = self._state()
        check_objective(fitted.task, "predict_masked", "mlm", "mlm+nsp")
        check_count(top_k, "top_k")
        task = MaskedWords(fitted.task.max_length)
        network, precision = self._reader(fitted, task)
        items = encode(task, self._rows(X, fitted.record), None, network)
        return fill_masks(network, task, precision, items, top_k)

    def next_sentence_proba(self, pairs: Any) -> Array:
        """Probability that the second text of each pair follows the first.

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
            If the rows are no pairs, or the objective has no next sentences.
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
        return predict_rows(task, texts, network, precision)

    def generate(self, X: Any, max_new_tokens: int = 20, temperature: float = 0.0) -> Array:
        """Continue texts.

        Parameters
        ----------
        X : array-like of str, or of lists of str, of shape (n_samples,)
            What each text begins with; may be empty.
        max_new_tokens : int, default=20
            Word pieces to add at most; the model may end a text earlier.
        temperature : float, default=0.0
            0 takes the most probable word piece; else it is drawn, from the logits divided by
            this, with ``random_state``.

        Returns
        -------
        texts : ndarray of shape (n_samples,)
            Object array of str: beginning and continuation, as the tokenizer spells them.

        Raises
        ------
        InputError
            If a text leaves no room for another word piece, or the objective is not ``"clm"``.
        """
        fitted = self._state()
        check_objective(fitted.task, "generate", "clm")
        check_count(max_new_tokens, "max_new_tokens")
        check_temperature(temperature)
        network, precision = self._reader(fitted, fitted.task)
        items = encode(fitted.task, self._rows(X, fitted.record), None, network)
        rng = np.random.default_rng(draw_seed(self.random_state))
        how = fitted.task.max_length, max_new_tokens, temperature, rng
        return continue_texts(network, precision, items, *how)

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
            return super()._source(rows)
        config: dict[str, Any] = {name: int(getattr(self, name)) for name in SIZES}
        config["position_embedding_type"] = self.position_embedding_type
        return new_model(config, rows, self.vocab_size, lowercase=bool(self.lowercase))

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
        return mean_loss(network, task, items, precision)

    def _checkpoint_head(self, n_outputs: int) -> Head:  # noqa: ARG002 - the vocabulary says
        return TASKS[self.objective](0).head()

    def _load_checkpoint(
        self,
        network: Network,  # noqa: ARG002 - as it is
        max_length: int,
    ) -> tuple[Task, dict[str, Any]]:
        return TASKS[self.objective](max_length), {}
