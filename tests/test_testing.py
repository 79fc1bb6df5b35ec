"""`skbert.testing`: every estimator passes, and for every check there is one that does not."""

from __future__ import annotations

import functools
import os
import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, TransformerMixin
from sklearn.utils.multiclass import unique_labels
from sklearn.utils.validation import check_is_fitted

from skbert import (
    BertChoiceRanker,
    BertClassifier,
    BertRegressor,
    BertSpanExtractor,
    BertTokenTagger,
    BertTransformer,
)
from skbert._check import FitRecord, check_texts
from skbert._check_y import check_labels, check_sample_weight
from skbert._testing_samples import KINDS
from skbert.exceptions import InputError
from skbert.testing import check_text_estimator, text_estimator_checks

ESTIMATORS = {
    "choices": BertChoiceRanker,
    "classes": BertClassifier,
    "features": BertTransformer,
    "labels": BertClassifier,
    "numbers": BertRegressor,
    "pairs": BertClassifier,
    "spans": BertSpanExtractor,
    "tags": BertTokenTagger,
}
FEWEST = 25
ONE_OF_EACH = [
    (kind, name)
    for kind, estimator in ESTIMATORS.items()
    for name, _ in text_estimator_checks(estimator(), kind=kind)
]


@functools.cache
def checks_of(kind: str, model: Path) -> dict[str, Callable[[], None]]:
    settings: dict[str, Any] = {"model": model, "device": "cpu", "precision": "float32"}
    if kind != "features":
        settings |= {"epochs": 2, "random_state": 0}
    return dict(text_estimator_checks(ESTIMATORS[kind](**settings), kind=kind))


@pytest.mark.filterwarnings("ignore::skbert.exceptions.SkbertWarning")
@pytest.mark.parametrize(("kind", "name"), ONE_OF_EACH)
def test_every_estimator_passes(kind: str, name: str, tiny_model: Path) -> None:
    checks_of(kind, tiny_model)[name]()


def test_there_are_many_for_each() -> None:
    assert set(ESTIMATORS) == set(KINDS)
    for kind in KINDS:
        assert sum(each == kind for each, _ in ONE_OF_EACH) >= FEWEST
    assert len(set(ONE_OF_EACH)) == len(ONE_OF_EACH)


# --- an estimator that knows no BERT -------------------------------------------------------------


class Obedient(BaseEstimator):
    """Counts letters, and does all that is asked of an estimator on texts."""

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def read(self, X: Any, fitting: bool) -> np.ndarray:
        record = None if fitting else FitRecord(*self.record_)
        texts = check_texts(X, fitted=record, estimator_name=type(self).__name__)
        if fitting:
            self.record_ = (texts.names, texts.n_columns)
            self.n_features_in_ = texts.n_columns
            vars(self).pop("feature_names_in_", None)
            if texts.names:
                self.feature_names_in_ = np.array(texts.names, object)
        whole = [" ".join(row) for row in zip(*filter(None, [texts.first, texts.second]))]  # noqa: B905
        return np.array([[text.count(letter) for letter in "aeiou"] for text in whole], float)

    def forget(self) -> None:
        for name in [name for name in vars(self) if name.endswith("_")]:
            delattr(self, name)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.input_tags.string = True
        return tags


class Classifier(ClassifierMixin, Obedient):
    """Gives the label of the nearest row."""

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Any:
        self.forget()
        points = self.read(X, fitting=True)
        labels = check_labels(y, len(points), estimator_name="Classifier")
        weight = check_sample_weight(sample_weight, len(points))
        self.weight_ = np.ones(len(points)) if weight is None else weight
        self.classes_ = unique_labels(labels)
        self.points_, self.codes_ = points, np.searchsorted(self.classes_, labels)
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        points = self.read(X, fitting=False)
        far = np.abs(points[:, None] - self.points_[None]).sum(axis=2)
        near = np.exp(-far) * self.weight_ + 1e-9
        votes = np.stack([near[:, self.codes_ == code].sum(axis=1)
                          for code in range(len(self.classes_))], axis=1)  # fmt: skip
        return votes / votes.sum(axis=1, keepdims=True)

    def predict(self, X: Any) -> np.ndarray:
        return self.classes_[self.predict_proba(X).argmax(axis=1)]
