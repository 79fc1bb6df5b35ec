"""BERT for every job it is fine-tuned for, with the manners of scikit-learn.

The names below are looked up when they are first used, so ``import skbert``
costs next to nothing and loads neither torch nor transformers.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from skbert import datasets, exceptions, inspection, metrics, testing
    from skbert._choice_ranker import BertChoiceRanker
    from skbert._classifier import BertClassifier
    from skbert._convert import convert_tf_checkpoint
    from skbert._load import load
    from skbert._pretrainer import BertPretrainer
    from skbert._regressor import BertRegressor
    from skbert._span_extractor import BertSpanExtractor
    from skbert._token_tagger import BertTokenTagger
    from skbert._transformer import BertTransformer

__all__ = [
    "BertChoiceRanker",
    "BertClassifier",
    "BertPretrainer",
    "BertRegressor",
    "BertSpanExtractor",
    "BertTokenTagger",
    "BertTransformer",
    "__version__",
    "convert_tf_checkpoint",
    "datasets",
    "exceptions",
    "inspection",
    "load",
    "metrics",
    "testing",
]

__version__ = "0.1.0"

# Public name -> the module that it comes from. A public module comes from itself.
_HOMES = {
    "BertChoiceRanker": "skbert._choice_ranker",
    "BertClassifier": "skbert._classifier",
    "BertPretrainer": "skbert._pretrainer",
    "BertRegressor": "skbert._regressor",
    "BertSpanExtractor": "skbert._span_extractor",
    "BertTokenTagger": "skbert._token_tagger",
    "BertTransformer": "skbert._transformer",
    "convert_tf_checkpoint": "skbert._convert",
    "datasets": "skbert.datasets",
    "exceptions": "skbert.exceptions",
    "inspection": "skbert.inspection",
    "load": "skbert._load",
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
