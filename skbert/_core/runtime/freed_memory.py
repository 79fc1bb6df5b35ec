"""Freed memory that a process keeps, because to touch fresh memory first takes long.

glibc, which allocates for torch on a CPU, returns large blocks to the system one by one, and the
end of its heap if much of it is free, so that each batch of tensors would get fresh memory. Once a
block of up to 32 MiB has been freed it keeps blocks up to that size, and twice as much at the end
of the heap; while a model is trained, whose every step frees all activations, it keeps the end,
too. Other allocators, and glibc where variables of the environment set it, do as they do. Depends
on torch only.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import torch

__all__ = ["all_memory_kept", "keep_freed_memory"]

_MOST_BYTES = (32 << 20) - (64 << 10)  # a little less, for what glibc adds to a block
_TRIM_THRESHOLD, _NEVER = -1, -1  # as in malloc.h, and mallopt(3)


@cache
def keep_freed_memory() -> None:
    """Let glibc keep freed memory from now on, by freeing a large block that is never touched."""
    torch.empty(_MOST_BYTES, dtype=torch.uint8, device="cpu")


class _Keepers:
    """How many keep all memory now."""

    def __init__(self) -> None:
        self.n, self.lock = 0, threading.Lock()

    def change(self, by: int) -> None:
        """Add to their number; glibc is told of the first and of the last."""
        with self.lock:
            before, self.n = self.n, self.n + by
            if set_option := _mallopt() if 0 in (before, self.n) else None:
                set_option(_TRIM_THRESHOLD, _NEVER if self.n else 2 * _MOST_BYTES)


_keepers = _Keepers()


@contextmanager
def all_memory_kept() -> Iterator[None]:
    """Let glibc return nothing from the end of its heap meanwhile; later, as it did before."""
    keep_freed_memory()
    _keepers.change(1)
    try:
        yield
    finally:
        _keepers.change(-1)


@cache
def _mallopt() -> Callable[[int, int], int] | None:
    """What sets options of glibc's allocator, unless the environment does."""
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    if "malloc" in tunables or any(name.startswith("MALLOC_") for name in os.environ):
        return None
    return getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
