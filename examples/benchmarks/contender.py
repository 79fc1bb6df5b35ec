"""skbert as a contender: one fit on the benchmarks' rows, timed like the plain script's."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from plain import model_folder
from tasks import Kind, Rows

if TYPE_CHECKING:
    from skbert._estimator.fine_tuning import BertEstimator

WARM_UP_ROWS = 32
# By kind of target; the classifier takes the others.
ESTIMATORS = {
    "regression": "BertRegressor",
    "token_classification": "BertTokenTagger",
    "question_answering": "BertSpanExtractor",
    "multiple_choice": "BertChoiceRanker",
}


def build(kind: Kind, seed: int | None, **settings: object) -> BertEstimator:
    """Make skbert's estimator for this kind of target, on the benchmarks' encoder.

    Parameters
    ----------
    kind : str
        transformers' name of the problem.
    seed : int or None
        Seed of every random draw.
    **settings : object
        Parameters of the estimator that differ from its defaults.

    Returns
    -------
    BertEstimator
        An unfitted estimator for that task.
    """
    # Imported here, so that the plain script does not load it.
    import skbert

    estimator = getattr(skbert, ESTIMATORS.get(kind, "BertClassifier"))()
    return estimator.set_params(**{"model": model_folder(), "random_state": seed, **settings})


def parameters(kind: Kind, **settings: object) -> dict[str, object]:
    """All parameters of a fit for its record, defaults included."""
    everything = build(kind, None, **settings).get_params()
    return {k: v for k, v in everything.items() if k not in ("model", "random_state")}


def fit(
    train: Rows, kind: Kind, seed: int | None, **settings: object
) -> tuple[BertEstimator, float]:
    """Fit on the rows, and time it: opening the model, tokenising, probe and training."""
    estimator = build(kind, seed, **settings)
    start = time.perf_counter()
    estimator.fit(train.X, train.y)
    return estimator, time.perf_counter() - start


def fit_predict(
    train: Rows, test: Rows, kind: Kind, seed: int, **settings: object
) -> tuple[np.ndarray, float]:
    """Fit, then predict the test rows (untimed): classes, scores or each label's probability."""
    estimator, seconds = fit(train, kind, seed, **settings)
    method = "predict_proba" if kind == "multi_label_classification" else "predict"
    return np.asarray(getattr(estimator, method)(test.X)), seconds


def first_rows(rows: Rows) -> Rows:
    """A few rows, for an untimed fit that takes the time of imports and first-time set-up."""
    return rows.take(np.arange(min(len(rows), WARM_UP_ROWS)))


def append_line(path: Path | None, record: dict[str, object]) -> None:
    """Append one record as a JSON line; write nothing if the path is None."""
    if path is None:
        return
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record, ensure_ascii=False) + "\n")
