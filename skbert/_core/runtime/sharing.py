"""Threads that wait for each other while other programs want the processors, too.

A thread of OpenMP that has nothing to do stays awake for some milliseconds, to begin at once with
what comes next. Where programs share the processors, whoever it waits for may not be running, and
it wastes the time that the other one needs. libgomp, which torch computes with on Linux, lets its
threads sleep almost at once while it has more of them than there are processors. So here it gets
more, all asleep, for as long as somebody who computes has to wait for a processor. The number of
threads that compute, and with it every bit of the results, stays the same. Depends on torch only.
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

__all__ = ["sharing_processors"]

_LOOK = 0.03  # seconds from one look to the next
_NEWEST = 0.3  # what the last look counts, beside all before it
_BUSY, _CALM = 0.3, 0.05  # shares of its time that a thread is ready to run and does not
_LINGER = 1.0  # seconds after a computation, in which another one may come
_POLICIES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")


@contextmanager
def sharing_processors() -> Iterator[None]:
    """Let threads that wait sleep inside, while other programs keep the processors busy."""
    if torch.get_num_threads() == 1 or _runtime() is None:
        yield
        return
    with _watch.over(threading.get_native_id()):
        yield


@cache
def _runtime() -> Any:
    """Libgomp as torch has loaded it; None where that is another one, or the user has chosen."""
    if any(name in os.environ for name in _POLICIES) or not Path("/proc/self/schedstat").exists():
        return None
    names = ctypes.CDLL(None)
    is_libgomp = hasattr(names, "GOMP_parallel") and not hasattr(names, "kmp_set_blocktime")
    return names if is_libgomp else None


class _Sleepers:
    """A team of threads, one more than there are processors; all of them sleep."""

    def __init__(self) -> None:
        self.is_over = threading.Event()
        self.thread = threading.Thread(target=self._stay, daemon=True)
        self.thread.start()

    def _stay(self) -> None:
        runtime = _runtime()
        runtime.GOMP_parallel(runtime.sched_yield, None, runtime.omp_get_num_procs() + 1, 0)
        self.is_over.wait()  # its team lives as long as this thread

    def leave(self) -> None:
        """Have them no more."""
        self.is_over.set()
        self.thread.join()


class _Watch:
    """Looks how long those who compute have to wait for a processor, while there are any."""

    def __init__(self) -> None:
        self._begin()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        self.lock = threading.Lock()
        self.thread: threading.Thread | None = None
        self.until: dict[int, float] = {}  # by thread: when to forget it

    @contextmanager
    def over(self, thread: int) -> Iterator[None]:
        """Watch a thread inside, and some time longer."""
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
        while self._goes_on():
            time.sleep(_LOOK)
            waited, now = self._waited(), time.monotonic()
            longest = max((waited[thread] - before.get(thread, math.inf) for thread in waited),
                          default=0.0)  # fmt: skip
            level += _NEWEST * (max(0.0, longest) / (now - began) - level)
            before, began = waited, now
            if sleepers is None and level > _BUSY:
                sleepers = _Sleepers()
            elif sleepers is not None and level < _CALM:
                sleepers.leave()
                sleepers = None
        if sleepers is not None:
            sleepers.leave()

    def _goes_on(self) -> bool:
        """Whether there is still somebody to watch; else the next one starts another thread."""
        with self.lock:
            now = time.monotonic()
            self.until = {thread: end for thread, end in self.until.items() if end > now}
            if not self.until:
                self.thread = None
            return bool(self.until)

    def _waited(self) -> dict[int, float]:
        """Seconds for which each thread has been ready to run, and did not."""
        seconds = {}
        for thread in list(self.until):
            with suppress(OSError):  # it has ended
                text = Path(f"/proc/self/task/{thread}/schedstat").read_text(encoding="ascii")
                seconds[thread] = int(text.split()[1]) / 1e9
        return seconds


_watch = _Watch()
