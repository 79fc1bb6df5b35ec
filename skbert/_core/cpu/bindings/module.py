"""The compiled module, None where it was not built, and what it can compute.

The wrappers beside this module are what calls it. Depends on torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch

try:
    kernels: Any = import_module("skbert._core.cpu.kernels")
except ImportError:  # no compiler where this was installed
    kernels = None

__all__ = [
    "DTYPES",
    "LANES",
    "PANEL",
    "check_processor",
    "has_bf16_products",
    "has_kernels",
    "kernels",
]

LANES = 16  # numbers in a vector, of which sizes are multiples
PANEL = 32  # columns of a product that are computed together
DTYPES = (torch.float32, torch.bfloat16)


def has_kernels() -> bool:
    """Whether the kernels were built."""
    return kernels is not None


def has_bf16_products() -> bool:
    """Whether the kernels were built, and the processor multiplies bfloat16 in vectors."""
    return bool(getattr(kernels, "has_bf16_dot", False))


def check_processor() -> None:
    """Raise RuntimeError where C would use instructions that the processor lacks."""
    if not has_bf16_products():
        raise RuntimeError("no kernel multiplies bfloat16 on this processor")
