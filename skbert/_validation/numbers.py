"""Parameters of methods and functions that are numbers: counts, positions, fractions.

Depends on numpy and `skbert.exceptions`.
"""

from __future__ import annotations

from numbers import Integral, Real
from typing import TypeGuard

import numpy as np

from skbert.exceptions import InputError, InputTypeError

__all__ = ["check_count", "check_share", "is_index", "is_number"]


def check_count(
    value: object, name: str, usual: int, *, least: int = 1, most: int | None = None
) -> None:
    """Raise unless a value is an integer from `least` to `most`; the error names a `usual` one."""
    wanted = f"of at least {least}" if most is None else f"from {least} to {most}"
    hint = f"but must be an int {wanted}; type {name}={usual}."
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise InputTypeError(f"{name} is {value!r:.80}, of type {type(value).__name__}, {hint}")
    if int(value) < least or (most is not None and int(value) > most):
        raise InputError(f"{name} is {value!r:.80}, {hint}")


def check_share(name: str, value: object, example: str, *, closed: bool = False) -> float:
    """Return a number between 0 and 1 as a float; 0 and 1 themselves only with `closed`."""
    kinds = (int, float, np.integer, np.floating)
    if not isinstance(value, kinds) or isinstance(value, bool):
        raise InputTypeError(
            f"{name}={value!r:.80} is of type {type(value).__name__}, but must be a number "
            f"between 0 and 1. Type {name}={example}."
        )
    if not (0 < value < 1 or (closed and value in (0, 1))):
        ends = "" if closed else ", both excluded"
        raise InputError(
            f"{name}={value!r} must lie between 0 and 1{ends}. Type {name}={example}."
        )
    return float(value)


def is_index(value: object, end: int) -> TypeGuard[int]:
    """Whether a value is a position below `end`, counted from 0."""
    return not isinstance(value, bool) and isinstance(value, Integral) and 0 <= int(value) < end


def is_number(value: object) -> TypeGuard[float]:
    """Whether a value is a real number, which True is not."""
    return not isinstance(value, bool) and isinstance(value, Real)
