"""Relative positions, against BERT written out word by word as the two papers have it."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from support.networks import CPU, Labels, assert_all_close, gradients, open_model, sentences
from torch.nn import functional as F

from skbert import BertClassifier, BertPretrainer
from skbert._core.attention import packed
from skbert._core.batches import collate
from skbert._core.training import frozen
from skbert.exceptions import ModelError
from skbert.inspection import attentions, prune_heads

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from skbert._core.models.network import Network

KINDS = ["relative_key", "relative_key_query"]
MOST = 128
DISTANCES = "encoder.layer.{}.attention.self.distance_embedding.weight"


def settings_of(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.fixture
def relative_model(make_tiny_model: Callable[..., Path]) -> Callable[[str], Path]:
    """Give a function from the kind of positions to the folder of such a checkpoint."""

    def make(kind: str) -> Path:
        folder = make_tiny_model(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        settings_of(folder, position_embedding_type=kind)
        path = folder / "model.safetensors"
        generator = torch.Generator().manual_seed(1)
        vectors = {
            DISTANCES.format(layer): torch.randn(2 * MOST - 1, 16, generator=generator)
            for layer in range(2)
        }
        save_file({**load_file(path), **vectors}, path, metadata={"format": "pt"})
        return folder

    return make


def written_out(network: Network, ids: list[int], kind: str) -> torch.Tensor:
    """Hidden states of one row of tokens."""
    weights = dict(network.model.bert.named_parameters())

    def linear(name: str, x: torch.Tensor) -> torch.Tensor:
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def norm(name: str, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, (32,), weights[f"{name}.weight"], weights[f"{name}.bias"], 1e-12)

    words = weights["embeddings.word_embeddings.weight"][ids]
    kinds = weights["embeddings.token_type_embeddings.weight"][0]
    states = norm("embeddings.LayerNorm", words + kinds)
    for number in range(2):
        name = f"encoder.layer.{number}"
        q, k, v = (linear(f"{name}.attention.self.{x}", states) for x in ("query", "key", "value"))
        vectors = weights[DISTANCES.format(number)]
        parts = []
        for head in range(2):
            own = slice(16 * head, 16 * head + 16)
            rows = []
            for i in range(len(ids)):
                scores = []
                for j in range(len(ids)):
                    apart = vectors[i - j + MOST - 1]
                    score = q[i, own] @ k[j, own] + q[i, own] @ apart
                    if kind == "relative_key_query":
                        score = score + k[j, own] @ apart
                    scores.append(score / math.sqrt(16))
                rows.append(torch.stack(scores).softmax(0) @ v[:, own])
            parts.append(torch.stack(rows))
        mixed = linear(f"{name}.attention.output.dense", torch.cat(parts, dim=1))
        states = norm(f"{name}.attention.output.LayerNorm", states + mixed)
        wide = F.gelu(linear(f"{name}.intermediate.dense", states))
        states = norm(f"{name}.output.LayerNorm", states + linear(f"{name}.output.dense", wide))
    return states


def hidden_states(network: Network, texts: list[str]) -> torch.Tensor:
    """Of all tokens, text after text."""
    items = Labels().encode((texts, None), None, network.text_tokenizer)
    batch = collate(items, np.arange(len(items)), CPU, network.dtype)
    hidden = network.hidden(batch)
    return hidden if batch.token_order is None else hidden[batch.token_order]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("by_modules", [False, True])
def test_hidden_states_and_gradients_are_those_written_out(
    relative_model: Callable[[str], Path], kind: str, by_modules: bool
) -> None:
    network = open_model(relative_model(kind), dtype=torch.float64)
    if by_modules:
        network.layer_runner.is_enabled = False
    texts = sentences([5, 3, 3, 12, 1])
    ids = [network.tokenizer(text)["input_ids"] for text in texts]
    want = torch.cat([written_out(network, row, kind) for row in ids])
    want.square().sum().backward()
    want_gradients = gradients(network.model)
    got = hidden_states(network, texts)
    got.square().sum().backward()
    got_gradients = gradients(network.model)
    with torch.inference_mode():
        inferred = hidden_states(network, texts)
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(inferred, want.detach(), rtol=1e-10, atol=1e-10)
    assert_all_close(got_gradients, want_gradients, 1e-8)
    assert DISTANCES.format(0) in {name.removeprefix("bert.") for name in got_gradients}


@pytest.mark.parametrize("kind", KINDS)
def test_long_rows_attend_by_distance_too(
    relative_model: Callable[[str], Path], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = open_model(relative_model(kind), dtype=torch.float64)
    texts = sentences([90])
    with torch.no_grad():
        want = written_out(network, network.tokenizer(texts[0])["input_ids"], kind)
        torch.testing.assert_close(hidden_states(network, texts), want, rtol=1e-9, atol=1e-9)
        monkeypatch.setattr(packed, "_MAX_WHOLE_LENGTH", 64)
        monkeypatch.setattr(packed, "_MAX_SCORES", 64)  # so that queries are cut into blocks
        torch.testing.assert_close(hidden_states(network, texts), want, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_they_load_train_predict_and_are_saved(
    relative_model: Callable[[str], Path], tmp_path: Path, sentiment: Any, kind: str
) -> None:
    texts, labels = sentiment
    classifier = BertClassifier(
        relative_model(kind), epochs=4, learning_rate=2e-3, device="cpu", random_state=0
    )
    before = open_model(relative_model(kind)).model.bert.encoder.layer[0].attention.self
    classifier.fit(texts, labels)
    own = classifier.model_.bert.encoder.layer[0].attention.self
    assert not torch.equal(own.distance_embedding.weight, before.distance_embedding.weight)
    classifier.save(tmp_path / "saved")
    again = BertClassifier.load(tmp_path / "saved")
    np.testing.assert_array_equal(again.predict_proba(texts), classifier.predict_proba(texts))
    with pytest.raises(ModelError, match=f"'{kind}' positions, and transformers cannot open"):
        classifier.save_pretrained(tmp_path / "plain")
    fewer = prune_heads(again, {0: [1]})
    assert fewer.predict_proba(texts).shape == (len(texts), 2)


@pytest.mark.parametrize("kind", KINDS)
def test_frozen_layers_give_once_what_they_give_in_every_pass(
    relative_model: Callable[[str], Path], sentiment: Any, kind: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    texts, labels = sentiment
    classifier = BertClassifier(
        relative_model(kind), freeze=1, epochs=2, device="cpu", precision="float64", random_state=0
    )
    once = classifier.fit(texts, labels).predict_proba(texts)
    monkeypatch.setattr(frozen, "_MOST_BYTES", 0)
    in_every_pass = classifier.fit(texts, labels).predict_proba(texts)
    np.testing.assert_allclose(once, in_every_pass, rtol=0, atol=1e-9)


def test_attention_weights_are_those_that_are_used(relative_model: Callable[[str], Path]) -> None:
    folder = relative_model("relative_key")
    classifier = BertClassifier(folder, head_init="random", epochs=1, device="cpu").fit(
        ["good movie", "bad movie"] * 2, [0, 1] * 2
    )
    (with_them,) = attentions(classifier, ["the movie is good"])
    own = classifier.model_.bert.encoder.layer[0].attention.self
    with torch.no_grad():
        own.distance_embedding.weight.zero_()
    (without,) = attentions(classifier, ["the movie is good"])
    np.testing.assert_allclose(with_them.weights.sum(axis=-1), 1.0, rtol=1e-5)
    assert np.abs(with_them.weights - without.weights).max() > 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_model_with_them_feeds_the_other_estimators(
    tmp_path: Path, sentiment: Any, kind: str
) -> None:
    texts, labels = sentiment
    pretrainer = BertPretrainer(
        None, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=64, position_embedding_type=kind, epochs=1, device="cpu",
        random_state=0,
    ).fit(texts)  # fmt: skip
    pretrainer.save(tmp_path / "new")
    classifier = BertClassifier(tmp_path / "new", epochs=1, device="cpu").fit(texts, labels)
    assert classifier.model_.config.position_embedding_type == kind
    assert classifier.predict(texts).shape == (len(texts),)


def test_a_checkpoint_without_its_distances_is_refused(
    relative_model: Callable[[str], Path],
) -> None:
    folder = relative_model("relative_key")
    path = folder / "model.safetensors"
    rest = {name: tensor for name, tensor in load_file(path).items() if "distance" not in name}
    save_file(rest, path, metadata={"format": "pt"})
    with pytest.raises(ModelError, match="lacks 2 of the model's weights"):
        open_model(folder)
