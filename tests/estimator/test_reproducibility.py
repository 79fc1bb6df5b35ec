"""The same seed gives the same bits, and a fit leaves no trace in the process or on the disk."""

from __future__ import annotations

import functools
import gc
import logging
import os
import pickle
import random
import resource
import secrets
import signal
import sys
import tempfile
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import conftest
import joblib
import numpy as np
import pandas as pd
import pytest
import sklearn
import torch
import transformers
from sklearn.base import clone
from sklearn.model_selection import cross_val_score
from threadpoolctl import threadpool_info

from skbert import BertClassifier, BertRegressor
from skbert.exceptions import InputError, NonFiniteError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from conftest import Sentiment

pytestmark = pytest.mark.long  # threads, processes, and every fit made twice

BOTH = pytest.mark.parametrize("kind", [BertClassifier, BertRegressor])
HELD = {"validation_fraction": 0.25}


def plain(kind: type, model: Path, **params: Any) -> Any:
    usual = {"epochs": 2, "device": "cpu", "precision": "float32", "random_state": 0}
    return kind(model, **{**usual, "learning_rate": 1e-3, **params})


def target(kind: type, sentiment: Sentiment) -> Any:
    texts, labels = sentiment
    return labels if kind is BertClassifier else [float(len(text)) for text in texts]


def same(first: Any, second: Any, X: list[str]) -> bool:
    """Whether two fitted estimators have the same weights and say the same, bit for bit."""
    weights, others = first.model_.state_dict(), second.model_.state_dict()
    method = "predict_proba" if isinstance(first, BertClassifier) else "predict"
    says, other_says = getattr(first, method)(X), getattr(second, method)(X)
    equal = [torch.equal(weights[name], others[name]) for name in weights]
    assert all(equal) == (says == other_says).all(), "weights and outputs disagree"
    return all(equal)


# --- the same again ------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("change", [{}, HELD, {"head_init": "random", "pooling": "mean"}], ids=str)
def test_same_seed_same_bits(
    kind: type, change: Any, tiny_model: Path, sentiment: Sentiment
) -> None:
    X, y = sentiment.texts, target(kind, sentiment)
    fitted = plain(kind, tiny_model, **change).fit(X, y)
    for seed in (1, 2):  # the process's own generators play no part
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002 - that one
        torch.manual_seed(seed)
        assert same(plain(kind, tiny_model, **change).fit(X, y), fitted, X)
    copied = clone(fitted)
    assert not hasattr(copied, "model_")
    assert same(copied.fit(X, y), fitted, X)
    assert same(pickle.loads(pickle.dumps(fitted)).fit(X, y), fitted, X)
    before = pickle.loads(pickle.dumps(fitted))
    assert same(fitted.fit(X, y), before, X)
    assert [r["loss"] for r in fitted.history_] == [r["loss"] for r in before.history_]
    assert not same(plain(kind, tiny_model, random_state=1, **change).fit(X, y), fitted, X)


@BOTH
def test_random_state(kind: type, tiny_model: Path, sentiment: Sentiment) -> None:
    X, y = sentiment.texts, target(kind, sentiment)
    generator = np.random.RandomState(7)
    first = plain(kind, tiny_model, random_state=generator).fit(X, y)
    again = plain(kind, tiny_model, random_state=np.random.RandomState(7)).fit(X, y)
    assert same(first, again, X)
    assert not same(again.fit(X, y), first, X)  # a generator moves on
    unseeded = [plain(kind, tiny_model, random_state=None).fit(X, y) for _ in range(2)]
    assert not same(*unseeded, X)
    online = plain(BertClassifier, tiny_model)
    other = plain(BertClassifier, tiny_model)
    for _ in range(2):
        online.partial_fit(X[:16], sentiment.labels[:16])
        other.partial_fit(X[:16], sentiment.labels[:16])
    assert same(online, other, X)


@BOTH
def test_what_does_not_change_a_fit(
    kind: type, tiny_model: Path, sentiment: Sentiment, capsys: pytest.CaptureFixture[str]
) -> None:
    X, y = sentiment.texts, target(kind, sentiment)
    fitted = plain(kind, tiny_model, **HELD).fit(X, y)
    assert capsys.readouterr() == ("", "")
    shown = plain(kind, tiny_model, verbose=1, **HELD).fit(X, y)
    assert kind.__name__ in capsys.readouterr().err
    assert same(shown, fitted, X)
    assert same(plain(kind, tiny_model, patience=9, **HELD).fit(X, y), fitted, X)
    assert same(plain(kind, tiny_model, **HELD).fit(pd.Series(X), pd.Series(y)), fitted, X)
    weighted = plain(kind, tiny_model, **HELD).fit(X, y, sample_weight=np.ones(len(X)))
    assert same(weighted, fitted, X)


def test_threads_give_what_one_gives(tiny_model: Path, sentiment: Sentiment) -> None:
    X, y = sentiment.texts * 3, sentiment.labels * 3
    X = [text * (1 + row % 4) for row, text in enumerate(X)]
    estimators = [
        plain(BertClassifier, tiny_model, max_length=length, long_text="head_tail")
        for length in (12, 60)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for estimator in estimators:
            estimator.fit(X, y)
        parts = [X[begin : begin + 30] for begin in range(0, 90, 10)]
        jobs = [(estimator, part) for estimator in estimators for part in parts] * 5
        expected = [estimator.predict_proba(part) for estimator, part in jobs]
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda job: job[0].predict_proba(job[1]), jobs))
            fits = list(pool.map(lambda seed: clone(estimators[1]).set_params(
                random_state=seed).fit(X, y), [0, 1, 0, 1]))  # fmt: skip
    wrong = [row for row, (a, b) in enumerate(zip(found, expected, strict=True)) if (a != b).any()]
    assert wrong == []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert same(fits[0], fits[2], X)
        assert same(fits[0], estimators[1], X)
        assert same(fits[1], fits[3], X)


@pytest.mark.parametrize("backend", ["threading", pytest.param("loky", marks=pytest.mark.slow)])
def test_jobs_do_not_change_scores(backend: str, tiny_model: Path, sentiment: Sentiment) -> None:
    estimator = plain(BertClassifier, tiny_model, pooling="mean", learning_rate=3e-3)
    alone = cross_val_score(estimator, *sentiment, cv=4, error_score="raise")
    with joblib.parallel_config(backend, n_jobs=2):
        together = cross_val_score(estimator, *sentiment, cv=4, error_score="raise")
    np.testing.assert_array_equal(alone, together)


# --- the process stays as it was -----------------------------------------------------------------


def environment() -> dict[str, str]:
    return {name: text for name, text in os.environ.items() if name not in conftest.UNWATCHED}


def log_levels() -> dict[str, Any]:
    loggers = {"": logging.getLogger(), **logging.Logger.manager.loggerDict}
    known = {name: log for name, log in loggers.items() if isinstance(log, logging.Logger)}
    return {name: (log.level, log.disabled, log.propagate, list(log.handlers))
            for name, log in known.items()}  # fmt: skip


def signals() -> dict[int, Any]:
    return {number: signal.getsignal(number) for number in signal.valid_signals()}


def umask() -> int:
    os.umask(mask := os.umask(0o022))
    return mask


LIMITS = (resource.RLIMIT_AS, resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE, resource.RLIMIT_CORE)

PROCESS: dict[str, Callable[[], Any]] = {
    "random": random.getstate,
    "numpy random": lambda: pickle.dumps(np.random.get_state()),  # noqa: NPY002
    "torch random": lambda: torch.get_rng_state().tolist(),
    "default dtype": torch.get_default_dtype,
    "default device": torch.get_default_device,
    "grad mode": torch.is_grad_enabled,
    "inference mode": torch.is_inference_mode_enabled,
    "anomaly mode": torch.is_anomaly_enabled,
    "deterministic algorithms": lambda: (torch.are_deterministic_algorithms_enabled(),
                                         torch.get_deterministic_debug_mode()),
    "matmul precision": torch.get_float32_matmul_precision,
    "tf32": lambda: (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32),
    "cudnn": lambda: (torch.backends.cudnn.enabled, torch.backends.cudnn.benchmark,
                      torch.backends.cudnn.deterministic),
    "attention kernels": lambda: (torch.backends.cuda.flash_sdp_enabled(),
                                  torch.backends.cuda.mem_efficient_sdp_enabled(),
                                  torch.backends.cuda.math_sdp_enabled()),
    "mkldnn": lambda: torch.backends.mkldnn.enabled,
    "autocast": lambda: (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"),
                         torch.is_autocast_cache_enabled()),
    "flush denormal": lambda: bool(torch.tensor([1e-310], dtype=torch.float64) * 1 == 0),
    "torch threads": lambda: (torch.get_num_threads(), torch.get_num_interop_threads()),
    "library threads": lambda: sorted((lib["filepath"], lib["num_threads"])
                                      for lib in threadpool_info()),
    "threads": lambda: {thread.name for thread in threading.enumerate()} - {"tqdm_monitor"},
    "environment": environment,
    "logging": log_levels,
    "transformers logging": lambda: (transformers.logging.get_verbosity(),
                                     transformers.logging.is_progress_bar_enabled()),
    "warning filters": lambda: (list(warnings.filters), warnings.showwarning),
    "numpy errors": lambda: (np.geterr(), np.get_printoptions()),
    "signal handlers": signals,
    "folder": Path.cwd,
    "umask": umask,
    "blocked signals": lambda: signal.pthread_sigmask(signal.SIG_BLOCK, []),
    "limits": lambda: [resource.getrlimit(kind) for kind in LIMITS],
    "open files": lambda: sorted(Path("/proc/self/fd").glob("*")),
    "hooks": lambda: (sys.excepthook, sys.displayhook, threading.excepthook, sys.stdout,
                      sys.stderr),
    "path": lambda: (list(sys.path), sys.getrecursionlimit()),
    "garbage collector": lambda: (gc.isenabled(), gc.get_threshold()),
    "scikit-learn": sklearn.get_config,
}  # fmt: skip


def stories(model: Path, sentiment: Sentiment, folder: Path) -> Iterator[tuple[str, Any]]:
    """What users do, each a function to call."""
    X, y = sentiment
    Y = np.array([[label == "good", row % 3 == 0] for row, label in enumerate(y)])
    fitted = plain(BertClassifier, model).fit(X, y)
    numbers = plain(BertRegressor, model).fit(X, range(len(X)))
    yield "fit", lambda: plain(BertClassifier, model).fit(X, y)
    yield "fit anew", lambda: plain(BertRegressor, model, random_state=None).fit(X, range(len(X)))
    yield "bfloat16", lambda: plain(BertClassifier, model, precision="bfloat16").fit(X, y)
    yield "float64", lambda: plain(BertClassifier, model, precision="float64").fit(X, y)
    yield (
        "less memory",
        lambda: plain(
            BertClassifier, model, gradient_checkpointing=True, accumulate=2, batch_size=4
        ).fit(X, y),
    )
    yield (
        "tuned",
        lambda: plain(
            BertClassifier, model, calibrate=True, tune_thresholds=True, verbose=1, **HELD
        ).fit(X, Y),
    )
    kept = {"checkpoint_dir": folder / "checkpoints", "checkpoint_every": 1}
    yield "checkpoints", lambda: plain(BertClassifier, model, **kept).fit(X, y)
    yield (
        "not finite, with checkpoints",
        lambda: plain(BertClassifier, model, learning_rate=1e30, epochs=9, **kept).fit(X, y),
    )
    yield "partial fit", lambda: fitted.partial_fit(X[:6], ["new", "good"] * 3)
    yield "predict", lambda: (fitted.predict(X), numbers.predict(X), fitted.predict_proba(X))
    yield (
        "save",
        lambda: (fitted.save(folder / "saved"), numbers.save_pretrained(folder / "plain")),
    )
    yield "load", lambda: BertClassifier.load(folder / "saved")
    yield (
        "open",
        lambda: (
            BertClassifier.from_pretrained(folder / "saved").predict(X),
            BertRegressor.from_pretrained(folder / "plain").predict(X),
        ),
    )
    yield "bad row", lambda: plain(BertClassifier, model).fit([*X[:-1], None], y)
    yield "bad label", lambda: plain(BertClassifier, model).fit(X, [*y[:-1], None])
    yield (
        "not finite",
        lambda: plain(BertClassifier, model, learning_rate=1e30, epochs=9).fit(X, y),
    )


@pytest.fixture(scope="module")
def changes(
    tiny_model: Path, sentiment: Sentiment, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[str]]:
    """For each part of the process, the stories that left it changed."""
    folder = tmp_path_factory.mktemp("stories")
    changed: dict[str, list[str]] = {name: [] for name in PROCESS}
    for story, happen in stories(tiny_model, sentiment, folder):
        before = {name: look() for name, look in PROCESS.items()}
        with suppress(InputError, NonFiniteError):
            happen()
        for name, look in PROCESS.items():
            if look() != before[name]:
                changed[name].append(story)
    return changed


@pytest.mark.parametrize("part", PROCESS)
def test_process_stays_as_it_was(part: str, changes: dict[str, list[str]]) -> None:
    assert changes[part] == []


def test_the_list_of_what_is_watched_is_long() -> None:
    assert len(PROCESS) >= 32


# --- the disk stays as it was --------------------------------------------------------------------

TRACES: list[str] | None = None  # what was written or started, while somebody asks for it
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
STARTS = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.fork",
          "os.exec", "os.posix_spawn", "os.system", "subprocess.Popen", "tempfile.mkstemp",
          "tempfile.mkdtemp", "socket.connect", "socket.getaddrinfo")  # fmt: skip


def note_traces(event: str, given: tuple[Any, ...]) -> None:
    if TRACES is None:
        return
    if event in STARTS or (event == "open" and isinstance(given[2], int) and given[2] & WRITES):
        TRACES.append(f"{event} {given[0]}")


@functools.cache
def install_hook() -> None:
    """Once: a hook cannot be taken back, but does nothing between tests."""
    sys.addaudithook(note_traces)


@pytest.fixture
def traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Everything that Python writes, starts or connects to, while the test runs."""
    install_hook()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(sys.modules[__name__], "TRACES", [])
    assert TRACES is not None
    yield TRACES
    assert list(tmp_path.iterdir()) == []


def of_a_tokenizer(trace: str, scratch: Path) -> bool:
    """Whether it is of the vetted tokenizer files that are opened from a folder of their own."""
    event, name = trace.split()
    path = scratch / "folder" / name  # what is removed is named without its folder
    files = {"config.json", "tokenizer.json", "tokenizer_config.json"}
    if path.parent == scratch:
        return event in {"tempfile.mkdtemp", "os.mkdir", "os.rmdir"}
    return path.parent.parent == scratch and path.name in files and event in {"open", "os.remove"}


def test_no_more_than_the_tokenizer_is_written(
    traces: list[str], tiny_model: Path, sentiment: Sentiment, tmp_path: Path
) -> None:
    X, y = sentiment
    fitted = plain(BertClassifier, tiny_model, calibrate=True, **HELD).fit(X, y)
    fitted.predict_proba(X)
    fitted.partial_fit(X[:4], y[:4])
    plain(BertRegressor, tiny_model, warm_start=True).fit(X, range(len(X))).predict(X)
    with pytest.raises(InputError):
        fitted.fit([None], ["a"])
    assert [trace for trace in traces if not of_a_tokenizer(trace, tmp_path)] == []
    assert list(tmp_path.iterdir()) == []
    traces.clear()
    Path("seen").touch()
    assert [trace.split()[0] for trace in traces] == ["open"]
    Path("seen").unlink()


def test_no_training_text_is_saved(tiny_model: Path, tmp_path: Path) -> None:
    canaries = [secrets.token_hex(8) for _ in range(500)]
    frame = pd.DataFrame({"text": canaries[:400], "other": canaries[100:]})
    y = np.arange(400) % 2
    found = []
    for number, (kind, params) in enumerate(((BertClassifier, HELD), (BertRegressor, {}))):
        fitted = plain(kind, tiny_model, text_columns="text", **params).fit(frame, y)
        fitted.predict(frame)
        fitted.save(tmp_path / f"{number} saved")
        fitted.save_pretrained(tmp_path / f"{number} plain")
        (tmp_path / f"{number}.pickle").write_bytes(pickle.dumps(fitted))
    for path in (path for path in tmp_path.rglob("*") if path.is_file()):
        data = path.read_bytes()
        for code in ("utf-8", "utf-16-le", "utf-16-be", "utf-32-le"):
            found += [path.name for canary in canaries if canary.encode(code) in data]
    assert found == []
    assert len(list(tmp_path.rglob("*.safetensors"))) == 4
