"""Code that predicts numbers, as users write it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, assert_type

import numpy as np

from skbert import BertRegressor

Array = np.ndarray[Any, Any]


def construct() -> list[object]:
    """Make it with nothing, with a model, and with keywords."""
    return [
        BertRegressor(),
        BertRegressor("model", max_length=64, validation_fraction=0.1, patience=1),
    ]


def learn(model: Path) -> BertRegressor:
    """Chain ``fit`` with what comes after it."""
    texts, numbers = ["good film", "bad film", "nice food", "poor food"], np.arange(4.0)
    regressor = BertRegressor(model, epochs=1, random_state=0).fit(texts, numbers)
    assert_type(regressor, BertRegressor)
    assert_type(regressor.partial_fit(texts, numbers, sample_weight=numbers), BertRegressor)
    assert_type(regressor.predict(texts), Array)
    assert_type(regressor.mean_, Array)
    assert_type(regressor.n_outputs_, int)
    return regressor
