"""Refusing checkpoints that are broken or hostile."""

from __future__ import annotations

import contextlib
import copy
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import safetensors
from hypothesis import given
from hypothesis import strategies as st
from support.hand_made import (
    CONFIG,
    PIECES,
    SHAPES,
    TOKENIZER,
    edit,
    make,
    put,
    shard,
    tensor_file,
    tensors,
    to_hub_cache,
)  # fmt: skip

from skbert._core.checkpoints import strict, tokenizer_files, vet
from skbert._core.families.tokenizers import WORD_PIECE
from skbert.exceptions import ModelError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A whole and honest checkpoint."""
    return make(tmp_path / "model")


def refused(folder: Path, match: str) -> None:
    with pytest.raises(ModelError, match=match) as caught:
        vet.vet(folder)
    assert str(folder) in str(caught.value)  # where
    assert len(str(caught.value).split(". ")) >= 2 or ": " in str(caught.value)  # what to do


# --- checkpoints that pass -----------------------------------------------------------------------


def test_an_honest_checkpoint(folder: Path) -> None:
    checkpoint = vet.vet(folder)
    assert checkpoint.folder == folder
    dropped = {"transformers_version"}
    assert checkpoint.config == {k: v for k, v in CONFIG.items() if k not in dropped}
    assert checkpoint.pooling is None
    assert checkpoint.max_length == 16
    assert checkpoint.lowercase is True
    assert [file.path for file in checkpoint.weights] == [folder / "model.safetensors"]


def test_a_tokenizer_is_checked_once_as_long_as_its_files_say_the_same(folder: Path) -> None:
    first = vet.vet(folder).tokenizer
    put(folder, "README.md", {"read": "by nobody"})
    os.utime(folder / "tokenizer.json")
    assert vet.vet(folder).tokenizer is first
    put(folder, "tokenizer_config.json", {"do_lower_case": not first.lowercase})
    changed = vet.vet(folder).tokenizer
    assert changed.lowercase is not first.lowercase


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("tokenizer_config.json", {"tokenizer_class": "T5Tokenizer"}),
        ("added_tokens.json", {"[PAD]": 1}),
        ("config.json", {"vocab_size": 2}),
    ],
)
def test_a_tokenizer_is_checked_anew_when_something_else_is_said(
    folder: Path, name: str, change: dict[str, Any]
) -> None:
    vet.vet(folder)
    put(folder, name, CONFIG | change if name == "config.json" else change)
    refused(folder, "the tokenizer in")


def test_a_tiny_model_of_transformers(tiny_model: Path) -> None:
    checkpoint = vet.vet(tiny_model)
    assert checkpoint.config["hidden_size"] == 32
    assert checkpoint.max_length == 128
    assert checkpoint.lowercase is True


def test_a_sharded_model_of_transformers(tiny_model: Path, tmp_path: Path) -> None:
    from transformers import BertModel

    shutil.copytree(tiny_model, tmp_path / "m")
    (tmp_path / "m" / "model.safetensors").unlink()
    model = BertModel.from_pretrained(tiny_model)
    model.save_pretrained(tmp_path / "m", max_shard_size="20KB")
    checkpoint = vet.vet(tmp_path / "m")
    assert len(checkpoint.weights) > 2
    held = [name for file in checkpoint.weights for name in file.tensors]
    assert sorted(held) == sorted(model.state_dict())


def test_the_real_encoder(minilm: Path) -> None:
    checkpoint = vet.vet(minilm)
    assert checkpoint.pooling == "mean"
    assert checkpoint.max_length == 512  # the 256 of sentence_bert_config.json is a habit
    assert checkpoint.lowercase is True
    assert checkpoint.config["num_hidden_layers"] == 6
    from safetensors import safe_open

    (weights,) = checkpoint.weights
    with safe_open(weights.path, "np") as file:
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    assert {name: shape for name, (_, shape, _, _) in weights.tensors.items()} == shapes


def test_a_model_reads_as_far_as_its_positions_go(folder: Path) -> None:
    edit(folder, "config.json", lambda config: config.update(max_position_embeddings=2048))
    assert vet.vet(folder).max_length == 2048


def test_sizes_that_config_json_leaves_out_are_those_of_bert(folder: Path) -> None:
    edit(folder, "config.json", lambda config: config.pop("type_vocab_size"))
    assert vet.vet(folder).config["type_vocab_size"] == 2


def test_settings_that_reach_into_the_loader_never_arrive(folder: Path) -> None:
    hostile = {
        "attn_implementation": "evil/kernel", "_attn_implementation": "evil/kernel",
        "_attn_implementation_internal": "evil/kernel", "experts_implementation": "evil/kernel",
        "trust_remote_code": True, "transformers_weights": "../outside.safetensors",
        "dtype": "load", "torch_dtype": "load", "_name_or_path": "evil/model",
        "custom_pipelines": {"x": {"impl": "evil.Pipeline"}}, "auto_map": None,
        "return_dict": False, "output_attentions": True, "torchscript": True, "anything": [1],
    }  # fmt: skip
    edit(folder, "config.json", lambda config: config.update(hostile))
    assert not vet.vet(folder).config.keys() & hostile.keys()


def test_the_settings_of_a_head_arrive(folder: Path) -> None:
    head = {"architectures": ["BertForSequenceClassification"], "classifier_dropout": 0.2,
            "id2label": {"0": "no", "1": "yes"}, "label2id": {"no": 0, "yes": 1},
            "num_labels": 2, "problem_type": "single_label_classification"}  # fmt: skip
    edit(folder, "config.json", lambda config: config.update(head))
    config = vet.vet(folder).config
    assert {key: config[key] for key in head} == head


def test_lost_heads_arrive_and_count_less(folder: Path) -> None:
    edit(folder, "config.json", lambda config: config.update(pruned_heads={"0": [1]}))
    assert vet.vet(folder).config["pruned_heads"] == {"0": [1]}


def test_without_its_heads_a_model_may_be_small(folder: Path) -> None:
    sizes = {"hidden_size": 768, "intermediate_size": 768}
    sizes |= {"num_hidden_layers": 12, "num_attention_heads": 12}
    config = {**vet.vet(folder).config, **sizes}
    lost = {str(layer): list(range(11)) for layer in range(12)}
    path = folder / "config.json"
    vet._check_memory(path, {**config, "pruned_heads": lost}, held=5_000_000)
    with pytest.raises(ModelError, match="describes a model of"):
        vet._check_memory(path, config, held=5_000_000)


def test_null_means_absent(folder: Path) -> None:
    nothing = dict.fromkeys(["classifier_dropout", "problem_type", "id2label", "auto_map"])
    edit(folder, "config.json", lambda config: config.update(nothing))
    assert not vet.vet(folder).config.keys() & nothing.keys()


# --- config.json ---------------------------------------------------------------------------------

WRONG_SETTINGS = [
    ("model_type", "bart", "model_type='bart'. This version knows bert, .* needs a record"),
    ("model_type", None, "model_type=None"),
    ("model_type", ["bert"], "model_type="),
    ("auto_map", {"AutoModel": "evil.Model"}, "brings Python code of its own, which is not supp"),
    ("quantization_config", {"quant_method": "x"}, "is quantized, which is not supported"),
    ("pruned_heads", [1], r'pruned_heads=.*where \{"layer": \[head, \.\.\.\]\}, not all of a'),
    ("pruned_heads", {"1": [0]}, "pruned_heads="),
    ("pruned_heads", {"00": [0]}, "pruned_heads="),
    ("pruned_heads", {"0": [2]}, "pruned_heads="),
    ("pruned_heads", {"0": [-1]}, "pruned_heads="),
    ("pruned_heads", {"0": [True]}, "pruned_heads="),
    ("pruned_heads", {"0": [[0]]}, "pruned_heads="),
    ("pruned_heads", {"0": 1}, "pruned_heads="),
    ("pruned_heads", {"0": [1, 1]}, "pruned_heads="),
    ("pruned_heads", {"0": [0, 1]}, "pruned_heads=.*not all of a layer, is expected"),
    ("add_cross_attention", True, "has cross-attention, which is not supported"),
    ("position_embedding_type", "rotary", "position_embedding_type=rotary, where one of"),
    ("hidden_size", 0, "hidden_size=0, where a whole number from 1 to 16384"),
    ("hidden_size", 10**9, "hidden_size=1000000000, where a whole number"),
    ("hidden_size", 5, "num_attention_heads=2, where a divisor of hidden_size=5"),
    ("hidden_size", "4", "hidden_size=4, where a whole number"),
    ("hidden_size", 4.0, "hidden_size=4.0, where a whole number"),
    ("num_hidden_layers", 257, "from 1 to 256"),
    ("num_hidden_layers", True, "num_hidden_layers=True"),
    ("num_hidden_layers", [1], "num_hidden_layers="),
    ("num_attention_heads", 0, "num_attention_heads=0"),
    ("num_attention_heads", 3, "a divisor of hidden_size=4"),
    ("intermediate_size", -8, "intermediate_size=-8"),
    ("vocab_size", 5_000_001, "from 1 to 5000000"),
    ("max_position_embeddings", 1, "from 2 to 1000000"),
    ("type_vocab_size", 0, "type_vocab_size=0"),
    ("chunk_size_feed_forward", -1, "chunk_size_feed_forward=-1, where a whole number from 0"),
    ("hidden_dropout_prob", 1.5, "hidden_dropout_prob=1.5, where a number from 0 to 1"),
    ("hidden_dropout_prob", "0.1", "a number from 0 to 1"),
    ("classifier_dropout", -0.1, "classifier_dropout=-0.1"),
    ("layer_norm_eps", False, "layer_norm_eps=False"),
    ("layer_norm_eps", 0, "layer_norm_eps=0, where a number from 1e-30 to 1"),
    ("layer_norm_eps", 1e-46, "layer_norm_eps=1e-46"),
    ("hidden_act", "evil", "hidden_act=evil, where one of gelu"),
    ("hidden_act", {"x": 1}, "hidden_act="),
    ("pad_token_id", 8, "pad_token_id=8, where an id of the vocabulary"),
    ("pad_token_id", -1, "pad_token_id=-1"),
    ("id2label", {"0": "a", "2": "b"}, "id2label=.*different names under"),
    ("id2label", {"0": 3}, "id2label="),
    ("id2label", ["a", "b"], "id2label="),
    ("id2label", {"0": "a", "1": "a"}, "id2label=.*different names"),
    ("label2id", ["a", "b"], "label2id="),
    ("label2id", {"a": [1]}, "label2id=.*an object of numbers"),
    ("num_labels", 10**12, "num_labels=1000000000000"),
    ("problem_type", "evil", "problem_type=evil"),
    ("tie_word_embeddings", "yes", "tie_word_embeddings=yes"),
    ("is_decoder", "yes", "is_decoder=yes, where true or false"),
    ("architectures", "BertModel", "architectures=BertModel, where a list of class names"),
    ("architectures", [1], "architectures="),
]  # fmt: skip


@pytest.mark.parametrize(("key", "value", "message"), WRONG_SETTINGS)
def test_wrong_settings_are_refused(folder: Path, key: str, value: object, message: str) -> None:
    edit(folder, "config.json", lambda config: config.update({key: value}))
    refused(folder, rf"config\.json .*{message}")


WRONG_JSON = {
    "broken": (b'{"model_type": ', "not valid JSON"),
    "a list": (b"[]", "should hold a JSON object, not a list"),
    "a key twice": (b'{"model_type": "bert", "model_type": "x"}', "'model_type' stands twice"),
    "NaN": (b'{"layer_norm_eps": NaN}', "NaN is not a finite number"),
    "a number out of range": (b'{"layer_norm_eps": 1e400}', "1e400 is not a finite number"),
    "nested without end": (b'{"a":' * 50_000, "not valid JSON"),
    "other bytes": (b"\xff\xfe", "not valid JSON"),
    "nothing in it": (b"{}", "is no model: it has no config.json, or an empty one"),
}


@pytest.mark.parametrize(("text", "message"), WRONG_JSON.values(), ids=WRONG_JSON)
def test_config_json_must_be_one_object(folder: Path, text: bytes, message: str) -> None:
    put(folder, "config.json", text)
    refused(folder, message)


def test_a_folder_without_config_json(folder: Path, tmp_path: Path) -> None:
    (folder / "config.json").unlink()
    refused(folder, r"is no model: it has no config\.json.*Give the folder that holds")
    refused(tmp_path / "nowhere", r"is no model: it has no config\.json")


def test_an_adapter_is_more_than_a_name_of_a_model(folder: Path) -> None:
    put(folder, "adapter_config.json", {"base_model_name_or_path": "evil/model"})
    refused(
        folder, r"adapter_config\.json has peft_type='None'\. Only adapters of the type 'LORA'"
    )


def test_a_small_file_makes_no_large_model(folder: Path) -> None:
    large = {"hidden_size": 16_384, "num_hidden_layers": 256, "intermediate_size": 131_072}
    edit(folder, "config.json", lambda config: config.update(large))
    refused(folder, r"describes a model of \d{13} weights, but its files hold 36")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@pytest.fixture(scope="module")
def folder_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For tests that put back what they change."""
    return make(tmp_path_factory.mktemp("source") / "model")


@contextlib.contextmanager
def changed(path: Path, content: object) -> Iterator[None]:
    before = path.read_bytes()
    put(path.parent, path.name, content)
    try:
        yield
    finally:
        path.write_bytes(before)


@given(key=st.sampled_from(sorted({*CONFIG, *vet._KEPT, *vet._NOT_READ})), value=json_values)
def test_no_setting_does_worse_than_an_error(folder_once: Path, key: str, value: Any) -> None:
    with (
        changed(folder_once / "config.json", {**CONFIG, key: value}),
        contextlib.suppress(ModelError),
    ):
        vet.vet(folder_once)


# --- weights -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["other.bin", "tf_model.h5", "flax_model.msgpack", "model.pt", "model.onnx"]
)
def test_weights_of_other_libraries_are_not_read(folder: Path, name: str) -> None:
    (folder / "model.safetensors").unlink()
    put(folder, name, b"\x80\x04code")
    refused(folder, rf"has no model\.safetensors .*, only {name}\. .*save it as safetensors")


def test_a_folder_without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    refused(folder, r"has no model\.safetensors and no pytorch_model\.bin\. Weights of TensorFlow")


def test_shards(folder: Path) -> None:
    shard(folder)
    paths = [file.path for file in vet.vet(folder).weights]
    assert paths == [folder / "part-0.safetensors", folder / "part-1.safetensors"]


@pytest.mark.parametrize(
    "name", ["../outside.safetensors", "/tmp/outside.safetensors", "sub/x.safetensors", "..",
             "..\\outside.safetensors", "part-0.bin", "pytorch_model.bin", "", ".safetensors",
             3, None, ["part-0.safetensors"]]
)  # fmt: skip
def test_shards_stay_in_the_folder(folder: Path, name: object) -> None:
    put(folder.parent, "outside.safetensors", tensors(SHAPES))
    shard(folder, {"pooler.dense.bias": name})
    refused(folder, r"index\.json puts the tensor 'pooler\.dense\.bias' into .*do not use this")


def test_a_missing_shard_is_named(folder: Path) -> None:
    shard(folder)
    (folder / "part-1.safetensors").unlink()
    refused(folder, r"part-1\.safetensors is missing, but the index lists it")


def test_a_tensor_in_two_shards(folder: Path) -> None:
    shard(folder)
    put(folder, "part-1.safetensors", tensors(SHAPES))
    refused(folder, r"disagree on the tensor 'embeddings\.word_embeddings\.weight'")


def test_a_tensor_in_no_shard(folder: Path) -> None:
    shard(folder, {"pooler.dense.weight": "part-1.safetensors"})
    refused(folder, r"part-1\.safetensors and .* disagree on the tensor 'pooler\.dense\.weight'")


@pytest.mark.parametrize("content", [{}, {"weight_map": {}}, {"weight_map": ["x"]}])
def test_an_index_of_nothing(folder: Path, content: object) -> None:
    shard(folder)
    put(folder, "model.safetensors.index.json", content)
    refused(folder, r"index\.json lists no files")


def test_an_index_that_names_a_tensor_twice(folder: Path) -> None:
    shard(folder)
    put(folder, "model.safetensors.index.json", b'{"weight_map": {"x": "a", "x": "b"}}')
    refused(folder, r"index\.json is not valid JSON: the key 'x' stands twice")


# --- links ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_links_that_leave_the_folder_are_refused(folder: Path, name: str) -> None:
    outside = folder.parent / "outside"
    (folder / name).rename(outside)
    (folder / name).symlink_to(outside)
    refused(folder, rf"{name} is a link that leaves its folder, to .*put a copy")


def test_a_linked_shard_or_sub_folder_is_refused(folder: Path) -> None:
    shard(folder)
    (folder / "part-1.safetensors").rename(folder.parent / "part-1.safetensors")
    (folder / "part-1.safetensors").symlink_to("../part-1.safetensors")
    refused(folder, r"part-1\.safetensors is a link that leaves its folder")
    (folder / "part-1.safetensors").unlink()
    shutil.move(folder.parent / "part-1.safetensors", folder)
    put(folder.parent, "elsewhere/config.json", {"pooling_mode_mean_tokens": True})
    (folder / "1_Pooling").symlink_to("../elsewhere", target_is_directory=True)
    refused(folder, r"1_Pooling/config\.json is a link that leaves its folder")


def test_links_within_the_folder_and_to_the_folder_pass(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "weights")
    (folder / "model.safetensors").symlink_to("weights")
    (folder.parent / "latest").symlink_to(folder, target_is_directory=True)
    assert vet.vet(folder.parent / "latest").max_length == 16


def test_what_is_no_file_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder / "model.safetensors")  # opening it would wait for ever
    refused(folder, r"model\.safetensors is no file that can be read")
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to("nowhere")
    refused(folder, r"model\.safetensors is no file that can be read")


@pytest.mark.parametrize("shared", [False, True])
def test_links_of_the_hubs_cache_pass(folder: Path, tmp_path: Path, shared: bool) -> None:
    snapshot = to_hub_cache(folder, tmp_path / "cache", shared=shared)
    assert vet.vet(snapshot).lowercase is True


def test_links_of_a_snapshot_lead_to_the_blobs_only(folder: Path, tmp_path: Path) -> None:
    snapshot = to_hub_cache(folder, tmp_path / "cache")
    (snapshot / "model.safetensors").unlink()
    (snapshot / "model.safetensors").symlink_to(folder / "model.safetensors")
    refused(snapshot, r"model\.safetensors is a link that leaves its folder")


# --- tensor headers ------------------------------------------------------------------------------

ONE = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
HEADERS = {
    "nothing": (b"", "at byte 0: a header of 0 bytes does not fit 0 bytes"),
    "three bytes": (b"abc", "at byte 0"),
    "a header past the end": ((99).to_bytes(8, "little") + b"{}", "at byte 0: a header of 99"),
    "a header of 2 ** 64 - 1": (b"\xff" * 8 + b"{}", "byte 0: a header of 18446744073709551615"),
    "a pickle": (b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00", "at byte 0"),
    "no JSON": (tensor_file(b"{]", b""), "not valid JSON"),
    "no object": (tensor_file([], b""), "at byte 8: the header is no object"),
    "a name twice": (tensor_file(b'{"x": {}, "x": {}}', b""), "'x' stands twice"),
    "cut data": (tensor_file({"x": ONE}, bytes(7)), r"at byte \d+: tensor 'x' has 8 bytes"),
    "data to spare": (tensor_file({"x": ONE}, bytes(9)), "1 bytes belong to no tensor"),
    "an overlap": (tensor_file({"x": ONE, "y": ONE}, bytes(8)), "tensor 'y' has 8 bytes, and is"),
    "a hole": (tensor_file({"x": {**ONE, "data_offsets": [4, 12]}}, bytes(12)), "put at 4 to 12"),
    "turned round": (tensor_file({"x": {**ONE, "data_offsets": [8, 0]}}, bytes(8)), "8 to 0"),
    "a wrong size": (tensor_file({"x": {**ONE, "shape": [3]}}, bytes(8)), "has 12 bytes"),
    "a negative shape": (tensor_file({"x": {**ONE, "shape": [-2, -1]}}, bytes(8)), "is described"),
    "a shape of text": (tensor_file({"x": {**ONE, "shape": ["2"]}}, bytes(8)), "is described"),
    "a shape of true": (tensor_file({"x": {**ONE, "shape": [True]}}, bytes(8)), "is described"),
    "negative offsets": (tensor_file({"x": {**ONE, "data_offsets": [-8, 0]}}, b""), "described"),
    "an unknown type": (tensor_file({"x": {**ONE, "dtype": "Q4"}}, bytes(8)), "is described"),
    "no offsets": (tensor_file({"x": {"dtype": "F32", "shape": [2]}}, bytes(8)), "is described"),
    "no entry": (tensor_file({"x": None}, b""), "tensor 'x' is described by None"),
    "a bomb": (tensor_file({"x": {**ONE, "shape": [2**62, 2**62]}}, bytes(8)), "tensor 'x' has"),
}  # fmt: skip


@pytest.mark.parametrize(("data", "message"), HEADERS.values(), ids=HEADERS)
def test_damaged_tensor_files_are_refused(folder: Path, data: bytes, message: str) -> None:
    put(folder, "model.safetensors", data)
    refused(folder, rf"model\.safetensors is .*{message}")


def test_every_truncation_is_found(folder: Path) -> None:
    path = folder / "model.safetensors"
    data = path.read_bytes()
    for length in range(len(data)):
        path.write_bytes(data[:length])
        with pytest.raises(ModelError, match=r"model\.safetensors is "):
            vet.vet(folder)


@given(at=st.integers(0, 150), byte=st.integers(0, 255))
def test_a_header_that_passes_opens_in_safetensors(folder_once: Path, at: int, byte: int) -> None:
    path = folder_once / "model.safetensors"
    data = path.read_bytes()
    with changed(path, data[:at] + bytes([byte]) + data[at + 1 :]):
        try:
            held = strict.tensor_file(strict.Members(folder_once), path.name).tensors
        except ModelError:
            return
        with safetensors.safe_open(path, "np") as file:
            assert set(file.keys()) == set(held)


# --- tokenizers ----------------------------------------------------------------------------------


def test_a_folder_without_a_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    refused(folder, r"holds no tokenizer, so every text would be unknown.*Add the tokenizer\.json")


def test_vocab_txt_will_do(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    put(folder, "vocab.txt", "\n".join(PIECES).encode())
    assert vet.vet(folder).lowercase is None
    edit(folder, "tokenizer_config.json", lambda settings: settings.update(do_lower_case=False))
    assert vet.vet(folder).lowercase is False


def test_vocab_txt_is_read_as_transformers_reads_it(tmp_path: Path) -> None:
    from transformers.models.bert.tokenization_bert import load_vocab

    text = "[PAD]\r\n[UNK]\n[CLS]\n[SEP]\na\u2028b\n\x85\nc\x0cd\ndouble\ndouble\n\nlast"
    for ending in ("", "\n", "\n\n"):
        put(tmp_path, "vocab.txt", (text + ending).encode())
        assert tokenizer_files._listed(strict.Members(tmp_path), WORD_PIECE)[0] == dict(
            load_vocab(tmp_path / "vocab.txt")
        )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n\xff\n", "is not UTF-8"),
        (b"[PAD]\n[UNK]\n[CLS]\nword", r"has no sep_token '\[SEP\]'"),
        (b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n" + b"x\n" * 5, "gives 'x' the id 8, but the model has"),
        (b"", r"has no cls_token '\[CLS\]'"),
    ],
)
def test_wrong_vocab_txt(folder: Path, text: bytes, message: str) -> None:
    (folder / "tokenizer.json").unlink()
    put(folder, "vocab.txt", text)
    refused(folder, message)


REGEX = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Removed", "invert": False}
REPLACE = {"type": "Replace", "pattern": {"String": "``"}, "content": '"'}
NORMAL = {"type": "BertNormalizer"}
PARTS = [
    ("pre_tokenizer", REGEX, "the pre_tokenizer 'Split', which this version"),
    ("pre_tokenizer", {"type": "Sequence", "pretokenizers": [{"type": "Whitespace"}, REGEX]},
     "the pre_tokenizer 'Split'"),
    ("pre_tokenizer", {"type": "Sequence", "pretokenizers": [
        {"type": "Sequence", "pretokenizers": [REGEX]}]}, "the pre_tokenizer 'Split'"),
    ("pre_tokenizer", {"type": "Sequence", "normalizers": [{"type": "Whitespace"}],
                       "pretokenizers": [REGEX]}, "the pre_tokenizer 'Split'"),
    ("pre_tokenizer", {"type": "Sequence", "normalizers": [{"type": "Whitespace"}]},
     "the pre_tokenizer 'Sequence'"),
    ("pre_tokenizer", {"type": "Sequence", "pretokenizers": []}, "the pre_tokenizer None"),
    ("pre_tokenizer", None, "the pre_tokenizer None"),
    ("pre_tokenizer", {"type": "ByteLevel"}, "'ByteLevel'.*It takes only: BertPreTokenizer"),
    ("pre_tokenizer", {"type": "Metaspace"}, "'Metaspace'"),
    ("pre_tokenizer", {}, "of no known shape"),
    ("pre_tokenizer", {"type": ["BertPreTokenizer"]}, "of no known shape"),
    ("pre_tokenizer", "BertPreTokenizer", "of no known shape"),
    ("pre_tokenizer", [], "of no known shape"),
    ("pre_tokenizer", {"type": "Sequence", "pretokenizers": [{"type": "Digits"}] * 65},
     "the pre_tokenizer 'Digits'"),
    ("normalizer", {"type": "Precompiled", "precompiled_charsmap": "x"}, "'Precompiled'"),
    ("normalizer", {"type": "Prepend", "prepend": "x" * 10**6}, "the normalizer 'Prepend'"),
    ("normalizer", {"type": "Sequence", "normalizers": [NORMAL, {"type": "Nmt"}]}, "'Nmt'"),
    ("normalizer", {**REPLACE, "pattern": {"Regex": "(a+)+$"}},
     "the normalizer Replace with .*Regex.*plain strings only"),
    ("normalizer", {**REPLACE, "pattern": {"String": "a", "Regex": "(a+)+$"}}, "Replace with"),
    ("normalizer", {**REPLACE, "pattern": {"String": ""}}, "Replace with"),
    ("normalizer", {**REPLACE, "pattern": "a"}, "Replace with"),
    ("normalizer", {**REPLACE, "content": None}, "Replace with"),
    ("normalizer", {**REPLACE, "content": "x" * 201}, "by few characters"),
    ("normalizer", {"type": "Sequence", "normalizers": [
        {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}] * 7}, "few characters"),
    ("post_processor", {"type": "ByteLevel"}, "the post_processor 'ByteLevel'"),
    ("post_processor", None, "the post_processor None"),
    ("post_processor", {"type": "Sequence", "processors": []}, "the post_processor None"),
    ("post_processor", {"type": "BertProcessing", "cls": ["[CLS]", 3], "sep": ["[SEP]", 3]},
     "post_processor BertProcessing whose special tokens"),
    ("post_processor", {"type": "BertProcessing", "cls": ["[BOS]", 2], "sep": ["[SEP]", 3]},
     "whose special tokens are not those of the vocabulary"),
    ("post_processor", {"type": "BertProcessing"}, "whose special tokens"),
    ("post_processor", {"type": "TemplateProcessing"}, "whose special tokens"),
    ("decoder", {"type": "ByteFallback"}, "the decoder 'ByteFallback'"),
    ("decoder", {"type": "Sequence", "decoders": [REGEX]}, "the decoder 'Split'"),
    ("model", {"type": "Unigram", "vocab": []}, "the normalizer 'BertNormalizer'"),
]  # fmt: skip


@pytest.mark.parametrize(("role", "part", "message"), PARTS)
def test_parts_that_are_not_berts_are_refused(
    folder: Path, role: str, part: object, message: str
) -> None:
    edit(folder, "tokenizer.json", lambda content: content.update({role: part}))
    refused(folder, rf"tokenizer\.json has .*{message}")


GOOD_PARTS = [
    ("normalizer", None),
    ("normalizer", {"type": "Sequence", "normalizers": [
        {"type": "NFD"}, {"type": "NFC"}, {"type": "NFKD"}, {"type": "NFKC"},
        {"type": "StripAccents"}, {"type": "Strip"}, {"type": "Lowercase"}, NORMAL, REPLACE]}),
    ("pre_tokenizer", {"type": "Sequence", "pretokenizers": [
        {"type": "Whitespace"}, {"type": "WhitespaceSplit"}, {"type": "Punctuation"},
        {"type": "Digits"}, {"type": "Sequence", "pretokenizers": [{"type": "BertPreTokenizer"}]},
    ]}),
    ("post_processor", {"type": "BertProcessing", "cls": ["[CLS]", 2], "sep": ["[SEP]", 3]}),
    ("decoder", None),
    ("added_tokens", []),
    ("added_tokens", None),
    ("truncation", {"max_length": 128}),
]  # fmt: skip


@pytest.mark.parametrize(("role", "part"), GOOD_PARTS)
def test_parts_of_bert_pass(folder: Path, role: str, part: object) -> None:
    edit(folder, "tokenizer.json", lambda content: content.update({role: part}))
    vet.vet(folder)


def test_old_files_do_not_name_the_type_of_their_model(folder: Path) -> None:
    edit(folder, "tokenizer.json", lambda content: content["model"].pop("type"))
    vet.vet(folder)


@pytest.mark.parametrize(
    ("model", "kind"),
    [({"type": "BPE", "vocab": {}, "merges": []}, "BPE"), (None, "of no known shape: None"),
     ({}, "of no known shape: {}"), ({"type": "WordLevel", "vocab": {}}, "WordLevel"),
     ({"type": 3}, "of no known shape"), ([], "of no known shape")],
)  # fmt: skip
def test_a_tokenizer_of_another_kind_is_refused(folder: Path, model: object, kind: str) -> None:
    edit(folder, "tokenizer.json", lambda content: content.update(model=model))
    refused(folder, rf"tokenizer\.json holds a tokenizer of the type .{kind}.*'bert' is WordPiece")


TEMPLATE = TOKENIZER["post_processor"]
CHANGES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "texts turned round": (lambda t: t["post_processor"]["pair"].reverse(), "out of order"),
    "no second text": (lambda t: t["post_processor"].update(pair=TEMPLATE["single"]), "out of"),
    "the text twice": (lambda t: t["post_processor"].update(single=TEMPLATE["pair"]), "out of"),
    "an endless template": (
        lambda t: t["post_processor"]["pair"].extend(TEMPLATE["single"][:1] * 20), "whose spec"),
    "another id": (
        lambda t: t["post_processor"]["special_tokens"]["[CLS]"].update(ids=[4]), "whose special"),
    "more ids than tokens": (
        lambda t: t["post_processor"]["special_tokens"]["[CLS]"].update(ids=[2, 2]), "whose spec"),
    "no vocabulary": (lambda t: t["model"].pop("vocab"), "has no vocabulary"),
    "a list for a vocabulary": (lambda t: t["model"].update(vocab=PIECES), "has no vocabulary"),
    "an unknown token that is unknown": (
        lambda t: t["model"].update(unk_token="<unk>"), "has no vocabulary with an unknown token"),
    "endless words": (
        lambda t: t["model"].update(max_input_chars_per_word=10**9), "outside 1 to 1000"),
    "words of no length": (lambda t: t["model"].update(max_input_chars_per_word=0), "outside 1"),
    "broken added tokens": (lambda t: t.update(added_tokens=[{"id": 5}]), "broken added_tokens"),
    "added tokens that are none": (lambda t: t.update(added_tokens=3), "broken added_tokens"),
    "an id past the embedding": (
        lambda t: t["model"]["vocab"].update(z=8), "gives 'z' the id 8, but .* vocab_size=8"),
    "a negative id": (lambda t: t["model"]["vocab"].update(z=-1), "gives 'z' the id -1"),
    "an id in words": (lambda t: t["model"]["vocab"].update(z="7"), "gives 'z' the id '7'"),
    "an id twice": (
        lambda t: t["model"]["vocab"].update(z=7), "gives '##c' and 'z' the same id, 7"),
    "an added id past the embedding": (
        lambda t: t["added_tokens"].append({"id": 30, "content": "<new>"}), "'<new>' the id 30"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "message"), CHANGES.values(), ids=CHANGES)
def test_wrong_tokenizers_are_refused(
    folder: Path, change: Callable[[Any], Any], message: str
) -> None:
    edit(folder, "tokenizer.json", change)
    refused(folder, message)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("added_tokens.json", {"<new>": 99}, "gives '<new>' the id 99"),
        ("added_tokens.json", {"<new>": "x"}, "gives '<new>' the id 'x'"),
        ("added_tokens.json", [], "should hold a JSON object"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"99": {"content": "<new>"}}},
         "gives '<new>' the id 99"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"x": {"content": "<new>"}}},
         "gives '<new>' the id 'x'"),
        ("tokenizer_config.json", {"cls_token": "<s>"}, "has no cls_token '<s>'"),
        ("tokenizer_config.json", {"sep_token": {"content": "</s>"}}, "has no sep_token '</s>'"),
        ("tokenizer_config.json", {"pad_token": 3}, "pad_token=3, where a token is expected"),
        ("special_tokens_map.json", {"unk_token": "<unk>"}, "has no unk_token '<unk>'"),
        ("tokenizer_config.json", {"tokenizer_class": "BertJapaneseTokenizer"},
         "has the class 'BertJapaneseTokenizer', which this version does not support"),
        ("tokenizer_config.json", {"tokenizer_class": ["x"]}, "has the class"),
        ("tokenizer_config.json", {"auto_map": {"AutoTokenizer": ["evil.Tokenizer", None]}},
         "sets auto_map, which leads to code"),
        ("tokenizer_config.json", {"tokenizer_file": "/etc/passwd"}, "sets tokenizer_file"),
        ("tokenizer_config.json", {"vocab": {"a": 0}}, "sets vocab, which leads"),
        ("tokenizer_config.json", {"fast_tokenizer_files": ["x.json"]}, "sets fast_tokenizer_f"),
        ("config.json", {**CONFIG, "tokenizer_class": "EvilTokenizer"}, "class 'EvilTokenizer'"),
    ],
)  # fmt: skip
def test_files_beside_tokenizer_json(
    folder: Path, name: str, content: object, message: str
) -> None:
    if name == "config.json":
        put(folder, "tokenizer_config.json", {})
    put(folder, name, content)
    refused(folder, message)


def test_special_tokens_may_have_other_names(folder: Path) -> None:
    edit(folder, "tokenizer.json", lambda t: t["model"]["vocab"].update({"<p>": 0}))
    edit(folder, "tokenizer.json", lambda t: t["model"]["vocab"].pop("[PAD]"))
    edit(folder, "tokenizer.json", lambda t: t["added_tokens"].pop(0))
    refused(folder, r"has no pad_token '\[PAD\]'")
    put(folder, "special_tokens_map.json", {"pad_token": {"content": "<p>", "lstrip": False}})
    vet.vet(folder)


@pytest.mark.parametrize(
    ("declared", "normalizer", "lowercase"),
    [
        (None, {"type": "BertNormalizer", "lowercase": False}, False),
        (None, {"type": "BertNormalizer", "lowercase": True}, True),
        (
            None,
            {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]},
            True,
        ),
        (None, None, False),
        (False, {"type": "BertNormalizer", "lowercase": True}, False),
        (True, {"type": "BertNormalizer", "lowercase": False}, True),
    ],
)
def test_lowercase(folder: Path, declared: object, normalizer: object, lowercase: object) -> None:
    edit(folder, "tokenizer.json", lambda content: content.update(normalizer=normalizer))
    if declared is not None:
        edit(folder, "tokenizer_config.json", lambda c: c.update(do_lower_case=declared))
    assert vet.vet(folder).lowercase is lowercase


def nodes(tree: object, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a JSON value."""
    yield at
    if isinstance(tree, dict | list):
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from nodes(value, (*at, key))


@given(at=st.sampled_from(list(nodes(TOKENIZER))), value=json_values)
def test_no_tokenizer_does_worse_than_an_error(
    folder_once: Path, at: tuple[Any, ...], value: Any
) -> None:
    content = copy.deepcopy(TOKENIZER)
    if not at:
        content = value
    else:
        inner: Any = content
        for key in at[:-1]:
            inner = inner[key]
        inner[at[-1]] = value
    with changed(folder_once / "tokenizer.json", content), contextlib.suppress(ModelError):
        vet.vet(folder_once)


# --- pooling -------------------------------------------------------------------------------------

POOLINGS = [
    ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, "mean"),
    ({"pooling_mode_cls_token": True}, "cls"),
    ({"pooling_mode_max_tokens": True}, "max"),
    ({"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True}, None),
    ({"pooling_mode_mean_sqrt_len_tokens": True}, None),
    ({"pooling_mode_mean_tokens": True, "pooling_mode_weightedmean_tokens": True}, None),
    ({"pooling_mode": "cls", "embedding_dimension": 4}, "cls"),
    ({"pooling_mode": ["mean"]}, "mean"),
    ({"pooling_mode": ["mean", "max"]}, None),
    ({"pooling_mode": "lasttoken"}, None),
    ({"pooling_mode": 3}, None),
    ({}, None),
    ({"word_embedding_dimension": 32}, "mean"),
]


@pytest.mark.parametrize(("declared", "pooling"), POOLINGS)
def test_the_pooling_that_the_folder_declares(
    folder: Path, declared: object, pooling: str | None
) -> None:
    put(folder, "1_Pooling/config.json", declared)
    assert vet.vet(folder).pooling == pooling


def chain(*modules: str) -> list[dict[str, object]]:
    """What modules.json lists, the encoder first and in the folder itself."""
    kinds = ["Transformer", *modules]
    return [{"idx": row, "name": f"{row}", "path": f"{row}_{kind}" if row else "",
             "type": f"sentence_transformers.models.{kind}"}
            for row, kind in enumerate(kinds)]  # fmt: skip


MEAN, FLAGS = {"pooling_mode": "mean"}, "pooling_mode_mean_tokens"
ROW_VECTORS: dict[str, tuple[Any, Any, str]] = {
    "a pooling": (chain("Pooling"), MEAN, ""),
    "a length of 1": (chain("Pooling", "Normalize"), MEAN, ""),
    "dropout": (chain("Pooling", "Dropout"), MEAN, ""),
    "no pooling": (chain(), None, ""),
    "a dense layer": (chain("Pooling", "Dense"), MEAN, "the module Dense"),
    "all of it": (chain("Pooling", "Dense", "Normalize"), MEAN, "the module Dense"),
    "a module of its own": (chain("Pooling", "Evil"), MEAN, "the module Evil"),
    "something before": (chain("WordWeights", "Pooling"), None, "the module WordWeights"),
    "two poolings": (chain("Pooling", "Pooling"), MEAN, "several modules for pooling"),
    "side by side": (None, {FLAGS: True, "pooling_mode_max_tokens": True}, "the pooling ['pooli"),
    "a list": (None, {"pooling_mode": ["cls", "max"]}, "the pooling ['cls', 'max']"),
    "weights": (None, {"pooling_mode_weightedmean_tokens": True}, "the pooling pooling_mode_w"),
    "the last token": (chain("Pooling"), {"pooling_mode": "lasttoken"}, "the pooling lasttoken"),
}


@pytest.mark.parametrize(("listed", "pooling", "lacking"), ROW_VECTORS.values(), ids=ROW_VECTORS)
def test_what_follows_the_encoder_is_known_or_refused_where_it_is_asked_for(
    folder: Path, listed: object, pooling: object, lacking: str
) -> None:
    for name in ("1_Pooling", "2_Pooling"):
        put(folder, f"{name}/config.json", pooling or {})
    if listed is not None:
        put(folder, "modules.json", listed)
    checkpoint = vet.vet(folder)
    assert checkpoint.row_vector.lacking.startswith(lacking)
    assert bool(checkpoint.row_vector.lacking) == bool(lacking)
    if not lacking:
        checkpoint.check_row_vector()
        return
    with pytest.raises(ModelError, match=r"is a sentence encoder with .* Set pooling=") as caught:
        checkpoint.check_row_vector()
    assert str(folder) in str(caught.value)
    assert lacking in str(caught.value)
    edit(folder, "config.json", lambda config: config.update(skbert_pooling="mean"))
    vet.vet(folder).check_row_vector()  # a model of skbert says itself what it reads


def test_texts_in_lower_case_are_the_tokenizers_work(folder: Path) -> None:
    put(folder, "sentence_bert_config.json", {"max_seq_length": 8, "do_lower_case": True})
    assert not vet.vet(folder).row_vector.lacking
    edit(folder, "tokenizer.json", lambda held: held["normalizer"].update(lowercase=False))
    assert "texts in lower case" in vet.vet(folder).row_vector.lacking
    put(folder, "sentence_bert_config.json", {"do_lower_case": False})
    assert not vet.vet(folder).row_vector.lacking


def test_an_encoder_in_a_subfolder_is_refused_with_its_path(folder: Path) -> None:
    listed = chain("Pooling")
    listed[0]["path"] = "0_Transformer"
    put(folder, "modules.json", listed)
    (folder / "0_Transformer").mkdir()
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (folder / name).rename(folder / "0_Transformer" / name)
    refused(
        folder, r"into the subfolder '0_Transformer'\. Give that one as model='.*0_Transformer'"
    )
    assert vet.vet(folder / "0_Transformer").max_length == 16


def test_the_chain_says_where_the_pooling_is(folder: Path) -> None:
    put(folder, "1_Pooling/config.json", {"pooling_mode": "cls"})
    put(folder, "2_Pooling/config.json", {"pooling_mode": "max"})
    chain = [{"path": "", "type": "a.Transformer"}, {"path": "2_Pooling", "type": "a.Pooling"}]
    put(folder, "modules.json", chain)
    assert vet.vet(folder).pooling == "max"
    put(folder, "modules.json", chain[:1])
    assert vet.vet(folder).pooling is None
    put(folder, "modules.json", {"not": "a chain"})
    assert vet.vet(folder).pooling is None


@pytest.mark.parametrize("path", ["../elsewhere", "/tmp", "", "a/b", 3])
def test_the_chain_stays_in_the_folder(folder: Path, path: object) -> None:
    put(folder.parent, "elsewhere/config.json", {"pooling_mode": "max"})
    put(folder, "modules.json", [{"path": path, "type": "a.Pooling"}])
    refused(folder, r"modules\.json puts a module into .*do not use this model")


def test_a_broken_pooling_is_refused(folder: Path) -> None:
    put(folder, "1_Pooling/config.json", b"[1")
    refused(folder, r"1_Pooling/config\.json is not valid JSON")
