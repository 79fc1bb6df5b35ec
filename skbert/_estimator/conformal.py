"""ConformalEstimator: sets and intervals that hold the truth as often as asked.

Split conformal prediction: a fit keeps how far the truth is from what is predicted, for rows that
it held out, and any coverage can be asked for later. Depends on the course of a fit; knows no
task by name.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import numpy as np

from skbert._arrays import Array, FloatArray
from skbert._estimator.checks import are_sorted
from skbert._estimator.fine_tuning import BertEstimator
from skbert._estimator.fitted import Fitted, Learned, apart_from_weights
from skbert._estimator.guidance import requires_y
from skbert._validation.numbers import check_share
from skbert._validation.targets import as_sequence
from skbert.exceptions import InputError

__all__ = ["ConformalEstimator", "Conformity", "measured"]

_ROUNDING = 1e-9  # of sums of weights


class Conformity(NamedTuple):
    """How far the truth is from what is predicted, in rows that were not trained on.

    A weight is the share of a score in its row, where a row has several.
    """

    scores: FloatArray  # (n,) or (n, n_outputs), ascending
    weights: FloatArray | None = None  # (n,)

    @classmethod
    def of_rows(cls, scores: Iterable[FloatArray]) -> Conformity:
        """Several scores for each row, each with the same share; a row without any has a 0."""
        rows = [row if len(row) else np.zeros(1) for row in scores]
        flat = np.concatenate(rows)
        shares = np.concatenate([np.full(len(row), 1 / len(row)) for row in rows])
        order = np.argsort(flat, kind="stable")
        return cls(flat[order], shares[order])

    def attributes(self) -> dict[str, FloatArray]:
        """The scores as an estimator keeps them."""
        kept: dict[str, FloatArray] = {
            "conformity_scores_": np.sort(self.scores.astype(np.float64), axis=0)
        }
        return kept if self.weights is None else kept | {"conformity_weights_": self.weights}

    @property
    def n_rows(self) -> int:
        """Number of rows that have a score."""
        return len(self.scores) if self.weights is None else round(float(self.weights.sum()))

    def level(self, coverage: float) -> FloatArray:
        """The score that a new row exceeds with a probability of at most ``1 - coverage``.

        With one score per row it is the ``ceil((n + 1) * coverage)``-th of the n scores, a number
        per output. With several, it is the lowest for which the expected share of scores above it
        in a new row is at most ``1 - coverage`` (conformal risk control).
        """
        n = self.n_rows
        reached = np.arange(1, n + 1) if self.weights is None else np.cumsum(self.weights)
        place = int(np.searchsorted(reached, (n + 1) * coverage - _ROUNDING))
        if place >= len(self.scores):
            fewest = math.ceil(coverage / (1 - coverage) - _ROUNDING)
            raise InputError(
                f"coverage={coverage} needs at least {fewest} rows with known y that were not "
                f"trained on, and there are {n}. Hold out more rows, or ask for a coverage of at "
                f"most {math.floor(1000 * n / (n + 1)) / 1000}."
            )
        return np.asarray(self.scores[place])


@dataclass(eq=False, repr=False, kw_only=True)
class ConformalEstimator(BertEstimator):
    """Base of the estimators that predict sets; use one of its subclasses.

    A subclass says in the plan of a fit how its scores are computed.
    """

    conformity_scores_ = Learned[Array](are_sorted, "n_scores", optional=True, of_weights=True)

    @requires_y
    def conformalize(self, X: object, y: object) -> Self:
        """Measure on rows that were not trained on how far predictions are from the truth.

        ``fit`` does so on the rows that it holds out. This is for a model that held out none, was
        opened by ``from_pretrained`` or was changed since, and for rows that played no part in
        choosing the weights either.

        Parameters
        ----------
        X : array-like
            Rows in the form of ``fit``, not used in it.
        y : array-like
            What is right for these rows, in the form of ``fit``.

        Returns
        -------
        self : estimator
            The estimator, whose weights stay as they are.

        Raises
        ------
        InputError, InputTypeError
            If X or y cannot be used, or y has classes that the estimator does not know.
        """
        fitted = self._state()
        rows = self._rows(X, fitted.record)
        length = fitted.task.max_length
        plan = self._prepare_targets(as_sequence(y), rows, length, fitted, None)
        if plan.task.head() != fitted.task.head():
            raise InputError(
                "y has labels that the estimator was not fitted on, so no set of predictions can "
                "hold them. Leave these rows out, or fit anew with rows of all labels."
            )
        attributes = dict(apart_from_weights(type(self), fitted.attributes))
        if plan.conform is not None:
            outputs = self._outputs(fitted, rows)
            attributes |= plan.conform(outputs, np.arange(len(rows)))
        self._fitted = replace(fitted, attributes=attributes)
        return self

    def _level(self, fitted: Fitted, coverage: float) -> FloatArray:
        """The score up to which predictions belong to a set of this coverage."""
        share = check_share("coverage", coverage, "0.95 for sets that miss one row in twenty")
        scores = measured(fitted.attributes, "conformity_scores_", "predict_set")
        return Conformity(scores, fitted.attributes.get("conformity_weights_")).level(share)


def measured(attributes: Mapping[str, Any], name: str, method: str) -> Array:
    """What was measured on rows that were not trained on; an error where nothing was."""
    if name not in attributes:
        raise InputError(
            f"{method} needs rows with known y that were not trained on, and nothing was measured "
            "on such rows: the last fit held out none, or the model was changed since. Set "
            "validation_fraction, for example to 0.2, and fit again, or call conformalize(X, y) "
            "with other rows."
        )
    values: Array = attributes[name]
    return values
