"""Estimators that need no fit and no model, for tests of what is shown of predictions."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin

__all__ = ["Fixed", "Lengths"]


class Fixed(ClassifierMixin, BaseEstimator):
    """A classifier that answers with the same probabilities for every text."""

    def __init__(self, classes: Any = ("a", "b", "c"), chances: Any = (0.7, 0.2, 0.1)) -> None:
        self.classes = classes
        self.chances = chances
        self.classes_ = np.array(classes)

    def fit(self, X: Any, y: Any) -> Fixed:
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        return np.tile(self.chances, (len(X), 1))

    def predict(self, X: Any) -> np.ndarray:
        return self.classes_[self.predict_proba(X).argmax(axis=1)]


class Lengths(RegressorMixin, BaseEstimator):
    """A regressor that says how long texts are, as one number or two."""

    def __init__(self, n_outputs: int = 1) -> None:
        self.n_outputs = n_outputs
        self.fitted_ = True

    def fit(self, X: Any, y: Any) -> Lengths:
        return self

    def predict(self, X: Any) -> np.ndarray:
        lengths = np.array([len(text) for text in X], float)
        return lengths if self.n_outputs == 1 else np.stack([lengths, -lengths], axis=1)
