"""The tagger's words over tokenizers of all kinds, against a slow way to find them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.families import save_tiny
from support.odd_texts import odd_texts
from support.tokenizers import BYTE_LEVEL, UNIGRAM, make_tokenizer, text_tokenizer

from skbert import BertTokenTagger
from skbert._core.families import FAMILIES
from skbert._core.text.tokens import Ragged
from skbert._tagging.schemes import CharacterSpans
from skbert._tagging.task import WordTags
from skbert._validation.texts import Texts
from skbert._validation.words import WordRows

if TYPE_CHECKING:
    from pathlib import Path

EVERY_KIND = pytest.mark.parametrize("name", ["bert", *BYTE_LEVEL, *UNIGRAM])
EXAMPLE = "The movie, in  Köln 🙂:\nit's 3.50 (good)\t天!"
WORDS = ["The", "movie", ",", "in", "Köln", "🙂", ":", "it", "'", "s", "3", ".", "50", "(", "good",
         ")", "天", "!"]  # fmt: skip


def read(name: str, texts: list[str], max_length: int = 2000) -> Any:
    task = WordTags(2, max_length)
    return task, task.encode(Texts(texts, None, None, 1), None, text_tokenizer(name))


def scored(task: WordTags, items: Any) -> Any:
    """What comes of outputs that are the number of their token."""
    n = len(items.tokens.ids.values)
    outputs = Ragged(np.arange(2.0 * n).reshape(n, 2), items.tokens.ids.starts)
    return task.decode(outputs, items)


@EVERY_KIND
def test_the_words_of_a_text(name: str) -> None:
    task, items = read(name, [EXAMPLE, "", " \n ", "a"])
    found = scored(task, items)
    places = [places.tolist() for _, places in found]
    assert [EXAMPLE[begin:end] for begin, end in places[0]] == WORDS
    assert places[1:] == [[], [], [[0, 1]]]
    wanted = text_tokenizer(name)
    ids = [*wanted.prefix, *wanted.pieces([EXAMPLE])[0].tolist(), *wanted.suffix]
    assert items.tokens.ids[0].tolist() == ids


@EVERY_KIND
@given(texts=st.lists(odd_texts, min_size=1, max_size=3))
def test_words_are_those_of_their_pieces(name: str, texts: list[str]) -> None:
    task, items = read(name, texts)
    _, spans, words = text_tokenizer(name).pieces_with_offsets(texts)
    for row, (logits, places) in enumerate(scored(task, items)):
        numbers = words[row]
        assert len(places) == len(logits) == numbers.max(initial=-1) + 1
        for number, place in enumerate(places.tolist()):
            (pieces,) = np.nonzero(numbers == number)
            assert place == [spans[row][pieces[0], 0], spans[row][pieces[-1], 1]]
            token = items.tokens.ids.starts[row] + len(text_tokenizer(name).prefix)
            if np.bincount(numbers + 1).max() <= 16:  # nothing is left out
                assert logits[number, 0] == 2 * (token + pieces[0])


@EVERY_KIND
@pytest.mark.parametrize("max_length", [24, 64])
def test_windows_read_every_word_once(name: str, max_length: int) -> None:
    text = " \n ".join([EXAMPLE] * 9)
    task, items = read(name, [text, "a"], max_length)
    assert items.tokens.lengths.max() <= max_length
    assert items.samples.max() == 1
    assert len(items) >= 5
    (_, places), _ = scored(task, items)
    assert [text[begin:end] for begin, end in places.tolist()] == WORDS * 9


@EVERY_KIND
def test_targets_are_those_of_the_words(name: str) -> None:
    begin = EXAMPLE.index("Köln")
    y = CharacterSpans([[(begin, begin + 4, "X")]], ["O", "I-X"], "IO")
    task = WordTags(2, 24)
    items = task.encode(Texts([EXAMPLE], None, None, 1), y, text_tokenizer(name))
    numbers, targets = items.places.values[:, 0], items.targets.values
    assert (targets[numbers < 0] == -100).all()
    tagged = {number: target for number, target in zip(numbers, targets, strict=True)
              if number >= 0}  # fmt: skip
    assert [tagged[number] for number in range(len(WORDS))] == [int(w == "Köln") for w in WORDS]


@EVERY_KIND
@given(rows=st.lists(st.lists(odd_texts, max_size=4), min_size=1, max_size=3))
def test_rows_of_words_are_the_pieces_of_each(name: str, rows: list[list[str]]) -> None:
    tokenizer = text_tokenizer(name)
    task = WordTags(2, 2000)
    items = task.encode(WordRows(rows, None), None, tokenizer)
    for row, words in enumerate(rows):
        pieces = [ids.tolist()[:16] for ids in tokenizer.pieces_of_words(words).arrays()]
        unknown = [tokenizer.unk_id if tokenizer.unk_id is not None else tokenizer.suffix[-1]]
        inner = [number for ids in pieces for number in (ids or unknown)]
        want = [*tokenizer.prefix, *inner, *tokenizer.suffix]
        assert items.tokens.ids[row].tolist() == want
    for words, (logits, places) in zip(rows, scored(task, items), strict=True):
        assert len(logits) == len(words)
        assert places.tolist() == [[i, i + 1] for i in range(len(words))]


@pytest.mark.parametrize(
    ("family", "name"),
    [("bert", "xlm-roberta"), ("roberta", "roberta"), ("xlm-roberta", "xlm-roberta"),
     ("eurobert", "eurobert")],
)  # fmt: skip
def test_a_tagger_learns_from_texts_and_words(family: str, name: str, tmp_path: Path) -> None:
    tokenizer = make_tokenizer(name)
    vocabulary = {**tokenizer.get_vocab(), "[PAD]": tokenizer.pad_token_id}
    save_tiny(FAMILIES[family], tmp_path, vocabulary)
    tokenizer.save_pretrained(tmp_path)
    tagger = BertTokenTagger(str(tmp_path), epochs=1, device="cpu", random_state=0)
    rows = ["in Köln it is good", "the movie  is bad"] * 3
    tagger.fit(rows, [[(3, 7, "PLACE")], []] * 3)
    ends = {3: {2, 3, 7, 10, 13, 18}, 0: {3, 9, 13, 17}}
    for row, spans in zip(rows, tagger.predict(rows), strict=True):
        assert {end for _, end, _ in spans} <= ends[3 if "Köln" in row else 0]
    tagger.fit([row.split() for row in rows], [["O", "B-PLACE", "O", "O", "O"], ["O"] * 4] * 3)
    assert [len(tags) for tags in tagger.predict([row.split() for row in rows])] == [5, 4] * 3
