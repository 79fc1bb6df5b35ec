"""Threads that wait sleep where others want the processors, and nothing else changes."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from skbert import BertClassifier
from skbert._core.runtime import wait_policy
from skbert._core.runtime.wait_policy import adaptive_wait_policy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from conftest import Sentiment

HERE = threading.get_native_id()

serves = pytest.mark.skipif(
    not Path("/proc/self/schedstat").exists() or wait_policy._runtime() is None,
    reason="torch computes without libgomp here, or OMP_WAIT_POLICY or GOMP_SPINCOUNT is set",
)


@pytest.fixture
def two_threads() -> Iterator[None]:
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


def wait_until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.01)


def threads() -> list[Path]:
    return [path for path in Path("/proc/self/task").iterdir() if path.name != str(HERE)]


def times_asleep() -> int:
    """How often other threads than this one have gone to sleep."""
    lines = [line for path in threads() for line in (path / "status").read_text().splitlines()]
    return sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt"))


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Any:
    """One that looks often; ``share`` is how much of its time a thread waits."""

    class Watch(wait_policy._WaitMonitor):
        share = 0.0

        def _waited(self) -> dict[int, float]:
            return dict.fromkeys(self.until, self.share * time.monotonic())

    team: list[Any] = []

    class Sleepers:
        def __init__(self) -> None:
            team.append(self)

        def leave(self) -> None:
            team.remove(self)

    monkeypatch.setattr(wait_policy, "_INTERVAL", 0.005)
    monkeypatch.setattr(wait_policy, "_LINGER", 0.05)
    monkeypatch.setattr(wait_policy, "_Sleepers", Sleepers)
    watch: Any = Watch()
    watch.team = team
    return watch


def test_there_are_sleepers_while_somebody_who_computes_waits(watch: Any) -> None:
    watch.share = 0.9
    with watch.watch(HERE):
        wait_until(lambda: len(watch.team) == 1)
        time.sleep(0.05)
        assert len(watch.team) == 1
        watch.share = 0.0
        wait_until(lambda: not watch.team)
    wait_until(lambda: watch.thread is None)


def test_nobody_waits_on_an_idle_machine(watch: Any) -> None:
    watch.share = 0.1
    with watch.watch(HERE):
        time.sleep(0.2)
        assert watch.thread.is_alive()
        assert not watch.team


def test_the_last_one_out_ends_the_watch_and_the_sleepers(watch: Any) -> None:
    watch.share = 0.9
    with watch.watch(HERE):
        with watch.watch(HERE):
            thread = watch.thread
        assert watch.until == {HERE: math.inf}  # a fit goes on after it has predicted
        wait_until(lambda: len(watch.team) == 1)
    thread.join(30)
    assert not thread.is_alive()
    assert (watch.thread, watch.until, watch.team) == (None, {}, [])
    with watch.watch(HERE):  # and another one begins
        wait_until(lambda: len(watch.team) == 1)
    wait_until(lambda: watch.thread is None)


def test_one_watch_does_for_what_comes_soon(watch: Any) -> None:
    with watch.watch(HERE):
        thread = watch.thread
    with watch.watch(HERE):
        assert watch.thread is thread


def test_an_error_ends_it_too(watch: Any) -> None:
    with pytest.raises(KeyboardInterrupt), watch.watch(HERE):
        raise KeyboardInterrupt
    wait_until(lambda: watch.thread is None)


@serves
def test_how_long_a_thread_has_waited_is_read() -> None:
    watch = wait_policy._WaitMonitor()
    watch.until = {HERE: math.inf, 2**22 + 1: math.inf}  # no thread has that number
    assert watch._waited().keys() == {HERE}
    assert watch._waited()[HERE] >= 0


@serves
@pytest.mark.usefixtures("two_threads")
def test_sleepers_let_waiting_threads_sleep() -> None:
    numbers = torch.ones(1 << 17)

    def sleeps() -> int:
        """How often another thread sleeps while there are fifty short times between its work."""
        before = times_asleep()
        for _ in range(50):
            numbers.add_(1)
            end = time.perf_counter() + 0.0005
            while time.perf_counter() < end:
                pass
        return times_asleep() - before

    sleeps()
    n_threads, n_awake = len(threads()), sleeps()
    sleepers = wait_policy._Sleepers()
    wait_until(lambda: len(threads()) > n_threads + len(os.sched_getaffinity(0)))
    n_asleep = sleeps()
    sleepers.leave()
    wait_until(lambda: len(threads()) <= n_threads)
    n_again = sleeps()
    assert max(n_awake, n_again) < n_asleep  # and all is as it was before


@serves
@pytest.mark.usefixtures("two_threads")
def test_fits_and_predictions_are_watched(
    tiny_model: Path, sentiment: Sentiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = wait_policy._WaitMonitor()
    monkeypatch.setattr(wait_policy, "_monitor", watch)
    classifier = BertClassifier(tiny_model, epochs=1, device="cpu", random_state=0)
    classifier.fit(sentiment.texts, sentiment.labels)
    assert watch.until.keys() == {threading.get_native_id()}
    watch.until.clear()
    classifier.predict(sentiment.texts)
    assert watch.until.keys() == {threading.get_native_id()}


@serves
@pytest.mark.usefixtures("two_threads")
def test_results_are_the_same_bits(tiny_model: Path, sentiment: Sentiment) -> None:
    def outputs() -> bytes:
        classifier = BertClassifier(tiny_model, epochs=1, device="cpu", random_state=0)
        found = classifier.fit(sentiment.texts, sentiment.labels).predict_proba(sentiment.texts)
        return bytes(found.tobytes())

    alone = outputs()
    sleepers = wait_policy._Sleepers()
    assert outputs() == alone
    sleepers.leave()


def test_one_thread_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wait_policy, "_monitor", None)
    assert torch.get_num_threads() == 1
    with adaptive_wait_policy():
        pass


@pytest.mark.long  # a process each
@pytest.mark.parametrize(
    ("name", "setting"), [("OMP_WAIT_POLICY", "passive"), ("GOMP_SPINCOUNT", "1000")]
)
def test_what_the_user_has_set_holds(name: str, setting: str) -> None:
    script = "from skbert._core.runtime import wait_policy; print(wait_policy._runtime())"
    done = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, name: setting}, check=True,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout.strip() == "None"


@serves
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # of forks beside threads
def test_a_forked_process_watches_anew(watch: Any) -> None:
    with watch.watch(HERE):
        child = os.fork()
        if child == 0:
            os._exit(0 if watch.thread is None and not watch.until else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert watch.thread is not None
