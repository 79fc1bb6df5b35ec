"""Cross-validation and searches with every estimator, on every container that they can split."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import (
    GridSearchCV,
    HalvingGridSearchCV,
    KFold,
    cross_val_predict,
    cross_val_score,
)
from sklearn.pipeline import make_pipeline

from skbert import (
    BertChoiceRanker,
    BertClassifier,
    BertRegressor,
    BertSpanExtractor,
    BertTokenTagger,
    BertTransformer,
)
from skbert.metrics import get_scorer
from skbert.testing._samples import Sample, assert_same, listing, objects, sample_of

CASES = {
    "choices": (BertChoiceRanker, get_scorer("mean_reciprocal_rank")),
    "classes": (BertClassifier, "accuracy"),
    "features": (BertTransformer, "accuracy"),
    "labels": (BertClassifier, "f1_micro"),
    "numbers": (BertRegressor, "neg_mean_absolute_error"),
    "pairs": (BertClassifier, "accuracy"),
    "spans": (BertSpanExtractor, get_scorer("squad_f1")),
    "tags": (BertTokenTagger, get_scorer("entity_f1")),
}
FORMS = {
    "object array": lambda columns, rows: objects(rows),
    "Series": lambda columns, rows: pd.Series(objects(rows), index=range(32)[::-1]),
    "pandas": lambda columns, rows: pd.DataFrame(
        {name: objects(cells) for name, cells in columns.items()}, index=range(32)[::-1]
    ),
    "polars": lambda columns, rows: pl.DataFrame(columns),
}
FOLDS = KFold(2, shuffle=True, random_state=0)


@functools.cache
def rows_of(kind: str) -> Sample:
    """Thirty-two rows, so that five folds and a share of them have every class."""
    few = sample_of(kind, None, None)
    y = few.y or ["good", "bad"] * 4
    return Sample(kind, few.X * 4, y * 4, few.columns)


def estimator_of(kind: str, model: Path) -> tuple[Any, dict[str, Any]]:
    """An estimator that learns something in a blink, and a grid of two candidates."""
    settings: dict[str, Any] = {"model": model, "device": "cpu", "precision": "float32"}
    if kind == "features":
        pipeline = make_pipeline(BertTransformer(**settings), LogisticRegression())
        return pipeline, {"berttransformer__pooling": ["mean", "cls"]}
    estimator = CASES[kind][0](random_state=0, epochs=1, **settings)
    return estimator, {"learning_rate": [1e-4, 1e-2]}


def everything(kind: str, model: Path, X: Any) -> dict[str, Any]:
    """Scores and predictions of all four ways."""
    (estimator, grid), scoring = estimator_of(kind, model), CASES[kind][1]
    y = rows_of(kind).y
    common = {"cv": FOLDS, "scoring": scoring, "error_score": "raise"}
    search = GridSearchCV(estimator, grid, **common).fit(X, y)
    halving = HalvingGridSearchCV(
        estimator, grid, factor=2, min_resources=16, random_state=0, **common
    ).fit(X, y)
    folds = cross_val_score(estimator, X, y, cv=5, scoring=scoring, error_score="raise")
    return {
        "cross_val_score": folds,
        "cross_val_predict": listing(cross_val_predict(estimator, X, y, cv=FOLDS)),
        "grid": search.cv_results_["mean_test_score"],
        "grid predicts": listing(search.predict(X)),
        "halving": halving.cv_results_["mean_test_score"],
        "halving predicts": listing(halving.predict(X)),
    }


@functools.cache
def from_lists(kind: str, model: Path) -> dict[str, Any]:
    return everything(kind, model, rows_of(kind).X)


@pytest.mark.filterwarnings("ignore::skbert.exceptions.SkbertWarning")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", CASES)
def test_containers_search_alike(kind: str, form: str, tiny_model: Path) -> None:
    sample = rows_of(kind)
    columns = {name: sample.column(at) for at, name in enumerate(sample.columns)}
    expected = from_lists(kind, tiny_model)
    assert len(expected["cross_val_score"]) == 5
    assert len(expected["halving"]) == 3  # two candidates on 16 rows, the better one on 32
    assert all(np.isfinite(expected[way]).all() for way in ("cross_val_score", "grid", "halving"))
    assert len(expected["cross_val_predict"]) == len(sample)
    assert_same(everything(kind, tiny_model, FORMS[form](columns, sample.X)), expected, form)
