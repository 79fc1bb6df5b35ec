"""How OpenMP's threads wait for each other where other programs need the processors, too.

An idle thread of OpenMP spins for some milliseconds, so that it can go on at once. Where programs
share the processors, the thread that it waits for may not be running, and spinning takes the time
that this one needs. libgomp, with which torch computes on Linux, lets its threads sleep almost at
once while there are more of them than processors. So more threads are started here, all asleep,
for as long as a thread that computes has to wait for a processor. The number of threads that
compute, and with it every bit of the results, stays the same. Depends on torch only.
"""

from __future__ import annotations

import ctypes
import math
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch

__all__ = ["adaptive_wait_policy"]

_INTERVAL = 0.03  # seconds between two measurements
_SMOOTHING = 0.3  # weight of the newest measurement in their moving average
_BUSY, _CALM = 0.3, 0.05  # shares of its time that a thread waits for a processor
_LINGER = 1.0  # seconds for which a thread is watched after a computation
_POLICIES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")


@contextmanager
def adaptive_wait_policy() -> Iterator[None]:
    """Let idle threads sleep, not spin, inside, while other programs keep the processors busy."""
    if torch.get_num_threads() == 1 or _runtime() is None:
        yield
        return
    with _monitor.watch(threading.get_native_id()):
        yield


@cache
def _runtime() -> Any:
    """The libgomp that torch has loaded; None for other runtimes, or if the user set a policy."""
    if any(name in os.environ for name in _POLICIES) or not Path("/proc/self/schedstat").exists():
        return None
    names = ctypes.CDLL(None)
    is_libgomp = hasattr(names, "GOMP_parallel") and not hasattr(names, "kmp_set_blocktime")
    return names if is_libgomp else None


class _Sleepers:
    """A team of sleeping threads, one more than there are processors."""

    def __init__(self) -> None:
        self.is_over = threading.Event()
        self.thread = threading.Thread(target=self._stay, daemon=True)
        self.thread.start()

    def _stay(self) -> None:
        runtime = _runtime()
        runtime.GOMP_parallel(runtime.sched_yield, None, runtime.omp_get_num_procs() + 1, 0)
        self.is_over.wait()  # its team lives as long as this thread

    def leave(self) -> None:
        """End the threads."""
        self.is_over.set()
        self.thread.join()


class _WaitMonitor:
    """Measures how long computing threads wait for a processor, as long as there are any."""

    def __init__(self) -> None:
        self._begin()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        self.lock = threading.Lock()
        self.thread: threading.Thread | None = None
        self.until: dict[int, float] = {}  # by thread: until when it is watched

    @contextmanager
    def watch(self, thread: int) -> Iterator[None]:
        """Watch a thread inside the ``with``, and some time longer."""
        with self.lock:
            outer = self.until.get(thread)
            self.until[thread] = math.inf
            if self.thread is None:
                self._start()
        try:
            yield
        finally:
            if outer != math.inf:
                with self.lock:
                    self.until[thread] = time.monotonic() + _LINGER

    def _start(self) -> None:
        thread = threading.Thread(target=self._look, daemon=True)
        with suppress(RuntimeError):  # no new threads at the end of a process
            thread.start()
            self.thread = thread

    def _look(self) -> None:
        level, before, began = 0.0, self._waited(), time.monotonic()
        sleepers: _Sleepers | None = None
        while self._is_needed():
            time.sleep(_INTERVAL)
            waited, now = self._waited(), time.monotonic()
            longest = max((waited[thread] - before.get(thread, math.inf) for thread in waited),
                          default=0.0)  # fmt: skip
            level += _SMOOTHING * (max(0.0, longest) / (now - began) - level)
            before, began = waited, now
            if sleepers is None and level > _BUSY:
                sleepers = _Sleepers()
            elif sleepers is not None and level < _CALM:
                sleepers.leave()
                sleepers = None
        if sleepers is not None:
            sleepers.leave()

    def _is_needed(self) -> bool:
        """Whether a thread is still to be watched; if not, the next one starts a new watcher."""
        with self.lock:
            now = time.monotonic()
            self.until = {thread: end for thread, end in self.until.items() if end > now}
            if not self.until:
                self.thread = None
            return bool(self.until)

    def _waited(self) -> dict[int, float]:
        """Seconds for which each watched thread has been ready to run without running."""
        seconds = {}
        for thread in list(self.until):
            with suppress(OSError):  # it has ended
                text = Path(f"/proc/self/task/{thread}/schedstat").read_text(encoding="ascii")
                seconds[thread] = int(text.split()[1]) / 1e9
        return seconds


_monitor = _WaitMonitor()
