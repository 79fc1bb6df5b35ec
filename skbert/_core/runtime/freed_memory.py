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


@contextmanager
def all_memory_kept() -> Iterator[None]:
    """Let glibc return nothing from the end of its heap meanwhile.

    Later it does as after `keep_freed_memory`, whatever `mallopt` was told before, which cannot be
    read. Of several threads inside at once the first that leaves ends it for all.
    """
    keep_freed_memory()
    set_option = _mallopt()
    set_option(_TRIM_THRESHOLD, _NEVER)
    try:
        yield
    finally:
        set_option(_TRIM_THRESHOLD, 2 * _MOST_BYTES)


@cache
def _mallopt() -> Callable[[int, int], object]:
    """What sets options of glibc's allocator, if there is one and the environment sets none."""
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    is_set = "malloc" in tunables or any(name.startswith("MALLOC_") for name in os.environ)
    libc = ctypes.CDLL(None) if sys.platform == "linux" and not is_set else None
    return getattr(libc, "mallopt", lambda option, value: None)
