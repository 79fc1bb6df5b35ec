"""Ctrl-C that is deferred to a point where it breaks nothing.

Python raises KeyboardInterrupt between any two instructions of the main thread, also where a mode
of torch was just changed and nothing will change it back. Inside `deferred_interrupts` it is noted
instead, and raised by `raise_deferred`, after a step or a batch, or at the end.
Depends on the standard library only.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["deferred_interrupts", "raise_deferred"]


class _Deferral:
    """Notes Ctrl-C instead of passing it on to the handler that was there before."""

    def __init__(self, handler: Callable[..., Any]) -> None:
        self._handler = handler
        self._is_pending = False

    def handle(self, number: int, frame: Any) -> None:
        """Note the signal; a second one is passed on at once."""
        if self._is_pending:
            self._is_pending = False
            self._handler(number, frame)
        self._is_pending = True

    def pass_on(self) -> None:
        """Pass a noted signal on."""
        if self._is_pending:
            self._is_pending = False
            self._handler(signal.SIGINT, None)


def _deferral_of(handler: Any) -> _Deferral | None:
    """The deferral that a signal handler belongs to, if it belongs to one."""
    owner = getattr(handler, "__self__", None)
    return owner if isinstance(owner, _Deferral) else None


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


@contextmanager
def deferred_interrupts() -> Iterator[None]:
    """Defer Ctrl-C inside the ``with``; in threads other than the main one nothing changes."""
    handler = signal.getsignal(signal.SIGINT)
    if not (_is_main_thread() and callable(handler)) or _deferral_of(handler) is not None:
        yield
        return
    deferral = _Deferral(handler)
    signal.signal(signal.SIGINT, deferral.handle)
    try:
        yield
    finally:
        if _deferral_of(signal.getsignal(signal.SIGINT)) is deferral:
            signal.signal(signal.SIGINT, handler)
        deferral.pass_on()


def raise_deferred() -> None:
    """Raise the KeyboardInterrupt that was deferred, if there was one."""
    deferral = _deferral_of(signal.getsignal(signal.SIGINT))
    if deferral is not None and _is_main_thread():
        deferral.pass_on()
