"""Tokenizers of all kinds: exact truncation, and places and words of pieces, against slow ways."""

from __future__ import annotations

import string
import tracemalloc
import unicodedata
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.odd_texts import PARTS, long_texts, odd_texts
from support.tokenizers import (
    BYTE_LEVEL,
    UNIGRAM,
    WORD_PIECE,
    Spy,
    make_tokenizer,
    text_tokenizer,
    watched,
)
from tokenizers import AddedToken

from skbert._core.text import places, prefix, tokens
from skbert._core.text.skim import CHINESE
from skbert._core.text.tokens import TextTokenizer, encode_texts

if TYPE_CHECKING:
    from collections.abc import Sequence

OTHERS = (*BYTE_LEVEL, *UNIGRAM)
EVERY_KIND = pytest.mark.parametrize("name", OTHERS)


@cache
def reference(name: str) -> Any:
    """As transformers opens it; in texts "[SEP]" is text to it, too."""
    tokenizer = make_tokenizer(name)
    tokenizer.split_special_tokens = True
    return tokenizer


@cache
def ours(name: str) -> TextTokenizer:
    return text_tokenizer(name)


def whole(name: str, text: str) -> list[int]:
    ids: list[int] = ours(name).backend.encode(text, add_special_tokens=False).ids
    return ids


# --- the ids of transformers ---------------------------------------------------------------------


@EVERY_KIND
@given(
    rows=st.lists(st.tuples(odd_texts, odd_texts), min_size=1, max_size=3),
    pairs=st.booleans(),
    size=st.integers(4, 40),
)
def test_texts_and_pairs_are_read_as_by_transformers(
    name: str, rows: list[tuple[str, str]], pairs: bool, size: int
) -> None:
    first, second = ([*side] for side in zip(*rows, strict=True))
    both = (second,) if pairs else ()
    want = reference(name)(first, *both, truncation="longest_first", max_length=size)
    table, *_ = encode_texts(ours(name), first, second if pairs else None, size, "truncate")
    assert [table.ids[i].tolist() for i in range(len(rows))] == want["input_ids"]


@pytest.mark.parametrize(("name", "double"), [("roberta", 2), ("camembert", 2), ("albert", 1)])
def test_separators_of_pairs_are_those_of_the_template(name: str, double: int) -> None:
    tokenizer, text = reference(name), ours(name)
    cls, sep = tokenizer.cls_token_id, tokenizer.sep_token_id
    assert (text.prefix, text.middle, text.suffix) == ((cls,), (sep,) * double, (sep,))
    table, *_ = encode_texts(text, ["the"], ["movie"], 20, "truncate")
    assert table.ids[0].tolist() == tokenizer("the", "movie")["input_ids"]


@EVERY_KIND
def test_tokens_by_role(name: str) -> None:
    tokenizer, text = reference(name), ours(name)
    assert text.mask_id == tokenizer.mask_token_id
    assert text.unk_id == (None if name == "eurobert" else tokenizer.unk_token_id)


# --- truncation ----------------------------------------------------------------------------------


@EVERY_KIND
@given(text=long_texts, n_ids=st.integers(1, 60), size=st.integers(1, 120))
def test_a_prefix_that_settles_ids_settles_the_right_ones(
    name: str, text: str, n_ids: int, size: int
) -> None:
    assert ours(name).reader.first_of([text], n_ids, size)[0] == whole(name, text)[:n_ids]


@EVERY_KIND
@given(texts=st.lists(st.one_of(long_texts, odd_texts), max_size=4), limit=st.integers(0, 20))
def test_cut_texts_are_the_whole_ones_cut(name: str, texts: list[str], limit: int) -> None:
    table = ours(name).pieces(texts, limit)
    assert [row.tolist() for row in table.arrays()] == [
        whole(name, text)[: limit + 1] for text in texts
    ]
    table = ours(name).pieces(texts)
    assert [row.tolist() for row in table.arrays()] == [whole(name, text) for text in texts]


@pytest.mark.long
@pytest.mark.parametrize("name", ["modernbert", "eurobert"])
@pytest.mark.parametrize("end", ["", "x", " x", "\n", "\nx", "'s", "1", "!", "\u0301", "中", " "])
def test_every_pair_of_parts_around_the_end_of_a_prefix(name: str, end: str) -> None:
    for before in PARTS:
        for part in (before * 3, f"a{before}", f" \n{before}"):
            text = part + end
            for size in range(max(1, len(text) - 9), len(text)):
                for n_ids in (1, 2, 5):
                    found = ours(name).reader.first_of([text], n_ids, size)[0]
                    assert found == whole(name, text)[:n_ids], (text, size, n_ids)


ENDLESS = {
    "words": "word ", "one letter": "a", "no blanks": "中文没有空格", "blanks": " ",
    "gaps": " \n\r\t\u00a0\u3000", "line breaks": "\n",
    "blanks after a line break": "\n" + " " * 99,
    "digits": "123", "signs": "-", "emoji": "👩\u200d👧👍🏽", "accents": "é", "marks": "e\u0301",
    "thai": "กำ", "arabic": "ﷺا", "zeros": "\0", "contractions": "'re", "quotes": "'",
}  # fmt: skip


@pytest.mark.parametrize("name", BYTE_LEVEL)
@pytest.mark.parametrize("kind", ENDLESS)
def test_endless_texts_of_bytes_are_read_in_part(name: str, kind: str) -> None:
    part, reader = ENDLESS[kind], ours(name).reader
    for begin in ("", "the movie ", "a\n", "!"):
        text = begin + part * (400_000 // len(part)) + " good"
        spy = Spy(reader.backend)
        found = type(reader)(spy).first_of([text], 127, 8 * 126 + 64)[0]
        assert spy.seen < 30_000
        small = begin + part * (8_000 // len(part)) + " good"
        assert found == whole(name, small)[:127]


SETTLED = "the movie is good and the food is bad, "
BEGINS = ["a", " ", "\u200b", "\u0301", "中", "👩\u200d👧"]


@pytest.mark.parametrize("name", [*WORD_PIECE, *OTHERS])
@pytest.mark.parametrize("limit", [0, 20, 126])
def test_texts_that_a_first_prefix_settles_or_does_not_stay_in_order(
    name: str, limit: int
) -> None:
    texts = ["good", ""]
    for i, begin in enumerate(BEGINS):
        endless = begin * 6_000 + SETTLED * 40
        texts += [f"{i} {SETTLED * 40}", endless, f"bad {i}", f"{i} {endless}", SETTLED + endless]
    # Of so many tokens some are long, which a prefix of 64 characters of one word does not settle.
    tokenizer, spy = watched(text_tokenizer(name, 2_000))
    rows = [row.tolist() for row in tokenizer.pieces(texts, limit).arrays()]
    assert limit or spy.calls["encode"]
    assert rows == [spy.encode(text, add_special_tokens=False).ids[: limit + 1] for text in texts]


@pytest.mark.parametrize("name", [*WORD_PIECE, *OTHERS])
def test_first_prefixes_of_long_texts_are_read_together(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [f"{i} {SETTLED * 90}" for i in range(50)]
    tokenizer, spy = watched(ours(name))
    rows = [row.tolist() for row in tokenizer.pieces(texts, 126).arrays()]
    assert spy.calls == {"encode_batch_fast": 1, "encode_batch": 1}
    assert rows == [whole(name, text)[:127] for text in texts]
    monkeypatch.setattr(prefix, "_TOGETHER", 12_000)  # characters: 11 prefixes
    assert [row.tolist() for row in tokenizer.pieces(texts, 126).arrays()] == rows
    assert spy.calls == {"encode_batch_fast": 2, "encode_batch": 1 + 5}


@pytest.mark.parametrize("name", BYTE_LEVEL)
@pytest.mark.parametrize("part", ["a", "word ", "\u4e2d", " "])
def test_memory_does_not_grow_with_the_length_of_a_cell(name: str, part: str) -> None:
    peaks = []
    for length in (100_000, 2_000_000):
        text = part * (length // len(part))
        tracemalloc.start()
        ours(name).pieces([text], 126)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * max(peaks[0], 5e6)


@pytest.mark.parametrize("name", UNIGRAM)
def test_long_texts_of_unigram_are_read_in_part_where_blanks_part_words(name: str) -> None:
    text, reader = "the movie is good, 中文 " * 20_000, ours(name).reader
    spy = Spy(reader.backend)
    assert type(reader)(spy).first_of([text], 127, 8 * 126 + 64)[0] == whole(name, text)[:127]
    assert spy.seen < 8 * 126 + 64
    endless = "中文" * 5_000
    assert reader.first_of([endless], 127, 8 * 126 + 64)[0] == whole(name, endless)[:127]


ADDED = ["\t\t", "|||IP|||", "e\u0301ab", "A\u030am"]
ADDED += [" " * n for n in range(2, 25)]  # as ModernBERT has


@cache
def with_added(name: str) -> TextTokenizer:
    backend = make_tokenizer(name).backend_tokenizer
    backend.add_tokens([*ADDED, "the movie is good and long"])
    backend.add_tokens([AddedToken("A\u030am", normalized=False)])  # of texts as they are
    return TextTokenizer(backend)


@pytest.mark.parametrize("name", [*WORD_PIECE, *OTHERS])
def test_places_do_not_depend_on_how_many_texts_are_read_together(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [SETTLED, "", "a", "e\u0301 中文", *BEGINS]
    whole = [table.arrays() for table in ours(name).pieces_with_offsets(texts)]
    monkeypatch.setattr(tokens, "_TOGETHER", 2)
    for expected, table in zip(whole, ours(name).pieces_with_offsets(texts), strict=True):
        assert [row.tolist() for row in table.arrays()] == [row.tolist() for row in expected]


def test_each_mark_of_a_long_run_is_looked_at_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    is_combining = places._is_combining

    def counted(character: str) -> bool:
        seen.append(character)
        return is_combining(character)

    monkeypatch.setattr(places, "_is_combining", counted)
    text = "a" + "\u0301" * 1000 + "b"
    spans = [(at, at + 1) for at in range(len(text))]
    found = places.with_marks(text, spans)
    assert found[0] == (0, 1001)
    assert {end for _, end in found[:-1]} == {1001}
    assert found[-1] == (1001, 1002)
    assert len(seen) < 5 * len(text)


@pytest.mark.parametrize("name", OTHERS)
def test_a_prefix_can_end_in_an_added_word(name: str) -> None:
    added = with_added(name)
    text = "x " * 200 + "the movie is good and long " * 40
    want = added.backend.encode(text, add_special_tokens=False).ids
    for n_ids in (150, 200, 230):
        for size in (400, 420, 440, 700):
            assert added.reader.first_of([text], n_ids, size)[0] == want[:n_ids]


@pytest.mark.parametrize("name", BYTE_LEVEL)
@given(
    parts=st.lists(
        st.tuples(st.sampled_from([*PARTS, *ADDED]), st.integers(1, 60)), min_size=1, max_size=8
    ),
    n_ids=st.integers(1, 60),
    size=st.integers(1, 400),
)
def test_with_added_words_a_prefix_settles_the_right_ids(
    name: str, parts: list[tuple[str, int]], n_ids: int, size: int
) -> None:
    text = "".join(part * count for part, count in parts)
    added = with_added(name)
    want = added.backend.encode(text, add_special_tokens=False).ids[:n_ids]
    assert added.reader.first_of([text], n_ids, size)[0] == want


@pytest.mark.parametrize("name", BYTE_LEVEL)
def test_with_added_words_long_texts_of_bytes_are_read_in_part(name: str) -> None:
    text = f"{SETTLED}  |||IP||| \n\n   " * 2_000
    reader = with_added(name).reader
    spy = Spy(reader.backend)
    want = reader.backend.encode(text, add_special_tokens=False).ids[:127]
    assert type(reader)(spy).first_of([text], 127, 8 * 126 + 64)[0] == want
    assert spy.seen <= 8 * 126 + 64


@pytest.mark.parametrize("flag", ["lstrip", "rstrip", "single_word"])
def test_words_added_with_what_is_around_them_are_looked_for_in_whole_texts(flag: str) -> None:
    backend = make_tokenizer("roberta").backend_tokenizer
    backend.add_tokens([AddedToken("movie", **{flag: True})])
    reader = TextTokenizer(backend).reader
    assert not reader._can_cut
    text = "the movie is" + " " * 400 + "movie" + " " * 400 + "good"
    want = backend.encode(text, add_special_tokens=False).ids[:20]
    assert reader.first_of([text], 20, 410)[0] == want


@pytest.mark.parametrize("name", ["roberta", "eurobert"])
def test_without_all_bytes_a_text_is_read_whole(name: str) -> None:
    tokenizer = make_tokenizer(name)
    described = tokenizer.backend_tokenizer.to_str().replace('"Z":', '"Zulu":')
    partial = TextTokenizer(tokenizer.backend_tokenizer.from_str(described))
    assert not partial.reader._can_cut
    text = "Zaa" * 500
    want = partial.backend.encode(text, add_special_tokens=False).ids[:20]
    assert partial.reader.first_of([text], 20, 40)[0] == want


# --- places and words of pieces ------------------------------------------------------------------


def kind_of(character: str) -> str:
    if character.isspace():
        return "blank"
    is_chinese = any(start <= ord(character) < end for start, end in CHINESE)
    is_sign = character in string.punctuation or unicodedata.category(character)[0] == "P"
    return "sign" if is_chinese or is_sign else "letter"


def is_mark(character: str) -> bool:
    joiners = ("\u200c", "\u200d")
    return unicodedata.category(character)[0] == "M" or character in joiners


def word_of_each_character(text: str) -> list[int]:
    """The slow and obvious way: one character after another; -1 for white space."""
    words: list[int] = []
    number, last = -1, "blank"
    for character in text:
        kind = kind_of(character)
        if is_mark(character) and last == "sign":
            kind = "mark of a sign"
        elif kind != "blank" and (kind == "sign" or last != "letter"):
            number += 1
        words.append(-1 if kind == "blank" else number)
        last = "sign" if kind == "mark of a sign" else kind
    return words


@EVERY_KIND
@given(texts=st.lists(odd_texts, max_size=3))
def test_pieces_lie_in_their_places_and_words(name: str, texts: list[str]) -> None:
    ids, spans, words = ours(name).pieces_with_offsets(texts)
    assert [row.tolist() for row in ids.arrays()] == [whole(name, text) for text in texts]
    for row, text in enumerate(texts):
        check_places(text, spans[row], words[row])


def check_places(text: str, spans: Any, words: Any) -> None:
    begins, ends = spans.T
    filled = begins < ends
    assert ((begins >= 0) & (begins <= ends) & (ends <= len(text))).all()
    assert (np.diff(begins) >= 0).all()
    assert (np.diff(ends) >= 0).all()
    for begin, end in spans[filled].tolist():
        assert text[begin:end].strip() == text[begin:end]
    of_character = word_of_each_character(text)
    seen = [of_character[begin] for begin in begins[filled].tolist()]
    compact = {word: number for number, word in enumerate(dict.fromkeys(seen))}
    inner = words[filled].tolist()
    starts_with_mark = any(is_mark(text[begin]) for begin in begins[filled].tolist())
    if not starts_with_mark:  # their places begin with the character before
        assert inner == [compact[word] for word in seen]
    assert inner == sorted(inner)
    assert set(np.diff(inner)) <= {0, 1}
    assert not len(inner) or inner[0] == 0
    for at in np.flatnonzero(~filled).tolist():
        around = {words[at - 1] if at else -1, words[at + 1] if at + 1 < len(words) else -1}
        assert words[at] == -1 or {words[at]} == around or words[at] in words[filled]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("roberta", " the  movie", ["the", "", "movie"]),
        ("eurobert", "the movie!\n\nis", ["the", "movie", "!", "is"]),
        ("xlm-roberta", "  the   movie", ["the", "movie"]),
    ],
)
def test_places_have_no_white_space(name: str, text: str, expected: Sequence[str]) -> None:
    _, spans, words = ours(name).pieces_with_offsets([text])
    joined: dict[int, str] = {}
    for (begin, end), word in zip(spans[0].tolist(), words[0].tolist(), strict=True):
        joined[word] = joined.get(word, "") + text[begin:end]
    assert [joined[word] for word in sorted(joined) if word >= 0] == [e for e in expected if e]
    assert joined.get(-1, "") == ""


@pytest.mark.parametrize("name", BYTE_LEVEL)
def test_bytes_of_one_character_lie_where_it_does(name: str) -> None:
    text = "🙂 👩\u200d👧"
    _, spans, words = ours(name).pieces_with_offsets([text])
    found = {text[begin:end] for begin, end in spans[0].tolist()}
    assert {"🙂", "👩\u200d"} <= found <= {"", "🙂", "👩\u200d", "\u200d", "👧", "\u200d👧"}
    assert {*words[0].tolist()} <= {-1, 0, 1}


# --- words given as lists ------------------------------------------------------------------------


@EVERY_KIND
@given(words=st.lists(odd_texts.filter(bool), min_size=1, max_size=5))
def test_words_alone_are_read_as_by_transformers(name: str, words: list[str]) -> None:
    table = ours(name).pieces_of_words(words)
    if name == "eurobert":  # whose steps cannot put a blank before words
        texts = [word if word.startswith(" ") else f" {word}" for word in words]
        assert [row.tolist() for row in table.arrays()] == [whole(name, text) for text in texts]
        return
    tokenizer = inside(name)
    want = tokenizer(words, is_split_into_words=True, add_special_tokens=False)
    pieces = [[i for i, w in zip(want["input_ids"], want.word_ids(), strict=True) if w == word]
              for word in range(len(words))]  # fmt: skip
    assert [row.tolist() for row in table.arrays()] == pieces


@cache
def inside(name: str) -> Any:
    """The tokenizer as transformers wants it for lists of words."""
    from tokenizers import pre_tokenizers

    tokenizer = make_tokenizer(name)
    tokenizer.split_special_tokens = True
    if name in BYTE_LEVEL:
        tokenizer._tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    return tokenizer
