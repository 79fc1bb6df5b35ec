"""How far the truth is from predictions, and what a prediction set of some coverage holds.

Split conformal prediction: a fit keeps how far the truth is from what is predicted, for rows that
it held out, and any coverage can be asked for later. Depends on numpy.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from skbert._arrays import Array, FloatArray
from skbert._validation.numbers import check_share
from skbert.exceptions import InputError

__all__ = ["Conformity", "level_of", "measured"]

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


def level_of(attributes: Mapping[str, Any], coverage: float) -> FloatArray:
    """The score up to which predictions belong to a set of this coverage."""
    share = check_share("coverage", coverage, "0.95 for sets that miss one row in twenty")
    scores = measured(attributes, "conformity_scores_", "predict_set")
    return Conformity(scores, attributes.get("conformity_weights_")).level(share)


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
