"""Progress bars: tqdm's with a lock of its own, and one over rows, for all work but training.

Depends on tqdm only.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

from tqdm.auto import tqdm

__all__ = ["Bar", "ProgressBar"]

_DELAY = 1.0  # seconds before it is shown


class Bar(tqdm):  # type: ignore[misc]
    """A progress bar of tqdm that waits for no other process.

    tqdm's own lock is shared with forked processes, whether they show bars or not: one that is
    killed while it holds the lock keeps it, and all others wait for ever.
    """

    @classmethod
    def renew_lock(cls) -> None:
        """Replace the lock by one that is free."""
        cls.set_lock(threading.RLock())


Bar.renew_lock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=Bar.renew_lock)  # a thread of the parent may hold it


class _Verbose(Protocol):
    verbose: int


class ProgressBar:
    """Shows the rows that are done, their rate and the time left, if the estimator is verbose.

    It appears after a second, so that short work shows nothing, and is closed by ``with``.

    Parameters
    ----------
    estimator : estimator
        Its ``verbose`` turns the bar on, and its class is the title.
    total : int
        How many rows there are.
    unit : str, default="row"
        What is counted.
    n_done : int, default=0
        How many rows need no computing.

    Attributes
    ----------
    on_rows : callable or None
        To be called with the number of rows computed since the last call; None if the estimator is
        not verbose.
    """

    def __init__(
        self, estimator: _Verbose, total: int, unit: str = "row", n_done: int = 0
    ) -> None:
        # The mean rate: short rows are computed first, so the newest rate says less.
        self._bar: Bar | None = None
        self.on_rows: Callable[[int], object] | None = None
        if estimator.verbose:
            title = type(estimator).__name__
            self._bar = Bar(
                total=total, initial=n_done, desc=title, unit=unit, delay=_DELAY, smoothing=0.0
            )
            self.on_rows = self._update

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        if self._bar is None:
            return
        if kind is None:
            self._update(self._bar.total)
        self._bar.close()

    def skip(self, n_rows: int) -> None:
        """Show rows as done that took no computing, which the rate leaves out."""
        if self._bar is not None:
            self._bar.initial += n_rows
            self._update(n_rows)

    def _update(self, n_rows: int) -> None:
        """Show more rows as done; rows that are computed again are not counted again."""
        assert self._bar is not None
        self._bar.update(min(n_rows, self._bar.total - self._bar.n))
