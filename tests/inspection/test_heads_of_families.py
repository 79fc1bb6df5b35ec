"""Attention heads of families whose layers are built as BERT's, and a refusal for all others."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from sklearn.exceptions import NotFittedError
from support.families import save_own
from support.job import LABELS, TEXTS

from skbert import BertClassifier, BertTransformer
from skbert._core.families import FAMILIES
from skbert.exceptions import ModelError
from skbert.inspection import attentions, head_importance, prune_heads

if TYPE_CHECKING:
    from pathlib import Path

WITH_HEADS = [name for name, family in FAMILIES.items() if family.has_own_heads]
EXACT = {"precision": "float64", "device": "cpu"}
GONE = {0: [1], 2: [0]}


def fitted_on(family: str, folder: Path) -> BertClassifier:
    model = save_own(FAMILIES[family], folder / "model")
    return BertClassifier(model, epochs=1, random_state=0, **EXACT).fit(TEXTS, LABELS)


def without(fitted: Any, gone: dict[int, list[int]]) -> Any:
    """A copy whose heads, these only, give nothing."""
    changed = copy.deepcopy(fitted)
    family = changed._state().network.family
    for number, heads in gone.items():
        layer = family.layers(changed.model_)[number]
        weight = layer.get_submodule(family.layer_paths.attention_out).weight.data
        size = weight.shape[1] // 2
        for head in heads:
            weight[:, head * size : (head + 1) * size] = 0
    return changed


@pytest.mark.parametrize("family", WITH_HEADS)
def test_heads_are_looked_at_and_pruned(family: str, tmp_path: Path) -> None:
    fitted = fitted_on(family, tmp_path)
    model = copy.deepcopy(fitted.model_)
    model.set_attn_implementation("eager")
    for text, found in zip(TEXTS, attentions(fitted, TEXTS), strict=True):
        told = fitted.tokenizer_(text, return_tensors="pt")
        with torch.no_grad():
            wanted = torch.cat(model(**told, output_attentions=True).attentions).numpy()
        assert found.tokens == told.tokens()
        np.testing.assert_allclose(found.weights, wanted, rtol=0, atol=1e-9)
    importance = head_importance(fitted, TEXTS, LABELS)
    assert importance.shape == (3, 2)
    assert (importance > 0).all()
    pruned = prune_heads(fitted, GONE)
    wanted = without(fitted, GONE).predict_proba(TEXTS)
    np.testing.assert_allclose(pruned.predict_proba(TEXTS), wanted, rtol=0, atol=1e-9)
    pruned.save(tmp_path / "pruned")
    loaded = BertClassifier.load(tmp_path / "pruned")
    np.testing.assert_array_equal(loaded.predict_proba(TEXTS), pruned.predict_proba(TEXTS))
    assert loaded.model_.config.pruned_heads == GONE
    again = BertTransformer(tmp_path / "pruned", **EXACT).fit(TEXTS)
    assert again.model_.config.pruned_heads == GONE


@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in WITH_HEADS])
def test_heads_of_other_layers_are_refused(family: str, tmp_path: Path) -> None:
    fitted = fitted_on(family, tmp_path)
    before = fitted.predict_proba(TEXTS)
    message = f"layers of a model of the type '{family}' are built or shared otherwise"
    for look in (
        lambda: attentions(fitted, TEXTS),
        lambda: head_importance(fitted, TEXTS, LABELS),
        lambda: prune_heads(fitted, {0: [1]}),
    ):
        with pytest.raises(ModelError, match=message):
            look()
    np.testing.assert_array_equal(fitted.predict_proba(TEXTS), before)
    with pytest.raises(NotFittedError):
        attentions(BertClassifier(), TEXTS)
