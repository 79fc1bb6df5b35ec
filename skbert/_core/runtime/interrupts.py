"""Ctrl-C that waits for a place where it breaks nothing.

Python raises KeyboardInterrupt between any two instructions of the main thread, also where a mode
of torch was just changed and nothing will change it back. Inside `held` it is noted instead, and
raised where the code says that it may be: after a step or a batch, or at the end. Depends on the
standard library only.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["held", "let_through"]


class _Held:
    """Notes Ctrl-C in the place of the handler that there was."""

    def __init__(self, handler: Callable[..., Any]) -> None:
        self.handler = handler
        self.waits = False

    def note(self, number: int, frame: Any) -> None:
        """Be the handler: wait, but not for who presses it twice."""
        if self.waits:
            self.waits = False
            self.handler(number, frame)
        self.waits = True

    def let_through(self) -> None:
        """Do now what was to be done."""
        if self.waits:
            self.waits = False
            self.handler(signal.SIGINT, None)


def _holder_of(handler: Any) -> _Held | None:
    """What holds Ctrl-C, if anything does."""
    owner = getattr(handler, "__self__", None)
    return owner if isinstance(owner, _Held) else None


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


@contextmanager
def held() -> Iterator[None]:
    """Hold Ctrl-C inside; in other threads than the main one there is none to hold."""
    handler = signal.getsignal(signal.SIGINT)
    if not (_is_main_thread() and callable(handler)) or _holder_of(handler) is not None:
        yield
        return
    holder = _Held(handler)
    signal.signal(signal.SIGINT, holder.note)
    try:
        yield
    finally:
        if _holder_of(signal.getsignal(signal.SIGINT)) is holder:
            signal.signal(signal.SIGINT, handler)
        holder.let_through()


def let_through() -> None:
    """Raise what was held, here."""
    holder = _holder_of(signal.getsignal(signal.SIGINT))
    if holder is not None and _is_main_thread():
        holder.let_through()
