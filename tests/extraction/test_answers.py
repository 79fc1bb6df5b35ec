"""Answers: what y may be, windows over contexts, and the best spans in them."""

from __future__ import annotations

import re
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from conftest import tiny_vocabulary
from support.spans import as_objects, by_hand, pairs
from support.tokenizers import BYTE_LEVEL, UNIGRAM, text_tokenizer
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import TemplateProcessing

from skbert import datasets
from skbert._core.items import Items
from skbert._core.text.tokens import Ragged, TextTokenizer
from skbert._extraction.task import MAX_ANSWERS, Answers, RankedAnswers, best_texts
from skbert._extraction.tuning import best_threshold
from skbert._validation.answers import check_answers
from skbert.datasets import load_questions, load_squad
from skbert.exceptions import InputError, InputTypeError
from skbert.metrics import squad_f1

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CONTEXTS = ["the sea is blue, the sky is grey", "nobody knows", "ten men and ten mules"]


# --- y -------------------------------------------------------------------------------------------

# name: y -> spans and texts of the rows above
FORMS: dict[str, tuple[Any, list[tuple[int, int]], list[list[str]]]] = {
    "texts": (["blue", "", "men"], [(11, 15), (-1, -1), (4, 7)], [["blue"], [], ["men"]]),
    "starts": (
        [("the", 17), "knows", ("ten", 12)],
        [(17, 20), (7, 12), (12, 15)],
        [["the"], ["knows"], ["ten"]],
    ),
    "lists of answers": (
        [["grey", "the sky"], [], [("ten", 0), "two"]],
        [(28, 32), (-1, -1), (0, 3)],
        [["grey", "the sky"], [], ["ten", "two"]],
    ),
    "a list of two texts": (
        [["blue", "grey"], ["", ""], ("men", "mules")],
        [(11, 15), (-1, -1), (4, 7)],
        [["blue", "grey"], [], ["men", "mules"]],
    ),
    "empty answers": (
        [("", 0), [("", -1)], ["", "mules"]],
        [(-1, -1), (-1, -1), (16, 21)],
        [[], [], ["mules"]],
    ),
    "odd but right types": (
        [(np.str_("sea"), np.int32(4)), ["", ["knows", 7]], np.array(["men"], dtype=object)],
        [(4, 7), (7, 12), (4, 7)],
        [["sea"], ["knows"], ["men"]],
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_forms_of_answers(name: str) -> None:
    y, spans, texts = FORMS[name]
    gold = check_answers(y, CONTEXTS)
    assert gold.spans.tolist() == [list(span) for span in spans]
    assert gold.spans.dtype == np.int64
    assert gold.texts == texts
    assert {type(text) for row in gold.texts for text in row} <= {str}


CONTAINERS: dict[str, Callable[[list[Any]], Any]] = {
    "tuple": tuple,
    "object array": as_objects,
    "Series": lambda y: pd.Series(as_objects(y), index=range(9, 9 - len(y), -1)),
    "2-D object array": lambda y: np.array(y, dtype=object),
}


@pytest.mark.parametrize("name", CONTAINERS)
def test_containers_of_answers(name: str) -> None:
    y = [("sea", 4), ("knows", 7), ("ten", 12)]
    got = check_answers(CONTAINERS[name](y), CONTEXTS)
    assert got.spans.tolist() == [[4, 7], [7, 12], [12, 15]]
    whole_floats = [(text, float(start)) for text, start in y]
    assert check_answers(whole_floats, CONTEXTS).spans.tolist() == got.spans.tolist()
    texts = ["sea", "", "men"]
    for hold in (np.array, pd.Series, pd.Index, pl.Series, as_objects, pd.DataFrame, pl.DataFrame):
        assert check_answers(hold(texts), CONTEXTS).texts == [["sea"], [], ["men"]]


def test_the_first_place_may_be_taken() -> None:
    gold = check_answers(["the", "", "ten"], CONTEXTS, on_ambiguous="first")
    assert gold.spans.tolist() == [[0, 3], [-1, -1], [0, 3]]


def test_half_characters_are_replaced_as_in_x() -> None:
    gold = check_answers(["b\ud800c"], ["a b\ufffdc"])
    assert gold.texts == [["b\ufffdc"]]
    assert gold.spans.tolist() == [[2, 5]]


@pytest.mark.parametrize(
    ("y", "error", "words"),
    [
        (None, InputError, ["requires y", "BertSpanExtractor"]),
        ("blue", InputTypeError, ["one entry per row"]),
        ({"a": 1}, InputTypeError, ["one entry per row"]),
        (["blue"], InputError, ["inconsistent numbers of samples", "3 rows"]),
        (["blue", None, None], InputError, ["NaN", "2 missing", "row 1", "''"]),
        (["blue", float("nan"), ""], InputError, ["1 missing", "row 1"]),
        (["blue", pd.NA, ""], InputError, ["1 missing", "row 1"]),
        (["blue", 5, ""], InputTypeError, ["Row 1", "5", "int"]),
        (["blue", b"knows", ""], InputTypeError, ["Row 1", "bytes"]),
        (["blue", ("knows", "7", 7), ""], InputTypeError, ["Row 1", "7"]),
        (["blue", ("knows", 7.5), ""], InputTypeError, ["Row 1", "7.5"]),
        (np.array([("blue", 11), ("knows", 7), ("ten", 12)]), InputTypeError, ["2-D", "zip("]),
        (["blue", ("knows", True), ""], InputTypeError, ["Row 1", "True"]),
        (["blue", [None], ""], InputTypeError, ["Row 1", "None"]),
        (
            [{"text": ["blue"], "answer_start": [11]}, "", ""],
            InputTypeError,
            ["Row 0", "zip(a['text'], a['answer_start'])"],
        ),
        (
            pd.DataFrame({"answer": ["a", "b", "c"], "answer_start": [1, 2, 3]}),
            InputTypeError,
            ["frame", "zip(y['answer'], y['answer_start'])"],
        ),
        (
            ["blue", " \n", "\t"],
            InputError,
            ["2 answer(s) that are only white space", "row 1", "row 2"],
        ),
        (["blue", "Nobody", "six"], InputError, ["2 answer(s)", "not in", "row 1 ('Nobody')"]),
        ([("blue", 12), "", ("men", 99)], InputError, ["2 answer", "row 0", "'lue,'", "at 11"]),
        ([("blue", 99), "", ""], InputError, ["start is 99", "32 characters", "at 11"]),
        ([("blue", -21), "", ""], InputError, ["start is -21", "32 characters"]),
        (
            ["the", "", "ten"],
            InputError,
            ["2 answer(s)", "row 0 ('the', 2 times)", "row 2 ('ten', 2", "on_ambiguous='first'"],
        ),
    ],
)
def test_bad_answers(y: Any, error: type[Exception], words: list[str]) -> None:
    with pytest.raises(error) as caught:
        check_answers(y, CONTEXTS)
    for word in words:
        assert word in str(caught.value)


def test_answers_that_overlap_are_ambiguous() -> None:
    with pytest.raises(InputError, match=r"row 0 \('ana', 2 times\)"):
        check_answers(["ana"], ["banana"])


def test_bundled_questions_and_squad_files_fit_as_they_are() -> None:
    X, y = load_questions(return_X_y=True)
    _, golds = load_squad(Path(datasets.__file__).parent / "data" / "questions.json")
    contexts = X["context"].tolist()
    one, several = check_answers(y, contexts), check_answers(golds, contexts)
    assert 0 < (one.spans[:, 0] < 0).sum() < len(X)
    np.testing.assert_array_equal(one.spans, several.spans)
    for context, (begin, end), texts in zip(contexts, one.spans, one.texts, strict=True):
        assert [context[begin:end]] == texts if texts else begin == -1


def test_only_the_first_bad_rows_are_listed() -> None:
    with pytest.raises(InputError, match=r"8 answer.*row 4 \('no'\), \.\.\.\. An") as caught:
        check_answers(["no"] * 8, ["yes"] * 8)
    assert "row 5" not in str(caught.value)


# --- tokens and windows --------------------------------------------------------------------------

ACCENTS = "cafe\u0301 na\u00efve u\u0308ber \u00c5ngstro\u0308m \u1ec7t e\u0323\u0302t".split()
SCRIPTS = (
    "\u5317\u4eac \u6771\u4eac\u90fd \u0634\u0645\u0633 \u05e9\u05dc\u05d5\u05dd caf\u00e9".split()
)
EMOJI = [
    "\U0001f600",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "\U0001f44d\U0001f3fd",
    "\u2764\ufe0f",
    "\U0001f1e9\U0001f1ea",
]
SIGNS = [
    "$5",
    "don't",
    "x-y",
    "3.14",
    "(a)",
    "\u20ac9",
    "a\u200bb",
    "\x07bell",
    "zero\x00",
    "\ufeffbom",
]
PLAIN = "the good bad film service room unknowable zq order 2024".split()
GAPS = [" ", " ", " ", "  ", "\n", "\t ", "\u00a0", "\u3000", " \x01 ", ", ", ". "]


def tokenizer(*, lowercase: bool) -> TextTokenizer:
    vocabulary = tiny_vocabulary()
    for sign in "\u5317\u4eac\u6771":  # the rest is unknown
        vocabulary[sign] = len(vocabulary)
    backend = Tokenizer(WordPiece(vocabulary, unk_token="[UNK]"))
    backend.normalizer = BertNormalizer(lowercase=lowercase)
    backend.pre_tokenizer = BertPreTokenizer()
    backend.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(name, vocabulary[name]) for name in ("[CLS]", "[SEP]")],
    )
    return TextTokenizer(backend)


LOWER, CASED = tokenizer(lowercase=True), tokenizer(lowercase=False)
EVERY_KIND = pytest.mark.parametrize(
    "text", [LOWER, CASED, *map(text_tokenizer, (*BYTE_LEVEL, *UNIGRAM))],
    ids=["lower", "cased", *BYTE_LEVEL, *UNIGRAM],
)  # fmt: skip


def encoded(question: str, context: str, span: tuple[int, int] = (-1, -1), **task: Any) -> Items:
    task = {"max_length": 128, **task}
    return Answers(**task).encode(pairs([question], [context]), np.array([span]), LOWER)


def contexts_with_answers(n: int) -> Iterator[tuple[str, int, int]]:
    """Random contexts of words, and the start and end of some of these words."""
    rng = np.random.default_rng(0)
    words = PLAIN + ACCENTS + SCRIPTS + EMOJI + SIGNS
    for _ in range(n):
        chosen = rng.choice(len(words), rng.integers(1, 120)).tolist()
        parts, places, at = [], [], 0
        for index in chosen:
            gap = GAPS[rng.integers(len(GAPS))] if parts else ""
            places.append((at + len(gap), at + len(gap) + len(words[index])))
            parts += [gap, words[index]]
            at = places[-1][1]
        first = int(rng.integers(len(chosen)))
        last = min(first + int(rng.integers(1, 6)), len(chosen)) - 1
        yield "".join(parts), places[first][0], places[last][1]


def planted(items: Items, sample: int) -> set[tuple[int, int]]:
    """The places that the windows of a sample point at, without "no answer"."""
    assert isinstance(items.targets, Ragged)
    assert items.places is not None
    found = set()
    for item in np.flatnonzero(items.samples == sample).tolist():
        targets, places = items.targets[item], items.places[item]
        assert (targets.sum(axis=0) == 1).all()
        first, last = targets.argmax(axis=0).tolist()
        if first or last:
            assert 0 < first <= last
            found.add((int(places[first, 0]), int(places[last, 1])))
        else:
            assert places[0].tolist() == [-1, -1]
    return found


@pytest.mark.parametrize("text", [LOWER, CASED], ids=["lower", "cased"])
def test_flags_joiners_and_leading_marks_are_whole(text: TextTokenizer) -> None:
    flag = "\U0001f3f4" + "".join(chr(0xE0000 + ord(letter)) for letter in "gbeng\x7f")
    for answer in (flag, "e\u0301\u200d", "\u0301abc", "a\ufe0f"):
        context = f"the {answer} end"
        _, places, _ = text.pieces_with_offsets([context])
        starts, ends = places[0].T.tolist()
        assert 4 in starts, answer
        assert 4 + len(answer) in ends, answer


@EVERY_KIND
@pytest.mark.long
def test_every_planted_answer_is_reached(text: TextTokenizer) -> None:
    is_usual = text in (LOWER, CASED)  # the others make a piece of every few bytes
    rows = list(contexts_with_answers(2000 if is_usual else 300))
    contexts = [context for context, _, _ in rows]
    spans = np.array([span for _, *span in rows])
    told = [context[begin:end] for context, begin, end in rows]
    task = Answers(max_length=48 if is_usual else 160)
    items = task.encode(pairs(["what is good?"] * len(rows), contexts), spans, text)
    assert items.tokens.lengths.max() == task.max_length
    assert items.n_truncated == 0
    _, places, _ = text.pieces_with_offsets(contexts)
    aligned = 0
    owned = Ragged.of(np.arange(len(items)), np.bincount(items.samples))
    for row, (context, begin, end) in enumerate(rows):
        found = planted(items.take(owned[row]), row)
        assert len(found) == 1, (context, told[row])
        ((first, last),) = found
        starts, ends = places[row].T.tolist()
        if begin in starts and end in ends:
            aligned += 1
            assert context[first:last] == told[row]
        else:  # control characters at its edge, or a token that goes on
            assert first < end
            assert last > begin
    assert aligned > 0.75 * len(rows)


def test_a_row_is_a_question_and_a_window() -> None:
    context = " ".join(f"w{i}" for i in range(60))
    begin = context.index("w30")
    items = encoded("is it good?", context, (begin, begin + 3), max_length=48, stride=10)
    ids, places, _ = LOWER.pieces_with_offsets([context])
    question = LOWER.pieces(["is it good?"])[0].tolist()
    head, tail = [*LOWER.prefix, *question, *LOWER.middle], list(LOWER.suffix)
    room = 48 - len(head) - len(tail)
    begins, covered = [], set()
    assert items.places is not None
    for row in range(len(items)):
        tokens, where = items.tokens.ids[row].tolist(), items.places[row]
        assert tokens[: len(head)] == head
        assert tokens[len(tokens) - 1 :] == tail
        assert len(tokens) == 48
        assert items.tokens.second[row] == len(head)
        assert (where[: len(head)] == -1).all()
        assert (where[-1] == -1).all()
        inside = where[len(head) : -1]
        at = places[0].tolist().index(inside[0].tolist())
        assert inside.tolist() == places[0][at : at + room].tolist()
        assert tokens[len(head) : -1] == ids[0][at : at + room].tolist()
        begins.append(at)
        covered |= set(range(at, at + room))
    assert covered == set(range(len(ids[0])))
    steps = np.diff(begins)
    assert (steps[:-1] == room - 10).all()
    assert 0 < steps[-1] <= room - 10
    assert items.samples.tolist() == [0] * len(items)
    np.testing.assert_allclose(items.weights, 1 / len(items))


@pytest.mark.parametrize(("stride", "shared"), [(None, 17), (0, 0), (5, 5), (17, 17), (18, 17)])
def test_windows_share_the_stride(stride: int | None, shared: int) -> None:
    context = "good " * 200
    items = encoded("", context, max_length=38, stride=stride)  # 35 tokens of context
    assert items.places is not None
    firsts = [int(items.places[row][2, 0]) // 5 for row in range(len(items))]
    assert (np.diff(firsts)[:-1] == 35 - shared).all()
    assert firsts[-1] == 200 - 35
    wide = encoded("", context, max_length=400, stride=stride)
    assert len(wide) == 1


def test_the_default_stride_is_128() -> None:
    items = encoded("", "good " * 1000, max_length=387)
    assert items.places is not None
    firsts = [int(items.places[row][2, 0]) // 5 for row in range(len(items))]
    assert firsts == [0, 256, 512, 616]


def test_a_window_without_all_of_the_answer_points_at_its_first_token() -> None:
    context = " ".join(["good", "bad"] * 50)
    begin = context.index("bad")  # windows: tokens 0 to 19, 10 to 29, ...
    end = begin + len("bad good bad")
    found = encoded("", context, (begin + 14 * 9, end + 14 * 9), max_length=23)
    assert isinstance(found.targets, Ragged)
    pointed = np.array([found.targets[i].argmax(axis=0) for i in range(len(found))])
    assert (pointed.any(axis=1).sum(), len(found)) == (1, 9)
    assert not np.array([encoded("", context, max_length=23).targets[i][1:]
                         for i in range(9)]).any()  # fmt: skip


def test_an_answer_between_windows_has_one_of_its_own() -> None:
    context = "good " * 60
    span = (5 * 15, 5 * 35 - 1)  # 20 tokens, as many as fit
    items = encoded("", context, span, max_length=23, stride=2)
    assert len(items) == len(encoded("", context, max_length=23, stride=2)) + 1
    assert planted(items, 0) == {span}
    assert (np.diff([items.places[i][2, 0] for i in range(len(items))]) > 0).all()


def test_of_an_answer_longer_than_a_window_the_start_is_learned() -> None:
    items = encoded("", "good " * 60, (5 * 7, 5 * 50), max_length=23)
    assert planted(items, 0) == {(5 * 7, 5 * 27 - 1)}
    at_the_end = encoded("", "good " * 60, (5 * 30, 5 * 60), max_length=23)
    assert planted(at_the_end, 0) == {(5 * 30, 5 * 50 - 1)}


@pytest.mark.parametrize("n_words", [1, 5, 50, 5000])
@pytest.mark.parametrize(("max_length", "left"), [(4, 1), (8, 3), (23, 10), (131, 64), (400, 64)])
def test_a_long_question_leaves_room(max_length: int, left: int, n_words: int) -> None:
    question = "good " * 5000
    items = encoded(question, "bad " * n_words, max_length=max_length)
    assert items.n_truncated == 1
    assert items.places is not None
    room = (items.places.values[:, 0] >= 0).sum() / len(items)
    assert room == min(left, n_words)
    assert (items.tokens.lengths == max_length).all()


def test_a_question_that_fits_is_left_alone() -> None:
    items = encoded("good " * 85, "bad " * 40, max_length=128)
    assert (items.n_truncated, len(items), items.tokens.lengths.tolist()) == (0, 1, [128])
    items = encoded("good " * 85, "bad " * 41, max_length=128)
    assert items.n_truncated == 1


def test_empty_texts() -> None:
    items = encoded("", "")
    assert items.tokens.lengths.tolist() == [3]
    items = encoded("good", "", max_length=4)
    assert (items.tokens.lengths.tolist(), items.n_truncated) == ([4], 0)
    found = Answers(128).decode(Ragged(np.ones((4, 2)), np.array([0, 4])), items)
    assert len(found[0].scores) == 0
    assert best_texts(found, [""], np.inf).tolist() == [""]
    assert encoded("good " * 9, "", max_length=4).n_truncated == 1


def test_distinct_texts_are_tokenised_once() -> None:
    class Counting:
        prefix, middle, suffix = LOWER.prefix, LOWER.middle, LOWER.suffix
        seen: dict[str, list[str]]

        def __init__(self) -> None:
            self.seen = {}

        def n_specials(self, *, pair: bool) -> int:
            return LOWER.n_specials(pair=pair)

        def pieces(self, texts: list[str], room: int) -> Ragged:
            self.seen["pieces"] = texts
            return LOWER.pieces(texts, room)

        def pieces_with_offsets(self, texts: list[str]) -> Any:
            self.seen["located"] = texts
            return LOWER.pieces_with_offsets(texts)

    questions, contexts = ["who?", "where?", "who?", "when?"], ["a b", "a b", "c d", "a b"]
    counting: Any = Counting()
    items = Answers(128).encode(pairs(questions, contexts), None, counting)
    assert counting.seen == {"pieces": ["who?", "where?", "when?"], "located": ["a b", "c d"]}
    assert items.targets is None
    for row in range(4):
        alone = Answers(128).encode(pairs(questions[row : row + 1], contexts[row : row + 1]),
                                    None, LOWER)  # fmt: skip
        assert items.tokens.ids[row].tolist() == alone.tokens.ids[0].tolist()
        assert items.places is not None
        assert alone.places is not None
        assert items.places[row].tolist() == alone.places[0].tolist()


def test_part_of_a_word_is_learned_as_the_tokens_around_it() -> None:
    context = "a good-natured unknowable\u2603\u2603 film"
    for answer, told in {
        "goo": "good", "ood-n": "good-n", "\u2603": "unknowable\u2603\u2603", "film": "film",
    }.items():  # fmt: skip
        begin = context.index(answer)
        ((first, last),) = planted(encoded("", context, (begin, begin + len(answer))), 0)
        assert context[first:last] == told


def test_an_answer_that_the_tokenizer_drops() -> None:
    with pytest.raises(InputError, match=r"1 answer.*drops.*rows \[1\]"):
        Answers(128).encode(
            pairs(["", ""], ["good", "good \x01\x02 bad"]), np.array([[0, 4], [5, 7]]), LOWER
        )


# --- the best spans ------------------------------------------------------------------------------


def windowed(rng: np.random.Generator, n_words: int, max_length: int) -> tuple[Items, Ragged, str]:
    context = " ".join(rng.choice(["good", "bad", "zqx"], n_words))
    items = encoded("is it?", context, max_length=max_length)
    logits = rng.normal(size=(len(items.tokens.ids.values), 2)).astype(np.float32)
    return items, Ragged(logits, items.tokens.ids.starts), context


@pytest.mark.parametrize("longest", [1, 2, 7, 30, 1000])
@pytest.mark.parametrize("n_words", [1, 2, 6, 25, 90])
def test_the_best_spans_are_those_of_brute_force(n_words: int, longest: int) -> None:
    rng = np.random.default_rng(n_words)
    items, outputs, context = windowed(rng, n_words, 24)
    found: RankedAnswers = Answers(24, max_answer_length=longest).decode(outputs, items)[0]
    spans, null = by_hand(items, outputs, longest)
    wanted = sorted(spans, key=spans.__getitem__, reverse=True)[:MAX_ANSWERS]
    assert [tuple(span) for span in found.spans.tolist()] == wanted
    np.testing.assert_allclose(found.scores, [spans[span] for span in wanted])
    assert found.null == pytest.approx(null)
    begin, end = wanted[0]
    assert best_texts(as_objects([found]), [context], np.inf)[0] == context[begin:end]


def test_a_span_in_many_windows_comes_once_with_its_best_score() -> None:
    items = encoded("", "good " * 100, max_length=23, stride=10)
    logits = np.full((len(items.tokens.ids.values), 2), -1.0)
    assert items.places is not None
    rows = np.flatnonzero(items.places.values[:, 0] == 5 * 50)
    assert len(rows) == 2
    logits[rows] = [[3, 4], [1, 9]]
    found = Answers(23).decode(Ragged(logits, items.tokens.ids.starts), items)[0]
    assert found.spans[0].tolist() == [250, 254]
    assert found.scores[0] == 10
    assert len(np.unique(found.spans, axis=0)) == len(found.spans) == MAX_ANSWERS
    other = Answers(23, max_answer_length=1).decode(
        Ragged(logits, items.tokens.ids.starts), items)[0]  # fmt: skip
    assert (other.scores == [10, *[-2] * 19]).all()


def test_the_longest_answer_costs_no_more_than_a_window() -> None:
    rng = np.random.default_rng(0)
    items = encoded("", "good " * 3000, max_length=38)
    values = rng.standard_normal((len(items.tokens.ids.values), 2))
    logits = Ragged(values, items.tokens.ids.starts)
    tracemalloc.start()
    wide = Answers(38, max_answer_length=10**9).decode(logits, items)[0]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 5e7  # 3e8, were all pairs of tokens looked at
    np.testing.assert_array_equal(
        wide.spans, Answers(38, max_answer_length=38).decode(logits, items)[0].spans
    )


def test_samples_are_kept_apart() -> None:
    rng = np.random.default_rng(0)
    contexts = [" ".join(rng.choice(["good", "bad"], n)) for n in (40, 0, 3, 60)]
    task = Answers(24)
    items = task.encode(pairs(["why?"] * 4, contexts), None, LOWER)
    logits = rng.normal(size=(len(items.tokens.ids.values), 2))
    outputs = Ragged(logits, items.tokens.ids.starts)
    found = task.decode(outputs, items)
    assert len(found) == 4
    for sample in range(4):
        own = np.flatnonzero(items.samples == sample)
        (alone,) = task.decode(outputs.take(own), items.take(own))
        np.testing.assert_array_equal(alone.spans, found[sample].spans)
        np.testing.assert_array_equal(alone.scores, found[sample].scores)
        assert alone.null == found[sample].null
    later = task.decode(outputs.take(own), items.take(own))  # of rows held out
    assert later[0].null == found[3].null


def test_equal_scores_come_in_the_order_of_the_text() -> None:
    items = encoded("", "good bad good")
    logits = np.zeros((len(items.tokens.ids.values), 2))
    found = Answers(128).decode(Ragged(logits, items.tokens.ids.starts), items)[0]
    assert found.spans.tolist() == [[0, 4], [0, 8], [0, 13], [5, 8], [5, 13], [9, 13]]


# --- thresholds ----------------------------------------------------------------------------------


def ahead(*differences: float) -> np.ndarray:
    """Rows whose one answer is their whole context, with "no answer" ahead by so much."""
    return as_objects(
        [RankedAnswers(np.array([[0, 1]]), np.array([1.0]), 1.0 + each) for each in differences]
    )


def test_no_answer_beyond_the_threshold() -> None:
    found = ahead(-1.0, 0.0, 0.5, 2.0)
    assert best_texts(found, list("abcd"), 0.5).tolist() == ["a", "b", "c", ""]
    assert best_texts(found, list("abcd"), np.inf).tolist() == list("abcd")
    assert best_texts(found, list("abcd"), -np.inf).tolist() == [""] * 4


def test_the_best_threshold_is_that_of_a_search() -> None:
    rng = np.random.default_rng(1)
    for n_rows in (1, 2, 5, 30):
        differences = rng.normal(size=n_rows).round(1)
        found, contexts = ahead(*differences), ["x"] * n_rows
        golds = [[["x"], [], ["x y"]][i] for i in rng.integers(3, size=n_rows)]

        def f1(threshold: float) -> float:
            return squad_f1(golds, best_texts(found, contexts, threshold))  # noqa: B023

        best = best_threshold(found, contexts, golds)
        assert f1(best) == pytest.approx(max(map(f1, np.arange(-4.05, 4, 0.1))))


def test_of_equal_thresholds_the_nearest_to_zero() -> None:
    golds = [["x"], ["x"], []]
    assert best_threshold(ahead(-3.0, -1.0, 4.0), ["x"] * 3, golds) == 1.5
    assert best_threshold(ahead(-3.0, -1.0), ["x"] * 2, [["x"], ["x"]]) == 0.0
    assert best_threshold(ahead(3.0, 1.0), ["x"] * 2, [[], []]) == 0.0
    nothing = as_objects([RankedAnswers(np.empty((0, 2), int), np.empty(0), 1.0)])
    assert best_threshold(nothing, [""], [[]]) == 0.0


def test_messages_have_no_line_breaks() -> None:
    with pytest.raises(InputError) as caught:
        check_answers(["no\nway"], ["yes\nindeed"])
    assert not re.search(r"\n", str(caught.value))
