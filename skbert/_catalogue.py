"""The estimators: the one table that the package, ``skbert.load`` and the tests read.

A new estimator is a folder of its own, and a line in each part of this table. Nothing is imported
when the code runs: torch is loaded with the first use of an estimator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # what editors and type checkers read
    from skbert._choice.estimator import BertChoiceRanker
    from skbert._classification.estimator import BertClassifier
    from skbert._core.families.record import Job
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


class Entry(NamedTuple):
    """Where an estimator is defined, and with which heads a checkpoint can be opened by it."""

    module: str
    heads: tuple[Job, ...]


# By public name.
ESTIMATORS: dict[str, Entry] = {
    "BertChoiceRanker": Entry("skbert._choice.estimator", ("multiple choice",)),
    "BertClassifier": Entry("skbert._classification.estimator", ("sequence classification",)),
    "BertPretrainer": Entry(
        "skbert._pretraining.estimator",
        (
            "masked language modelling",
            "causal language modelling",
            "next sentence prediction",
            "pre-training",
        ),
    ),
    "BertRegressor": Entry("skbert._regression.estimator", ("sequence classification",)),
    "BertSpanExtractor": Entry("skbert._extraction.estimator", ("question answering",)),
    "BertTokenTagger": Entry("skbert._tagging.estimator", ("token classification",)),
    "BertTransformer": Entry("skbert._embedding.estimator", ()),
}
