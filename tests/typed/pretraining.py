"""Code that pre-trains, as users write it."""

from __future__ import annotations

from pathlib import Path
from typing import assert_type

from skbert import BertPretrainer


def construct() -> list[object]:
    """Make it with nothing, and with the sizes of a new model."""
    return [BertPretrainer(), BertPretrainer(None, hidden_size=32, num_attention_heads=2)]


def learn(model: Path) -> BertPretrainer:
    """Chain ``fit`` with what comes after it."""
    texts = ["good film", "bad film", "nice food", "poor food"] * 2
    pretrainer = BertPretrainer(model, epochs=1, random_state=0).fit(texts)
    assert_type(pretrainer, BertPretrainer)
    assert_type(pretrainer.perplexity(texts), float)
    return pretrainer
