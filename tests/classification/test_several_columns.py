"""Several columns of classes as y: one encoder, and a block of outputs for each column."""

from __future__ import annotations

import json
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from scipy.special import softmax
from sklearn.base import clone
from sklearn.exceptions import DataConversionWarning
from sklearn.model_selection import GridSearchCV, KFold, cross_val_predict, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils import get_tags
from support.items import make_items
from torch.nn import functional as F

import skbert
from skbert import BertClassifier
from skbert._classification.predictions import check_columns
from skbert._classification.task import SeveralLabels
from skbert._core.batches import collate
from skbert._core.text.tokens import Ragged
from skbert.exceptions import InputError, InputTypeError, ModelError
from skbert.inspection import (
    ConfusionDisplay,
    ReliabilityDisplay,
    attributions,
    label_issues,
    report,
    show,
    worst_errors,
)

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Sentiment

CPU = torch.device("cpu")
LEARNS = {"pooling": "mean", "epochs": 5, "learning_rate": 3e-3, "head_learning_rate": 1e-2}


def classifier(model: Path, **params: Any) -> BertClassifier:
    plain = {"epochs": 1, "device": "cpu", "precision": "float32", "random_state": 0}
    return BertClassifier(model, **{**plain, **params})


def columns(labels: list[str]) -> pd.DataFrame:
    """Three columns: one of two classes, one of three, and one of numbers."""
    places = np.arange(len(labels))
    return pd.DataFrame({
        "mood": labels,
        "start": np.array(["the", "great", "awful"])[np.where(places % 4 < 2, 0, places % 4 - 1)],
        "stars": np.where(np.array(labels) == "good", 5, 1),
    })  # fmt: skip


# --- the task ----------------------------------------------------------------------------------


def some_items(codes: np.ndarray) -> Any:
    return make_items([3] * len(codes), targets=codes)


@pytest.mark.parametrize("weights", [None, (1.0, 2.0, 0.5, 1.5, 3.0)])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_loss_is_the_sum_over_the_columns(
    weights: tuple[float, ...] | None, smoothing: float
) -> None:
    codes = np.array([[0, 2], [1, 0], [1, 1]])
    task = SeveralLabels(5, 16, label_smoothing=smoothing, sizes=(2, 3), class_weights=weights)
    items = some_items(codes)
    means = np.array(weights or (1.0,) * 5)[codes + np.array([0, 2])].mean(
        axis=1
    )  # as a plan does
    batch = collate(items.weighted(means), np.arange(3), CPU, torch.float32)
    logits = torch.from_numpy(np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32))
    loss, weight = task.loss(logits, batch)
    expected = total = torch.zeros(())
    factors = weights or (1.0,) * 5
    for row, each in enumerate(codes):
        for at, (part, code) in enumerate(
            zip((logits[row, :2], logits[row, 2:]), each, strict=True)
        ):
            factor = factors[2 * at + code] * float(items.weights[row])
            target = torch.tensor(int(code))
            expected = expected + factor * F.cross_entropy(part, target, label_smoothing=smoothing)
            total = total + factor
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(weight, total)


def test_windows_of_a_text_are_averaged_column_by_column() -> None:
    items = make_items([3, 3, 3], samples=[0, 0, 1])
    scores = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)
    task = SeveralLabels(5, 16, sizes=(2, 3))
    decoded = task.decode(Ragged.of(scores, np.ones(3, int)), items)
    np.testing.assert_array_equal(decoded[1], scores[2])
    for part in (slice(2), slice(2, 5)):
        mean = softmax(scores[:2, part], axis=1).mean(axis=0)
        np.testing.assert_allclose(softmax(decoded[0, part]), mean, rtol=1e-5)


@pytest.mark.parametrize(
    "settings", [{"sizes": (2, 2)}, {"sizes": (5, 0)}, {"sizes": (2, 3), "class_weights": (1.0,)}]
)
def test_sizes_that_are_not_those_of_the_outputs(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="sizes="):
        SeveralLabels(5, 16, **settings)


# --- what comes back ---------------------------------------------------------------------------


def test_every_method_answers_for_each_column(tiny_model: Path, sentiment: Sentiment) -> None:
    X, y = sentiment.texts, columns(sentiment.labels)
    fitted = classifier(tiny_model, **LEARNS).fit(X, y)
    assert [each.tolist() for each in fitted.classes_] == [
        ["bad", "good"], ["awful", "great", "the"], [1, 5],
    ]  # fmt: skip
    assert fitted.target_names_.tolist() == ["mood", "start", "stars"]
    predicted = fitted.predict(X)
    pd.testing.assert_frame_equal(predicted, y, check_dtype=False)
    chances, scores = fitted.predict_proba(X), fitted.decision_function(X)
    assert [each.shape for each in chances] == [(40, 2), (40, 3), (40, 2)]
    assert [each.shape for each in scores] == [(40,), (40, 3), (40,)]
    for at, name in enumerate(y):
        np.testing.assert_allclose(chances[at].sum(axis=1), 1, rtol=1e-5)
        best = fitted.classes_[at][chances[at].argmax(axis=1)]
        assert best.tolist() == predicted[name].tolist()
    np.testing.assert_allclose(softmax(scores[1], axis=1), chances[1], rtol=1e-5)
    np.testing.assert_array_equal(scores[0] > 0, chances[0][:, 1] > 0.5)


def test_columns_differ_in_what_they_learn(tiny_model: Path, sentiment: Sentiment) -> None:
    X, y = sentiment.texts, columns(sentiment.labels)
    wrong = y.assign(start=["the", "great"] * 20)
    fitted = classifier(tiny_model, **LEARNS, validation_fraction=0.25).fit(X, y)
    right = (fitted.predict(X) == wrong).to_numpy()
    assert fitted.score(X, wrong) == pytest.approx(right.mean())
    weight = np.arange(40.0)
    assert fitted.score(X, wrong, weight) == pytest.approx(
        np.average(right.mean(axis=1), weights=weight)
    )
    assert 0 <= fitted.history_[-1]["validation_score"] <= 1
    assert fitted.score(X[:1], pd.DataFrame({"mood": ["new"], "start": ["the"], "stars": [5]})) < 1


@pytest.mark.parametrize("kind", ["polars", "array", "numbers", "odd index"])
def test_containers(kind: str, tiny_model: Path, sentiment: Sentiment) -> None:
    X, y = sentiment.texts, columns(sentiment.labels)
    expected = classifier(tiny_model).fit(X, y).predict_proba(X)
    numbers = y.apply(lambda column: pd.factorize(column, sort=True)[0])
    given = {"polars": pl.from_pandas(y), "array": y.to_numpy(), "numbers": numbers.to_numpy(),
             "odd index": y.set_index(-np.arange(40))}[kind]  # fmt: skip
    texts = pd.Series(X, index=[*"abcd"] * 10) if kind == "odd index" else X
    fitted = classifier(tiny_model).fit(texts, given)
    for one, other in zip(fitted.predict_proba(texts), expected, strict=True):
        np.testing.assert_array_equal(one, other)
    predicted = fitted.predict(texts)
    if kind in ("array", "numbers"):
        assert not hasattr(fitted, "target_names_")
        assert predicted.dtype.kind == {"array": "O", "numbers": "i"}[kind]
        assert predicted.shape == (40, 3)
    else:
        assert predicted.columns.tolist() == list(y)
        wanted = texts.index if kind == "odd index" else pd.RangeIndex(40)
        assert predicted.index.equals(wanted)
    truth = numbers if kind == "numbers" else y
    assert fitted.score(texts, given) == fitted.score(texts, truth)


def test_a_frame_of_one_column_is_a_single_label(tiny_model: Path, sentiment: Sentiment) -> None:
    X, y = sentiment.texts, columns(sentiment.labels)
    alone = classifier(tiny_model).fit(X, y["start"])
    with pytest.warns(DataConversionWarning):
        framed = classifier(tiny_model).fit(X, y[["start"]])
    np.testing.assert_array_equal(framed.predict(X), alone.predict(X))
    np.testing.assert_array_equal(framed.predict_proba(X), alone.predict_proba(X))
    assert framed.classes_.tolist() == alone.classes_.tolist()


@pytest.mark.parametrize("class_weight", [None, "balanced"])
def test_a_frozen_encoder_learns_each_column_as_if_it_were_alone(
    class_weight: str | None, tiny_model_no_dropout: Path, sentiment: Sentiment
) -> None:
    X, y = sentiment.texts, columns(sentiment.labels)
    params = {"freeze": "all", "learning_rate": 1e-12, "head_learning_rate": 1e-12,
              "precision": "float64", "class_weight": class_weight}  # fmt: skip
    both = classifier(tiny_model_no_dropout, **params).fit(X, y)
    for at, name in enumerate(y):
        alone = classifier(tiny_model_no_dropout, **params).fit(X, y[name])
        np.testing.assert_allclose(both.predict_proba(X)[at], alone.predict_proba(X), atol=2e-2)


# --- when not to answer --------------------------------------------------------------------------


def test_sets_and_answers_of_each_column(
    tiny_model: Path, sentiment: Sentiment, tmp_path: Path
) -> None:
    X, y = sentiment.texts, columns(sentiment.labels)
    fitted = classifier(tiny_model, **LEARNS, validation_fraction=0.5).fit(X, y)
    assert fitted.conformity_scores_.shape == (20, 3)
    measured = clone(fitted).fit(X, y).conformalize(X, y)
    chances, sets = measured.predict_proba(X), measured.predict_set(X, coverage=0.8)
    assert sets.columns.tolist() == list(y)
    for at, name in enumerate(y):
        codes = np.searchsorted(measured.classes_[at], y[name])
        distances = np.sort(1 - chances[at][np.arange(40), codes].astype(float))
        np.testing.assert_array_equal(measured.conformity_scores_[:, at], distances)
        level = distances[int(np.ceil(41 * 0.8)) - 1]
        for labels, row in zip(sets[name], 1 - chances[at].astype(float), strict=True):
            best = np.argsort(row, kind="stable")
            assert labels == measured.classes_[at][best[: (row <= level).sum()]].tolist()
    answers = measured.predict(X, reject_below=0.6)
    for at, name in enumerate(y):
        kept = chances[at].max(axis=1) >= 0.6
        expected = np.where(kept, measured.predict(X)[name].astype(object), None)
        assert answers[name].tolist() == expected.tolist()
    measured.save(tmp_path / "saved")
    pd.testing.assert_frame_equal(skbert.load(tmp_path / "saved").predict_set(X, 0.8), sets)
    nameless = classifier(tiny_model, validation_fraction=0.5).fit(X, y.to_numpy())
    assert nameless.predict_set(X, 0.5).shape == (40, 3)
    assert nameless.predict(X, reject_below=1.0).tolist() == [[None] * 3] * 40


def test_one_temperature_serves_all_columns(tiny_model: Path, sentiment: Sentiment) -> None:
    X, y = sentiment.texts, columns(sentiment.labels)
    params = {**LEARNS, "validation_fraction": 0.5}
    plain = classifier(tiny_model, **params).fit(X, y)
    calibrated = classifier(tiny_model, **params, calibrate=True).fit(X, y)
    assert calibrated.temperature_ != 1.0
    for one, other in zip(
        calibrated.decision_function(X), plain.decision_function(X), strict=True
    ):
        np.testing.assert_allclose(one * calibrated.temperature_, other, rtol=1e-3, atol=1e-4)


# --- weights of classes ------------------------------------------------------------------------


def test_class_weights_are_those_of_a_column(tiny_model: Path, sentiment: Sentiment) -> None:
    X, y = sentiment.texts, columns(sentiment.labels)
    plain = classifier(tiny_model, **LEARNS).fit(X, y)
    heavy = {"start": {"awful": 1000.0}, "stars": "balanced", "mood": None}
    fitted = classifier(tiny_model, class_weight=heavy, **LEARNS).fit(X, y)
    assert fitted._fitted.task.class_weights == (1, 1, 1000, 1, 1, 1, 1)
    assert plain._fitted.task.class_weights is None
    by_number = {1: {"awful": 1000.0}}
    same = classifier(tiny_model, class_weight=by_number).fit(X, y.to_numpy())
    assert same._fitted.task.class_weights == (1, 1, 1000, 1, 1, 1, 1)


def test_rows_whose_classes_weigh_nothing_are_left_out(
    tiny_model: Path, sentiment: Sentiment
) -> None:
    X, y = sentiment.texts, columns(sentiment.labels)[["mood", "stars"]]
    nothing = {"mood": {"bad": 0.0}, "stars": {1: 0.0}}
    fitted = classifier(tiny_model, class_weight=nothing, batch_size=1).fit(X, y)
    assert fitted.history_[0]["n_steps"] == 20
    assert np.isfinite(fitted.history_[0]["loss"])


@pytest.mark.parametrize(
    ("class_weight", "words"),
    [
        ({"good": 2.0}, r"class_weight\['good'\].*\['mood', 'start', 'stars'\].*dict of its own"),
        ({"mood": 2.0}, r"class_weight\['mood'\] is 2.0"),
        ({"mood": {"god": 2.0}}, "'god'.*Did you mean 'good'"),
        ({"mood": {"good": -1.0}}, "not negative"),
    ],
)
def test_bad_class_weights(
    class_weight: Any, words: str, tiny_model: Path, sentiment: Sentiment
) -> None:
    with pytest.raises(InputError, match=words):
        classifier(tiny_model, class_weight=class_weight).fit(
            sentiment.texts, columns(sentiment.labels)
        )


# --- further batches ---------------------------------------------------------------------------


def test_a_column_grows(tiny_model: Path, sentiment: Sentiment) -> None:
    X, y = sentiment.texts, columns(sentiment.labels)
    online = classifier(tiny_model, **LEARNS).fit(X, y)
    before = online.predict_proba(X)
    online.set_params(learning_rate=1e-12, head_learning_rate=1e-12)
    online.partial_fit(X[:2], pd.DataFrame({"mood": ["good", "fair"], "start": "the", "stars": 3}))
    assert [each.tolist() for each in online.classes_] == [
        ["bad", "fair", "good"], ["awful", "great", "the"], [1, 3, 5],
    ]  # fmt: skip
    after = online.predict_proba(X)
    np.testing.assert_allclose(after[1], before[1], rtol=1e-4)
    for at in (0, 2):
        old = after[at][:, [0, 2]]
        np.testing.assert_allclose(old / old.sum(axis=1, keepdims=True), before[at], rtol=1e-4)
    online.set_params(warm_start=True).fit(X, y)
    assert online.model_.config.num_labels == 9


def test_a_fit_goes_on_with_the_same_columns_only(tiny_model: Path, sentiment: Sentiment) -> None:
    X, y = sentiment.texts, columns(sentiment.labels)
    fitted = classifier(tiny_model).fit(X, y)
    single = classifier(tiny_model).fit(X, sentiment.labels)
    for estimator, given, words in (
        (
            fitted,
            y[["start", "mood", "stars"]],
            r"\['start', 'mood', 'stars'\], but in fit",
        ),
        (fitted, y[["mood", "start"]], "2 columns of classes, but .* 3 columns of classes"),
        (fitted, sentiment.labels, "one label per row, but .* 3 columns of classes"),
        (single, y, "3 columns of classes, but .* one label per row"),
        (fitted, np.eye(3, dtype=int)[np.arange(40) % 3], "indicator matrix of 3 columns, but"),
    ):
        for method in ("partial_fit", "score"):
            with pytest.raises(InputError, match=words):
                getattr(estimator, method)(X, given)
    with pytest.raises(InputTypeError, match="mixes str and numbers"):
        fitted.partial_fit(X, y.assign(mood=1))


def test_rows_beside_have_the_same_columns(tiny_model: Path, sentiment: Sentiment) -> None:
    X, y = sentiment.texts, columns(sentiment.labels)
    fitted = classifier(tiny_model).fit(X[:30], y[:30], X_val=X[30:], y_val=y[30:])
    assert fitted.history_[0]["validation_score"] == pytest.approx(fitted.score(X[30:], y[30:]))
    unseen = y[30:].assign(start=[*["the"] * 9, "a"])
    with pytest.raises(InputError, match=r"y_val holds 1 class.*first in row 9.*'a'"):
        classifier(tiny_model).fit(X[:30], y[:30], X_val=X[30:], y_val=unseen)


# --- bad input ---------------------------------------------------------------------------------


def test_numbers_beside_classes(tiny_model: Path, sentiment: Sentiment) -> None:
    X, y = sentiment.texts, columns(sentiment.labels)
    odd = y.assign(price=np.arange(40) / 8)
    with pytest.raises(InputError, match=r"row 1 of column 'price' of y is 0\.125.*BertRegressor"):
        classifier(tiny_model).fit(X, odd)
    odd = y.assign(start=[*y["start"][:7], None, *y["start"][8:]])
    with pytest.raises(InputError, match=r"1 missing.*row 7 of column 'start'"):
        classifier(tiny_model).fit(X, odd)
    odd = y.assign(stars=[*y["stars"][:7], "five", *y["stars"][8:]])
    with pytest.raises(InputTypeError, match="mixes str and numbers: row 7 of column 'stars'"):
        classifier(tiny_model).fit(X, odd)
    with pytest.raises(InputError, match="MultiLabelBinarizer"):
        classifier(tiny_model).fit(X, y.to_numpy().tolist())


def test_what_is_for_one_column(tiny_model: Path, sentiment: Sentiment) -> None:
    X, y = sentiment.texts, columns(sentiment.labels)
    with pytest.raises(InputTypeError, match=r"classes names its.*row 0 of column 'mood'"):
        classifier(tiny_model).fit(X, y, classes=["bad", "good", "odd"])
    for params, words in (
        ({"tune_thresholds": True}, "multi-label targets, and y has 3 columns of classes"),
        (
            {"label_texts": True, "head_init": "auto"},
            "one column of labels, and y has 3",
        ),
    ):
        with pytest.raises(InputError, match=words):
            classifier(tiny_model, validation_fraction=0.2, **params).fit(X, y)
    fitted = classifier(tiny_model, validation_fraction=0.2).fit(X, y)
    with pytest.raises(InputError, match=r"for one label per row.*fit an estimator for each"):
        fitted.reject_threshold()
    for look in (show, report, worst_errors, ReliabilityDisplay.from_estimator):
        with pytest.raises(InputTypeError, match=r"several columns of classes|one column of"):
            look(fitted, X, y)
    with pytest.raises(InputTypeError, match=r"only one column .*fit\(X, y\['name of"):
        attributions(fitted, X[:1])
    for look in (label_issues, ConfusionDisplay.from_estimator):
        with pytest.raises(InputError, match="several columns of classes, give one"):
            look(fitted, X, y)


# --- kept, and with scikit-learn -----------------------------------------------------------------


def test_saved_and_loaded(tiny_model: Path, sentiment: Sentiment, tmp_path: Path) -> None:
    X, y = sentiment.texts, columns(sentiment.labels)
    fitted = classifier(tiny_model, class_weight="balanced").fit(X, y)
    fitted.save(tmp_path / "saved")
    loaded = skbert.load(tmp_path / "saved")
    for copy in (loaded, pickle.loads(pickle.dumps(fitted))):
        pd.testing.assert_frame_equal(copy.predict(X), fitted.predict(X))
        for one, other in zip(copy.predict_proba(X), fitted.predict_proba(X), strict=True):
            np.testing.assert_array_equal(one, other)
        assert copy.target_names_.tolist() == list(y)
    loaded.partial_fit(X, y)
    opened = BertClassifier.from_pretrained(tmp_path / "saved")
    assert_same_columns(opened, fitted, X)
    with pytest.raises(ModelError, match=r"3 columns of classes.*save\(path\)"):
        classifier(tiny_model, pooling="pooler").fit(X, y).save_pretrained(tmp_path / "plain")
    again = classifier(tmp_path / "saved", pooling="pooler").fit(X, y["mood"])
    again.save_pretrained(tmp_path / "single")
    config = json.loads((tmp_path / "single" / "config.json").read_text())
    assert "skbert_targets" not in config
    assert BertClassifier.from_pretrained(tmp_path / "single").classes_.tolist() == ["bad", "good"]


def assert_same_columns(opened: Any, fitted: Any, X: Any) -> None:
    """The same probabilities of the same classes, which are str now and sorted as such."""
    for at, (proba, wanted) in enumerate(
        zip(opened.predict_proba(X), fitted.predict_proba(X), strict=True)
    ):
        names = [str(name) for name in fitted.classes_[at]]
        assert opened.classes_[at].tolist() == sorted(names)
        np.testing.assert_allclose(proba, wanted[:, np.argsort(names)], atol=1e-5)


def test_save_pretrained_writes_logits_side_by_side(
    tiny_model: Path, sentiment: Sentiment, tmp_path: Path
) -> None:
    library = pytest.importorskip("sentence_transformers")
    X, y = sentiment.texts, columns(sentiment.labels)
    y["number"] = [2, 10, 1, 10] * 10  # as str in another order
    fitted = classifier(tiny_model, pooling="mean").fit(X, y)
    fitted.save_pretrained(tmp_path)
    model = library.SentenceTransformer(str(tmp_path), device="cpu", local_files_only=True)
    logits = model.encode(X, show_progress_bar=False)
    at = 0
    for column, proba in enumerate(fitted.predict_proba(X)):
        part = logits[:, at : at + proba.shape[1]]
        np.testing.assert_allclose(softmax(part, axis=1), proba, atol=1e-5)
        names = [model[0].auto_model.config.id2label[at + i] for i in range(proba.shape[1])]
        assert names == [f"{column}: {label}" for label in fitted.classes_[column]]
        at += proba.shape[1]
    settings = {"device": "cpu", "precision": "float32"}
    opened = BertClassifier.from_pretrained(tmp_path, **settings)
    assert_same_columns(opened, fitted, X)
    opened.save(tmp_path / "saved")
    again = BertClassifier.load(tmp_path / "saved")
    for one, other in zip(again.predict_proba(X), opened.predict_proba(X), strict=True):
        np.testing.assert_array_equal(one, other)
    assert np.shape(opened.predict(X)) == (len(X), len(fitted.classes_))


@pytest.mark.parametrize("names", [["0: a", "1: b", "0: c"], ["a", "b", "c"], ["1: a", "2: b"]])
def test_names_that_are_of_no_columns_are_refused(
    names: list[str], tiny_model: Path, sentiment: Sentiment, tmp_path: Path
) -> None:
    y = pd.DataFrame({"mood": sentiment.labels, "one": ["a"] * 40})
    y = y if len(names) == 3 else y.replace("good", "bad")
    classifier(tiny_model, pooling="mean").fit(sentiment.texts, y).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["id2label"] = dict(enumerate(names))
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="do not begin with '0: '"):
        BertClassifier.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("classes", "more"),
    [
        ([["a", "b"], ["c"], ["d", "e"]], {}),
        ([["a", "b", "c"], ["d", "e"]], {}),
        (["a", "b", "c", "d", "e"], {}),
        ([["a", "b"], ["c", "d", "e"]], {"target_names_": np.array(["one"], dtype=object)}),
        ([["a", "b"], ["c", "d", "e"]], {"conformity_scores_": np.ones(4)}),
        ([["a", "b"], ["c", "d", "e"]], {"conformity_scores_": np.ones((4, 3))}),
    ],
)
def test_hostile_classes_are_refused(classes: list[Any], more: dict[str, np.ndarray]) -> None:
    task = SeveralLabels(5, 16, sizes=(2, 3))
    is_list = isinstance(classes[0], list)
    learned = {"classes_": [np.array(each) for each in classes] if is_list else np.array(classes)}
    with pytest.raises(ValueError, match=r"classes_|target_names_|conformity_scores_"):
        check_columns(task, learned | more)


def test_pipelines_searches_and_cross_validation(tiny_model: Path, sentiment: Sentiment) -> None:
    X, y = np.array(sentiment.texts), columns(sentiment.labels)
    own = classifier(tiny_model)
    assert get_tags(own).target_tags.multi_output
    pipeline = make_pipeline("passthrough", clone(own)).fit(X, y)
    assert pipeline.predict(X).columns.tolist() == list(y)
    mixed = cross_val_score(own, X, y, cv=KFold(2))  # scikit-learn's cv=2 sorts all labels
    y = y.astype(str)
    np.testing.assert_array_equal(cross_val_score(own, X, y, cv=2), mixed)
    search = GridSearchCV(own, {"class_weight": [None, "balanced"]}, cv=2).fit(X, y)
    assert search.predict(X).shape == (40, 3)
    assert cross_val_predict(own, X, y, cv=2).shape == (40, 3)
    chances = cross_val_predict(own, X, y, cv=2, method="predict_proba")
    assert [each.shape for each in chances] == [(40, 2), (40, 3), (40, 2)]


def test_rows_of_columns_of_numbers_may_hold_only_0_and_1(
    tiny_model: Path, sentiment: Sentiment
) -> None:
    places = np.arange(40)
    y = np.stack([places % 2, places // 2 % 3], axis=1)
    fitted = classifier(tiny_model).fit(sentiment.texts, y)
    few = y.max(axis=1) < 2
    texts = np.array(sentiment.texts)[few]
    right = fitted.predict(texts) == y[few]
    assert fitted.score(texts, y[few]) == right.mean()
    fitted.partial_fit(texts, y[few])
    assert [len(each) for each in fitted.classes_] == [2, 3]
    with pytest.raises(InputError, match="an indicator matrix of 3 columns"):
        fitted.partial_fit(texts, np.eye(3, dtype=int)[places[: len(texts)] % 3])


def test_columns_of_one_name_are_refused(tiny_model: Path, sentiment: Sentiment) -> None:
    y = pd.DataFrame([["a", "b"], ["c", "d"]] * 20, columns=["mood", "mood"])
    with pytest.raises(InputError, match="the column 'mood' more than once"):
        classifier(tiny_model).fit(sentiment.texts, y)
