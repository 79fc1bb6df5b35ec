"""Code that makes vectors of texts, as users write it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, assert_type

import numpy as np

from skbert import BertClassifier, BertTransformer

Array = np.ndarray[Any, Any]

TEXTS = ["good film", "bad film", "nice food", "poor food"]


def construct() -> list[object]:
    """Make it with nothing, with a model, with keywords, and with an estimator."""
    return [
        BertTransformer(),
        BertTransformer("model", layers=[-2, -1], n_components=8, memory="cache"),
        BertTransformer(BertClassifier()),
    ]


def learn(model: Path) -> BertTransformer:
    """Turn texts into vectors."""
    transformer = BertTransformer(model, n_components=2)
    assert_type(transformer.fit(TEXTS), BertTransformer)
    assert_type(transformer.fit(TEXTS).transform(TEXTS), Array)
    assert_type(transformer.fit_transform(TEXTS), Array)
    assert_type(transformer.components_, Array)
    assert_type(transformer.explained_variance_ratio_, Array)
    return transformer
