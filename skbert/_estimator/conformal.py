"""ConformalEstimator: sets and intervals that hold the truth as often as asked.

A fit keeps how far the truth is from what is predicted, for rows that it held out; `conformity`
says what follows. Depends on the course of a fit; knows no task by name.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from skbert._estimator.fine_tuning import BertEstimator
from skbert._estimator.guidance import requires_y
from skbert._estimator.predicting import PredictsSets
from skbert._validation.targets import as_sequence
from skbert.exceptions import InputError

__all__ = ["ConformalEstimator"]


@dataclass(eq=False, repr=False, kw_only=True)
class ConformalEstimator(PredictsSets, BertEstimator):
    """Base of the estimators that predict sets; use one of its subclasses.

    A subclass says in the plan of a fit how its scores are computed.
    """

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
        if plan.conform is not None:
            kept = np.arange(len(rows)) if plan.weights is None else np.flatnonzero(plan.weights)
            if not len(kept):
                raise InputError(
                    "All rows have a weight of 0 by class_weight, so there is nothing to measure. "
                    "Give rows of other classes, too."
                )
            measured = plan.conform(self._outputs(fitted, rows)[kept], kept)
            self._fitted = replace(fitted, attributes={**fitted.attributes, **measured})
        return self
