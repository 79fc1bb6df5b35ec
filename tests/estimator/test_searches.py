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
from support.jobs import JOBS

from skbert import BertTransformer
from skbert.testing._samples import Sample, assert_same, listing, objects, sample_of

CASES = {  # by a name: the estimator, the kind of its data, and a scorer
    f"{name} {kind}": (job.estimator, kind, scoring)
    for name, job in JOBS.items()
    for kind, scoring in job.kinds.items()
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


def cross_validated(estimator: Any, grid: Any, scoring: Any, X: Any, y: Any) -> dict[str, Any]:
    """Scores of three folds, chosen from ``cv=3``."""
    return {"scores": cross_val_score(estimator, X, y, cv=3, scoring=scoring, error_score="raise")}


def predicted(estimator: Any, grid: Any, scoring: Any, X: Any, y: Any) -> dict[str, Any]:
    """A prediction for each row."""
    return {"predictions": listing(cross_val_predict(estimator, X, y, cv=FOLDS))}


def searched(estimator: Any, grid: Any, scoring: Any, X: Any, y: Any) -> dict[str, Any]:
    """Scores of each candidate, and what the best one predicts."""
    search = GridSearchCV(estimator, grid, cv=FOLDS, scoring=scoring, error_score="raise")
    search.fit(X, y)
    return {"scores": search.cv_results_["mean_test_score"], "best": listing(search.predict(X))}


def halved(estimator: Any, grid: Any, scoring: Any, X: Any, y: Any) -> dict[str, Any]:
    """The same of two candidates on 16 rows, and of the better one on 32."""
    search = HalvingGridSearchCV(
        estimator, grid, factor=2, min_resources=16, random_state=0, cv=FOLDS, scoring=scoring,
        error_score="raise",
    )  # fmt: skip
    search.fit(X, y)
    return {"scores": search.cv_results_["mean_test_score"], "best": listing(search.predict(X))}


# Each way, and how many scores it gives.
WAYS = {cross_validated: 3, predicted: 0, searched: 2, halved: 3}
# Each kind in each container, each kind each way, and each container each way.
COMBINATIONS = [
    (case, form, list(WAYS)[(row + column) % len(WAYS)])
    for row, case in enumerate(CASES)
    for column, form in enumerate(FORMS)
]


@functools.cache
def rows_of(kind: str) -> Sample:
    """Thirty-two rows, so that three folds and a share of them have every class."""
    few = sample_of(kind, None, None)
    y = few.y or ["good", "bad"] * 4
    return Sample(kind, few.X * 4, y * 4, few.columns)


def estimator_of(case: str, model: Path) -> tuple[Any, dict[str, Any]]:
    """An estimator that learns something in a blink, and a grid of two candidates."""
    make, kind, _ = CASES[case]
    settings: dict[str, Any] = {"model": model, "device": "cpu", "precision": "float32"}
    if kind == "features":
        pipeline = make_pipeline(BertTransformer(**settings), LogisticRegression())
        return pipeline, {"berttransformer__pooling": ["mean", "cls"]}
    estimator = make(random_state=0, epochs=1, **settings)
    return estimator, {"learning_rate": [1e-4, 1e-2]}


def results(case: str, way: Any, model: Path, X: Any) -> dict[str, Any]:
    """Scores and predictions of one way."""
    (_, kind, scoring), (estimator, grid) = CASES[case], estimator_of(case, model)
    found: dict[str, Any] = way(estimator, grid, scoring, X, rows_of(kind).y)
    return found


@pytest.mark.long  # some 270 fits; skbert.testing searches with each kind, too
@pytest.mark.filterwarnings("ignore::skbert.exceptions.SkbertWarning")
@pytest.mark.parametrize(("case", "form", "way"), COMBINATIONS)
def test_containers_search_alike(case: str, form: str, way: Any, tiny_model: Path) -> None:
    sample = rows_of(CASES[case][1])
    columns = {name: sample.column(at) for at, name in enumerate(sample.columns)}
    expected = results(case, way, tiny_model, sample.X)
    scores = expected.get("scores", [])
    assert len(scores) == WAYS[way]
    assert np.isfinite(scores).all()
    assert all(len(rows) == len(sample) for name, rows in expected.items() if name != "scores")
    assert_same(results(case, way, tiny_model, FORMS[form](columns, sample.X)), expected, form)


def test_every_kind_and_every_container_is_searched_each_way() -> None:
    assert {(case, way) for case, _, way in COMBINATIONS} == {(c, w) for c in CASES for w in WAYS}
    assert {(form, way) for _, form, way in COMBINATIONS} == {(f, w) for f in FORMS for w in WAYS}
