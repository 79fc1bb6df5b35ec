"""What a choice ranker predicts, in the form that users get it.

Depends on what all that predicts shares; needs neither torch nor scikit-learn.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from skbert._arrays import Array, FloatArray, objects
from skbert._choice.task import Choice
from skbert._estimator.conformity import level_of
from skbert._estimator.predicting import PredictsSets
from skbert._estimator.withholding import check_reject_below, withheld
from skbert._validation.choices import Choices, check_choices
from skbert._validation.columns import FitRecord

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["RanksOptions", "best_options"]


class RanksOptions(PredictsSets):
    """What ranks options: a fitted choice ranker, or an exported one."""

    _tasks: ClassVar[tuple[type, ...]] = (Choice,)

    def predict(self, X: Any, *, reject_below: float | None = None) -> Array:
        """Predict the position of the best option of each row.

        Parameters
        ----------
        X : array-like of (prompt, options) of shape (n_samples, 2), or as in the notes above
            The prompts and their options.
        reject_below : float or None, default=None
            Probability, from 0 to 1. Rows whose best option is less probable get None instead, in
            an array of objects; ``reject_threshold`` finds one for a share of errors. None
            predicts every row.

        Returns
        -------
        y : ndarray of int of shape (n_samples,)
            Positions among the options of each row, counted from 0.
        """
        if reject_below is None:
            return best_options(*self._scored(X))
        limit = check_reject_below(reject_below)
        rows, scores = self._scored(X)
        chances = np.array([np.exp(score).max() for score in scores])
        return withheld(best_options(rows, scores), chances, limit)

    def predict_set(self, X: object, coverage: float = 0.95) -> Array:
        """Predict for each row the options that hold the right one as often as asked.

        Parameters
        ----------
        X : array-like of (prompt, options) of shape (n_samples, 2), or as in the notes above
            The prompts and their options.
        coverage : float, default=0.95
            Share of rows whose set holds the right option, in (0, 1).

        Returns
        -------
        sets : ndarray of shape (n_samples,)
            One list of positions per row, the most probable option first. It is empty where no
            option is probable enough.

        Raises
        ------
        InputError, InputTypeError
            If X or ``coverage`` cannot be used, no row was held out in ``fit``, or too few for
            this coverage.

        See Also
        --------
        BertClassifier.predict_set : What the sets promise, and for which rows.
        """
        level = level_of(self._state().attributes, coverage)
        rows, scores = self._scored(X)
        return objects([
            _within(places, score, level)
            for places, score in zip(rows.places, scores, strict=True)
        ])  # fmt: skip

    def predict_text(self, X: Any) -> Array:
        """Predict the text of the best option of each row.

        Parameters
        ----------
        X : array-like of (prompt, options) of shape (n_samples, 2), or as in the notes above
            The prompts and their options.

        Returns
        -------
        texts : ndarray of str of shape (n_samples,)
            The options as they are in X; the dtype of the array is object.
        """
        rows, scores = self._scored(X)
        texts = np.empty(len(rows), dtype=object)
        texts[:] = [rows.options[i][at] for i, at in enumerate(best_options(rows, scores))]
        return texts

    def predict_proba(self, X: Any) -> Array:
        """Predict the probability of each option of each row.

        Parameters
        ----------
        X : array-like of (prompt, options) of shape (n_samples, 2), or as in the notes above
            The prompts and their options.

        Returns
        -------
        probabilities : ndarray of shape (n_samples, max_options)
            Column i holds the probability of option i, 0 if a row has no such option. Each row
            sums to 1. There are as many columns as the longest list of options in X has entries,
            or as X has columns of options; float32, or float64 with ``precision="float64"``.
        """
        rows, scores = self._scored(X)
        width = max(map(len, rows.options))
        probabilities = np.zeros((len(rows), width), scores[0].dtype)
        for row, (places, score) in enumerate(zip(rows.places, scores, strict=True)):
            probabilities[row, list(places.values())] = np.exp(score)
        return probabilities

    def rank(self, X: Any) -> pd.DataFrame:
        """Rank the options of each row from the best to the worst.

        Parameters
        ----------
        X : array-like of (prompt, options) of shape (n_samples, 2), or as in the notes above
            The prompts and their options.

        Returns
        -------
        ranking : DataFrame
            One line per option, each row's best first, with the columns ``row`` and ``option``
            (positions, counted from 0), ``rank`` (counted from 1), ``text`` and ``probability``.
            An option that a row repeats has only one line.
        """
        import pandas as pd

        rows, scores = self._scored(X)
        flat, counts = np.concatenate([*scores]), [len(score) for score in scores]
        owner = np.repeat(np.arange(len(rows)), counts)
        order = np.lexsort((-flat, owner))  # a stable sort: of equals the first is best
        ranking = pd.DataFrame({
            "row": owner,
            "rank": 0,
            "option": [position for places in rows.places for position in places.values()],
            "text": [text for places in rows.places for text in places],
            "probability": np.exp(flat),
        })  # fmt: skip
        ranking = ranking.take(order).reset_index(drop=True)
        ranking["rank"] = ranking.groupby("row").cumcount() + 1
        return ranking

    def _rows(self, X: Any, record: FitRecord | None) -> Any:
        return check_choices(
            X,
            columns=self.text_columns,
            missing=self.missing,
            fitted=record,
            estimator_name=self._estimator_name,
        )

    def _scored(self, X: Any) -> tuple[Choices, Array]:
        """The rows of X, and the log-probabilities of their options."""
        fitted = self._state()
        rows = self._rows(X, fitted.record)
        return rows, self._outputs(fitted, rows)


def _within(places: Mapping[str, int], score: FloatArray, level: FloatArray) -> list[int]:
    """Positions of the options whose probability is at least ``1 - level``, best first."""
    distances = 1 - np.exp(score).astype(np.float64)
    positions = list(places.values())
    order = np.argsort(distances, kind="stable").tolist()
    return [positions[at] for at in order if distances[at] <= level]


def best_options(rows: Choices, scores: Array) -> Array:
    """Position of the best option of each row, the first of equals."""
    best = [
        list(places.values())[score.argmax()]
        for places, score in zip(rows.places, scores, strict=True)
    ]
    return np.array(best, np.int64)
