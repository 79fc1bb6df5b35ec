"""LoRA adapters of peft over a base model: opened merged, or refused."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import huggingface_hub.constants
import numpy as np
import pytest
import torch
from conftest import tiny_vocabulary
from safetensors.torch import load_file, save_file
from support.families import save_tiny, tiny_of
from support.hand_made import edit, put, to_hub_cache

from skbert import (
    BertClassifier,
    BertRegressor,
    BertSpanExtractor,
    BertTokenTagger,
    BertTransformer,
)
from skbert._core.checkpoints import adapters, strict
from skbert._core.checkpoints.find import find
from skbert._core.checkpoints.vet import vet
from skbert._core.families import FAMILIES
from skbert._core.items import Head
from skbert._core.models.opening import open_network
from skbert.exceptions import ModelError, ModelNotFoundError, SkbertWarning
from skbert.testing._samples import sample_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from skbert._core.families.record import Family

PREFIX = "base_model.model.bert."
QUERY = "encoder.layer.0.attention.self.query"
DENSE = "encoder.layer.1.intermediate.dense"
WORDS = "embeddings.word_embeddings"
ENCODER = Head("embedding", 0)
SETTINGS: dict[str, Any] = {
    "peft_type": "LORA", "r": 4, "lora_alpha": 6, "lora_dropout": 0.1, "bias": "none",
    "task_type": "SEQ_CLS", "target_modules": ["query"], "inference_mode": True,
    "init_lora_weights": True, "fan_in_fan_out": False, "use_rslora": False, "use_dora": False,
    "rank_pattern": {}, "alpha_pattern": {}, "modules_to_save": ["classifier"], "revision": None,
    "megatron_core": "megatron.core", "layers_pattern": None, "peft_version": "0.21.2",
}  # fmt: skip


def drawn(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(sum(shape))) - 0.5


def matrices(module: str, n_out: int, n_in: int, rank: int = 4) -> dict[str, torch.Tensor]:
    return {
        f"{PREFIX}{module}.lora_A.weight": drawn(rank, n_in),
        f"{PREFIX}{module}.lora_B.weight": drawn(n_out, rank),
    }


def head_of(n_outputs: int) -> dict[str, torch.Tensor]:
    name = "base_model.model.classifier"
    return {f"{name}.weight": drawn(n_outputs, 32), f"{name}.bias": drawn(n_outputs)}


def save(
    folder: Path, base: object, tensors: dict[str, torch.Tensor] | None = None, **settings: Any
) -> Path:
    """An adapter as peft saves it."""
    held = {**matrices(QUERY, 32, 32), **matrices(DENSE, 64, 32)} if tensors is None else tensors
    folder.mkdir(exist_ok=True)
    put(folder, adapters.ADAPTER,
        {**SETTINGS, "base_model_name_or_path": str(base), **settings})  # fmt: skip
    save_file(held, folder / adapters.ADAPTER_WEIGHTS)
    return folder


@pytest.fixture
def folder(tiny_model: Path, tmp_path: Path) -> Path:
    """An adapter of two layers."""
    return save(tmp_path / "adapter", tiny_model)


def weights_of(folder: Path, head: Head = ENCODER, **settings: Any) -> dict[str, torch.Tensor]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        state = open_network(vet(folder), head, **settings).model.state_dict()
    return {name: tensor.clone() for name, tensor in state.items()}


def refused(folder: Path, match: str) -> None:
    with pytest.raises(ModelError, match=match) as caught:
        open_network(vet(folder), ENCODER)
    assert str(folder) in str(caught.value)


# --- what is merged ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "scalings"),
    [
        ({}, (1.5, 1.5)),
        ({"lora_alpha": 2}, (0.5, 0.5)),
        ({"use_rslora": True}, (3.0, 3.0)),
        ({"alpha_pattern": {"query": 8}}, (2.0, 1.5)),
        ({"alpha_pattern": {"layer.1.intermediate.dense": 10, "dense": 1}}, (1.5, 2.5)),
        ({"alpha_pattern": {"uery": 8, "layer.0": 8}}, (1.5, 1.5)),
        ({"fan_in_fan_out": True}, (1.5, 1.5)),  # which peft turns off for linear layers
    ],
)
def test_products_are_added(
    folder: Path, tiny_model: Path, settings: dict[str, Any], scalings: tuple[float, float]
) -> None:
    edit(folder, adapters.ADAPTER, lambda held: held.update(settings))
    got, want = weights_of(folder), weights_of(tiny_model)
    assert got.keys() == want.keys()
    held = load_file(folder / adapters.ADAPTER_WEIGHTS)
    for module, scaling in zip((QUERY, DENSE), scalings, strict=True):
        up, down = (held[f"{PREFIX}{module}.lora_{part}.weight"] for part in "BA")
        want[f"{module}.weight"] += scaling * up @ down
    for name, tensor in want.items():
        torch.testing.assert_close(got[name], tensor, rtol=0, atol=1e-6)


def test_ranks_may_differ_by_module(tiny_model: Path, tmp_path: Path) -> None:
    tensors = {**matrices(QUERY, 32, 32), **matrices(DENSE, 64, 32, rank=2)}
    folder = save(tmp_path / "x", tiny_model, tensors, rank_pattern={"dense": 2}, use_rslora=True)
    up, down = (tensors[f"{PREFIX}{DENSE}.lora_{part}.weight"] for part in "BA")
    change = weights_of(folder)[f"{DENSE}.weight"] - weights_of(tiny_model)[f"{DENSE}.weight"]
    torch.testing.assert_close(change, 6 / math.sqrt(2) * up @ down, rtol=0, atol=1e-6)


def test_embeddings_and_biases_are_merged(tiny_model: Path, tmp_path: Path) -> None:
    before = weights_of(tiny_model)
    rows = len(before[f"{WORDS}.weight"])
    down, up, bias = drawn(4, rows), drawn(32, 4), drawn(32)
    tensors = {
        f"{PREFIX}{WORDS}.lora_embedding_A": down, f"{PREFIX}{WORDS}.lora_embedding_B": up,
        f"{PREFIX}{QUERY}.base_layer.bias": bias,
    }  # fmt: skip
    after = weights_of(save(tmp_path / "x", tiny_model, tensors, bias="lora_only"))
    change = after[f"{WORDS}.weight"] - before[f"{WORDS}.weight"]
    torch.testing.assert_close(change, 1.5 * (up @ down).T, rtol=0, atol=1e-6)
    assert torch.equal(after[f"{QUERY}.bias"], bias)


@pytest.mark.parametrize("prefix", [PREFIX, "base_model.model."])
def test_names_of_an_encoder_and_of_a_model_with_a_head(
    tiny_model: Path, tmp_path: Path, prefix: str
) -> None:
    held = {name.replace(PREFIX, prefix): t for name, t in matrices(QUERY, 32, 32).items()}
    folder = save(tmp_path / "x", tiny_model, held, task_type=None)
    for head, place in ((ENCODER, ""), (Head("sequence classification", 3), "bert.")):
        got, want = (weights_of(each, head) for each in (folder, tiny_model))
        name = f"{place}{QUERY}.weight"
        assert (got[name] - want[name]).abs().max() > 0.01
        assert all(torch.equal(got[other], want[other]) for other in want.keys() - {name})


def test_every_type_of_numbers(tiny_model: Path, tmp_path: Path) -> None:
    held = matrices(QUERY, 32, 32)
    want = weights_of(save(tmp_path / "float", tiny_model, held))[f"{QUERY}.weight"]
    low = {name: tensor.bfloat16() for name, tensor in held.items()}
    got = weights_of(save(tmp_path / "low", tiny_model, low))[f"{QUERY}.weight"]
    torch.testing.assert_close(got, want, rtol=0, atol=2e-2)
    exact = weights_of(tmp_path / "float", dtype=torch.float64)[f"{QUERY}.weight"]
    assert exact.dtype == torch.float64


# --- heads, tokenizers, estimators ---------------------------------------------------------------


@pytest.mark.parametrize("task_type", ["SEQ_CLS", None, "CAUSAL_LM"])
def test_a_head_that_was_saved_opens(
    tiny_model: Path, tmp_path: Path, task_type: str | None
) -> None:
    tensors = {**matrices(QUERY, 32, 32), **head_of(3)}
    folder = save(tmp_path / "x", tiny_model, tensors, task_type=task_type)
    classifier = BertClassifier.from_pretrained(folder, precision="float32")
    assert len(classifier.classes_) == 3
    assert torch.equal(classifier.model_.classifier.weight, tensors[
        "base_model.model.classifier.weight"])  # fmt: skip
    X = ["a good day", "bad"]
    inputs = classifier.tokenizer_(X, padding=True, return_tensors="pt")
    with torch.no_grad():
        want = classifier.model_(**inputs).logits.softmax(-1).numpy()
    np.testing.assert_allclose(classifier.predict_proba(X), want, atol=1e-6)
    classifier.save_pretrained(tmp_path / "merged")
    again = BertClassifier.from_pretrained(tmp_path / "merged", precision="float32")
    assert np.array_equal(again.predict_proba(X), classifier.predict_proba(X))


def test_a_head_of_another_job_is_not_opened(tiny_model: Path, tmp_path: Path) -> None:
    folder = save(tmp_path / "x", tiny_model, head_of(3), task_type="TOKEN_CLS")
    with pytest.raises(ModelError, match=r"names BertForTokenClassification\. Open it with BertT"):
        BertClassifier.from_pretrained(folder)
    assert len(BertTokenTagger.from_pretrained(folder).classes_) == 3


def test_an_adapter_without_a_head_cannot_predict(folder: Path) -> None:
    with pytest.raises(ModelError, match="has no head for BertForSequenceClassification"):
        BertClassifier.from_pretrained(folder)


@pytest.mark.parametrize(
    ("kind", "estimator"),
    [("classes", BertClassifier), ("numbers", BertRegressor), ("tags", BertTokenTagger),
     ("spans", BertSpanExtractor)],
)  # fmt: skip
def test_every_estimator_trains_on_a_merged_adapter(
    tiny_model: Path, tmp_path: Path, kind: str, estimator: Callable[..., Any]
) -> None:
    sample = sample_of(kind, None, None)
    folder = save(tmp_path / "x", tiny_model, {**matrices(QUERY, 32, 32), **head_of(7)})
    fitted = estimator(model=folder, epochs=1, random_state=0).fit(sample.X, sample.y)
    fitted.save(tmp_path / "saved")
    again = estimator.load(tmp_path / "saved")
    assert str(again.predict(sample.X)) == str(fitted.predict(sample.X))


def test_features_are_those_of_the_merged_model(folder: Path, tiny_model: Path) -> None:
    X = ["a good day", "bad"]
    vectors = BertTransformer(model=folder, pooling="mean").fit_transform(X)
    before = BertTransformer(model=tiny_model, pooling="mean").fit_transform(X)
    assert np.abs(vectors - before).max() > 1e-3


def test_the_tokenizer_is_the_adapters_if_it_has_one(folder: Path, tiny_model: Path) -> None:
    assert vet(folder).tokenizer.vocabulary == vet(tiny_model).tokenizer.vocabulary
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tiny_model / name, folder)
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    here, there = vocabulary["good"], vocabulary["bad"]
    edit(folder, "tokenizer.json", lambda held: held["model"]["vocab"].update(
        good=there, bad=here))  # fmt: skip
    assert vet(folder).tokenizer.vocabulary["good"] == there
    edit(folder, "tokenizer.json", lambda held: held["model"]["vocab"].update(extra=10**6))
    refused(folder, r"tokenizer")


def test_the_pooling_is_the_adapters_if_it_declares_one(
    folder: Path, tiny_model: Path, tmp_path: Path
) -> None:
    base = Path(shutil.copytree(tiny_model, tmp_path / "base"))
    put(base, "1_Pooling/config.json", {"pooling_mode": "cls"})
    edit(folder, adapters.ADAPTER, lambda held: held.update(base_model_name_or_path=str(base)))
    assert vet(folder).pooling == "cls"
    put(folder, "1_Pooling/config.json", {"pooling_mode": "max"})
    assert vet(folder).pooling == "max"


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_adapters_and_bin_files_open_over_every_family(family: Family, tmp_path: Path) -> None:
    job = "sequence classification"
    base = save_tiny(family, tmp_path / "base", tiny_vocabulary())
    model = tiny_of(family, job, seed=1, vocab_size=len(tiny_vocabulary()), num_labels=3)
    heads = family.heads[job].prefixes
    linears = (
        name for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and not f"{name}.".startswith(heads)
    )  # fmt: skip
    name = min(linears, key=lambda name: family.is_of_pooler(f"{name}."))  # not all bring one
    held = {f"base_model.model.{key}": tensor.contiguous()
            for key, tensor in model.state_dict().items() if key.startswith(heads)}  # fmt: skip
    up, down = drawn(model.get_submodule(name).out_features, 4), drawn(
        4, model.get_submodule(name).in_features)  # fmt: skip
    low = {f"base_model.model.{name}.lora_A.weight": down,
           f"base_model.model.{name}.lora_B.weight": up}  # fmt: skip
    head = Head(job, 3)
    want = weights_of(base, head, pooling="mean")
    folder = save(tmp_path / "x", base, {**held, **low})
    got = weights_of(folder, head, fresh_head=False, pooling="mean")
    torch.testing.assert_close(got[f"{name}.weight"] - want[f"{name}.weight"], 1.5 * up @ down)
    assert all(
        torch.equal(got[key.removeprefix("base_model.model.")], t) for key, t in held.items()
    )
    torch.save(load_file(base / strict.SINGLE), base / strict.PICKLED)
    (base / strict.SINGLE).unlink()
    with pytest.warns(SkbertWarning, match="Convert the model to safetensors once"):
        opened = weights_of(base, head, pooling="mean")
    assert all(torch.equal(opened[key], tensor) for key, tensor in want.items())


# --- where the base model is ---------------------------------------------------------------------


def test_the_base_is_found_like_any_model(
    folder: Path, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    to_hub_cache(tiny_model, tmp_path / "cache", name="some--base")
    to_hub_cache(folder, tmp_path / "cache", name="some--adapter")
    adapter = find("some/adapter")
    assert adapter.parent.parent.name == "models--some--adapter"
    edit(folder, adapters.ADAPTER, lambda held: held.update(base_model_name_or_path="some/base"))
    assert weights_of(folder).keys() == weights_of(tiny_model).keys()
    shutil.copytree(tiny_model, tmp_path / "work" / "here")
    monkeypatch.chdir(tmp_path / "work")
    edit(folder, adapters.ADAPTER, lambda held: held.update(base_model_name_or_path="./here"))
    assert weights_of(folder).keys() == weights_of(tiny_model).keys()
    (adapter / adapters.ADAPTER_WEIGHTS).unlink()
    with pytest.raises(ModelNotFoundError, match=r"a copy without adapter_model\.safetensors\)"):
        find("some/adapter")


@pytest.mark.parametrize("base", ["/nowhere", "some/missing-base", "../nowhere"])
def test_a_missing_base_is_named(folder: Path, base: str) -> None:
    edit(folder, adapters.ADAPTER, lambda held: held.update(base_model_name_or_path=base))
    with pytest.raises(ModelNotFoundError, match=r"base model is missing: .*base_model_name_or_p"
    ) as caught:  # fmt: skip
        vet(folder)
    assert base in str(caught.value)
    assert str(folder) in str(caught.value)


def test_the_base_is_vetted(folder: Path, tiny_model: Path, tmp_path: Path) -> None:
    base = Path(shutil.copytree(tiny_model, tmp_path / "base"))
    edit(base, "config.json", lambda held: held.update(auto_map={"AutoModel": "evil.Model"}))
    edit(folder, adapters.ADAPTER, lambda held: held.update(base_model_name_or_path=str(base)))
    with pytest.raises(ModelError, match=r"base/config\.json .*Python code of its own"):
        vet(folder)


def test_an_adapter_over_an_adapter_is_refused(folder: Path, tmp_path: Path) -> None:
    refused(save(tmp_path / "second", folder), "which is an adapter as well")
    edit(folder, adapters.ADAPTER, lambda held: held.update(base_model_name_or_path=str(folder)))
    refused(folder, "which is an adapter as well")


# --- what is refused -----------------------------------------------------------------------------

ODD_SETTINGS = [
    ("peft_type", "IA3", "peft_type='IA3'. Only adapters of the type 'LORA'"),
    ("peft_type", None, "peft_type='None'"),
    ("peft_type", ["LORA"], "peft_type="),
    ("use_dora", True, "sets use_dora=True, so it is more than a plain LoRA.*Merge it into"),
    ("use_qalora", True, "sets use_qalora=True"),
    ("lora_bias", True, "sets lora_bias=True"),
    ("loftq_config", {"bits": 4}, "sets loftq_config="),
    ("layer_replication", [[0, 2]], "sets layer_replication="),
    ("trainable_token_indices", [1], "sets trainable_token_indices="),
    ("target_parameters", ["x"], "sets target_parameters="),
    ("megatron_config", {"x": 1}, "sets megatron_config="),
    ("anything_new", 1, "sets anything_new=1"),
    ("revision", "0123abc", "sets revision=0123abc"),
    ("init_lora_weights", "pissa", "sets init_lora_weights=pissa"),
    ("init_lora_weights", "loftq", "sets init_lora_weights=loftq"),
    ("init_lora_weights", ["olora"], "sets init_lora_weights="),
    ("base_model_name_or_path", None, "base_model_name_or_path=None, where the name"),
    ("base_model_name_or_path", "", "base_model_name_or_path=, where the name"),
    ("base_model_name_or_path", ["x"], "base_model_name_or_path="),
    ("lora_alpha", 0, "lora_alpha=0, where a number above 0"),
    ("lora_alpha", "6", "lora_alpha=6, where a number"),
    ("lora_alpha", 1e300, "lora_alpha=1e"),
    ("r", -4, "r=-4, where a number above 0"),
    ("r", 8, "shapes .* where two that share a side of 8 are expected"),
    ("use_rslora", "yes", "use_rslora=yes, where true or false"),
    ("alpha_pattern", {"(a+)+$": 4}, r"alpha_pattern=.*without wildcards, is expected"),
    ("alpha_pattern", {"query": "4"}, "alpha_pattern="),
    ("alpha_pattern", ["query"], "alpha_pattern="),
    ("rank_pattern", {".*": 4}, "rank_pattern="),
    ("task_type", ["SEQ_CLS"], "task_type=.*the name of a task"),
]


@pytest.mark.parametrize(("key", "value", "message"), ODD_SETTINGS)
def test_other_adapters_are_refused(folder: Path, key: str, value: object, message: str) -> None:
    edit(folder, adapters.ADAPTER, lambda held: held.update({key: value}))
    refused(folder, message)


@pytest.mark.parametrize("init", [True, False, "gaussian", "eva", "orthogonal", None])
def test_how_the_matrices_began_does_not_matter(folder: Path, init: object) -> None:
    edit(folder, adapters.ADAPTER, lambda held: held.update(init_lora_weights=init))
    edit(
        folder, adapters.ADAPTER, lambda held: held.update(revision="main", auto_mapping={"x": 1})
    )
    assert vet(folder).adapter is not None


A, B = f"{PREFIX}{QUERY}.lora_A.weight", f"{PREFIX}{QUERY}.lora_B.weight"
ODD_TENSORS = {
    "one matrix": ({A: drawn(4, 32)}, r"holds matrices of the shapes \[\(4, 32\)\] for"),
    "the other matrix": ({B: drawn(32, 4)}, "holds matrices of the shapes"),
    "ranks that differ": ({A: drawn(4, 32), B: drawn(32, 5)}, "holds matrices of the shapes"),
    "a vector": ({A: drawn(4, 32), B: drawn(4)}, "holds matrices of the shapes"),
    "half of an embedding": (
        {A: drawn(4, 32), f"{PREFIX}{QUERY}.lora_embedding_B": drawn(32, 4)}, "of the shapes"),
    "another side": ({A: drawn(4, 16), B: drawn(32, 4)}, "of 32x32 numbers, by 32x16"),
    "a huge product": ({A: drawn(4, 10**5), B: drawn(10**5, 4)}, "by 100000x100000"),
    "no such layer": (matrices("encoder.layer.7.output.dense", 32, 64), "model does not have"),
    "no such weight": ({f"{PREFIX}odd.weight": drawn(2)}, "the weight 'bert.odd.weight', w"),
    "a larger vocabulary": ({f"{PREFIX}{WORDS}.weight": drawn(999, 32)}, r"numbers, by 999x32"),
    "no prefix": ({"bert.x.lora_A.weight": drawn(4, 2)}, "no part of a plain LoRA"),
    "a magnitude": ({f"{PREFIX}x.lora_magnitude_vector": drawn(4)}, "no part of a plain LoRA"),
    "a bias of a matrix": ({f"{PREFIX}x.lora_B.bias": drawn(4)}, "no part of a plain LoRA"),
    "integers": ({f"{PREFIX}x.lora_embedding_A": torch.ones(4, 4).int()}, "as I32, which is no"),
    "a head of nothing": (
        {"base_model.model.classifier.weight": drawn(0, 32)}, "has a head of 0 outputs"),
}  # fmt: skip


@pytest.mark.parametrize(("tensors", "message"), ODD_TENSORS.values(), ids=ODD_TENSORS)
def test_odd_tensors_are_refused(
    tiny_model: Path, tmp_path: Path, tensors: dict[str, torch.Tensor], message: str
) -> None:
    refused(save(tmp_path / "x", tiny_model, tensors), message)


def test_a_weight_that_two_layers_share_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    rows = len(weights_of(tiny_model)[f"{WORDS}.weight"])
    tensors = {f"{PREFIX}{WORDS}.lora_embedding_A": drawn(4, rows),
               f"{PREFIX}{WORDS}.lora_embedding_B": drawn(32, 4)}  # fmt: skip
    folder = save(tmp_path / "x", tiny_model, tensors, task_type=None)
    head = Head("masked language modelling", 0, reads="selected tokens", fresh=False)
    with pytest.raises(ModelError, match="which two layers of the model share"):
        open_network(vet(folder), head)


def test_only_safetensors_are_read_for_adapters(folder: Path) -> None:
    torch.save(load_file(folder / adapters.ADAPTER_WEIGHTS), folder / "adapter_model.bin")
    (folder / adapters.ADAPTER_WEIGHTS).unlink()
    refused(folder, r"has no adapter_model\.safetensors.*peft.*save_pretrained")


def test_a_cut_file_and_links_are_refused(folder: Path) -> None:
    path = folder / adapters.ADAPTER_WEIGHTS
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    refused(folder, r"adapter_model\.safetensors is damaged or cut short")
    path.unlink()
    path.symlink_to(folder.parent / "outside.safetensors")
    (folder.parent / "outside.safetensors").write_bytes(data)
    refused(folder, "is a link that leaves its folder")


def test_a_manifest_that_does_not_list_an_adapter_hides_it(
    tiny_model: Path, tmp_path: Path
) -> None:
    BertTransformer(model=tiny_model).fit(["a"]).save(tmp_path / "saved")
    put(tmp_path / "saved", adapters.ADAPTER, b"hostile")
    assert strict.Members(tmp_path / "saved").has(adapters.ADAPTER)
    assert vet(tmp_path / "saved").adapter is None


def test_torch_stays_out_of_what_vets(folder: Path) -> None:
    code = (
        "import sys; from skbert._core.checkpoints import vet; vet.vet(sys.argv[1]);"
        " assert not {'torch', 'transformers', 'tokenizers', 'peft'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(folder)], check=True)


# --- peft itself ---------------------------------------------------------------------------------

PEFT = [
    {},
    {"use_rslora": True, "bias": "all", "init_lora_weights": False},
    {"rank_pattern": {"key": 2}, "alpha_pattern": {"key": 5, "layer.1.attention.self.query": 3}},
    {"target_modules": "all-linear", "init_lora_weights": "gaussian", "bias": "lora_only"},
    {"target_modules": ["word_embeddings", "query"]},
    {"fan_in_fan_out": True, "modules_to_save": ["classifier", "pooler"]},
]


@pytest.mark.parametrize("settings", PEFT)
def test_adapters_open_as_peft_merges_them(
    tiny_model: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    peft = pytest.importorskip("peft", reason="peft is not installed")
    from transformers import BertForSequenceClassification

    assert os.environ.get("HF_HUB_OFFLINE") == "1"
    config = {"task_type": "SEQ_CLS", "r": 4, "lora_alpha": 6,
              "target_modules": ["query", "key", "dense"], **settings}  # fmt: skip
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peft's own
        model = BertForSequenceClassification.from_pretrained(tiny_model, num_labels=3)
        adapted = peft.get_peft_model(model, peft.LoraConfig(**config))
        for name, weight in adapted.named_parameters():
            if "lora_" in name or "modules_to_save" in name or name.endswith("bias"):
                torch.nn.init.normal_(weight, std=0.2)
        adapted.save_pretrained(tmp_path / "x")
        loaded = peft.PeftModel.from_pretrained(
            BertForSequenceClassification.from_pretrained(tiny_model, num_labels=3),
            tmp_path / "x",
        )
        want = loaded.merge_and_unload().state_dict()
    opened = BertClassifier.from_pretrained(tmp_path / "x").model_.state_dict()
    assert opened.keys() == want.keys()
    for name, tensor in want.items():
        torch.testing.assert_close(opened[name], tensor, rtol=0, atol=1e-5)
