"""BERT for its usual tasks, as scikit-learn compatible estimators.

The names of ``__init__.pyi`` are looked up when they are first used, so ``import skbert`` costs
next to nothing and loads neither torch nor transformers.
"""

from __future__ import annotations

import sys

from skbert._catalogue import MODULES, load_name

__all__ = sorted({*MODULES, "__version__"})  # noqa: PLE0605 - it is a list

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """Load a public name when it is first used."""
    if name not in MODULES:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message, name=name, obj=sys.modules[__name__])
    value = globals()[name] = load_name(name)
    return value


def __dir__() -> list[str]:
    return list(__all__)
