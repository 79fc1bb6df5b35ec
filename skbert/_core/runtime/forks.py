"""Forks of a process that computes in threads.

The threads of OpenMP do not live on in a child, which would wait for them for ever, as it would
for a lock that another thread of the parent held. Locks within torch and oneDNN cannot be reached
from here: a fork waits until no other thread computes, for a minute at most.

Depends on torch only.
"""

from __future__ import annotations

import os
import threading
from contextlib import ContextDecorator

import torch

__all__ = ["ForkSafeLock", "deferred_forks"]

_MAX_WAIT = 60.0  # seconds that a fork waits at most


class ForkSafeLock:
    """A lock that is free in a forked process.

    Attributes
    ----------
    lock : threading.RLock
        For ``with``.
    """

    def __init__(self) -> None:
        self._reset()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self.lock = threading.RLock()


class _ForkGate(ContextDecorator):
    """Keeps computations and forks of different threads apart: each waits for the other."""

    def __init__(self) -> None:
        self.depths: dict[int, int] = {}  # of computations within each other, by thread
        self.begin_child()

    def __enter__(self) -> None:
        """Begin to compute, once no other thread forks."""
        thread = threading.get_ident()
        with self.changed:
            if thread not in self.depths:
                self.changed.wait_for(lambda: self.n_forks == 0)
            self.depths[thread] = self.depths.get(thread, 0) + 1

    def __exit__(self, *error: object) -> None:
        """End to compute."""
        thread = threading.get_ident()
        with self.changed:
            self.depths[thread] -= 1
            if self.depths[thread] == 0:
                del self.depths[thread]
            if self.n_forks:
                self.changed.notify_all()

    def begin_fork(self) -> None:
        """Wait until no other thread computes, for `_MAX_WAIT` seconds at most."""
        thread = threading.get_ident()
        with self.changed:
            self.n_forks += 1
            self.changed.wait_for(lambda: self.depths.keys() <= {thread}, _MAX_WAIT)

    def end_fork(self) -> None:
        """Let the others go on."""
        with self.changed:
            self.n_forks -= 1
            self.changed.notify_all()

    def begin_child(self) -> None:
        """Forget the threads that a child does not have."""
        thread = threading.get_ident()
        self.depths = {each: depth for each, depth in self.depths.items() if each == thread}
        self.changed = threading.Condition()
        self.n_forks = 0


_gate = _ForkGate()


def deferred_forks() -> _ForkGate:
    """Make forks by other threads wait until the ``with`` block ends."""
    return _gate


def _begin_child() -> None:
    _gate.begin_child()
    torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_gate.begin_fork,
        after_in_parent=_gate.end_fork,
        after_in_child=_begin_child,
    )
