"""What a fit shows while it runs: scikit-learn's callbacks, and the bar of ``verbose``."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.metrics import accuracy_score
from sklearn.model_selection import GridSearchCV, KFold, cross_validate
from sklearn.pipeline import make_pipeline
from support import ROOT

from skbert import BertClassifier, BertRegressor
from skbert.exceptions import InputError, NonFiniteError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Sentiment


@pytest.fixture
def classifier(tiny_model: Path) -> BertClassifier:
    return BertClassifier(
        tiny_model,
        epochs=3,
        learning_rate=3e-3,
        schedule="constant",
        pooling="mean",
        device="cpu",
        random_state=0,
    )


@pytest.fixture
def noise(sentiment: Sentiment) -> tuple[list[str], list[str]]:
    """Texts with labels drawn by lot: what is learned by heart is wrong on held-out rows."""
    lots = np.random.default_rng(0).permutation(len(sentiment.labels))
    return sentiment.texts, [sentiment.labels[lot] for lot in lots]


# --- scikit-learn's callbacks --------------------------------------------------------------------


@pytest.fixture
def callbacks() -> Any:
    return pytest.importorskip("sklearn.callback", reason="callbacks came with scikit-learn 1.9")


class Recorder:
    """Notes every hook it hears; may ask to stop after a pass, or raise an error there."""

    def __init__(self, stop_after: int | None = None, fail_after: int | None = None) -> None:
        self.stop_after, self.fail_after = stop_after, fail_after
        self.heard: list[str] = []
        self.copies: list[BertClassifier] = []
        self.told: list[dict[str, Any]] = []

    def setup(self, estimator: object, context: Any) -> None:
        self.heard.append("setup")

    def teardown(self, estimator: object, context: Any) -> None:
        self.heard.append("teardown")

    def on_fit_task_begin(
        self, estimator: object, context: Any, *, X: Any = None, fitted_estimator: Any = None
    ) -> None:
        assert fitted_estimator is None  # nothing is learned when a task begins
        self.heard.append(f"begin {context.task_name} {context.task_id}")

    def on_fit_task_end(
        self,
        estimator: object,
        context: Any,
        *,
        X: Any = None,
        y: Any = None,
        metadata: Any = None,
        fitted_estimator: Any = None,
    ) -> bool:
        self.heard.append(f"end {context.task_name} {context.task_id}")
        self.copies.append(fitted_estimator)
        self.told.append({"X": X, "y": y, "metadata": metadata})
        if context.task_name == "pass" and context.task_id + 1 == self.fail_after:
            raise OSError("no space left for the log")
        return context.task_name == "pass" and context.task_id + 1 == self.stop_after


def passes(n: int) -> list[str]:
    return [f"{what} pass {number}" for number in range(n) for what in ("begin", "end")]


@pytest.mark.usefixtures("callbacks")
def test_every_task_begins_and_ends_in_order(
    classifier: BertClassifier, sentiment: Sentiment
) -> None:
    recorder = Recorder()
    classifier.set_callbacks(recorder).fit(*sentiment)
    assert recorder.heard == ["setup", "begin fit 0", *passes(3), "end fit 0", "teardown"]
    assert all(told["X"] is sentiment.texts for told in recorder.told)
    assert all(told["y"] is sentiment.labels for told in recorder.told)
    assert all(told["metadata"] is None for told in recorder.told)


@pytest.mark.usefixtures("callbacks")
def test_partial_fit_is_a_fit_of_one_pass(
    classifier: BertClassifier, sentiment: Sentiment
) -> None:
    recorder = Recorder()
    classifier.set_callbacks(recorder)
    for _ in range(2):
        classifier.partial_fit(*sentiment)
    assert recorder.heard == ["setup", "begin fit 0", *passes(1), "end fit 0", "teardown"] * 2


@pytest.mark.usefixtures("callbacks")
def test_sample_weights_are_told(classifier: BertClassifier, sentiment: Sentiment) -> None:
    recorder = Recorder()
    weights = np.linspace(1, 2, len(sentiment.texts))
    classifier.set_callbacks(recorder).fit(*sentiment, sample_weight=weights)
    assert all(told["metadata"]["sample_weight"] is weights for told in recorder.told)


@pytest.mark.usefixtures("callbacks")
def test_copies_predict_as_after_their_pass_also_later(
    classifier: BertClassifier, sentiment: Sentiment
) -> None:
    recorder = Recorder()
    classifier.set_callbacks(recorder).fit(*sentiment)
    for n_passes, copy in enumerate(recorder.copies[:3], start=1):
        alone = clone(classifier).set_callbacks().set_params(epochs=n_passes).fit(*sentiment)
        probabilities = alone.predict_proba(sentiment.texts)
        np.testing.assert_array_equal(copy.predict_proba(sentiment.texts), probabilities)
    np.testing.assert_array_equal(
        recorder.copies[3].predict_proba(sentiment.texts),
        classifier.predict_proba(sentiment.texts),
    )


@pytest.mark.usefixtures("callbacks")
def test_copies_are_as_trainable_as_the_estimator(
    classifier: BertClassifier, sentiment: Sentiment
) -> None:
    recorder = Recorder()
    classifier.set_params(freeze=1, epochs=1).set_callbacks(recorder).fit(*sentiment)
    for copy in (*recorder.copies, classifier):
        assert all(weight.requires_grad for weight in copy.model_.parameters())


@pytest.mark.usefixtures("callbacks")
def test_the_copy_at_the_end_has_the_best_weights(
    classifier: BertClassifier, noise: tuple[list[str], list[str]]
) -> None:
    recorder = Recorder()
    n = 8
    classifier.set_params(validation_fraction=0.25, epochs=n)
    classifier.set_callbacks(recorder).fit(*noise)
    losses = [record["validation_loss"] for record in classifier.history_]
    best = int(np.argmin(losses))
    assert best < n - 1, "the last pass is the best, so nothing is restored: change the recipe"
    at_best, last, at_the_end = (
        recorder.copies[i].predict_proba(noise[0]) for i in (best, n - 1, n)
    )
    np.testing.assert_array_equal(at_the_end, at_best)
    np.testing.assert_array_equal(at_the_end, classifier.predict_proba(noise[0]))
    assert (at_the_end != last).any()


@pytest.mark.usefixtures("callbacks")
def test_callbacks_change_nothing_that_is_learned(
    classifier: BertClassifier, sentiment: Sentiment
) -> None:
    plain = classifier.fit(*sentiment).predict_proba(sentiment.texts)
    watched = clone(classifier).set_callbacks(Recorder()).fit(*sentiment)
    np.testing.assert_array_equal(plain, watched.predict_proba(sentiment.texts))


@pytest.mark.usefixtures("callbacks")
def test_a_callback_may_stop_training(classifier: BertClassifier, sentiment: Sentiment) -> None:
    recorder = Recorder(stop_after=2)
    classifier.set_callbacks(recorder).fit(*sentiment)
    assert recorder.heard == ["setup", "begin fit 0", *passes(2), "end fit 0", "teardown"]
    assert classifier.n_iter_ == len(classifier.history_) == 2
    assert classifier.predict(sentiment.texts[:1]).shape == (1,)


@pytest.mark.usefixtures("callbacks")
def test_running_out_of_patience_leaves_no_task_open(
    classifier: BertClassifier, noise: tuple[list[str], list[str]]
) -> None:
    recorder = Recorder()
    classifier.set_params(epochs=9, validation_fraction=0.25, patience=1)
    classifier.set_callbacks(recorder).fit(*noise)
    n = classifier.n_iter_
    assert n < 9, "training did not stop early: change the recipe"
    assert recorder.heard == ["setup", "begin fit 0", *passes(n), "end fit 0", "teardown"]


@pytest.mark.usefixtures("callbacks")
def test_an_error_in_training_tears_down(classifier: BertClassifier, sentiment: Sentiment) -> None:
    recorder = Recorder()
    classifier.set_params(learning_rate=1e30, max_grad_norm=None).set_callbacks(recorder)
    with pytest.raises(NonFiniteError):
        classifier.fit(*sentiment)
    assert recorder.heard[:3] == ["setup", "begin fit 0", "begin pass 0"]
    assert recorder.heard[-1] == "teardown"
    assert "end fit 0" not in recorder.heard
    with pytest.raises(NotFittedError):
        classifier.predict(sentiment.texts)


@pytest.mark.usefixtures("callbacks")
def test_an_error_of_a_callback_comes_through_and_tears_down(
    classifier: BertClassifier, sentiment: Sentiment
) -> None:
    recorder = Recorder(fail_after=1)
    classifier.set_callbacks(recorder)
    with pytest.raises(OSError, match="no space left for the log"):
        classifier.fit(*sentiment)
    assert recorder.heard == ["setup", "begin fit 0", *passes(1), "teardown"]
    with pytest.raises(NotFittedError):
        classifier.predict(sentiment.texts)


@pytest.mark.usefixtures("callbacks")
def test_callbacks_hear_nothing_of_input_that_is_refused(
    classifier: BertClassifier, sentiment: Sentiment
) -> None:
    recorder = Recorder()
    with pytest.raises(InputError):
        classifier.set_callbacks(recorder).fit(sentiment.texts, sentiment.labels[:-1])
    assert recorder.heard == []


def test_scoring_monitor_logs_each_pass_once(
    classifier: BertClassifier, sentiment: Sentiment, callbacks: Any
) -> None:
    monitor = callbacks.ScoringMonitor(scoring=["accuracy", "neg_log_loss"])
    classifier.set_callbacks(monitor).fit(*sentiment)
    rows = monitor.get_logs().data
    assert [(row["task_name"], row["task_id"]) for row in rows] == [
        ("fit", 0), ("pass", 0), ("pass", 1), ("pass", 2),
    ]  # fmt: skip
    assert rows[0]["accuracy"] == classifier.score(*sentiment)
    assert rows[0]["neg_log_loss"] == rows[3]["neg_log_loss"] > rows[1]["neg_log_loss"]


def test_scoring_monitor_weighs_as_fit_does(
    classifier: BertClassifier, sentiment: Sentiment, callbacks: Any
) -> None:
    weights = np.where(np.arange(len(sentiment.labels)) < 10, 5.0, 1.0)
    labels = np.array(sentiment.labels)
    labels[10:] = "good"
    monitor = callbacks.ScoringMonitor(scoring="accuracy")
    classifier.set_params(epochs=1).set_callbacks(monitor)
    classifier.fit(sentiment.texts, labels, sample_weight=weights)
    predicted = classifier.predict(sentiment.texts)
    weighted = accuracy_score(labels, predicted, sample_weight=weights)
    assert weighted != accuracy_score(labels, predicted)
    assert [row["accuracy"] for row in monitor.get_logs().data] == [weighted] * 2


def test_scoring_monitor_in_a_regressor(tiny_model: Path, callbacks: Any) -> None:
    texts = ["good movie", "bad movie", "good food", "bad food"] * 4
    monitor = callbacks.ScoringMonitor(scoring="r2")
    regressor = BertRegressor(
        tiny_model, epochs=2, learning_rate=1e-3, device="cpu", random_state=0
    )
    regressor.set_callbacks(monitor).fit(texts, [5.0, 1.0, 4.0, 2.0] * 4)
    scores = [row["r2"] for row in monitor.get_logs().data]
    assert len(scores) == 3
    same = regressor.score(texts, [5.0, 1.0, 4.0, 2.0] * 4)
    assert scores[0] == pytest.approx(same, abs=1e-6)  # of squares in float32


def test_scoring_monitor_in_a_grid_search(
    classifier: BertClassifier, sentiment: Sentiment, callbacks: Any
) -> None:
    monitor = callbacks.ScoringMonitor(scoring="accuracy")
    search = GridSearchCV(classifier.set_callbacks(monitor), {"epochs": [1, 2]}, cv=2)
    search.fit(*sentiment)
    rows = [row for row in monitor.get_logs().data if row["task_name"] == "pass"]
    n_refit = search.best_params_["epochs"]
    assert len(rows) == 2 * (1 + 2) + n_refit
    assert len({row["task_id_path"] for row in rows}) == len(rows)
    refit = [row["accuracy"] for row in rows if len(row["task_id_path"]) == 3]
    assert len(refit) == n_refit
    assert refit[-1] == search.score(*sentiment)


def test_progress_bar_in_a_fit(
    classifier: BertClassifier,
    sentiment: Sentiment,
    callbacks: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("rich", reason="scikit-learn's progress bar needs rich")
    classifier.set_callbacks(callbacks.ProgressBar()).fit(*sentiment)
    assert re.search(r"BertClassifier - fit.*100%", capsys.readouterr().out)


@pytest.mark.parametrize("parameters", [{"stop_after": 1}, {"patience": 1}])
def test_progress_bar_ends_with_a_training_that_stops_early(
    classifier: BertClassifier,
    noise: tuple[list[str], list[str]],
    callbacks: Any,
    capsys: pytest.CaptureFixture[str],
    parameters: dict[str, int],
) -> None:
    pytest.importorskip("rich", reason="scikit-learn's progress bar needs rich")
    if "patience" in parameters:
        classifier.set_params(validation_fraction=0.25, patience=1)
    recorder = Recorder(parameters.get("stop_after"))
    classifier.set_params(epochs=9).set_callbacks(callbacks.ProgressBar(), recorder)
    classifier.fit(*noise)
    assert classifier.n_iter_ < 9
    assert re.search(r"BertClassifier - fit.*100%", capsys.readouterr().out)


def test_progress_bar_is_passed_on_by_a_grid_search(
    classifier: BertClassifier,
    sentiment: Sentiment,
    callbacks: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("rich", reason="scikit-learn's progress bar needs rich")
    search = GridSearchCV(classifier, {"epochs": [1, 2]}, cv=2)
    search.set_callbacks(callbacks.ProgressBar(max_propagation_depth=None)).fit(*sentiment)
    shown = capsys.readouterr().out
    inner = re.findall(r"candidate-split-evaluation \| BertClassifier - fit #\d", shown)
    assert len(set(inner)) == 4
    assert re.search(r"refit-with-best-params \| BertClassifier - fit #1\s+100%", shown)


def test_progress_bar_is_passed_on_by_a_pipeline(
    classifier: BertClassifier,
    sentiment: Sentiment,
    callbacks: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("rich", reason="scikit-learn's progress bar needs rich")
    pipeline = make_pipeline("passthrough", classifier)
    pipeline.set_callbacks(callbacks.ProgressBar()).fit(*sentiment)
    assert re.search(r"BertClassifier - fit.*100%", capsys.readouterr().out)


# --- verbose -------------------------------------------------------------------------------------


def test_verbose_shows_a_bar_with_loss_and_validation_score(
    classifier: BertClassifier, sentiment: Sentiment, capsys: pytest.CaptureFixture[str]
) -> None:
    classifier.set_params(verbose=1, batch_size=10, validation_fraction=0.25).fit(*sentiment)
    shown = capsys.readouterr()
    assert not shown.out
    assert "BertClassifier: 100%" in shown.err
    assert "9/9" in shown.err  # 3 passes of 3 steps: 30 rows to learn from, 10 held out
    last = classifier.history_[-1]
    final = shown.err.rpartition("\r")[2]
    for name in ("loss", "validation_loss", "validation_score"):
        assert f"{name}={last[name]:.4f}" in final


def test_verbose_without_a_hold_out_shows_the_loss_alone(
    classifier: BertClassifier, sentiment: Sentiment, capsys: pytest.CaptureFixture[str]
) -> None:
    classifier.set_params(verbose=1).fit(*sentiment)
    final = capsys.readouterr().err.rpartition("\r")[2]
    assert f"loss={classifier.history_[-1]['loss']:.4f}" in final
    assert "validation" not in final


@pytest.mark.parametrize("kind", [BertClassifier, BertRegressor])
def test_it_says_where_frozen_features_serve_as_well(
    kind: type,
    tiny_model: Path,
    sentiment: Sentiment,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    X, y = sentiment.texts, sentiment.labels
    if learns := kind is BertRegressor:
        y = [text.count("a") for text in X]
    recipe = {"epochs": 8, "learning_rate": 1e-3, "device": "cpu", "precision": "float32"}
    given = {"head_init": "probe", "random_state": 0, "pooling": "mean", **recipe}
    model = kind(tiny_model, validation_fraction=0.25, verbose=1, **given)
    model.fit(X, y)
    best = min(model.history_, key=lambda record: record["validation_loss"])["validation_score"]
    assert (best > model.probe_score_) is learns
    said = f"a linear model on frozen features scores {model.probe_score_:.4f}"
    assert (said in capsys.readouterr().err) is not learns
    model.save(tmp_path / "saved")
    assert kind.load(tmp_path / "saved").probe_score_ == model.probe_score_
    model.set_params(validation_fraction=None, epochs=1).fit(X, y)
    assert not hasattr(model, "probe_score_")
    assert "frozen" not in capsys.readouterr().err


def test_the_bar_is_closed_when_training_fails(
    classifier: BertClassifier, sentiment: Sentiment, capsys: pytest.CaptureFixture[str]
) -> None:
    classifier.set_params(verbose=1, learning_rate=1e30, max_grad_norm=None)
    with pytest.raises(NonFiniteError):
        classifier.fit(*sentiment)
    assert capsys.readouterr().err.endswith("\n")


@pytest.mark.parametrize("make", [BertClassifier, BertRegressor])
def test_silent_unless_asked(
    make: Callable[..., Any], tiny_model: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    texts, numbers = ["good movie", "bad movie"] * 6, [1, 0] * 6
    estimator = make(tiny_model, epochs=2, validation_fraction=0.25, device="cpu")
    estimator.fit(texts, numbers).score(texts, numbers)
    assert capfd.readouterr() == ("", "")


def test_verbosity_changes_no_result(
    classifier: BertClassifier, sentiment: Sentiment, capsys: pytest.CaptureFixture[str]
) -> None:
    quiet = classifier.fit(*sentiment).predict_proba(sentiment.texts)
    loud = clone(classifier).set_params(verbose=1).fit(*sentiment)
    np.testing.assert_array_equal(quiet, loud.predict_proba(sentiment.texts))


class Runs:
    """What the callback of the gallery writes to, on top of MLflow."""

    def add_scalar(self, name: str, value: float, step: int) -> None:
        pytest.importorskip("mlflow").log_metric(name, value, step=step)


@pytest.mark.usefixtures("callbacks")
@pytest.mark.filterwarnings("ignore")  # those of the loggers
@pytest.mark.long
@pytest.mark.parametrize("logger", ["tensorboard", "mlflow"])
def test_the_callback_of_the_gallery_logs(
    logger: str, classifier: BertClassifier, sentiment: Sentiment, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    pytest.importorskip(logger, reason=f"{logger} is not installed")
    page = (ROOT / "examples" / "gallery" / "inside" / "training_log.py").read_text("utf-8")
    names: dict[str, Any] = {}
    exec(re.search(r"\nclass Curves:.*?\n\n\n", page, re.DOTALL)[0], names)
    classifier.set_params(validation_fraction=0.25)

    def fit(writer: Any) -> list[float]:
        classifier.set_callbacks(names["Curves"](writer)).fit(*sentiment)
        return [record["validation_loss"] for record in classifier.history_]

    if logger == "tensorboard":
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        from torch.utils.tensorboard import SummaryWriter

        with SummaryWriter(str(tmp_path)) as writer:
            losses = fit(writer)
        read: Any = EventAccumulator(str(tmp_path)).Reload().Scalars
    else:
        import mlflow

        monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
        monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "runs").as_uri())
        with mlflow.start_run() as run:
            losses = fit(Runs())
        read = functools.partial(mlflow.MlflowClient().get_metric_history, run.info.run_id)
    assert [each.value for each in read("validation_loss")] == pytest.approx(losses, rel=1e-6)
    n_steps = sum(record["n_steps"] for record in classifier.history_)
    assert [each.step for each in read("step loss")] == [*range(1, n_steps + 1)]


@pytest.mark.usefixtures("callbacks")
def test_cross_validation_of_a_watched_estimator(
    classifier: BertClassifier, sentiment: Sentiment
) -> None:
    recorder = Recorder()
    classifier.set_params(epochs=1).set_callbacks(recorder)
    cross_validate(classifier, *sentiment, cv=KFold(2, shuffle=True, random_state=0))
    assert recorder.heard == ["setup", "begin fit 0", *passes(1), "end fit 0", "teardown"] * 2
