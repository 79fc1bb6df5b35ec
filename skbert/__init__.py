"""BERT for every job it is fine-tuned for, as scikit-learn estimators.

The names below are looked up when they are first used, so ``import skbert``
costs next to nothing and loads neither torch nor transformers.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

from skbert import _catalogue

if TYPE_CHECKING:
    from skbert import datasets, exceptions, inspection, metrics, testing
    from skbert._catalogue import *  # noqa: F403 - the list there is checked by a test
    from skbert._conversion.tensorflow import convert_tf_checkpoint
    from skbert._estimator.loading import load

__all__ = [
    "__version__",
    "convert_tf_checkpoint",
    "datasets",
    "exceptions",
    "inspection",
    "load",
    "metrics",
    "testing",
]
__all__ += _catalogue.__all__

__version__ = "0.1.0"

# Public name -> the module that it comes from. A public module comes from itself.
_HOMES = {
    **{name: entry.module for name, entry in _catalogue.ESTIMATORS.items()},
    "convert_tf_checkpoint": "skbert._conversion.tensorflow",
    "datasets": "skbert.datasets",
    "exceptions": "skbert.exceptions",
    "inspection": "skbert.inspection",
    "load": "skbert._estimator.loading",
    "metrics": "skbert.metrics",
    "testing": "skbert.testing",
}

if not TYPE_CHECKING:  # a type checker that saw this would let every misspelt name pass

    def __getattr__(name: str) -> object:
        """Load a public name when it is first used."""
        home = _HOMES.get(name)
        if home is None:
            message = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(message, name=name, obj=sys.modules[__name__])
        module = import_module(home)
        found = module if home == f"{__name__}.{name}" else getattr(module, name)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return list(__all__)
