"""Code that tags words, as users write it."""

from __future__ import annotations

from pathlib import Path
from typing import assert_type

import pandas as pd

from skbert import BertTokenTagger


def construct() -> list[object]:
    """Make it with nothing, with a model, and with keywords."""
    return [BertTokenTagger(), BertTokenTagger("model", scheme=None, decoding="argmax")]


def learn(model: Path) -> BertTokenTagger:
    """Chain ``fit`` with what comes after it."""
    words, tags = [["good", "film"], ["bad", "film"]], [["B-X", "O"], ["O", "B-X"]]
    tagger = BertTokenTagger(model, epochs=1, random_state=0).fit(words, tags)
    assert_type(tagger, BertTokenTagger)
    assert_type(tagger.partial_fit(words, tags, classes=["I-X"]), BertTokenTagger)
    assert_type(tagger.predict_spans(words), pd.DataFrame)
    assert_type(tagger.scheme_, str | None)
    return tagger
