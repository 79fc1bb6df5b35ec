"""ThresholdDisplay: precision, recall and F1 of each label over the thresholds."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Self

import numpy as np
import pandas as pd
from sklearn.metrics import precision_recall_curve

from skbert._arrays import Array, BoolArray, FloatArray
from skbert._validation.probabilities import (
    check_exclusive,
    check_kinds,
    labels_or_indicator,
    n_rows,
    probabilities_of,
)
from skbert._validation.tables import check_length
from skbert.exceptions import InputError
from skbert.inspection._displays.drawing import COLOURS, Display, heat_map, name_ticks, plain
from skbert.inspection._displays.rows import class_probabilities
from skbert.inspection._outcomes import check_columns_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["ThresholdDisplay"]

_BINARY = 2
_GRID = np.linspace(0.005, 0.995, 100)  # centres of the cells of the heat map


class ThresholdDisplay(Display):
    """Precision, recall and F1 of labels over the thresholds, with the best threshold of each.

    Use `from_estimator` or `from_predictions` to draw one. One label is drawn as curves, several
    as a heat map of F1 with a line for each.

    Parameters
    ----------
    curves : dict of label to DataFrame
        For each label the columns ``threshold`` (ascending), ``precision``, ``recall`` and ``f1``
        of predicting the label where its probability is at least the threshold.

    Attributes
    ----------
    curves : dict of label to DataFrame
        The values that are drawn.
    labels : list
        The labels, in the order of the other attributes.
    thresholds_ : ndarray of shape (n_labels,)
        The lowest threshold with the highest F1; 0.5 for a label that no row has.
    f1_ : ndarray of shape (n_labels,)
        The F1 at these thresholds.
    ax_ : matplotlib Axes
        The axes.
    figure_ : matplotlib Figure
        The figure.

    See Also
    --------
    skbert.BertClassifier : ``tune_thresholds=True`` chooses thresholds on held-out rows.
    sklearn.model_selection.TunedThresholdClassifierCV : The same for a binary y, with
        cross-validation.

    Notes
    -----
    An F1 at a threshold that was chosen on the same rows is too high. Choose thresholds on one
    part of the data, and score them on another.

    Examples
    --------
    >>> from skbert.inspection import ThresholdDisplay
    >>> y_true = [[1, 0], [1, 1], [0, 1], [0, 0]]
    >>> y_proba = [[0.9, 0.2], [0.4, 0.3], [0.3, 0.6], [0.1, 0.4]]
    >>> display = ThresholdDisplay.from_predictions(y_true, y_proba, ["food", "staff"])
    >>> display.thresholds_
    array([0.4, 0.3])
    >>> display.f1_
    array([1. , 0.8])
    """

    def __init__(self, curves: Mapping[Hashable, pd.DataFrame]) -> None:
        self.curves = dict(curves)
        self.labels = list(self.curves)
        best = [_best(curve) for curve in self.curves.values()]
        self.thresholds_, self.f1_ = np.array(best).reshape(-1, 2).T

    @classmethod
    def from_estimator(
        cls, estimator: object, X: object, y: object, *, label: Hashable = None,
        ax: Axes | None = None,
    ) -> Self:  # fmt: skip
        """Draw the thresholds of a fitted classifier.

        Parameters
        ----------
        estimator : estimator
            A fitted classifier with ``predict_proba``, or a Pipeline that ends with one.
        X : array-like
            Rows in the same form as in ``predict_proba``, not used in ``fit``.
        y : array-like of shape (n_samples,) or (n_samples, n_labels)
            Their true labels, or an indicator matrix. With one label per row each class is set
            against all others.
        label : label, default=None
            One of ``classes_``, for multi-label targets a column number. None draws all of them,
            and for two classes the second one.
        ax : matplotlib Axes, default=None
            Where to draw. None makes a new figure.

        Returns
        -------
        display : ThresholdDisplay
            The display, drawn.

        Raises
        ------
        InputError, InputTypeError
            If the estimator gives no probabilities, there is no such label, or X or y cannot be
            used.
        sklearn.exceptions.NotFittedError
            If the estimator is not fitted.
        """
        cls._require_matplotlib()
        check_columns_of(y, estimator)
        chances, classes = class_probabilities(estimator, X, cls.__name__)
        return cls.from_predictions(y, chances, classes, label=label, ax=ax)

    @classmethod
    def from_predictions(
        cls, y_true: object, y_proba: object, classes: object, *, label: Hashable = None,
        ax: Axes | None = None,
    ) -> Self:  # fmt: skip
        """Draw the thresholds of probabilities.

        Parameters
        ----------
        y_true : array-like of shape (n_samples,) or (n_samples, n_labels)
            The true labels, or an indicator matrix.
        y_proba : array-like of shape (n_samples, n_labels)
            The probabilities of the labels.
        classes : array-like of shape (n_labels,)
            Names of the columns of ``y_proba``; with one label per row they are the labels.
        label : label, default=None
            One of the classes. None draws all of them, and with one label per row and two classes
            the second one.
        ax : matplotlib Axes, default=None
            Where to draw. None makes a new figure.

        Returns
        -------
        display : ThresholdDisplay
            The display, drawn.

        Raises
        ------
        InputError, InputTypeError
            If y_true, y_proba or the classes cannot be used or differ in length, or there is no
            such label.
        """
        cls._require_matplotlib()
        n = n_rows(y_true, "y_true")
        chances, labels = probabilities_of(y_proba, n, classes)
        present, is_multi_label = _presence(y_true, n, labels)
        if not is_multi_label:
            check_exclusive(
                chances, "Give y_true as an indicator matrix, a column for each label."
            )
        names = labels.tolist()
        if label is not None:
            if label not in names:
                raise InputError(f"There is no label {label!r}. The labels are {names!s:.200}.")
            wanted = [names.index(label)]
        else:
            only_second = len(names) == _BINARY and not is_multi_label
            wanted = [1] if only_second else [*range(len(names))]
        return cls({names[i]: _curve(present[:, i], chances[:, i]) for i in wanted}).plot(ax)

    def _size(self) -> tuple[float, float]:
        n = len(self.labels)
        return super()._size() if n == 1 else (7.0, min(1.8 + 0.25 * n, 11.0))

    def _draw(self, ax: Axes) -> None:
        (self._draw_curves if len(self.labels) == 1 else self._draw_map)(ax)
        ax.set_xlabel("threshold: lowest probability at which the label is predicted")

    def _draw_curves(self, ax: Axes) -> None:
        [(label, curve)] = self.curves.items()
        styles = {"precision": ":", "recall": "--", "f1": "-"}
        for colour, (name, style) in zip((2, 1, 0), styles.items(), strict=True):
            ax.plot(
                curve["threshold"], curve[name], style, drawstyle="steps-pre",
                color=COLOURS[colour], label="F1" if name == "f1" else name,
            )  # fmt: skip
        best, f1 = self.thresholds_[0], self.f1_[0]
        ax.plot(
            best, f1, "*", color="black", markersize=13, label=f"best F1 {f1:.2f} at {best:.2f}"
        )
        ax.set(xlim=(0, 1), ylim=(0, 1.05), ylabel="score", title=f"Label {plain(label)}")
        ax.legend(fontsize=8)

    def _draw_map(self, ax: Axes) -> None:
        order = np.argsort(-self.f1_, kind="stable")
        curves = [self.curves[self.labels[i]] for i in order]
        image = heat_map(
            ax, np.stack([_on_grid(each) for each in curves]), "F1", largest=1.0, aspect="auto"
        )
        image.set_extent((0.0, 1.0, len(order) - 0.5, -0.5))
        ax.set_xlim(0, 1)
        ax.plot(
            self.thresholds_[order], np.arange(len(order)), "*", color=COLOURS[3],
            markeredgecolor="black", markersize=9, label="best threshold",
        )  # fmt: skip
        name_ticks(ax.yaxis, [self.labels[i] for i in order])
        ax.set(ylabel="label", title="F1 over thresholds, a star at the best of each label")


def _presence(y_true: object, n: int, labels: Array) -> tuple[BoolArray, bool]:
    """Which rows have which label, ``(n, n_labels)``, and whether a row may have several."""
    true, is_multi_label = labels_or_indicator(y_true, n)
    if not is_multi_label:
        check_kinds(true, labels, "classes")
        return true[:, None] == labels[None, :], False
    check_length(len(labels), true.shape[1], "y_true's columns")
    return true.astype(bool), True


def _curve(present: BoolArray, chances: FloatArray) -> pd.DataFrame:
    """Precision, recall and F1 at each probability that occurs; 0 for a label never present."""
    if present.any():
        precision, recall, thresholds = precision_recall_curve(present, chances)
    else:
        thresholds = np.unique(chances)
        precision = recall = np.zeros(len(thresholds) + 1)
    f1 = 2 * precision * recall / np.maximum(precision + recall, np.finfo(float).tiny)
    columns = {"precision": precision[:-1], "recall": recall[:-1], "f1": f1[:-1]}
    return pd.DataFrame({"threshold": thresholds, **columns})


def _best(curve: pd.DataFrame) -> tuple[float, float]:
    """The best threshold and its F1."""
    best = int(curve["f1"].to_numpy().argmax())
    f1 = float(curve["f1"].iloc[best])
    return (float(curve["threshold"].iloc[best]) if f1 else 0.5), f1


def _on_grid(curve: pd.DataFrame) -> FloatArray:
    """F1 at evenly spaced thresholds; 0 above the highest probability."""
    places = np.searchsorted(curve["threshold"].to_numpy(), _GRID)
    values: FloatArray = np.append(curve["f1"].to_numpy(), 0.0)[places]
    return values
