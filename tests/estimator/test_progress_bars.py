"""The bar of ``verbose`` outside training: what it counts, when it shows, and that it closes."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from sklearn.base import clone
from support.children import child, in_a_child
from tqdm.auto import tqdm

from skbert import (
    BertChoiceRanker,
    BertClassifier,
    BertPretrainer,
    BertRegressor,
    BertSpanExtractor,
    BertTokenTagger,
    BertTransformer,
)
from skbert._core import infer as inference
from skbert._estimator import bar as bars
from skbert._estimator import base, predicting
from skbert._estimator.bar import Bar, ProgressBar
from skbert.exceptions import NonFiniteError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Sentiment

WORDS = "good bad movie film great awful plot actor".split()
TEXTS = [f"{one} {two}" for one in WORDS for two in WORDS[:5]]  # 40, all different
LONG = " ".join(WORDS * 8)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bars are shown from the start."""
    monkeypatch.setattr(bars, "_DELAY", 0.0)


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some rows to a batch, so that the bar has something to count."""
    monkeypatch.setitem(inference.INFERENCE_TOKENS, "cpu", 24)


def final(capsys: pytest.CaptureFixture[str]) -> str:
    """The last state of the bar; nothing is printed, and its line has ended."""
    shown = capsys.readouterr()
    assert not shown.out
    assert shown.err.endswith("\n")
    return shown.err.rstrip("\n").rpartition("\r")[2]


def classifier(model: Path, **params: Any) -> BertClassifier:
    settings = {"epochs": 1, "device": "cpu", "random_state": 0, **params}
    return BertClassifier(model, **settings).fit(TEXTS, [text.split()[0] for text in TEXTS])


def work_of_estimators(model: Path) -> dict[str, tuple[Callable[[], Any], Callable[..., Any]]]:
    """For each estimator its fit, and what takes long in it, over three rows."""
    tags, words = [["A", "B"]] * 3, [["good", "movie"], ["bad", "film"], ["great", "plot"]]
    questions = [("which movie", "good movie"), ("which plot", "bad plot"), ("who", "the actor")]
    options = [("movie", ["good", "bad"]), ("film", ["great", "awful"]), ("plot", ["bad", "good"])]
    settings = {"epochs": 1, "device": "cpu", "random_state": 0}
    masked = ["good [MASK]", "bad [MASK]", "[MASK] film"]
    texts = ["good movie", "bad film", "great plot"]
    return {
        "classifier": (
            lambda: BertClassifier(model, **settings).fit(texts, [0, 1, 0]),
            lambda each: (each.decision_function(texts), each.score(texts, [0, 1, 0])),
        ),
        "regressor": (
            lambda: BertRegressor(model, **settings).fit(texts, [0.0, 1.0, 2.0]),
            lambda each: each.score(texts, [0.0, 1.0, 2.0]),
        ),
        "tagger": (
            lambda: BertTokenTagger(model, **settings).fit(words, tags),
            lambda each: each.predict(words),
        ),
        "extractor": (
            lambda: BertSpanExtractor(model, **settings).fit(questions, ["good", "bad", "actor"]),
            lambda each: each.predict(questions),
        ),
        "ranker": (
            lambda: BertChoiceRanker(model, **settings).fit(options, [0, 1, 1]),
            lambda each: each.predict_proba(options),
        ),
        "transformer": (
            lambda: BertTransformer(model, device="cpu").fit(texts),
            lambda each: (each.transform_tokens(texts), each.fit_transform(texts)),
        ),
        "pretrainer": (
            lambda: BertPretrainer(model, **settings).fit(texts),
            lambda each: (each.predict_masked(masked), each.score(texts)),
        ),
    }


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("name", sorted(work_of_estimators(None)))
def test_long_work_of_every_estimator_shows_a_bar_of_rows(
    name: str, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fit, work = work_of_estimators(tiny_model)[name]
    estimator = fit()
    work(estimator)
    assert capsys.readouterr() == ("", "")
    work(estimator.set_params(verbose=1))
    last = final(capsys)
    assert re.search(rf"{type(estimator).__name__}: 100%.* 3/3 \[.*row/s\]", last), last


def test_short_work_shows_no_bar(tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    classifier(tiny_model).set_params(verbose=1).predict(TEXTS)
    assert capsys.readouterr() == ("", "")


@pytest.mark.filterwarnings("ignore:2 of 50 rows were too long")
@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("kind", ["windows", "truncate"])
def test_rows_are_counted_whatever_their_windows_and_twins(
    kind: str, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = classifier(tiny_model, long_text=kind, max_length=12)
    monkeypatch.setattr(predicting, "_CHUNK_SIZE", 30)
    X = [*TEXTS, *TEXTS[:7], LONG, f"{LONG} good", TEXTS[0]]
    seen: list[int] = []

    class Noting(ProgressBar):
        def _update(self, n_rows: int) -> None:
            seen.append(n_rows)

    monkeypatch.setattr(base, "ProgressBar", Noting)
    model.set_params(verbose=1).predict_proba(X)
    counts = seen[:-1]  # the last fills the bar at the end
    assert sum(counts) == len(X)
    assert min(counts) >= 0
    assert len(counts) > 5


@pytest.mark.usefixtures("at_once")
def test_texts_in_a_cache_are_counted_and_not_timed(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = BertTransformer(tiny_model, memory=tmp_path, device="cpu", verbose=1)
    expected = model.fit_transform(TEXTS[:30])
    assert "30/30" in final(capsys)
    np.testing.assert_array_equal(model.transform([*TEXTS, *TEXTS])[:30], expected)
    assert "80/80" in final(capsys)
    model.transform(TEXTS)
    assert re.search(r"40/40 \[.*\?row/s\]|40/40 \[.* 0.00row/s\]", final(capsys))


def test_the_rate_leaves_out_rows_that_took_no_computing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bars, "_DELAY", 0.0)
    with ProgressBar(BertTransformer(verbose=1), 100, n_done=20) as bar:
        bar.skip(30)
        assert bar._bar.format_dict["n"] == 50
        assert bar._bar.format_dict["initial"] == 50
        assert bar.on_rows is not None
        bar.on_rows(70)  # more than there are: computed again
        assert bar._bar.n == 100
    assert "100/100" in final(capsys)


@pytest.mark.usefixtures("at_once")
def test_generated_pieces_are_counted(
    tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = BertPretrainer(tiny_model, objective="clm", epochs=1, device="cpu", random_state=0)
    model.fit(TEXTS).set_params(verbose=1).generate(["good", "bad"], max_new_tokens=5)
    assert re.search(r"10/10 \[.*piece/s\]", final(capsys))


@pytest.mark.usefixtures("at_once")
def test_next_sentences_show_a_bar(tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    documents = [[text, f"{text} plot"] for text in TEXTS[:4]]
    model = BertPretrainer(tiny_model, objective="nsp", epochs=1, device="cpu", random_state=0)
    model.fit(documents).set_params(verbose=1).next_sentence_proba(documents)
    assert "4/4" in final(capsys)


@pytest.mark.usefixtures("at_once", "small_batches")
@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_the_bar_is_closed_when_work_is_interrupted(
    error: type[BaseException],
    tiny_model: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = classifier(tiny_model).set_params(verbose=1)
    n_batches, collate = 0, inference.collate

    def failing(*args: Any) -> Any:
        nonlocal n_batches
        n_batches += 1
        if n_batches == 3:
            raise error
        return collate(*args)

    monkeypatch.setattr(inference, "collate", failing)
    with pytest.raises(error):
        model.predict(TEXTS)
    assert "40/40" not in final(capsys)
    assert model.set_params(verbose=0).predict(TEXTS).shape == (40,)


@pytest.mark.usefixtures("at_once")
def test_the_bar_is_closed_when_outputs_are_not_finite(
    tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = classifier(tiny_model).set_params(verbose=1)
    model.model_.classifier.weight.data.fill_(float("nan"))
    with pytest.raises(NonFiniteError):
        model.predict(TEXTS)
    assert "40/40" not in final(capsys)


def test_predictions_are_the_same_with_a_bar(
    tiny_model: Path, sentiment: Sentiment, capsys: pytest.CaptureFixture[str]
) -> None:
    model = classifier(tiny_model)
    quiet = model.predict_proba(sentiment.texts)
    np.testing.assert_array_equal(
        quiet, model.set_params(verbose=1).predict_proba(sentiment.texts)
    )
    assert clone(model).verbose == 1


# --- other processes -----------------------------------------------------------------------------


def die_with(lock: Any) -> None:
    lock.acquire()
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("verbose", [0, 1])
def test_a_process_killed_while_it_shows_a_bar_stops_no_other(
    verbose: int, tiny_model: Path
) -> None:
    def work() -> int:
        tqdm.set_lock(multiprocessing.RLock())  # another one than in the parent, which lives on
        for lock in (tqdm.get_lock(), Bar.get_lock()):
            with child(die_with, lock) as process:
                process.join()
        return len(classifier(tiny_model, verbose=verbose).predict(TEXTS))

    assert in_a_child(work, seconds=60) == 40


def test_a_fork_beside_a_thread_that_shows_a_bar_shows_its_own(tiny_model: Path) -> None:
    model, holds, may_end = classifier(tiny_model, verbose=1), threading.Event(), threading.Event()

    def show() -> None:
        with Bar.get_lock():
            holds.set()
            may_end.wait()

    thread = threading.Thread(target=show)
    thread.start()
    holds.wait()
    try:
        assert len(in_a_child(model.predict, TEXTS, seconds=60)) == 40
    finally:
        may_end.set()
        thread.join()
