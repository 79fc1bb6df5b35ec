"""The record of each family: every class and path in it is there in transformers' models."""

from __future__ import annotations

import dataclasses
from operator import attrgetter
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import pytest
import torch
import transformers
from support.networks import Labels, open_model, sentences

from skbert._core import families
from skbert._core.batches import Batch, collate
from skbert._core.families import FAMILIES, Family, Job, encoder_part, family_of

if TYPE_CHECKING:
    from pathlib import Path

    from skbert._core.models.network import Network

EVERY_FAMILY = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)


def make(family: Family, job: Job) -> Any:
    config = getattr(transformers, family.config_class)(
        vocab_size=11, hidden_size=8, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=12, max_position_embeddings=16,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        return getattr(transformers, family.heads[job].name)(config).eval()


def batch_for(network: Network) -> Batch:
    items = Labels().encode((sentences([3, 5]), None), np.zeros(2, np.int64), network.text)
    return collate(items, np.arange(2), network.device, network.dtype)


@EVERY_FAMILY
def test_there_is_a_class_for_every_job(family: Family) -> None:
    assert set(family.heads) == set(get_args(Job))
    for job, head in family.heads.items():
        assert family.jobs_of(head.name) == [job]
    assert family.jobs_of("BartModel") == []


@EVERY_FAMILY
@pytest.mark.parametrize("job", get_args(Job))
def test_the_classes_are_as_the_record_says(family: Family, job: Job) -> None:
    model, head = make(family, job), family.heads[job]
    assert family_of(model) is family
    assert family.head_of(model) is head
    assert model.config.model_type == family.model_type
    names = {name for name, _ in model.named_parameters()}
    if head.output_layer:
        assert any(name.startswith(f"{head.output_layer}.") for name in names)
    assert hasattr(model, "dropout") == bool(head.dropout)
    inputs = {"input_ids": torch.tensor([[1, 2, 3]])}
    if job == "multiple choice":
        inputs = {"input_ids": inputs["input_ids"][None]}
    assert {name for name in model(**inputs) if "logits" in name} == set(head.logits)


@EVERY_FAMILY
def test_every_path_leads_to_a_module(family: Family) -> None:
    model = make(family, "embedding")
    for path in family.encoder:
        assert isinstance(encoder_part(model, path), torch.nn.Module), path
    layers = family.layers(model)
    assert len(layers) == model.config.num_hidden_layers
    for layer in layers:
        parts = family.layer_parts(layer)
        assert all(isinstance(part, torch.nn.Module) for part in parts)
        assert parts.qkv == (parts.query, parts.key, parts.value)
        for name in ("attention_norm", "mlp_norm"):
            assert isinstance(getattr(parts, name), torch.nn.LayerNorm)
        assert len({id(part) for part in parts}) == len(parts)
        held = {id(weight) for part in parts for weight in part.parameters()}
        assert held == {id(weight) for weight in layer.parameters()}
    table = attrgetter(family.encoder.word_table)(model)
    assert table is model.get_input_embeddings()


@EVERY_FAMILY
def test_what_names_say_of_weights(family: Family) -> None:
    model = make(family, "sequence classification")
    norms = [m for m in model.modules() if isinstance(m, torch.nn.LayerNorm)]
    of_norms = {id(weight) for norm in norms for weight in norm.parameters()}
    pooler = {id(w) for w in encoder_part(model, family.encoder.pooler).parameters()}
    for name, weight in model.named_parameters():
        assert family.decays(name) == (id(weight) not in of_norms and not name.endswith("bias"))
        assert family.is_of_pooler(name) == (id(weight) in pooler), name
    assert not family.decays("bias")


def test_a_family_may_count_positions_from_another_number(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = open_model(tiny_model)
    batch, n_positions = batch_for(network), network.model.config.max_position_embeddings
    table = encoder_part(network.model, network.family.encoder.position_table).weight
    with torch.no_grad():
        expected = network.hidden(batch)
        table.copy_(table.roll(2, 0))
        other = dataclasses.replace(families.BERT, first_position=2)
        monkeypatch.setitem(FAMILIES, "bert", other)  # type: ignore[arg-type]
        assert torch.equal(network.hidden(batch), expected)
    assert network.max_length == min(512, n_positions - 2)


def test_a_family_may_have_no_token_types(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = open_model(tiny_model)
    batch = batch_for(network)
    with torch.no_grad():
        expected = network.logits(batch)
        other = dataclasses.replace(families.BERT, has_token_types=False)
        monkeypatch.setitem(FAMILIES, "bert", other)  # type: ignore[arg-type]
        other_batch = dataclasses.replace(batch, segments=torch.ones_like(batch.segments))
        for network.is_packed in (True, False):
            torch.testing.assert_close(network.logits(other_batch), expected)
