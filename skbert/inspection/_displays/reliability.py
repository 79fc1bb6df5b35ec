"""ReliabilityDisplay: whether a classifier is right as often as its probabilities say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import pandas as pd

from skbert.inspection._displays.drawing import COLOURS, Display, panels
from skbert.inspection._displays.rows import class_probabilities
from skbert.metrics._calibration import error_of_bins, predictions_of, reliability_bins

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["ReliabilityDisplay"]

_INSTEAD = (
    "Look at one label at a time: ReliabilityDisplay.from_predictions(y[:, 0], "
    "np.stack([1 - p[:, 0], p[:, 0]], axis=1), [0, 1]), with p = predict_proba(X)."
)


class ReliabilityDisplay(Display):
    """Share of right predictions against the probability of the predicted class, with counts.

    Use `from_estimator` or `from_predictions` to draw one. Predictions are put in bins by the
    probability of their class. Below the diagonal a classifier is right less often than it says.

    Parameters
    ----------
    bins : DataFrame
        One row per bin, as described below.

    Attributes
    ----------
    bins : DataFrame
        One row per bin, with the columns ``lower`` (exclusive) and ``upper`` (inclusive),
        ``count``, ``confidence`` (mean probability of the predicted class) and ``accuracy`` (share
        of right predictions), both NaN in empty bins.
    expected_calibration_error : float
        Mean of the absolute difference of ``confidence`` and ``accuracy``, weighted by ``count``.
    axes_ : dict of str to matplotlib Axes
        The panels ``"accuracy"`` and ``"count"``.
    ax_ : matplotlib Axes
        The axes that the panels lie in.
    figure_ : matplotlib Figure
        The figure.

    See Also
    --------
    skbert.BertClassifier : ``calibrate=True`` fits a temperature on held-out rows.
    skbert.metrics.calibration_error : The error alone.
    sklearn.calibration.CalibrationDisplay : The same for one of two classes.

    References
    ----------
    Guo et al. 2017, "On calibration of modern neural networks", sections 2 and 5; Naeini, Cooper
    and Hauskrecht 2015, "Obtaining well calibrated probabilities using Bayesian binning".

    Examples
    --------
    >>> from skbert.inspection import ReliabilityDisplay
    >>> y_true = ["a", "b", "b", "b"]
    >>> y_proba = [[0.9, 0.1], [0.7, 0.3], [0.1, 0.9], [0.3, 0.7]]
    >>> display = ReliabilityDisplay.from_predictions(y_true, y_proba, ["a", "b"], n_bins=2)
    >>> round(display.expected_calibration_error, 3)
    0.05
    """

    axes_: dict[str, Axes]

    def __init__(self, bins: pd.DataFrame) -> None:
        self.bins = bins
        self.expected_calibration_error = error_of_bins(bins)

    @classmethod
    def from_estimator(
        cls, estimator: object, X: object, y: object, *, n_bins: int = 10, ax: Axes | None = None
    ) -> Self:
        """Draw the reliability of a fitted classifier.

        Parameters
        ----------
        estimator : estimator
            A fitted classifier with ``predict_proba``, or a Pipeline that ends with one.
        X : array-like
            Rows in the same form as in ``predict_proba``, not used in ``fit``.
        y : array-like of shape (n_samples,)
            Their true labels; a label that ``fit`` has not seen counts as an error.
        n_bins : int, default=10
            Number of bins, all equally wide.
        ax : matplotlib Axes, default=None
            Where to draw; the panels share its place. None makes a new figure.

        Returns
        -------
        display : ReliabilityDisplay
            The display, drawn.

        Raises
        ------
        InputError, InputTypeError
            If the estimator gives no probabilities of classes, or X or y cannot be used.
        sklearn.exceptions.NotFittedError
            If the estimator is not fitted.
        """
        cls._require_matplotlib()
        chances, classes = class_probabilities(estimator, X, cls.__name__)
        return cls.from_predictions(y, chances, classes, n_bins=n_bins, ax=ax)

    @classmethod
    def from_predictions(
        cls, y_true: object, y_proba: object, classes: object, *, n_bins: int = 10,
        ax: Axes | None = None,
    ) -> Self:  # fmt: skip
        """Draw the reliability of probabilities.

        Parameters
        ----------
        y_true : array-like of shape (n_samples,)
            The true labels; one that is not among the classes counts as an error.
        y_proba : array-like of shape (n_samples, n_classes)
            The probabilities of the classes; each row sums to 1.
        classes : array-like of shape (n_classes,)
            The labels of the columns of ``y_proba``, as in ``classes_``.
        n_bins : int, default=10
            Number of bins, all equally wide.
        ax : matplotlib Axes, default=None
            Where to draw; the panels share its place. None makes a new figure.

        Returns
        -------
        display : ReliabilityDisplay
            The display, drawn.

        Raises
        ------
        InputError, InputTypeError
            If y_true, y_proba or the classes cannot be used, or differ in length.
        """
        cls._require_matplotlib()
        predictions = predictions_of(y_true, y_proba, classes, instead=_INSTEAD)
        return cls(reliability_bins(*predictions, n_bins)).plot(ax)

    def _size(self) -> tuple[float, float]:
        return 5.4, 5.6

    def _draw(self, ax: Axes) -> None:
        top, bottom = panels(ax, [0.72, 0.28])
        self.axes_ = {"accuracy": top, "count": bottom}
        known = self.bins[self.bins["count"] > 0]
        said, right = known["confidence"], known["accuracy"]
        top.plot([0, 1], [0, 1], "--", color="0.5", label="as often right as it says")
        top.vlines(said, said, right, color=COLOURS[1], linewidth=3, label="difference")
        top.plot(said, right, "o-", color=COLOURS[0], label="this classifier")
        top.set(ylabel="share of right predictions", xlim=(0, 1), ylim=(0, 1.02))
        top.legend(fontsize=8)
        widths = self.bins["upper"] - self.bins["lower"]
        bottom.bar(
            self.bins["lower"], self.bins["count"], widths, align="edge", color="0.75",
            edgecolor="black", linewidth=0.6,
        )  # fmt: skip
        bottom.set(xlabel="probability of the predicted class", ylabel="number of\npredictions")
        ax.set_title(f"Expected calibration error {self.expected_calibration_error:.3f}")
