"""What callers set in torch, and when they press Ctrl-C: neither changes what is computed."""

from __future__ import annotations

import functools
import gc
import os
import pickle
import signal
import threading
import time
from contextlib import nullcontext, suppress
from copy import deepcopy
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import sklearn
import torch
from support.jobs import JOBS
from torch.overrides import TorchFunctionMode

from skbert import BertClassifier, BertPretrainer, BertTransformer
from skbert._core import infer
from skbert._core.runtime import device
from skbert._core.runtime.interrupts import (
    before_interrupts,
    deferred_interrupts,
    raise_deferred,
)
from skbert._core.runtime.modes import default_modes
from skbert._core.training import probe, stepper
from skbert.inspection import attentions, head_importance

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

TEXTS = [f"the {thing} is {word}" for thing in ("book", "room") for word in ("good", "bad")] * 3
LABELS = ["yes", "no"] * 6
PRECISIONS = ["float32", "bfloat16", "float64"]


def plain(kind: type, model: Path | None, **changes: Any) -> Any:
    settings = {"epochs": 1, "batch_size": 4, "device": "cpu", "random_state": 0}
    return kind(model, **(settings | changes))


def answers(estimator: Any, X: Any) -> list[Any]:
    """What an estimator says of X, whatever it is called."""
    names = ("transform", "predict_proba", "predict", "score")
    answer = getattr(estimator, next(name for name in names if hasattr(estimator, name)))(X)
    return [np.asarray(row).tolist() for row in np.atleast_1d(answer)]


class Passing(TorchFunctionMode):
    """Does nothing, as one that counts or logs."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):
        return function(*args, **(kwargs or {}))


class DefaultType:
    """Another type of new tensors."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def __enter__(self) -> None:
        torch.set_default_dtype(self.dtype)

    def __exit__(self, *_: object) -> None:
        assert torch.get_default_dtype() == self.dtype
        torch.set_default_dtype(torch.float32)


MODES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "no gradients": torch.no_grad,
    "gradients disabled": lambda: torch.set_grad_enabled(False),
    "inference": torch.inference_mode,
    "float16 autocast": lambda: torch.autocast("cpu", dtype=torch.float16),
    "bfloat16 autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "a device": lambda: torch.device("meta"),
    "a mode over functions": Passing,
    "float64": lambda: DefaultType(torch.float64),
    "float16": lambda: DefaultType(torch.float16),
    "array API": lambda: sklearn.config_context(array_api_dispatch=True),
}
MODE = pytest.mark.parametrize("mode", MODES)


@functools.cache
def fitted_outside(name: str, model: Path, precision: str) -> tuple[Any, list[Any]]:
    """An estimator that was fitted outside of all modes, and what it answers there."""
    X, y, _ = JOBS[name].usual
    fitted = JOBS[name].make(model, precision=precision).fit(X, y)
    return fitted, answers(fitted, X)


# Each mode with each estimator and with each precision, each estimator with each precision.
CASES = [
    (name, PRECISIONS[(row + column) % 3], mode)
    for row, mode in enumerate(MODES)
    for column, name in enumerate(JOBS)
]


@pytest.mark.parametrize(("name", "precision", "mode"), CASES)
@pytest.mark.long
def test_modes_of_the_caller_change_nothing(
    name: str, precision: str, mode: str, tiny_model: Path
) -> None:
    X, y, _ = JOBS[name].usual
    usual, want = fitted_outside(name, tiny_model, precision)
    with MODES[mode]():
        inside = JOBS[name].make(tiny_model, precision=precision).fit(X, y)
        found = answers(usual, X), answers(inside, X)
    assert found == (want, want)
    assert not any(p.is_inference() for p in inside.model_.parameters())
    inside.fit(X, y)


@pytest.mark.parametrize("copied", [deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_copy_that_is_made_in_inference_mode_predicts(
    copied: Callable[[Any], Any], tiny_model: Path
) -> None:
    usual, want = fitted_outside("BertClassifier", tiny_model, "float32")
    X, y, _ = JOBS["BertClassifier"].usual
    with torch.inference_mode():
        twin = copied(usual)
        assert answers(twin, X) == want
    assert answers(twin, X) == want
    assert twin.set_params(warm_start=True).fit(X, y).n_iter_ == twin.epochs


def test_every_pair_of_estimator_precision_and_mode_is_tested() -> None:
    names, precisions, modes = {*JOBS}, {*PRECISIONS}, {*MODES}
    assert {(name, mode) for name, _, mode in CASES} == {*product(names, modes)}
    assert {(name, precision) for name, precision, _ in CASES} == {*product(names, precisions)}
    assert {(precision, mode) for _, precision, mode in CASES} == {*product(precisions, modes)}


@MODE
def test_new_models_are_the_same_in_every_mode(mode: str) -> None:
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    usual = plain(BertPretrainer, None, **sizes).fit(TEXTS)
    with MODES[mode]():
        inside = plain(BertPretrainer, None, **sizes).fit(TEXTS)
    pairs = zip(usual.model_.parameters(), inside.model_.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


@MODE
@pytest.mark.long
def test_everything_else_works_in_every_mode(mode: str, tiny_model: Path, tmp_path: Path) -> None:
    y = LABELS
    with MODES[mode]():
        fitted = plain(BertClassifier, tiny_model, validation_fraction=0.3, calibrate=True)
        fitted.fit(TEXTS, y).partial_fit(TEXTS, ["perhaps"] * 12)
        assert fitted.score(TEXTS, y) >= 0
        assert head_importance(fitted, TEXTS, y).shape == (2, 2)
        assert len(attentions(fitted, TEXTS)) == 12
        fitted.set_params(precision="float64").predict(TEXTS)
        fitted.save(tmp_path / "saved")
        loaded = BertClassifier.load(tmp_path / "saved")
        opened = BertClassifier.from_pretrained(tmp_path / "saved")
        vectors = BertTransformer(tiny_model, n_components=2, device="cpu").fit_transform(TEXTS)
    assert vectors.shape == (12, 2)
    for each in (fitted, loaded, opened):
        np.testing.assert_array_equal(each.predict(TEXTS), fitted.predict(TEXTS))
        each.set_params(batch_size=4).partial_fit(TEXTS, y)  # outside of the mode


def test_modes_are_as_before_in_the_same_order() -> None:
    first, second = Passing(), Passing()
    with first, second, torch.no_grad(), torch.autocast("cpu"):
        with suppress(ZeroDivisionError), default_modes():
            assert torch.is_grad_enabled()
            assert not torch.is_autocast_enabled("cpu")
            assert torch.overrides._get_current_function_mode() is None
            raise ZeroDivisionError
        assert torch.overrides._get_current_function_mode_stack() == [first, second]
        assert not torch.is_grad_enabled()
        assert torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("mode", [nullcontext, torch.no_grad, torch.inference_mode])
def test_modes_of_inference(mode: Callable[[], AbstractContextManager[object]]) -> None:
    with mode(), torch.autocast("cpu"):
        before = torch.is_inference_mode_enabled()
        with default_modes(inference=True):
            assert torch.is_inference_mode_enabled()
            assert not torch.is_grad_enabled()
            assert not torch.is_autocast_enabled("cpu")
        assert torch.is_inference_mode_enabled() is before
        assert torch.is_autocast_enabled("cpu")


# --- Ctrl-C --------------------------------------------------------------------------------------


@pytest.fixture
def handler() -> Iterator[Callable[..., Any]]:
    """The handler that must be there after the test, too."""
    before = signal.getsignal(signal.SIGINT)
    assert callable(before)
    yield before
    assert signal.getsignal(signal.SIGINT) is before


def press() -> None:
    signal.raise_signal(signal.SIGINT)


@pytest.mark.usefixtures("handler")
def test_it_waits_until_it_is_let_through() -> None:
    done = []
    with suppress(KeyboardInterrupt), deferred_interrupts():
        raise_deferred()  # nothing yet
        with deferred_interrupts():
            press()
            done.append("inside")
        done.append("outside")
        raise_deferred()
        done.append("never")
    assert done == ["inside", "outside"]
    raise_deferred()  # once only


@pytest.mark.usefixtures("handler")
def test_it_comes_at_the_end_at_the_latest() -> None:
    done = []
    with suppress(KeyboardInterrupt):
        with deferred_interrupts():
            press()
            done.append("all")
        done.append("never")
    with suppress(KeyboardInterrupt), deferred_interrupts():
        press()
        raise ZeroDivisionError
    assert done == ["all"]


@pytest.mark.usefixtures("handler")
def test_what_is_done_before_it_is_that_of_the_outer_work_again() -> None:
    done: list[str] = []
    with suppress(KeyboardInterrupt), before_interrupts(lambda: done.append("outer")):
        with before_interrupts(lambda: done.append("inner")):
            pass
        press()
        raise_deferred()
    assert done == ["outer"]


@pytest.mark.usefixtures("handler")
def test_pressed_twice_it_does_not_wait() -> None:
    done = []
    with suppress(KeyboardInterrupt), deferred_interrupts():
        press()
        done.append("once")
        press()
        done.append("never")
    assert done == ["once"]


def test_handlers_of_others_stay() -> None:
    before, noted = signal.getsignal(signal.SIGINT), []
    try:
        signal.signal(signal.SIGINT, lambda number, _: noted.append(number))
        with deferred_interrupts():
            press()
            assert noted == []
        assert noted == [signal.SIGINT]
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with deferred_interrupts():
            press()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        with deferred_interrupts():
            signal.signal(signal.SIGINT, before)
        assert signal.getsignal(signal.SIGINT) is before
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_hold_nothing(handler: Callable[..., Any]) -> None:
    seen = []

    def run() -> None:
        with deferred_interrupts():
            seen.append(signal.getsignal(signal.SIGINT))
            raise_deferred()

    other = threading.Thread(target=run)
    other.start()
    other.join()
    assert seen == [handler]


@pytest.mark.usefixtures("handler")
@pytest.mark.parametrize("where", ["step", "batch", "probe"])
def test_a_fit_is_left_at_a_boundary(
    where: str, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pressed in the middle of a computation, that is brought to its end first."""
    module, name = {
        "step": (stepper, "take_step"), "batch": (infer, "collate"), "probe": (probe, "collate"),
    }[where]  # fmt: skip
    whole, ended = getattr(module, name), []

    def middle(*given: Any) -> Any:
        press()
        found = whole(*given)
        ended.append(name)
        return found

    monkeypatch.setattr(module, name, middle)
    fitted = plain(BertClassifier, tiny_model, pooling="mean", epochs=10**9, batch_size=1)
    state = torch.get_rng_state()
    with pytest.raises(KeyboardInterrupt):
        fitted.fit(TEXTS, LABELS)
    assert ended == [name]
    assert torch.equal(torch.get_rng_state(), state)


STATE: dict[str, Callable[[], Any]] = {
    "gradients": torch.is_grad_enabled,
    "inference": torch.is_inference_mode_enabled,
    "autocast": lambda: torch.is_autocast_enabled("cpu"),
    "dtype": torch.get_default_dtype,
    "random": lambda: torch.get_rng_state().tolist(),
    "modes": torch.overrides._get_current_function_mode_stack,
    "handler": lambda: signal.getsignal(signal.SIGINT),
}


# Where Ctrl-C falls between `open` and what closes the file, the garbage collector closes it.
@pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.parametrize("mode", ["nothing", "no gradients"])
@pytest.mark.long
def test_interrupted_anywhere_it_is_the_old_state_or_the_new_one(
    mode: str, tiny_model: Path, tmp_path: Path
) -> None:
    """Fits, batches, predictions and saves, each interrupted after a random time."""
    y, rng = LABELS, np.random.default_rng(0)
    fitted = plain(BertClassifier, tiny_model, precision="bfloat16").fit(TEXTS, y)
    jobs: list[Callable[[], object]] = [
        lambda: fitted.fit(TEXTS, y),
        lambda: fitted.partial_fit(TEXTS, y),
        lambda: fitted.predict(TEXTS),
        lambda: fitted.save(tmp_path / "saved"),
    ]
    times = []
    for job in jobs:
        began = time.perf_counter()
        job()
        times.append(time.perf_counter() - began)
    n_interrupted, context = 0, {"nothing": nullcontext, **MODES}[mode]
    with context():
        before = {name: look() for name, look in STATE.items()}
        for turn in range(40):
            job, old = jobs[turn % 4], fitted._fitted
            want = fitted.predict_proba(TEXTS)
            timer = threading.Timer(
                rng.random() * times[turn % 4], os.kill, (os.getpid(), signal.SIGINT)
            )
            try:
                timer.start()
                job()
                timer.join()
            except KeyboardInterrupt:
                n_interrupted += 1
            finally:
                with suppress(KeyboardInterrupt):
                    timer.join()
            assert {name: look() for name, look in STATE.items()} == before
            new = fitted.predict_proba(TEXTS)
            if fitted._fitted is old:
                np.testing.assert_array_equal(new, want)
            else:
                assert len(fitted.history_) == fitted.n_iter_
            if turn % 4 == 3:
                loaded = BertClassifier.load(tmp_path / "saved").predict_proba(TEXTS)
                assert loaded.shape == new.shape
    gc.collect()
    assert n_interrupted >= 8
    assert device._SEEDING.lock.acquire(blocking=False)
    device._SEEDING.lock.release()
