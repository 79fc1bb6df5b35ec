"""Code that ranks options, as users write it."""

from __future__ import annotations

from pathlib import Path
from typing import assert_type

import pandas as pd

from skbert import BertChoiceRanker


def construct() -> list[object]:
    """Make it with nothing, with a model, and with keywords."""
    return [BertChoiceRanker(), BertChoiceRanker("model", pooling="mean")]


def learn(model: Path) -> BertChoiceRanker:
    """Chain ``fit`` with what comes after it."""
    choices = [("the film is", ["good", "bad"]), ("the food is", ["bad", "good"])]
    ranker = BertChoiceRanker(model, epochs=1, random_state=0).fit(choices, [0, 1])
    assert_type(ranker, BertChoiceRanker)
    assert_type(ranker.rank(choices), pd.DataFrame)
    return ranker
