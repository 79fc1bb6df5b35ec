"""Predictions as views: each row of X with what an estimator says of it, beside the truth.

Which methods an estimator has says what is shown; none is known by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import numpy as np
from sklearn.frozen import FrozenEstimator
from sklearn.utils.validation import _num_samples, check_is_fitted

from skbert._estimator.scoring import rows_of
from skbert._validation.numbers import check_count
from skbert._validation.parquet import with_rows
from skbert._validation.tables import check_length
from skbert._validation.targets import as_sequence
from skbert.exceptions import InputError, InputTypeError
from skbert.inspection._columns import Estimator, Predicts, check_refitted
from skbert.inspection._fragments import STYLE, Fragment, entry, note
from skbert.inspection._html import View, escaped
from skbert.inspection._once import reading_once
from skbert.inspection._outcomes import (
    Outcomes,
    classes_or_labels,
    name_of,
    numbers,
    options,
)
from skbert.inspection._places import answers, entities

__all__ = ["ShownRow", "judged", "outcomes_of", "page", "show"]

# A method of estimators, and how its predictions are read; the first one that there is counts.
_KINDS: dict[str, Callable[[Estimator, object, object], Outcomes]] = {
    "predict_spans": entities,
    "predict_answers": answers,
    "rank": options,
    "predict_proba": classes_or_labels,
    "predict": numbers,
}


class ShownRow(NamedTuple):
    """A row that is shown."""

    row: int  # in X
    at: int  # in the outcomes
    remark: str = ""
    below: tuple[Fragment, ...] = ()  # what is shown below it


def show(estimator: Predicts, X: object, y: object = None, *, max_rows: int = 20) -> View:
    """Show what an estimator predicts for each row of X, and with y where it is wrong.

    Entities are marked in their texts, answers in their contexts with the next best ones and
    their scores. Options, classes and labels are ranked, with a bar for each probability, and
    numbers are placed on a scale.

    Parameters
    ----------
    estimator : estimator
        A fitted estimator of skbert with ``predict``, or another scikit-learn classifier or
        regressor on texts, such as a `Pipeline` or a fitted search.
    X : array-like of shape (n_samples, ...)
        Rows in the same form as in ``predict``.
    y : array-like of shape (n_samples, ...), default=None
        The truth in the same form as in ``fit``; rows that are wrong are marked. None shows
        predictions only.
    max_rows : int, default=20
        Number of rows to show, the first ones; only these are predicted.

    Returns
    -------
    view : View
        HTML in a notebook, plain text in a terminal, and with ``view.save("page.html")`` a page
        that loads nothing and runs nothing.

    Raises
    ------
    InputError, InputTypeError
        If the estimator does not predict, or X, y or ``max_rows`` cannot be used.
    sklearn.exceptions.NotFittedError
        If the estimator is not fitted.

    See Also
    --------
    worst_errors : The rows with the highest loss.

    References
    ----------
    Okabe and Ito 2008, "Color universal design: how to make figures and presentations that are
    friendly to colorblind people", for the colours.

    Examples
    --------
    >>> from skbert import BertTokenTagger
    >>> from skbert.datasets import load_entities
    >>> from skbert.inspection import show
    >>> X, y = load_entities(return_X_y=True)
    >>> tagger = BertTokenTagger(epochs=1, freeze="all", random_state=0).fit(X, y)
    >>> show(tagger, ["Hedda moved to Paris.", "Ann sings."], [[(0, 5, "PER")], [(0, 3, "PER")]])
    BertTokenTagger: 2 rows, 1 of them wrong
    <BLANKLINE>
    Row 0  ✗ wrong
      [Hedda PER] moved to [Paris LOC ✗].
      ✗ LOC “Paris”: no entity is true
    <BLANKLINE>
    Row 1  ✓ right
      [Ann PER] sings.
    """
    check_count(max_rows, "max_rows", 20)
    estimator, n_rows = judged(estimator, X, y)
    first = np.arange(min(n_rows, int(max_rows)))
    rest = n_rows - len(first)
    if rest:
        X, y = (rows_of(as_sequence(part), first) for part in (X, y))
    outcomes = outcomes_of(estimator, X, y)
    heading = f"{len(first)} of {n_rows:,} rows" if rest else f"{n_rows} row{'s' * (n_rows > 1)}"
    more = f"{rest:,} more rows are not shown: max_rows={n_rows} shows all." if rest else ""
    rows = [ShownRow(row, row) for row in first.tolist()]
    return View(*page(estimator, outcomes, heading, rows, more))


def judged(estimator: Predicts, X: object, y: object) -> tuple[Predicts, int]:
    """The estimator that predicts, that of a search being its best one, and the number of rows.

    It reads X once. What does not predict is refused, and so are other numbers of rows in X and y.
    """
    check_refitted(estimator)
    if not hasattr(estimator, "predict") or isinstance(estimator, type):
        raise InputTypeError(
            f"A {name_of(estimator)} does not predict for rows. Give a fitted estimator with "
            "predict, such as BertClassifier().fit(X, y)."
        )
    check_is_fitted(cast("Any", estimator))
    X = with_rows(X)
    if isinstance(X, str) or not hasattr(X, "__len__"):
        raise InputError(f"X is {X!r:.80}, not a list of rows. For a single one, type [X].")
    n_rows = int(_num_samples(X))
    if y is not None:
        check_length(n_rows, int(_num_samples(as_sequence(y))))
    best: Any = getattr(estimator, "best_estimator_", estimator)
    return reading_once(best.estimator if isinstance(best, FrozenEstimator) else best), n_rows


def outcomes_of(estimator: Predicts, X: object, y: object) -> Outcomes:
    """What an estimator predicts for the rows of X, beside the truth."""
    read = next(kind for method, kind in _KINDS.items() if hasattr(estimator, method))
    return read(cast("Estimator", estimator), X, y)


def page(
    estimator: object, outcomes: Outcomes, heading: str, rows: list[ShownRow],
    more: str,
) -> tuple[str, str, str, str]:  # fmt: skip
    """Title, HTML, plain text and style of a view of rows."""
    rights = [outcomes.is_right(at) for _, at, _, _ in rows]
    if None not in rights:
        heading += f", {rights.count(False)} of them wrong"
    parts = [
        entry(row, [outcomes.shown(at), *below], is_right=right, more=remark)
        for (row, at, remark, below), right in zip(rows, rights, strict=True)
    ]
    parts += [note(more)] * bool(more)
    title = f"{name_of(estimator)}: {heading}"
    top = f"<p><b>{escaped(name_of(estimator))}</b>: {escaped(heading)}</p>"
    body = f"{top}{outcomes.legend().html}{''.join(part.html for part in parts)}"
    return title, body, "\n\n".join([title, *(part.text for part in parts)]), STYLE
