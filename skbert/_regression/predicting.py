"""What a regressor predicts, in the form that users get it.

Depends on what all that predicts shares; needs neither torch nor scikit-learn.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from skbert._arrays import Array
from skbert._estimator.checks import are_labels, are_numbers, are_sorted, is_count
from skbert._estimator.conformity import level_of
from skbert._estimator.feature_rows import ReadsFeatures
from skbert._estimator.fitted import Learned
from skbert._estimator.predicting import Known, PredictsSets
from skbert._regression.task import Numbers

__all__ = ["PredictsNumbers", "tells_apart"]


_MOST_STEP = 1e-3  # from one number to the next at the mean of y, in standard deviations


def tells_apart(dtype: Any, learned: Mapping[str, Any]) -> bool:
    """Whether numbers of a type are much finer than what the targets of ``fit`` differ by."""
    steps = np.abs(learned["mean_"]) * np.finfo(dtype).eps
    return bool((steps <= _MOST_STEP * learned["scale_"]).all())


class PredictsNumbers(PredictsSets, ReadsFeatures):
    """What predicts numbers: a fitted regressor, or an exported one."""

    _tasks: ClassVar[tuple[type, ...]] = (Numbers,)
    n_outputs_ = Learned[int](is_count, "n_outputs")
    mean_ = Learned[Array](are_numbers, "n_outputs")
    scale_ = Learned[Array](are_numbers, "n_outputs")
    target_names_ = Learned[Array](are_labels, "n_outputs", optional=True)
    conformity_scores_ = Learned[Array](
        are_sorted, "n_scores", "n_outputs", optional=True, of_weights=True
    )

    def predict(self, X: Any) -> Array:
        """Predict a number per row, or several.

        Parameters
        ----------
        X : array-like of str of shape (n_samples,), or pairs of shape (n_samples, 2)
            The texts.

        Returns
        -------
        y : ndarray of shape (n_samples,) or (n_samples, n_outputs)
            Predicted numbers; float32, or float64 with ``precision="float64"`` and where float32
            would round away what distinguishes the targets of ``fit``, as of seconds since 1970.
        """
        fitted = self._state()
        return self._numbers(fitted, self._rows(X, fitted.record))

    def predict_set(self, X: object, coverage: float = 0.95) -> Array:
        """Predict for each row an interval that holds the true number as often as asked.

        Parameters
        ----------
        X : array-like of str of shape (n_samples,), or pairs of shape (n_samples, 2)
            The texts.
        coverage : float, default=0.95
            Share of rows whose interval holds the number, in (0, 1); with several numbers per
            row, for each of them by itself.

        Returns
        -------
        intervals : ndarray of shape (n_samples, 2) or (n_samples, n_outputs, 2)
            The lower and the upper end, which belong to the interval; float64.

        Raises
        ------
        InputError, InputTypeError
            If X or ``coverage`` cannot be used, no row was held out in ``fit``, or too few for
            this coverage.

        Notes
        -----
        The ends lie on both sides of the prediction, at the distance that a share ``coverage`` of
        the rows held out does not exceed [1]_; so all intervals of an output are equally long. The
        share is meant over rows like those held out, drawn at random. With n rows held out it lies
        between ``coverage`` and ``coverage + 1 / (n + 1)`` on average over held-out and new rows,
        if the rows held out had no other use; the best epoch is chosen on them too, which costs
        little. ``conformalize`` measures on rows without any other use.

        Scores are those of the weights that ``fit`` left. Further training replaces them, or
        removes them if it holds out no rows; so does assigning ``model_``. After changes inside of
        ``model_`` call ``conformalize`` again.

        References
        ----------
        .. [1] J. Lei, M. G'Sell, A. Rinaldo, R. J. Tibshirani and L. Wasserman,
               "Distribution-Free Predictive Inference for Regression", JASA 113(523), 2018
        """
        fitted = self._state()
        level = level_of(fitted.attributes, coverage)
        numbers = self._numbers(fitted, self._rows(X, fitted.record)).astype(np.float64)
        distance = level[0] if numbers.ndim == 1 else level
        return np.stack([numbers - distance, numbers + distance], axis=-1)

    def _numbers(self, fitted: Known, rows: Any) -> Array:
        """The predicted numbers of rows."""
        standard = self._outputs(fitted, rows)
        limits, learned = np.finfo(standard.dtype), fitted.attributes
        with np.errstate(over="ignore"):
            numbers = np.clip(
                standard * learned["scale_"] + learned["mean_"], limits.min, limits.max
            )
        if tells_apart(standard.dtype, learned):
            numbers = numbers.astype(standard.dtype)
        return np.asarray(numbers[:, 0] if learned["n_outputs_"] == 1 else numbers)
