"""Soft labels: rows of probabilities as y, in every method that reads y."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from torch.nn import functional as F

from skbert import BertClassifier
from skbert.exceptions import InputError, InputTypeError

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Sentiment

NAMES = ["good", "bad", "odd"]  # not in the order of classes_
LEARNS = {"pooling": "mean", "epochs": 3, "learning_rate": 3e-3, "head_learning_rate": 1e-2}


def classifier(model: Path, **params: Any) -> BertClassifier:
    plain = {"epochs": 1, "device": "cpu", "precision": "float32", "random_state": 0}
    return BertClassifier(model, **{**plain, **params})


def soft(n: int, names: list[str] = NAMES) -> pd.DataFrame:
    """Probabilities that differ from row to row, most of them on the first two classes."""
    rng = np.random.default_rng(0)
    shares = rng.dirichlet([2.0, 2.0, 0.2], size=n)
    return pd.DataFrame(shares, columns=names)


def hard(labels: list[str]) -> pd.DataFrame:
    return pd.DataFrame({name: [label == name for label in labels] for name in NAMES}, dtype=float)


def learned(fitted: BertClassifier) -> tuple[list[Any], list[dict[str, float]]]:
    """All weights as lists, and the history without its times."""
    weights = [tensor.tolist() for tensor in fitted.model_.state_dict().values()]
    return weights, [{k: v for k, v in each.items() if k != "seconds"} for each in fitted.history_]


# --- one-hot rows ------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:The columns of y are read as")
@pytest.mark.parametrize(
    "params",
    [
        {},
        {"class_weight": "balanced", "label_smoothing": 0.1},
        {"class_weight": {"odd": 3.0}, "validation_fraction": 0.25, "calibrate": True},
    ],
)
def test_one_hot_rows_are_labels(
    params: dict[str, Any], tiny_model: Path, sentiment: Sentiment
) -> None:
    X, y = sentiment.texts, [*sentiment.labels[:-3], "odd", "odd", "odd"]
    weight = np.linspace(0.5, 2, len(X))
    by_name = classifier(tiny_model, **params).fit(X, y, weight)
    for given in (hard(y), hard(y).to_numpy()):
        fitted = classifier(tiny_model, **params).fit(X, given, weight, classes=NAMES)
        assert fitted.classes_.tolist() == by_name.classes_.tolist() == sorted(NAMES)
        assert learned(fitted) == learned(by_name)
        assert fitted.temperature_ == by_name.temperature_


def test_a_matrix_of_zeros_and_ones_is_an_indicator_without_classes(
    tiny_model: Path, sentiment: Sentiment
) -> None:
    fitted = classifier(tiny_model).fit(sentiment.texts, hard(sentiment.labels))
    assert hasattr(fitted, "thresholds_")
    assert fitted.classes_.tolist() == [0, 1, 2]


# --- what is learned ---------------------------------------------------------------------------


@pytest.mark.parametrize("class_weight", [None, "balanced", {"bad": 3.0, "odd": 0.5}])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.3])
def test_a_row_is_each_of_its_labels_with_the_weight_of_its_probability(
    class_weight: Any, label_smoothing: float, tiny_model_no_dropout: Path, sentiment: Sentiment
) -> None:
    X, y = sentiment.texts[:12], soft(12)
    params = {"class_weight": class_weight, "label_smoothing": label_smoothing, "batch_size": 64,
              "precision": "float64", "epochs": 3, "head_init": "random"}  # fmt: skip
    weight = np.linspace(0.5, 2, 12)
    one = classifier(tiny_model_no_dropout, **params).fit(X, y, weight)
    rows = [
        (text, name, w * share)
        for text, shares, w in zip(X, y.to_numpy(), weight, strict=True)
        for name, share in zip(NAMES, shares, strict=True)
    ]
    texts, labels, weights = map(list, zip(*rows, strict=True))
    split = classifier(tiny_model_no_dropout, **params).fit(texts, labels, weights)
    np.testing.assert_allclose(one.predict_proba(X), split.predict_proba(X), rtol=1e-6)
    np.testing.assert_allclose(one.history_[-1]["loss"], split.history_[-1]["loss"], rtol=1e-6)


def test_the_loss_is_the_cross_entropy_with_the_probabilities(
    tiny_model_no_dropout: Path, sentiment: Sentiment
) -> None:
    X, y = sentiment.texts, soft(40)
    params = {"validation_fraction": 0.5, "learning_rate": 1e-12, "head_learning_rate": 1e-12}
    fitted = classifier(tiny_model_no_dropout, **params).fit(X, y)
    columns = y[fitted.classes_.tolist()].to_numpy(copy=True)
    logits = torch.from_numpy(fitted.decision_function(X))
    losses = F.cross_entropy(logits, torch.from_numpy(columns).float(), reduction="none").numpy()
    held_out = fitted.history_[0]["validation_loss"]
    halves = losses.mean() * 2  # of the rows trained on and of those held out
    assert fitted.history_[0]["loss"] + held_out == pytest.approx(halves, rel=0.02)
    best = columns.argmax(axis=1) == logits.numpy().argmax(axis=1)
    assert fitted.score(X, y) == best.mean()


@pytest.mark.filterwarnings("ignore:The columns of y are read as")
@pytest.mark.parametrize("kind", ["frame", "polars", "array", "float32", "lists"])
def test_the_container_does_not_matter(kind: str, tiny_model: Path, sentiment: Sentiment) -> None:
    X, y = sentiment.texts, soft(40)
    expected = classifier(tiny_model).fit(X, y).predict_proba(X)
    given = {
        "frame": y[sorted(NAMES)],
        "polars": pl.from_pandas(y),
        "array": y.to_numpy(),
        "float32": y.to_numpy(dtype=np.float32),
        "lists": y.to_numpy().tolist(),
    }[kind]
    named = {} if kind in ("frame", "polars") else {"classes": NAMES}
    fitted = classifier(tiny_model).fit(X, given, **named)
    np.testing.assert_allclose(fitted.predict_proba(X), expected, rtol=1e-4, atol=1e-6)


def test_columns_without_names_are_numbered(tiny_model: Path, sentiment: Sentiment) -> None:
    fitted = classifier(tiny_model).fit(sentiment.texts, soft(40).to_numpy())
    assert fitted.classes_.tolist() == [0, 1, 2]
    assert set(fitted.predict(sentiment.texts)) <= {0, 1, 2}


def test_rows_within_the_tolerance_are_divided_by_their_sum(
    tiny_model: Path, sentiment: Sentiment
) -> None:
    X, y = sentiment.texts, soft(40)
    fitted = classifier(tiny_model).fit(X, y * 1.0009)
    np.testing.assert_allclose(
        fitted.predict_proba(X), classifier(tiny_model).fit(X, y).predict_proba(X), rtol=1e-4
    )


# --- score, continuing, and scikit-learn -------------------------------------------------------


def test_score_takes_the_most_probable_label(tiny_model: Path, sentiment: Sentiment) -> None:
    X, y = sentiment.texts, soft(40)
    fitted = classifier(tiny_model, **LEARNS).fit(X, y)
    best = np.array(NAMES)[y.to_numpy().argmax(axis=1)]
    expected = np.mean(fitted.predict(X) == best)
    weight = np.arange(40.0)
    assert fitted.score(X, best) == expected
    assert fitted.score(X, y) == expected
    assert fitted.score(X, y[sorted(NAMES)].to_numpy()) == expected  # in the order of classes_
    weighted = np.average(fitted.predict(X) == best, weights=weight)
    assert fitted.score(X, y, sample_weight=weight) == pytest.approx(weighted)
    assert fitted.score(X, hard(best.tolist())) == expected  # one label per row is predicted
    with pytest.raises(InputError, match=r"2 columns of probabilities.*3 classes.*'bad'"):
        fitted.score(X[:1], [[0.5, 0.5]])


def test_a_fit_goes_on_with_soft_labels(tiny_model: Path, sentiment: Sentiment) -> None:
    X, y = sentiment.texts, soft(40)
    fitted = classifier(tiny_model, warm_start=True).fit(X, sentiment.labels)
    assert fitted.fit(X, y).classes_.tolist() == sorted(NAMES)
    fitted.partial_fit(X, y[sorted(NAMES)].to_numpy())
    fitted.partial_fit(X[:1], [[0.0, 1.0]], classes=["bad", "new"])
    assert fitted.classes_.tolist() == ["bad", "good", "new", "odd"]
    with pytest.raises(InputError, match=r"3 columns of probabilities without names.*4 classes"):
        fitted.partial_fit(X, y.to_numpy())
    with pytest.raises(InputTypeError, match="mixes str and numbers"):
        fitted.partial_fit(X, y.to_numpy(), classes=[0, 1, 2])


def test_pipelines_searches_and_copies(
    tiny_model: Path, sentiment: Sentiment, tmp_path: Path
) -> None:
    X, y = np.array(sentiment.texts), soft(40)
    own = classifier(tiny_model)
    pipeline = make_pipeline("passthrough", own).fit(X, y)
    search = GridSearchCV(own, {"label_smoothing": [0.0, 0.1]}, cv=2).fit(X, y)
    assert len(cross_val_score(own, X, y, cv=2)) == 2
    for fitted in (pipeline[-1], search.best_estimator_, clone(own).fit(X, y)):
        assert fitted.classes_.tolist() == sorted(NAMES)
    pipeline[-1].save(tmp_path / "saved")
    for copy in (
        BertClassifier.load(tmp_path / "saved"),
        pickle.loads(pickle.dumps(pipeline[-1])),
    ):
        np.testing.assert_array_equal(copy.predict_proba(X), pipeline.predict_proba(X))


def test_held_out_rows_are_as_probable_labels_are(tiny_model: Path, sentiment: Sentiment) -> None:
    # Nine rows in ten are probably good: a stratified tenth has one that is not.
    shares = np.where(np.arange(40)[:, None] % 10 > 0, [0.9, 0.1], [0.2, 0.8])
    y = pd.DataFrame(shares, columns=["good", "bad"])
    rows = range(40)
    plan = classifier(tiny_model)._prepare_targets(y, rows, 64, None, None)
    assert plan.strata.tolist() == [int(row % 10 > 0) for row in rows]


@pytest.mark.filterwarnings("ignore:The columns of y are read as")
def test_rows_beside_may_be_soft(tiny_model: Path, sentiment: Sentiment) -> None:
    X, y = sentiment.texts, soft(40)
    given = {"X_val": X[30:], "y_val": y[30:]}
    for first in (y[:30], [*sentiment.labels[:29], "odd"]):
        fitted = classifier(tiny_model).fit(X[:30], first, **given)
        assert fitted.history_[0]["validation_score"] == fitted.score(X[30:], y[30:])
    arrays = {"X_val": X[30:], "y_val": y[30:].to_numpy(), "classes": NAMES}
    fitted = classifier(tiny_model).fit(X[:30], y[:30].to_numpy(), **arrays)
    assert fitted.history_[0]["validation_score"] == fitted.score(X[30:], y[30:])
    with pytest.raises(InputError, match=r"y_val holds 1 class.*first in row 0.*'new'"):
        classifier(tiny_model).fit(
            X[:30], y[:30], X_val=X[30:], y_val=soft(10, ["bad", "good", "new"])
        )


# --- bad input ---------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:The columns of y are read as")
def test_a_further_batch_is_checked(tiny_model: Path, sentiment: Sentiment) -> None:
    shares = soft(40).to_numpy(copy=True)
    shares[3] = 0.5
    with pytest.raises(InputError, match=r"row 3 sums to 1\.5"):
        classifier(tiny_model).partial_fit(sentiment.texts, shares, classes=NAMES)


def test_thresholds_are_for_indicators(tiny_model: Path, sentiment: Sentiment) -> None:
    tuned = classifier(tiny_model, tune_thresholds=True, validation_fraction=0.2)
    with pytest.raises(InputError, match="multi-label targets, and y has one label per row"):
        tuned.fit(sentiment.texts, soft(40))
