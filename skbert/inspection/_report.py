"""One page about an estimator on some rows: data, scores, calibration, worst errors.

Depends on the other modules of `skbert.inspection`; knows no estimator by name.
"""

from __future__ import annotations

import numpy as np
from sklearn.utils import check_random_state
from sklearn.utils.validation import _num_samples

from skbert._arrays import FloatArray
from skbert._estimator.base import TextEstimator
from skbert._validation.numbers import check_count
from skbert._validation.parquet import with_rows
from skbert._validation.tables import check_length
from skbert._validation.targets import as_sequence
from skbert.exceptions import InputError
from skbert.inspection._columns import Predicts
from skbert.inspection._facts import about_lengths, about_rows, about_truth
from skbert.inspection._html import View
from skbert.inspection._outcomes import Confidences, Outcomes, check_columns_of, name_of
from skbert.inspection._page import Bar, Cell, Embedded, Section, Sentence, Table, whole_page
from skbert.inspection._scores import Interval, calibration_of, intervals, scores_of
from skbert.inspection._views import ShownRow, judged, outcomes_of, page

__all__ = ["report"]


def report(
    estimator: Predicts,
    X: object,
    y: object,
    *,
    X_train: object = None,
    y_train: object = None,
    n_errors: int = 5,
    random_state: int | np.random.RandomState | None = None,
) -> View:
    """Report on one page what the data are like and how well an estimator predicts them.

    The page has these sections:

    - rows: how many are empty, repeated, or also in the training data;
    - lengths in tokens against ``max_length``, and how many rows are cut;
    - labels or numbers in y, beside those of the training data;
    - scores with 95 % intervals: percentiles of the score in 1,000 resamples of the rows;
    - calibration, except for numbers: probabilities beside the share that comes true, and the
      expected calibration error in ten bins;
    - the rows with the highest loss.

    Parameters
    ----------
    estimator : estimator
        A fitted estimator of skbert with ``predict``, or another scikit-learn classifier or
        regressor on texts, for which there are no lengths.
    X : array-like of shape (n_samples, ...)
        Rows in the same form as in ``predict``, which were not used in ``fit``.
    y : array-like of shape (n_samples, ...)
        The truth in the same form as in ``fit``.
    X_train : array-like, default=None
        The rows that were used in ``fit``; None does not look for them in X.
    y_train : array-like, default=None
        Their labels, to be counted beside those of y; for classes and labels only.
    n_errors : int, default=5
        Number of rows with the highest loss to show; 0 shows none.
    random_state : int, RandomState instance or None, default=None
        Controls the resamples. With an int, the same call gives the same page.

    Returns
    -------
    view : View
        HTML in a notebook, plain text of 80 columns in a terminal, and with
        ``view.save("report.html")`` a page that loads nothing and runs nothing.

    Raises
    ------
    InputError, InputTypeError
        If the estimator does not predict, or X, y or another argument cannot be used.
    sklearn.exceptions.NotFittedError
        If the estimator is not fitted.

    See Also
    --------
    show : The predictions, row by row.
    worst_errors : The rows of the highest loss by themselves.

    Notes
    -----
    The intervals say how much the scores depend on the choice of these rows. They do not say how
    much they depend on the choice of the training rows or on chance in ``fit``.

    References
    ----------
    Efron and Tibshirani 1993, "An introduction to the bootstrap", chapter 13, for the intervals;
    Guo et al. 2017, "On calibration of modern neural networks", for the calibration error.

    Examples
    --------
    >>> from skbert import BertClassifier
    >>> from skbert.datasets import load_intents
    >>> from skbert.inspection import report
    >>> X, y = load_intents(return_X_y=True)
    >>> classifier = BertClassifier(epochs=1, freeze="all", random_state=0).fit(X[::2], y[::2])
    >>> view = report(classifier, X[1::2], y[1::2], X_train=X[::2], random_state=0)
    >>> print(str(view).splitlines()[0])
    Report on BertClassifier
    """
    _check(y, n_errors)
    estimator, n_rows = judged(estimator, X, y)
    if X_train is not None and y_train is not None:
        n_train = int(_num_samples(as_sequence(y_train)))
        check_length(int(_num_samples(with_rows(X_train))), n_train, "y_train")
    rng = check_random_state(np.random.default_rng().integers(2**31) if random_state is None
                             else random_state)  # fmt: skip
    outcomes = outcomes_of(estimator, X, y)
    check_columns_of(y_train, estimator)
    losses = outcomes.losses()
    sections = [about_rows(estimator, X, X_train)]
    if isinstance(estimator, TextEstimator):
        sections.append(about_lengths(estimator, X))
    sections.append(about_truth(outcomes, n_rows, y_train))
    sections.append(_about_scores(intervals(scores_of(outcomes, losses), rng), losses))
    confidences = outcomes.confidences()
    if confidences is not None and len(confidences.chances):
        sections.append(_about_calibration(confidences))
    if n_errors:
        sections.append(_about_errors(estimator, outcomes, losses, n_errors))
    return whole_page(f"Report on {name_of(estimator)}", sections)


def _check(y: object, n_errors: int) -> None:
    """Refuse what cannot be used."""
    if y is None:
        raise InputError("y is None, but scores need the truth of each row. Give y as in fit.")
    check_count(n_errors, "n_errors", 5, least=0)


def _about_scores(scores: list[Interval], losses: FloatArray) -> Section:
    lines = [
        [each.name, f"{each.estimate:.3f}", f"{each.low:.3f} to {each.high:.3f}"]
        for each in scores
    ]
    how = "The intervals are percentiles of 1,000 resamples of the rows (bootstrap)."
    n_infinite = int(np.isinf(losses).sum())
    rows = f"{n_infinite:,} row has" if n_infinite == 1 else f"{n_infinite:,} rows have"
    why = f"{rows} an infinite loss: what is true there has no probability."
    notes = [Sentence(how)] + [Sentence(why, is_warning=True)] * bool(n_infinite)
    return Section("Scores", [Table(["", "score", "95 % interval"], lines), *notes])


def _about_calibration(confidences: Confidences) -> Section:
    display = calibration_of(confidences)
    bins = display.bins[display.bins["count"] > 0]
    names = ["lower", "upper", "count", "confidence", "accuracy"]
    lines: list[list[Cell]] = [
        [f"{low:.1f} to {high:.1f}", f"{count:,.0f}", f"{mean:.2f}", f"{share:.2f}", Bar(share)]
        for low, high, count, mean, share in bins[names].to_numpy(np.float64).tolist()
    ]
    error = display.expected_calibration_error
    table = Table(["probability", "number", "mean", "came true", ""], lines)
    summary = (
        f"Expected calibration error: {error:.3f}. It is the mean distance between a probability "
        f"and the share of predictions with it that come true, for {confidences.owner}."
    )
    return Section("Calibration", [Sentence(summary), table])


def _about_errors(
    estimator: Predicts, outcomes: Outcomes, losses: FloatArray, n_errors: int
) -> Section:
    """The rows with the highest loss, as views show them."""
    worst = np.argsort(-losses, kind="stable")[:n_errors].tolist()
    rows = [ShownRow(row, row, f"loss {losses[row]:.2f}") for row in worst]
    heading = f"the {len(rows)} of {len(losses):,} rows with the highest loss"
    view = View(*page(estimator, outcomes, heading, rows, ""))
    return Section("Worst errors", [Embedded(view)])
