"""Describes the machine a benchmark ran on; imports nothing of the other scripts.

Run it alone to print the description: ``python examples/benchmarks/machine.py``.
"""

from __future__ import annotations

import json
import os
import platform
from importlib import metadata
from pathlib import Path

import torch

PACKAGES = ("torch", "transformers", "tokenizers", "accelerate", "scikit-learn", "numpy", "skbert")
BF16_FLAGS = ("amx_bf16", "avx512_bf16")
INT8_FLAGS = ("amx_int8", "avx512_vnni")


def describe() -> dict[str, object]:
    """Describe the processor, its bf16 instructions, the threads in use and the versions.

    Returns
    -------
    dict of str to object
        Plain values only, ready for JSON. ``load`` is the machine's load average over the last
        minute: a benchmark on a busy machine says so itself.
    """
    model, flags = _processor()
    return {
        "cpu": model,
        "cores": _usable_cores(),
        "threads": torch.get_num_threads(),
        "vector": torch.backends.cpu.get_cpu_capability(),
        "bf16": [flag for flag in BF16_FLAGS if flag in flags],
        "int8": [flag for flag in INT8_FLAGS if flag in flags],
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
    }


def precisions() -> tuple[str, ...]:
    """Name the types whose products this machine has instructions for."""
    _, flags = _processor()
    if torch.cuda.is_available():
        return ("float32", "bfloat16")
    low = {"bfloat16": BF16_FLAGS, "int8": INT8_FLAGS}
    return ("float32", *(name for name, needed in low.items() if flags & {*needed}))


def headline(machine: dict[str, object]) -> str:
    """Say in one line what the reader of a table must know about the machine."""
    versions = machine["versions"]
    assert isinstance(versions, dict)
    bf16 = machine["bf16"]
    assert isinstance(bf16, list)
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['threads']} torch threads, "
        f"{machine['vector']}, bf16 by {' and '.join(bf16) or 'no instruction'}, "
        f"GPU {machine['gpu'] or 'none'}, load {machine['load']}; Python {machine['python']}, "
        f"torch {versions['torch']}, transformers {versions['transformers']}"
    )


def _processor() -> tuple[str, set[str]]:
    """Name of the processor and its instruction flags (no flags where Linux is not running)."""
    listing = Path("/proc/cpuinfo")
    if not listing.exists():
        return platform.processor() or platform.machine(), set()
    fields: dict[str, str] = {}
    for line in listing.read_text().splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    name = fields.get("model name", platform.machine())
    numbers = [fields.get(key, "?") for key in ("cpu family", "model")]
    return f"{name} (family {numbers[0]}, model {numbers[1]})", set(
        fields.get("flags", "").split()
    )


def _usable_cores() -> int:
    """Count the cores this process may use, which can be fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _version(package: str) -> str | None:
    """Version of an installed package, None where it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    print(json.dumps(describe(), indent=2))
