"""BertSpanExtractor: questions answered with a part of a context."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from typing import Any, ClassVar

import numpy as np
from sklearn.utils._param_validation import Interval, StrOptions

from skbert._arrays import Array
from skbert._core.families.record import Job
from skbert._core.models.network import Network
from skbert._core.task import Task
from skbert._core.text.windows import most_overlap
from skbert._estimator.base import COUNT, RealInterval
from skbert._estimator.calibration import CalibratedEstimator
from skbert._estimator.conformity import Conformity
from skbert._estimator.fitted import Fitted
from skbert._estimator.guidance import requires_y
from skbert._estimator.plan import TrainingPlan
from skbert._extraction.predicting import PredictsAnswers
from skbert._extraction.task import (
    Answers,
    best_texts,
)
from skbert._extraction.tuning import best_threshold, distance_of_truth
from skbert._validation.answers import check_answers
from skbert.exceptions import InputError, ModelError
from skbert.metrics import squad_f1

__all__ = ["BertSpanExtractor"]

_WINDOW = 384  # tokens


@dataclass(eq=False, repr=False, kw_only=True)
class BertSpanExtractor(PredictsAnswers, CalibratedEstimator):
    """Answer questions with a part of a text, using a fine-tuned BERT.

    A row of X is a question and the context that may hold its answer. A long context is read as a
    whole, in overlapping windows.

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
    stride : int or None, default=None
        Number of tokens that neighbouring windows of a long context share, but at most half of
        those that a window holds of the context. None is 128.
    max_answer_length : int, default=30
        Maximum length of a predicted answer, in tokens.
    on_ambiguous : {"raise", "first"}, default="raise"
        What to do in ``fit`` if an answer without a start occurs more than once in its context:
        raise an error, or take the first occurrence.
    no_answer_threshold : float or "auto", default="auto"
        ``""`` is predicted if the logits of "no answer" exceed those of the best answer by more
        than this. With ``"auto"``, ``""`` is never predicted if every row of ``y`` in ``fit``, and
        of ``y_val``, had an answer; otherwise the threshold is 0, or the value with the best F1 on
        a validation set that has rows without one.
    calibrate : bool, default=False
        Divide the logits by a temperature that is fitted on the validation set (Guo et al. 2017,
        "On calibration of modern neural networks"); needs ``validation_fraction`` or
        ``X_val``.

    Attributes
    ----------
    model_ : transformers.BertForQuestionAnswering
        The fine-tuned model, an ordinary transformers object.
    tokenizer_ : transformers.PreTrainedTokenizerBase
        The tokenizer of ``model_``, an ordinary transformers object.
    no_answer_threshold_ : float
        The threshold that is used; infinite if ``""`` is never predicted.
    history_ : list of dict
        One dict per epoch: loss, learning rate, seconds, and with a validation set
        ``validation_loss`` and ``validation_score``, SQuAD's F1.
    probe_score_ : float
        ``validation_score`` before the first epoch, if there is a validation set and the head
        starts from a linear model. If training does not improve it, ``BertTransformer`` with a
        linear model does as well.
    n_iter_ : int
        Number of epochs that were run.
    n_truncated_ : int
        Number of rows of X whose question was cut in ``fit`` to leave room for the context.
    temperature_ : float
        The number by which the logits are divided; 1.0 without ``calibrate``.
    conformity_scores_ : ndarray of shape (n_held_out,)
        1 minus the probability of the best right answer in each row held out, ascending, for
        ``predict_set``; 2 where none is kept. Only if ``fit`` had rows to validate on, or
        after ``conformalize``.
    n_features_in_ : int
        Number of columns of X in ``fit``. Not defined if X was a list or a Series of texts, which
        has no columns.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the columns of X in ``fit``. Defined only if X was a frame whose column names were
        all str.

    See Also
    --------
    BertClassifier : Labels for pairs of texts.
    skbert.metrics.squad_f1 : What ``score`` computes.

    Notes
    -----
    A warning is raised if most rows look as if the context came before its question.

    A row of ``y`` is the answer (str), ``(answer, start)`` with the start in characters of the
    context, a list of several right answers of either form, or ``""`` or an empty list if the
    context holds none. An answer without a start is looked up in the context. ``fit`` uses the
    first right answer, and scores use the closest one [2]_.

    Rows hold at most 384 tokens by default, as in [1]_. In a window that does not hold the whole
    answer, and in every window of a row without an answer, the target is the first token, which
    stands for "no answer". A question is cut only if it would leave fewer than 64 tokens, or half
    of a short row, for the context.

    In prediction, the score of a span of at most ``max_answer_length`` tokens within one window is
    its start logit plus its end logit. If a span lies in several windows, its highest score
    counts; for "no answer" the score in the window where it is least likely counts [1]_ [3]_.

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

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **CalibratedEstimator._parameter_constraints,
        "stride": [Interval(Integral, 0, None, closed="left"), None],
        "max_answer_length": [COUNT],
        "on_ambiguous": [StrOptions({"raise", "first"})],
        "no_answer_threshold": [RealInterval(None, None, closed="both"), StrOptions({"auto"})],
    }
    _opens: ClassVar[tuple[Job, ...]] = ("question answering",)
    _y_holds: ClassVar[str] = "the answer to each question, and '' where its context holds none"

    @requires_y
    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return SQuAD's F1, the mean word overlap of the predicted and the right answers.

        Parameters
        ----------
        X : array-like of str of shape (n_samples, 2)
            A question and a context per row.
        y : array-like of shape (n_samples,)
            The right answers, in any form that ``fit`` accepts; if there are several, the closest
            one counts.
        sample_weight : array-like of shape (n_samples,), default=None
            Weight of each row; None gives all rows the same weight.

        Returns
        -------
        f1 : float
            From 0.0 to 1.0.
        """
        fitted = self._state()
        answers = self._answers(fitted, self._rows(X, fitted.record))
        return squad_f1(y, answers, sample_weight=sample_weight)

    def _task(self, max_length: int, usual: int = _WINDOW) -> Answers:
        """The task, for rows of at most that many tokens, and as many as usual if not said."""
        longest = min(max_length, usual) if self.max_length is None else max_length
        most = most_overlap(longest)
        if self.stride is not None and self.stride > most:
            raise InputError(
                f"stride={self.stride} is more than half a row of max_length={longest} tokens. It "
                "is the number of tokens that neighbouring windows share, not the distance from "
                f"one to the next: use at most {most}, or None."
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
            if answered[held_out].all():  # they cannot say when there is no answer
                return {}
            golds = [gold.texts[row] for row in held_out]
            best = best_threshold(spans, [contexts[row] for row in held_out], golds)
            return {"no_answer_threshold_": best}

        def conform(spans: Array, held_out: Array) -> dict[str, Any]:
            distances = [
                distance_of_truth(ranked, contexts[row], gold.texts[row])
                for ranked, row in zip(spans, held_out, strict=True)
            ]
            return Conformity(np.array(distances)).attributes()

        attributes = {"no_answer_threshold_": float(threshold)}
        tune = None if answered.all() or self.no_answer_threshold != "auto" else tuned
        strata = answered.astype(np.int64)
        task = self._task(max_length, _WINDOW if previous is None else previous.task.max_length)
        return TrainingPlan(task, gold.spans, attributes, f1, strata, weight, tune, conform)

    def _load_checkpoint(self, network: Network, max_length: int) -> tuple[Task, dict[str, Any]]:
        n_outputs = network.output_layer.out_features
        if n_outputs != 2:
            raise ModelError(
                f"The checkpoint has {n_outputs} outputs per token, but a start and an end are 2. "
                "It is not fine-tuned for this task; pass it as model= and call fit."
            )
        threshold = self.no_answer_threshold
        learned = np.inf if threshold == "auto" else float(threshold)
        own = getattr(network.model.config, "skbert_max_length", None)
        task = self._task(max_length, _WINDOW if own is None else own)
        return task, {"no_answer_threshold_": learned, "temperature_": 1.0}

    def __sklearn_tags__(self) -> Any:
        """Add that answers are needed to fit."""
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags
