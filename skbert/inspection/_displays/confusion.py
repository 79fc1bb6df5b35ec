"""ConfusionDisplay: which classes are taken for which, with the texts for which it happened."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import numpy as np
import pandas as pd
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.spatial.distance import squareform
from sklearn.base import is_classifier
from sklearn.metrics import confusion_matrix
from sklearn.utils.multiclass import unique_labels

from skbert._arrays import Array, IntArray
from skbert._validation.numbers import check_count
from skbert._validation.probabilities import check_kinds, labels_of, n_rows
from skbert._validation.tables import check_length
from skbert.exceptions import InputError, InputTypeError
from skbert.inspection._displays.drawing import Display, heat_map, name_ticks, write_cells
from skbert.inspection._displays.rows import row_texts

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage

__all__ = ["ConfusionDisplay"]

_N_EXAMPLES = 3  # texts for each confusion
_FEW = 3  # classes from which on there is an order to choose
_INSTEAD = (
    "A confusion matrix needs one. Give one label: y[:, 0] and predictions[:, 0]; or use "
    "ThresholdDisplay."
)


class ConfusionDisplay(Display):
    """Confusion matrix in which classes that are confused stand side by side.

    Use `from_estimator` or `from_predictions` to draw one. The diagonal, what is right, is grey;
    only confusions are coloured, by their share of the true class.

    Parameters
    ----------
    confusion_matrix : ndarray of shape (n_classes, n_classes)
        Numbers of rows, ``[i, j]`` those of class ``i`` that are predicted as class ``j``.
    display_labels : array-like of shape (n_classes,)
        Names of the classes.
    worst : DataFrame, default=None
        The confusions, as described below.
    max_classes : int, default=30
        Number of classes that are drawn at most, those with the most confusions.

    Attributes
    ----------
    confusion_matrix : ndarray of shape (n_classes, n_classes)
        Numbers of rows, in the order of ``display_labels``.
    display_labels : ndarray of shape (n_classes,)
        The classes; those that are confused are neighbours.
    worst : DataFrame or None
        One row per confusion, the most frequent one first, with the columns ``true``,
        ``predicted``, ``count``, ``share`` (of the rows of the true class) and ``examples`` (lists
        of up to 3 texts; empty lists without X).
    max_classes : int
        Number of classes that are drawn at most.
    im_ : matplotlib AxesImage
        The cells.
    ax_ : matplotlib Axes
        The axes.
    figure_ : matplotlib Figure
        The figure.

    See Also
    --------
    sklearn.metrics.ConfusionMatrixDisplay : The matrix in sorted order, coloured by counts.
    ThresholdDisplay : For several labels per row.

    Notes
    -----
    The order is that of the leaves of an average-linkage clustering, in which two classes are
    close if large shares of one are predicted as the other, arranged so that neighbours are as
    close as possible.

    References
    ----------
    Bar-Joseph, Gifford and Jaakkola 2001, "Fast optimal leaf ordering for hierarchical
    clustering".

    Examples
    --------
    >>> from sklearn.model_selection import train_test_split
    >>> from skbert import BertClassifier
    >>> from skbert.datasets import load_intents
    >>> from skbert.inspection import ConfusionDisplay
    >>> X, y = load_intents(return_X_y=True)
    >>> X_train, X_test, y_train, y_test = train_test_split(X, y, stratify=y, random_state=0)
    >>> classifier = BertClassifier(epochs=1, freeze="all", random_state=0).fit(X_train, y_train)
    >>> display = ConfusionDisplay.from_estimator(classifier, X_test, y_test)
    >>> display.confusion_matrix.shape
    (8, 8)
    >>> display.worst.columns.tolist()
    ['true', 'predicted', 'count', 'share', 'examples']
    """

    im_: AxesImage

    def __init__(
        self, confusion_matrix: Array, display_labels: Array, worst: pd.DataFrame | None = None,
        *, max_classes: int = 30,
    ) -> None:  # fmt: skip
        self.confusion_matrix = np.asarray(confusion_matrix)
        self.display_labels = np.asarray(display_labels)
        self.worst = worst
        check_count(max_classes, "max_classes", 30)
        self.max_classes = max_classes
        n = len(self.display_labels)
        if self.confusion_matrix.shape != (n, n):
            raise InputError(
                f"confusion_matrix has the shape {self.confusion_matrix.shape}, and there are {n} "
                f"display_labels. Give a matrix of shape ({n}, {n})."
            )

    @classmethod
    def from_estimator(
        cls, estimator: object, X: object, y: object, *, max_classes: int = 30,
        ax: Axes | None = None,
    ) -> Self:  # fmt: skip
        """Draw the confusions of a fitted classifier.

        Parameters
        ----------
        estimator : estimator
            A fitted classifier, or a Pipeline that ends with one.
        X : array-like
            Rows in the same form as in ``predict``; the examples are taken from them.
        y : array-like of shape (n_samples,)
            Their true labels.
        max_classes : int, default=30
            Number of classes that are drawn at most, those with the most confusions.
        ax : matplotlib Axes, default=None
            Where to draw. None makes a new figure.

        Returns
        -------
        display : ConfusionDisplay
            The display, drawn.

        Raises
        ------
        InputError, InputTypeError
            If the estimator is no classifier, or X or y cannot be used.
        sklearn.exceptions.NotFittedError
            If the estimator is not fitted.
        """
        cls._require_matplotlib()
        if not is_classifier(estimator):
            raise InputTypeError(
                f"A {type(estimator).__name__} is not a classifier. Give a classifier, or its "
                "predictions to ConfusionDisplay.from_predictions; for entities and answers use "
                "CountsDisplay."
            )
        predicted = estimator.predict(X)  # type: ignore[attr-defined]
        return cls.from_predictions(y, predicted, X, max_classes=max_classes, ax=ax)

    @classmethod
    def from_predictions(
        cls, y_true: object, y_pred: object, X: object = None, *, max_classes: int = 30,
        ax: Axes | None = None,
    ) -> Self:  # fmt: skip
        """Draw the confusions of predictions.

        Parameters
        ----------
        y_true, y_pred : array-like of shape (n_samples,)
            The true and the predicted labels.
        X : array-like, default=None
            The rows that were predicted; examples are taken from them. None gives no examples.
        max_classes : int, default=30
            Number of classes that are drawn at most, those with the most confusions.
        ax : matplotlib Axes, default=None
            Where to draw. None makes a new figure.

        Returns
        -------
        display : ConfusionDisplay
            The display, drawn.

        Raises
        ------
        InputError, InputTypeError
            If y_true, y_pred or X cannot be used, or differ in length.
        """
        cls._require_matplotlib()
        n = n_rows(y_true, "y_true")
        true = labels_of(y_true, n, "y_true", instead=_INSTEAD)
        predicted = labels_of(y_pred, n, "y_pred", instead=_INSTEAD)
        texts = None if X is None else row_texts(X)
        if texts is not None:
            check_length(len(texts), n, "y_true")
        check_kinds(true, predicted, "y_pred")
        classes = unique_labels(true, predicted)
        matrix = confusion_matrix(true, predicted, labels=classes)
        order = _order(matrix)
        worst = _worst(true, predicted, matrix, classes, texts)
        matrix = matrix[np.ix_(order, order)]
        return cls(matrix, classes[order], worst, max_classes=max_classes).plot(ax)

    def _size(self) -> tuple[float, float]:
        side = min(2.8 + 0.3 * min(self.max_classes, len(self.display_labels)), 11.0)
        return side + 0.8, side

    def _draw(self, ax: Axes) -> None:
        drawn = self._most_confused()
        n, n_classes = len(drawn), len(self.display_labels)
        counts = self.confusion_matrix[np.ix_(drawn, drawn)]
        shares = _confusion_shares(self.confusion_matrix)[np.ix_(drawn, drawn)]
        cells = np.where(np.eye(n, dtype=bool), np.nan, shares)
        largest = float(shares.max(initial=0.0)) or 1.0
        self.im_ = heat_map(ax, cells, "confused share of the true class", largest=largest)
        write_cells(
            self.im_, cells, [[f"{each:g}" if each else "" for each in row] for row in counts]
        )
        names = self.display_labels[drawn].tolist()
        name_ticks(ax.xaxis, names)
        name_ticks(ax.yaxis, names)
        ax.set(xlabel="predicted class", ylabel="true class")
        some = f"The {n} of {n_classes} classes with the most confusions"
        ax.set_title("Confusions" if n == n_classes else some)

    def _most_confused(self) -> IntArray:
        """Positions of the classes that are drawn, in order."""
        wrong = self.confusion_matrix - np.diag(np.diag(self.confusion_matrix))
        errors = wrong.sum(axis=0) + wrong.sum(axis=1)
        return np.sort(np.argsort(-errors, kind="stable")[: self.max_classes])


def _confusion_shares(matrix: Array) -> Array:
    """Shares of each true class that are predicted as each other class; 0 on the diagonal."""
    shares: Array = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    np.fill_diagonal(shares, 0.0)
    return shares


def _order(matrix: Array) -> IntArray:
    """An order of the classes in which those that are confused are neighbours."""
    shares = _confusion_shares(matrix)
    likeness = shares + shares.T
    if len(matrix) < _FEW or not likeness.any():
        return np.arange(len(matrix))
    distances = squareform(likeness.max() - likeness, checks=False)
    order: IntArray = leaves_list(linkage(distances, "average", optimal_ordering=True))
    return order


def _worst(
    true: Array, predicted: Array, matrix: Array, classes: Array, texts: list[str] | None
) -> pd.DataFrame:
    """All confusions, the most frequent ones first, with some of their texts."""
    names, shares = classes.tolist(), _confusion_shares(matrix)
    lines = []
    for i, j in np.argwhere(shares > 0).tolist():
        rows = np.flatnonzero((true == classes[i]) & (predicted == classes[j])).tolist()
        lines.append((names[i], names[j], len(rows), shares[i, j], _some(texts, rows)))
    columns = ["true", "predicted", "count", "share", "examples"]
    # Not as pandas' own type of text, which has no lone surrogates.
    found = pd.DataFrame(lines, columns=columns, dtype=object)
    found = found.astype({"count": np.int64, "share": np.float64})
    found = found.sort_values(["count", "share"], ascending=False, kind="stable")
    return found.reset_index(drop=True)


def _some(texts: list[str] | None, rows: list[int]) -> list[str]:
    return [] if texts is None else [texts[row] for row in rows[:_N_EXAMPLES]]
