"""The run with a rising rate: its rates, where it stops, and that it leaves no trace."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.utils.validation import check_is_fitted

from skbert import (
    BertChoiceRanker,
    BertClassifier,
    BertPretrainer,
    BertRegressor,
    BertSpanExtractor,
    BertTokenTagger,
    BertTransformer,
)
from skbert._core.training import probe as probing
from skbert._estimator import bar as bars
from skbert._estimator.run import Run
from skbert.exceptions import InputError, InputTypeError, SkbertWarning
from skbert.inspection import LearningRateDisplay, suggest_learning_rate
from skbert.testing._samples import sample_of

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Sentiment

USUAL = {"device": "cpu", "precision": "float32", "random_state": 0}
DOCUMENTS = [["the food is good", "i love it"], ["the room is bad", "i hate it", "too slow"]] * 9
CASES: dict[str, tuple[type, str, dict[str, Any]]] = {
    "classes": (BertClassifier, "classes", {"calibrate": True, "validation_fraction": 0.4}),
    "labels": (BertClassifier, "labels", {"class_weight": "balanced"}),
    "numbers": (BertRegressor, "numbers", {}),
    "tags": (BertTokenTagger, "tags", {"max_length": 16}),
    "spans": (BertSpanExtractor, "spans", {"max_length": 32, "on_ambiguous": "first"}),
    "choices": (BertChoiceRanker, "choices", {}),
}


def generators() -> tuple[Any, ...]:
    """The state of every global generator of random numbers."""
    kind, keys, *rest = np.random.get_state()  # noqa: NPY002 - the one that must not move
    return random.getstate(), kind, keys.tolist(), rest, torch.get_rng_state().tolist()


def is_fitted(estimator: Any) -> bool:
    try:
        check_is_fitted(estimator)
    except NotFittedError:
        return False
    return True


@pytest.mark.parametrize("name", CASES)
def test_every_estimator_gets_a_curve_and_is_left_as_it_was(name: str, tiny_model: Path) -> None:
    kind, sample, params = CASES[name]
    rows, estimator = sample_of(sample, None, None), kind(tiny_model, **USUAL, **params)
    before, state = estimator.get_params(), generators()
    display = suggest_learning_rate(estimator, rows.X, rows.y, n_steps=60)
    assert estimator.get_params() == before
    assert generators() == state
    assert not is_fitted(estimator)
    assert not [key for key in vars(estimator) if key.endswith("_")]
    n = len(display.losses)
    assert display.rates.shape == display.smoothed_losses.shape == (n,)
    assert 20 < n <= 66
    assert 3e-7 < display.learning_rate < 0.4
    assert np.isfinite(display.losses).all()


@pytest.mark.parametrize("objective", ["mlm", "mlm+nsp", "clm"])
def test_of_a_pretrainer(objective: str, tiny_model: Path) -> None:
    pretrainer = BertPretrainer(tiny_model, objective=objective, batch_size=4, **USUAL)
    display = suggest_learning_rate(pretrainer, DOCUMENTS, n_steps=40)
    assert display.learning_rate > 1e-6
    assert not is_fitted(pretrainer)


@pytest.fixture
def classifier(tiny_model: Path) -> BertClassifier:
    return BertClassifier(tiny_model, batch_size=4, **USUAL)


def test_the_rate_rises_exponentially_and_the_suggestion_is_a_third_of_the_best(
    classifier: BertClassifier, sentiment: Sentiment
) -> None:
    display = suggest_learning_rate(classifier, *sentiment, n_steps=40)
    n_steps = 40  # four passes of ten steps
    expected = 10.0 ** (-6 + 6 * np.arange(len(display.rates)) / n_steps)
    np.testing.assert_allclose(display.rates, expected)
    average = weight = 0.0
    for loss, smoothed in zip(display.losses, display.smoothed_losses, strict=True):
        average, weight = 0.9 * average + loss, 0.9 * weight + 1
        assert smoothed == pytest.approx(average / weight)
    best = display.rates[display.smoothed_losses.argmin()]
    assert display.learning_rate == pytest.approx(best / 3)
    assert "learning_rate=" in repr(display)


def test_the_run_stops_where_the_loss_diverges(
    classifier: BertClassifier, sentiment: Sentiment
) -> None:
    display = suggest_learning_rate(classifier, *sentiment, n_steps=200)
    smoothed = display.smoothed_losses
    assert len(smoothed) < 200
    assert smoothed[-1] > 4 * smoothed.min()
    assert (smoothed[:-1] <= 4 * np.minimum.accumulate(smoothed[:-1])).all()


@pytest.mark.filterwarnings("ignore:The loss is lowest at the start")
def test_a_loss_that_is_not_finite_ends_the_run(
    tiny_model: Path, sentiment: Sentiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skbert.inspection._learning_rate._DIVERGED", np.inf)
    monkeypatch.setattr("skbert.inspection._learning_rate._HIGHEST", 1e30)
    model = BertClassifier(tiny_model, max_grad_norm=None, **USUAL)
    display = suggest_learning_rate(model, *sentiment)
    assert len(display.losses) < 102
    assert np.isfinite(display.losses).all()


def test_the_same_seed_gives_the_same_run(
    classifier: BertClassifier, sentiment: Sentiment
) -> None:
    state = np.random.RandomState(3)
    classifier.set_params(random_state=state)
    first = suggest_learning_rate(classifier, *sentiment, n_steps=20)
    again = suggest_learning_rate(classifier, *sentiment, n_steps=20)
    np.testing.assert_array_equal(first.losses, again.losses)
    assert state.randint(1000) == np.random.RandomState(3).randint(1000)


def test_a_fitted_estimator_stays_fitted(classifier: BertClassifier, sentiment: Sentiment) -> None:
    classifier.set_params(epochs=1, warm_start=True).fit(*sentiment)
    fitted, expected = classifier._fitted, classifier.predict_proba(sentiment.texts)
    warm = suggest_learning_rate(classifier, *sentiment, n_steps=20)
    cold = suggest_learning_rate(clone(classifier), *sentiment, n_steps=20)
    np.testing.assert_array_equal(warm.losses, cold.losses)
    assert classifier._fitted is fitted
    np.testing.assert_array_equal(classifier.predict_proba(sentiment.texts), expected)


def test_many_rows_are_not_all_used(
    classifier: BertClassifier, sentiment: Sentiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[int] = []
    loop = Run.loop

    def noting(run: Run) -> Any:
        used.append(len(run.train_items))
        return loop(run)

    monkeypatch.setattr(Run, "loop", noting)
    texts, labels = sentiment.texts * 5, sentiment.labels * 5
    suggest_learning_rate(classifier, texts, labels, n_steps=20)
    assert used == [80]  # 20 steps of 4 rows, of 200


@pytest.mark.filterwarnings("ignore:The loss is lowest at the start")  # a linear model is fitted
def test_texts_of_labels_are_among_the_rows(
    tiny_model: Path, sentiment: Sentiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y = sentiment.texts * 10, sentiment.labels * 10
    classifier = BertClassifier(tiny_model, label_texts=True, head_init="probe", **USUAL)
    seen, fit = [], probing._fit

    def noted(network: Any, task: Any, items: Any, precision: Any, n_label_items: int) -> None:
        seen.append(items.samples[-n_label_items:].tolist())
        fit(network, task, items, precision, n_label_items)

    monkeypatch.setattr(probing, "_fit", noted)
    suggest_learning_rate(classifier, X, y, n_steps=20)
    assert seen == [[len(X), len(X) + 1]]


def test_the_curve_is_drawn(classifier: BertClassifier, sentiment: Sentiment) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    display = suggest_learning_rate(classifier, *sentiment, n_steps=20)
    assert not hasattr(display, "figure_")
    assert display.plot() is display
    assert display.ax_.get_xscale() == "log"
    assert display.ax_.get_xlabel() == "learning rate"
    np.testing.assert_array_equal(display.ax_.lines[0].get_ydata(), display.losses)
    figure, ax = pyplot.subplots()
    again = LearningRateDisplay(display.rates, display.losses, display.smoothed_losses)
    assert again.plot(ax=ax).ax_ is ax
    assert again.figure_ is figure
    pyplot.close("all")


def test_a_bar_of_steps_where_verbose(
    classifier: BertClassifier,
    sentiment: Sentiment,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    suggest_learning_rate(classifier, *sentiment, n_steps=20)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(bars, "_DELAY", 0.0)
    suggest_learning_rate(classifier.set_params(verbose=1), *sentiment, n_steps=20)
    assert "step/s" in capsys.readouterr().err


def test_a_loss_that_never_falls_is_said() -> None:
    from skbert.inspection import _learning_rate as module

    display = module.LearningRateDisplay(*np.array([[1e-6, 1e-5], [1.0, 2.0], [1.0, 1.5]]))
    with pytest.warns(SkbertWarning, match="lowest at the start of the run"):
        module._warn_if_flat(display)


BAD: dict[str, tuple[Any, dict[str, Any], type[Exception], str]] = {
    "a transformer": (BertTransformer(), {}, InputTypeError, "learns by training"),
    "a pipeline": (
        make_pipeline(BertClassifier()),
        {},
        InputTypeError,
        "of a Pipeline, such a step",
    ),
    "a frozen encoder": (BertClassifier(freeze="all"), {}, InputError, "head_learning_rate=None"),
    "a bad parameter": (BertClassifier(epochs=0), {}, ValueError, "epochs"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_inputs(name: str) -> None:
    estimator, params, error, message = BAD[name]
    with pytest.raises(error, match=message):
        suggest_learning_rate(estimator, ["good", "bad"], [0, 1], **params)


def test_bad_rows_are_named(classifier: BertClassifier) -> None:
    with pytest.raises(InputError, match="1"):
        suggest_learning_rate(classifier, ["good", None], [0, 1])
    with pytest.raises(InputError):
        suggest_learning_rate(classifier, ["good", "bad"], [0])
