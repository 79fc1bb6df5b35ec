"""What pre-training draws and reads: masks, pairs, sentences, vocabularies."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from skbert._core.text.tokens import Ragged, TextTokenizer
from skbert._pretraining.masking import Vocabulary, mask, pair, pair_and_mask
from skbert._pretraining.tasks import MaskedWords, NextSentence, NextWord
from skbert._validation.documents import (
    Documents,
    check_documents,
    check_sentences,
    split_sentences,
)
from skbert.exceptions import InputError, InputTypeError, ModelError, SkbertWarning

if TYPE_CHECKING:
    from pathlib import Path

    from skbert._core.items import Items

WORDS = "the a movie is good unbelievable great awful food services phoned i love it".split()


def documents(rows: list[list[str]]) -> Documents:
    return Documents(rows, are_texts=False, names=None)


def texts(n: int, n_words: int, seed: int = 0) -> list[str]:
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, n_words)) for _ in range(n)]


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> TextTokenizer:
    return TextTokenizer(AutoTokenizer.from_pretrained(tiny_model).backend_tokenizer, "[MASK]")


def rows_of(items: Items) -> list[list[int]]:
    return [items.tokens.ids[row].tolist() for row in range(len(items))]


def text_rows(tokenizer: TextTokenizer, found: list[str], max_length: int = 64) -> Items:
    return MaskedWords(max_length).encode(documents([[text] for text in found]), True, tokenizer)


# --- masks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("fraction", [0.15, 0.4])
def test_so_many_pieces_of_each_row_are_chosen(tokenizer: TextTokenizer, fraction: float) -> None:
    base = text_rows(tokenizer, [*texts(40, 20), *texts(10, 1)])
    items = mask(tokenizer, base, np.random.default_rng(0), fraction=fraction, whole_words=False)
    n_pieces = base.tokens.lengths - 2
    want = np.maximum(1, np.rint(fraction * n_pieces))
    np.testing.assert_array_equal(items.selected_tokens.lengths, want)


def test_targets_are_what_was_there_and_the_rest_stays(tokenizer: TextTokenizer) -> None:
    base = text_rows(tokenizer, texts(30, 12))
    items = mask(tokenizer, base, np.random.default_rng(1), fraction=0.15, whole_words=False)
    for row, (before, after) in enumerate(zip(rows_of(base), rows_of(items), strict=True)):
        at = items.selected_tokens[row]
        assert items.targets[row].tolist() == [before[i] for i in at]
        rest = np.setdiff1d(np.arange(len(before)), at)
        assert [before[i] for i in rest] == [after[i] for i in rest]
        assert sorted(set(at)) == at.tolist()
    assert items.is_counted_alone


def test_of_the_chosen_80_percent_are_masked_and_10_are_swapped(tokenizer: TextTokenizer) -> None:
    base = text_rows(tokenizer, texts(400, 40), 128)
    items = mask(tokenizer, base, np.random.default_rng(2), fraction=0.5, whole_words=False)
    vocabulary = Vocabulary.of(tokenizer)
    at = (
        np.repeat(items.tokens.ids.starts[:-1], items.selected_tokens.lengths)
        + items.selected_tokens.values
    )
    now, before = items.tokens.ids.values[at], items.targets.values
    masked = now == vocabulary.mask
    assert masked.mean() == pytest.approx(0.8, abs=0.02)
    assert ((now != before) & ~masked).mean() == pytest.approx(0.1, abs=0.01)
    assert (now == before).mean() == pytest.approx(0.1, abs=0.01)
    swapped = now[(now != before) & ~masked]
    assert not vocabulary.special[swapped].any()
    assert len(np.unique(swapped)) > 100  # of some 140 pieces


def test_special_and_unknown_tokens_are_never_chosen(tokenizer: TextTokenizer) -> None:
    base = text_rows(tokenizer, ["good ☂ ☂ ☂ ☂ ☂ ☂ food", "☂ [MASK] [SEP] a"] * 20)
    for seed in range(5):
        rng = np.random.default_rng(seed)
        items = mask(tokenizer, base, rng, fraction=0.9, whole_words=bool(seed % 2))
        assert not Vocabulary.of(tokenizer).special[items.targets.values].any()
        assert set(items.selected_tokens[0]) <= {1, 8}


def test_whole_words_are_masked_as_a_whole(tokenizer: TextTokenizer) -> None:
    base = text_rows(tokenizer, texts(60, 15), 20)  # rows that begin within words, too
    vocabulary = Vocabulary.of(tokenizer)
    items = mask(tokenizer, base, np.random.default_rng(3), fraction=0.3, whole_words=True)
    in_part = 0
    for row, ids in enumerate(rows_of(base)):
        begins = [
            i for i in range(1, len(ids) - 1) if i == 1 or not vocabulary.is_continuation[ids[i]]
        ]
        words = [list(range(a, b)) for a, b in zip(begins, [*begins[1:], len(ids) - 1],
                                                   strict=True)]  # fmt: skip
        chosen = set(items.selected_tokens[row].tolist())
        assert chosen
        for word in words:
            assert chosen.isdisjoint(word) or chosen.issuperset(word)
        in_part += any(len(word) > 1 and chosen.issuperset(word) for word in words)
    assert in_part
    n_pieces = (base.tokens.lengths - 2).sum()
    assert len(items.selected_tokens.values) / n_pieces == pytest.approx(0.3, abs=0.05)


def test_pieces_of_text_without_blanks_are_masked_one_by_one(tokenizer: TextTokenizer) -> None:
    base, vocabulary = text_rows(tokenizer, texts(60, 60), 62), Vocabulary.of(tokenizer)
    base = base.take(np.flatnonzero(base.tokens.lengths > 30))
    ids = base.tokens.ids.values.copy()
    ids[~vocabulary.special[ids]] = np.flatnonzero(vocabulary.is_continuation)[0]
    table = Ragged(ids, base.tokens.ids.starts)
    base = replace(base, tokens=replace(base.tokens, ids=table))
    items = mask(tokenizer, base, np.random.default_rng(3), fraction=0.15, whole_words=True)
    n_pieces = (~vocabulary.special[ids]).sum()
    assert len(items.selected_tokens.values) / n_pieces == pytest.approx(0.15, abs=0.02)


@given(seed=st.integers(0, 1000), whole_words=st.booleans(), fraction=st.floats(0.01, 0.99))
def test_any_rows_can_be_masked(
    tokenizer: TextTokenizer, seed: int, whole_words: bool, fraction: float
) -> None:
    rng = np.random.default_rng(seed)
    found = [" ".join(rng.choice([*WORDS, "☂", "xyz"], rng.integers(0, 12))) for _ in range(6)]
    base = text_rows(tokenizer, [*found, "good"], int(rng.integers(3, 12)))
    items = mask(tokenizer, base, rng, fraction=fraction, whole_words=whole_words)
    assert (items.selected_tokens.lengths >= 1).all()
    assert (items.selected_tokens.values >= 1).all()
    last = np.repeat(items.tokens.lengths - 1, items.selected_tokens.lengths)
    assert (items.selected_tokens.values < last).all()


def test_masks_follow_the_generator(tokenizer: TextTokenizer) -> None:
    base = text_rows(tokenizer, texts(10, 20))
    one, same, other = (
        mask(tokenizer, base, np.random.default_rng(s), fraction=0.15, whole_words=False)
        for s in (0, 0, 1)
    )
    assert rows_of(one) == rows_of(same)
    assert rows_of(one) != rows_of(other)


def test_taking_items_takes_their_chosen_tokens(tokenizer: TextTokenizer) -> None:
    base = text_rows(tokenizer, texts(6, 20))
    items = mask(tokenizer, base, np.random.default_rng(0), fraction=0.3, whole_words=False)
    part = items.take(np.array([4, 1]))
    assert [part.selected_tokens[0].tolist(), part.selected_tokens[1].tolist()] == [
        items.selected_tokens[4].tolist(), items.selected_tokens[1].tolist()]  # fmt: skip
    assert part.targets[0].tolist() == items.targets[4].tolist()
    assert part.is_counted_alone
    assert part.units.tolist() == [0, 1]


def test_a_vocabulary_without_a_mask_is_refused(tokenizer: TextTokenizer) -> None:
    described = json.loads(tokenizer.backend.to_str())
    vocabulary = described["model"]["vocab"]
    vocabulary["other"] = vocabulary.pop("[MASK]")
    described["added_tokens"] = [t for t in described["added_tokens"] if t["content"] != "[MASK]"]
    odd = TextTokenizer(tokenizer.backend.from_str(json.dumps(described)), None)
    with pytest.raises(ModelError, match="no mask token"):
        Vocabulary.of(odd)


# --- rows of text --------------------------------------------------------------------------------


def test_long_texts_are_cut_end_to_end(tokenizer: TextTokenizer) -> None:
    found = texts(3, 30)
    items = text_rows(tokenizer, found, 16)
    pieces = tokenizer.pieces(found)
    for sample in range(3):
        rows = [ids[1:-1] for ids, s in zip(rows_of(items), items.samples, strict=True)
                if s == sample]  # fmt: skip
        assert [len(row) for row in rows[:-1]] == [14] * (len(rows) - 1)
        assert [piece for row in rows for piece in row] == pieces[sample].tolist()


def test_texts_that_teach_nothing_are_left_out(tokenizer: TextTokenizer) -> None:
    assert text_rows(tokenizer, ["", "good", "☂", " "]).samples.tolist() == [1]
    with pytest.raises(InputError, match="No row of X holds a word piece that could be masked"):
        text_rows(tokenizer, ["", "☂"])


def test_the_next_word_of_each_token(tokenizer: TextTokenizer) -> None:
    items = NextWord(8).encode(documents([["the movie is good and great !"], ["a"]]), True,
                               tokenizer)  # fmt: skip
    rows = rows_of(items)
    assert items.samples.tolist() == [0, 0, 1]
    assert items.targets[0].tolist() == rows[0][1:-1]  # its text goes on
    assert items.targets[1].tolist() == rows[1][1:]
    assert items.targets[2].tolist() == rows[2][1:]
    for row in range(3):
        assert items.selected_tokens[row].tolist() == list(range(len(items.targets[row])))


def test_a_row_that_is_left_out_is_no_end_of_its_text(tokenizer: TextTokenizer) -> None:
    unknown = " ".join(["☂"] * 6)
    items = NextWord(8).encode(
        documents([[f"the movie is good and great {unknown}"]]), True, tokenizer
    )
    assert len(items) == 1
    assert items.targets[0].tolist() == rows_of(items)[0][1:-1]


# --- pairs ---------------------------------------------------------------------------------------

STORIES = [
    ["the movie is good", "i love it", "the food is awful", "a great phone"],
    ["i phoned", "it is unbelievable"],
    ["a movie", "the services", "great food is good"],
    ["love", "the phone is a movie", "good"],
] * 5


def parts(items: Items, row: int) -> tuple[list[int], list[int]]:
    ids, second = items.tokens.ids[row].tolist(), int(items.tokens.second[row])
    return ids[1 : second - 1], ids[second:-1]


@pytest.mark.parametrize("max_length", [128, 24, 12])
def test_half_of_the_pairs_are_true(tokenizer: TextTokenizer, max_length: int) -> None:
    base = NextSentence(max_length).encode(documents(STORIES), True, tokenizer)
    pieces = [tokenizer.pieces([" ".join(story)]).values.tolist() for story in STORIES]
    room = (max_length - 3) // 2
    cut = [
        [piece for s in story for piece in tokenizer.pieces([s]).values.tolist()[:room]]
        for story in STORIES
    ]
    assert max_length < 128 or cut == pieces
    for seed in range(5):
        items = pair(tokenizer, base, np.random.default_rng(seed), max_length=max_length)
        assert items.targets.sum() == round(len(items) / 2)
        assert (items.tokens.lengths <= max_length).all()
        for row in range(len(items)):
            first, second = parts(items, row)
            assert first
            assert second
            whole = cut[items.samples[row]]
            joined = first + second
            is_true = any(whole[i : i + len(joined)] == joined for i in range(len(whole)))
            assert is_true or items.targets[row]


def test_random_parts_come_from_other_documents(tokenizer: TextTokenizer) -> None:
    own = [[f"{word} {word}"] * 3 for word in "the movie is good bad great awful food".split()]
    base = NextSentence(64).encode(documents(own), True, tokenizer)
    drawn = set()
    for seed in range(99):
        items = pair(tokenizer, base, np.random.default_rng(seed), max_length=64)
        for row in range(len(items)):
            first, second = parts(items, row)
            assert (first[0] != second[0]) == items.targets[row]
            drawn.add((first[0], second[0]))
    assert len(drawn) == 64


def test_runs_hold_as_many_sentences_as_fit(tokenizer: TextTokenizer) -> None:
    story = ["good good good"] * 7
    base = NextSentence(3 + 10).encode(documents([story, story]), True, tokenizer)
    assert base.samples.tolist() == [0] * 3 + [1] * 3
    numbers = [base.places[row].tolist() for row in range(3)]
    assert [max(found) + 1 for found in numbers] == [3, 3, 2]  # the last takes one again
    assert numbers[0] == [-1, 0, 0, 0, 1, 1, 1, 2, 2, 2, -1]
    assert base.n_truncated == 0


def test_long_sentences_keep_half_the_room(tokenizer: TextTokenizer) -> None:
    base = NextSentence(11).encode(
        documents([["good " * 9, "bad"], ["a", "the"]]), True, tokenizer
    )
    assert base.n_truncated == 1
    assert base.tokens.lengths.tolist() == [2 + 4 + 1, 4]


def test_sentences_that_are_unknown_are_left_out(tokenizer: TextTokenizer) -> None:
    base = NextSentence(32).encode(documents([["good", "☂", "bad"], ["☂", "a"]]), True, tokenizer)
    assert base.samples.tolist() == [0]
    with pytest.raises(InputError, match="No row of X holds two sentences"):
        NextSentence(32).encode(documents([["☂", "a"], ["☂", "☂"]]), True, tokenizer)


def test_one_document_alone_has_no_random_parts(tokenizer: TextTokenizer) -> None:
    base = NextSentence(32).encode(documents([["good", "bad"]]), True, tokenizer)
    with pytest.raises(InputError, match="there is only one to choose from"):
        pair(tokenizer, base, np.random.default_rng(0), max_length=32)


def test_pairs_and_masks_at_once(tokenizer: TextTokenizer) -> None:
    base = NextSentence(32).encode(documents(STORIES), True, tokenizer)
    how = {"max_length": 32, "fraction": 0.3, "whole_words": False}
    items = pair_and_mask(tokenizer, base, np.random.default_rng(0), **how)
    pairs = pair(tokenizer, base, np.random.default_rng(0), max_length=32)
    for row in range(len(items)):
        targets = items.targets[row].tolist()
        ids = pairs.tokens.ids[row]
        assert targets[0] == pairs.targets[row]
        assert targets[1:] == ids[items.selected_tokens[row]].tolist()
    np.testing.assert_allclose(items.weights, len(items.selected_tokens.values) / len(items))


# --- sentences and documents ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("One. Two! Three?", ["One.", "Two!", "Three?"]),
        ("Pi is 3.14 at example.org. Yes.", ["Pi is 3.14 at example.org.", "Yes."]),
        ('He said "Go!" Then he went...', ['He said "Go!"', "Then he went..."]),
        ("first line\nsecond line\n\n", ["first line", "second line"]),
        ("\u4f60\u597d\u3002\u597d\uff01\u597d", ["\u4f60\u597d\u3002", "\u597d\uff01", "\u597d"]),
        ("Well… yes (really.) no", ["Well…", "yes (really.)", "no"]),
        ("no end", ["no end"]),
        (" \n ", []),
        ("", []),
    ],
)  # fmt: skip
def test_sentences_of_a_text(text: str, want: list[str]) -> None:
    assert split_sentences(text) == want


@pytest.mark.timeout(20)
def test_endless_signs_are_split_in_linear_time() -> None:
    assert len(split_sentences("." * 400_000 + "x")) == 1
    assert len(split_sentences('!"' * 200_000)) == 1
    assert len(split_sentences("\u3002x" * 100_000)) == 100_001


@pytest.mark.parametrize(
    "X",
    [
        [["a b", "c"], ["d", "e", "f"]],
        [("a b", "c"), ["d", "e", "f"]],
        pd.Series([["a b", "c"], ["d", "e", "f"]], index=[7, 3]),
        pd.DataFrame({"text": [["a b", "c"], ["d", "e", "f"]]}),
        pd.Series([np.array(["a b", "c"]), np.array(["d", "e", "f"])]),
    ],
)
def test_documents_in_any_container(X: object) -> None:
    found = check_documents(X)
    assert found.rows == [["a b", "c"], ["d", "e", "f"]]
    assert [type(s) for row in found.rows for s in row] == [str] * 5
    assert found.texts() == ["a b c", "d e f"]
    assert found.sentences() == found.rows
    assert not found.are_texts


def test_documents_of_equal_length_are_no_columns() -> None:
    assert check_documents([["a", "b"], ["c", "d"], ["e", "f"]]).rows[2] == ["e", "f"]
    square = np.array([["a", "b"], ["c", "d"]])
    assert check_documents(square).rows == [["a", "b"], ["c", "d"]]


def test_texts_as_documents() -> None:
    found = check_documents(pd.DataFrame({"t": ["One. Two.", "Three"]}))
    assert (found.rows, found.names) == ([["One. Two."], ["Three"]], ("t",))
    assert found.sentences() == [["One.", "Two."], ["Three"]]
    assert len(found) == 2


def test_gaps_are_empty_when_asked() -> None:
    found = check_documents([["a", None], None, ["b"]], missing="empty")
    assert found.rows == [["a", ""], [], ["b"]]
    assert found.sentences() == [["a"], [], ["b"]]


@pytest.mark.parametrize(
    ("X", "error", "message"),
    [
        ([["a", "b"], "c"], InputTypeError, "row 0 is a list, row 1 is 'c', of type str"),
        (["c", ["a", "b"]], InputTypeError, "row 1 is a list, row 0 is 'c', of type str"),
        ([["a"], None], InputError, "missing rows, the first: row 1 is None"),
        ([["a"], ["b", None]], InputError, "row 1 holds None"),
        ([["a"], ["b", 3]], InputTypeError, "row 1 holds 3, of type int"),
        ([["a"], [["b"]]], InputTypeError, "row 1 holds .*, of type list"),
        ([1, 2], InputTypeError, "row 0 holds 1"),
        ([], InputError, "0 sample"),
        ("a text", InputError, "raw text documents expected"),
        (pd.DataFrame({"a": ["x"], "b": ["y"]}), InputError, "X has 2 columns, but BertPre"),
    ],
)
def test_what_is_no_document(X: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        check_documents(X)


def test_half_a_character_is_replaced() -> None:
    with pytest.warns(SkbertWarning, match="lone surrogates"):
        assert check_documents([["a\ud800", "b"], ["c"]]).rows == [["a\ufffd", "b"], ["c"]]


@pytest.mark.parametrize(
    ("rows", "are_texts", "message"),
    [
        ([["a", "b"], ["c"]], False, "1 of 2 rows of X hold fewer than 2, the first is row 1"),
        ([["a", "b"], ["c", " "]], False, "the first is row 1. Blank sentences do not count"),
        ([["a b c"], ["A. B."]], True, "row 0. Sentences end at line breaks"),
        ([["a", "b"]], False, "X holds one document"),
    ],
)
def test_documents_without_pairs(rows: list[list[str]], are_texts: bool, message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_sentences(Documents(rows, are_texts, None), "nsp")


def test_ragged_targets_line_up_with_chosen_tokens(tokenizer: TextTokenizer) -> None:
    items = NextWord(16).encode(documents([["good food"]]), True, tokenizer)
    assert isinstance(items.targets, Ragged)
    np.testing.assert_array_equal(items.targets.starts, items.selected_tokens.starts)
