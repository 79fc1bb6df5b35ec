"""Tokenizers of every kind: those of the usual checkpoints open as vetted, hostile ones do not."""

from __future__ import annotations

import base64
import dataclasses
import json
import struct
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.hand_made import edit, put
from support.tokenizers import (
    BYTE_LEVEL,
    CHARSMAP,
    LLAMA_WORDS,
    MAKERS,
    SENTENCES,
    UNIGRAM,
    charsmap,
    make_tokenizer,
)
from tokenizers import normalizers
from transformers import AutoTokenizer

from skbert._core.checkpoints.charsmap import is_charsmap
from skbert._core.checkpoints.strict import Members
from skbert._core.checkpoints.tokenizer_files import check_tokenizer
from skbert._core.families import tokenizers
from skbert._core.families.bert import BERT
from skbert._core.models import opening
from skbert._core.text.tokens import TextTokenizer
from skbert.exceptions import ModelError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from skbert._core.families.record import Family

KINDS = {
    "bert": tokenizers.WORD_PIECE,
    "mpnet": tokenizers.WORD_PIECE.made_by("MPNetTokenizer"),
    "roberta": tokenizers.BYTE_LEVEL_BPE,
    "deberta": tokenizers.BYTE_LEVEL_BPE.made_by("DebertaTokenizer"),
    "modernbert": tokenizers.BYTE_LEVEL_BPE.made_by("TokenizersBackend", tokenizers.BRACKETS),
    "eurobert": tokenizers.BYTE_LEVEL_BPE.made_by("TokenizersBackend", tokenizers.BRACKETS),
    "xlm-roberta": tokenizers.UNIGRAM,
    "camembert": tokenizers.UNIGRAM.made_by("CamembertTokenizer"),
    "albert": tokenizers.UNIGRAM.made_by("AlbertTokenizer"),
    "deberta-v2": tokenizers.UNIGRAM.made_by("DebertaV2Tokenizer"),
}
SAMPLES = [*SENTENCES[:12], "", " ", "x  \n\n y", "<mask> [SEP]", "e\u0301ﬁ\u3000\uff21 🙂"]


def family_of(name: str) -> Family:
    """A family whose models have such a tokenizer."""
    return dataclasses.replace(BERT, model_type=name, tokenizers=(KINDS[name],))


@pytest.fixture
def save(tmp_path: Path) -> Callable[..., Path]:
    def write(name: str) -> Path:
        make_tokenizer(name).save_pretrained(tmp_path)
        return tmp_path

    return write


def opened(folder: Path, family: Family, size: int = 1000, padding: int = 1) -> Any:
    config = {"vocab_size": size, "pad_token_id": padding}
    files = check_tokenizer(Members(folder), family, config, None)
    checkpoint: Any = SimpleNamespace(
        folder=folder, tokenizer=files, config=config, max_length=512
    )
    return opening._open_tokenizer(checkpoint)


def refused(folder: Path, family: Family, message: str, size: int = 1000) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        opened(folder, family, size)
    assert str(folder) in str(caught.value)


def ids(tokenizer: Any) -> list[list[int]]:
    read: list[list[int]] = tokenizer(SAMPLES, SAMPLES[::-1])["input_ids"]
    return read


# --- what opens ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KINDS)
def test_a_saved_tokenizer_opens_as_transformers_opens_it(
    save: Callable[..., Path], name: str
) -> None:
    folder = save(name)
    put(folder, "config.json", {"model_type": name})
    got, want = opened(folder, family_of(name)), AutoTokenizer.from_pretrained(folder)
    assert type(got) is type(want)
    assert ids(got) == ids(want) == ids(make_tokenizer(name))
    assert got.get_vocab() == want.get_vocab()
    assert got.special_tokens_map == want.special_tokens_map
    for path in folder.iterdir():
        path.unlink()
    got.save_pretrained(folder)
    assert ids(opened(folder, family_of(name))) == ids(want)


@pytest.mark.parametrize("name", ["modernbert", "roberta"])
def test_runs_of_blanks_may_be_tokens_as_those_of_modernbert(
    save: Callable[..., Path], name: str
) -> None:
    folder = save(name)
    put(folder, "config.json", {"model_type": name})
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "special": False}

    def add(described: dict[str, Any]) -> None:
        first = len(described["model"]["vocab"])
        runs = [" " * n for n in range(24, 1, -1)]
        added = [*runs, "|||EMAIL_ADDRESS|||", *(f"[unused{i}]" for i in range(9))]
        described["added_tokens"] += [
            {"id": first + i, "content": content, "normalized": True, **plain}
            for i, content in enumerate(added)
        ]

    edit(folder, "tokenizer.json", add)
    got, want = opened(folder, family_of(name)), AutoTokenizer.from_pretrained(folder)
    assert ids(got) == ids(want)
    text = "a    b  \n   c" + 30 * " " + "d"
    found, places, words = TextTokenizer(got.backend_tokenizer).pieces_with_offsets([text])
    assert found[0].tolist() == want(text, add_special_tokens=False)["input_ids"]
    assert [text[begin:end] for begin, end in places[0] if begin < end] == [*"abcd"]
    assert words[0][words[0] >= 0].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("name", KINDS)
def test_a_tokenizer_json_alone_is_enough_where_the_class_names_the_tokens(
    save: Callable[..., Path], name: str
) -> None:
    folder = save(name)
    (folder / "tokenizer_config.json").unlink()
    if name == "deberta-v2":  # whose class knows another number for the unknown token
        put(folder, "tokenizer_config.json", {"unk_id": 3})
    assert ids(opened(folder, family_of(name))) == ids(make_tokenizer(name))


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("declared", [*tokenizers.AS_DESCRIBED, "the old name"])
def test_files_of_earlier_versions_open(
    save: Callable[..., Path], name: str, declared: str
) -> None:
    folder = save(name)
    own = type(make_tokenizer(name)).__name__
    declared = f"{own}Fast" if declared == "the old name" else declared
    if declared == "TokenizersBackendFast":
        pytest.skip("never had another name")
    edit(folder, "tokenizer_config.json", lambda table: table.update(tokenizer_class=declared))
    edit(folder, "tokenizer.json", lambda table: table["model"].pop("type"))
    assert ids(opened(folder, family_of(name))) == ids(make_tokenizer(name))


def test_a_class_for_another_kind_gives_way_to_what_is_described(
    save: Callable[..., Path],
) -> None:
    folder, both = save("xlm-roberta"), (tokenizers.WORD_PIECE, tokenizers.UNIGRAM)
    family = dataclasses.replace(BERT, tokenizers=both)
    for declared in ("BertTokenizer", None):
        edit(folder, "tokenizer_config.json", lambda t, d=declared: t.update(tokenizer_class=d))
        got = opened(folder, family)
        assert ids(got) == ids(make_tokenizer("xlm-roberta"))
        assert got.mask_token == "<mask>"


def test_byte_level_vocabulary_and_merges_open_without_a_description(
    save: Callable[..., Path],
) -> None:
    folder = save("roberta")
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    put(folder, "vocab.json", model["vocab"])
    lines = ["#version: 0.2", *(" ".join(merge) for merge in model["merges"])]
    put(folder, "merges.txt", ("\n".join(lines) + "\n").encode())
    (folder / "tokenizer.json").unlink()
    got = opened(folder, family_of("roberta"))
    assert ids(got) == ids(make_tokenizer("roberta"))
    got.save_pretrained(folder / "again")
    assert ids(opened(folder / "again", family_of("roberta"))) == ids(got)
    put(folder, "merges.txt", ("\n".join([*lines, "Ġ zzz"])).encode())
    refused(folder, family_of("roberta"), r"merges\.txt has merges that make no words")


def test_settings_of_a_class_arrive(save: Callable[..., Path]) -> None:
    folder = save("roberta")
    edit(folder, "tokenizer_config.json", lambda table: table.update(add_prefix_space=True))
    got = opened(folder, family_of("roberta"))
    assert got("the")["input_ids"] == got(" the")["input_ids"]
    folder = save("albert")
    edit(folder, "tokenizer_config.json", lambda table: table.update(keep_accents=True))
    steps = opened(folder, family_of("albert")).backend_tokenizer.normalizer
    assert steps.normalize_str("\u017c") == "\u017c"


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", KINDS)
def test_one_larger_than_the_embeddings_is_refused(save: Callable[..., Path], name: str) -> None:
    size = len(make_tokenizer(name)) - 1
    refused(save(name), family_of(name), rf"the model has vocab_size={size}", size)


@pytest.mark.parametrize(
    ("name", "other", "message"),
    [
        ("roberta", "bert", "'BPE', but one of a model of the type 'bert' is WordPiece"),
        ("bert", "roberta", "'WordPiece', but one of .* 'roberta' is byte-level BPE"),
        ("xlm-roberta", "roberta", "'Unigram', but one of .* 'roberta' is byte-level BPE"),
    ],
)
def test_one_of_another_kind_is_refused(
    save: Callable[..., Path], name: str, other: str, message: str
) -> None:
    folder = save(name)
    edit(folder, "tokenizer_config.json", lambda table: table.pop("tokenizer_class"))
    refused(folder, family_of(other), rf"tokenizer\.json holds a tokenizer of the type {message}")


@pytest.mark.parametrize("name", ["roberta", "xlm-roberta"])
def test_one_that_pads_with_another_id_is_refused_where_positions_count_from_it(
    save: Callable[..., Path], name: str
) -> None:
    folder, family = save(name), dataclasses.replace(family_of(name), counts_from_padding=True)
    assert opened(folder, family).pad_token_id == 1
    with pytest.raises(ModelError, match=r"pads with the id 1, but .* has pad_token_id=0"):
        opened(folder, family, padding=0)
    opened(folder, family_of(name), padding=0)
    edit(folder, "tokenizer_config.json", lambda table: table.update(pad_token="</s>"))
    refused(folder, family, r"pads with the id 2, but config\.json has pad_token_id=1")


@pytest.mark.parametrize("name", ["sentencepiece.bpe.model", "spiece.model", "spm.model"])
def test_a_mere_sentencepiece_vocabulary_gets_advice(save: Callable[..., Path], name: str) -> None:
    folder = save("xlm-roberta")
    (folder / "tokenizer.json").rename(folder / name)
    refused(folder, family_of("xlm-roberta"), rf"holds the vocabulary {name}, but no tokenizer\.j")


def test_a_folder_without_a_tokenizer_says_what_belongs_there(save: Callable[..., Path]) -> None:
    folder = save("roberta")
    (folder / "tokenizer.json").unlink()
    refused(
        folder, family_of("roberta"), r"Add the tokenizer\.json or vocab\.json and merges\.txt"
    )


def test_an_unknown_class_is_refused_with_those_that_are_known(save: Callable[..., Path]) -> None:
    folder = save("roberta")
    edit(folder, "tokenizer_config.json", lambda table: table.update(tokenizer_class="Evil"))
    refused(folder, family_of("roberta"), "class 'Evil'.* kind byte-level BPE, such as RobertaTok")


REGEX = "(a+)+$"
ODD: dict[str, tuple[str, Callable[[Any], Any], str]] = {
    "a regular expression for words": (
        "eurobert",
        lambda t: t["pre_tokenizer"]["pretokenizers"][0].update(pattern={"Regex": REGEX}),
        r"pre_tokenizer Split with pattern=.*a\+.*, where the regular expression of GPT-2",
    ),
    "a known one that was changed": (
        "eurobert",
        lambda t: t["pre_tokenizer"]["pretokenizers"][0].update(
            pattern={"Regex": LLAMA_WORDS + "|" + REGEX}
        ),
        "pre_tokenizer Split with pattern=",
    ),
    "a plain string for words": (
        "eurobert",
        lambda t: t["pre_tokenizer"]["pretokenizers"][0].update(pattern={"String": " "}),
        "pre_tokenizer Split with pattern=",
    ),
    "words merged": (
        "eurobert",
        lambda t: t["pre_tokenizer"]["pretokenizers"][0].update(behavior="MergedWithNext"),
        "Split with behavior=MergedWithNext, where one of Isolated, Removed",
    ),
    "no bytes": (
        "eurobert", lambda t: t["pre_tokenizer"]["pretokenizers"].pop(), "needs ByteLevel once"),
    "bytes twice": (
        "roberta",
        lambda t: t.update(pre_tokenizer={"type": "Sequence",
                                          "pretokenizers": [t["pre_tokenizer"]] * 2}),
        "needs ByteLevel once and last",
    ),
    "bytes with an odd field": (
        "roberta", lambda t: t["pre_tokenizer"].update(use_regex="yes"), "with use_regex=yes"),
    "words of Unigram": (
        "roberta", lambda t: t.update(pre_tokenizer={"type": "Metaspace"}), "'Metaspace'"),
    "dropout": ("roberta", lambda t: t["model"].update(dropout=0.1), "BPE with dropout=0.1"),
    "bytes that fall back": (
        "roberta", lambda t: t["model"].update(byte_fallback=True), "BPE with byte_fallback=True"),
    "a prefix": ("roberta", lambda t: t["model"].update(continuing_subword_prefix="##"),
                 "with continuing_subword_prefix=##, where one of null, '' is"),
    "a suffix": ("roberta", lambda t: t["model"].update(end_of_word_suffix="</w>"),
                 "BPE with end_of_word_suffix=</w>"),
    "an unknown token that is none": (
        "roberta", lambda t: t["model"].update(unk_token="zzz"), "has no vocabulary with all"),
    "a merge of one": (
        "roberta", lambda t: t["model"]["merges"].append(["the"]), "has no vocabulary with all"),
    "a merge of three": (
        "roberta", lambda t: t["model"]["merges"].append("t h e"), "has no vocabulary with all"),
    "a merge of numbers": (
        "roberta", lambda t: t["model"]["merges"].append([1, 2]), "has no vocabulary with all"),
    "a merge that makes no word": (
        "roberta", lambda t: t["model"]["merges"].append(["the", "the"]), "has no vocabulary"),
    "more merges than words": (
        "roberta", lambda t: t["model"]["merges"].extend(t["model"]["merges"] * 9), "has no voc"),
    "no merges": ("roberta", lambda t: t["model"].update(merges=None), "has no vocabulary with"),
    "another special token around": (
        "roberta", lambda t: t["post_processor"].update(sep=["</s>", 5]), "whose special tokens"),
    "an odd field of these": (
        "roberta", lambda t: t["post_processor"].update(trim_offsets=3), "with trim_offsets=3"),
    "no special tokens": (
        "roberta", lambda t: t.update(post_processor={"type": "ByteLevel"}),
        "post_processor ByteLevel whose special tokens"),
    "special tokens twice": (
        "eurobert",
        lambda t: t["post_processor"]["processors"].append(t["post_processor"]["processors"][1]),
        "TemplateProcessing, TemplateProcessing whose special tokens"),
    "an id out of range": (
        "xlm-roberta", lambda t: t["model"].update(unk_id=5000), "has no vocabulary of pieces"),
    "a negative one": ("xlm-roberta", lambda t: t["model"].update(unk_id=-1), "has no vocabulary"),
    "none": ("xlm-roberta", lambda t: t["model"].update(unk_id=None), "has no vocabulary of p"),
    "one that is true": (
        "xlm-roberta", lambda t: t["model"].update(unk_id=True), "has no vocabulary of p"),
    "a huge score": (
        "xlm-roberta", lambda t: t["model"]["vocab"].append(["zz", 1e300]), "has no vocabulary"),
    "a score that is none": (
        "xlm-roberta", lambda t: t["model"]["vocab"].append(["zz", "1"]), "has no vocabulary of"),
    "a piece of nothing": (
        "xlm-roberta", lambda t: t["model"]["vocab"].append(["", 1.0]), "has no vocabulary of p"),
    "a piece that is none": (
        "xlm-roberta", lambda t: t["model"]["vocab"].append([3, 1.0]), "has no vocabulary of p"),
    "pieces without scores": (
        "xlm-roberta", lambda t: t["model"].update(vocab=["a", "b"]), "has no vocabulary of p"),
    "another blank": (
        "deberta-v2",
        lambda t: t["pre_tokenizer"]["pretokenizers"][0].update(replacement="x"),
        "Metaspace with replacement=x, where \u2581 is expected"),
    "an odd scheme": (
        "deberta-v2",
        lambda t: t["pre_tokenizer"]["pretokenizers"][0].update(prepend_scheme="evil"),
        "with prepend_scheme=evil, where one of always, first, never"),
    "no blank at all": (
        "xlm-roberta", lambda t: t.update(pre_tokenizer={"type": "WhitespaceSplit"}),
        "Unigram needs Metaspace once and last"),
    "another regular expression for gaps": (
        "deberta-v2",
        lambda t: t["normalizer"]["normalizers"][0].update(pattern={"Regex": REGEX}),
        "normalizer Replace with .*plain strings only"),
    "gaps that grow": (
        "deberta-v2", lambda t: t["normalizer"]["normalizers"][0].update(content="  "),
        "normalizer Replace with"),
    "a broken map of characters": (
        "xlm-roberta", lambda t: t["normalizer"].update(precompiled_charsmap="AAAA"),
        "Precompiled with precompiled_charsmap=AAAA, where a whole map of characters is expected"),
    "an endless map": (
        "xlm-roberta", lambda t: t["normalizer"].update(precompiled_charsmap="A" * 5_000_000),
        "Precompiled with precompiled_charsmap=AAAA"),
}  # fmt: skip


@pytest.mark.parametrize(("name", "change", "message"), ODD.values(), ids=ODD)
def test_odd_descriptions_are_refused(
    save: Callable[..., Path], name: str, change: Callable[[Any], Any], message: str
) -> None:
    folder = save(name)
    edit(folder, "tokenizer.json", change)
    with pytest.raises(ModelError, match=message):
        check_tokenizer(Members(folder), family_of(name), {"vocab_size": 10_000}, None)


@pytest.mark.parametrize(
    ("role", "key"),
    [("normalizer", "normalizers"), ("pre_tokenizer", "pretokenizers"),
     ("post_processor", "processors")],
)  # fmt: skip
@pytest.mark.parametrize("depth", [20, 5_000])
def test_deep_nesting_ends_no_process(
    save: Callable[..., Path], role: str, key: str, depth: int
) -> None:
    folder = save("roberta")
    edit(folder, "tokenizer.json", lambda described: described.update({role: None}))
    text = (folder / "tokenizer.json").read_text()
    head = f'{{"type": "Sequence", "{key}": ['
    part = head * depth + '{"type": "NFC"}' + "]}" * depth
    put(folder, "tokenizer.json", text.replace(f'"{role}": null', f'"{role}": {part}').encode())
    if (role, depth) == ("normalizer", 20):
        opened(folder, family_of("roberta"))
        return
    refused(folder, family_of("roberta"), "is not valid JSON" if depth > 20 else "'NFC', which")


@pytest.mark.parametrize("score", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_scores_are_finite(save: Callable[..., Path], score: str) -> None:
    folder = save("xlm-roberta")
    text = (folder / "tokenizer.json").read_text()
    row = json.dumps(["<s>", 0.0], separators=(",", ":"))
    text = json.dumps(json.loads(text), separators=(",", ":"), ensure_ascii=False)
    assert row in text
    put(folder, "tokenizer.json", text.replace(row, f'["<s>",{score}]').encode())
    refused(folder, family_of("xlm-roberta"), "is not a finite number")


# --- what opens is what was vetted ---------------------------------------------------------------


def test_an_unknown_piece_at_another_place_is_refused(save: Callable[..., Path]) -> None:
    """The class of XLM-RoBERTa takes the fourth piece for the unknown one, whatever it is."""
    folder = save("xlm-roberta")

    def swap(described: Any) -> None:
        vocabulary = described["model"]["vocab"]
        vocabulary[3], vocabulary[6] = vocabulary[6], vocabulary[3]
        described["model"]["unk_id"] = 6
        next(t for t in described["added_tokens"] if t["content"] == "<unk>")["id"] = 6

    edit(folder, "tokenizer.json", swap)
    refused(folder, family_of("xlm-roberta"), "opens with the id 3 for the unknown token")
    backend = {"tokenizer_class": "TokenizersBackend"}
    edit(folder, "tokenizer_config.json", lambda table: table.update(backend))
    assert opened(folder, family_of("xlm-roberta")).unk_token_id == 6


# --- maps of characters --------------------------------------------------------------------------


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def test_a_map_of_characters_maps_them() -> None:
    assert is_charsmap(encoded(CHARSMAP))
    steps = normalizers.Precompiled(CHARSMAP)
    assert steps.normalize_str("ﬁve\u3000½ e\u0301 \uff21\u200b㍿") == "five 1/2 é A株式会社"


@pytest.mark.parametrize(
    "data",
    [b"", b"\0\0\0\0", struct.pack("<I", 8) + b"\0" * 8, struct.pack("<II", 4, 5 << 10),
     struct.pack("<I", 6) + b"\0" * 1024, CHARSMAP[:900], CHARSMAP + b"\xff",
     CHARSMAP + b"x" * 101, charsmap({"a": "b"})[:-3]],
    ids=["nothing", "no trie", "half a block", "out of it", "no units", "cut", "no text",
         "a long text", "values past the end"],
)  # fmt: skip
def test_broken_maps_are_refused(data: bytes) -> None:
    assert not is_charsmap(encoded(data))


def test_a_map_that_is_no_text_is_refused() -> None:
    for odd in (None, 3, "?", "é", encoded(CHARSMAP) + "!"):
        assert not is_charsmap(odd)


@given(data=st.data())
def test_a_map_that_passes_ends_no_process(data: st.DataObject) -> None:
    """Whatever bits are flipped, texts are read to their end or the map is refused."""
    small = bytearray(charsmap({"a": "b", "é": "e", "ﬁ": "fi"}))
    for _ in range(data.draw(st.integers(0, 3))):
        used = [i for i, byte in enumerate(small) if byte] + [0, 4]
        small[data.draw(st.sampled_from(used))] ^= 1 << data.draw(st.integers(0, 7))
    if is_charsmap(encoded(bytes(small))):
        steps = normalizers.Precompiled(bytes(small))
        for code in (*range(1, 0x300), 0xFB01, 0xFFFF, 0x1F642, 0x10FFFF):
            steps.normalize_str(f"a{chr(code)}")


def test_every_kind_is_tried() -> None:
    assert KINDS.keys() == MAKERS.keys()
    assert {*BYTE_LEVEL, *UNIGRAM} < KINDS.keys()
