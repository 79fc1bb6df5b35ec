"""Real weights in the layouts of other families: the same vectors, and as good to learn from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pytest
import torch
from support.families import save_tiny
from support.networks import HEAD, open_model
from support.other_layouts import move

from skbert import BertClassifier, BertTransformer
from skbert._core.checkpoints.vet import vet
from skbert._core.families import FAMILIES
from skbert._core.items import Head
from skbert._core.models.opening import open_network
from skbert._core.runtime.device import seeded

if TYPE_CHECKING:
    from pathlib import Path

TEXTS = ["Where is my parcel?", "the film was great " * 30, "hello", "a b c d e f g", ""]
OTHERS = pytest.mark.parametrize("model_type", ["roberta", "xlm-roberta", "distilbert", "ernie"])


@OTHERS
def test_moved_weights_give_the_same_vectors(
    minilm: Path, model_type: str, tmp_path: Path
) -> None:
    folder = move(minilm, model_type, tmp_path / "model")
    vectors = [
        BertTransformer(model, precision="float32", device="cpu").fit_transform(TEXTS)
        for model in (minilm, folder)
    ]
    np.testing.assert_allclose(*vectors, rtol=0, atol=1e-5)


@pytest.mark.long
def test_moved_weights_learn_as_well(minilm: Path, shared_data: Path, tmp_path: Path) -> None:
    train = pd.read_csv(shared_data / "intents" / "train.csv")
    test = pd.read_csv(shared_data / "intents" / "test.csv")
    labels = sorted(train["label"].unique())[::4]
    train, test = (rows[rows["label"].isin(labels)] for rows in (train, test))
    train = train.groupby("label").sample(8, random_state=0)
    models = [minilm, *(move(minilm, kind, tmp_path / kind) for kind in ("roberta", "distilbert"))]
    scores = [
        BertClassifier(model, epochs=1, device="cpu", random_state=0)
        .fit(train["text"], train["label"])
        .score(test["text"], test["label"])
        for model in models
    ]
    assert scores[0] > 0.9
    assert min(scores) > scores[0] - 0.02


def test_layers_of_a_fresh_head_keep_lengths(tiny_model: Path, tmp_path: Path) -> None:
    vocabulary = vet(tiny_model).tokenizer.vocabulary
    folder = save_tiny(FAMILIES["roberta"], tmp_path / "body", vocabulary)
    network = open_model(folder, pooling="cls")
    dense = network.model.classifier.dense.weight
    torch.testing.assert_close(dense @ dense.T, torch.eye(len(dense)))
    fine_tuned = save_tiny(FAMILIES["roberta"], tmp_path / "head", vocabulary, HEAD)
    for fresh in (True, False):  # what a checkpoint brings is kept
        with seeded(0, torch.device("cpu")):
            other = open_network(vet(fine_tuned), Head(HEAD, 2), fresh_head=fresh)
        assert other.model.classifier.dense.weight.std().item() < 0.2
