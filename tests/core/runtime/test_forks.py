"""Processes forked from one that computes with several threads: they compute, too."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from skbert._core.runtime.forks import ForkSafeLock, deferred_forks

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system forks no processes")

BEGIN = """
import multiprocessing, os, signal, sys, threading, time, warnings
import joblib, numpy as np, torch
from sklearn.model_selection import cross_val_score
from skbert import BertClassifier

warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
torch.set_num_threads(2)
X = [f"the {thing} is {word}" for thing in ("book", "room") for word in ("good", "bad")] * 5
y = ["yes", "no"] * 10

def new(**params):
    params = {"epochs": 1, "device": "cpu", "random_state": 0, "pooling": "mean"} | params
    return BertClassifier(sys.argv[1], **params)

fitted = new().fit(X, y)
want = fitted.predict_proba(X)

def predicts(_=0):
    return np.allclose(fitted.predict_proba(X), want, atol=1e-3)

def fits(_=0):
    return np.allclose(new().fit(X, y).predict_proba(X), want, atol=1e-2)

def fork(job):
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # ends it where it hangs
        os._exit(0 if job() else 1)
    return os.waitpid(child, 0)[1]
"""

STORIES = {
    "after a fit": """
results = [fork(job) for job in [predicts] * 10 + [fits] * 3]
""",
    "while another thread fits": """
def fits_for_ever():
    while True:
        new(epochs=200).fit(X, y)

other = threading.Thread(target=fits_for_ever, daemon=True)
other.start()
results = []
for job in [fits, predicts] * 4:
    time.sleep(0.03)
    results.append(fork(job))
assert other.is_alive()
os._exit(len(results) - results.count(0))
""",
    "in a pool": """
with multiprocessing.get_context("fork").Pool(2) as pool:
    jobs = [pool.map_async(job, range(4), 1) for job in (predicts, fits)]
    results = [0 if ok else 1 for job in jobs for ok in job.get(60)]
""",
    "with joblib": """
alone = cross_val_score(new(), X, y, cv=2, error_score="raise")
with joblib.parallel_config("multiprocessing", n_jobs=2):
    signal.alarm(120)
    scores = cross_val_score(new(), X, y, cv=2, error_score="raise")
results = [0 if len(scores) == len(alone) else 1]
""",
}
END = "\nassert results.count(0) == len(results), results\n"


@pytest.mark.long  # four processes that fork others
@pytest.mark.parametrize("story", STORIES)
def test_forked_processes_do_not_hang(story: str, tiny_model: Path) -> None:
    script = BEGIN + STORIES[story] + END
    environment = os.environ | {"OMP_NUM_THREADS": "2"}
    done = subprocess.run(
        [sys.executable, "-c", script, str(tiny_model)], env=environment, timeout=500,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]


def in_a_child(ok: object) -> bool:
    """What a function says in a forked process."""
    child = os.fork()
    if child == 0:
        os._exit(0 if ok() else 1)  # type: ignore[operator]
    return os.waitpid(child, 0)[1] == 0


def test_a_lock_that_another_thread_holds_is_free_in_a_child() -> None:
    turns, taken, end = ForkSafeLock(), threading.Event(), threading.Event()

    def hold() -> None:
        with turns.lock:
            taken.set()
            end.wait(60)

    other = threading.Thread(target=hold)
    other.start()
    assert taken.wait(60)
    try:
        assert in_a_child(lambda: turns.lock.acquire(blocking=False))
        assert not turns.lock.acquire(blocking=False)
    finally:
        end.set()
        other.join()


def test_a_fork_waits_until_no_other_thread_computes() -> None:
    begun, forked, end = threading.Event(), threading.Event(), threading.Event()

    def compute() -> None:
        with deferred_forks(), deferred_forks():
            begun.set()
            end.wait(60)

    def fork() -> None:
        if in_a_child(lambda: True):
            forked.set()

    threads = [threading.Thread(target=job) for job in (compute, fork)]
    threads[0].start()
    assert begun.wait(60)
    try:
        threads[1].start()
        assert not forked.wait(0.3)
        end.set()
        assert forked.wait(60)
    finally:
        end.set()
        for thread in threads:
            thread.join()


def test_who_computes_may_fork_and_so_may_its_child() -> None:
    def computes() -> bool:
        with deferred_forks():
            return in_a_child(lambda: True)

    with deferred_forks():
        assert in_a_child(computes)
    assert in_a_child(computes)
