"""What a classifier predicts, in the form that users get it.

Depends on `predictions` and on what all that predicts shares; needs neither torch nor
scikit-learn.
"""

from __future__ import annotations

from typing import Any, ClassVar

from skbert._arrays import Array
from skbert._classification.predictions import (
    Predictions,
    are_classes_of_columns,
    predictions_of,
)
from skbert._classification.task import MultiLabel, SeveralLabels, SingleLabel
from skbert._estimator.checks import are_labels, are_numbers, are_sorted, is_positive
from skbert._estimator.conformity import level_of
from skbert._estimator.feature_rows import ReadsFeatures
from skbert._estimator.fitted import Learned
from skbert._estimator.predicting import Known, PredictsSets
from skbert._estimator.withholding import check_reject_below

__all__ = ["PredictsLabels"]


class PredictsLabels(PredictsSets, ReadsFeatures):
    """What predicts labels: a fitted classifier, or an exported one."""

    _tasks: ClassVar[tuple[type, ...]] = (SingleLabel, MultiLabel, SeveralLabels)
    classes_ = Learned[Any](are_classes_of_columns, "n_outputs")
    target_names_ = Learned[Array](are_labels, optional=True)
    temperature_ = Learned[float](is_positive, only_says=True)
    conformity_scores_ = Learned[Array](are_sorted, optional=True, of_weights=True)
    thresholds_ = Learned[Array](are_numbers, "n_outputs", task=MultiLabel)

    def predict(self, X: Any, *, reject_below: float | None = None) -> Any:
        """Predict a label per row, an indicator matrix, or a class of each column.

        Parameters
        ----------
        X : array-like of str of shape (n_samples,), or pairs of shape (n_samples, 2)
            The texts.
        reject_below : float or None, default=None
            Probability, from 0 to 1. Rows whose best label is less probable get None instead, in
            an array of objects; ``reject_threshold`` finds one for a share of errors. None
            predicts every row. Not for multi-label targets; of several columns of classes, each
            cell is judged by itself, and there is no ``reject_threshold``.

        Returns
        -------
        y : ndarray of shape (n_samples,), (n_samples, n_classes) or (n_samples, n_columns)
            Predicted labels, or 0 and 1 for multi-label targets. For several columns of classes a
            pandas frame with the names of y, and the index of X if X is of pandas; an array if y
            had no names.

        Raises
        ------
        InputError, InputTypeError
            If X cannot be used, or ``reject_below`` is no probability or is given to a model of
            several labels.
        """
        if reject_below is None:
            return self._predictions(self._state(), X).labels()
        limit = check_reject_below(reject_below)
        return self._predictions(self._state(), X).answers(limit)

    def predict_set(self, X: object, coverage: float = 0.95) -> Any:
        """Predict for each row the labels that hold the right one as often as asked.

        Parameters
        ----------
        X : array-like of str of shape (n_samples,), or pairs of shape (n_samples, 2)
            The texts.
        coverage : float, default=0.95
            Share of rows whose set holds the right label, in (0, 1); for multi-label targets, all
            labels that are right; for several columns of classes, the share in each column.

        Returns
        -------
        sets : ndarray of shape (n_samples,) or (n_samples, n_columns)
            One list of labels per row, the most probable first; for multi-label targets, column
            numbers. A list is empty where no label is probable enough. For several columns of
            classes there is a list in each cell, in a frame where ``predict`` gives one.

        Raises
        ------
        InputError, InputTypeError
            If X or ``coverage`` cannot be used, no row was held out in ``fit``, or too few for
            this coverage.

        Notes
        -----
        A label belongs to the set if its probability is at least that of the right label in all
        but a share ``1 - coverage`` of the rows held out [1]_. These rows say what is probable
        enough, so the sets hold the right label as often as asked whatever the model is worth: a
        better model gives smaller sets. The share is meant over rows like those held out, drawn at
        random, and not for each class. With n rows held out it lies between ``coverage`` and
        ``coverage + 1 / (n + 1)`` on average over held-out and new rows, if the rows held out had
        no other use; the best epoch and the temperature are chosen on them too, which costs
        little. ``conformalize`` measures on rows without any other use.

        With several labels the least probable one that is right counts, as for the outer sets of
        [2]_. Scores are those of the weights that ``fit`` left. Further training replaces them, or
        removes them if it holds out no rows; so does assigning ``model_``. After changes inside of
        ``model_`` call ``conformalize`` again.

        References
        ----------
        .. [1] M. Sadinle, J. Lei and L. Wasserman, "Least Ambiguous Set-Valued Classifiers with
               Bounded Error Levels", JASA 114(525), 2019
        .. [2] M. Cauchois, S. Gupta and J. C. Duchi, "Knowing what You Know: valid and validated
               confidence sets in multiclass and multilabel prediction", JMLR 22(81), 2021

        Examples
        --------
        >>> from skbert import BertClassifier
        >>> from skbert.datasets import load_intents
        >>> X, y = load_intents(return_X_y=True)
        >>> settings = {"epochs": 1, "freeze": "all", "random_state": 0}
        >>> classifier = BertClassifier(validation_fraction=0.2, **settings).fit(X, y)
        >>> texts = ["I forgot my password", "Charged twice, again!"]
        >>> for labels in classifier.predict_set(texts):
        ...     print(labels)
        ['login']
        ['refund', 'payment', 'login']
        """
        fitted = self._state()
        level = level_of(fitted.attributes, coverage)
        return self._predictions(fitted, X).sets(level)

    def predict_proba(self, X: Any) -> Any:
        """Predict the probability of each class; for multi-label targets, of each label by itself.

        Parameters
        ----------
        X : array-like of str of shape (n_samples,), or pairs of shape (n_samples, 2)
            The texts.

        Returns
        -------
        probabilities : ndarray of shape (n_samples, n_classes), or list of such arrays
            Columns in the order of ``classes_``; float32, or float64 with ``precision="float64"``.
            A list with an array for each of several columns of classes.
        """
        return self._predictions(self._state(), X).probabilities()

    def decision_function(self, X: Any) -> Any:
        """Compute the score of each class, its logit.

        Parameters
        ----------
        X : array-like of str of shape (n_samples,), or pairs of shape (n_samples, 2)
            The texts.

        Returns
        -------
        scores : ndarray of shape (n_samples,) or (n_samples, n_classes), or list of such arrays
            For two classes, the logit of the second class minus that of the first. A list with an
            array for each of several columns of classes.
        """
        return self._predictions(self._state(), X).decisions()

    def _predictions(self, fitted: Known, X: Any) -> Predictions:
        """The scores of the rows of X, and what they mean."""
        scores = self._outputs(fitted, self._rows(X, fitted.record))
        return predictions_of(fitted, scores, X)
