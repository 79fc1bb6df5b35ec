"""Freed memory that a process keeps, because to touch fresh memory first takes long.

glibc, which allocates for torch on a CPU, returns large blocks to the system one by one, and the
end of its heap if much of it is free, so that each batch of tensors would get fresh memory. Once a
block of up to 32 MiB has been freed it keeps blocks up to that size, and twice as much at the end
of the heap. Other allocators do as they do. Depends on torch only.
"""

from __future__ import annotations

from functools import cache

import torch

__all__ = ["keep_freed_memory"]

_MOST_BYTES = (32 << 20) - (64 << 10)  # a little less, for what glibc adds to a block


@cache
def keep_freed_memory() -> None:
    """Let glibc keep freed memory from now on, by freeing a large block that is never touched."""
    torch.empty(_MOST_BYTES, dtype=torch.uint8, device="cpu")
