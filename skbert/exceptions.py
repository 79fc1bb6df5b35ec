"""The errors and warnings of skbert, and the function that warns; depends on nothing.

An error in the caller's input is also a ``ValueError`` or a ``TypeError``, so code written for
scikit-learn catches it without knowing this package::

    Exception
    └── SkbertError
        ├── InputError (ValueError)             X, y, a weight or a parameter has a bad value
        ├── InputTypeError (TypeError)          X, y, a weight or a parameter has a bad type
        ├── ModelError (ValueError)             a checkpoint that cannot be used
        │   └── ModelNotFoundError (OSError)    no checkpoint under that name or path
        ├── SaveError (ValueError)              a saved file that fails its checks
        └── TrainingError (RuntimeError)        training could not go on
            └── NonFiniteError                  a loss, gradient or output is not finite

    UserWarning
    └── SkbertWarning                           data or a setting was used, but check it
        └── TruncationWarning                   texts were cut to the longest allowed length
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Self

__all__ = [
    "InputError",
    "InputTypeError",
    "ModelError",
    "ModelNotFoundError",
    "NonFiniteError",
    "SaveError",
    "SkbertError",
    "SkbertWarning",
    "TrainingError",
    "TruncationWarning",
    "warn",
    "warning_once",
]

# Warnings point at the first caller outside of these packages.
_INNER_PACKAGES = frozenset({"contextlib", "joblib", "skbert", "sklearn", "torch"})


class SkbertError(Exception):
    """Base of the errors that are skbert's own."""


class InputError(SkbertError, ValueError):
    """X, y, a weight or a parameter has a value that cannot be used."""


class InputTypeError(SkbertError, TypeError):
    """X, y, a weight or a parameter has a type that cannot be used."""


class ModelError(SkbertError, ValueError):
    """A checkpoint was found but cannot be used."""


class ModelNotFoundError(ModelError, OSError):
    """No checkpoint was found under the name or path passed as ``model``."""

    def __new__(cls, *args: object) -> Self:
        """Make the error: ValueError's own function, which comes first, makes no such object."""
        return OSError.__new__(cls, *args)


class SaveError(SkbertError, ValueError):
    """A saved estimator fails its checks: a name, size, hash or version is wrong."""


class TrainingError(SkbertError, RuntimeError):
    """Training could not go on."""


class NonFiniteError(TrainingError):
    """A loss, a gradient or an output of the model is NaN or infinite."""


class SkbertWarning(UserWarning):
    """Something was accepted, but the result may not be what you want."""


class TruncationWarning(SkbertWarning):
    """Texts were longer than ``max_length`` and were cut."""


# What was warned of already, within `warning_once`.
_said: ContextVar[set[tuple[str, type[Warning]]] | None] = ContextVar("_said", default=None)


@contextmanager
def warning_once() -> Iterator[None]:
    """Within it, warn of each thing once, however often it is found."""
    token = _said.set(set())
    try:
        yield
    finally:
        _said.reset(token)


def warn(message: str, category: type[Warning] = SkbertWarning) -> None:
    """Warn, and point at the line of the user's code that called skbert.

    Parameters
    ----------
    message : str
        What is unusual, where, and what to do.
    category : type of Warning, default=SkbertWarning
        The kind of warning.
    """
    said = _said.get()
    if said is not None:
        if (message, category) in said:
            return
        said.add((message, category))
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and _is_inner(frame.f_globals.get("__name__", "")):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def _is_inner(module: str) -> bool:
    return module.partition(".")[0] in _INNER_PACKAGES
