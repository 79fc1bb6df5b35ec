"""Folders that would reach outside, hang or end in a foreign error: opened right, or refused."""

from __future__ import annotations

import json
import os
import shutil
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.hand_made import edit, put

from skbert import BertClassifier
from skbert._core.checkpoints import strict, tokenizer_files, tokenizer_settings, vet
from skbert._core.items import Head
from skbert._core.models import opening
from skbert._core.models.opening import open_network
from skbert._core.models.writing import write_folder
from skbert.exceptions import ModelError, NonFiniteError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HEAD = Head("sequence classification", 2)
SECRET = "written outside"


@pytest.fixture(scope="module")
def classifier_folder(
    make_tiny_model: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A whole and honest checkpoint with a head of two classes, and rows for eight more words."""
    rows = len(json.loads((make_tiny_model() / "tokenizer.json").read_text())["model"]["vocab"])
    network = open_network(vet.vet(make_tiny_model(vocab_size=rows + 8)), HEAD)
    folder = tmp_path_factory.mktemp("hostile") / "model"
    write_folder(network, folder)
    return folder


@pytest.fixture
def folder(classifier_folder: Path, tmp_path: Path) -> Path:
    """The same, to be spoiled."""
    shutil.copytree(classifier_folder, tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder beside the model's."""
    put(tmp_path, "outside/template.jinja", SECRET.encode())
    put(tmp_path, "outside/generation_config.json", {"max_new_tokens": 7, "eos_token_id": 3})
    return tmp_path / "outside"


def vocabulary(folder: Path) -> dict[str, int]:
    words: dict[str, int] = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    return words


def opened(folder: Path, head: Head = HEAD) -> Any:
    with torch.random.fork_rng(devices=[]):
        return open_network(vet.vet(folder), head, fresh_head=False)


def refused(folder: Path, message: str) -> None:
    """Nothing but a ModelError that says where and what comes of opening the folder."""
    with pytest.raises(ModelError, match=message) as caught:
        opened(folder)
    assert str(folder) in str(caught.value)


def as_described(folder: Path) -> None:
    """Have the library take the tokenizer as tokenizer.json describes it."""
    edit(folder, "tokenizer_config.json", lambda c: c.update(tokenizer_class="TokenizersBackend"))


_watching: list[set[str]] = []


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and _watching and isinstance(arguments[0], str | os.PathLike):
        _watching[-1].add(os.path.realpath(arguments[0]))


@pytest.fixture(scope="module", autouse=True)
def _audit() -> None:
    sys.addaudithook(_note)  # cannot be removed; notes nothing while nobody watches


@contextmanager
def files_opened() -> Iterator[set[str]]:
    """Real paths of the files that are opened meanwhile."""
    _watching.append(set())
    try:
        yield _watching[-1]
    finally:
        _watching.pop()


# --- nothing outside, nothing that was not vetted ------------------------------------------------

READ = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}


def test_only_vetted_members_are_opened(folder: Path, outside: Path) -> None:
    for name in ("chat_template.jinja", "additional_chat_templates/x.jinja"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).symlink_to(outside / "template.jinja")
    (folder / "generation_config.json").symlink_to(outside / "generation_config.json")
    for name in ("tekken.json", "tokenizer.model", "adapter_model.safetensors", "README.md"):
        put(folder, name, b"hostile")
    causal = Head("causal language modelling", 0, reads="selected tokens", fresh=False)
    with files_opened() as paths:
        for head in (HEAD, causal):
            open_network(vet.vet(folder), head)
    of_the_model = {Path(path) for path in paths if str(folder.parent) in path}
    assert of_the_model == {folder / name for name in READ}


def test_what_is_published_was_vetted(folder: Path, outside: Path, tmp_path: Path) -> None:
    (folder / "chat_template.jinja").symlink_to(outside / "template.jinja")
    secret = {"chat_template": SECRET, "response_template": SECRET, "anything": SECRET}
    edit(folder, "tokenizer_config.json", lambda config: config.update(secret))
    classifier = BertClassifier.from_pretrained(folder)
    classifier.save(tmp_path / "saved")
    classifier.save_pretrained(tmp_path / "published")
    for written in (tmp_path / "saved", tmp_path / "published"):
        paths = [path for path in written.rglob("*") if path.is_file()]
        assert paths
        assert not [path for path in paths if SECRET.encode() in path.read_bytes()]
    assert classifier.tokenizer_.chat_template is None


@pytest.mark.parametrize("name", ["special_tokens_map.json", "tokenizer_config.json"])
@pytest.mark.parametrize(
    ("key", "value"),
    [("tokenizer_file", "tokenizer.json"), ("vocab_file", "vocab.txt"), ("gguf_file", "x.gguf"),
     ("vocab", {"[CLS]": 0}), ("tokenizer_object", "x"), ("merges", ["a b"]),
     ("fast_tokenizer_files", ["tokenizer.9.json"]), ("auto_map", {"AutoTokenizer": "evil.T"})],
)  # fmt: skip
def test_settings_that_lead_elsewhere_are_refused(
    folder: Path, outside: Path, name: str, key: str, value: object
) -> None:
    value = str(outside / value) if isinstance(value, str) else value
    put(folder, name, {key: value})
    refused(folder, rf"{name} sets {key}, which leads to code or a vocabulary outside")


@pytest.mark.parametrize("name", ["special_tokens_map.json", "tokenizer_config.json"])
@pytest.mark.parametrize("key", ["init_inputs", "self", "args", "model_specific_special_tokens",
                                 "tokenizer_truncation", "post_processor", "files_loaded",
                                 "backend", "cls", "config", "name_or_path"])  # fmt: skip
def test_settings_that_are_not_known_never_arrive(folder: Path, name: str, key: str) -> None:
    put(folder, name, {key: ["evil"]})
    network = opened(folder)
    assert network.text_tokenizer.prefix == (vocabulary(folder)["[CLS]"],)
    assert "evil" not in str(network.tokenizer.init_kwargs)


def test_members_are_read_once(
    folder: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: dict[str, int] = {}
    open_member = strict.Members.open

    def count(members: strict.Members, name: str) -> Any:
        counts[name] = counts.get(name, 0) + 1
        return open_member(members, name)

    monkeypatch.setattr(strict.Members, "open", count)
    opened(folder)
    assert counts == {**dict.fromkeys(READ, 1), "model.safetensors": 2}  # the header first


def rewrite(path: Path) -> None:
    """Write the same bytes again, and put the time of change back."""
    status, data = path.stat(), path.read_bytes()
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b" ")


def exchange(path: Path) -> None:
    """Put a copy in the place of a file."""
    shutil.copy2(path, path.with_name("copy"))
    path.with_name("copy").replace(path)


def link_to_copy(path: Path) -> None:
    """Put a link to a copy in the same folder in the place of a file."""
    shutil.copy2(path, path.with_name("copy"))
    path.unlink()
    path.symlink_to("copy")


def exchange_folder(path: Path) -> None:
    """Put a copy in the place of the whole folder."""
    home = path.parent
    shutil.copytree(home, home.with_name("copy"))
    home.rename(home.with_name("before"))
    home.with_name("copy").rename(home)


MEANWHILE = (rewrite, lengthen, exchange, link_to_copy, exchange_folder, os.unlink)


@pytest.mark.parametrize("name", sorted(READ))
@pytest.mark.parametrize("change", MEANWHILE)
def test_a_folder_that_changes_after_it_was_vetted_is_refused(
    folder: Path, name: str, change: Callable[[Path], None]
) -> None:
    checkpoint = vet.vet(folder)
    change(folder / name)
    with pytest.raises(ModelError, match=r"was changed while it was opened|is no file that can"):
        open_network(checkpoint, HEAD)


@pytest.mark.parametrize("name", sorted(READ))
def test_a_folder_that_changes_while_weights_are_read_is_refused(
    folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_weights = opening.read_weights

    def read_then_change(checkpoint: vet.Checkpoint) -> Any:
        weights = read_weights(checkpoint)
        rewrite(folder / name)
        return weights

    monkeypatch.setattr(opening, "read_weights", read_then_change)
    refused(folder, rf"{name} was changed while it was opened")


def test_a_subfolder_that_is_a_link_for_a_moment_is_noticed(
    folder: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(folder, "1_Pooling/config.json", {"pooling_mode_mean_tokens": True})
    put(outside, "config.json", {"pooling_mode_cls_token": True})
    open_plain = strict.open_plain

    def open_by_the_link(path: Path) -> Any:
        if path.parent.name != "1_Pooling":
            return open_plain(path)
        path.parent.rename(folder / "aside")
        path.parent.symlink_to(outside)
        file = open_plain(path)
        path.parent.unlink()
        (folder / "aside").rename(path.parent)
        return file

    assert vet.vet(folder).row_vector.pooling == "mean"
    monkeypatch.setattr(strict, "open_plain", open_by_the_link)
    refused(folder, r"1_Pooling/config\.json was changed while it was opened")


def test_an_adapter_whose_base_changes_is_refused(folder: Path, tmp_path: Path) -> None:
    query = "base_model.model.bert.encoder.layer.0.attention.self.query"
    size = json.loads((folder / "config.json").read_text())["hidden_size"]
    parts = {f"{query}.lora_A.weight": torch.ones(2, size),
             f"{query}.lora_B.weight": torch.ones(size, 2)}  # fmt: skip
    adapter = tmp_path / "adapter"
    settings = {"peft_type": "LORA", "r": 2, "base_model_name_or_path": str(folder)}
    put(adapter, "adapter_config.json", settings)
    save_file(parts, adapter / "adapter_model.safetensors")
    open_network(vet.vet(adapter), HEAD)
    for place, name in ((folder, "config.json"), (adapter, "adapter_model.safetensors")):
        checkpoint = vet.vet(adapter)
        rewrite(place / name)
        with pytest.raises(ModelError, match=rf"{place / name} was changed while it was opened"):
            open_network(checkpoint, HEAD)


def test_the_tokenizer_names_the_folder_it_came_from(folder: Path) -> None:
    network = opened(folder)
    assert network.tokenizer.name_or_path == network.model.name_or_path == str(folder)
    assert network.model.config.name_or_path == str(folder)


# --- files that are no honest ones ---------------------------------------------------------------


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_link_to_itself_is_no_file(folder: Path, name: str) -> None:
    (folder / name).unlink()
    (folder / name).symlink_to(name)
    refused(folder, r"is no file that can be read")


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", "tokenizer.json"])
def test_files_too_large_are_not_read(folder: Path, name: str) -> None:
    with (folder / name).open("r+b") as file:
        file.truncate(95_000_000)  # a hole: it costs no disk
    refused(folder, rf"{name} is 95000000 bytes long, and no such file of a model has more")


def test_a_million_objects_are_not_parsed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(folder, "config.json", b'{"model_type": "bert", "x": [' + b"{}," * 1_000_000 + b"1]}")
    monkeypatch.setattr(strict.json, "loads", lambda *a, **k: pytest.fail("it was parsed"))
    refused(folder, r"config\.json is not valid JSON: it holds more than 1000000 objects")


@pytest.mark.parametrize("name", ["tokenizer.model", "tekken.json", "tiktoken.model"])
def test_other_tokenizers_beside_vocab_txt_play_no_part(folder: Path, name: str) -> None:
    want = opened(folder).text_tokenizer.pieces(["a good day, unaffable"])
    listed_only(folder)
    put(folder, name, b"hostile")
    assert opened(folder).text_tokenizer.pieces(["a good day, unaffable"]).values.tolist() == (
        want.values.tolist()
    )


def listed_only(folder: Path, ending: str = "\n") -> None:
    """Put a vocab.txt in the place of tokenizer.json."""
    words = vocabulary(folder)
    (folder / "tokenizer.json").unlink()
    put(folder, "vocab.txt", ending.join(sorted(words, key=words.__getitem__)).encode())


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("kind", ["BertTokenizer", "TokenizersBackend", "PreTrainedTokenizerFast"])
def test_a_mere_vocabulary_opens(folder: Path, ending: str, kind: str) -> None:
    want = opened(folder)
    listed_only(folder, ending)
    edit(folder, "tokenizer_config.json", lambda config: config.update(tokenizer_class=kind))
    network = opened(folder)
    assert type(network.tokenizer) is type(want.tokenizer)
    assert network.tokenizer.get_vocab() == want.tokenizer.get_vocab()


# --- tokenizers ----------------------------------------------------------------------------------

NORMALIZER = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
              "strip_accents": None, "lowercase": True}  # fmt: skip
ODD_PARTS = [
    ("normalizer", {**NORMALIZER, "lowercase": "yes"}, "BertNormalizer with lowercase=yes"),
    ("normalizer", {**NORMALIZER, "strip_accents": 3}, "BertNormalizer with strip_accents=3"),
    ("normalizer", {**NORMALIZER, "clean_text": None}, "BertNormalizer with clean_text=None"),
    ("normalizer", {"type": "Strip", "strip_left": 3, "strip_right": True}, "Strip with strip_le"),
    ("normalizer", {"type": "Replace", "pattern": {"String": "a"}, "content": ""},
     "leaves nothing of the text 'a'"),
    ("normalizer", {"type": "Strip"}, "does not open: Exception: missing field"),
    ("pre_tokenizer", {"type": "Punctuation", "behavior": "evil"},
     "pre_tokenizer Punctuation with behavior=evil, where one of Removed"),
    ("pre_tokenizer", {"type": "Digits", "individual_digits": "no"}, "individual_digits=no"),
    ("decoder", {"type": "WordPiece", "prefix": 3, "cleanup": True}, "WordPiece with prefix=3"),
    ("version", "9.0", "is no description of a tokenizer of version 1.0"),
    ("version", None, "is no description of a tokenizer of version 1.0"),
    ("truncation", {"max_length": "x"}, "does not open: "),
    ("padding", 3, "does not open: "),
]  # fmt: skip


@pytest.mark.parametrize("whole", [True, False], ids=["as described", "as BERT's"])
@pytest.mark.parametrize(("key", "value", "message"), ODD_PARTS)
def test_odd_parts(folder: Path, key: str, value: object, message: str, whole: bool) -> None:
    edit(folder, "tokenizer.json", lambda content: content.update({key: value}))
    if whole:
        as_described(folder)
    elif "leaves nothing" in message:  # BERT's own class has BERT's normalizer
        opened(folder)
        return
    refused(folder, message)


def test_padding_of_any_length_pads_nothing(folder: Path) -> None:
    how = {"strategy": {"Fixed": 10**6}, "direction": "Right", "pad_to_multiple_of": None,
           "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"}  # fmt: skip
    edit(folder, "tokenizer.json", lambda content: content.update(padding=how))
    as_described(folder)
    assert len(opened(folder).tokenizer.backend_tokenizer.encode("a")) == 3


TEMPLATES: dict[str, Callable[[Any], Any]] = {
    "an unknown special token": lambda t: t["single"].insert(0, special("[NO]")),
    "200 special tokens": lambda t: t["special_tokens"]["[CLS]"].update(
        ids=[2] * 200, tokens=["[CLS]"] * 200
    ),
    "nine in a row": lambda t: t["single"].extend([special("[SEP]")] * 7),
    "a type there is not": lambda t: t["pair"][3]["Sequence"].update(type_id=7),
    "another kind of piece": lambda t: t["single"].append({"Evil": {"id": "A", "type_id": 0}}),
    "two pieces in one": lambda t: t["single"][0].update(special("[SEP]"), Sequence={}),
}


def special(token: str) -> dict[str, Any]:
    return {"SpecialToken": {"id": token, "type_id": 0}}


@pytest.mark.parametrize("change", TEMPLATES.values(), ids=TEMPLATES)
def test_odd_templates(folder: Path, change: Callable[[Any], Any]) -> None:
    as_described(folder)
    edit(folder, "tokenizer.json", lambda content: change(content["post_processor"]))
    refused(folder, r"tokenizer\.json has a post_processor TemplateProcessing whose special tok")


PLAIN = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)


@pytest.mark.parametrize("kind", ["BertTokenizer", "TokenizersBackend"])
@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ({"<new>": 5}, "adds the token '<new>' with the id 5 *, which is that of 'a'"),
        ({"a": 0}, "adds the token 'a' with the id .* which has the id 5, too"),
        ({" ": 0}, "adds the token ' ' with the id .* which is blank"),
        ({"": 0}, "adds the token '' with the id .* which is blank"),
        ({"<new>": +4}, "opens with the id .* for '<new>', but its files say"),
        ({"<new>": 0, "<newer>": 0}, "'<newer>' with the id .* which is that of '<new>'"),
    ],
)
def test_odd_added_tokens(folder: Path, kind: str, tokens: dict[str, int], message: str) -> None:
    edit(folder, "tokenizer_config.json", lambda config: config.update(tokenizer_class=kind))
    first = len(vocabulary(folder))
    entries = [
        {"id": at if at == 5 else first + at, "content": token, **PLAIN}
        for token, at in tokens.items()
    ]
    edit(folder, "tokenizer.json", lambda content: content["added_tokens"].extend(entries))
    refused(folder, message)


def test_a_token_added_twice_with_two_ids(folder: Path) -> None:
    first = len(vocabulary(folder))
    entries = [{"id": first + i, "content": "<new>", **PLAIN} for i in range(2)]
    edit(folder, "tokenizer.json", lambda content: content["added_tokens"].extend(entries))
    refused(folder, rf"adds the token '<new>' with the id {first + 1}, which has the id {first}")


@pytest.mark.parametrize("kind", ["BertTokenizer", "TokenizersBackend"])
@pytest.mark.parametrize("token", ["\0", "\u0301", "\u200b\0"])
def test_an_added_token_of_which_nothing_is_left(folder: Path, kind: str, token: str) -> None:
    edit(folder, "tokenizer_config.json", lambda config: config.update(tokenizer_class=kind))
    entry = {"id": len(vocabulary(folder)), "content": token, **PLAIN, "normalized": True}
    edit(folder, "tokenizer.json", lambda content: content["added_tokens"].append(entry))
    refused(folder, "adds the token .* of which its normalizer leaves nothing")


def test_many_added_tokens_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = len(vocabulary(folder))
    entries = [{"id": first + i, "content": f"<{i}>", **PLAIN} for i in range(4)]
    edit(folder, "tokenizer.json", lambda content: content["added_tokens"].extend(entries))
    assert opened(folder).tokenizer.convert_tokens_to_ids("<3>") == first + 3
    monkeypatch.setattr(tokenizer_files, "_MOST_ADDED", 3)
    tokenizer_files._check.cache_clear()  # these files were checked by the other limit
    refused(folder, r"adds 4 tokens to its vocabulary, and this version takes up to 3")


def test_an_added_token_of_no_known_shape(folder: Path) -> None:
    entry = {"id": len(vocabulary(folder)), "content": "<new>", **PLAIN, "evil": 1}
    edit(folder, "tokenizer.json", lambda content: content["added_tokens"].append(entry))
    refused(folder, r"tokenizer\.json has .*broken added_tokens")


ODD_SETTINGS: dict[str, object] = {
    "do_lower_case": "yes", "tokenize_chinese_chars": 1, "strip_accents": "no",
    "split_special_tokens": [], "clean_up_tokenization_spaces": {}, "mask_token": 5,
    "cls_token": {"content": 3}, "sep_token": {"content": "[SEP]", "lstrip": "no"},
    "padding_side": "evil", "truncation_side": 3, "extra_special_tokens": 3,
    "additional_special_tokens": [3], "added_tokens_decoder": [1],
    "model_max_length": "long", "model_input_names": 5, "add_prefix_space": 1,
    "trim_offsets": "yes", "keep_accents": 0, "split_by_punct": [], "add_bos_token": "no",
    "add_eos_token": 2, "unk_id": -1,
}  # fmt: skip


@pytest.mark.parametrize(("key", "value"), ODD_SETTINGS.items())
def test_settings_of_a_wrong_type(folder: Path, key: str, value: object) -> None:
    put(folder, "tokenizer_config.json", {key: value})
    refused(folder, rf"tokenizer_config\.json has {key}=.*, where .* is expected")


@pytest.mark.parametrize("token", ["", " ", "never"])
@pytest.mark.parametrize("role", ["cls_token", "sep_token", "unk_token", "pad_token"])
def test_special_tokens_are_words(folder: Path, role: str, token: str) -> None:
    edit(folder, "tokenizer_config.json", lambda config: config.update({role: token}))
    refused(folder, rf"has no {role} '{token}'")


def test_every_setting_is_tried_with_a_wrong_type() -> None:
    untried = tokenizer_settings.SETTINGS.keys() - ODD_SETTINGS.keys()
    assert untried <= {*tokenizer_settings.ROLES}


def test_settings_as_earlier_versions_of_transformers_write_them(folder: Path) -> None:
    want = opened(folder)
    token = {"content": "[SEP]", "lstrip": False, "normalized": False, "rstrip": False,
             "single_word": False}  # fmt: skip
    words = vocabulary(folder)
    decoder = {str(words[t]): {**token, "content": t, "special": True}
               for t in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")}  # fmt: skip
    settings = {
        "added_tokens_decoder": decoder, "do_basic_tokenize": True, "do_lower_case": True,
        "extra_special_tokens": {}, "mask_token": {"__type": "AddedToken", **token,
        "content": "[MASK]"}, "model_max_length": int(1e30), "never_split": None,
        "strip_accents": None, "tokenizer_class": "BertTokenizer", "sep_token": "[SEP]",
    }  # fmt: skip
    put(folder, "tokenizer_config.json", settings)
    put(folder, "special_tokens_map.json", {"sep_token": token})
    network = opened(folder)
    assert network.tokenizer.get_vocab() == want.tokenizer.get_vocab()
    assert network.tokenizer.mask_token == "[MASK]"
    assert network.tokenizer("a b")["input_ids"] == want.tokenizer("a b")["input_ids"]


def test_added_tokens_of_other_files_arrive(folder: Path) -> None:
    new = len(vocabulary(folder))
    put(folder, "added_tokens.json", {"<new>": new})
    assert opened(folder).text_tokenizer.pieces(["<new>"]).values.tolist() == [new]


def test_a_mask_that_is_no_word_is_no_word_of_the_model(make_tiny_model: Any) -> None:
    folder = make_tiny_model()

    def rename(content: Any) -> None:
        words = content["model"]["vocab"]
        words["zzz"] = words.pop("[MASK]")
        content["added_tokens"] = [t for t in content["added_tokens"] if t["content"] != "[MASK]"]

    edit(folder, "tokenizer.json", rename)
    network = open_network(vet.vet(folder), HEAD)
    assert network.tokenizer.mask_token is None
    assert len(network.tokenizer) == network.model.config.vocab_size


def test_whatever_the_library_raises_is_an_error_of_the_model(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class PanicException(BaseException):
        """As compiled code raises it: no Exception."""

    for error in (PanicException("no entry"), Exception("odd"), KeyError("config"), OSError("x")):
        monkeypatch.setattr(opening, "_open_tokenizer", raising(error))
        refused(folder, rf"does not open: {type(error).__name__}: .*Restore config\.json")
    for stop in (KeyboardInterrupt(), MemoryError()):
        monkeypatch.setattr(opening, "_open_tokenizer", raising(stop))
        with pytest.raises(type(stop)):
            opened(folder)


def raising(error: BaseException) -> Callable[..., Any]:
    def fail(*arguments: object) -> None:
        raise error

    return fail


# --- weights -------------------------------------------------------------------------------------


def change_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    held = load_file(folder / "model.safetensors")
    change(held)
    save_file(held, folder / "model.safetensors", metadata={"format": "pt"})


LAYER = "bert.encoder.layer.0.output.dense."


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e38, -1e10])
@pytest.mark.parametrize("name", [LAYER + "weight", LAYER + "bias"])
def test_weights_that_nothing_can_be_computed_with(folder: Path, value: float, name: str) -> None:
    change_weights(folder, lambda held: held[name].view(-1)[3:4].fill_(value))
    refused(folder, rf"holds the weight '{name}' with values from .* to")
    with pytest.raises(ModelError, match="nothing can be computed with"):
        BertClassifier(model=folder, epochs=1).fit(["a", "b"], [0, 1])


def test_a_head_may_be_large_but_not_infinite(folder: Path) -> None:
    change_weights(folder, lambda held: held["classifier.weight"].fill_(1e30))
    BertClassifier.from_pretrained(folder).predict(["a"])
    change_weights(folder, lambda held: held["classifier.weight"].fill_(float("inf")))
    refused(folder, r"holds the weight 'classifier\.weight' with values from inf to inf")
    open_network(vet.vet(folder), HEAD)  # a fresh one takes its place


def test_outputs_that_are_not_finite_are_no_predictions(folder: Path) -> None:
    def spoil(held: dict[str, torch.Tensor]) -> None:
        held["classifier.weight"].fill_(3e38)
        held["classifier.bias"].fill_(3e38)

    change_weights(folder, spoil)
    with pytest.raises(NonFiniteError, match=r"outputs that are NaN or infinite, .* of row 0"):
        BertClassifier.from_pretrained(folder).predict(["a good day", "b"])


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.int8])
def test_weights_of_no_floating_point_type(folder: Path, dtype: torch.dtype) -> None:
    name = LAYER + "weight"
    change_weights(folder, lambda held: held.update({name: held[name].to(dtype)}))
    refused(folder, rf"holds the weight '{name}' as \w+\. Weights must be of one of the types F64")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_weights_of_other_floating_point_types_open(folder: Path, dtype: torch.dtype) -> None:
    change_weights(folder, lambda held: held.update({k: v.to(dtype) for k, v in held.items()}))
    want = load_file(folder / "model.safetensors")[LAYER + "weight"].float()
    assert torch.equal(opened(folder).model.get_parameter(LAYER + "weight"), want)


def test_numbers_of_positions_are_no_weights(folder: Path) -> None:
    ids = {"bert.embeddings.position_ids": torch.arange(128)[None], "empty": torch.empty(0, 3)}
    change_weights(folder, lambda held: held.update(ids))
    opened(folder)


@pytest.mark.parametrize("metadata", [5, [], {"format": 5}])
def test_odd_metadata_of_a_weights_file(folder: Path, metadata: object) -> None:
    path = folder / "model.safetensors"
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = {**json.loads(data[8 : 8 + length]), "__metadata__": metadata}
    head = json.dumps(header).encode()
    path.write_bytes(len(head).to_bytes(8, "little") + head + data[8 + length :])
    refused(folder, "its __metadata__ is none of strings")


def test_an_index_without_metadata_opens(folder: Path) -> None:
    want = opened(folder).model.state_dict()
    held = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(held)
    for part, chosen in enumerate((names[::2], names[1::2])):
        save_file({name: held[name] for name in chosen}, folder / f"part-{part}.safetensors")
    places = {name: f"part-{row % 2}.safetensors" for row, name in enumerate(names)}
    put(folder, "model.safetensors.index.json", {"weight_map": places})
    state = opened(folder).model.state_dict()
    assert state.keys() == want.keys()
    assert all(torch.equal(state[name], tensor) for name, tensor in want.items())


def test_settings_of_the_library_in_config_json_play_no_part(folder: Path) -> None:
    odd = {"dtype": "float8", "torch_dtype": "evil", "tokenizer_class": "BertTokenizer"}
    edit(folder, "config.json", lambda config: config.update(odd))
    assert opened(folder).dtype == torch.float32


def test_a_whole_number_is_a_rate(folder: Path) -> None:
    edit(folder, "config.json", lambda config: config.update(hidden_dropout_prob=0))
    assert opened(folder).model.config.hidden_dropout_prob == 0.0


# --- sizes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sizes", [{"num_labels": 10**6}, {"position_embedding_type": "relative_key",
                                      "max_position_embeddings": 10**6}]
)  # fmt: skip
def test_a_head_and_distances_count_as_weights(folder: Path, sizes: dict[str, object]) -> None:
    edit(folder, "config.json", lambda c: (c.pop("id2label", None), c.update(sizes)))
    refused(folder, r"config\.json describes a model of \d+ weights, but its files")


def test_a_model_larger_than_memory_is_refused_with_the_sum(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vet, "memory_fault", lambda n, each: f"{n} weights of {each} bytes")
    refused(folder, r"config\.json describes a model too large: \d+ weights of 4 bytes\. Use a")


# --- saved folders -------------------------------------------------------------------------------


@pytest.fixture
def saved(folder: Path, tmp_path: Path) -> Path:
    """A folder with a manifest."""
    BertClassifier.from_pretrained(folder).save(tmp_path / "saved")
    return tmp_path / "saved"


@pytest.mark.parametrize(
    "name", ["model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json"]
)
def test_a_flipped_bit_in_a_saved_folder_is_seen(saved: Path, name: str) -> None:
    data = bytearray((saved / name).read_bytes())
    data[-30] ^= 1
    (saved / name).write_bytes(data)
    for head in (HEAD, Head("token classification", 3)):
        with pytest.raises(ModelError, match=rf"{name} is damaged, or was changed after it was"):
            open_network(vet.vet(saved), head)
    with pytest.raises(ModelError, match=r"SHA-256 is not the one in MANIFEST\.json"):
        BertClassifier(model=saved, epochs=1).fit(["a", "b"], [0, 1])


def test_a_changed_manifest_is_a_fault_of_the_model(saved: Path) -> None:
    edit(saved, "MANIFEST.json", lambda manifest: manifest["members"].pop("tokenizer.json"))
    refused(saved, r"MANIFEST\.json was changed after it was saved.*Or remove MANIFEST\.json")
    (saved / "MANIFEST.json").unlink()
    opened(saved)


def test_what_a_manifest_does_not_list_is_not_there(saved: Path) -> None:
    put(saved, "added_tokens.json", {"<new>": 3})
    put(saved, "vocab.txt", b"hostile")
    with files_opened() as paths:
        opened(saved)
    assert not {str(saved / name) for name in ("added_tokens.json", "vocab.txt")} & paths
