"""Contributions of words add up in every family, packed or padded, with its own tokenizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.families import save_own
from support.job import LABELS, TEXTS

from skbert import BertClassifier
from skbert._core.families import FAMILIES
from skbert.inspection import attributions

if TYPE_CHECKING:
    from pathlib import Path

# What float64 and some thousand steps do not reach: the layer norms of DeBERTa compute in float32,
# and the gradient of ReLU, MobileBERT's activation, jumps at many places on the way.
TOLERANCE = {"deberta": 1e-3, "mobilebert": 1e-4}


def odds(fitted: Any, texts: list[str]) -> np.ndarray:
    """Logit of the second class minus that of the first, by attributions."""
    first, second = (
        attributions(fitted, texts, label, method="gradient_x_input") for label in fitted.classes_
    )
    return np.array([two.output - one.output for one, two in zip(first, second, strict=True)])


@pytest.mark.parametrize("family", FAMILIES)
def test_contributions_add_up(family: str, tmp_path: Path) -> None:
    model = save_own(FAMILIES[family], tmp_path / "model")
    how: dict[str, Any] = {"epochs": 1, "random_state": 0, "device": "cpu"}
    fitted = BertClassifier(model, **how, precision="float64").fit(TEXTS, LABELS)
    np.testing.assert_allclose(odds(fitted, TEXTS), fitted.decision_function(TEXTS), atol=1e-9)
    tolerance = TOLERANCE.get(family, 1e-6)
    found = attributions(fitted, TEXTS, tolerance=tolerance, max_steps=5000)
    for text, each in zip(TEXTS, found, strict=True):
        assert each.words == [text[start:end] for _, start, end in each.spans.tolist()]
        assert abs(each.residual) <= tolerance * abs(each.output - each.baseline_output)
    together = attributions(fitted, TEXTS, method="gradient_x_input")
    (alone,) = attributions(fitted, TEXTS[:1], method="gradient_x_input")
    allowed = 1e-4 if family == "deberta" else 1e-9
    np.testing.assert_allclose(alone.values, together[0].values, rtol=allowed, atol=allowed)
