"""The regressor, and what the fit of every estimator promises: history, hold-out, freezing."""

from __future__ import annotations

import copy
import json
import math
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.exceptions import NotFittedError
from sklearn.metrics import r2_score
from transformers import BertModel

from skbert import BertClassifier, BertRegressor
from skbert.datasets import load_ratings
from skbert.exceptions import InputError, ModelError, NonFiniteError, SkbertError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Sentiment

# Learns the sentiment fixture from nothing in a quarter of a second.
LEARNS = {"pooling": "mean", "epochs": 5, "learning_rate": 3e-3, "head_learning_rate": 1e-2}
CALM = LEARNS | {
    "learning_rate": 1e-3,
    "epochs": 10,
    "head_init": "probe",
}  # for bounds on a score
STILL = {"learning_rate": 1e-12, "head_learning_rate": 1e-12}  # a fit that moves no weight
BOTH = pytest.mark.parametrize("kind", [BertClassifier, BertRegressor])


def regressor(model: Path, **params: Any) -> BertRegressor:
    return plain(BertRegressor, model, **params)


def plain(kind: type, model: Path, **params: Any) -> Any:
    return kind(
        model,
        **{"epochs": 1, "device": "cpu", "precision": "float32", "random_state": 0, **params},
    )


def numbers(sentiment: Sentiment) -> np.ndarray:
    """From 1 to 5, and 0.2 apart: how many letters make good texts better."""
    sign = np.array([1.0 if label == "good" else -1.0 for label in sentiment.labels])
    return 3 + 2 * sign - 0.2 * sign * (np.arange(len(sign)) % 4 > 1)


def target(kind: type, sentiment: Sentiment) -> Any:
    return sentiment.labels if kind is BertClassifier else numbers(sentiment)


# --- the regressor -------------------------------------------------------------------------------


def test_learns_numbers_of_any_scale(tiny_model: Path, sentiment: Sentiment) -> None:
    X, y = sentiment.texts, numbers(sentiment)
    fitted = regressor(tiny_model, **CALM).fit(X, y)
    predicted = fitted.predict(X)
    assert (predicted.shape, predicted.dtype) == ((len(X),), np.float32)
    assert fitted.score(X, y) > 0.9
    assert fitted.score(X, y) == pytest.approx(r2_score(y, predicted), abs=1e-6)
    assert (fitted.n_outputs_, fitted.mean_.shape, fitted.scale_.shape) == (1, (1,), (1,))
    np.testing.assert_allclose([fitted.mean_[0], fitted.scale_[0]], [y.mean(), y.std()])
    for factor, shift in ((1e6, 0), (1e-6, 0), (-3, 1000), (1e30, 0)):
        again = regressor(tiny_model, **CALM).fit(X, y * factor + shift)
        expected = predicted.astype(float) * factor + shift
        np.testing.assert_allclose(again.predict(X), expected, rtol=2e-3)


def test_several_outputs(tiny_model: Path, sentiment: Sentiment) -> None:
    X, y = sentiment.texts, numbers(sentiment)
    Y = np.column_stack([y, -100 * y, np.full(len(y), 7.0)])
    fitted = regressor(tiny_model, precision="float64", **CALM).fit(X, Y)
    predicted = fitted.predict(X)
    assert (predicted.shape, predicted.dtype) == (Y.shape, np.float64)
    assert r2_score(Y[:, :2], predicted[:, :2], multioutput="raw_values").min() > 0.9
    assert np.abs(predicted[:, 2] - 7).max() < 1  # a constant: its scale is 1
    assert fitted.n_outputs_ == 3
    assert fitted.scale_[2] == 1.0
    frame = pd.DataFrame(Y, columns=["a", "b", "c"], index=-np.arange(len(Y)))
    again = regressor(tiny_model, precision="float64", **CALM)
    np.testing.assert_array_equal(again.fit(X, frame).predict(X), predicted)


@pytest.mark.parametrize("hold", [list, pd.Series, pl.Series, lambda y: y.astype(object)])
def test_containers_of_numbers(
    hold: Callable[..., Any], tiny_model: Path, sentiment: Sentiment
) -> None:
    X, y = sentiment.texts, numbers(sentiment)
    expected = regressor(tiny_model).fit(X, y).predict(X)
    np.testing.assert_array_equal(regressor(tiny_model).fit(X, hold(y)).predict(X), expected)


def test_one_row_and_integers(tiny_model: Path) -> None:
    assert regressor(tiny_model).fit(["good"], [4]).predict(["good", "bad"]).shape == (2,)
    constant = regressor(tiny_model).fit(["good", "bad"], [4, 4])
    assert constant.scale_.tolist() == [1.0]
    np.testing.assert_allclose(constant.predict(["good", "poor"]), 4, atol=0.5)


def test_weight_of_two_is_the_row_twice(tiny_model_no_dropout: Path, sentiment: Sentiment) -> None:
    X, y = np.array(sentiment.texts), numbers(sentiment)
    times = np.arange(len(X)) % 3  # 0, 1 or 2
    exact = {"precision": "float64", "batch_size": 200, "epochs": 4, "learning_rate": 1e-3}
    weighted = regressor(tiny_model_no_dropout, **exact).fit(X, y, sample_weight=times)
    twice = regressor(tiny_model_no_dropout, **exact).fit(np.repeat(X, times), np.repeat(y, times))
    plain = regressor(tiny_model_no_dropout, **exact).fit(X, y)
    np.testing.assert_allclose(weighted.predict(X), twice.predict(X), rtol=1e-7)
    np.testing.assert_allclose(weighted.mean_, twice.mean_, rtol=1e-12)
    assert np.abs(weighted.predict(X) - plain.predict(X)).max() > 1e-4
    assert weighted.score(X, y, sample_weight=times) == pytest.approx(
        r2_score(np.repeat(y, times), weighted.predict(np.repeat(X, times)))
    )


def test_score_of_numbers_whose_squares_are_infinite(
    tiny_model: Path, sentiment: Sentiment
) -> None:
    X, y = sentiment.texts, numbers(sentiment)
    fitted = regressor(tiny_model, precision="float64", **LEARNS).fit(X, np.stack([y, -y], axis=1))
    usual = fitted.score(X, np.stack([y, -y], axis=1))
    assert usual == pytest.approx(r2_score(np.stack([y, -y], axis=1), fitted.predict(X)))
    fitted.mean_, fitted.scale_ = (np.ldexp(each, [1000, -800]) for each in (
        fitted.mean_, fitted.scale_))  # fmt: skip
    many = np.ldexp(np.stack([y, -y], axis=1), [1000, -800])
    assert fitted.score(X, many) == usual
    with pytest.raises(InputError, match=r"y has 1 columns, but .* predicts 2"):
        fitted.score(X, y)


def test_predictions_beyond_float32_are_the_largest(tiny_model: Path) -> None:
    fitted = regressor(tiny_model, **STILL).fit(["good", "bad", "book"], [3.4e38, -3.4e38, 3.4e38])
    fitted.scale_ = fitted.scale_ * 1e6
    assert np.isfinite(fitted.predict(["good", "bad", "film"])).all()


def test_loss_is_squared_error_of_standardised_targets(
    tiny_model_no_dropout: Path, sentiment: Sentiment
) -> None:
    X, y = sentiment.texts, numbers(sentiment)
    still = {"precision": "float64", "head_init": "random", **STILL}
    fitted = regressor(tiny_model_no_dropout, **still).fit(X, y)
    expected = np.square((fitted.predict(X) - y) / y.std()).mean()
    assert fitted.history_[0]["loss"] == pytest.approx(expected, rel=1e-7)


def test_windows_average_numbers(tiny_model: Path, sentiment: Sentiment) -> None:
    X, y = sentiment.texts, numbers(sentiment)
    fitted = regressor(tiny_model, max_length=12, long_text="windows", **LEARNS).fit(X, y)
    words = ("good " * 10 + "bad " * 10 + "awful " * 4).split()
    windows = [" ".join(words[begin : begin + 10]) for begin in (0, 8, 14)]
    expected = fitted.predict(windows).mean()
    np.testing.assert_allclose(fitted.predict([" ".join(words), "good"])[0], expected, atol=1e-5)


def test_warm_start_keeps_the_scale(tiny_model: Path, sentiment: Sentiment) -> None:
    X, y = sentiment.texts, numbers(sentiment)
    warm = regressor(tiny_model, warm_start=True, **LEARNS).fit(X, y)
    mean, before = warm.mean_, warm.predict(X)
    warm.set_params(**STILL).fit(X, y + 50)
    assert warm.mean_ == mean
    np.testing.assert_allclose(warm.predict(X), before, rtol=1e-5)
    with pytest.raises(InputError, match="2 columns"):
        warm.fit(X, np.column_stack([y, y]))


# --- one batch after another ---------------------------------------------------------------------


def test_partial_fit_learns_in_the_scale_of_the_first_batch(
    tiny_model_no_dropout: Path, sentiment: Sentiment
) -> None:
    X, y = sentiment.texts, numbers(sentiment)
    online = regressor(tiny_model_no_dropout, **{**LEARNS, "epochs": 99})
    losses = []
    for _ in range(8):
        assert online.partial_fit(X[:12], y[:12]) is online
        losses.append(online.history_[-1]["loss"])
        assert online.n_iter_ == 1
    assert losses[-1] < 0.85 * losses[0]
    mean, scale = y[:12].mean(), y[:12].std()
    online.partial_fit(X, y * 100)
    np.testing.assert_allclose(online.mean_, [mean])
    np.testing.assert_allclose(online.scale_, [scale])


def test_the_first_part_is_a_fit_of_one_pass_at_constant_rates(
    tiny_model: Path, sentiment: Sentiment
) -> None:
    X, y = sentiment.texts, numbers(sentiment)
    weight = np.linspace(0, 1, len(X))
    part = regressor(tiny_model, epochs=3).partial_fit(X, y, sample_weight=weight)
    whole = regressor(tiny_model, schedule="constant").fit(X, y, sample_weight=weight)
    np.testing.assert_array_equal(part.predict(X), whole.predict(X))


def test_a_part_that_is_refused_leaves_the_fit(tiny_model: Path, sentiment: Sentiment) -> None:
    X, y = sentiment.texts, numbers(sentiment)
    online = regressor(tiny_model).partial_fit(X, y)
    before = online.predict(X)
    for bad, error, words in (
        (np.column_stack([y, y]), InputError, "y has 2 columns"),
        ([*y[:-1], np.nan], InputError, f"row {len(y) - 1}"),
        (["good"] * len(X), SkbertError, "row 0"),
        (y[:-1], InputError, "inconsistent"),
    ):
        with pytest.raises(error, match=words):
            online.partial_fit(X, bad)
    np.testing.assert_array_equal(online.predict(X), before)
    with pytest.raises(TypeError, match="classes"):
        online.partial_fit(X, y, classes=[1.0])


# --- the passes ----------------------------------------------------------------------------------


@BOTH
def test_history(kind: type, tiny_model: Path, sentiment: Sentiment) -> None:
    X, y = sentiment.texts, target(kind, sentiment)
    recipe = LEARNS | {"head_init": "random"}
    fitted = plain(kind, tiny_model, **recipe, batch_size=8, accumulate=2).fit(X, y)
    assert fitted.n_iter_ == len(fitted.history_) == 5
    keys = {"epoch", "loss", "learning_rate", "n_steps", "n_tokens", "seconds"}
    assert all(set(record) == keys for record in fitted.history_)
    assert [record["epoch"] for record in fitted.history_] == [1, 2, 3, 4, 5]
    assert {record["n_steps"] for record in fitted.history_} == {3}  # 40 rows, 16 in a step
    assert len({record["n_tokens"] for record in fitted.history_}) == 1
    assert fitted.history_[-1]["loss"] < fitted.history_[0]["loss"]
    rates = [record["learning_rate"] for record in fitted.history_]
    assert rates == sorted(rates, reverse=True)
    assert 0 < rates[-1] < rates[0] <= 3e-3
    held = plain(kind, tiny_model, validation_fraction=0.25, **recipe | {"epochs": 12}).fit(X, y)
    assert set(held.history_[0]) == keys | {"validation_loss", "validation_score"}
    scores = [record["validation_score"] for record in held.history_]
    assert scores[-1] > scores[0]
    assert scores[-1] > 0.8
    assert held.history_[-1]["validation_loss"] < held.history_[0]["validation_loss"]
    assert held.history_[0]["n_tokens"] < fitted.history_[0]["n_tokens"]


def test_validation_loss_is_of_the_held_out_rows(tiny_model: Path) -> None:
    # All texts are alike, and 7 of the 10 held-out labels are "a".
    X, y = ["good film"] * 20, (["a"] * 7 + ["b"] * 3) * 2
    fitted = plain(BertClassifier, tiny_model, validation_fraction=0.5, **LEARNS).fit(X, y)
    best = min(record["validation_loss"] for record in fitted.history_)
    proba = fitted.predict_proba(X[:1])[0]
    assert best == pytest.approx(-0.7 * np.log(proba[0]) - 0.3 * np.log(proba[1]), rel=1e-5)
    assert {record["validation_score"] for record in fitted.history_} <= {0.7, 0.3}


@BOTH
def test_best_weights_are_kept(kind: type, tiny_model: Path, sentiment: Sentiment) -> None:
    X, y = sentiment.texts, np.random.default_rng(1).permutation(target(kind, sentiment))
    given = {**LEARNS, "schedule": "constant", "validation_fraction": 0.3, "epochs": 8}
    fitted = plain(kind, tiny_model, **given).fit(X, y)
    losses = [record["validation_loss"] for record in fitted.history_]
    best = int(np.argmin(losses))
    assert best < len(losses) - 1, "choose data on which the last pass is not the best"
    until = plain(kind, tiny_model, **{**given, "epochs": best + 1}).fit(X, y)
    assert [record["validation_loss"] for record in until.history_] == losses[: best + 1]
    np.testing.assert_array_equal(fitted.predict(X), until.predict(X))
    for name, weight in fitted.model_.state_dict().items():
        assert (weight == until.model_.state_dict()[name]).all(), name
    patient = plain(kind, tiny_model, **{**given, "epochs": 50, "patience": 3}).fit(X, y)
    losses = [record["validation_loss"] for record in patient.history_]
    assert patient.n_iter_ == len(losses) == int(np.argmin(losses)) + 1 + 3 < 50


@BOTH
def test_freezing(kind: type, tiny_model: Path, sentiment: Sentiment) -> None:
    X, y = sentiment.texts, target(kind, sentiment)
    before = BertModel.from_pretrained(tiny_model).state_dict()
    for frozen, still in (
        ("all", ("embeddings", "encoder.layer.0", "encoder.layer.1", "pooler")),
        (1, ("embeddings", "encoder.layer.0")),
        (2, ("embeddings", "encoder.layer.0", "encoder.layer.1")),
        (0, ()),
    ):
        fitted = plain(kind, tiny_model, freeze=frozen, head_init="random", epochs=2).fit(X, y)
        after = fitted.model_.bert.state_dict()
        for name, weight in before.items():
            same = bool((weight == after[name]).all())
            # A bias of the keys has no gradient: attention does not feel it.
            if name.startswith(still):
                assert same, (frozen, name)
            elif name.endswith("weight") and "word_embeddings" not in name:
                assert not same, (frozen, name)
    # Weights frozen by one fit are not frozen in the next.
    thawed = fitted.set_params(freeze="all").fit(X, y).set_params(freeze=0, warm_start=True)
    thawed.fit(X, y)
    after = thawed.model_.bert.encoder.layer[0].output.dense.weight
    assert not (after == before["encoder.layer.0.output.dense.weight"]).all()


@BOTH
def test_probe_beats_a_random_head(kind: type, tiny_model: Path, sentiment: Sentiment) -> None:
    X, y = sentiment.texts, target(kind, sentiment)
    given = {"pooling": "mean", "epochs": 1, "freeze": "all"}
    probed = plain(kind, tiny_model, head_init="probe", **given).fit(X, y).score(X, y)
    random = plain(kind, tiny_model, head_init="random", **given).fit(X, y).score(X, y)
    assert probed > max(random + 0.2, 0.8)


@BOTH
@pytest.mark.parametrize(
    ("pairs", "pooling", "as_if"),
    [(False, "auto", "probe"), (True, "mean", "probe"), (True, "auto", "random")],
)
def test_a_head_is_probed_unless_numbers_or_the_pooler_of_pairs_train_the_encoder(
    kind: type, pairs: bool, pooling: str, as_if: str, tiny_model: Path, sentiment: Sentiment
) -> None:
    as_if = "random" if kind is BertRegressor else as_if
    X, y = sentiment.texts, target(kind, sentiment)
    X = list(zip(X, X[::-1], strict=True)) if pairs else X
    outputs = {}
    for how in ("auto", "probe", "random"):
        fitted = plain(kind, tiny_model, pooling=pooling, head_init=how, **STILL).fit(X, y)
        outputs[how] = (fitted.predict if kind is BertRegressor else fitted.predict_proba)(X)
    assert not np.array_equal(outputs["probe"], outputs["random"])
    np.testing.assert_array_equal(outputs["auto"], outputs[as_if])


def test_a_frozen_regressor_starts_from_the_probe(tiny_model: Path, sentiment: Sentiment) -> None:
    X, y = sentiment.texts, target(BertRegressor, sentiment)
    given = STILL | {"freeze": "all"}
    fitted = {
        how: plain(BertRegressor, tiny_model, head_init=how, **given).fit(X, y).predict(X)
        for how in ("auto", "probe", "random")
    }
    np.testing.assert_array_equal(fitted["auto"], fitted["probe"])
    assert not np.array_equal(fitted["probe"], fitted["random"])


def test_a_regressor_learns_from_fewer_rows_than_features(minilm: Path) -> None:
    X, y = load_ratings(return_X_y=True)
    test = np.arange(len(X)) % 4 == 0
    for settings, least in (({}, 0.4), ({"freeze": "all"}, 0.25)):
        fitted = BertRegressor(minilm, random_state=0, **settings).fit(X[~test], y[~test])
        assert fitted.score(X[test], y[test]) > least


@BOTH
@pytest.mark.parametrize(
    ("pairs", "pooling", "as_if"),
    [(False, "auto", 1e-3), (True, "mean", 1e-3), (True, "auto", None)],
)
def test_a_head_has_its_own_rate_unless_it_reads_the_pooler_of_pairs(
    kind: type,
    pairs: bool,
    pooling: str,
    as_if: float | None,
    tiny_model: Path,
    sentiment: Sentiment,
) -> None:
    X, y = sentiment.texts, target(kind, sentiment)
    X = list(zip(X, X[::-1], strict=True)) if pairs else X
    outputs = {}
    for rate in ("auto", 1e-3, None):
        fitted = plain(kind, tiny_model, pooling=pooling, head_learning_rate=rate).fit(X, y)
        outputs[rate] = (fitted.predict if kind is BertRegressor else fitted.predict_proba)(X)
    assert not np.array_equal(outputs[1e-3], outputs[None])
    np.testing.assert_array_equal(outputs["auto"], outputs[as_if])


@BOTH
def test_pooling_follows_the_checkpoint(
    kind: type, tiny_model: Path, sentiment: Sentiment, tmp_path: Path
) -> None:
    X, y = sentiment.texts, target(kind, sentiment)
    assert plain(kind, tiny_model).fit(X, y).pooling_ == "pooler"
    folder = tmp_path / "encoder"
    shutil.copytree(tiny_model, folder)
    (folder / "1_Pooling").mkdir()
    for name in ("mean", "cls", "max"):
        mode = {"cls": "cls_token", "mean": "mean_tokens", "max": "max_tokens"}[name]
        declared = json.dumps({"word_embedding_dimension": 32, f"pooling_mode_{mode}": True})
        (folder / "1_Pooling" / "config.json").write_text(declared, encoding="utf-8")
        fitted = plain(kind, folder).fit(X, y)
        assert fitted.pooling_ == name
        again = plain(kind, tiny_model, pooling=name).fit(X, y)
        np.testing.assert_array_equal(again.predict(X), fitted.predict(X))
        assert plain(kind, folder, pooling="pooler").fit(X, y).pooling_ == "pooler"
        pairs = list(zip(X, X, strict=True))  # what is declared is for single texts
        assert plain(kind, folder).fit(pairs, y).pooling_ == "pooler"


# --- before, and when it goes wrong --------------------------------------------------------------


@BOTH
def test_unfitted(kind: type, tiny_model: Path, tmp_path: Path) -> None:
    fresh = plain(kind, tiny_model)
    names = ("predict", "predict_proba", "decision_function", "save", "save_pretrained")
    for name in names if kind is BertClassifier else ("predict", "save", "save_pretrained"):
        with pytest.raises(NotFittedError, match=kind.__name__):
            getattr(fresh, name)(tmp_path / "folder" if name.startswith("save") else ["good"])
    with pytest.raises(NotFittedError):
        fresh.score(["good"], ["a"])
    for name in ("model_", "tokenizer_", "history_", "pooling_"):
        with pytest.raises(AttributeError, match=kind.__name__):
            getattr(fresh, name)
        assert not hasattr(fresh, name)
    assert not list(tmp_path.iterdir())


@BOTH
def test_a_failed_fit_leaves_the_old_one(
    kind: type, tiny_model: Path, sentiment: Sentiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y = sentiment.texts, target(kind, sentiment)
    faults: list[tuple[type[BaseException], dict[str, Any], Any]] = [
        (InputError, {}, [*y[:-1], None]),
        (ModelError, {"model": "no/such-model"}, y),
        (SkbertError, {"max_length": 1000}, y),
        (NonFiniteError, {"learning_rate": 1e30, "max_grad_norm": None, "epochs": 9}, y),
    ]
    expected = plain(kind, tiny_model).fit(X, y).predict(X)
    for error, change, labels in faults:
        fitted = plain(kind, tiny_model).fit(X, y)
        with pytest.raises(error):
            fitted.set_params(**change).fit(X, labels)
        np.testing.assert_array_equal(fitted.predict(X), expected)
        good = fitted.set_params(model=tiny_model, epochs=1, max_length=None)
        good.set_params(learning_rate=1e-4, max_grad_norm=1.0).fit(X, y)
        np.testing.assert_array_equal(good.predict(X), expected)


@BOTH
def test_interruption_is_passed_on(kind: type, tiny_model: Path, sentiment: Sentiment) -> None:
    class Interrupting(list):
        def __len__(self) -> int:
            raise KeyboardInterrupt

    fitted = plain(kind, tiny_model).fit(sentiment.texts, target(kind, sentiment))
    before = fitted.predict(sentiment.texts)
    with pytest.raises(KeyboardInterrupt):
        fitted.fit(sentiment.texts, Interrupting())
    np.testing.assert_array_equal(fitted.predict(sentiment.texts), before)


# --- columns -------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("columns", ["body", ["body"], ["title", "body"]])
def test_text_columns(kind: type, columns: Any, tiny_model: Path, sentiment: Sentiment) -> None:
    X, y = sentiment.texts, target(kind, sentiment)
    frame = pd.DataFrame({"price": range(len(X)), "body": X, "title": X[::-1], "x": None})
    chosen = frame[[columns] if isinstance(columns, str) else columns]
    expected = plain(kind, tiny_model).fit(chosen.to_numpy(), y).predict(chosen.to_numpy())
    fitted = plain(kind, tiny_model, text_columns=columns).fit(frame, y)
    np.testing.assert_array_equal(fitted.predict(frame), expected)
    assert fitted.feature_names_in_.tolist() == ["price", "body", "title", "x"]
    assert fitted.n_features_in_ == 4
    # By name: more columns, fewer and another order are fine.
    np.testing.assert_array_equal(fitted.predict(frame.assign(new=1)[::-1])[::-1], expected)
    np.testing.assert_array_equal(fitted.predict(frame[["title", "body"]]), expected)
    np.testing.assert_array_equal(fitted.predict(pl.from_pandas(frame)), expected)
    with pytest.raises(InputError, match="body"):
        fitted.predict(frame.drop(columns="body"))
    # By position.
    places = [frame.columns.get_loc(name) for name in chosen]
    fitted = plain(kind, tiny_model, text_columns=places).fit(frame, y)
    np.testing.assert_array_equal(fitted.predict(frame), expected)
    fitted = plain(kind, tiny_model, text_columns=places).fit(frame.to_numpy(), y)
    np.testing.assert_array_equal(fitted.predict(frame.to_numpy()), expected)
    assert not hasattr(fitted, "feature_names_in_")


@BOTH
def test_feature_names(kind: type, tiny_model: Path, sentiment: Sentiment) -> None:
    X, y = sentiment.texts, target(kind, sentiment)
    fitted = plain(kind, tiny_model).fit(X, y)
    assert not hasattr(fitted, "n_features_in_")
    assert not hasattr(fitted, "feature_names_in_")
    fitted.fit(pd.DataFrame({"text": X}), y)
    assert fitted.feature_names_in_.tolist() == ["text"]
    with pytest.raises(InputError, match="feature names"):
        fitted.predict(pd.DataFrame({"texts": X}))
    assert fitted.n_features_in_ == 1
    assert fitted.fit(list(zip(X, X, strict=True)), y).n_features_in_ == 2
    assert not hasattr(fitted, "feature_names_in_")
    assert math.isfinite(fitted.score(list(zip(X, X, strict=True)), y))


@BOTH
def test_names_of_the_columns_of_y(
    kind: type, tiny_model: Path, sentiment: Sentiment, tmp_path: Path
) -> None:
    X, first = sentiment.texts, np.array(sentiment.labels) == "good"
    factor = 1 if kind is BertClassifier else 1.5
    y = factor * pd.DataFrame({"good": first, "other": np.arange(len(X)) % 3 == 0}).astype(int)
    fitted = plain(kind, tiny_model, freeze="all").fit(X, y)
    assert fitted.target_names_.tolist() == ["good", "other"]
    assert fitted.score(X, y) == fitted.score(X, y.to_numpy())
    fitted.save(tmp_path / "saved")
    assert kind.load(tmp_path / "saved").target_names_.tolist() == ["good", "other"]
    turned, said = (
        y[["other", "good"]],
        "y has the columns .'other', 'good'., but in fit they were",
    )
    with pytest.raises(InputError, match=said):
        fitted.score(X, turned)
    with pytest.raises(InputError, match=said):
        fitted.conformalize(X, turned)
    with pytest.raises(InputError, match=f"In the validation set.*{said}"):
        plain(kind, tiny_model).fit(X, y, X_val=X, y_val=turned)
    with pytest.raises(InputError, match=said):
        fitted.partial_fit(X, turned)
    for nameless in (y.to_numpy(), y.set_axis([0, 1], axis=1)):
        assert not hasattr(plain(kind, tiny_model, freeze="all").fit(X, nameless), "target_names_")


def test_numbers_far_from_zero_keep_what_differs(
    tiny_model: Path, sentiment: Sentiment, tmp_path: Path
) -> None:
    X, near = sentiment.texts, numbers(sentiment)
    settings = {**CALM, "freeze": "all", "validation_fraction": 0.5}
    one, other = (plain(BertRegressor, tiny_model, **settings).fit(X, y)
                  for y in (near, 1.7e9 + near))  # fmt: skip
    assert (one.predict(X).dtype, other.predict(X).dtype) == (np.float32, np.float64)
    np.testing.assert_allclose(other.predict(X) - 1.7e9, one.predict(X), atol=1e-3)
    assert other.score(X, 1.7e9 + near) == pytest.approx(one.score(X, near), abs=1e-3)
    np.testing.assert_allclose(
        other.predict_set(X, 0.8) - 1.7e9, one.predict_set(X, 0.8), atol=1e-3
    )
    other.save(tmp_path / "saved")
    np.testing.assert_array_equal(
        BertRegressor.load(tmp_path / "saved").predict(X), other.predict(X)
    )
    with pytest.raises(ModelError, match="float32, which would round away"):
        other.save_pretrained(tmp_path / "plain")
    assert not (tmp_path / "plain").exists()


def test_columns_of_one_name_are_saved(
    tiny_model: Path, sentiment: Sentiment, tmp_path: Path
) -> None:
    y = pd.DataFrame(np.stack([numbers(sentiment)] * 2, axis=1), columns=["a", "a"])
    fitted = plain(BertRegressor, tiny_model).fit(sentiment.texts, y)
    assert fitted.model_.config.id2label == {0: "LABEL_0", 1: "LABEL_1"}
    fitted.save(tmp_path / "saved")
    fitted.save_pretrained(tmp_path / "plain")
    for opened in (
        BertRegressor.load(tmp_path / "saved"),
        BertRegressor.from_pretrained(tmp_path / "plain", precision="float32"),
    ):
        found = opened.predict(sentiment.texts)
        np.testing.assert_allclose(found, fitted.predict(sentiment.texts), rtol=1e-4)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize(("mean", "scale"), [(2000.0, 1.0), (0.0, 1e-3), (-3e4, 1e4)])
def test_an_opened_checkpoint_predicts_finely_and_learns_on_at_any_scale(
    mean: float, scale: float, precision: str, tiny_model: Path, sentiment: Sentiment,
    tmp_path: Path,
) -> None:  # fmt: skip
    X, y = sentiment.texts, mean + scale * numbers(sentiment)
    own = plain(BertRegressor, tiny_model, **CALM).fit(X, y)
    own.save_pretrained(tmp_path)
    rates = {"learning_rate": 1e-4, "head_learning_rate": 1e-3}
    settings = {**CALM, **rates, "precision": precision, "device": "cpu", "random_state": 0}
    opened = BertRegressor.from_pretrained(tmp_path, **settings, warm_start=True)
    np.testing.assert_allclose(opened.predict(X), own.predict(X), atol=0.03 * scale, rtol=1e-6)
    again = copy.deepcopy(opened)
    again.model_ = copy.deepcopy(opened.model_)  # run by its own forward pass from now on
    again.model_.register_forward_hook(lambda *_: None)
    np.testing.assert_allclose(again.predict(X), own.predict(X), atol=0.03 * scale, rtol=1e-6)
    measured = copy.deepcopy(opened).conformalize(X, y).predict_set(X, 0.8)
    assert 0.8 <= ((measured[:, 0] <= y) & (y <= measured[:, 1])).mean() < 1
    assert np.ptp(measured, axis=1).max() < 2 * scale
    held_out = copy.deepcopy(opened).set_params(validation_fraction=0.5).fit(X, y)
    assert held_out.mean_ != opened.fit(X, y).mean_
    assert opened.score(X, y) > 0.9


def test_a_regressor_without_a_bias_is_written(tiny_model: Path, tmp_path: Path) -> None:
    fitted = plain(BertRegressor, tiny_model).fit(["good", "bad"] * 4, [5.0, 1.0] * 4)
    fitted.model_.classifier.bias = None
    fitted.save_pretrained(tmp_path / "plain")
    opened = BertRegressor.from_pretrained(tmp_path / "plain", precision="float32")
    np.testing.assert_allclose(opened.predict(["good"]), fitted.predict(["good"]), rtol=1e-4)


def test_numbers_whose_difference_is_infinite_are_learned(tiny_model: Path) -> None:
    y = [1e308] * 5 + [-1e308]
    fitted = plain(BertRegressor, tiny_model, precision="float64").fit(["good"] * 5 + ["bad"], y)
    assert np.isfinite(fitted.predict(["good", "bad"])).all()
