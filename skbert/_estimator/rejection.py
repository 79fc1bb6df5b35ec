"""RejectingEstimator: predictions that are withheld where the best probability is low.

Depends on scipy and on `conformity`; knows no task by name.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.stats import beta

from skbert._arrays import Array, BoolArray, FloatArray
from skbert._estimator.calibration import CalibratedEstimator
from skbert._estimator.checks import are_confidences
from skbert._estimator.conformity import measured
from skbert._estimator.fitted import Learned
from skbert._validation.numbers import check_share
from skbert.exceptions import InputError

__all__ = ["RejectingEstimator"]


@dataclass(eq=False, repr=False, kw_only=True)
class RejectingEstimator(CalibratedEstimator):
    """Base of the estimators that may refuse to predict a row; use one of its subclasses."""

    held_out_confidences_ = Learned[Array](are_confidences, optional=True, of_weights=True)

    def reject_threshold(self, max_error: float = 0.05, *, confidence: float = 0.95) -> float:
        """Return a low ``reject_below`` of ``predict`` that keeps errors rare.

        Parameters
        ----------
        max_error : float, default=0.05
            Largest share of errors among the rows that are answered, in (0, 1).
        confidence : float, default=0.95
            Probability that the share is that small in new rows, in (0, 1).

        Returns
        -------
        threshold : float
            In [0, 1]; 0.0 if every row may be answered.

        Raises
        ------
        InputError
            If there is no such threshold, or no row was held out in ``fit``.

        Notes
        -----
        Thresholds are tried on the rows held out in ``fit``, or given to ``conformalize``, by
        bisection as in [1]_. One is accepted if the upper limit of Clopper and Pearson [2]_ for
        the share of errors is at most ``max_error``. Each limit has the confidence that all of
        them together need. Few rows prove little: with the defaults at least 99 answers are
        needed, all of them right.

        References
        ----------
        .. [1] Y. Geifman and R. El-Yaniv, "Selective Classification for Deep Neural Networks",
               NeurIPS 2017, algorithm 1
        .. [2] C. J. Clopper and E. S. Pearson, "The Use of Confidence or Fiducial Limits
               Illustrated in the Case of the Binomial", Biometrika 26(4), 1934
        """
        most = check_share("max_error", max_error, "0.05 for at most one error in twenty answers")
        sure = check_share("confidence", confidence, "0.95")
        attributes = self._state().attributes
        if "conformity_scores_" in attributes and "held_out_confidences_" not in attributes:
            raise InputError(
                "reject_threshold is for one label per row, but the estimator was fitted on "
                "several. Labels of an indicator matrix have thresholds of their own, "
                "thresholds_; for columns of classes fit an estimator for each."
            )
        table = measured(attributes, "held_out_confidences_", "reject_threshold")
        threshold, bound = _lowest_threshold(table[:, 0], table[:, 1] == 0, most, sure)
        if bound > most:
            raise InputError(
                f"No threshold keeps the share of errors at max_error={most} with "
                f"confidence={sure}: the {len(table)} rows that were not trained on prove at best "
                f"{bound:.3f}. Allow a larger max_error, or hold out more rows."
            )
        return threshold


def _lowest_threshold(
    chances: FloatArray, is_wrong: BoolArray, most: float, sure: float
) -> tuple[float, float]:
    """The lowest threshold found whose bound is at most ``most``, and the lowest bound of all."""
    order = np.argsort(chances)
    chances, is_wrong = chances[order], is_wrong[order]
    steps = math.ceil(math.log2(max(2, len(order)))) + 1
    risk = (1 - sure) / steps  # shared by all that are tried
    low, high, found, least = 0, len(order) - 1, 1.0, 1.0
    place = 0  # first, whether every row may be answered
    for _ in range(steps):
        threshold = float(chances[place]) if place else 0.0
        answered = chances >= threshold
        n, wrong = int(answered.sum()), int(is_wrong[answered].sum())
        bound = float(beta.ppf(1 - risk, wrong + 1, n - wrong)) if wrong < n else 1.0
        least = min(least, bound)
        if bound <= most:
            found, high = threshold, place
        else:
            low = place
        place = math.ceil((low + high) / 2)
    return found, least
