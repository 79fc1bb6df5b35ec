"""What a process may not inherit from the one it was forked from.

The threads of OpenMP do not live on in a child, which would wait for them for ever, as it would
for a lock that another thread of the parent held. Depends on torch only.
"""

from __future__ import annotations

import os
import threading

import torch

__all__ = ["ForkSafeLock"]


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


def _use_one_thread() -> None:
    torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_use_one_thread)
