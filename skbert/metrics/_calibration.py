"""Whether predictions are right as often as their probabilities say.

Depends on numpy, pandas and `skbert._validation`; knows no torch.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from skbert._arrays import Array, BoolArray, FloatArray
from skbert._validation.numbers import check_count
from skbert._validation.probabilities import (
    check_exclusive,
    check_kinds,
    labels_of,
    n_rows,
    numbers_of,
    probabilities_of,
)
from skbert._validation.weights import check_sample_weight
from skbert.exceptions import InputError

__all__ = ["calibration_error", "error_of_bins", "predictions_of", "reliability_bins"]

_INSTEAD = (
    "Compute it for one label at a time: calibration_error(y[:, 0], p[:, 0]), with p = "
    "predict_proba(X)."
)


def calibration_error(
    y_true: object, y_proba: object, classes: object = None, *, n_bins: int = 15,
    sample_weight: object = None,
) -> float:  # fmt: skip
    """Compute the expected calibration error of predicted probabilities.

    Predictions are put in bins by the probability of the predicted class. The error is the mean
    over all predictions of the distance, in their bin, between the mean of these probabilities
    and the share of predictions that are right.

    Parameters
    ----------
    y_true : array-like of shape (n,)
        The true labels; one that is not among the classes counts as an error.
    y_proba : array-like of shape (n, n_classes), or (n,) for two classes
        The probabilities of the classes, each row sums to 1; or those of the second of two
        classes.
    classes : array-like of shape (n_classes,), default=None
        The labels of the columns of ``y_proba``, as in ``classes_``. None stands for the sorted
        labels of ``y_true``, which must hold every class then.
    n_bins : int, default=15
        Number of bins, all equally wide; each without its lower edge.
    sample_weight : array-like of shape (n,), default=None
        Weights of the rows.

    Returns
    -------
    float
        From 0.0, where predictions are as often right as they say, to 1.0.

    Raises
    ------
    InputError
        If rows or columns do not fit together, a probability or a row's sum is none, or a row has
        several labels.
    InputTypeError
        If labels are str on one side and numbers on the other, or probabilities are no numbers.

    See Also
    --------
    skbert.inspection.ReliabilityDisplay : The same bins, drawn.
    sklearn.metrics.brier_score_loss : A score that also rewards being right.

    Notes
    -----
    This is the form of [2]_: the probability of the predicted class and bins of equal width, as
    [1]_ proposed for two classes. The value depends on the number of bins, and few rows make it
    larger than it is for many. It says nothing of accuracy: always predicting the shares of the
    classes has an error near 0.

    For the words of a tagger, join the rows:
    ``calibration_error(np.concatenate(y), np.concatenate(tagger.predict_proba(X)),
    tagger.classes_)``, with y in ``learned_scheme_``. For a ranker the classes are positions:
    ``calibration_error(y, p, range(p.shape[1]))``.

    References
    ----------
    .. [1] M. Pakdaman Naeini, G. F. Cooper and M. Hauskrecht, "Obtaining Well Calibrated
           Probabilities Using Bayesian Binning", AAAI 2015
    .. [2] C. Guo, G. Pleiss, Y. Sun and K. Q. Weinberger, "On Calibration of Modern Neural
           Networks", ICML 2017, https://proceedings.mlr.press/v70/guo17a.html

    Examples
    --------
    >>> from skbert.metrics import calibration_error
    >>> y_proba = [[0.9, 0.1], [0.7, 0.3], [0.1, 0.9], [0.3, 0.7]]
    >>> round(calibration_error(["a", "b", "b", "b"], y_proba, n_bins=2), 3)
    0.05
    >>> round(calibration_error([0, 1, 1, 1], [0.1, 0.3, 0.9, 0.7], n_bins=2), 3)
    0.05
    """
    chances = numbers_of(y_proba, "of shape (n, n_classes)")
    if chances.ndim == 1:
        chances = np.stack([1 - chances, chances], axis=1)
    if classes is None:
        classes = _sorted_labels(y_true, chances.shape[1:])
    confidence, right = predictions_of(y_true, chances, classes, instead=_INSTEAD)
    weight = check_sample_weight(sample_weight, len(right))
    return error_of_bins(reliability_bins(confidence, right, n_bins, weight))


def _sorted_labels(y_true: object, widths: tuple[int, ...]) -> Array:
    """The labels of y_true as the classes of a table of probabilities of that width."""
    labels = np.unique(labels_of(y_true, n_rows(y_true, "y_true"), "y_true", instead=_INSTEAD))
    if (len(labels),) != widths:
        raise InputError(
            f"y_true has {len(labels)} different labels, but y_proba has {sum(widths)} columns, "
            "so their classes are not clear. Give them: classes=classifier.classes_."
        )
    return labels


def predictions_of(
    y_true: object, y_proba: object, classes: object, *, instead: str
) -> tuple[FloatArray, BoolArray]:
    """The probability of the predicted class of each row, and whether it is right.

    ``instead`` says what to do with several labels per row.
    """
    n = n_rows(y_true, "y_true")
    true = labels_of(y_true, n, "y_true", instead=instead)
    chances, labels = probabilities_of(y_proba, n, classes)
    check_kinds(true, labels, "classes")
    check_exclusive(chances, instead)
    return chances.max(axis=1), labels[chances.argmax(axis=1)] == true


def reliability_bins(
    confidence: FloatArray, right: BoolArray, n_bins: int, weight: FloatArray | None = None
) -> pd.DataFrame:
    """The predictions in bins of equal width, each without its lower edge."""
    check_count(n_bins, "n_bins", 10)
    edges = np.linspace(0, 1, n_bins + 1)
    places = np.digitize(confidence, edges[1:-1], right=True)
    counts = np.bincount(places, weight, n_bins)
    each = np.ones(len(right)) if weight is None else weight
    some = np.where(counts > 0, counts, np.nan)
    return pd.DataFrame(
        {
            "lower": edges[:-1],
            "upper": edges[1:],
            "count": counts,
            "confidence": np.bincount(places, confidence * each, n_bins) / some,
            "accuracy": np.bincount(places, right * each, n_bins) / some,
        }
    )


def error_of_bins(bins: pd.DataFrame) -> float:
    """The mean distance of probability and share of right predictions, over all predictions."""
    gaps = (bins["accuracy"] - bins["confidence"]).abs().fillna(0.0)
    return float(np.average(gaps, weights=bins["count"]))
