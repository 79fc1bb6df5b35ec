"""Tagging schemes: conversion, recognition, and the chain against counting all sequences."""

from __future__ import annotations

import itertools
import warnings
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skbert._tagging.schemes import (
    Chain,
    CharacterSpans,
    convert,
    follow,
    guess_scheme,
    whole_words,
)
from skbert._validation.entities import entities_of, tag_names, tags_of
from skbert.exceptions import InputError, SkbertWarning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from skbert._validation.entities import Entity

PARTING = ("IOB1", "IOB2", "BIOES")  # schemes that tell neighbours of one type apart
WORDS = {  # one row in every scheme: two neighbours of one type, then one of another
    "IO": "I-PER I-PER I-PER I-LOC O I-LOC",
    "IOB1": "I-PER I-PER B-PER I-LOC O I-LOC",
    "IOB2": "B-PER I-PER B-PER B-LOC O B-LOC",
    "BIOES": "B-PER E-PER S-PER S-LOC O S-LOC",
}


@st.composite
def rows(draw: st.DrawFn, max_words: int = 12) -> tuple[int, list[Entity]]:
    """A number of words, and entities among them in order."""
    n_words = draw(st.integers(0, max_words))
    cuts = sorted(draw(st.sets(st.integers(0, n_words))))
    kinds = draw(st.lists(st.sampled_from(["PER", "LOC", "_", "A-B", ""]), min_size=len(cuts)))
    found = zip(itertools.pairwise(cuts), kinds, strict=False)
    return n_words, [(start, end, kind) for (start, end), kind in found if kind]


# --- conversion ----------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", WORDS)
def test_one_row_in_every_scheme(scheme: str) -> None:
    entities = [(0, 2, "PER"), (2, 3, "PER"), (3, 4, "LOC"), (5, 6, "LOC")]
    assert tags_of(entities, 6, scheme) == WORDS[scheme].split()
    if scheme != "IO":
        assert entities_of(WORDS[scheme].split()) == entities
    for source in PARTING:
        assert convert(WORDS[source].split(), scheme) == WORDS[scheme].split()


@given(row=rows(), path=st.permutations(PARTING))
def test_conversions_come_back(row: tuple[int, list[Entity]], path: list[str]) -> None:
    n_words, entities = row
    first = tags_of(entities, n_words, path[0])
    assert entities_of(first, path[0]) == entities  # legal under the strict reading
    tags = first
    for scheme in (*path[1:], path[0]):
        tags = convert(tags, scheme)
        assert entities_of(tags, scheme) == entities
    assert tags == first
    assert convert(tags, path[0]) == tags


@given(row=rows())
def test_io_keeps_the_types(row: tuple[int, list[Entity]]) -> None:
    n_words, entities = row
    told = convert(tags_of(entities, n_words, "IOB2"), "IO")
    assert told == [
        tag.replace("B-", "I-", 1) if tag != "B" else "I"
        for tag in tags_of(entities, n_words, "IOB2")
    ]


def test_bare_letters_stay_bare() -> None:
    assert convert(["B", "I", "O"], "BIOES") == ["B", "E", "O"]


def test_tag_names() -> None:
    assert tag_names(["B", "A"], "IOB2") == ["B-A", "B-B", "I-A", "I-B", "O"]
    assert tag_names(["A"], "BIOES") == ["B-A", "E-A", "I-A", "O", "S-A"]
    assert tag_names(["A"], "IO") == ["I-A", "O"]
    assert tag_names([], "IOB1") == ["O"]


# --- recognition ---------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", WORDS)
def test_schemes_are_recognised(scheme: str) -> None:
    assert guess_scheme([WORDS[scheme].split(), [], ["O"]]) == scheme


@pytest.mark.parametrize(
    ("tags", "scheme"),
    [
        ("B-X O B-X", "IOB2"),  # no entity of two words
        ("B-X L-X O U-X", "BIOES"),  # BILOU
        ("S-X O", "BIOES"),
        ("B I O", "IOB2"),
        ("DET NOUN VERB", None),
        ("O O", None),
        ("NN IN B-X", None),
        ("I S", None),
        ("NN-P O", None),
    ],
)
def test_schemes_of_short_data(tags: str, scheme: str | None) -> None:
    assert guess_scheme([tags.split()]) == scheme


def test_of_iob1_and_iob2_the_one_with_fewer_breaks_wins() -> None:
    begins, insides = ["B-X", "I-X", "O"], ["I-X", "I-X", "O"]
    assert guess_scheme([begins, begins, insides]) == "IOB2"
    assert guess_scheme([begins, insides, insides]) == "IOB1"
    assert guess_scheme([begins, insides]) == "IOB2"


def test_a_checkpoint_without_all_b_tags_was_taught_iob1() -> None:
    assert guess_scheme([["B-PER"], ["I-PER"], ["O"]]) == "IOB2"
    assert guess_scheme([["B-LOC"], ["I-LOC"], ["I-PER"], ["O"]]) == "IOB1"


@given(row=rows())
def test_legal_rows_are_followed_as_they_are(row: tuple[int, list[Entity]]) -> None:
    n_words, entities = row
    for scheme in PARTING:
        tags = tags_of(entities, n_words, scheme)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert follow([tags, []], scheme) == ([tags, []], scheme)


def test_rows_that_break_their_scheme_are_mended_with_one_warning() -> None:
    broken = [["B-X", "I-X"], ["O", "I-X", "I-X"], ["B-X", "I-Y", "O"], ["B-X", "O"]]
    with pytest.warns(SkbertWarning, match=r"2 tag\(s\) of y .* IOB2.* row 1, word 1") as caught:
        mended, scheme = follow(broken, "auto")
    assert len(caught) == 1
    assert scheme == "IOB2"
    assert mended == [["B-X", "I-X"], ["O", "B-X", "I-X"], ["B-X", "B-Y", "O"], ["B-X", "O"]]
    assert [entities_of(row) for row in mended] == [entities_of(row) for row in broken]


def test_mixed_schemes_are_mended() -> None:
    with pytest.warns(SkbertWarning, match=r"1 tag\(s\).*'I-X' became 'E-X'"):
        mended, scheme = follow([["B-X", "E-X", "S-X"], ["B-X", "I-X", "O", "S-X"]], "auto")
    assert (scheme, mended[1]) == ("BIOES", ["B-X", "E-X", "O", "S-X"])


def test_bilou_becomes_bioes_without_a_word() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        told = follow([["B-X", "I-X", "L-X", "O", "U-Y"]], "auto")
    assert told == ([["B-X", "I-X", "E-X", "O", "S-Y"]], "BIOES")


def test_plain_tags_stay_as_they_are() -> None:
    tags = [["NN", "I", "VB"], ["O"]]
    assert follow(tags, "auto") == follow(tags, None) == (tags, None)
    assert follow([["B-X", "O", "I-X"]], None) == ([["B-X", "O", "I-X"]], None)


def test_tags_with_and_without_prefix_are_plain_with_a_warning() -> None:
    with pytest.warns(SkbertWarning, match="such as 'B-X', but follows none, because of 'NN'"):
        assert follow([["B-X", "NN"]], "auto")[1] is None
    for tags in (["b-per", "o"], ["B_PER", "O"]):
        with pytest.warns(SkbertWarning, match=f"'{tags[0]}'"):
            assert follow([tags], "auto")[1] is None


@pytest.mark.parametrize(
    ("tags", "scheme"),
    [("E-X", "IOB2"), ("B-X", "IO"), ("NN", "IOB1"), ("NN", "BIOES"), ("X-Y", "BIOES")],
)
def test_a_tag_that_the_scheme_has_not(tags: str, scheme: str) -> None:
    with pytest.raises(InputError, match=f"row 1 of y.*'{tags}' at word 1.*{scheme}"):
        follow([["O"], ["O", tags]], scheme)


# --- the chain against counting ------------------------------------------------------------------

ALPHABETS = {
    "IOB1": tag_names(["X", "Y"], "IOB1"),
    "IOB2": tag_names(["X", "Y"], "IOB2"),
    "BIOES": tag_names(["X", "Y"], "BIOES"),
    "IO": tag_names(["X", "Y"], "IO"),
    "IOB2 in part": ["B-X", "B-Y", "I-X", "O"],
    "IOB1 in part": ["B-X", "I-X", "I-Y", "O"],
    None: ["DET", "NOUN", "O"],
}


def scheme_of(name: str | None) -> str | None:
    return name and name.split()[0]


def scores(n_words: int, n_tags: int, seed: int) -> np.ndarray:
    logits = np.random.default_rng(seed).normal(scale=2, size=(n_words, n_tags))
    return logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)


def sequences(tags: list[str], scheme: str | None, n_words: int) -> Iterator[tuple[int, ...]]:
    """All that a scheme allows: rows that converting leaves as they are."""
    for codes in itertools.product(range(len(tags)), repeat=n_words):
        row = [tags[code] for code in codes]
        if scheme is None or convert(row, scheme) == row:
            yield codes


def entities_in(row: list[str], scheme: str | None) -> list[Entity]:
    if scheme is not None:
        return entities_of(row)
    return [(word, word + 1, tag) for word, tag in enumerate(row) if tag != "O"]


@pytest.mark.parametrize("name", ALPHABETS)
@pytest.mark.parametrize("n_words", [1, 2, 3, 4])
def test_the_best_sequence_and_each_entity_by_counting(name: str | None, n_words: int) -> None:
    tags, scheme = ALPHABETS[name], scheme_of(name)
    n_words = min(n_words, 3) if len(tags) > 5 else n_words
    chain = Chain(tags, scheme)
    chances = scores(n_words, len(tags), seed=n_words)
    allowed = list(sequences(tags, scheme, n_words))
    weights = [chances[range(n_words), codes].sum() for codes in allowed]
    assert chain.best(chances).tolist() == list(allowed[int(np.argmax(weights))])
    shares = np.exp(weights - np.logaddexp.reduce(weights))
    wanted: dict[Entity, float] = {}
    for codes, share in zip(allowed, shares, strict=True):
        for entity in entities_in([tags[code] for code in codes], scheme):
            wanted[entity] = wanted.get(entity, 0.0) + share
    found = chain.probabilities(chances, list(wanted))
    np.testing.assert_allclose(found, list(wanted.values()), rtol=1e-9)
    for codes in allowed:
        row = [tags[code] for code in codes]
        assert chain.entities(np.array(codes)) == entities_in(row, scheme)


@pytest.mark.parametrize("name", ALPHABETS)
def test_without_constraint_words_stand_alone(name: str | None) -> None:
    tags, scheme = ALPHABETS[name], scheme_of(name)
    chain = Chain(tags, scheme, constrained=False)
    chances = scores(3, len(tags), seed=9)
    assert chain.best(chances).tolist() == chances.argmax(axis=1).tolist()
    everything = list(itertools.product(range(len(tags)), repeat=3))
    wanted: dict[Entity, float] = {}
    for codes in everything:
        share = np.exp(chances[range(3), codes].sum())
        row = [tags[code] for code in codes]
        assert chain.entities(np.array(codes)) == entities_in(row, scheme)
        for entity in entities_in(row, scheme):
            wanted[entity] = wanted.get(entity, 0.0) + share
    found = chain.probabilities(chances, list(wanted))
    np.testing.assert_allclose(found, list(wanted.values()), rtol=1e-9)


@pytest.mark.parametrize("scheme", PARTING)
@given(seed=st.integers(0, 1000), n_words=st.integers(0, 60))
def test_predictions_are_legal_and_probabilities_are_some(
    scheme: str, seed: int, n_words: int
) -> None:
    chain = Chain(ALPHABETS[scheme], scheme)
    chances = scores(n_words, len(chain.tags), seed) * 5
    codes = chain.best(chances)
    row = [chain.tags[code] for code in codes]
    assert len(codes) == n_words
    assert convert(row, scheme) == row
    entities = chain.entities(codes)
    assert entities == entities_of(row, scheme)
    assert all(0 < p <= 1 for p in chain.probabilities(chances, entities))


def test_a_sure_row_has_sure_entities() -> None:
    chain = Chain(["B-X", "I-X", "O"], "IOB2")
    chances = np.log(np.full((4, 3), 1e-12))
    chances[range(4), [0, 1, 2, 0]] = 0.0
    assert chain.probabilities(chances, [(0, 2, "X"), (3, 4, "X")]) == pytest.approx([1, 1])
    assert chain.probabilities(chances, [(0, 1, "X")])[0] < 1e-9
    assert chain.probabilities(chances, []) == []


def test_two_thousand_words_do_not_underflow() -> None:
    chain = Chain(ALPHABETS["BIOES"], "BIOES")
    chances = scores(2000, len(chain.tags), seed=1)
    entities = chain.entities(chain.best(chances))
    found = chain.probabilities(chances, entities[:5] + entities[-5:])
    assert all(0 < p < 1 for p in found)


def test_where_no_sequence_is_allowed_the_least_broken_one_is_taken() -> None:
    chain = Chain(["B-X", "E-X"], "BIOES")  # learned from entities of two words alone
    chances = np.log(np.array([[0.9, 0.1], [0.9, 0.1], [0.2, 0.8]]))
    codes = chain.best(chances)
    assert codes.tolist() in ([0, 1, 1], [0, 0, 1])  # one step that is not allowed, not two
    assert np.isfinite(chain.probabilities(chances, chain.entities(codes))).all()


# --- spans in characters -------------------------------------------------------------------------

PLACES = np.array([[0, 4], [5, 10], [10, 11], [12, 16]])  # "Anna Maria, here"


def on_words(*entities: Entity, scheme: str = "IOB2") -> list[str]:
    tags = tag_names(["X", "Y"], scheme)
    (codes,) = CharacterSpans([list(entities)], tags, scheme).codes([PLACES], warns=True)
    assert codes.dtype == np.int64
    return [tags[code] for code in codes]


def test_spans_stand_for_the_whole_words_that_they_touch() -> None:
    given = [(0, 5, "X"), (6, 8, "Y"), (9, 11, "X"), (11, 12, "X")]
    want = [(0, 4, "X"), (5, 10, "Y"), (10, 11, "X"), (11, 12, "X")]
    assert whole_words([given, []], [PLACES, PLACES]) == [want, []]


def test_spans_that_fit_become_tags_without_a_word() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert on_words((0, 10, "X"), (12, 16, "Y")) == ["B-X", "I-X", "O", "B-Y"]
        assert on_words((0, 4, "X"), (5, 10, "X")) == ["B-X", "B-X", "O", "O"]
        assert on_words((0, 11, "Y"), scheme="BIOES") == ["B-Y", "I-Y", "E-Y", "O"]
        assert on_words() == ["O"] * 4


def test_spans_that_do_not_fit_are_widened_with_one_warning() -> None:
    with pytest.warns(SkbertWarning, match=r"2 span\(s\).*row 0, \(1, 7, 'X'\)") as caught:
        assert on_words((1, 7, "X"), (11, 14, "Y")) == ["B-X", "I-X", "O", "B-Y"]
    assert len(caught) == 1


def test_a_word_goes_to_the_first_span_that_touches_it() -> None:
    with pytest.warns(SkbertWarning, match=r"2 span\(s\)"):
        assert on_words((5, 7, "X"), (7, 10, "Y")) == ["O", "B-X", "O", "O"]
    with pytest.warns(SkbertWarning, match=r"1 span\(s\)"):  # between two words
        assert on_words((4, 5, "X")) == ["O"] * 4
