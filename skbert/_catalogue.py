"""The estimators: the one list that the package, its tests and its API page read.

A new estimator is a folder of its own, and a line in each part of this list.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # what editors and type checkers read; torch is loaded with the first use
    from skbert._choice.estimator import BertChoiceRanker
    from skbert._classification.estimator import BertClassifier
    from skbert._embedding.estimator import BertTransformer
    from skbert._extraction.estimator import BertSpanExtractor
    from skbert._pretraining.estimator import BertPretrainer
    from skbert._regression.estimator import BertRegressor
    from skbert._tagging.estimator import BertTokenTagger

__all__ = [
    "BertChoiceRanker",
    "BertClassifier",
    "BertPretrainer",
    "BertRegressor",
    "BertSpanExtractor",
    "BertTokenTagger",
    "BertTransformer",
]

# Public name -> the module that defines it.
ESTIMATORS = {
    "BertChoiceRanker": "skbert._choice.estimator",
    "BertClassifier": "skbert._classification.estimator",
    "BertPretrainer": "skbert._pretraining.estimator",
    "BertRegressor": "skbert._regression.estimator",
    "BertSpanExtractor": "skbert._extraction.estimator",
    "BertTokenTagger": "skbert._tagging.estimator",
    "BertTransformer": "skbert._embedding.estimator",
}
