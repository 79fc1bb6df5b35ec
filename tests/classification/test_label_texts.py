"""Texts of labels as rows to train on: beside rows of X, for classes without any, and alone."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from skbert import BertClassifier
from skbert._classification.label_texts import LabelTexts, label_rows, read_label_texts
from skbert._classification.task import MultiLabel, SingleLabel, mean_factors
from skbert._estimator import fine_tuning
from skbert._estimator.plan import TrainingPlan
from skbert.datasets import load_intents
from skbert.exceptions import InputError, InputTypeError, TruncationWarning

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Sentiment

TEXTS = {"good": "great and nice", "bad": ["awful and poor", "i hate it"], "late": "it is late"}
LEARNS = {"pooling": "mean", "epochs": 8, "learning_rate": 3e-3, "head_learning_rate": 1e-2}


def classifier(model: Path, **params: Any) -> BertClassifier:
    plain = {"epochs": 1, "device": "cpu", "precision": "float32", "random_state": 0}
    return BertClassifier(model, **{**plain, **params})


def assert_same(first: Any, second: Any, X: list[str]) -> None:
    assert first.classes_.tolist() == second.classes_.tolist()
    np.testing.assert_array_equal(first.predict_proba(X), second.predict_proba(X))


# --- beside rows ---------------------------------------------------------------------------------


def test_a_class_without_rows_is_predicted(tiny_model: Path, sentiment: Sentiment) -> None:
    X, y = sentiment
    fitted = classifier(tiny_model, label_texts=TEXTS, **LEARNS).fit(X, y)
    assert fitted.classes_.tolist() == ["bad", "good", "late"]
    assert fitted.predict(["it is late"]).tolist() == ["late"]
    assert fitted.score(X, y) == 1.0
    assert fitted.n_truncated_ == 0


def test_labels_without_a_text_learn_from_their_rows(
    tiny_model: Path, sentiment: Sentiment
) -> None:
    X, y = sentiment
    fitted = classifier(tiny_model, label_texts={"late": "it is late"}, **LEARNS).fit(X, y)
    assert fitted.predict(["it is late"]).tolist() == ["late"]
    assert fitted.score(X, y) == 1.0


def test_true_and_a_list_are_the_words_of_labels(tiny_model: Path, sentiment: Sentiment) -> None:
    X = sentiment.texts
    y = [{"good": "very_good", "bad": "not-so.good"}[label] for label in sentiment.labels]
    words = {"not-so.good": "not so good", "very_good": "very good"}
    fits = [
        classifier(tiny_model, label_texts=given).fit(X, y)
        for given in (words, True, sorted(words), np.array(sorted(words)))
    ]
    for fitted in fits[1:]:
        assert_same(fits[0], fitted, X)
    plain = classifier(tiny_model).fit(X, y)
    assert (plain.predict_proba(X) != fits[0].predict_proba(X)).any()


def test_the_texts_are_rows_that_are_not_held_out(
    tiny_model: Path, sentiment: Sentiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = []
    monkeypatch.setattr(fine_tuning, "probe", lambda *given: runs.append(given))
    X, y = sentiment
    for params in ({}, {"validation_fraction": 0.5}):
        classifier(tiny_model, label_texts=TEXTS, **params).fit(X, y)
    for (_, _, items, _, n_texts, _), n_rows in zip(runs, (40, 20), strict=True):
        assert n_texts == 4
        assert len(items) == n_rows + 4
        assert len(set(items.samples.tolist())) == n_rows + 4
        assert items.targets[-4:].tolist() == [1, 0, 0, 2]
        # A text counts as a row of its class, or where there is none, as all of another class.
        np.testing.assert_allclose(items.weights, [1.0] * (n_rows + 3) + [20.0])


def test_a_class_of_texts_may_be_validated_on(tiny_model: Path, sentiment: Sentiment) -> None:
    X, y = sentiment
    X_val, y_val = ["it is late", "it is good"], ["late", "good"]
    fitted = classifier(tiny_model, label_texts=TEXTS).fit(X, y, X_val=X_val, y_val=y_val)
    assert 0 <= fitted.history_[0]["validation_score"] <= 1
    with pytest.raises(InputError, match="late"):
        classifier(tiny_model).fit(X, y, X_val=X_val, y_val=y_val)


def test_long_texts_of_labels_are_cut_with_a_warning(
    tiny_model: Path, sentiment: Sentiment
) -> None:
    with pytest.warns(TruncationWarning, match="1 of 2 rows of label_texts"):
        fitted = classifier(tiny_model, label_texts={"good": "good " * 300, "bad": "bad"}).fit(
            *sentiment
        )
    assert fitted.n_truncated_ == 0  # which counts rows of X


def test_columns_of_an_indicator(tiny_model: Path, sentiment: Sentiment) -> None:
    X, labels = sentiment
    y = np.array([[label == "good", label == "bad", 0] for label in labels], dtype=int)
    texts = {2: "it is late", 0: "great and nice"}
    fitted = classifier(tiny_model, label_texts=texts, **LEARNS).fit(X, y)
    late = fitted.predict_proba(["it is late"])[0]
    assert late.argmax() == 2
    plain = classifier(tiny_model, **LEARNS).fit(X, y)
    assert late[2] > plain.predict_proba(["it is late"])[0, 2]
    assert fitted.predict(X)[:, :2].tolist() == y[:, :2].tolist()


def test_later_fits_train_on_the_texts_again(tiny_model: Path, sentiment: Sentiment) -> None:
    X, y = sentiment
    fitted = classifier(tiny_model, label_texts=TEXTS, warm_start=True, **LEARNS).fit(X[:8], y[:8])
    fitted.fit(X, y)
    for _ in range(3):
        fitted.partial_fit(X[:4], y[:4])
    assert fitted.classes_.tolist() == ["bad", "good", "late"]
    assert fitted.predict(["it is late"]).tolist() == ["late"]
    fitted.set_params(label_texts={**TEXTS, "lost": "where was the order"}, epochs=16).fit(X, y)
    assert fitted.predict(["it is late", "where was the order"]).tolist() == ["late", "lost"]


# --- without rows --------------------------------------------------------------------------------


@pytest.mark.parametrize("texts", [TEXTS, ["good", "bad"], {3: "great", 4: "awful"}])
def test_without_rows_the_texts_are_the_rows(texts: Any, tiny_model: Path) -> None:
    params = {"device": "cpu", "precision": "float32", "random_state": 0, **LEARNS}
    fitted = BertClassifier.from_label_texts(texts, model=tiny_model, **params)
    labels, rows = read_label_texts(texts)
    assert fitted.classes_.tolist() == sorted(set(texts))
    assert fitted.predict(rows).tolist() == labels.tolist()
    assert fitted.label_texts is texts
    assert (fitted.n_iter_, len(fitted.history_), fitted.n_truncated_) == (8, 8, 0)
    assert clone(fitted).get_params() == fitted.get_params()


def test_it_is_a_fit_on_the_texts(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # But for the lengths of vectors, which the probe makes equal.
    labels, rows = read_label_texts(TEXTS)
    monkeypatch.setattr(fine_tuning, "probe", lambda *given: None)
    params = {"epochs": 1, "device": "cpu", "precision": "float32", "random_state": 0}
    fitted = BertClassifier.from_label_texts(TEXTS, model=tiny_model, **params)
    assert_same(fitted, classifier(tiny_model).fit(rows, labels), rows)


def test_it_goes_on_with_rows(tiny_model: Path, sentiment: Sentiment, tmp_path: Path) -> None:
    X, y = sentiment
    params = {"model": tiny_model, "random_state": 0, "device": "cpu", **LEARNS}
    fitted = BertClassifier.from_label_texts(TEXTS, **params)
    fitted.save(tmp_path / "saved")
    for copied in (BertClassifier.load(tmp_path / "saved"), pickle.loads(pickle.dumps(fitted))):
        assert_same(fitted, copied, X)
        assert copied.label_texts == TEXTS
    anew = BertClassifier(label_texts=TEXTS, **params).fit(X, y)
    assert_same(fitted.fit(X, y), anew, X)
    assert fitted.partial_fit(X, y).score(X, y) == 1.0


@pytest.mark.parametrize(
    ("texts", "params", "error", "words"),
    [
        (True, {}, InputTypeError, "is True, of type bool.*label_texts={'refund'"),
        (None, {}, InputTypeError, "is None, of type NoneType"),
        ({}, {}, InputError, "label_texts is empty"),
        ({"good": ""}, {}, InputError, r"label_texts\['good'\] is empty"),
        (["good"], {"validation_fraction": 0.1}, InputError, "validation_fraction=0.1 holds out"),
        (["good"], {"patience": 2}, InputError, "patience=2"),
        (["good"], {"calibrate": True}, InputError, "calibrate=True"),
        (["good"], {"head_init": "random"}, InputError, "head_init='random'"),
        (["good"], {"text_columns": ["a", "b"]}, InputError, "text_columns"),
        (["good"], {"epoch": 2}, InputTypeError, "Did you mean 'epochs'"),
        (["good"], {"epochs": 0}, ValueError, "epochs"),
    ],
)
def test_what_it_refuses(
    texts: Any, params: dict[str, Any], error: type[Exception], words: str, tiny_model: Path
) -> None:
    with pytest.raises(error, match=words):
        BertClassifier.from_label_texts(texts, model=tiny_model, **params)


@pytest.mark.parametrize("X", [[], np.array([], dtype=str)])
def test_a_fit_without_rows_names_it(X: Any, tiny_model: Path, sentiment: Sentiment) -> None:
    with pytest.raises(InputError, match=r"0 sample\(s\).*BertClassifier.from_label_texts\("):
        classifier(tiny_model).fit(X, [])
    fitted = classifier(tiny_model).fit(*sentiment)
    with pytest.raises(InputError, match=r"0 sample\(s\)") as refused:
        fitted.predict(X)
    assert "from_label_texts" not in str(refused.value)


# --- with scikit-learn ---------------------------------------------------------------------------


def test_searches_and_pipelines(tiny_model: Path, sentiment: Sentiment) -> None:
    X, y = sentiment
    pipeline = make_pipeline(FunctionTransformer(), classifier(tiny_model))
    grid = {"bertclassifier__label_texts": [None, True, TEXTS]}
    search = GridSearchCV(pipeline, grid, cv=2, error_score="raise").fit(X, y)
    assert len(search.cv_results_["params"]) == 3
    pipeline.set_params(bertclassifier__label_texts=TEXTS).fit(X, y)
    assert pipeline.classes_.tolist() == ["bad", "good", "late"]


# --- weights -------------------------------------------------------------------------------------


def test_rows_of_weight_0_are_left_out(tiny_model: Path, sentiment: Sentiment) -> None:
    X, y = sentiment
    more = ["it is late", "the book is late"]
    with_texts = classifier(tiny_model, label_texts=TEXTS)
    weighted = clone(with_texts).fit(
        [*X, *more], [*y, "late", "late"], sample_weight=[1.0] * len(X) + [0.0, 0.0]
    )
    assert_same(weighted, with_texts.fit(X, y), X)


def plan(targets: np.ndarray, n_classes: int, weights: Any = None) -> TrainingPlan:
    task = (SingleLabel if targets.ndim == 1 else MultiLabel)(n_classes, 8)
    return TrainingPlan(task, targets, {"classes_": np.arange(n_classes)}, None, weights=weights)


def test_weights_of_texts() -> None:
    texts = LabelTexts(np.array([0, 1, 2, 2, 3]), ["a", "b", "c", "d", "e"])
    codes = np.array([0, 0, 0, 1])
    rows = label_rows(texts, plan(codes, 4), None, are_all=False)
    assert rows.weights.tolist() == [1, 1, 1, 1, 2]  # a class with rows has 2 on average
    assert rows.targets.tolist() == [0, 1, 2, 2, 3]
    weighted = plan(codes, 4, np.array([1.0, 2.0, 3.0, 0.0]))
    rows = label_rows(texts, weighted, {2: 3.0, 3: 0.0, 0: 9.0}, are_all=False)
    # A row of 0 has 6 / 3, all of its rows 6 / 9 without their class weight; 1 has no row.
    np.testing.assert_allclose(rows.weights, [2, 2 / 3, 1, 1, 0])
    even = label_rows(texts, plan(codes, 4, np.full(4, 10.0)), dict.fromkeys(range(4), 10.0),
                      are_all=False)  # fmt: skip
    assert even.weights.tolist() == [10, 10, 10, 10, 20]  # ten times the first ones
    both = plan(np.array([[1.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]]), 4, np.array([1.0, 3.0]))
    rows = label_rows(texts, both, {2: 3.0}, are_all=False)
    assert rows.weights.tolist() == [2, 1, 1.25, 1.25, 2.5]
    np.testing.assert_array_equal(rows.targets, np.eye(4)[[0, 1, 2, 2, 3]])
    pairs = np.eye(3)[[0, 1] * 50]
    for factors, expected in (((1.0, 1.0, 10.0), [50, 50, 500]), ((10.0, 1.0, 1.0), [50] * 3)):
        task = MultiLabel(3, 8, positive_weights=factors)
        known = plan(pairs, 3, mean_factors(task, pairs))._replace(task=task)
        rows = label_rows(LabelTexts(np.array([2]), ["c"]), known, None, are_all=False)
        shares = np.where([0, 0, 1], factors, 1.0) / mean_factors(task, np.eye(3)[[2]])
        np.testing.assert_allclose(rows.weights * shares, expected)
    nothing = label_rows(texts, plan(np.zeros((2, 4)), 4), None, are_all=False)
    assert nothing.weights.tolist() == [1, 1, 0.5, 0.5, 1]


# --- what it is worth ----------------------------------------------------------------------------


@pytest.mark.long
def test_it_helps_with_few_rows(minilm: Path) -> None:
    X, y = load_intents(return_X_y=True)
    few = [np.flatnonzero(y == label)[0] for label in np.unique(y)]
    params = {"model": minilm, "random_state": 0}
    scores = [
        BertClassifier.from_label_texts(np.unique(y).tolist(), **params).score(X[::3], y[::3]),
        *(
            BertClassifier(label_texts=texts, **params).fit(X[few], y[few]).score(X[::3], y[::3])
            for texts in (None, True)
        ),
    ]
    assert scores[0] > 0.55
    assert scores[2] > scores[1] + 0.05
