"""The record of each family: every class and path in it is there in transformers' models."""

from __future__ import annotations

import dataclasses
import json
import shutil
from operator import attrgetter
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import pytest
import torch
import transformers
from support.families import tiny_of
from support.networks import HEAD, Labels, open_model, sentences

from skbert import BertClassifier
from skbert._core.attention.pooling import POOLER, POOLINGS
from skbert._core.attention.pruned import prune
from skbert._core.batches import Batch, collate
from skbert._core.checkpoints.vet import vet
from skbert._core.families import FAMILIES, NEW, family_of
from skbert._core.families.bert import BERT
from skbert._core.families.record import Family, HeadClass, Job, Size, encoder_part
from skbert._core.families.tokenizers import AS_DESCRIBED
from skbert._core.items import Head
from skbert._core.models.network import copy_network, has_own_modules, has_pooler
from skbert._core.models.opening import drop_pooler, open_network
from skbert._core.models.output import grow_output
from skbert._core.runtime.device import seeded
from skbert._core.training.optim import freeze
from skbert.exceptions import ModelError

if TYPE_CHECKING:
    from pathlib import Path

    from skbert._core.models.network import Network

EVERY_FAMILY = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)


def batch_for(network: Network) -> Batch:
    items = Labels().encode(
        (sentences([3, 5]), None), np.zeros(2, np.int64), network.text_tokenizer
    )
    return collate(items, np.arange(2), network.device, network.dtype)


EVERY_HEAD = pytest.mark.parametrize(
    ("family", "job"), [(family, job) for family in FAMILIES.values() for job in family.heads]
)


def replace_bert(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> Family:
    """Take another record for that of BERT; return it."""
    other = dataclasses.replace(BERT, **changes)
    monkeypatch.setitem(FAMILIES, "bert", other)  # type: ignore[arg-type]
    return other


def test_the_table_has_each_family_under_its_name() -> None:
    assert all(name == family.model_type for name, family in FAMILIES.items())
    assert NEW in FAMILIES.values()


@EVERY_FAMILY
def test_classes_name_their_jobs(family: Family) -> None:
    assert set(family.heads) <= set(get_args(Job))
    for job, head in family.heads.items():
        assert family.jobs_of(head.name) == [job]
    assert family.jobs_of("BartModel") == []


def test_bert_has_a_class_for_every_job() -> None:
    assert set(BERT.heads) == set(get_args(Job))


@EVERY_HEAD
def test_the_classes_are_as_the_record_says(family: Family, job: Job) -> None:
    model, head = tiny_of(family, job), family.heads[job]
    assert family_of(model) is family
    assert family.head_of(model) is head
    assert model.config.model_type == family.model_type
    names = {name for name, _ in model.named_parameters()}
    of_body = {name for name in names if name.startswith(f"{model.base_model_prefix}.")}
    of_head = {name for name in names if name.startswith(head.prefixes)}
    assert of_head == (names - of_body if head.output_layer else set())
    for path in (head.output_layer, *(step for step in head.steps if isinstance(step, str))):
        assert isinstance(model.get_submodule(path), torch.nn.Module)
    inputs = {"input_ids": torch.tensor([[1, 2, 3]])}
    if job == "multiple choice":
        inputs = {"input_ids": inputs["input_ids"][None]}
    assert {name for name in model(**inputs) if "logits" in name} == set(head.logits)


@EVERY_FAMILY
def test_every_path_leads_to_a_module(family: Family) -> None:
    model = tiny_of(family, "embedding")
    for name, path in family.encoder._asdict().items():
        if path and name != "pooler":  # which some models of a family do not have
            assert isinstance(encoder_part(model, path), torch.nn.Module), path
    layers = family.layers(model)
    assert len(layers) == model.config.num_hidden_layers
    for layer in layers if family.layer is not None else ():
        parts = family.layer_parts(layer)
        for path, part in zip(family.layer or (), parts, strict=True):
            assert isinstance(part, torch.nn.Module) if path else part is None
        assert all(hasattr(parts.attention, name) for name in family.attention)
        assert parts.qkv == (parts.query, parts.key, parts.value)
        for name in ("attention_norm", "mlp_norm"):
            assert isinstance(getattr(parts, name), torch.nn.LayerNorm)
        modules = [part for part in parts if part is not None]
        assert len({id(part) for part in modules}) == len(modules)
        held = {id(weight) for part in modules for weight in part.parameters()}
        assert held == {id(weight) for weight in layer.parameters()}
    table = attrgetter(family.encoder.word_table)(model)
    assert table is model.get_input_embeddings()


@EVERY_FAMILY
def test_settings_are_those_of_the_configuration_class(family: Family) -> None:
    config = getattr(transformers, family.config_class)()
    for name, size in family.sizes.items():
        assert getattr(config, family.settings.get(name, name)) == size.default
        assert size.least <= size.default <= size.most
    known = {*family.rates, *family.choices} - {"position_embedding_type"}
    known -= {"norm_rel_ebd", "conv_act"}  # which only some checkpoints name
    missing = [name for name in known if not hasattr(config, family.settings.get(name, name))]
    assert missing == []


@EVERY_FAMILY
def test_tokenizers_are_classes_of_transformers(family: Family) -> None:
    for known in family.tokenizers:
        assert known.new_class in {*known.classes, *AS_DESCRIBED}
        assert all(hasattr(transformers, name) for name in known.classes)


@EVERY_FAMILY
def test_what_names_say_of_weights(family: Family) -> None:
    model = tiny_of(family, "sequence classification")
    leaves = [module for module in model.modules() if not [*module.children()]]
    norms = [module for module in leaves if type(module).__name__.endswith("Norm")]
    of_norms = {id(weight) for norm in norms for weight in norm.parameters()}
    path = family.encoder.pooler
    module = encoder_part(model, path) if path else None
    pooler = set() if module is None else {id(w) for w in module.parameters()}
    for name, weight in model.named_parameters():
        assert family.has_weight_decay(name) == (
            id(weight) not in of_norms and not name.endswith("bias")
        )
        assert family.is_of_pooler(name) == (id(weight) in pooler), name
    assert not family.has_weight_decay("bias")


def test_a_family_may_count_positions_from_another_number(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = open_model(tiny_model)
    batch, n_positions = batch_for(network), network.model.config.max_position_embeddings
    table = encoder_part(network.model, network.family.encoder.position_table).weight
    with torch.no_grad():
        expected = network.hidden(batch)
        table.copy_(table.roll(4, 0))
        replace_bert(monkeypatch, counts_from_padding=True)
        network.model.config.pad_token_id = 3
        for network.is_packed in (True, False):
            torch.testing.assert_close(network.hidden(batch), expected)
    assert network.max_length == n_positions - 4


def test_a_family_may_have_no_token_types(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = open_model(tiny_model)
    batch = batch_for(network)
    with torch.no_grad():
        expected = network.logits(batch)
        replace_bert(monkeypatch, has_token_types=False)
        other_batch = dataclasses.replace(
            batch, token_type_ids=torch.ones_like(batch.token_type_ids)
        )
        for network.is_packed in (True, False):
            torch.testing.assert_close(network.logits(other_batch), expected)


def test_a_family_may_have_no_pooler(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    label = dataclasses.replace(BERT.heads[HEAD], pooling="cls")
    heads = {HEAD: label, "embedding": BERT.heads["embedding"]}
    other = replace_bert(monkeypatch, heads=heads, encoder=BERT.encoder._replace(pooler=""))
    network = open_model(tiny_model, pooling="auto")
    assert network.pooling == "cls"
    assert not has_pooler(network)
    assert not other.is_of_pooler("bert.pooler.dense.weight")
    drop_pooler(network)
    assert network.model.bert.pooler is not None
    with pytest.raises(
        ModelError,
        match=r"pooling='pooler', but a BertForSequenceClassification has no pooler\. Use",
    ):
        open_model(tiny_model, pooling="pooler")


def test_a_family_may_lack_a_head(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_bert(monkeypatch, heads={"embedding": BERT.heads["embedding"]})
    message = r"type 'bert' has no head for sequence classification\. Choose a model of another"
    with pytest.raises(ModelError, match=message):
        open_model(tiny_model)


class DeepHead(torch.nn.Module):
    """A head of two layers."""

    def __init__(self, size: int, n_outputs: int) -> None:
        super().__init__()
        self.dense = torch.nn.Linear(size, size)
        self.out_proj = torch.nn.Linear(size, n_outputs)

    def hidden(self, features: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.dense(features))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.out_proj(self.hidden(features))
        return logits


class BertWithDeepHead(transformers.BertForSequenceClassification):
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.classifier: Any = DeepHead(config.hidden_size, config.num_labels)


@pytest.mark.parametrize("pooling", ["auto", "mean"])
def test_a_head_may_have_several_layers(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, pooling: str
) -> None:
    paths = ("classifier.out_proj", "classifier.dense")
    head = HeadClass(
        "BertWithDeepHead", "pooler", "classifier.out_proj",
        steps=("classifier.dense", torch.tanh),
    )  # fmt: skip
    place = f"skbert._core.models.opening.transformers.{head.name}"
    monkeypatch.setattr(place, BertWithDeepHead, raising=False)
    replace_bert(monkeypatch, heads={**BERT.heads, HEAD: head})
    network = open_model(tiny_model, pooling=pooling)
    assert network.head_class.prefixes == tuple(f"{path}." for path in paths)
    freeze(network.model, network.head_class.prefixes, "all")
    learning = {name for name, p in network.model.named_parameters() if p.requires_grad}
    assert learning == {f"{path}.{kind}" for path in paths for kind in ("weight", "bias")}
    batch, logits = batch_for(network), []
    with torch.no_grad():
        for n_outputs in (2, 3):
            grow_output(network, n_outputs, np.arange(2))
            logits.append(network.logits(batch))
            network.is_packed = False
            torch.testing.assert_close(network.logits(batch), logits[-1])
            network.is_packed = True
    assert torch.equal(logits[1][:, :2], logits[0])
    assert {*dict(network.model.named_children())} == {"bert", "dropout", "classifier"}


def test_a_pooler_may_lie_anywhere_in_the_encoder(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with seeded(0, torch.device("cpu")):
        network = open_network(vet(tiny_model), Head("embedding", 0))
    body = network.model
    body.top = torch.nn.Module()
    body.top.pooler, body.pooler = body.pooler, None
    replace_bert(monkeypatch, encoder=BERT.encoder._replace(pooler="top.pooler"))
    assert has_pooler(network)
    drop_pooler(network)
    assert body.top.pooler is None
    assert not has_pooler(network)
    assert has_own_modules(network)


@EVERY_HEAD
def test_a_pooler_that_a_head_reads_is_there(family: Family, job: Job) -> None:
    pooling = family.heads[job].pooling
    assert pooling in POOLINGS
    assert pooling != POOLER or family.encoder.pooler


def test_pairs_are_read_as_the_class_of_the_family_reads(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A head over them is then not probed, unless another pooling is chosen."""
    label = dataclasses.replace(BERT.heads[HEAD], pooling="cls")
    replace_bert(monkeypatch, heads={**BERT.heads, HEAD: label})
    pairs, labels = [("good", "bad"), ("bad", "good")] * 4, [0, 1] * 4
    for pooling, read in (("auto", "cls"), ("mean", "mean"), ("pooler", "pooler")):
        classifier = BertClassifier(
            tiny_model, pooling=pooling, epochs=1, validation_fraction=0.5, device="cpu",
            random_state=0,
        ).fit(pairs, labels)  # fmt: skip
        assert classifier.pooling_ == read
        assert hasattr(classifier, "probe_score_") == (pooling != "auto")


def test_a_layer_may_have_no_dropout_after_attention(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As is computed where this dropout is 0, and the other drop the same."""
    network = open_model(tiny_model)
    batch, seen = batch_for(network), []
    for path in (BERT.layer.attention_dropout, ""):
        replace_bert(monkeypatch, layer=BERT.layer._replace(attention_dropout=path))
        own = copy_network(network)
        own.model.train()
        if path:
            for layer in BERT.layers(own.model):
                BERT.layer_parts(layer).attention_dropout.p = 0.0
        torch.manual_seed(0)
        seen.append(own.hidden(batch))
    assert torch.equal(*seen)


def test_a_family_may_name_its_attention_otherwise(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = open_model(tiny_model)
    batch = batch_for(network)
    with torch.no_grad():
        expected = network.hidden(batch)
        for layer in BERT.layers(network.model):
            attention = BERT.layer_parts(layer).attention
            for name in BERT.attention:
                setattr(attention, f"own_{name}", getattr(attention, name))
                delattr(attention, name)
        replace_bert(
            monkeypatch,
            attention=BERT.attention._make(f"own_{name}" for name in BERT.attention),
        )
        assert torch.equal(network.hidden(batch), expected)
    prune(network.model, {0: [1]})
    attention = BERT.layer_parts(BERT.layers(network.model)[0]).attention
    assert attention.own_all_head_size == attention.own_attention_head_size


def test_a_family_may_name_its_settings_otherwise(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = open_model(tiny_model)
    batch, folder = batch_for(network), tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    config["hidden_dim"] = config.pop("intermediate_size")
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    with pytest.raises(ModelError):
        open_model(folder)
    replace_bert(monkeypatch, settings={"intermediate_size": "hidden_dim"})
    names = {"hidden_dim": "intermediate_size"}
    monkeypatch.setattr(transformers.BertConfig, "attribute_map", names)
    assert vet(folder).config == vet(tiny_model).config | {"intermediate_size": 64}
    with torch.no_grad():
        assert torch.equal(open_model(folder).logits(batch), network.logits(batch))
    config["hidden_dim"] = 0
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    with pytest.raises(ModelError, match=r"config\.json has hidden_dim=0, where a whole number"):
        vet(folder)


def test_a_family_has_settings_of_its_own(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = vet(tiny_model).config
    replace_bert(monkeypatch, sizes={**BERT.sizes, "width": Size(5, 1, 8)}, choices={}, rates={})
    other = vet(tiny_model).config
    assert other["width"] == 5
    gone = {*BERT.choices, *BERT.rates}
    assert other == {key: config[key] for key in config if key not in gone} | {"width": 5}
