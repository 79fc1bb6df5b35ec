"""Processes forked from this one: what they may not inherit.

The threads of OpenMP do not live on in a child, and whoever waits for them there waits for ever;
so does who waits for a lock that another thread of the parent held. Depends on torch only.
"""

from __future__ import annotations

import os
import threading

import torch

__all__ = ["Turns"]


class Turns:
    """One thread at a time.

    Attributes
    ----------
    lock : threading.RLock
        For ``with``; in a forked process it is free.
    """

    def __init__(self) -> None:
        self._begin()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        self.lock = threading.RLock()


def _compute_alone() -> None:
    torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_compute_alone)
