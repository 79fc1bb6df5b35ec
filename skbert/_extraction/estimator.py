"""BertSpanExtractor: questions answered with a part of a context."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from scipy.special import softmax
from sklearn.utils._param_validation import Interval, StrOptions

from skbert._arrays import Array
from skbert._core.families.record import Job
from skbert._core.models.network import Network
from skbert._core.task import Task
from skbert._core.text.windows import most_overlap
from skbert._estimator.base import COUNT, RealInterval
from skbert._estimator.checks import is_number
from skbert._estimator.fitted import Fitted, Learned
from skbert._estimator.fitting import BertEstimator, TrainingPlan
from skbert._estimator.guidance import requires_y
from skbert._extraction.task import MAX_ANSWERS, Answers, best_texts, best_threshold
from skbert._validation.answers import check_answers, warn_if_swapped
from skbert._validation.columns import FitRecord
from skbert._validation.texts import Texts
from skbert.exceptions import InputError, ModelError
from skbert.metrics import squad_f1

__all__ = ["BertSpanExtractor"]

_WINDOW = 384  # tokens
_PAIRS = "X must hold a question and a context per row; type list(zip(questions, contexts))."


@dataclass(eq=False, repr=False, kw_only=True)
class BertSpanExtractor(BertEstimator):
    """Answer questions with a part of a text, by a fine-tuned BERT.

    A row of X is a question and the context that may hold its answer. A long context is read
    in windows that overlap, all of it.

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
    stride : int or None, default=None
        Tokens that neighbouring windows of a long context share. None is 128, or half a
        window's share of the context where that is less.
    max_answer_length : int, default=30
        Longest answer that is predicted, in tokens.
    on_ambiguous : {"raise", "first"}, default="raise"
        What to do in ``fit`` with an answer without a start that its context holds more than
        once: refuse it, or take the first place.
    no_answer_threshold : float or "auto", default="auto"
        How far "no answer" may be ahead of the best answer, in logits, before ``""`` is
        predicted. ``"auto"`` never predicts ``""`` where no row of ``y`` in fit was without an
        answer, else takes 0, or with ``validation_fraction`` the value with the best F1 on
        the held-out rows.

    Attributes
    ----------
    model_ : transformers.BertForQuestionAnswering
        The fine-tuned model, an ordinary transformers object.
    tokenizer_ : transformers.PreTrainedTokenizerBase
        Its tokenizer, likewise.
    no_answer_threshold_ : float
        The threshold in use; infinite where ``""`` is never predicted.
    history_ : list of dict
        One record per epoch: loss, learning rate, seconds, and with a hold-out ``validation_loss``
        and ``validation_score``, SQuAD's F1.
    probe_score_ : float
        ``validation_score`` before the first epoch, where rows are held out and the head starts
        from a linear model. If training does not improve on it, ``BertTransformer`` with a linear
        model does as well.
    n_iter_ : int
        Epochs run.
    n_truncated_ : int
        Rows of X whose question was cut in fit, so that some of the context fits beside it.
    n_features_in_ : int
        Columns of X, where it has some: a list or a Series of texts has none.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the columns, where X was a frame with str names.

    See Also
    --------
    BertClassifier : Labels for pairs of texts.
    skbert.metrics.squad_f1 : What ``score`` computes.

    Notes
    -----
    Where most rows look as if the context came before its question, a warning says so.

    A row of ``y`` is the answer (str), ``(answer, start)`` with the start in characters of the
    context, a list of several right answers of either form, or ``""`` or an empty list where
    the context holds none. An answer alone is looked up in the context. ``fit`` learns the
    first right answer, and a score counts the nearest one [2]_.

    Rows hold at most 384 tokens by default, as in [1]_. A window without all of the answer
    learns to point at its first token, which stands for "no answer"; so does every window of a
    row without one. A question gives way only where less than 64 tokens, or half a short row,
    would be left for the context.

    In prediction every span of at most ``max_answer_length`` tokens that lies in one window
    scores its start logit plus its end logit; the same characters in several windows score as
    in the best of them, and "no answer" as in the window where it is least likely [1]_ [3]_.

    References
    ----------
    .. [1] J. Devlin, M.-W. Chang, K. Lee and K. Toutanova, "BERT: Pre-training of Deep
           Bidirectional Transformers for Language Understanding", NAACL 2019, sections 4.2
           and 4.3, https://aclanthology.org/N19-1423
    .. [2] P. Rajpurkar, J. Zhang, K. Lopyrev and P. Liang, "SQuAD: 100,000+ Questions for
           Machine Comprehension of Text", EMNLP 2016, https://aclanthology.org/D16-1264
    .. [3] P. Rajpurkar, R. Jia and P. Liang, "Know What You Don't Know: Unanswerable
           Questions for SQuAD", ACL 2018, https://aclanthology.org/P18-2124

    Examples
    --------
    >>> from skbert import BertSpanExtractor
    >>> places = {"Anna": "Oslo", "Omar": "Cairo", "Mei": "Taipei", "Luis": "Lima"}
    >>> X = [(f"Where does {who} live?", f"{who} has lived in {place} for two years.")
    ...      for who, place in places.items()]
    >>> extractor = BertSpanExtractor(epochs=5, random_state=0).fit(X, list(places.values()))
    >>> extractor.predict([("Where does Ruth live?", "Ruth has lived in Berlin for two years.")])
    array(['Berlin'], dtype=object)
    """

    stride: int | None = None
    max_answer_length: int = 30
    on_ambiguous: str = "raise"
    no_answer_threshold: float | str = "auto"

    no_answer_threshold_ = Learned[float](is_number)

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **BertEstimator._parameter_constraints,
        "stride": [Interval(Integral, 0, None, closed="left"), None],
        "max_answer_length": [COUNT],
        "on_ambiguous": [StrOptions({"raise", "first"})],
        "no_answer_threshold": [RealInterval(None, None, closed="both"), StrOptions({"auto"})],
    }
    _tasks: ClassVar[tuple[type, ...]] = (Answers,)
    _opens: ClassVar[tuple[Job, ...]] = ("question answering",)
    _y_holds: ClassVar[str] = "the answer to each question, and '' where its context holds none"

    def predict(self, X: Any) -> Array:
        """Predict the answer to each question, a part of its context.

        Parameters
        ----------
        X : array-like of str of shape (n_samples, 2)
            A question and a context per row.

        Returns
        -------
        answers : ndarray of shape (n_samples,), of str
            The best answers, cut from the contexts as they were given; ``""`` where "no
            answer" is ahead by more than ``no_answer_threshold_``, or a context is empty.
        """
        fitted = self._state()
        return self._answers(fitted, self._rows(X, fitted.record))

    def predict_answers(self, X: Any, n_best: int = 5) -> pd.DataFrame:
        """Predict several answers to each question, with their places and probabilities.

        Parameters
        ----------
        X : array-like of str of shape (n_samples, 2)
            A question and a context per row.
        n_best : int, default=5
            Answers per question, 20 at most. There are fewer where a context has fewer
            spans, and none where it is empty.

        Returns
        -------
        answers : DataFrame
            ``row`` of X, counted from 0, ``rank`` from 1, ``answer``, its ``start`` and
            ``end`` in characters of the context, ``score`` and ``no_answer_score``. The scores
            are probabilities among the 20 best answers of a row and "no answer", the softmax
            of the logits; "no answer" has 0 where ``""`` is never predicted. The log of
            ``no_answer_score / score`` at rank 1 is what ``no_answer_threshold_`` is held
            against.

        Raises
        ------
        InputError
            If ``n_best`` is not between 1 and 20.
        """
        if not (isinstance(n_best, (int, np.integer)) and 1 <= n_best <= MAX_ANSWERS):
            raise InputError(
                f"n_best={n_best!r} is not a number of answers between 1 and {MAX_ANSWERS}. Type "
                "n_best=5 for the five best."
            )
        fitted = self._state()
        texts: Any = self._rows(X, fitted.record)
        threshold = fitted.attributes["no_answer_threshold_"]
        lines: list[tuple[Any, ...]] = []
        for row, (spans, scores, null) in enumerate(self._outputs(fitted, texts)):
            possible = null if np.isfinite(threshold) else -np.inf
            *chances, none = softmax([*scores, possible]).tolist() if len(scores) else [0.0]
            for rank, (begin, end) in enumerate(spans[:n_best].tolist(), start=1):
                answer = texts.second[row][begin:end]
                lines.append((row, rank, answer, begin, end, chances[rank - 1], none))
        names = ["row", "rank", "answer", "start", "end", "score", "no_answer_score"]
        return pd.DataFrame(lines, columns=names)

    @requires_y
    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Mean word overlap of the predicted answers with the right ones, SQuAD's F1.

        Parameters
        ----------
        X : array-like of str of shape (n_samples, 2)
            A question and a context per row.
        y : array-like of shape (n_samples,)
            The right answers, in any form that ``fit`` takes; of several the nearest counts.
        sample_weight : array-like of shape (n_samples,), default=None
            Weight of each row; None weighs all alike.

        Returns
        -------
        f1 : float
            From 0.0 to 1.0.
        """
        fitted = self._state()
        answers = self._answers(fitted, self._rows(X, fitted.record))
        return squad_f1(y, answers, sample_weight=sample_weight)

    def _answers(self, fitted: Fitted, texts: Any) -> Array:
        """The predicted answers to questions."""
        threshold = fitted.attributes["no_answer_threshold_"]
        return best_texts(self._outputs(fitted, texts), texts.second, threshold)

    def _rows(self, X: Any, record: FitRecord | None) -> Texts:
        texts: Texts = super()._rows(X, record)
        if texts.second is None:
            raise InputError(f"X holds one text per row. {_PAIRS}")
        names = texts.names if self.text_columns is None and texts.names else ()
        if [name.lower() for name in names] == ["context", "question"]:
            raise InputError(
                f"X has the columns {names[0]!r} and {names[1]!r} in this order, but the question "
                f"comes first. Type X[[{names[1]!r}, {names[0]!r}]]."
            )
        warn_if_swapped(texts.first, texts.second)
        return texts

    def _task(self, max_length: int) -> Answers:
        """The task, for rows of at most that many tokens."""
        longest = min(max_length, _WINDOW) if self.max_length is None else max_length
        most = most_overlap(longest)
        if self.stride is not None and self.stride > most:
            raise InputError(
                f"stride={self.stride} is more than half a row of max_length={longest} tokens. It "
                "is the number of tokens that neighbouring windows share, not the way from one to "
                f"the next: use at most {most}, or None."
            )
        return Answers(longest, self.stride, self.max_answer_length)

    def _prepare_targets(
        self, y: Any, rows: Any, max_length: int, previous: Fitted | None, weight: Any
    ) -> TrainingPlan:
        contexts = rows.second
        name = type(self).__name__
        gold = check_answers(y, contexts, on_ambiguous=self.on_ambiguous, estimator_name=name)
        answered = gold.spans[:, 0] >= 0
        threshold = self.no_answer_threshold
        if threshold == "auto":
            last = np.inf if previous is None else previous.attributes["no_answer_threshold_"]
            threshold = last if answered.all() else 0.0

        def f1(spans: Array, held_out: Array) -> float:
            texts = best_texts(spans, [contexts[row] for row in held_out], float(threshold))
            return squad_f1([gold.texts[row] for row in held_out], texts)

        def tuned(spans: Array, held_out: Array) -> dict[str, Any]:
            golds = [gold.texts[row] for row in held_out]
            best = best_threshold(spans, [contexts[row] for row in held_out], golds)
            return {"no_answer_threshold_": best}

        attributes = {"no_answer_threshold_": float(threshold)}
        tune = None if answered.all() or self.no_answer_threshold != "auto" else tuned
        strata = answered.astype(np.int64)
        task = self._task(max_length)
        return TrainingPlan(task, gold.spans, attributes, f1, strata, weight, tune)

    def _load_checkpoint(self, network: Network, max_length: int) -> tuple[Task, dict[str, Any]]:
        n_outputs = network.output_layer.out_features
        if n_outputs != 2:
            raise ModelError(
                f"The checkpoint has {n_outputs} outputs per token, but a start and an end are 2. "
                "It is not fine-tuned for this job; give it as model= and call fit."
            )
        threshold = self.no_answer_threshold
        learned = np.inf if threshold == "auto" else float(threshold)
        return self._task(max_length), {"no_answer_threshold_": learned}

    def __sklearn_tags__(self) -> Any:
        """Add that answers are needed to fit."""
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags
