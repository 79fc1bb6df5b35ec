"""One small training of every kind."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

import skbert

TEXTS = ["a good movie", "a bad book", "good food and service", "the phone is not good"]
WORDS = [text.split() for text in TEXTS]
JOBS: dict[str, tuple[Any, Any, Any]] = {
    "classes": (skbert.BertClassifier, TEXTS, [0, 1, 0, 1]),
    "labels": (skbert.BertClassifier, TEXTS, np.array([[0, 1], [1, 1], [1, 0], [0, 1]])),
    "numbers": (skbert.BertRegressor, TEXTS, [0.5, 1.5, 2.5, 0.0]),
    "tags": (skbert.BertTokenTagger, WORDS, [["O"] * (len(row) - 1) + ["X"] for row in WORDS]),
    "spans": (skbert.BertSpanExtractor, [("a movie ?", text) for text in TEXTS], [
        text.split()[-1] for text in TEXTS]),
    "choices": (skbert.BertChoiceRanker, [("what ?", TEXTS[:n]) for n in (2, 3, 4, 2)], [
        0, 1, 3, 1]),
    "masked words": (skbert.BertPretrainer, TEXTS, None),
    "words and sentences": (
        functools.partial(skbert.BertPretrainer, objective="mlm+nsp"), [TEXTS, TEXTS], None),
}  # fmt: skip
