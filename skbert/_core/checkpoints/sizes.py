"""The sizes that a model may have, and the memory that they take.

Depends on the standard library only.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

__all__ = ["SIZES", "count_weights", "is_whole", "memory_fault", "size_faults"]

SIZES = {  # key: (BERT's own default, least, most)
    "vocab_size": (30522, 1, 5_000_000),
    "hidden_size": (768, 1, 16_384),
    "num_hidden_layers": (12, 1, 256),
    "num_attention_heads": (12, 1, 1024),
    "intermediate_size": (3072, 1, 131_072),
    "max_position_embeddings": (512, 2, 1_000_000),
    "type_vocab_size": (2, 1, 1024),
    "chunk_size_feed_forward": (0, 0, 1_000_000),
}


def is_whole(value: object, least: int, most: int) -> bool:
    """Whether a value is an int within these bounds; a bool is none."""
    return type(value) is int and least <= value <= most


def size_faults(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Each size of a configuration that is not possible, and what would be right."""
    for key, (_, least, most) in SIZES.items():
        if key in config and not is_whole(config[key], least, most):
            yield key, f"a whole number from {least} to {most}"


def count_weights(config: Mapping[str, Any]) -> int:
    """The approximate number of weights in a model of these sizes, without head and biases."""
    sizes: dict[str, int] = {key: config.get(key, usual) for key, (usual, _, _) in SIZES.items()}
    hidden, heads = sizes["hidden_size"], sizes["num_attention_heads"]
    rows = sizes["vocab_size"] + sizes["max_position_embeddings"] + sizes["type_vocab_size"]
    layer = 4 * hidden**2 + 2 * hidden * sizes["intermediate_size"]
    if config.get("position_embedding_type", "absolute") != "absolute":
        layer += 2 * sizes["max_position_embeddings"] * (hidden // heads)
    n_pruned = sum(len(heads) for heads in config.get("pruned_heads", {}).values())
    n_weights = rows * hidden + sizes["num_hidden_layers"] * layer
    return n_weights - n_pruned * 4 * hidden**2 // heads


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
