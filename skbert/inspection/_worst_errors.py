"""The rows on which an estimator has the highest loss.

Depends on `_views`; knows no estimator by name.
"""

from __future__ import annotations

import warnings
from textwrap import indent

import numpy as np
import pandas as pd

from skbert._arrays import FloatArray, IntArray
from skbert._estimator.base import TextEstimator
from skbert._validation.numbers import check_count
from skbert.exceptions import InputError, InputTypeError, TruncationWarning
from skbert.inspection._attributions import explained
from skbert.inspection._columns import Predicts, as_objects, checked_rows
from skbert.inspection._fragments import Fragment
from skbert.inspection._heat import HEAT_STYLE, heat_html, heat_text
from skbert.inspection._html import View
from skbert.inspection._outcomes import Outcomes, name_of
from skbert.inspection._views import ShownRow, judged, outcomes_of, page

__all__ = ["worst_errors"]


def worst_errors(
    estimator: Predicts, X: object, y: object, k: int = 10, *, explain: bool = False
) -> View:
    """Show the rows on which an estimator has the highest loss.

    These are mistakes that it is sure of, and labels that are wrong in y. The loss of a row is
    minus the logarithm of the probability of its truth: its class, all its labels, or its option.
    For tags and answers it is the loss of ``fit``, for tags summed over the words of a row, for
    answers averaged over start and end. For numbers it is the squared error divided by the
    variance of y.

    Parameters
    ----------
    estimator : estimator
        A fitted estimator of skbert with ``predict``, or another scikit-learn classifier or
        regressor on texts.
    X : array-like of shape (n_samples, ...)
        Rows in the same form as in ``predict``. Rows that were not used in ``fit`` say more.
    y : array-like of shape (n_samples, ...)
        The truth in the same form as in ``fit``.
    k : int, default=10
        Number of rows.
    explain : bool, default=False
        Show below each row what its words contribute to the prediction, as `attributions`
        computes it. This takes much longer, and needs an estimator of skbert.

    Returns
    -------
    view : View
        The rows as `show` shows them, highest loss first. ``view.frame`` is a DataFrame with the
        columns ``row`` of X, ``text``, ``truth``, ``prediction``, ``probability`` of the truth
        (not for numbers) and ``loss``.

    Raises
    ------
    InputError, InputTypeError
        If the estimator does not predict, or X, y or ``k`` cannot be used.
    sklearn.exceptions.NotFittedError
        If the estimator is not fitted.

    See Also
    --------
    label_issues : Labels that are probably wrong, by cross-validation.
    attributions : What the words of a text contribute to a prediction.

    Examples
    --------
    >>> from skbert import BertClassifier
    >>> from skbert.datasets import load_intents
    >>> from skbert.inspection import worst_errors
    >>> X, y = load_intents(return_X_y=True)
    >>> classifier = BertClassifier(epochs=1, freeze="all", random_state=0).fit(X, y)
    >>> worst = worst_errors(classifier, X, y, k=5)
    >>> worst.frame.columns.tolist()
    ['row', 'text', 'truth', 'prediction', 'probability', 'loss']
    """
    check_count(k, "k", 10)
    if y is None:
        raise InputError("y is None, so nothing is known to be wrong. Give the truth of each row.")
    estimator, n_rows = judged(estimator, X, y)
    outcomes = outcomes_of(estimator, X, y)
    losses = outcomes.losses()
    worst = np.argsort(-losses, kind="stable")[:k]
    frame = _table(outcomes, worst, losses)
    remarks = [_remark(line) for line in frame.to_dict("records")]
    heats = _explained(estimator, X, outcomes, worst) if explain else [()] * len(worst)
    rows = [*map(ShownRow, worst.tolist(), worst.tolist(), remarks, heats)]
    heading = f"the {len(rows)} of {n_rows:,} rows with the highest loss"
    view = View(*page(estimator, outcomes, heading, rows, ""))
    view.frame = frame
    view.style += HEAT_STYLE * explain
    return view


def _explained(
    estimator: Predicts, X: object, outcomes: Outcomes, worst: IntArray
) -> list[tuple[Fragment, ...]]:
    """What the words of the worst rows contribute to predictions; nothing where there is none."""
    if not isinstance(estimator, TextEstimator):
        raise InputTypeError(
            f"explain=True needs an estimator of skbert, but {name_of(estimator)} is none. Type "
            "explain=False."
        )
    if getattr(estimator, "n_outputs_", 1) > 1:
        raise InputError(
            "explain=True explains one number of each row, but the estimator predicts "
            f"{estimator.n_outputs_}. Type explain=False, and explain one of them: "
            "attributions(estimator, X, target=0)."
        )
    needs_words = hasattr(estimator, "predict_spans")
    read = [
        at for at, row in enumerate(worst.tolist())
        if not needs_words or outcomes.columns.text(row).strip()
    ]  # fmt: skip
    heats: list[tuple[Fragment, ...]] = [()] * len(worst)
    rows = checked_rows(estimator, X).take(worst[read])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TruncationWarning)  # the predictions have warned already
        found = explained(estimator, rows)
    for at, each in zip(read, found, strict=True):
        heading = f"What each word contributes to {each.target!s:.80}"
        heat = each._heat()._replace(heading=heading)
        heats[at] = (Fragment(heat_html(heat), indent(heat_text(heat), "  ")),)
    return heats


def _table(outcomes: Outcomes, worst: IntArray, losses: FloatArray) -> pd.DataFrame:
    """What is known of the worst rows."""
    rows, chances = worst.tolist(), outcomes.chances()
    columns = {
        "row": rows,
        "text": as_objects([outcomes.columns.text(row) for row in rows]),
        "truth": as_objects([outcomes.truth(row) for row in rows]),
        "prediction": as_objects([outcomes.prediction(row) for row in rows]),
    }
    more = {} if chances is None else {"probability": chances[worst]}
    return pd.DataFrame({**columns, **more, "loss": losses[worst]})


def _remark(line: dict[object, object]) -> str:
    """The loss of a row, and the probability of its truth."""
    words = f"loss {line['loss']:.2f}"
    chance = line.get("probability")
    return words if chance is None else f"{words}, probability of the truth {chance:.2g}"
