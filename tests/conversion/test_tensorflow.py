"""Converted TensorFlow checkpoints: the same numbers, folders that open everywhere, refusals."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch
import transformers
from scipy.special import erf
from support import DATA, bundle_writer
from support.bundle_writer import write_bundle
from support.jobs import JOBS

import skbert
from skbert import convert_tf_checkpoint as convert
from skbert.__main__ import main
from skbert._conversion import tensorflow, variable_names
from skbert._conversion.crc32c import crc32c
from skbert._core.checkpoints.vet import vet
from skbert.exceptions import InputTypeError, ModelError, SaveError, SkbertWarning

TF = DATA / "tf"
CONFIG, VOCABULARY = TF / "bert_config.json", TF / "vocab.txt"
CLASSES = {
    "pretraining": transformers.BertForPreTraining,
    "classifier": transformers.BertForSequenceClassification,
    "squad": transformers.BertForQuestionAnswering,
    "encoder": transformers.BertModel,
}
Weights = dict[str, np.ndarray]


def prefix_of(name: str) -> Path:
    return TF / name / "bert_model.ckpt"


@pytest.fixture(scope="module")
def weights() -> Weights:
    """What was written, as TensorFlow has it."""
    with np.load(TF / "weights.npz") as archive:
        return dict(archive)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every whole checkpoint, converted."""
    home = tmp_path_factory.mktemp("converted")
    return {name: convert(prefix_of(name), CONFIG, VOCABULARY, home / name) for name in CLASSES}


def changed_config(folder: Path, **changes: Any) -> Path:
    """A bert_config.json with some settings changed; None leaves one out."""
    config = {**json.loads(CONFIG.read_text()), **changes}
    path = folder / "bert_config.json"
    path.write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
    return path


# --- the same numbers ----------------------------------------------------------------------------
# A plain forward pass in numpy over the arrays that TensorFlow saved, as BERT's paper and code
# describe it: it shares neither names nor layouts with transformers.


def gelu(x: np.ndarray) -> np.ndarray:
    return x * (1 + erf(x / np.sqrt(2))) / 2


def dense(weights: Weights, at: str, x: np.ndarray) -> np.ndarray:
    return x @ weights[f"{at}/kernel"] + weights[f"{at}/bias"]


def norm(weights: Weights, at: str, x: np.ndarray) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    scaled = centred / np.sqrt(np.square(centred).mean(-1, keepdims=True) + 1e-12)
    return scaled * weights[f"{at}/LayerNorm/gamma"] + weights[f"{at}/LayerNorm/beta"]


def output(weights: Weights, at: str, x: np.ndarray) -> np.ndarray:
    return x @ weights[f"{at}output_weights"].T + weights[f"{at}output_bias"]


def hidden_states(weights: Weights, ids: np.ndarray, segments: np.ndarray) -> list[np.ndarray]:
    """The embeddings and what each layer makes of them, for one row of ids."""
    at = "bert/embeddings"
    x = weights[f"{at}/word_embeddings"][ids] + weights[f"{at}/token_type_embeddings"][segments]
    x = norm(weights, at, x + weights[f"{at}/position_embeddings"][: len(ids)])
    states = [x]
    for layer in range(2):
        at = f"bert/encoder/layer_{layer}"
        query, key, value = (
            dense(weights, f"{at}/attention/self/{part}", x).reshape(len(ids), 2, 4).swapaxes(0, 1)
            for part in ("query", "key", "value")
        )
        scores = np.exp(query @ key.swapaxes(1, 2) / 2)
        seen = (scores / scores.sum(-1, keepdims=True) @ value).swapaxes(0, 1).reshape(x.shape)
        x = norm(weights, f"{at}/attention/output",
                 x + dense(weights, f"{at}/attention/output/dense", seen))  # fmt: skip
        inner = gelu(dense(weights, f"{at}/intermediate/dense", x))
        x = norm(weights, f"{at}/output", x + dense(weights, f"{at}/output/dense", inner))
        states.append(x)
    return states


IDS = np.array([2, 6, 11, 8, 9, 3, 20, 21, 22, 3])
SEGMENTS = np.array([0] * 6 + [1] * 4)
ROW = {"input_ids": torch.tensor(IDS[None]), "token_type_ids": torch.tensor(SEGMENTS[None])}


def expected(weights: Weights, name: str) -> dict[str, np.ndarray]:
    """The outputs of the model's head for the row above."""
    weights = {key: values.astype(np.float64) for key, values in weights.items()}
    states = hidden_states(weights, IDS, SEGMENTS)
    pooled = np.tanh(dense(weights, "bert/pooler/dense", states[-1][0]))
    at = "cls/predictions/transform"
    words = norm(weights, at, gelu(dense(weights, f"{at}/dense", states[-1])))
    words = words @ weights["bert/embeddings/word_embeddings"].T
    ends = output(weights, "cls/squad/", states[-1])
    return {
        "encoder": {"last_hidden_state": states[-1], "pooler_output": pooled},
        "pretraining": {
            "prediction_logits": words + weights["cls/predictions/output_bias"],
            "seq_relationship_logits": output(weights, "cls/seq_relationship/", pooled),
        },
        "classifier": {"logits": output(weights, "", pooled)},
        "squad": {"start_logits": ends[:, 0], "end_logits": ends[:, 1]},
    }[name]


@pytest.mark.parametrize("name", CLASSES)
def test_outputs_are_those_of_the_weights_that_were_written(
    name: str, folders: dict[str, Path], weights: Weights
) -> None:
    model, loaded = CLASSES[name].from_pretrained(folders[name], output_loading_info=True)
    assert not loaded["missing_keys"]
    assert not loaded["mismatched_keys"]
    unread = {key.partition(".pooler.")[0] for key in loaded["unexpected_keys"]}
    assert unread <= ({"bert"} if name == "squad" else set())  # answers need no pooler
    with torch.no_grad():
        found = model(**ROW)
    for key, values in expected(weights, name).items():
        np.testing.assert_allclose(found[key][0], values, rtol=0, atol=2e-5, err_msg=key)


@pytest.mark.parametrize("name", CLASSES)
def test_hidden_states_of_every_layer(
    name: str, folders: dict[str, Path], weights: Weights
) -> None:
    model = transformers.AutoModel.from_pretrained(folders[name])
    with torch.no_grad():
        found = model(**ROW, output_hidden_states=True).hidden_states
    exact = {key: values.astype(np.float64) for key, values in weights.items()}
    for mine, wanted in zip(found, hidden_states(exact, IDS, SEGMENTS), strict=True):
        np.testing.assert_allclose(mine[0], wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", CLASSES)
def test_weights_are_written_bit_for_bit(
    name: str, folders: dict[str, Path], weights: Weights
) -> None:
    found = safetensors.numpy.load_file(folders[name] / "model.safetensors")
    start = "" if name == "encoder" else "bert."
    at = "encoder.layer.1.intermediate.dense"
    kernel = weights["bert/encoder/layer_1/intermediate/dense/kernel"]
    np.testing.assert_array_equal(found[f"{start}{at}.weight"], kernel.T)
    assert all(values.dtype == np.float32 for values in found.values())
    assert len(found) == {"pretraining": 46, "encoder": 39}.get(name, 41)


# --- folders that open everywhere ----------------------------------------------------------------


@pytest.mark.parametrize("name", CLASSES)
def test_what_is_written(name: str, folders: dict[str, Path]) -> None:
    files = {path.name for path in folders[name].iterdir()}
    assert files == {"config.json", "model.safetensors", "tokenizer.json",
                     "tokenizer_config.json", "vocab.txt"}  # fmt: skip
    assert (folders[name] / "vocab.txt").read_bytes() == VOCABULARY.read_bytes()
    config = transformers.AutoConfig.from_pretrained(folders[name])
    assert config.architectures == [CLASSES[name].__name__]
    assert config.model_type == "bert"
    given = json.loads(CONFIG.read_text())
    assert {key: getattr(config, key) for key in given} == given
    assert config.num_labels == (3 if name == "classifier" else 2)
    assert vet(folders[name]).lowercase is True
    assert not list(folders[name].parent.glob(".*"))  # nothing is left beside it


def test_the_path_is_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()  # empty
    for out in ("there", "new/deep"):
        found = convert(str(prefix_of("encoder")), str(CONFIG), str(VOCABULARY), out)
        assert found == tmp_path / out
        assert vet(found).config["hidden_size"] == 8


@pytest.mark.parametrize("kind", JOBS)
@pytest.mark.parametrize("name", CLASSES)
def test_every_estimator_takes_the_folder(name: str, kind: str, folders: dict[str, Path]) -> None:
    X, y, _ = JOBS[kind].usual
    estimator = JOBS[kind].make(folders[name], precision="float32").fit(X, y)
    for method in {"predict", "transform"} & JOBS[kind].methods:
        assert len(getattr(estimator, method)(X)) == len(X)


def test_a_converted_classifier_predicts(folders: dict[str, Path], weights: Weights) -> None:
    classifier = skbert.BertClassifier.from_pretrained(
        folders["classifier"], device="cpu", precision="float32"
    )
    assert list(classifier.classes_) == ["LABEL_0", "LABEL_1", "LABEL_2"]
    text = "the movie was good"
    ids = np.array([2, *(VOCABULARY.read_text().split().index(word) for word in text.split()), 3])
    states = hidden_states(weights, ids, np.zeros_like(ids))
    pooled = np.tanh(dense(weights, "bert/pooler/dense", states[-1][0]))
    odds = np.exp(output(weights, "", pooled))
    found = classifier.predict_proba([text])
    np.testing.assert_allclose(found, [odds / odds.sum()], rtol=1e-4)


def test_a_converted_answerer_answers(folders: dict[str, Path]) -> None:
    answerer = skbert.BertSpanExtractor.from_pretrained(folders["squad"])
    (answer,) = answerer.predict([("was it good", "the movie was very good")])
    assert answer in "the movie was very good"


def test_a_regression_is_one_label(tmp_path: Path, weights: Weights) -> None:
    tensors = {name: values for name, values in weights.items() if name.startswith("bert/")}
    tensors |= {"output_weights": weights["output_weights"][:1], "output_bias": np.ones(1)}
    folder = convert(write_bundle(tmp_path, tensors), CONFIG, VOCABULARY, tmp_path / "out")
    regressor = skbert.BertRegressor.from_pretrained(folder)
    assert regressor.predict(["good movie"]).shape == (1,)


def test_masked_words_without_next_sentences(tmp_path: Path, weights: Weights) -> None:
    tensors = {name: values for name, values in weights.items()
               if name.startswith(("bert/", "cls/predictions"))}  # fmt: skip
    folder = convert(write_bundle(tmp_path, tensors), CONFIG, VOCABULARY, tmp_path / "out")
    model = transformers.BertForMaskedLM.from_pretrained(folder)
    with torch.no_grad():
        found = model(**ROW).logits[0]
    wanted = expected(weights, "pretraining")["prediction_logits"]
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-5)


# --- tokenizers ----------------------------------------------------------------------------------

TEXTS = ["The movie was GOOD, i love it!", "Café 电影films lovely [MASK] x\u00a0y\t", "", "FOODS"]


@pytest.mark.parametrize("lowercase", [True, False])
def test_tokenizers_are_those_of_transformers(lowercase: bool, tmp_path: Path) -> None:
    folder = convert(prefix_of("encoder"), CONFIG, VOCABULARY, tmp_path / "out",
                     do_lower_case=lowercase)  # fmt: skip
    pieces = VOCABULARY.read_text(encoding="utf-8").split()
    vocabulary = {piece: row for row, piece in enumerate(pieces)}
    reference = transformers.BertTokenizer(vocab=vocabulary, do_lower_case=lowercase)
    opened = transformers.AutoTokenizer.from_pretrained(folder)
    raw = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    for text in TEXTS:
        assert opened(text).input_ids == reference(text).input_ids
        assert raw(text).input_ids == reference(text).input_ids
        assert opened(text, "a b").token_type_ids == reference(text, "a b").token_type_ids
    assert ("good" in opened.tokenize("GOOD")) is lowercase
    assert opened.mask_token == "[MASK]"
    assert opened.model_max_length == 16
    assert vet(folder).lowercase is lowercase


def write_pieces(folder: Path, *others: str) -> Path:
    """The vocabulary, with these pieces in the place of its last ones."""
    pieces = VOCABULARY.read_text(encoding="utf-8").split("\n")[:-1]
    path = folder / "vocab.txt"
    path.write_text("\n".join([*pieces[: len(pieces) - len(others)], *others]) + "\n")
    return path


@pytest.mark.parametrize(
    ("others", "declared", "asked", "lowercase"),
    [
        ([], None, None, True),
        (["Film"], None, None, False),
        (["##S"], None, None, False),
        (["[unused1]", "[Q]"], None, None, True),
        (["Film"], True, None, True),
        ([], False, None, False),
        ([], False, True, True),
        ([], True, False, False),
    ],
)
def test_lower_case(
    others: list[str], declared: bool | None, asked: bool | None, lowercase: bool, tmp_path: Path
) -> None:
    folder = convert(
        prefix_of("encoder"), changed_config(tmp_path, do_lower_case=declared),
        write_pieces(tmp_path, *others), tmp_path / "out", do_lower_case=asked,
    )  # fmt: skip
    assert vet(folder).lowercase is lowercase
    opened = transformers.AutoTokenizer.from_pretrained(folder)
    assert (opened.tokenize("MOVIE") == ["movie"]) is lowercase


def test_one_name_put_into_a_large_vocabulary_does_not_make_it_cased(minilm: Path) -> None:
    pieces = (minilm / "vocab.txt").read_text(encoding="utf-8").split("\n")[:-1]
    assert len(pieces) == 30522
    assert tensorflow._lowers_case(None, {}, [*pieces[:-3], "COVID", "NASA", "McBee"])
    assert not tensorflow._lowers_case(None, {}, [piece.capitalize() for piece in pieces])


def test_lines_may_end_as_on_windows(tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt"
    path.write_bytes((VOCABULARY.read_bytes() + b"\n").replace(b"\n", b"\r\n"))
    folder = convert(prefix_of("encoder"), CONFIG, path, tmp_path / "out")
    assert (folder / "vocab.txt").read_bytes() == VOCABULARY.read_bytes()


# --- what does not fit together ------------------------------------------------------------------


def assert_refused(folder: Path, error: type[Exception], message: str, *args: Any) -> None:
    """The conversion fails like that and leaves nothing behind."""
    before = sorted(folder.rglob("*"))
    with pytest.raises(error, match=message):
        convert(*args)
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 16}, r"holds 'bert/embeddings/word_.* as \(30, 8\), .*json requires \("),
        ({"vocab_size": 40}, r"word_embeddings' as \(30, 8\), where .* requires \(40, 8\)"),
        ({"max_position_embeddings": 512}, r"position_embeddings' as \(16, 8\)"),
        ({"type_vocab_size": 1}, r"token_type_embeddings' as \(2, 8\)"),
        ({"intermediate_size": 8}, r"layer_0/intermediate/dense/kernel' as \(8, 12\)"),
        ({"num_hidden_layers": 3}, r"has no 'bert/encoder/layer_2/attention/self/query/kernel'"),
        ({"num_hidden_layers": 10**12}, r"has no 'bert/encoder/layer_2/attention/self/query/ker"),
        ({"num_hidden_layers": 1}, r"holds 'bert/encoder/layer_1/.* num_hidden_layers=1\. Give"),
        ({"num_attention_heads": 3}, r"opens here: .*out/config.json has num_attention_heads=3"),
        ({"hidden_act": "magic"}, r"makes no model that opens here: .* has hidden_act=magic"),
        ({"hidden_size": None}, r"has hidden_size=None, where a whole number of 1 or more"),
        ({"hidden_size": "8"}, r"has hidden_size=8, where a whole number"),
        ({"hidden_size": True}, r"has hidden_size=True, where a whole number"),
        ({"vocab_size": 0}, r"has vocab_size=0, where a whole number"),
        ({"num_hidden_layers": -1}, r"has num_hidden_layers=-1, where a whole number"),
        ({"vocab_size": 29}, r"vocab.txt does not fit the model: it has 30 pieces for 29 rows"),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:.*pieces, but the model knows 40")
def test_a_configuration_that_does_not_match(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    config = changed_config(tmp_path, **changes)
    out = tmp_path / "out"
    assert_refused(tmp_path, ModelError, message, prefix_of("encoder"), config, VOCABULARY, out)


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ("[]", "should hold a JSON object, not a list"),
        ("{", "is not valid JSON"),
        ('{"a": 1, "a": 2}', "the key 'a' stands twice"),
        (None, "cannot be read"),
    ],
)
def test_no_configuration(contents: str | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "bert_config.json"
    if contents is not None:
        path.write_text(contents)
    out = tmp_path / "out"
    assert_refused(tmp_path, ModelError, message, prefix_of("encoder"), path, VOCABULARY, out)


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (None, r"vocab.txt cannot be read: there is no such file"),
        (b"\xff\xfe\n", r"vocab.txt cannot be read as UTF-8"),
        (b"", r"does not fit the model: it has no piece \[PAD\]"),
        (b"[PAD]\n[UNK]\n[CLS]\n[MASK]\na\n", r"it has no piece \[SEP\]"),
        (b"[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n", r"it has no piece \[MASK\]"),
        (VOCABULARY.read_bytes() + b"more\n", r"it has 31 pieces for 30 rows"),
    ],
)
def test_a_vocabulary_that_does_not_match(
    contents: bytes | None, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "vocab.txt"
    if contents is not None:
        path.write_bytes(contents)
    out = tmp_path / "out"
    assert_refused(tmp_path, ModelError, message, prefix_of("encoder"), CONFIG, path, out)


def test_a_vocabulary_that_is_short_is_told(tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(VOCABULARY.read_text().split()[:-2]) + "\n")
    with pytest.warns(SkbertWarning, match="has 28 pieces, but the model knows 30") as record:
        folder = convert(prefix_of("encoder"), CONFIG, path, tmp_path / "out")
    assert record[0].filename == __file__
    assert len(transformers.AutoTokenizer.from_pretrained(folder)) == 28


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nope", "there is no checkpoint"),
        ("v1", r"old V1 format, .*\.Saver\(write_version="),
        ("sliced", "a variable that was saved in parts"),
        ("objects", "has no variable under 'bert/'"),
    ],
)
def test_a_checkpoint_that_is_not_read(name: str, message: str, tmp_path: Path) -> None:
    args = (prefix_of(name), CONFIG, VOCABULARY, tmp_path / "out")
    assert_refused(tmp_path, ModelError, message, *args)


def test_damage_that_shows_late_leaves_nothing(tmp_path: Path) -> None:
    """The last weights are damaged: those before are written by then."""
    source = Path(shutil.copytree(TF / "encoder", tmp_path / "source"))
    path = source / "bert_model.ckpt.data-00000-of-00001"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    message = r"data-00000-of-00001 is damaged or cut short, at byte \d+: 'bert/pooler/dense/ker"
    args = (source / "bert_model.ckpt", CONFIG, VOCABULARY, tmp_path / "out")
    assert_refused(tmp_path, ModelError, message, *args)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bert/pooler/dense/bias": None}, r"has no 'bert/pooler/dense/bias', where .* \(8,\)"),
        ({"output_bias": None}, r"has no 'output_bias', where .* requires \(3,\)"),
        ({"output_weights": np.ones((0, 8))}, r"holds 'output_weights' as \(0, 8\), .* \(1, 8\)"),
        ({"output_weights": np.ones(8)}, r"holds 'output_weights' as \(8,\), .* \(8, 8\)"),
        ({"output_weights": np.ones(())}, r"holds 'output_weights' as \(\), .* \(1, 8\)"),
        ({"cls/squad/output_weights": np.ones((3, 8))}, r"'cls/squad/output_weights' as \(3, 8\)"),
        ({"bert/new": np.ones(3)}, r"holds 'bert/new', which has no place in the model of"),
    ],
)
def test_heads_and_variables_that_do_not_match(
    changes: dict[str, np.ndarray | None], message: str, tmp_path: Path, weights: Weights
) -> None:
    held = {k: v for k, v in weights.items() if not k.startswith("cls/")} | changes
    prefix = write_bundle(tmp_path, {k: v for k, v in held.items() if v is not None})
    args = (prefix, CONFIG, VOCABULARY, tmp_path / "out")
    assert_refused(tmp_path, ModelError, message, *args)


def test_variables_without_a_place_are_told(tmp_path: Path, weights: Weights) -> None:
    tensors = {name: values for name, values in weights.items() if name.startswith("bert/")}
    tensors |= {"loss/scale": np.ones(1), "loss/steps": np.ones(1), "beta1_power": np.ones(()),
                "bert/pooler/dense/bias/Adam_1": np.ones(8), "x/adam_m": np.ones(1)}  # fmt: skip
    prefix = write_bundle(tmp_path, tensors)
    message = (
        "2 variables of .* have no place in a BertModel and were left out, 'loss/scale' first"
    )
    with pytest.warns(SkbertWarning, match=message) as record:
        folder = convert(prefix, CONFIG, VOCABULARY, tmp_path / "out")
    assert record[0].filename == __file__
    assert len(safetensors.numpy.load_file(folder / "model.safetensors")) == 39


# --- files that are no honest ones ---------------------------------------------------------------


@pytest.fixture
def release(tmp_path: Path) -> list[Path]:
    """Prefix, configuration and vocabulary of a checkpoint, and where to write."""
    folder = tmp_path / "release"
    shutil.copytree(TF / "encoder", folder)
    for path in (CONFIG, VOCABULARY):
        shutil.copy(path, folder)
    return [folder / "bert_model.ckpt", folder / CONFIG.name, folder / VOCABULARY.name,
            tmp_path / "out"]  # fmt: skip


FILES = ("bert_model.ckpt.index", "bert_model.ckpt.data-00000-of-00001", CONFIG.name,
         VOCABULARY.name)  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_links_that_leave_the_folder_are_refused(
    release: list[Path], tmp_path: Path, name: str
) -> None:
    path = release[0].with_name(name)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert_refused(tmp_path, ModelError, rf"{name} is a link that leaves its folder", *release)
    path.unlink()
    (tmp_path / "elsewhere").rename(path.with_name("beside"))
    path.symlink_to("beside")
    convert(*release)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.parametrize("name", FILES)
def test_a_pipe_is_not_waited_for(release: list[Path], tmp_path: Path, name: str) -> None:
    path = release[0].with_name(name)
    path.unlink()
    os.mkfifo(path)
    assert_refused(
        tmp_path, ModelError, "no file that can be read|is not a file|missing", *release
    )


@pytest.mark.parametrize("name", FILES)
def test_files_that_change_meanwhile_are_refused(
    release: list[Path], tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, write_tokenizer = release[0].with_name(name), tensorflow._write_tokenizer

    def write_then_change(*args: Any, **kwargs: Any) -> None:
        write_tokenizer(*args, **kwargs)
        path.write_bytes(path.read_bytes())

    monkeypatch.setattr(tensorflow, "_write_tokenizer", write_then_change)
    assert_refused(tmp_path, ModelError, rf"{name} was changed while it was opened", *release)


# --- all or nothing ------------------------------------------------------------------------------


def test_a_folder_that_holds_anything_is_kept(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("mine")
    args = (prefix_of("encoder"), CONFIG, VOCABULARY)
    assert_refused(tmp_path, SaveError, "is not empty", *args, tmp_path / "out")
    assert_refused(tmp_path, SaveError, "is a file", *args, tmp_path / "out" / "mine")
    assert_refused(tmp_path, SaveError, "is not empty", *args, "/")
    assert (tmp_path / "out" / "mine").read_text() == "mine"


def test_the_working_folder_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    args = (prefix_of("encoder"), CONFIG, VOCABULARY, ".")
    assert_refused(tmp_path, SaveError, "is the current folder", *args)


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (OSError(28, "No space left on device"), SaveError),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ],
)
def test_nothing_is_left_where_writing_fails(
    fault: BaseException, error: type[BaseException], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def fail(*args: object, **kwargs: object) -> None:
        raise fault

    monkeypatch.setattr(tensorflow, "_write_tokenizer", fail)
    with pytest.raises(error):
        convert(prefix_of("encoder"), CONFIG, VOCABULARY, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    args = (prefix_of("encoder"), CONFIG, VOCABULARY, tmp_path / "file" / "out")
    assert_refused(tmp_path, SaveError, r"file/out could not be written: .*Not a directory", *args)


@pytest.mark.parametrize("value", [None, 3, b"path", "", "a\0b", Path])
@pytest.mark.parametrize("place", range(4))
def test_paths_are_paths(place: int, value: Any) -> None:
    args: list[Any] = [prefix_of("encoder"), CONFIG, VOCABULARY, "out"]
    name = ("ckpt_prefix", "config_json", "vocab_txt", "out_dir")[place]
    args[place] = value
    with pytest.raises(InputTypeError, match=f"^{name}=.* is not a path"):
        convert(*args)


@pytest.mark.parametrize("value", ["yes", 1, np.True_])
def test_do_lower_case_is_a_bool(value: Any) -> None:
    with pytest.raises(InputTypeError, match=r"do_lower_case=.* must be True, False or None"):
        convert(prefix_of("encoder"), CONFIG, VOCABULARY, "out", do_lower_case=value)


# --- memory and the command line -----------------------------------------------------------------


def test_one_tensor_at_a_time_is_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 24}
    config = changed_config(tmp_path, **sizes)
    shapes = variable_names._variables(None, json.loads(config.read_text()), "BertModel")
    monkeypatch.setattr(bundle_writer, "slow_crc32c", crc32c)
    prefix = write_bundle(tmp_path, {name: np.ones(shape, "<f4") for name, shape in shapes})
    tracemalloc.start()
    try:
        folder = convert(prefix, config, VOCABULARY, tmp_path / "out")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (folder / "model.safetensors").stat().st_size > 4_000_000
    assert peak < 1_500_000


ARGUMENTS = ["convert-tf", str(prefix_of("encoder")), str(CONFIG), str(VOCABULARY)]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "skbert", *arguments], capture_output=True, text=True, check=False
    )


def test_command_line(tmp_path: Path, folders: dict[str, Path]) -> None:
    out = tmp_path / "out"
    done = run(*ARGUMENTS, str(out))
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{out}\n", "")
    for path in folders["encoder"].iterdir():
        assert (out / path.name).read_bytes() == path.read_bytes()


def test_command_line_tells_errors_without_a_traceback(tmp_path: Path) -> None:
    done = run("convert-tf", str(prefix_of("v1")), *ARGUMENTS[2:], str(tmp_path / "out"))
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("python -m skbert: error: ")
    assert "old V1 format" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("asked", [True, False])
def test_command_line_takes_the_case(
    asked: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main([*ARGUMENTS, str(tmp_path / "out"), f"--{'' if asked else 'no-'}do-lower-case"])
    assert capsys.readouterr().out == f"{tmp_path / 'out'}\n"
    assert vet(tmp_path / "out").lowercase is asked


@pytest.mark.parametrize("arguments", [[], ["convert"], ["convert-tf"], [*ARGUMENTS, "a", "b"]])
def test_command_line_with_wrong_arguments(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as info:
        main(arguments)
    assert info.value.code == 2
    assert "usage: python -m skbert" in capsys.readouterr().err


def test_neither_help_nor_a_conversion_loads_torch(tmp_path: Path) -> None:
    code = """
import sys
from skbert.__main__ import main
try:
    main(["--help"])
except SystemExit:
    light = set(sys.modules)
main(sys.argv[1:])
for name in ("torch", "transformers", "tensorflow", "numpy"):
    print(name, name in light, name in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, *ARGUMENTS, str(tmp_path / "out")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "convert-tf" in done.stdout
    assert done.stdout.endswith(
        "torch False False\ntransformers False False\ntensorflow False False\nnumpy False True\n"
    )
