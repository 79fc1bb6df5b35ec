"""Token tables: the ids of transformers' own tokenizer, cut exactly, however long the text."""

from __future__ import annotations

import copy
import json
import pickle
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tokenizers import watched
from tokenizers import Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import BPE, Unigram
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer

from skbert._core.text import skim, tokens
from skbert._core.text.tokens import TextTokenizer, TokenTable, encode_texts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

HARD_PIECES = (
    "good movie", "Refund", "unaffable", "", " ", "\n", "\t\t", " " * 30, "\r\n", "\u3000",
    "é", "e\u0301", "Ünïcödé", "ß", "İstanbul", "ﬁ", "中文", "漢字かな", "한국어", "سلام",
    "👩\u200d👩\u200d👧", "🙂", "\u200b", "\ufeff", "\x00", "\ufffd", "\x1c", "\x7f", "\x85",
    "\ue000", "\U0010fffe", "a" * 99, "a" * 100, "b" * 101, "x1" * 80, "...!?", "don't", "3.14",
    "[SEP]", "[CLS]", "[MASK]", "[PAD]", "[UNK]", "##ing", "\u0301", "中" * 7,
)  # fmt: skip
texts = st.one_of(
    st.text(max_size=80),
    st.lists(st.sampled_from(HARD_PIECES), max_size=12).map("".join),
    st.lists(st.sampled_from(HARD_PIECES), max_size=12).map(" ".join),
)


class Both(NamedTuple):
    """The same tokenizer twice: as transformers calls it, and as skbert does."""

    reference: Any
    ours: TextTokenizer


def open_both(folder: Path) -> Both:
    # With split_special_tokens, transformers too takes "[SEP]" in a text for text.
    reference = AutoTokenizer.from_pretrained(folder, split_special_tokens=True)
    return Both(reference, TextTokenizer(reference.backend_tokenizer))


@pytest.fixture(scope="module")
def tiny(tiny_model: Path) -> Both:
    return open_both(tiny_model)


@pytest.fixture(scope="module")
def real(minilm: Path) -> Both:
    return open_both(minilm)


def words_of(tokenizer: TextTokenizer, *words: str) -> list[int]:
    """Ids of words that are one piece each."""
    table = tokenizer.pieces(words)
    assert (table.lengths == 1).all()
    return table.values.tolist()


def same_with_room(ours: TextTokenizer, text: str, room: int) -> bool:
    """Whether a long text read in part gives the ids of the whole."""
    return np.array_equal(ours.pieces([text], room)[0], ours.pieces([text])[0][: room + 1])


def assert_same_ids(
    both: Both, first: Sequence[str], second: Sequence[str] | None, size: int
) -> None:
    pairs = () if second is None else (list(second),)
    want = both.reference(list(first), *pairs, truncation="longest_first", max_length=size)
    whole = both.reference(list(first), *pairs, truncation=False)
    table, windows, n_cut, _ = encode_texts(both.ours, first, second, size, "truncate")
    assert [table.ids[i].tolist() for i in range(len(table))] == want["input_ids"]
    segments = [
        (np.arange(n) >= begin).astype(int).tolist()
        for n, begin in zip(table.lengths, table.second, strict=True)
    ]
    assert segments == want["token_type_ids"]
    assert windows.samples.tolist() == list(range(len(first)))
    assert n_cut == sum(len(ids) > size for ids in whole["input_ids"])


# --- the same ids as transformers ----------------------------------------------------------------


@settings(max_examples=80)
@given(
    rows=st.lists(st.tuples(texts, texts), min_size=1, max_size=4),
    pairs=st.booleans(),
    size=st.integers(3, 48),
)
@pytest.mark.parametrize("name", ["tiny", pytest.param("real", marks=pytest.mark.real)])
def test_texts_and_pairs_are_read_as_by_transformers(
    request: pytest.FixtureRequest, name: str, rows: list[tuple[str, str]], pairs: bool, size: int
) -> None:
    first, second = zip(*rows, strict=True)
    both = request.getfixturevalue(name)
    assert_same_ids(both, first, second if pairs else None, size)


@pytest.mark.parametrize("max_length", range(3, 20))
def test_every_way_for_a_pair_to_be_too_long(tiny: Both, max_length: int) -> None:
    lengths = [(a, b) for a in range(0, 19, 2) for b in range(0, 19, 3)]
    first, second = ([" ".join(["good"] * n) for n in side] for side in zip(*lengths, strict=True))
    assert_same_ids(tiny, first, second, max_length)


def test_very_long_pairs_that_differ_little(tiny: Both) -> None:
    lengths = [(300, 301), (301, 300), (300, 300), (500, 90), (90, 500), (1201, 1200)]
    first, second = (["movie " * n for n in side] for side in zip(*lengths, strict=True))
    for max_length in (64, 65, 128):
        assert_same_ids(tiny, first, second, max_length)


def test_pieces_have_no_special_tokens_and_know_the_usual_example(tiny: Both) -> None:
    table = tiny.ours.pieces(["Good movie!", "", "xyz"])
    words = [tiny.reference.convert_ids_to_tokens(table[i].tolist()) for i in range(3)]
    assert words == [["good", "movie", "!"], [], ["x", "##y", "##z"]]


def test_the_special_tokens_are_read_off_the_tokenizer(tiny: Both) -> None:
    ours, reference = tiny.ours, tiny.reference
    cls, sep = (reference.convert_tokens_to_ids(name) for name in ("[CLS]", "[SEP]"))
    assert (ours.prefix, ours.middle, ours.suffix) == ((cls,), (sep,), (sep,))
    assert (ours.n_specials(pair=False), ours.n_specials(pair=True)) == (2, 3)
    assert ours.reader.longest_word == 100


@given(rows=st.lists(texts, max_size=4))
def test_located_pieces_are_the_pieces_in_their_places(tiny: Both, rows: list[str]) -> None:
    ids, spans, words = tiny.ours.pieces_with_offsets(rows)
    want = tiny.ours.pieces(rows)
    assert ids.values.tolist() == want.values.tolist()
    assert ids.values.dtype == want.values.dtype
    assert [t.starts.tolist() for t in (ids, spans, words)] == [want.starts.tolist()] * 3
    assert spans.values.shape == (len(ids.values), 2)
    assert (spans.values.dtype, words.values.dtype) == (np.int64, np.int64)
    for row, text in enumerate(rows):
        start, end = spans[row].T
        assert ((start >= 0) & (start <= end) & (end <= len(text))).all()
        assert (np.diff(start) >= 0).all()
        assert set(np.diff(words[row])) <= {0, 1}
        assert words[row][:1].tolist() in ([], [0])


def test_located_speaks_of_the_text_as_it_was_given(tiny: Both) -> None:
    text = "\u00a0E\u0301te\u0301, 👩\u200d👧 [SEP] İx\u2764\ufe0f"
    _, spans, words = tiny.ours.pieces_with_offsets([text, ""])
    pieces = [text[start:end] for start, end in spans[0]]
    assert pieces[:4] == ["E\u0301", "t", "e\u0301", ","]
    assert pieces[4:8] == ["👩\u200d👧", "[", "S", "E"]
    assert pieces[-1] == "İx\u2764\ufe0f"
    assert words[0].tolist() == [0, 0, 0, 1, 2, 3, 4, 4, 4, 5, 6]
    assert len(spans[1]) == len(words[1]) == 0


@pytest.mark.parametrize("word", ["[SEP]", "[CLS]", "[MASK]", "[PAD]", "[UNK]"])
def test_special_token_text_is_text(tiny_model: Path, tiny: Both, word: str) -> None:
    careless = AutoTokenizer.from_pretrained(tiny_model)
    special = careless.convert_tokens_to_ids(word)
    text = f"good {word} movie"
    assert special in careless(text, add_special_tokens=False)["input_ids"]  # the trap is there
    table, *_ = encode_texts(tiny.ours, [text], None, 64, "truncate")
    assert special not in table.ids[0][1:-1]
    inside = tiny.reference.convert_ids_to_tokens(table.ids[0].tolist())
    assert (inside[2], inside[-3]) == ("[", "]")


def test_the_tokenizer_given_keeps_its_own_settings(minilm: Path) -> None:
    theirs = AutoTokenizer.from_pretrained(minilm)
    theirs(["some text"], truncation=True, max_length=7, padding="max_length")
    backend = theirs.backend_tokenizer
    before = backend.truncation, backend.padding, backend.encode_special_tokens
    ours = TextTokenizer(backend)
    assert (ours.backend.truncation, ours.backend.padding) == (None, None)
    assert len(ours.pieces(["one " * 50])[0]) == 50  # theirs cuts at 7
    assert (backend.truncation, backend.padding, backend.encode_special_tokens) == before


def test_pickles_and_copies_read_alike(tiny: Both) -> None:
    sample = ["good [SEP] movie", "unaffable", ""]
    want = encode_texts(tiny.ours, sample, sample, 20, "truncate")[0].ids
    for twin in (pickle.loads(pickle.dumps(tiny.ours)), copy.deepcopy(tiny.ours)):
        got = encode_texts(twin, sample, sample, 20, "truncate")[0].ids
        assert got.values.tolist() == want.values.tolist()
        assert got.starts.tolist() == want.starts.tolist()


def test_eight_threads_and_two_lengths_make_no_mistake(tiny: Both) -> None:
    rows = [" ".join(["good bad movie x1y2"] * n) for n in range(1, 9)]
    jobs = [(rows, None, 9), (rows, rows[::-1], 23)]

    def read(turn: int) -> tuple[list[int], list[int]]:
        ids = encode_texts(tiny.ours, *jobs[turn % 2], "truncate")[0].ids
        return ids.values.tolist(), ids.starts.tolist()

    want = [read(0), read(1)]
    with ThreadPoolExecutor(8) as pool:
        wrong = [
            turn for turn, got in enumerate(pool.map(read, range(400))) if got != want[turn % 2]
        ]
    assert wrong == []


# --- long cells: a prefix is read, and it gives the same ids -------------------------------------

LONG_PARTS = (
    "a",
    "b1",
    " ",
    "\n",
    "good ",
    "x" * 101,
    "\x1c",
    "中",
    "é",
    "[SEP]",
    "- ",
    "\u3000",
    "\x00",
    "한",
    "Ж",
    "e\u0301",
    "\u0301",
    "\u200d",
    "\u2003",
    "क्ष",
    "ก",
    "👍🏽",
    "\u1100\u1161\u11a8",  # one syllable, composed
    "\ufb01",
    "!",
    "≮",
)


def tokenizers_of_all_kinds(ours: TextTokenizer) -> list[TextTokenizer]:
    """Those of BERT, and others that a folder may bring."""
    usual = pre_tokenizers.BertPreTokenizer()
    steps = [
        (normalizers.BertNormalizer(), usual),
        (normalizers.BertNormalizer(lowercase=False, strip_accents=False), usual),
        (normalizers.BertNormalizer(clean_text=False, handle_chinese_chars=False), usual),
        (normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()]),
         pre_tokenizers.Whitespace()),
        (normalizers.NFKD(), pre_tokenizers.WhitespaceSplit()),
        (normalizers.NFC(), pre_tokenizers.Punctuation()),
        (None, usual),
    ]  # fmt: skip
    found = []
    for normalizer, pre_tokenizer in steps:
        backend = Tokenizer.from_str(ours.backend.to_str())
        if normalizer is not None:
            backend.normalizer = normalizer
        else:
            backend = Tokenizer.from_str(
                json.dumps(json.loads(backend.to_str()) | {"normalizer": None}))  # fmt: skip
        backend.pre_tokenizer = pre_tokenizer
        found.append(TextTokenizer(backend))
    return found


@pytest.mark.long
@settings(max_examples=150)
@given(
    parts=st.lists(st.tuples(st.sampled_from(LONG_PARTS), st.integers(1, 700)), max_size=6),
    room=st.integers(0, 6),
    chunk=st.sampled_from([16, 600, 1 << 16]),
)
def test_a_prefix_gives_the_ids_of_the_whole_text(
    tiny: Both, parts: list[tuple[str, int]], room: int, chunk: int
) -> None:
    text = "".join(part * count for part, count in parts)
    for ours in (tiny.ours, *tokenizers_of_all_kinds(tiny.ours)[1:]):
        whole = ours.backend.encode(text, add_special_tokens=False).ids
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(skim, "_CHUNK", chunk)
            patch.setattr(tokens, "_LONG", 600)
            table = ours.pieces(["good", text, "bad movie"], room)
            assert table[1].tolist() == whole[: room + 1]
            assert ours.pieces([text])[0].tolist() == whole
    table = tiny.ours.pieces(["good", text, "bad movie"], room)
    for row, short in ((0, "good"), (2, "bad movie")):
        assert table[row].tolist() == words_of(tiny.ours, *short.split())[: room + 1]


@pytest.mark.parametrize("gap", ["\x1c \x1d", "\x1c\x1c", " \x1c", "\x1f\u3000", "\x85 "])
def test_white_space_that_vanishes_beside_white_space_that_parts(
    tiny: Both, monkeypatch: pytest.MonkeyPatch, gap: str
) -> None:
    monkeypatch.setattr(skim, "_CHUNK", 16)
    for offset in range(16):
        start = "a" * (300 + offset)
        assert same_with_room(tiny.ours, start + gap * 40 + "movie" + gap * 40 + "x " * 9, 3)


@pytest.mark.parametrize("kind", ["digits", "replacement", "added token"])
def test_where_words_can_be_cut_inside_nothing_is_skimmed(tiny: Both, kind: str) -> None:
    backend = Tokenizer.from_str(tiny.ours.backend.to_str())
    if kind == "digits":
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.BertPreTokenizer(), pre_tokenizers.Digits(individual_digits=True)]
        )
    elif kind == "replacement":
        backend.normalizer = normalizers.Replace("98", " bad ")
    else:
        backend.add_tokens(["98"])
    ours = TextTokenizer(backend)
    assert same_with_room(ours, " " * 400 + "1234567" * 20_000 + "89" * 20_000 + " good", 39)
    assert (tiny.ours.reader.longest_word, ours.reader.longest_word) == (100, 0)


def test_a_word_cut_by_the_prefix_is_read_to_its_end(tiny: Both) -> None:
    for word in ("movies", "a" * 101, "refund"):  # "movie" and 100 times "a" are other pieces
        for gap in range(99):  # the prefix has 88 characters
            assert same_with_room(tiny.ours, " " * gap + word + " good" * 30, 3)


FIFTY_MB = 50_000_000
ENDLESS: dict[str, tuple[Callable[[int], str], int]] = {  # how to make n characters, what is read
    "words": (lambda n: ("word " * (n // 5 + 1))[:n], 8 * 126 + 64),
    "chinese": (lambda n: ("中文没有空格" * (n // 6 + 1))[:n], 8 * 126 + 64),
    "one word": (lambda n: "a" * n, 5_000),
    "white space": (lambda n: " \n\r\t\u00a0\u3000" * (n // 6), 5_000),
    "a word after blanks": (lambda n: " " * (n - 5) + " good", 5_000),
    "a word after a word": (lambda n: "a" * (n - 5) + " good", 5_000),
}
OTHER_SCRIPTS = {
    "hangul": "한", "many hangul": "".join(map(chr, range(0xAC00, 0xD7A4))), "accents": "é",
    "cyrillic": "ж", "marks": "\u0301", "marked letters": "e\u0301", "thai": "กำ",
    "devanagari": "क्षि", "arabic": "ﷺا", "emoji": "👩\u200d👧👍🏽", "wide blanks": "\u2003\u2028",
    "joiners": "\u200d", "nul": "\0", "blanks and nothing": "\x1c ", "letters and digits": "é1",
    "new letters": "\U0001e900",
}  # fmt: skip
for script, part in OTHER_SCRIPTS.items():
    ENDLESS[script] = (lambda n, part=part: part * (n // len(part)), 5_000)
    ENDLESS[f"{script} and a word"] = (
        lambda n, part=part: part * (n // len(part)) + " good", 5_000)  # fmt: skip


@pytest.mark.parametrize("kind", ENDLESS)
@pytest.mark.long
def test_a_cell_of_fifty_megabytes_is_read_in_part(tiny: Both, kind: str) -> None:
    make, limit = ENDLESS[kind]
    ours, spy = watched(tiny.ours)
    size = FIFTY_MB // 10 if kind.removesuffix(" and a word") in OTHER_SCRIPTS else FIFTY_MB
    huge = ours.pieces([make(size), "good"], 126)
    assert spy.seen <= limit + len("good")
    small = make(12_000)  # the same in small, which can be read to the end
    want = tiny.ours.pieces([small])[0][:127].tolist()
    assert huge[0].tolist() == tiny.ours.pieces([small], 126)[0].tolist() == want
    assert huge[1].tolist() == words_of(tiny.ours, "good")
    assert (len(want) == 127) is (kind in ("words", "chinese"))


def test_letters_are_letters_to_every_tokenizer_of_bert(tiny: Both) -> None:
    letters = [chr(code) for code in skim._letters().tolist()]
    assert {*"aZßж한ก\u0627"} <= {*letters}
    assert not {*"中1!\u0301👍\u00a0"} & {*letters}
    text = " ".join(f"a{letter}a" for letter in letters)
    for ours in tokenizers_of_all_kinds(tiny.ours)[:3]:
        text = ours.backend.normalizer.normalize_str(text)
        words = [word for word, _ in ours.backend.pre_tokenizer.pre_tokenize_str(text)]
        assert len(words) == len(letters)
        assert min(map(len, words)) == 3


def test_memory_does_not_grow_with_an_endless_word(tiny: Both) -> None:
    peaks = []
    for n in (100_000, 2_000_000):
        text = "é" * n
        tracemalloc.start()
        tiny.ours.pieces([text], 126)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * max(peaks[0], 5e6)


def test_short_texts_are_read_once(tiny: Both) -> None:
    ours, spy = watched(tiny.ours)
    encode_texts(ours, ["good movie", "bad food and poor service", ""], None, 16, "truncate")
    assert spy.seen == 10 + 25


# --- head and tail, windows ----------------------------------------------------------------------


def numbered(tokenizer: TextTokenizer, n: int) -> tuple[str, list[int]]:
    """A text of ``n`` words, all different and one piece each, and their ids."""
    words = list("abcdefghijklmnopqrstuvwxyz0123456789!?%&+=<>")[:n]
    assert len(words) == n
    return " ".join(words), words_of(tokenizer, *words) if n else []


def strip(ours: TextTokenizer, table: TokenTable, row: int) -> tuple[list[int], list[int]]:
    """The two texts of a row without special tokens, which must be where they belong."""
    ids, begin = table.ids[row].tolist(), int(table.second[row])
    pair = begin < len(ids)
    assert ids[0] == ours.prefix[0]
    assert ids[-1] == ours.suffix[0]
    assert not pair or ids[begin - 1] == ours.middle[0]
    return (ids[1 : begin - 1], ids[begin:-1]) if pair else (ids[1:-1], [])


@pytest.mark.parametrize("max_length", [3, 4, 10, 14, 23])
def test_head_tail_keeps_a_quarter_from_the_start(tiny: Both, max_length: int) -> None:
    room = max_length - 2
    sizes = [0, 1, room - 1, room, room + 1, 40]
    made = [numbered(tiny.ours, n) for n in sizes]
    first = [text for text, _ in made]
    table, windows, n_cut, _ = encode_texts(tiny.ours, first, None, max_length, "head_tail")
    for row, (_, ids) in enumerate(made):
        head = room // 4
        want = ids if len(ids) <= room else ids[:head] + ids[len(ids) - (room - head) :]
        assert strip(tiny.ours, table, row)[0] == want
    assert windows.samples.tolist() == list(range(len(sizes)))
    assert n_cut == sum(n > room for n in sizes)


def test_head_tail_of_a_pair_shares_the_room_as_truncation_does(tiny: Both) -> None:
    (a, ids_a), (b, ids_b) = numbered(tiny.ours, 30), numbered(tiny.ours, 6)
    table, _, n_cut, _ = encode_texts(tiny.ours, [a, b, b], [b, a, b], 23, "head_tail")  # room 20
    kept = ids_a[:3] + ids_a[-11:]  # 14 = 20 - 6 of the long one
    assert strip(tiny.ours, table, 0) == (kept, ids_b)
    assert strip(tiny.ours, table, 1) == (ids_b, kept)
    assert strip(tiny.ours, table, 2) == (ids_b, ids_b)
    assert n_cut == 2


def slide(ids: list[int], room: int) -> list[list[int]]:
    """Windows, the slow and obvious way."""
    windows, begin = [], 0
    while begin + room < len(ids):
        windows.append(ids[begin : begin + room])
        begin += max(1, room - room // 4)
    return [*windows, ids[max(0, len(ids) - room) :]]


@given(sizes=st.lists(st.integers(0, 40), min_size=1, max_size=4), max_length=st.integers(3, 30))
def test_windows_cover_every_token(tiny: Both, sizes: list[int], max_length: int) -> None:
    room = max_length - 2
    made = [numbered(tiny.ours, n) for n in sizes]
    first = [text for text, _ in made]
    table, windows, n_cut, _ = encode_texts(tiny.ours, first, None, max_length, "windows")
    assert n_cut == 0
    assert (table.lengths <= max_length).all()
    assert (np.diff(windows.samples) >= 0).all()
    for sample, (_, ids) in enumerate(made):
        parts = [strip(tiny.ours, table, row)[0]
                 for row in np.flatnonzero(windows.samples == sample)]  # fmt: skip
        assert parts == slide(ids, room)
        assert set().union(*parts) == set(ids)
        assert parts[-1][-1:] == ids[-1:]
        for one, next_one in pairwise(parts):
            assert len(one) == len(next_one) == room
            assert len(set(one) & set(next_one)) >= room // 4


@given(
    sizes=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 40)), min_size=1, max_size=4),
    max_length=st.integers(4, 30),
)
def test_windows_of_a_pair_keep_the_first_text(
    tiny: Both, sizes: list[tuple[int, int]], max_length: int
) -> None:
    room = max_length - 3
    firsts, seconds = zip(*sizes, strict=True)
    a, b = ([numbered(tiny.ours, n) for n in side] for side in (firsts, seconds))
    texts = ([text for text, _ in side] for side in (a, b))
    table, windows, n_cut, _ = encode_texts(tiny.ours, *texts, max_length, "windows")
    assert (table.lengths <= max_length).all()
    cut = 0
    for sample, ((_, ids_a), (_, ids_b)) in enumerate(zip(a, b, strict=True)):
        kept = ids_a[: max(room // 2, room - len(ids_b))]
        cut += len(kept) < len(ids_a)
        rows = np.flatnonzero(windows.samples == sample)
        parts = [strip(tiny.ours, table, row) for row in rows]
        assert all(first == kept for first, _ in parts)
        assert [second for _, second in parts] == slide(ids_b, room - len(kept))
    assert n_cut == cut


# --- what a tokenizer's tokens are ---------------------------------------------------------------


def test_tokens_by_role_and_what_continues_a_word(tiny_model: Path) -> None:
    opened = AutoTokenizer.from_pretrained(tiny_model)
    ours = TextTokenizer(opened.backend_tokenizer, opened.mask_token, opened.unk_token)
    assert (ours.mask_id, ours.unk_id) == (opened.mask_token_id, opened.unk_token_id)
    copied = pickle.loads(pickle.dumps(ours))
    assert (copied.mask_id, copied.unk_id) == (ours.mask_id, ours.unk_id)
    continues = {t for t, i in opened.get_vocab().items() if ours.is_continuation[i]}
    assert continues == {t for t in opened.get_vocab() if t.startswith("##")} != set()


def test_a_tokenizer_without_a_mask(tiny_model: Path) -> None:
    opened = AutoTokenizer.from_pretrained(tiny_model)
    ours = TextTokenizer(opened.backend_tokenizer)
    assert ours.mask_id is None
    assert ours.unk_id == opened.unk_token_id


@pytest.mark.parametrize(
    ("model", "begins"),
    [
        (BPE({"Ġa": 0, "a": 1, "Ċ": 2, ",": 3, "aĠ": 4}, []), [0, 2]),
        (Unigram([("<unk>", 0.0), ("▁a", -1.0), ("a", -2.0), ("▁", -3.0)], 0), [1, 3]),
    ],
    ids=["byte-level", "unigram"],
)
def test_what_begins_a_word(model: Any, begins: list[int]) -> None:
    backend = Tokenizer(model)
    backend.add_special_tokens(["x"])
    x = backend.token_to_id("x")
    backend.post_processor = TemplateProcessing(
        single="x $A x", pair="x $A x $B x", special_tokens=[("x", x)]
    )
    assert np.flatnonzero(~TextTokenizer(backend).is_continuation).tolist() == begins
