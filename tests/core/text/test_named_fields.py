"""Texts of several fields: what is kept of each, against slow ways, with any tokenizer."""

from __future__ import annotations

import tracemalloc
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.odd_texts import long_texts, odd_texts
from support.tokenizers import MAKERS, UNIGRAM, text_tokenizer

from skbert._core.text.fields import encode_rows, fair_shares
from skbert._core.text.numbered import NumberedPieces
from skbert._core.text.tokens import TextTokenizer, encode_texts
from skbert._core.text.windows import Windows
from skbert.exceptions import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

EVERY_KIND = pytest.mark.parametrize("name", MAKERS)
NAMES = ("title", "body", None, "tags")


class Rows(NamedTuple):
    """What a task is given."""

    fields: tuple[tuple[str | None, list[str]], ...]
    first: Sequence[str] = ()
    second: Sequence[str] | None = None


def rows_of(texts: Sequence[Sequence[str]], names: Sequence[str | None] = NAMES) -> Rows:
    """Rows, each a text per field, as fields with these names."""
    columns = zip(*texts, strict=True)
    return Rows(tuple((name, [*c]) for name, c in zip(names, columns, strict=False)))


@cache
def ours(name: str) -> TextTokenizer:
    return text_tokenizer(name)


some_rows = st.integers(2, 4).flatmap(
    lambda n: st.lists(st.tuples(*[odd_texts] * n), min_size=1, max_size=4)
)
some_long_rows = st.lists(
    st.tuples(*[st.one_of(odd_texts, long_texts)] * 3), min_size=1, max_size=3
)


# --- fair shares ---------------------------------------------------------------------------------


def slow_shares(lengths: list[int], room: int) -> list[int]:
    """Place after place to the field that has the fewest, the first of those, if it needs one."""
    keep = [0] * len(lengths)
    for _ in range(room):
        hungry = [field for field, n in enumerate(lengths) if keep[field] < n]
        if hungry:
            keep[min(hungry, key=lambda field: keep[field])] += 1
    return keep


@given(
    rows=st.integers(1, 6).flatmap(
        lambda n: st.lists(
            st.tuples(st.lists(st.integers(0, 40), min_size=n, max_size=n), st.integers(0, 60)),
            min_size=1, max_size=4,
        )
    )
)  # fmt: skip
def test_fair_shares(rows: list[tuple[list[int], int]]) -> None:
    lengths, room = zip(*rows, strict=True)
    found = fair_shares(np.array(lengths).T, np.array(room))
    assert found.T.tolist() == [slow_shares(*row) for row in rows]


@pytest.mark.parametrize(
    ("lengths", "room", "shares"),
    [
        ([5, 100, 3], 20, [5, 12, 3]),
        ([50, 100, 3], 20, [9, 8, 3]),
        ([7, 7, 7], 20, [7, 7, 6]),
        ([0, 30, 0], 20, [0, 20, 0]),
        ([1, 2, 3], 20, [1, 2, 3]),
    ],
)
def test_fair_shares_by_example(lengths: list[int], room: int, shares: list[int]) -> None:
    assert fair_shares(np.array([lengths]).T, np.array([room])).T.tolist() == [shares]


# --- rows of tokens ------------------------------------------------------------------------------


def slow_rows(
    tokenizer: TextTokenizer, fields: Sequence[tuple[str | None, str]], size: int, long_text: str
) -> tuple[list[tuple[list[int], list[list[int]]]], bool]:
    """Ids and places of the token rows of one sample, and whether something was cut."""
    present = [(at, *field) for at, field in enumerate(fields) if field[1].strip()]
    heads, texts = [], []
    for rank, (_, name, text) in enumerate(present):
        inside, begin = tokenizer.pieces_of_words, tokenizer.pieces
        read = inside if rank else begin
        heads.append([] if name is None else read([f"{name}:"])[0].tolist())
        texts.append((begin if rank == 0 and name is None else inside)([text])[0].tolist())
    room = size - tokenizer.n_specials(pair=False) - sum(map(len, heads))
    lengths = [*map(len, texts)]
    places = [[*range(n)] for n in lengths]
    versions = [places]
    keep = slow_shares(lengths, room)
    if long_text == "truncate":
        versions = [[p[:k] for p, k in zip(places, keep, strict=True)]]
    elif long_text == "head_tail":
        versions = [
            [p[: k // 4] + p[len(p) - (k - k // 4) :] for p, k in zip(places, keep, strict=True)]
        ]
    elif lengths:
        longest = lengths.index(max(lengths))
        others = [0 if at == longest else n for at, n in enumerate(lengths)]
        keep = slow_shares(others, max(room // 2, room - max(lengths)))
        windows = Windows.overlapping(np.array([max(lengths)]), np.array([room - sum(keep)]))
        versions = [
            [p[:k] if at != longest else p[begin : begin + n]
             for at, (p, k) in enumerate(zip(places, keep, strict=True))]
            for begin, n in zip(windows.begins.tolist(), windows.lengths.tolist(), strict=True)
        ]  # fmt: skip
        lengths = others
    is_cut = any(k < n for k, n in zip(keep, lengths, strict=True))
    rows = []
    for version in versions:
        ids, where, before = [*tokenizer.prefix], [[-1, -1]] * len(tokenizer.prefix), 0
        for (at, *_), head, text, kept in zip(present, heads, texts, version, strict=True):
            ids += head + [text[place] for place in kept]
            where += [[-1, -1]] * len(head) + [[at, before + place] for place in kept]
            before += len(text)
        ids += tokenizer.suffix
        rows.append((ids, where + [[-1, -1]] * len(tokenizer.suffix)))
    return rows, is_cut


@EVERY_KIND
@pytest.mark.parametrize("long_text", ["truncate", "head_tail", "windows"])
@settings(max_examples=20)
@given(texts=some_rows, size=st.integers(60, 90))
def test_rows_are_those_of_a_slow_way(
    name: str, long_text: Any, texts: list[tuple[str, ...]], size: int
) -> None:
    tokenizer, rows = ours(name), rows_of(texts)
    found = encode_rows(tokenizer, rows, size, long_text)
    names = [field for field, _ in rows.fields]
    slow = [slow_rows(tokenizer, [*zip(names, row, strict=True)], size, long_text)
            for row in texts]  # fmt: skip
    wanted = [row for sample, _ in slow for row in sample]
    assert [ids.tolist() for ids in found.tokens.ids.arrays()] == [ids for ids, _ in wanted]
    assert found.places is not None
    if long_text != "truncate":  # which numbers long texts by what was read of them
        assert [p.tolist() for p in found.places.arrays()] == [places for _, places in wanted]
    assert found.tokens.second.tolist() == found.tokens.lengths.tolist()  # one segment
    samples = [sample for sample, (windows, _) in enumerate(slow) for _ in windows]
    assert found.windows.samples.tolist() == samples
    assert found.n_truncated == sum(is_cut for _, is_cut in slow)
    assert found.tokens.lengths.max() <= size


@EVERY_KIND
@pytest.mark.parametrize("long_text", ["truncate", "head_tail", "windows"])
@settings(max_examples=10)
@given(texts=some_long_rows)
def test_long_fields_and_numbered_pieces(name: str, long_text: Any, texts: Any) -> None:
    """Whether a text is read whole or in part makes no difference."""
    tokenizer, rows = ours(name), rows_of(texts)
    found, numbers = encode_rows(tokenizer, rows, 60, long_text), NumberedPieces(tokenizer)
    numbered = encode_rows(numbers, rows, 60, long_text)
    ids = numbered.tokens.ids
    np.testing.assert_array_equal(ids.starts, found.tokens.ids.starts)
    np.testing.assert_array_equal(numbers.ids_of(ids.values), found.tokens.ids.values)
    assert numbered.n_truncated == found.n_truncated


@EVERY_KIND
def test_fields_read_as_one_text_with_names(name: str) -> None:
    tokenizer = ours(name)
    texts = ("Where's it?", "The movie, and\nthe food", "it rained", "a, b")
    rows = rows_of([texts, ("", "the", " ", "")])
    found = encode_rows(tokenizer, rows, 100, "truncate").tokens
    joined = [
        "title: Where's it? body: The movie, and\nthe food it rained tags: a, b",
        "body: the",
    ]
    wanted = encode_texts(tokenizer, joined, None, 100, "truncate").tokens
    assert [row.tolist() for row in found.ids.arrays()] == [*map(list, wanted.ids.arrays())]


@EVERY_KIND
def test_rows_without_any_text(name: str) -> None:
    found = encode_rows(ours(name), rows_of([("", "\n ", ""), ("", "", "")]), 60, "windows")
    empty = encode_texts(ours(name), ["", ""], None, 60, "windows")
    np.testing.assert_array_equal(found.tokens.ids.values, empty.tokens.ids.values)


def test_fields_without_names_begin_like_a_text() -> None:
    tokenizer = ours("roberta")
    rows = rows_of([("the movie", "is good"), ("", "is good")], [None, None])
    found = encode_rows(tokenizer, rows, 60, "truncate").tokens
    wanted = encode_texts(tokenizer, ["the movie is good", "is good"], None, 60, "truncate").tokens
    np.testing.assert_array_equal(found.ids.values, wanted.ids.values)


# --- too little room -----------------------------------------------------------------------------


def test_each_field_has_room_for_some_text() -> None:
    tokenizer = ours("bert")
    rows = rows_of([("the movie", "is good", "and the food", "is bad")], ["a", "b", "c", "d"])
    names = sum(len(tokenizer.pieces([f"{name}:"])[0]) for name in "abcd")
    least = 2 + names + 4 * 4
    assert len(encode_rows(tokenizer, rows, least, "truncate").tokens) == 1
    with pytest.raises(InputError, match=rf"4 fields.*{names} tokens.*max_length to {least} at l"):
        encode_rows(tokenizer, rows, least - 1, "truncate")


# --- long texts ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bert", "roberta", UNIGRAM[0]])
def test_a_huge_field_is_read_no_further_than_it_takes(name: str) -> None:
    tokenizer = ours(name)
    long = "good food " * 300_000
    rows = rows_of([("the movie", long, "bad")])
    encode_rows(tokenizer, rows_of([("a", "b", "c")]), 60, "truncate")
    tracemalloc.start()
    found = encode_rows(tokenizer, rows, 60, "truncate")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < len(long) + 1_000_000  # a blank before it copies it once
    assert found.tokens.lengths.tolist() == [60]
