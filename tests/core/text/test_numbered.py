"""Numbers of pieces: wherever a task puts one, it leads back to the piece and to its text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.odd_texts import long_texts, odd_texts
from support.tokenizers import MAKERS, make_tokenizer

from skbert._core.text.numbered import NumberedPieces
from skbert._core.text.tokens import TextTokenizer, encode_texts

READERS: dict[str, TextTokenizer] = {}


def reader(name: str) -> TextTokenizer:
    if name not in READERS:
        tokenizer = make_tokenizer(name)
        specials = tokenizer.special_tokens_map
        READERS[name] = TextTokenizer(
            tokenizer.backend_tokenizer, specials.get("mask_token"), specials.get("unk_token")
        )
    return READERS[name]


SOME = st.lists(st.one_of(odd_texts, long_texts), min_size=1, max_size=3)


@pytest.mark.parametrize("long_text", ["truncate", "head_tail", "windows"])
@pytest.mark.parametrize("name", MAKERS)
@settings(max_examples=15)
@given(
    texts=st.lists(st.one_of(odd_texts, long_texts), min_size=1, max_size=3), pair=st.booleans()
)
def test_numbers_become_the_same_ids(
    name: str, long_text: Any, texts: list[str], *, pair: bool
) -> None:
    plain, second = reader(name), texts[::-1] if pair else None
    numbers = NumberedPieces(plain)
    wanted = encode_texts(plain, texts, second, 16, long_text)
    found = encode_texts(numbers, texts, second, 16, long_text)
    ids = found.tokens.ids
    np.testing.assert_array_equal(ids.starts, wanted.tokens.ids.starts)
    np.testing.assert_array_equal(numbers.ids_of(ids.values), wanted.tokens.ids.values)
    np.testing.assert_array_equal(found.tokens.second, wanted.tokens.second)
    assert found.n_truncated == wanted.n_truncated


@pytest.mark.parametrize("name", MAKERS)
def test_a_number_says_where_its_piece_is(name: str) -> None:
    numbers, texts = NumberedPieces(reader(name)), ["  Where's it? ", "It rained a lot."]
    pieces = numbers.pieces(texts)
    for text, row in zip(texts, pieces.arrays(), strict=True):
        table = numbers.table[row]
        assert (table[:, 1] <= table[:, 2]).all()
        covered = {at for _, start, end, _ in table.tolist() for at in range(start, end)}
        assert covered == {at for at, character in enumerate(text) if character != " "}
        assert table[0, 3] == 0
        assert set(np.diff(table[:, 3]).tolist()) <= {0, 1}  # no piece is of no word


@pytest.mark.parametrize("name", MAKERS)
def test_words_are_found_without_the_blank_before_them(name: str) -> None:
    plain = reader(name)
    numbers, words = NumberedPieces(plain), ["rained", " lot", "It"]
    numbers.pieces(["something before"])
    found = numbers.pieces_of_words(words)
    np.testing.assert_array_equal(
        numbers.ids_of(found.values), plain.pieces_of_words(words).values
    )
    for word, row in zip(words, found.arrays(), strict=True):
        spans = numbers.table[row][:, 1:3]
        spans = spans[spans[:, 0] < spans[:, 1]]
        assert spans[0, 0] == len(word) - len(word.lstrip())
        assert spans[-1, 1] == len(word)


def test_special_tokens_keep_their_ids() -> None:
    plain = reader(next(iter(MAKERS)))
    numbers = NumberedPieces(plain)
    for name in ("prefix", "middle", "suffix"):
        complements = getattr(numbers, name)
        assert all(code < 0 for code in complements)
        assert tuple(numbers.ids_of(np.array(complements))) == getattr(plain, name)
    assert numbers.unk_id is not None
    assert numbers.ids_of(np.array([numbers.unk_id])).tolist() == [plain.unk_id]
    assert numbers.mask_id == plain.mask_id
