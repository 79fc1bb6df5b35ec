"""The sizes that a model may have, and the memory that they take.

Depends on the records of the families only.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from skbert._core.families.record import Family

__all__ = ["MOST_LABELS", "is_whole_number", "memory_fault", "size_faults"]

MOST_LABELS = 1_000_000


def is_whole_number(value: object, least: int, most: int) -> bool:
    """Whether a value is an int within these bounds, and no bool."""
    return type(value) is int and least <= value <= most


def size_faults(family: Family, config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Each size of a configuration that is not possible, and what would be right."""
    for key, (_, least, most) in family.sizes.items():
        if key in config and not is_whole_number(config[key], least, most):
            yield key, f"a whole number from {least} to {most}"


def memory_fault(n_weights: int, bytes_each: int) -> str | None:
    """Why the memory of this machine cannot hold so many weights; None if it can."""
    needed, memory = n_weights * bytes_each, _machine_memory()
    if memory is None or needed <= memory:
        return None
    return (
        f"{n_weights:,} weights of {bytes_each} bytes take {needed / 1e9:,.1f} GB, and this"
        f" machine has {memory / 1e9:,.1f} GB"
    )


def _machine_memory() -> int | None:
    """Bytes of memory that this process can use; None where the system does not say."""
    limits = []
    with suppress(AttributeError, OSError, ValueError):  # no sysconf, or not these names
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    with suppress(OSError, ValueError):  # no control group, or one without a limit
        limits.append(int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii")))
    return min(limits, default=None)
