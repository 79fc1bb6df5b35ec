"""The compiled module, None where it was not built or is out of date, and what it can compute.

The wrappers beside this module are what calls it. Depends on torch.
"""

from __future__ import annotations

import functools
from importlib import import_module
from typing import Any

import torch

from skbert.exceptions import warn

__all__ = [
    "DTYPES",
    "INTERFACE_VERSION",
    "LANES",
    "PANEL",
    "check_processor",
    "has_amx",
    "has_bf16_products",
    "has_int8_products",
    "has_kernels",
    "kernels",
]

LANES = 16  # numbers in a vector, of which sizes are multiples
PANEL = 32  # columns of a product that are computed together
DTYPES = (torch.float32, torch.bfloat16)
INTERFACE_VERSION = 15  # of the functions that are called; module.c says when to raise it

try:
    built: Any = import_module("skbert._core.cpu.kernels")
except ImportError:  # no compiler where this was installed
    built = None
is_current = getattr(built, "interface_version", None) == INTERFACE_VERSION
kernels: Any = built if is_current else None


def has_kernels() -> bool:
    """Whether the kernels were built, from the sources that belong to this version."""
    if built is not None and not is_current:
        _warn_of_old_kernels()
    return kernels is not None


@functools.cache
def _warn_of_old_kernels() -> None:
    """Warn once that the compiled module belongs to other sources."""
    warn(
        f"The compiled kernels in {built.__file__} are not used: they were built from other"
        " sources than this version's. What they would compute is computed by torch, more slowly."
        " Build them again: in a checkout type python setup.py build_ext --inplace, elsewhere"
        " pip install --force-reinstall --no-deps skbert."
    )


def has_bf16_products() -> bool:
    """Whether the kernels were built, and the processor multiplies bfloat16 in vectors."""
    return bool(getattr(kernels, "has_bf16_dot", False))


def has_int8_products() -> bool:
    """Whether the kernels were built, and the processor multiplies int8 in vectors."""
    return bool(getattr(kernels, "has_int8_dot", False))


def has_amx() -> bool:
    """Whether the kernels were built, and may use the tiles of the processor."""
    return bool(getattr(kernels, "has_amx", False))


def check_processor() -> None:
    """Raise RuntimeError where C would use instructions that the processor lacks."""
    if not has_bf16_products():
        raise RuntimeError("no kernel multiplies bfloat16 on this processor")
