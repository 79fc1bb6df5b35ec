"""Ctrl-C, deferred to a point where it breaks nothing.

Python raises KeyboardInterrupt between any two instructions of the main thread, also where a mode
of torch was just changed and nothing will change it back. Inside `deferred_interrupts` it is noted
instead, and raised by `raise_deferred`, after a step or a batch, or at the end. Inside
`before_interrupts` something is done before that, and SIGTERM is deferred, too.
Depends on the standard library only.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import FrameType

__all__ = ["before_interrupts", "deferred_interrupts", "is_interrupted", "raise_deferred"]

_Handler = Callable[[int, FrameType | None], object] | int | None


class _Deferral:
    """Notes a signal instead of passing it on to the handler that was there before."""

    def __init__(self, number: signal.Signals, handler: _Handler) -> None:
        self._number, self._handler = number, handler
        self.is_pending = False
        self.before: Callable[[], object] | None = None  # done before the signal is passed on

    def handle(self, _number: int, frame: FrameType | None) -> None:
        """Note the signal; a second one is passed on at once."""
        if self.is_pending:
            self.before = None
            self.pass_on(frame)
        self.is_pending = True

    def pass_on(self, frame: FrameType | None = None) -> None:
        """Pass a noted signal on."""
        if not self.is_pending:
            return
        if self.before is not None:
            self.before()
        self.is_pending = False
        if callable(self._handler):
            self._handler(self._number, frame)
        else:  # the default is not Python's to carry out
            signal.signal(self._number, self._handler)
            os.kill(os.getpid(), self._number)


_innermost: dict[signal.Signals, _Deferral] = {}  # of the main thread


def _deferral_by(handler: _Handler) -> _Deferral | None:
    """The deferral that a handler of a signal belongs to, if it belongs to one."""
    owner = getattr(handler, "__self__", None)
    return owner if isinstance(owner, _Deferral) else None


def _deferrals() -> list[_Deferral]:
    """The deferrals of now, innermost for each signal; none outside the main thread."""
    is_main = threading.current_thread() is threading.main_thread()
    return [*_innermost.values()] if is_main else []


@contextmanager
def _deferred(number: signal.Signals, handler: _Handler) -> Iterator[None]:
    deferral, outer = _Deferral(number, handler), _innermost.get(number)
    signal.signal(number, deferral.handle)
    _innermost[number] = deferral
    try:
        yield
    finally:
        del _innermost[number]
        if outer is not None:
            _innermost[number] = outer
        if _deferral_by(signal.getsignal(number)) is deferral:
            signal.signal(number, handler)
        deferral.pass_on()


@contextmanager
def deferred_interrupts() -> Iterator[None]:
    """Defer Ctrl-C inside the ``with``; in threads other than the main one nothing changes."""
    is_main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGINT)
    if not (is_main and callable(handler)) or _deferral_by(handler) is not None:
        yield
        return
    with _deferred(signal.SIGINT, handler):
        yield


@contextmanager
def before_interrupts(action: Callable[[], object] | None) -> Iterator[None]:
    """Defer Ctrl-C and SIGTERM inside the ``with``, and do something before they are passed on.

    Neither is deferred outside the main thread, nor SIGTERM where it is ignored or handled by
    other than Python code.
    """
    is_main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM)
    can_defer = is_main and (callable(handler) or handler is signal.SIG_DFL)
    own = _deferred(signal.SIGTERM, handler) if can_defer else nullcontext()
    with own, deferred_interrupts():
        outer = [(deferral, deferral.before) for deferral in _deferrals()]
        for deferral, _ in outer:
            deferral.before = action
        try:
            yield
        finally:
            for deferral, before in outer:
                deferral.before = before


def is_interrupted() -> bool:
    """Whether a signal was deferred and is still to be passed on."""
    return any(deferral.is_pending for deferral in _deferrals())


def raise_deferred() -> None:
    """Raise the KeyboardInterrupt that was deferred, if there was one."""
    for deferral in _deferrals():
        deferral.pass_on()
