"""Code that answers questions, as users write it."""

from __future__ import annotations

from pathlib import Path
from typing import assert_type

import pandas as pd

from skbert import BertSpanExtractor


def construct() -> list[object]:
    """Make it with nothing, with a model, and with keywords."""
    return [BertSpanExtractor(), BertSpanExtractor("model", no_answer_threshold=0.5)]


def learn(model: Path) -> BertSpanExtractor:
    """Chain ``fit`` with what comes after it."""
    questions = [("Who sings?", "Ann sings."), ("Who eats?", "Bob eats.")]
    extractor = BertSpanExtractor(model, epochs=1, random_state=0).fit(questions, ["Ann", "Bob"])
    assert_type(extractor, BertSpanExtractor)
    assert_type(extractor.predict_answers(questions, n_best=2), pd.DataFrame)
    assert_type(extractor.no_answer_threshold_, float)
    return extractor
