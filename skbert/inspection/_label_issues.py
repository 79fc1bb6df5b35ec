"""Labels that are probably wrong, by confident learning with out-of-fold probabilities.

Depends on scikit-learn and ``_validation``; knows no estimator by name.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pandas as pd
from sklearn.base import clone, is_classifier
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import check_cv

from skbert._arrays import Array, FloatArray, IntArray
from skbert._estimator.scoring import rows_of
from skbert._validation.parquet import with_rows
from skbert._validation.targets import as_sequence, check_labels
from skbert.exceptions import InputError, InputTypeError
from skbert.inspection._columns import Estimator, Predicts, as_objects, open_columns
from skbert.inspection._outcomes import name_of

__all__ = ["label_issues"]


def label_issues(estimator: Predicts, X: object, y: object, cv: object = 5) -> pd.DataFrame:
    """Find labels of y that are probably wrong.

    Every row gets probabilities from a copy of the estimator that was not fitted on it. A row is
    confidently of a class if the probability of that class is at least the mean probability of the
    class over the rows with its label. A label is listed if its row is confidently of another
    class, and that class is more probable.

    Parameters
    ----------
    estimator : estimator
        A classifier with ``predict_proba``, of skbert or not, fitted or not; copies of it are
        fitted.
    X : array-like of shape (n_samples, ...)
        Rows in the same form as in ``fit``.
    y : array-like of shape (n_samples,)
        The label of each row; each label at least twice.
    cv : int, cross-validation generator or iterable, default=5
        The folds, as in `sklearn.model_selection.cross_val_predict`; each row is tested once. With
        more folds the copies learn from more rows, and take longer.

    Returns
    -------
    issues : DataFrame
        One line per label that is probably wrong, the worst first: ``row`` of X, its ``text``, the
        given ``label``, the ``suggested_label``, and ``self_confidence``, the out-of-fold
        probability of the given label, by which lines are sorted. The texts of a pair are joined
        by a line break.

    Raises
    ------
    InputError, InputTypeError
        If the estimator is no classifier with probabilities, y holds several labels per row, only
        one class, or a label only once, the folds of ``cv`` do not test each row once on a copy
        that has not learned it, or X or y cannot be used.

    References
    ----------
    Northcutt, Jiang and Chuang 2021, "Confident Learning: Estimating Uncertainty in Dataset
    Labels", section 3.1.

    Examples
    --------
    >>> from skbert import BertClassifier
    >>> from skbert.datasets import load_intents
    >>> from skbert.inspection import label_issues
    >>> X, y = load_intents(return_X_y=True)
    >>> y[0] = "refund"  # a mistake
    >>> issues = label_issues(BertClassifier(epochs=1, freeze="all", random_state=0), X, y)
    >>> issues.loc[issues["row"] == 0, ["label", "suggested_label"]].values.tolist()
    [['refund', 'product_question']]
    """
    if not is_classifier(estimator) or not hasattr(estimator, "predict_proba"):
        raise InputTypeError(
            f"estimator has the type {name_of(estimator)}, but labels are judged by the "
            "probabilities of a classifier. Give one with predict_proba, such as BertClassifier()."
        )
    if isinstance(estimator, FrozenEstimator):
        raise InputTypeError(
            "A FrozenEstimator learns nothing, but copies of it are to learn from other rows than "
            "they judge. Give what it holds: its .estimator."
        )
    X = with_rows(X)
    copy: Any = clone(cast("Any", estimator))
    columns = open_columns(copy, X)
    labels, several = check_labels(
        as_sequence(y), len(columns.cells[0]), estimator_name=name_of(estimator)
    )
    if several:
        raise InputError(
            f"y has the shape {labels.shape}, several labels per row, but only one can be judged. "
            "Call label_issues once per label: label_issues(estimator, X, y[:, 0])."
        )
    classes, codes = np.unique(labels, return_inverse=True)
    _check_counts(classes.tolist(), codes)
    folds = _folds(cv, X, labels)
    chances = np.zeros((len(labels), len(classes)))
    for train, test in folds:
        judge = clone(copy).fit(rows_of(X, train), labels[train])
        chances[test] = _chances(judge, rows_of(X, test), classes.tolist())
    rows, suggested = _confidently_other(codes, chances)
    confidence = chances[rows, codes[rows]]
    table = pd.DataFrame({
        "row": rows,
        "text": as_objects([columns.text(row) for row in rows.tolist()]),
        "label": as_objects(classes[codes[rows]].tolist()),
        "suggested_label": as_objects(classes[suggested].tolist()),
        "self_confidence": confidence,
    })  # fmt: skip
    return table.sort_values("self_confidence", kind="stable", ignore_index=True)


def _chances(judge: Estimator, X: object, classes: list[object]) -> FloatArray:
    """The probability of each class; 0 where a copy has not seen any of its rows."""
    found = np.asarray(judge.predict_proba(X), np.float64)
    of_label = dict(zip(judge.classes_.tolist(), found.T, strict=True))
    return np.stack([of_label.get(label, np.zeros(len(found))) for label in classes], axis=1)


def _check_counts(classes: list[object], codes: IntArray) -> None:
    """Raise where there is one label only, or one has one row: no copy could judge it."""
    counts = np.bincount(codes)
    if len(counts) == 1:
        raise InputError(
            f"All labels of y are {classes[0]!r:.80}, so none could be another one. Give rows of "
            "two classes or more."
        )
    if counts.min() < 2:
        label = classes[int(counts.argmin())]
        row = int(np.flatnonzero(codes == counts.argmin())[0])
        raise InputError(
            f"The label {label!r:.80} is only in row {row} of y, so no copy could learn it and "
            "judge the row. Leave the row out, or give the label to more rows."
        )


def _folds(cv: object, X: object, labels: Array) -> list[tuple[IntArray, IntArray]]:
    """The rows that each copy learns from and judges; each row is judged once."""
    instead = "Type cv=5, or give folds such as StratifiedKFold(5, shuffle=True)."
    try:
        folds = [*check_cv(cv, labels, classifier=True).split(X, labels)]
        counts = np.bincount(np.concatenate([test for _, test in folds]), minlength=len(labels))
    except (AttributeError, TypeError, ValueError) as error:
        raise InputError(f"cv={cv!r:.80} gives no folds: {error} {instead}") from error
    if (bad := np.flatnonzero(counts != (np.arange(len(counts)) < len(labels)))).size:
        raise InputError(
            f"cv={cv!r:.80} tests row {bad[0]} {counts[bad[0]]} times, but each of the "
            f"{len(labels)} rows is judged once. {instead}"
        )
    if known := [row for train, test in folds for row in np.intersect1d(train, test).tolist()]:
        raise InputError(
            f"cv={cv!r:.80} tests row {known[0]} on a copy that has learned it. {instead}"
        )
    return folds


def _confidently_other(codes: IntArray, chances: FloatArray) -> tuple[IntArray, IntArray]:
    """The rows that are confidently of another class than their label's, and that class."""
    own = chances[np.arange(len(codes)), codes]
    thresholds = np.bincount(codes, own) / np.bincount(codes)
    confident = np.where(chances >= thresholds, chances, -1.0)
    best = confident.argmax(axis=1)
    rows = np.flatnonzero(confident.max(axis=1) > own)
    return rows, best[rows]
