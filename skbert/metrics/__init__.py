"""Metrics for tags, answers, choices and probabilities, and scorers that use them.

Every function takes the right values and the predictions, one entry per row, in any container that
scikit-learn can split: a list, an object array, a Series. Depends on numpy, pandas, scikit-learn
and the other modules of `skbert.metrics`, and not on torch.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator
from sklearn.metrics import make_scorer
from sklearn.utils.metadata_routing import UNUSED

from skbert.exceptions import InputError
from skbert.metrics._calibration import calibration_error
from skbert.metrics._rows import (
    count_entities,
    hits,
    mean,
    mean_of_best,
    overlap,
    picks,
    ranks,
    rates,
)

__all__ = [
    "calibration_error",
    "choice_accuracy",
    "entity_f1",
    "entity_report",
    "get_scorer",
    "mean_reciprocal_rank",
    "squad_em",
    "squad_f1",
]


def entity_f1(
    y_true: Any, y_pred: Any, *, scheme: str | None = None, sample_weight: Any = None
) -> float:
    """Compute the micro-averaged F1 of entities, the usual score of a tagger.

    An entity counts only if its start, its end and its type are all right.

    Parameters
    ----------
    y_true, y_pred : sequence of n rows
        The true and the predicted tags, one list of str per row with one tag per word; or the
        entities themselves, one list of ``(start, end, type)`` per row.
    scheme : {"BIOES", "IO", "IOB1", "IOB2"} or None, default=None
        How tags are read. None reads them as the conlleval script does, which accepts every row;
        with a scheme, only entities that are complete in it count. BILOU is read as BIOES.
    sample_weight : array-like of shape (n,), default=None
        Weights of the rows; each entity counts with the weight of its row.

    Returns
    -------
    float
        F1 from 0.0 to 1.0; 0.0 if there is no entity at all.

    Raises
    ------
    InputError
        If a row has different numbers of tags in `y_true` and `y_pred`, or a tag does not belong
        to the scheme.
    InputTypeError
        If a row is not a list, or holds neither tags nor entities.

    See Also
    --------
    entity_report : The same for each type.

    Notes
    -----
    Without a scheme the result equals seqeval's ``f1_score`` [2]_, with a scheme that of its
    strict mode.

    References
    ----------
    .. [1] E. F. Tjong Kim Sang and F. De Meulder, "Introduction to the CoNLL-2003 shared task",
           Proceedings of CoNLL-2003, https://aclanthology.org/W03-0419
    .. [2] H. Nakayama, "seqeval: A Python framework for sequence labeling evaluation", 2018,
           https://github.com/chakki-works/seqeval

    Examples
    --------
    >>> from skbert.metrics import entity_f1
    >>> y_true = [["B-PER", "I-PER", "O", "B-LOC"], ["O"]]
    >>> y_pred = [["B-PER", "I-PER", "O", "O"], ["O"]]
    >>> round(entity_f1(y_true, y_pred), 3)
    0.667
    >>> entity_f1([[(0, 11, "PER")]], [[(0, 11, "PER")]])
    1.0
    """
    counts = count_entities(y_true, y_pred, scheme, sample_weight)
    return rates(*sum(counts.values(), np.zeros(3)))[2]


def entity_report(
    y_true: Any, y_pred: Any, *, scheme: str | None = None, sample_weight: Any = None
) -> pd.DataFrame:
    """Compute precision, recall and F1 of entities for each type.

    Parameters
    ----------
    y_true, y_pred : sequence of n rows
        Rows of tags or of entities, as in `entity_f1`.
    scheme : {"BIOES", "IO", "IOB1", "IOB2"} or None, default=None
        How tags are read, as in `entity_f1`.
    sample_weight : array-like of shape (n,), default=None
        Weights of the rows; each entity counts with the weight of its row.

    Returns
    -------
    DataFrame
        One row per type, sorted, then "micro avg" (all entities together), "macro avg" (the mean
        of the types) and "weighted avg" (the mean of the types weighted by support). The columns
        are "precision", "recall" and "f1", from 0.0 to 1.0, and "support", the number of
        entities in `y_true`, or their weight. A rate whose denominator is 0 is 0.0.

    Raises
    ------
    InputError, InputTypeError
        As in `entity_f1`.

    Examples
    --------
    >>> from skbert.metrics import entity_report
    >>> y_true = [["B-PER", "I-PER", "O", "B-LOC"], ["B-LOC"]]
    >>> y_pred = [["B-PER", "I-PER", "O", "O"], ["B-LOC"]]
    >>> entity_report(y_true, y_pred).round(2)
                  precision  recall    f1  support
    LOC                 1.0    0.50  0.67        2
    PER                 1.0    1.00  1.00        1
    micro avg           1.0    0.67  0.80        3
    macro avg           1.0    0.75  0.83        3
    weighted avg        1.0    0.67  0.78        3
    """
    counts = count_entities(y_true, y_pred, scheme, sample_weight)
    table = np.array([rates(*each) for each in counts.values()]).reshape(-1, 3)
    support = np.array([wanted for _, _, wanted in counts.values()])
    total = support.sum()
    averages: list[Any] = [
        rates(*sum(counts.values(), np.zeros(3))),
        table.mean(axis=0) if counts else np.zeros(3),
        support @ table / total if total else np.zeros(3),
    ]
    # Types may hold lone surrogates, which pandas' own type of text refuses.
    index = pd.Index([*counts, "micro avg", "macro avg", "weighted avg"], dtype=object)
    report = pd.DataFrame([*table, *averages], index=index, columns=["precision", "recall", "f1"])
    report["support"] = np.append(support, [total] * 3)
    return report.astype({"support": np.int64}) if sample_weight is None else report


def squad_f1(y_true: Any, y_pred: Any, *, sample_weight: Any = None) -> float:
    """Compute the mean word overlap of answers, the F1 of SQuAD.

    Parameters
    ----------
    y_true : sequence of n rows
        The right answers: for each row a str, ``(str, start)``, or a list of several such answers.
        If there are several, the closest one counts. ``""`` or an empty list means that there is
        no answer.
    y_pred : sequence of n str
        The predicted answers, ``""`` for no answer.
    sample_weight : array-like of shape (n,), default=None
        Weights of the rows.

    Returns
    -------
    float
        Mean over the rows, from 0.0 to 1.0.

    Raises
    ------
    InputError
        If the numbers of rows differ, or the weights are invalid.
    InputTypeError
        If a row holds anything other than answers.

    See Also
    --------
    squad_em : The share of answers that agree in full.

    Notes
    -----
    Answers are compared in lower case, without ASCII punctuation and without the words "a", "an"
    and "the", split at white space; F1 is computed from the two bags of words. A row without an
    answer counts 1 if the prediction is empty, otherwise 0. The published scores are these means
    times 100.

    References
    ----------
    .. [1] P. Rajpurkar, J. Zhang, K. Lopyrev and P. Liang, "SQuAD: 100,000+ Questions for Machine
           Comprehension of Text", EMNLP 2016, https://aclanthology.org/D16-1264
    .. [2] P. Rajpurkar, R. Jia and P. Liang, "Know What You Don't Know: Unanswerable Questions
           for SQuAD", ACL 2018, https://aclanthology.org/P18-2124

    Examples
    --------
    >>> from skbert.metrics import squad_f1
    >>> y_true = ["the blue door", ("Monday", 12), ["ten", "ten euros"], ""]
    >>> y_pred = ["Blue door!", "", "about ten euros", ""]
    >>> round(squad_f1(y_true, y_pred), 3)
    0.7
    """
    return mean_of_best(overlap, y_true, y_pred, sample_weight)


def squad_em(y_true: Any, y_pred: Any, *, sample_weight: Any = None) -> float:
    """Compute the share of answers that agree in full, SQuAD's exact match.

    Parameters
    ----------
    y_true : sequence of n rows
        The right answers, as in `squad_f1`.
    y_pred : sequence of n str
        The predicted answers, ``""`` for no answer.
    sample_weight : array-like of shape (n,), default=None
        Weights of the rows.

    Returns
    -------
    float
        Share of the rows, from 0.0 to 1.0.

    Raises
    ------
    InputError, InputTypeError
        As in `squad_f1`.

    Notes
    -----
    Case, ASCII punctuation, articles and the width of white space do not matter; `squad_f1` has
    the details and the sources.

    Examples
    --------
    >>> from skbert.metrics import squad_em
    >>> squad_em(["the blue door", ""], ["Blue door!", "a red one"])
    0.5
    """
    return mean_of_best(lambda gold, guess: float(gold == guess), y_true, y_pred, sample_weight)


def choice_accuracy(y_true: Any, y_pred: Any, *, sample_weight: Any = None) -> float:
    """Compute the share of rows for which the right option was chosen.

    Parameters
    ----------
    y_true, y_pred : array-like of shape (n,)
        The right and the chosen options: positions (int), or texts (str) on both sides.
    sample_weight : array-like of shape (n,), default=None
        Weights of the rows.

    Returns
    -------
    float
        Share of the rows, from 0.0 to 1.0.

    Raises
    ------
    InputError
        If the numbers of rows differ, or the weights are invalid.
    InputTypeError
        If an option is neither int nor str, or a row has a position on one side and a text on
        the other.

    Examples
    --------
    >>> from skbert.metrics import choice_accuracy
    >>> choice_accuracy([0, 2, 1, 1], [0, 2, 1, 3])
    0.75
    """
    return mean(hits(y_true, y_pred), sample_weight)


def mean_reciprocal_rank(y_true: Any, y_score: Any, *, sample_weight: Any = None) -> float:
    """Compute the mean of one over the rank of the right option.

    Parameters
    ----------
    y_true : array-like of shape (n,)
        Position of the right option (int).
    y_score : array of shape (n, max_options), or sequence of n rows of numbers
        Scores of the options, higher is better. In an array, such as ``predict_proba`` returns,
        options that a row does not have must be 0 and no score may be negative; rows of different
        lengths may hold any numbers.
    sample_weight : array-like of shape (n,), default=None
        Weights of the rows.

    Returns
    -------
    float
        Mean over the rows: 1.0 where the right option always comes first, 0.5 where it always
        comes second.

    Raises
    ------
    InputError
        If a position lies outside its row, an array has a negative score, a score is NaN, the
        numbers of rows differ or the weights are invalid.
    InputTypeError
        If a position is not an int, or a row of scores does not hold numbers.

    Notes
    -----
    Ties count as errors: the rank is the number of options with at least the score of the right
    one, so equal scores for all options give the lowest value.

    References
    ----------
    .. [1] E. M. Voorhees, "The TREC-8 Question Answering Track Report", Proceedings of TREC-8,
           1999, https://trec.nist.gov/pubs/trec8/papers/qa_report.pdf

    Examples
    --------
    >>> from skbert.metrics import mean_reciprocal_rank
    >>> mean_reciprocal_rank([0, 2], [[0.7, 0.3], [0.5, 0.2, 0.3]])
    0.75
    """
    return mean(1 / ranks(y_true, y_score), sample_weight)


def get_scorer(name: str) -> Callable[..., float]:
    """Return a scorer of one of these metrics, for ``scoring=`` in scikit-learn.

    Parameters
    ----------
    name : {"choice_accuracy", "entity_f1", "mean_reciprocal_rank", "squad_em", "squad_f1"}
        The metric. `mean_reciprocal_rank` calls ``predict_proba``, the others ``predict``.

    Returns
    -------
    callable
        A new scorer with the signature ``scorer(estimator, X, y, sample_weight=None)``. Higher
        scores are better.

    Raises
    ------
    InputError
        If there is no scorer of this name.

    Notes
    -----
    To pass other arguments, make your own scorer:
    ``sklearn.metrics.make_scorer(entity_f1, scheme="IOB2")``. With metadata routing enabled,
    request sample weights: ``get_scorer("entity_f1").set_score_request(sample_weight=True)``.

    Examples
    --------
    >>> from sklearn.dummy import DummyClassifier
    >>> from skbert.metrics import get_scorer
    >>> model = DummyClassifier(strategy="most_frequent").fit(["a", "b", "c"], [0, 0, 1])
    >>> get_scorer("choice_accuracy")(model, ["d", "e"], [0, 1])
    0.5
    """
    if name not in _METRICS:
        close = difflib.get_close_matches(str(name), _METRICS, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        msg = f"There is no scorer {name!r}; the scorers are {sorted(_METRICS)}.{hint}"
        raise InputError(msg)
    if name in _OF_CHOICES:
        return _ChoiceScorer(name)
    scorer: Callable[..., float] = make_scorer(_METRICS[name])
    return scorer


class _ChoiceScorer(BaseEstimator):  # type: ignore[misc, unused-ignore]
    """Score choices against positions or texts, as `BertChoiceRanker.score` does.

    Before version 1.9 scikit-learn's scorers accept probabilities of classifiers only, which a
    ranker is not. The base class brings ``set_score_request``.
    """

    __metadata_request__score: ClassVar[dict[str, str]] = {"estimator": UNUSED}

    def __init__(self, name: str) -> None:
        self.name = name

    def score(self, estimator: Any, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the metric of one fitted estimator."""
        estimator, X = _ranker_of(estimator, X)
        predicted = getattr(estimator, _OF_CHOICES[self.name])(X)
        right = picks(y, X, getattr(estimator, "text_columns", None))
        return _METRICS[self.name](right, predicted, sample_weight=sample_weight)

    __call__ = score


def _ranker_of(estimator: object, X: object) -> tuple[Any, Any]:
    """The ranker at the end of pipelines and searches, and the rows that it is given."""
    last: Any = getattr(estimator, "best_estimator_", estimator)
    if not hasattr(last, "steps"):
        return last, X
    rows = last[:-1].transform(X) if len(last.steps) > 1 else X
    return _ranker_of(last.steps[-1][1], rows)


_OF_CHOICES = {"choice_accuracy": "predict", "mean_reciprocal_rank": "predict_proba"}
_METRICS: dict[str, Callable[..., float]] = {
    "choice_accuracy": choice_accuracy,
    "entity_f1": entity_f1,
    "mean_reciprocal_rank": mean_reciprocal_rank,
    "squad_em": squad_em,
    "squad_f1": squad_f1,
}
