"""Token tables: the same ids as transformers' own tokenizer, cut exactly, however long the text."""

from __future__ import annotations

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, normalizers, pre_tokenizers
from transformers import AutoTokenizer

from skbert._core import tokens
from skbert._core.tokens import Ragged, TextTokenizer, TokenTable, encode_texts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

HARD_PIECES = (
    "good movie", "Refund", "unaffable", "", " ", "\n", "\t\t", " " * 30, "\r\n", "\u00a0", "\u3000",
    "é", "e\u0301", "Ünïcödé", "ß", "İstanbul", "ﬁ", "中文", "漢字かな", "한국어", "سلام", "שלום",
    "👩\u200d👩\u200d👧", "🙂", "\u200b", "\ufeff", "\x00", "\ufffd", "\x1c", "\x7f", "\x85", "\ue000",
    "\U0010fffe", "a" * 99, "a" * 100, "b" * 101, "x1" * 80, "...!?", "don't", "3.14", "C++", "@me",
    "[SEP]", "[CLS]", "[MASK]", "[PAD]", "[UNK]", "##ing", "\u0301", "中" * 7,
)  # fmt: skip
texts = st.one_of(
    st.text(max_size=80),
    st.lists(st.sampled_from(HARD_PIECES), max_size=12).map("".join),
    st.lists(st.sampled_from(HARD_PIECES), max_size=12).map(" ".join),
)
many_texts = st.lists(texts, min_size=1, max_size=4)


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


def assert_same_ids(
    both: Both, first: Sequence[str], second: Sequence[str] | None, max_length: int
) -> None:
    pairs = () if second is None else (list(second),)
    want = both.reference(
        list(first), *pairs, truncation="longest_first", max_length=max_length
    )  # fmt: skip
    whole = both.reference(list(first), *pairs, truncation=False)
    table, samples, n_cut = encode_texts(both.ours, first, second, max_length, "truncate")
    assert [table.ids[i].tolist() for i in range(len(table))] == want["input_ids"]
    segments = [
        (np.arange(n) >= begin).astype(int).tolist()
        for n, begin in zip(table.lengths, table.second, strict=True)
    ]
    assert segments == want["token_type_ids"]
    assert samples.tolist() == list(range(len(first)))
    assert n_cut == sum(len(ids) > max_length for ids in whole["input_ids"])


# --- the same ids as transformers ----------------------------------------------------------------


@given(first=many_texts, max_length=st.integers(2, 40))
def test_single_texts_are_read_as_by_transformers(
    tiny: Both, first: list[str], max_length: int
) -> None:
    assert_same_ids(tiny, first, None, max_length)


@given(rows=st.lists(st.tuples(texts, texts), min_size=1, max_size=4), max_length=st.integers(3, 40))
def test_pairs_are_read_as_by_transformers(
    tiny: Both, rows: list[tuple[str, str]], max_length: int
) -> None:
    first, second = zip(*rows, strict=True)
    assert_same_ids(tiny, first, second, max_length)


@given(first=many_texts, max_length=st.integers(2, 64))
def test_single_texts_of_the_real_vocabulary(
    real: Both, first: list[str], max_length: int
) -> None:
    assert_same_ids(real, first, None, max_length)


@given(rows=st.lists(st.tuples(texts, texts), min_size=1, max_size=4), max_length=st.integers(3, 64))
def test_pairs_of_the_real_vocabulary(
    real: Both, rows: list[tuple[str, str]], max_length: int
) -> None:
    first, second = zip(*rows, strict=True)
    assert_same_ids(real, first, second, max_length)


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
    assert table.values.dtype == np.int32


def test_the_special_tokens_are_read_off_the_tokenizer(tiny: Both) -> None:
    ours, reference = tiny.ours, tiny.reference
    cls, sep = (reference.convert_tokens_to_ids(name) for name in ("[CLS]", "[SEP]"))
    assert (ours.prefix, ours.middle, ours.suffix) == ((cls,), (sep,), (sep,))
    assert (ours.specials(pair=False), ours.specials(pair=True)) == (2, 3)
    assert ours.longest_word == 100


@pytest.mark.parametrize("word", ["[SEP]", "[CLS]", "[MASK]", "[PAD]", "[UNK]"])
def test_special_token_text_is_text(tiny_model: Path, tiny: Both, word: str) -> None:
    careless = AutoTokenizer.from_pretrained(tiny_model)
    special = careless.convert_tokens_to_ids(word)
    text = f"good {word} movie"
    assert special in careless(text, add_special_tokens=False)["input_ids"]  # the trap is there
    table, _, _ = encode_texts(tiny.ours, [text], None, 64, "truncate")
    assert special not in table.ids[0][1:-1]
    inside = tiny.reference.convert_ids_to_tokens(table.ids[0].tolist())
    assert inside[1:3] == ["good", "["]
    assert inside[-3:-1] == ["]", "movie"]


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
    want = tiny.ours.pieces(sample)
    twins = (pickle.loads(pickle.dumps(tiny.ours)), copy.deepcopy(tiny.ours))
    for twin in twins:
        got = twin.pieces(sample)
        assert got.values.tolist() == want.values.tolist()
        assert got.starts.tolist() == want.starts.tolist()
        assert (twin.prefix, twin.middle, twin.suffix) == (
            tiny.ours.prefix, tiny.ours.middle, tiny.ours.suffix,
        )  # fmt: skip


def test_eight_threads_and_two_lengths_make_no_mistake(tiny: Both) -> None:
    rows = [" ".join(["good bad movie x1y2"] * n) for n in range(1, 9)]
    jobs = [(rows, None, 9), (rows, rows[::-1], 23)]
    want = [encode_texts(tiny.ours, a, b, size, "truncate")[0].ids for a, b, size in jobs]

    def is_wrong(turn: int) -> bool:
        a, b, size = jobs[turn % 2]
        got = encode_texts(tiny.ours, a, b, size, "truncate")[0].ids
        return not (
            np.array_equal(got.values, want[turn % 2].values)
            and np.array_equal(got.starts, want[turn % 2].starts)
        )

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(is_wrong, range(400))) == 0


# --- long cells: a prefix is read, and it gives the same ids -------------------------------------

LONG_PARTS = ("a", "b1", " ", "\n", "good ", "x" * 101, "\x1c", "中", "é", "[SEP]", "- ", "\u3000", "\x00")


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
    whole = tiny.ours.pieces([text])[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokens, "_CHUNK", chunk)
        table = tiny.ours.pieces(["good", text, "bad movie"], room)
    assert table[1].tolist() == whole[: room + 1].tolist()
    assert table[0].tolist() == tiny.ours.pieces(["good"])[0][: room + 1].tolist()
    assert table[2].tolist() == tiny.ours.pieces(["bad movie"])[0][: room + 1].tolist()


@pytest.mark.parametrize("gap", ["\x1c \x1d", "\x1c\x1c", " \x1c", "\x1f\u3000", "\x85 ", "\x85\x85"])
def test_white_space_that_vanishes_beside_white_space_that_parts(
    tiny: Both, monkeypatch: pytest.MonkeyPatch, gap: str
) -> None:
    monkeypatch.setattr(tokens, "_CHUNK", 16)
    for offset in range(16):
        text = "a" * (300 + offset) + gap * 40 + "movie" + gap * 40 + "x " * 9
        want = tiny.ours.pieces([text])[0][:4]
        assert tiny.ours.pieces([text], 3)[0].tolist() == want.tolist()


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
    text = " " * 400 + "1234567" * 20_000 + "89" * 20_000 + " good"
    want = ours.pieces([text])[0][:40]
    assert ours.pieces([text], 39)[0].tolist() == want.tolist()
    assert tiny.ours.longest_word == 100
    assert ours.longest_word == 0


class Spy:
    """A tokenizer backend that counts the characters it is given."""

    def __init__(self, backend: Any) -> None:
        self.backend, self.seen = backend, 0

    def encode(self, text: str, **options: bool) -> Any:
        self.seen += len(text)
        return self.backend.encode(text, **options)

    def encode_batch(self, rows: list[str], **options: bool) -> Any:
        self.seen += sum(map(len, rows))
        return self.backend.encode_batch(rows, **options)


def watched(ours: TextTokenizer) -> TextTokenizer:
    twin = copy.copy(ours)
    object.__setattr__(twin, "backend", Spy(ours.backend))
    return twin


FIFTY_MB = 50_000_000
ENDLESS: dict[str, tuple[Callable[[int], str], int]] = {  # how to make n characters, what is read
    "words": (lambda n: ("word " * (n // 5 + 1))[:n], 8 * 126 + 256),
    "chinese": (lambda n: ("中文没有空格" * (n // 6 + 1))[:n], 8 * 126 + 256),
    "one word": (lambda n: "a" * n, FIFTY_MB // 50),
    "blanks": (lambda n: " " * n, 20_000),
    "white space": (lambda n: " \n\r\t\u00a0\u3000" * (n // 6), 20_000),
    "a word after blanks": (lambda n: " " * (n - 5) + " good", 150_000),
    "a word after a word": (lambda n: "a" * (n - 5) + " good", FIFTY_MB // 50),
}


@pytest.mark.parametrize("kind", ENDLESS)
def test_a_cell_of_fifty_megabytes_is_read_in_part(tiny: Both, kind: str) -> None:
    make, limit = ENDLESS[kind]
    ours = watched(tiny.ours)
    table, _, n_cut = encode_texts(ours, [make(FIFTY_MB), "good"], None, 128, "truncate")
    assert ours.backend.seen <= limit + len("good")
    small, _, n_cut_small = encode_texts(tiny.ours, [make(150_000), "good"], None, 128, "truncate")
    assert table.ids.values.tolist() == small.ids.values.tolist()
    assert n_cut == n_cut_small == (kind in ("words", "chinese"))


@pytest.mark.parametrize("kind", ENDLESS)
def test_a_smaller_cell_of_that_kind_has_the_ids_of_the_whole(tiny: Both, kind: str) -> None:
    text = ENDLESS[kind][0](150_000)
    whole = tiny.ours.pieces([text])[0]  # no room named: read to the end
    assert tiny.ours.pieces([text], 126)[0].tolist() == whole[:127].tolist()


def test_short_texts_are_read_once(tiny: Both) -> None:
    ours = watched(tiny.ours)
    rows = ["good movie", "bad food and poor service", ""]
    encode_texts(ours, rows, None, 16, "truncate")
    assert ours.backend.seen == sum(map(len, rows))


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
    table, samples, n_cut = encode_texts(
        tiny.ours, [text for text, _ in made], None, max_length, "head_tail"
    )
    for row, (_, ids) in enumerate(made):
        head = room // 4
        want = ids if len(ids) <= room else ids[:head] + ids[len(ids) - (room - head) :]
        assert strip(tiny.ours, table, row)[0] == want
    assert samples.tolist() == list(range(len(sizes)))
    assert n_cut == sum(n > room for n in sizes)


def test_head_tail_of_a_pair_shares_the_room_as_truncation_does(tiny: Both) -> None:
    (a, ids_a), (b, ids_b) = numbered(tiny.ours, 30), numbered(tiny.ours, 6)
    table, _, n_cut = encode_texts(tiny.ours, [a, b, b], [b, a, b], 23, "head_tail")  # room 20
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
    table, samples, n_cut = encode_texts(
        tiny.ours, [text for text, _ in made], None, max_length, "windows"
    )
    assert n_cut == 0
    assert (table.lengths <= max_length).all()
    assert (np.diff(samples) >= 0).all()
    for sample, (_, ids) in enumerate(made):
        windows = [strip(tiny.ours, table, row)[0] for row in np.flatnonzero(samples == sample)]
        assert windows == slide(ids, room)
        assert set().union(*windows) == set(ids)
        assert windows[-1][-1:] == ids[-1:]
        for one, next_one in zip(windows, windows[1:], strict=False):
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
    table, samples, n_cut = encode_texts(
        tiny.ours, [text for text, _ in a], [text for text, _ in b], max_length, "windows"
    )
    assert (table.lengths <= max_length).all()
    cut = 0
    for sample, ((_, ids_a), (_, ids_b)) in enumerate(zip(a, b, strict=True)):
        kept = ids_a[: max(room // 2, room - len(ids_b))]
        cut += len(kept) < len(ids_a)
        rows = np.flatnonzero(samples == sample)
        parts = [strip(tiny.ours, table, row) for row in rows]
        assert all(first == kept for first, _ in parts)
        assert [second for _, second in parts] == slide(ids_b, room - len(kept))
    assert n_cut == cut


# --- ragged tables -------------------------------------------------------------------------------

lists = st.lists(st.lists(st.integers(-9, 9), max_size=6), min_size=1, max_size=8)


def ragged(rows: list[list[int]]) -> Ragged:
    flat = np.array([value for row in rows for value in row], np.int32)
    return Ragged.of(flat, np.array([len(row) for row in rows]))


def unragged(table: Ragged) -> list[list[Any]]:
    return [table[i].tolist() for i in range(len(table))]


@given(rows=lists)
def test_ragged_round_trip(rows: list[list[int]]) -> None:
    table = ragged(rows)
    assert unragged(table) == rows
    assert len(table) == len(rows)
    assert table.lengths.tolist() == [len(row) for row in rows]


@given(rows=lists, data=st.data())
def test_ragged_take_is_choosing_from_a_list(rows: list[list[int]], data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=10))
    taken = ragged(rows).take(np.array(chosen, np.int64))
    assert unragged(taken) == [rows[i] for i in chosen]


@given(rows=lists, data=st.data())
def test_ragged_cut_is_slicing(rows: list[list[int]], data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=10))
    begins = [data.draw(st.integers(0, len(rows[i]))) for i in chosen]
    sizes = [
        data.draw(st.integers(0, len(rows[i]) - at)) for i, at in zip(chosen, begins, strict=True)
    ]
    cut = ragged(rows).cut(np.array(chosen), np.array(begins), np.array(sizes))
    spans = zip(chosen, begins, sizes, strict=True)
    assert unragged(cut) == [rows[i][at : at + n] for i, at, n in spans]


@given(rows=lists, data=st.data())
def test_ragged_heads(rows: list[list[int]], data: st.DataObject) -> None:
    sizes = [data.draw(st.integers(0, len(row))) for row in rows]
    heads = ragged(rows).heads(np.array(sizes))
    assert unragged(heads) == [row[:n] for row, n in zip(rows, sizes, strict=True)]


def test_ragged_rows_may_hold_vectors() -> None:
    values = np.arange(10).reshape(5, 2)
    table = Ragged.of(values, np.array([2, 0, 3]))
    assert table.take(np.array([2, 1])).values.tolist() == values[2:].tolist()
    assert unragged(table.take(np.array([1, 0]))) == [[], values[:2].tolist()]


@given(rows=lists, data=st.data())
def test_a_token_table_takes_ids_and_segments_together(
    rows: list[list[int]], data: st.DataObject
) -> None:
    seconds = np.array([data.draw(st.integers(0, len(row))) for row in rows])
    chosen = np.array(data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=10)), np.int64)
    taken = TokenTable(ragged(rows), seconds).take(chosen)
    assert unragged(taken.ids) == [rows[i] for i in chosen]
    assert taken.second.tolist() == [int(seconds[i]) for i in chosen]
    assert taken.lengths.tolist() == [len(rows[i]) for i in chosen]
