"""Models of every family, and models that somebody changed, exported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.families import save_own
from support.job import LABELS, TEXTS

from skbert import BertClassifier, BertPretrainer, BertTransformer, runtime
from skbert._core.families import FAMILIES
from skbert.inspection import prune_heads

SETTINGS: dict[str, Any] = {"precision": "float32", "device": "cpu"}
TRAINS = {"epochs": 1, "random_state": 0}
ROWS = [*TEXTS, "", "good " * 12]
USUAL = ["modernbert"]  # the others are slow, all together
FAMILY_NAMES = [
    pytest.param(name, marks=() if name in USUAL else pytest.mark.slow) for name in FAMILIES
]


def assert_near(own: np.ndarray, theirs: np.ndarray) -> None:
    np.testing.assert_allclose(theirs, own, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_vectors_of_a_family(name: str, tmp_path: Path) -> None:
    model = save_own(FAMILIES[name], tmp_path / "model")
    transformer = BertTransformer(str(model), pooling="mean", **SETTINGS).fit(ROWS)
    transformer.export(tmp_path / "exported")
    opened = runtime.load(tmp_path / "exported")
    assert_near(transformer.transform(ROWS), opened.transform(ROWS))
    names = transformer.get_feature_names_out().tolist()
    assert opened.get_feature_names_out().tolist() == names


@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_classes_of_a_family(name: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    if "sequence classification" not in family.heads:
        pytest.skip(f"{name} has no such head")
    model = save_own(family, tmp_path / "model")
    classifier = BertClassifier(str(model), **SETTINGS, **TRAINS).fit(TEXTS, LABELS)
    classifier.export(tmp_path / "exported")
    theirs = runtime.load(tmp_path / "exported").decision_function(ROWS)
    assert_near(classifier.decision_function(ROWS), theirs)


def doubled(classifier: BertClassifier) -> BertClassifier:
    layer = classifier.model_.base_model.encoder.layer[0]
    layer.register_forward_hook(lambda module, inputs, output: output * 2)
    return classifier


def other_head(classifier: BertClassifier) -> BertClassifier:
    old = classifier.model_.classifier
    classifier.model_.classifier = torch.nn.Sequential(old, torch.nn.Tanh())
    return classifier


def fewer_heads(classifier: BertClassifier) -> BertClassifier:
    return prune_heads(classifier, {0: [1]})


@pytest.mark.slow
@pytest.mark.parametrize("change", [doubled, other_head, fewer_heads])
def test_a_model_that_somebody_changed(change: Any, make_tiny_model: Any, tmp_path: Path) -> None:
    lively = make_tiny_model(initializer_range=0.2)
    classifier = BertClassifier(lively, **SETTINGS, **TRAINS).fit(TEXTS, LABELS)
    before = classifier.decision_function(ROWS)
    classifier = change(classifier)
    own = classifier.decision_function(ROWS)
    assert np.abs(own - before).max() > 1e-4
    classifier.export(tmp_path / "exported")
    assert_near(own, runtime.load(tmp_path / "exported").decision_function(ROWS))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["relative_key", "relative_key_query"])
def test_relative_positions(kind: str, tmp_path: Path) -> None:
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    BertPretrainer(
        None, position_embedding_type=kind, hidden_size=32, max_position_embeddings=64,
        device="cpu", **sizes, **TRAINS,
    ).fit(TEXTS).save(tmp_path / "new")  # fmt: skip
    transformer = BertTransformer(tmp_path / "new", pooling="mean", **SETTINGS).fit(ROWS)
    before = transformer.transform(ROWS)
    for name, vectors in transformer.model_.named_parameters():
        if "distance_embedding" in name:
            torch.nn.init.normal_(vectors, generator=torch.Generator().manual_seed(0))
    own = transformer.transform(ROWS)
    assert np.abs(own - before).max() > 1e-3
    transformer.export(tmp_path / "exported")
    assert_near(own, runtime.load(tmp_path / "exported").transform(ROWS))
