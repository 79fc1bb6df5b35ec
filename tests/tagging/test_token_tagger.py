"""The tagger: one tag per word however long the row, spans in texts, against transformers."""

from __future__ import annotations

import copy
import json
import pickle
import unicodedata
import warnings
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from sklearn import config_context
from sklearn.base import clone, is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import (
    GridSearchCV,
    KFold,
    cross_val_predict,
    cross_val_score,
    cross_validate,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from transformers import (
    AutoModelForTokenClassification,
    AutoTokenizer,
    BertConfig,
    BertForTokenClassification,
    BertTokenizerFast,
)

from skbert import BertTokenTagger
from skbert._core.batches import collate
from skbert._core.checkpoints.vet import vet
from skbert._core.items import Items
from skbert._core.models.network import Network
from skbert._core.models.opening import open_network
from skbert._core.runtime.device import seeded
from skbert._core.text.tokens import Ragged
from skbert._tagging.schemes import convert
from skbert._tagging.task import WordTags
from skbert._validation.words import WordRows
from skbert.exceptions import InputError, InputTypeError, SkbertWarning
from skbert.metrics import entity_f1, entity_report

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

LEARNS = {"epochs": 4, "learning_rate": 3e-3, "head_learning_rate": 1e-2}
CPU = torch.device("cpu")


def tagger(model: Path, **params: Any) -> BertTokenTagger:
    plain = {"epochs": 1, "device": "cpu", "precision": "float32", "random_state": 0}
    return BertTokenTagger(model, **{**plain, **params})


def sentences() -> tuple[list[list[str]], list[list[str]]]:
    """Forty rows with things, of one word or two, and people: all of them known by the word."""
    things, people = "phone room book film".split(), "staff we they you".split()
    X, y = [], []
    for row in range(40):
        thing, person = things[row % 4], people[row // 4 % 4]
        if row % 3:
            X.append(["the", thing, "order", "is", "good", "and", person, "love", "it"])
            y.append(["O", "B-THING", "I-THING", "O", "O", "O", "B-WHO", "O", "O"])
        else:
            X.append(["i", "hate", "the", thing, ",", person, person])
            y.append(["O", "O", "O", "B-THING", "O", "B-WHO", "B-WHO"])
    return X, y


X, Y = sentences()
COMBINED = "the Pho\u0301ne\u0301, 👩\u200d👧 and WE\u0300"
TAGS = ["B-THING", "B-WHO", "I-THING", "O"]


def told_in(scheme: str) -> list[list[str]]:
    return [convert(tags, scheme) for tags in Y]


def texts_and_spans() -> tuple[list[str], list[list[tuple[int, int, str]]]]:
    """The same rows as texts."""
    texts, spans = [], []
    for words, tags in zip(X, Y, strict=True):
        starts = np.cumsum([0] + [len(word) + 1 for word in words])
        ends = starts[1:] - 1
        text, found = " ".join(words), []
        for word, tag in enumerate(tags):
            if tag.startswith("B"):
                last = word + 1 if tags[word + 1 : word + 2] == ["I-THING"] else word
                found.append((int(starts[word]), int(ends[last]), tag[2:]))
        texts.append(text)
        spans.append(found)
    return texts, spans


TEXTS, SPANS = texts_and_spans()


def objects(rows: Sequence[Any]) -> np.ndarray:
    found = np.empty(len(rows), object)
    for row, value in enumerate(rows):
        found[row] = value
    return found


def assert_equal_rows(got: Sequence[Any], want: Sequence[Any]) -> None:
    assert len(got) == len(want)
    for one, other in zip(got, want, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.fixture(scope="module")
def fitted(tiny_model: Path) -> BertTokenTagger:
    """A tagger that knows the sentences."""
    return tagger(tiny_model, **LEARNS).fit(X, Y)


# --- what it learns and gives --------------------------------------------------------------------


def test_learns_and_gives_lists_of_tags(fitted: BertTokenTagger) -> None:
    predicted = fitted.predict(X)
    assert (predicted.dtype, predicted.shape) == (object, (40,))
    assert predicted.tolist() == Y
    assert {type(row) for row in predicted} == {list}
    assert {type(tag) for row in predicted for tag in row} == {str}
    assert fitted.classes_.tolist() == TAGS
    assert fitted.scheme_ == "IOB2"
    assert fitted.score(X, Y) == 1.0
    assert (fitted.n_iter_, len(fitted.history_), fitted.n_truncated_) == (4, 4, 0)


def test_rows_of_equal_length_stay_a_column(fitted: BertTokenTagger) -> None:
    even = [row[:7] for row in X]
    for predicted in (fitted.predict(even), fitted.predict_proba(even)):
        assert (predicted.dtype, predicted.shape) == (object, (40,))


@pytest.mark.parametrize(
    "hold",
    [
        tuple,
        objects,
        pd.Series,
        lambda rows: pd.Series([*map(tuple, rows)], index=range(40, 0, -1)),
        lambda rows: [np.array(row) for row in rows],
        lambda rows: pd.DataFrame({"words": rows}),
        lambda rows: pl.Series("words", rows),
    ],
)
def test_containers_do_not_matter(hold: Any, tiny_model: Path) -> None:
    expected = tagger(tiny_model).fit(X, Y).predict_proba(X)
    y = Y if "DataFrame" in type(hold(Y)).__name__ else hold(Y)
    assert_equal_rows(tagger(tiny_model).fit(hold(X), y).predict_proba(hold(X)), expected)


def test_probabilities(fitted: BertTokenTagger) -> None:
    probabilities = fitted.predict_proba(X[:5])
    for words, found in zip(X, probabilities, strict=False):
        assert (found.shape, found.dtype) == ((len(words), 4), np.float32)
        np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-6)
    best = [[TAGS[code] for code in found.argmax(axis=1)] for found in probabilities]
    assert best == Y[:5]
    double = clone(fitted).set_params(precision="float64").fit(X, Y).predict_proba(X[:1])[0]
    assert double.dtype == np.float64


@pytest.mark.parametrize("scheme", ["IOB1", "IOB2", "BIOES", "IO"])
def test_predictions_come_back_in_the_scheme_of_y(scheme: str, tiny_model: Path) -> None:
    y = told_in(scheme)
    fitted = tagger(tiny_model, **LEARNS).fit(X, y)
    assert fitted.scheme_ == scheme
    assert fitted.learned_scheme_ == {"IOB1": "IOB2"}.get(scheme, scheme)
    learned = told_in(fitted.learned_scheme_)
    assert fitted.classes_.tolist() == sorted({tag for row in learned for tag in row})
    assert fitted.score(X, y) == (1.0 if scheme == "IOB1" else pytest.approx(1, abs=0.1))
    for tags in fitted.predict(X):
        assert convert(tags, scheme) == tags
    assert fitted.score(X, y) == entity_f1(y, fitted.predict(X))


def test_a_scheme_may_be_named(tiny_model: Path) -> None:
    fitted = tagger(tiny_model, scheme="IOB1").fit(X[:3], told_in("IOB1")[:3])
    assert fitted.scheme_ == "IOB1"
    with pytest.warns(SkbertWarning, match=r"tag\(s\) of y do not follow the scheme IOB2"):
        assert tagger(tiny_model, scheme="IOB2").fit(X, told_in("IOB1")).classes_.tolist() == TAGS
    with pytest.raises(InputError, match=r"row 0 of y.*'B-THING'.*IO"):
        tagger(tiny_model, scheme="IO").fit(X, [["B-THING"] * len(row) for row in X])
    with pytest.raises(ValueError, match="'scheme' parameter"):
        tagger(tiny_model, scheme="BILOU").fit(X, Y)


def test_rows_that_break_their_scheme_are_learned_as_score_reads_them(tiny_model: Path) -> None:
    broken = [[tag.replace("B-WHO", "I-WHO") for tag in row] for row in Y]
    with pytest.warns(SkbertWarning, match="IOB2") as caught:
        fitted = tagger(tiny_model, **LEARNS).fit(X, broken)
    assert len(caught) == 1
    broken_off = sum(
        tag == "I-WHO" and before != "I-WHO"
        for row in broken
        for before, tag in pairwise(["O", *row])
    )
    assert str(caught[0].message).startswith(f"{broken_off} tag(s) of y")
    assert fitted.score(X, broken) == entity_f1(broken, fitted.predict(X)) > 0.8


def test_plain_tags(tiny_model: Path) -> None:
    kinds = {"O": "REST", "B-THING": "NOUN", "I-THING": "NOUN", "B-WHO": "PRON"}
    y = [[kinds[tag] for tag in row] for row in Y]
    fitted = tagger(tiny_model, **LEARNS).fit(X, y)
    assert fitted.scheme_ is None
    assert fitted.classes_.tolist() == ["NOUN", "PRON", "REST"]
    assert fitted.score(X, y) == 1.0
    wrong = [["NOUN", *row[1:]] for row in y]
    n_words = sum(map(len, y))
    assert fitted.score(X, wrong) == pytest.approx((n_words - 40) / n_words)
    weights = np.arange(40.0)
    lengths = np.array([len(row) for row in y])
    expected = ((lengths - 1) * weights).sum() / (lengths * weights).sum()
    assert fitted.score(X, wrong, sample_weight=weights) == pytest.approx(expected)
    assert fitted.score(X, [["NEVER SEEN"] * len(row) for row in X]) == 0.0
    spans = fitted.predict_spans(X[:1])
    assert spans["label"].tolist() == y[0]
    assert spans["end"].tolist() == [1, 2, 3, 4, 5, 6, 7]
    best = [row.max() for row in fitted.predict_proba(X[:1])[0]]
    np.testing.assert_allclose(spans["score"], best, rtol=1e-6)
    assert fitted.predict(["the phone"])[0] == [(0, 3, "REST"), (4, 9, "NOUN")]
    with pytest.raises(InputError, match="cannot mark spans"):
        tagger(tiny_model, scheme=None).fit(TEXTS, SPANS)


def test_one_tag_for_everything(tiny_model: Path) -> None:
    fitted = tagger(tiny_model).fit(X, [["O"] * len(row) for row in X])
    assert fitted.predict(X[:2]).tolist() == [["O"] * 7, ["O"] * 9]
    assert fitted.predict_spans(X).empty


def test_viterbi_and_argmax(fitted: BertTokenTagger) -> None:
    keen = copy.deepcopy(fitted).set_params(decoding="argmax")
    with torch.no_grad():
        keen.model_.classifier.bias[TAGS.index("I-THING")] += 50.0
    assert keen.predict(X[:1])[0] == ["I-THING"] * 7
    assert keen.predict_spans(X[:1])[["start", "end"]].to_numpy().tolist() == [[0, 7]]
    best = keen.set_params(decoding="viterbi").predict(X)
    assert best[0] == ["B-THING"] + ["I-THING"] * 6
    assert [convert(row, "IOB2") for row in best] == best.tolist()


def test_learns_on_every_device(device: str, tiny_model: Path) -> None:
    fitted = tagger(tiny_model, device=device, **LEARNS).fit(X, Y)
    assert fitted.score(X, Y) > 0.9
    assert fitted.model_.device.type == device


# --- spans ---------------------------------------------------------------------------------------


def test_texts_are_told_in_characters(tiny_model: Path) -> None:
    fitted = tagger(tiny_model, **LEARNS).fit(TEXTS, SPANS)
    assert fitted.classes_.tolist() == ["B-THING", "B-WHO", "I-THING", "I-WHO", "O"]
    predicted = fitted.predict(TEXTS)
    assert (predicted.dtype, predicted.shape) == (object, (40,))
    assert predicted.tolist() == SPANS
    assert {type(part) for row in predicted for span in row for part in span} == {int, str}
    assert fitted.score(TEXTS, SPANS) == 1.0
    assert fitted.score(TEXTS, [spans[1:] for spans in SPANS]) < 1
    assert fitted.predict(X).tolist() == Y  # one that learned from texts reads words, too


@pytest.mark.parametrize("scheme", ["IOB1", "BIOES", "IO"])
def test_texts_in_other_schemes(scheme: str, tiny_model: Path) -> None:
    fitted = tagger(tiny_model, scheme=scheme, **LEARNS).fit(TEXTS[1:3], SPANS[1:3])
    assert fitted.scheme_ == scheme
    assert len(fitted.classes_) == {"IOB1": 5, "BIOES": 9, "IO": 3}[scheme]
    assert fitted.predict(TEXTS[1:2]).tolist() == SPANS[1:2]


def test_one_that_learned_from_words_reads_texts(fitted: BertTokenTagger) -> None:
    assert fitted.predict(TEXTS).tolist() == SPANS
    assert fitted.score(TEXTS, SPANS) == 1.0
    assert_equal_rows(fitted.predict_proba(TEXTS), fitted.predict_proba(X))
    frame = fitted.predict_spans(TEXTS)
    assert list(frame.columns) == ["row", "start", "end", "label", "score", "text"]
    told = [
        (row, *span, TEXTS[row][slice(*span[:2])])
        for row, spans in enumerate(SPANS)
        for span in spans
    ]
    columns = ["row", "start", "end", "label", "text"]
    assert [*frame[columns].itertuples(index=False, name=None)] == told
    assert frame["score"].between(0.5, 1).all()


def test_the_words_of_a_text_are_the_tokenizers(fitted: BertTokenTagger) -> None:
    texts = ["it's the Phone-order, xyz!", COMBINED, "日本 i"]
    for text, found in zip(texts, fitted.predict_proba(texts), strict=True):
        numbers = fitted.tokenizer_(text).word_ids()[1:-1]
        assert [*range(len(found))] == list(dict.fromkeys(numbers))


def test_spans_of_words(fitted: BertTokenTagger) -> None:
    frame = fitted.predict_spans([[], *X[:2]])
    assert frame.drop(columns="score").to_numpy().tolist() == [
        [1, 3, 4, "THING", "phone"],
        [1, 5, 6, "WHO", "staff"],
        [1, 6, 7, "WHO", "staff"],
        [2, 1, 3, "THING", "room order"],
        [2, 6, 7, "WHO", "staff"],
    ]
    assert [str(frame[name].dtype) for name in ("row", "start", "end", "score")] == [
        "int64", "int64", "int64", "float64"]  # fmt: skip
    nothing = fitted.predict_spans([["it"]])
    assert nothing.empty
    assert nothing.dtypes.to_dict() == frame.dtypes.to_dict()


def test_labels_with_lone_surrogates_stay_as_they_are(tiny_model: Path) -> None:
    tags = [[tag.replace("THING", "TH\ud800NG") for tag in row] for row in Y]
    fitted = tagger(tiny_model, **LEARNS).fit(X, tags)
    predicted = fitted.predict(X[:2]).tolist()
    assert predicted == tags[:2]
    labels = fitted.predict_spans(X[:2])["label"].tolist()
    assert labels == ["TH\ud800NG", "WHO", "WHO", "TH\ud800NG", "WHO"]
    assert entity_report(tags[:2], predicted).loc["TH\ud800NG", "f1"] == 1.0


def test_the_score_of_a_span_is_that_of_all_sequences_with_it(fitted: BertTokenTagger) -> None:
    unsure = copy.deepcopy(fitted)
    with torch.no_grad():
        unsure.model_.classifier.weight *= 0.3
    row = ["the", "phone", "order", "staff"]
    (chances,) = unsure.predict_proba([row])
    total, found = 0.0, {}
    for codes in np.ndindex(4, 4, 4, 4):
        tags = [TAGS[code] for code in codes]
        if convert(tags, "IOB2") != tags:
            continue
        share = chances[range(4), codes].prod(dtype=np.float64)
        total += share
        starts = [word for word, tag in enumerate(tags) if tag.startswith("B")]
        for start in starts:
            end = start + 1
            while end < 4 and tags[end] == "I-" + tags[start][2:]:
                end += 1
            key = (start, end, tags[start][2:])
            found[key] = found.get(key, 0.0) + share
    frame = unsure.predict_spans([row])
    assert len(frame)
    for line in frame.itertuples():
        expected = found[line.start, line.end, line.label] / total
        assert line.score == pytest.approx(expected, rel=1e-5)
        assert 0.05 < line.score < 0.999


def test_offsets_are_those_of_the_text_as_given(fitted: BertTokenTagger) -> None:
    found = fitted.predict_spans([COMBINED])
    assert {"Pho\u0301ne\u0301", "WE\u0300"} <= {*found["text"]}
    for form in ("NFC", "NFD"):
        text = unicodedata.normalize(form, COMBINED)
        texts = fitted.predict_spans([text])["text"].tolist()
        assert [unicodedata.normalize("NFD", each) for each in texts] == [*found["text"]]


def test_spans_inside_words_are_widened_with_one_warning(tiny_model: Path) -> None:
    inside = [[(start + 1, end, label) for start, end, label in row] for row in SPANS]
    with pytest.warns(SkbertWarning, match=r"span\(s\) of y do not begin and end") as caught:
        fitted = tagger(tiny_model, **LEARNS).fit(TEXTS, inside)
    assert len(caught) == 1
    assert fitted.predict(TEXTS).tolist() == SPANS
    assert fitted.score(TEXTS, inside) == 1.0


def test_spans_with_parts_of_words_are_right_in_validation(tiny_model: Path) -> None:
    inside = [[(start + 1, end, label) for start, end, label in row] for row in SPANS]
    learner = tagger(tiny_model, **LEARNS, validation_fraction=0.5)
    want = [each["validation_score"] for each in learner.fit(TEXTS * 2, SPANS * 2).history_]
    with pytest.warns(SkbertWarning, match="span") as caught:
        learner.fit(TEXTS * 2, inside * 2)
    assert len(caught) == 1
    got = [each["validation_score"] for each in learner.history_]
    assert got == want
    assert max(got) > 0


# --- long rows, and words of all kinds -----------------------------------------------------------


def opened(model: Path, n_tags: int = 3, dtype: torch.dtype = torch.float32) -> Network:
    with seeded(0, CPU):
        return open_network(vet(model), WordTags(n_tags, 0).head(), dtype=dtype)


def random_rows(lengths: Sequence[int], seed: int = 0) -> list[list[str]]:
    """Words of one to six pieces, and some that give none."""
    rng = np.random.default_rng(seed)
    kinds = ["the", "phone", "xy", "abcd", "qwerty", "", "\u200b", "it's"]
    return [rng.choice(kinds, n).tolist() for n in lengths]


def words_of(items: Items, item: int) -> tuple[list[int], list[int], set[int]]:
    """Numbers of the words in an item, how many pieces each has, and which are read there."""
    places = items.places[item][1:-1]
    numbers, counts = np.unique(places[:, 1], return_counts=True)
    return numbers.tolist(), counts.tolist(), {*places[places[:, 0] >= 0, 0].tolist()}


@pytest.mark.parametrize("max_length", [8, 23, 64, 128])
def test_every_word_is_read_once_where_it_lies_farthest_from_the_edges(
    max_length: int, tiny_model: Path
) -> None:
    tokenizer = opened(tiny_model).text_tokenizer
    rows = random_rows([2000, 0, 1, 150, 40, 7, 22, 21])
    items = WordTags(3, max_length).encode(WordRows(rows, None), None, tokenizer)
    assert items.tokens.lengths.max() <= max_length
    assert (np.diff(items.samples) >= 0).all()
    for sample, words in enumerate(rows):
        windows = [
            words_of(items, item) for item in np.flatnonzero(items.samples == sample).tolist()
        ]
        reach: dict[int, list[int]] = {}
        for numbers, counts, _ in windows:
            assert numbers == [*range(numbers[0], numbers[0] + len(numbers))] if numbers else True
            ends = np.cumsum([0, *counts])
            for number, start, end in zip(numbers, ends[:-1], ends[1:], strict=True):
                reach.setdefault(number, []).append(min(start, ends[-1] - end))
        assert sorted(reach) == [*range(len(words))]
        read = [number for _, _, here in windows for number in sorted(here)]
        assert read == [*range(len(words))]  # each once, in order
        for numbers, counts, here in windows:
            ends = np.cumsum([0, *counts])
            for place, number in enumerate(numbers):
                if number in here:
                    depth = min(ends[place], ends[-1] - ends[place + 1])
                    assert depth == max(reach[number])
        for before, after in pairwise(windows[:-1]):  # the last one reaches back farther
            shared = sum(n for number, n in zip(*before[:2], strict=True) if number in after[0])
            assert (max_length - 2) // 4 - 16 <= shared <= (max_length - 2) // 4


def test_two_thousand_words_get_two_thousand_tags(fitted: BertTokenTagger) -> None:
    words = [word for row in X * 7 for word in row][:2000]
    tags = [tag for row in Y * 7 for tag in row][:2000]
    predicted = fitted.predict([words, words[:1000], ["phone"]])
    assert [*map(len, predicted)] == [2000, 1000, 1]
    right = np.mean([one == other for one, other in zip(predicted[0], tags, strict=True)])
    assert right > 0.95
    text = " ".join(words)
    (spans,) = fitted.predict([text])
    assert len(spans) > 400
    edges = [text[max(start - 1, 0) : start] + text[end : end + 1] for start, end, _ in spans]
    assert {*edges} <= {" ", "  "}


def test_scores_are_those_of_the_window_alone(fitted: BertTokenTagger) -> None:
    (words,) = random_rows([600], seed=1)
    task, network = fitted._fitted.task, fitted._fitted.network
    items = task.encode(WordRows([words], None), None, network.text_tokenizer)
    assert len(items) > 10
    (whole,) = fitted.predict_proba([words])
    for item in range(len(items)):
        numbers, _, here = words_of(items, item)
        (alone,) = fitted.predict_proba([[words[number] for number in numbers]])
        places = [number - numbers[0] for number in sorted(here)]
        np.testing.assert_allclose(whole[sorted(here)], alone[places], atol=1e-5)


def test_learns_from_all_of_a_long_row(tiny_model: Path) -> None:
    words = [[word for row in X for word in row]]
    tags = [[tag for row in Y for tag in row]]
    fitted = tagger(tiny_model, max_length=32, **LEARNS | {"epochs": 30}).fit(words, tags)
    assert fitted.n_truncated_ == 0
    assert fitted.score(words, tags) > 0.9
    assert fitted.score(X, Y) > 0.8


def test_words_that_give_no_piece_are_unknown(fitted: BertTokenTagger) -> None:
    tokenizer = fitted._fitted.network.text_tokenizer
    odd = ["", " ", "\u200b", "\x00", "\u0301", "phone"]
    items = fitted._fitted.task.encode(WordRows([odd, [], ["日本"]], None), None, tokenizer)
    unknown, phone = (tokenizer.backend.token_to_id(word) for word in ("[UNK]", "phone"))
    assert items.tokens.ids[0][1:-1].tolist() == [unknown] * 5 + [phone]
    assert len(items.tokens.ids[1]) == 2
    predicted = fitted.predict([odd, [], ["日本"]])
    assert [*map(len, predicted)] == [6, 0, 1]
    assert fitted.predict(["", "the phone", " ", "it"])[::2].tolist() == [[], []]
    with pytest.warns(SkbertWarning, match="hold no word"):
        assert fitted.predict_proba([[]])[0].shape == (0, 4)
    with pytest.warns(SkbertWarning, match="hold no word"):
        assert fitted.predict([[], []]).tolist() == [[], []]
    with pytest.warns(SkbertWarning, match="empty or whitespace"):
        assert fitted.predict(["", "  "]).tolist() == [[], []]


def test_a_word_of_many_pieces_is_cut(tiny_model: Path) -> None:
    tokenizer = opened(tiny_model).text_tokenizer
    endless, long = "ab" * 5000, "x1" * 20
    rows = WordRows([["the", long, endless, "phone"]], None)
    ids = WordTags(3, 128).encode(rows, None, tokenizer).tokens.ids[0].tolist()
    piece = tokenizer.pieces([long])[0].tolist()
    assert len(piece) == 40
    unknown = tokenizer.backend.token_to_id("[UNK]")
    assert ids[2:18] == piece[:16]
    assert ids[18] == unknown
    short = WordTags(3, 8).encode(rows, None, tokenizer)  # three pieces a word at the most
    assert words_of(short, 0)[:2] == ([0, 1, 2, 3], [1, 3, 1, 1])


def test_words_are_read_in_any_order_and_company(fitted: BertTokenTagger) -> None:
    rows = random_rows([3, 300, 12, 1, 90])
    together = fitted.predict_proba(rows)
    for row, words in enumerate(rows):
        np.testing.assert_allclose(fitted.predict_proba([words])[0], together[row], atol=1e-5)
    assert_equal_rows(fitted.predict(rows[::-1]), fitted.predict(rows)[::-1])


# --- all pieces of a word ------------------------------------------------------------------------


def test_which_pieces_are_labelled(tiny_model: Path) -> None:
    tokenizer = opened(tiny_model).text_tokenizer
    rows, codes = WordRows([["the", "xyz", "ab"]], None), [np.array([0, 1, 2])]
    first = WordTags(3, 128).encode(rows, codes, tokenizer).targets
    every = WordTags(3, 128, all_pieces=True).encode(rows, codes, tokenizer).targets
    assert first.values.tolist() == [-100, 0, 1, -100, -100, 2, -100, -100]
    assert every.values.tolist() == [-100, 0, 1, 1, 1, 2, 2, -100]


def test_all_pieces_are_averaged(tiny_model: Path) -> None:
    network = opened(tiny_model)
    rows = WordRows([["the", "xyz"], ["ab"]], None)
    for all_pieces in (False, True):
        task = WordTags(2, 128, all_pieces)
        items = task.encode(rows, None, network.text_tokenizer)
        logits = np.arange(2.0 * len(items.tokens.ids.values)).reshape(-1, 2) ** 2
        found = task.decode(Ragged(logits, items.tokens.ids.starts), items)
        parts = [logits[1:2], logits[2:5], logits[7:9]]  # [CLS] the x ##y ##z [SEP] [CLS] a ##b
        want = [part.mean(axis=0) if all_pieces else part[0] for part in parts]
        np.testing.assert_allclose(np.concatenate([row.logits for row in found]), want)
        assert [row.places.tolist() for row in found] == [[[0, 1], [1, 2]], [[0, 1]]]


def test_learns_from_all_pieces(tiny_model: Path) -> None:
    spelled = [[word + "x" if word == "phone" else word for word in row] for row in X]
    fitted = tagger(tiny_model, label_pieces="all", **LEARNS).fit(spelled, Y)
    assert fitted.score(spelled, Y) > 0.9
    first = tagger(tiny_model, **LEARNS).fit(spelled, Y)
    assert (first.predict_proba(spelled)[0] != fitted.predict_proba(spelled)[0]).any()


# --- against transformers ------------------------------------------------------------------------


def gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("pieces", ["first", "all"])
def test_loss_logits_and_gradients_are_those_of_transformers(
    pieces: str, tiny_model_no_dropout: Path
) -> None:
    network = opened(tiny_model_no_dropout)
    rng = np.random.default_rng(0)
    kinds = ["the", "phone", "xy", "abcd", "it's", "!"]
    rows = [rng.choice(kinds, n).tolist() for n in (5, 1, 9, 3, 9, 30)]
    codes = [rng.integers(0, 3, len(row)) for row in rows]
    task = WordTags(3, 128, pieces == "all")
    items = task.encode(WordRows(rows, None), codes, network.text_tokenizer)
    batch = collate(items, np.arange(len(items)), CPU, torch.float32)
    logits = network.logits(batch)
    loss, weight = task.loss(logits, batch)
    (loss / weight).backward()

    config = copy.deepcopy(network.model.config)
    twin = BertForTokenClassification._from_config(config, attn_implementation="eager")
    twin.load_state_dict(network.model.state_dict())
    twin.eval()
    padded = network.tokenizer(rows, is_split_into_words=True, padding=True, return_tensors="pt")
    labels = torch.full(padded["input_ids"].shape, -100)
    for row, known in enumerate(codes):
        before = None
        for token, word in enumerate(padded.word_ids(row)):
            if word is not None and (pieces == "all" or word != before):
                labels[row, token] = int(known[word])
            before = word
    out = twin(**padded, labels=labels)
    out.loss.backward()

    assert float(weight) == int((labels != -100).sum())
    torch.testing.assert_close(loss / weight, out.loss, rtol=1e-5, atol=1e-5)
    mask = padded["attention_mask"].bool()
    torch.testing.assert_close(logits, out.logits[mask], rtol=1e-5, atol=1e-5)
    got, want = gradients(network.model), gradients(twin)
    assert got.keys() == want.keys()
    assert len(got) == len(list(network.model.parameters()))
    for name in want:
        torch.testing.assert_close(got[name], want[name], rtol=1e-5, atol=1e-5)


def test_rows_weigh_by_their_words(tiny_model_no_dropout: Path) -> None:
    network = opened(tiny_model_no_dropout)
    rows, codes = [["the"] * 3, ["phone"]], [np.array([0, 1, 2]), np.array([1])]
    task = WordTags(3, 128)
    items = task.encode(WordRows(rows, None), codes, network.text_tokenizer)
    losses = []
    for weights in ([1.0, 0.0], [0.0, 1.0], [2.0, 5.0]):
        batch = collate(items.weighted(np.array(weights)), np.arange(sum(w > 0 for w in weights)),
                        CPU, torch.float32)  # fmt: skip
        losses.append([float(x.detach()) for x in task.loss(network.logits(batch), batch)])
    assert [weight for _, weight in losses] == [3.0, 1.0, 2 * 3 + 5]
    assert losses[2][0] == pytest.approx(2 * losses[0][0] + 5 * losses[1][0], rel=1e-5)


def test_rows_without_a_word_teach_nothing(tiny_model: Path) -> None:
    with_empty = [row for each in X for row in (each, [])]
    y = [row for each in Y for row in (each, [])]
    fitted = tagger(tiny_model, batch_size=1).fit(with_empty, y)
    assert np.isfinite([record["loss"] for record in fitted.history_]).all()
    held = tagger(tiny_model, validation_fraction=0.3).fit(with_empty, y)
    assert np.isfinite(held.history_[0]["validation_loss"])
    assert tagger(tiny_model).fit([*X, [], []], [*Y, [], []]).score(X, Y) >= 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SkbertWarning)
        for empty in ([[], []], ["", " "]):
            with pytest.raises(InputError, match="No row of X holds a word"):
                tagger(tiny_model).fit(empty, [[], []])


# --- weights, hold-out, seeds --------------------------------------------------------------------


def test_a_weight_of_zero_is_as_if_the_row_were_wrong(tiny_model: Path) -> None:
    wrong = [["O"] * len(row) for row in X]
    weight = [1.0] * 40 + [0.0] * 40
    fitted = tagger(tiny_model, **LEARNS).fit(X + X, Y + wrong, sample_weight=weight)
    assert fitted.score(X, Y) == 1.0
    assert fitted.score(X + X, Y + wrong) < 1
    assert fitted.score(X + X, Y + wrong, sample_weight=weight) == 1.0


class Spy(BertTokenTagger):
    """Remembers which rows were held out last, and what their score was."""

    last: ClassVar[list[Any]] = []

    def _prepare_targets(self, *args: Any) -> Any:
        plan = super()._prepare_targets(*args)

        def metric(decoded: Any, rows: Any) -> float:
            self.last[:] = rows, plan.metric(decoded, rows)
            return self.last[1]

        return plan._replace(metric=metric)


@pytest.mark.parametrize("data", [(X, Y), (TEXTS, SPANS)], ids=["words", "texts"])
def test_validation_score_is_the_score_of_the_rows_held_out(data: Any, tiny_model: Path) -> None:
    fitted = Spy(
        tiny_model, validation_fraction=0.25, random_state=0, device="cpu",
        precision="float32", **LEARNS | {"epochs": 1},
    ).fit(*data)  # fmt: skip
    rows, score = fitted.last
    assert len(rows) == 10
    held = [[each[row] for row in rows] for each in data]
    assert fitted.history_[0]["validation_score"] == score
    assert fitted.score(*held) == pytest.approx(score)


@pytest.mark.parametrize("data", [(X, Y), (TEXTS, SPANS)], ids=["words", "texts"])
def test_the_same_seed_gives_the_same_bits(data: Any, tiny_model: Path) -> None:
    first, second, other = (
        tagger(tiny_model, random_state=seed, validation_fraction=0.2).fit(*data)
        for seed in (3, 3, 4)
    )
    weights = [fitted.model_.state_dict() for fitted in (first, second, other)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert any(not torch.equal(weights[0][name], weights[2][name]) for name in weights[0])
    assert first.predict_spans(data[0]).equals(second.predict_spans(data[0]))
    times = [{**record, "seconds": 0} for record in first.history_]
    assert times == [{**record, "seconds": 0} for record in second.history_]


# --- refusals ------------------------------------------------------------------------------------


def test_a_flat_list_of_words_is_refused(tiny_model: Path) -> None:
    for y in (["B-PER", "O"], [["B-PER"], ["O"]]):
        with pytest.raises(InputTypeError, match=r'\[\["Anna", "lives"\], \.\.\.\]'):
            tagger(tiny_model).fit(["Anna", "lives"], y)


def test_nothing_is_loaded_for_bad_input(tiny_model: Path) -> None:
    bad = tagger(tiny_model / "not there")
    with pytest.raises(InputError, match="row 1, word 0"):
        bad.fit([["a"], [None]], [["O"], ["O"]])
    fitted = tagger(tiny_model).fit(X, Y)
    with pytest.raises(InputError, match="Row 2 of y has 1 tag"):
        fitted.fit(X, [*Y[:2], ["O"], *Y[3:]])
    with pytest.raises(NotFittedError):
        bad.predict(X)


@pytest.mark.parametrize("method", ["predict", "predict_proba", "predict_spans"])
def test_bad_input_when_predicting(method: str, fitted: BertTokenTagger) -> None:
    with pytest.raises(InputTypeError, match="row 1, word 0 holds 3"):
        getattr(fitted, method)([["a"], [3]])
    with pytest.raises(NotFittedError):
        getattr(BertTokenTagger(), method)(X)


def test_bad_y_in_score(fitted: BertTokenTagger) -> None:
    with pytest.raises(InputError, match="Row 1 of y has 1 tag"):
        fitted.score(X[:2], [Y[0], ["O"]])
    with pytest.raises(InputTypeError, match="For raw texts"):
        fitted.score(TEXTS[:1], Y[:1])
    with pytest.raises(InputError, match="NaN"):
        fitted.score(X[:2], Y[:2], sample_weight=[1, float("nan")])
    with pytest.raises(NotFittedError):
        BertTokenTagger().score(X, Y)


# --- going on ------------------------------------------------------------------------------------


def test_warm_start_makes_room_for_new_tags(tiny_model: Path) -> None:
    old = [[tag if tag != "B-WHO" else "O" for tag in row] for row in Y]
    fitted = tagger(tiny_model, warm_start=True, **LEARNS).fit(X, old)
    assert fitted.classes_.tolist() == ["B-THING", "I-THING", "O"]
    fitted.fit(X, Y)
    assert fitted.classes_.tolist() == TAGS
    assert fitted.score(X, Y) > 0.9
    assert fitted.model_.config.id2label == dict(enumerate(TAGS))
    before = fitted.model_.classifier.weight.detach().clone()
    fitted.set_params(learning_rate=1e-12, head_learning_rate=1e-12)
    fitted.fit(X, [["O"] * len(row) for row in X])  # only O says nothing of the scheme
    assert (fitted.scheme_, fitted.classes_.tolist()) == ("IOB2", TAGS)
    torch.testing.assert_close(fitted.model_.classifier.weight, before)
    fitted.fit(TEXTS, [[(0, 1, "NEW")], *SPANS[1:]])  # learned and told in IOB2 as before
    assert fitted.classes_.tolist() == sorted([*TAGS, "B-NEW", "I-NEW", "I-WHO"])
    n_before = len(fitted.classes_)
    with pytest.raises(InputError, match="'S-X'"):
        fitted.fit([["a"]], [["S-X"]])
    with pytest.raises(InputError, match="warm_start=False"):
        fitted.set_params(scheme="BIOES").fit(X, Y)
    assert len(fitted.classes_) == fitted.model_.config.num_labels == n_before


def test_partial_fit_learns_in_batches(tiny_model: Path) -> None:
    online = tagger(tiny_model, **LEARNS)
    for _ in range(4):
        for part in (slice(20), slice(20, 40)):
            assert online.partial_fit(X[part], Y[part]) is online
            assert online.n_iter_ == 1
    assert online.score(X, Y) > 0.9
    part = tagger(tiny_model, epochs=9).partial_fit(X, Y)
    whole = tagger(tiny_model, schedule="constant").fit(X, Y)
    assert part.predict_proba(X)[0].tolist() == whole.predict_proba(X)[0].tolist()


def test_classes_make_room_for_tags(tiny_model: Path) -> None:
    online = tagger(tiny_model).partial_fit(X[:4], Y[:4], classes=[*TAGS, "B-NEW"])
    assert online.classes_.tolist() == sorted([*TAGS, "B-NEW"])
    online.partial_fit(TEXTS[:4], SPANS[:4], classes=np.array(["I-NEW"], object))
    assert online.classes_.tolist() == sorted([*TAGS, "B-NEW", "I-NEW", "I-WHO"])
    assert online.model_.config.num_labels == 7
    online.set_params(learning_rate=1e-12, head_learning_rate=1e-12)
    before = online.model_.classifier.weight.detach().clone()
    online.partial_fit(X, Y, sample_weight=np.arange(len(X)))
    torch.testing.assert_close(online.model_.classifier.weight, before)


def test_classes_show_the_scheme_of_the_first_batch(tiny_model: Path) -> None:
    bare = [["O"] * len(words) for words in X]
    for classes, scheme, learned in (
        (["B-A", "I-A"], "IOB2", ["B-A", "I-A", "O"]),
        (["B-A", "L-A", "U-A", "I-A"], "BIOES", ["B-A", "E-A", "I-A", "O", "S-A"]),
        (["I-A"], "IO", ["I-A", "O"]),
        (["NOUN"], None, ["NOUN", "O"]),
    ):
        online = tagger(tiny_model).partial_fit(X[:4], bare[:4], classes=classes)
        assert (online.scheme_, online.classes_.tolist()) == (scheme, learned)
    of_texts = tagger(tiny_model).partial_fit(TEXTS[:4], SPANS[:4], classes=["S-NEW", "E-NEW"])
    assert of_texts.scheme_ == "BIOES"
    assert {"S-NEW", "E-NEW", "S-WHO", "B-WHO"} < {*of_texts.classes_.tolist()}
    old = tagger(tiny_model).partial_fit(X, told_in("IOB1"), classes=["B-NEW"])
    assert (old.scheme_, old.learned_scheme_) == ("IOB1", "IOB2")
    assert old.classes_.tolist() == sorted([*TAGS, "B-NEW"])


@pytest.mark.parametrize("scheme", ["IOB2", "BIOES"])
def test_a_first_batch_without_entities_leaves_the_scheme_open(
    scheme: str, tiny_model: Path
) -> None:
    online = tagger(tiny_model).partial_fit(X[:4], [["O"] * len(words) for words in X[:4]])
    assert (online.scheme_, online.classes_.tolist()) == (None, ["O"])
    online.partial_fit(X, told_in(scheme))
    assert online.scheme_ == scheme
    assert online.predict(X[:1])[0]
    of_texts = tagger(tiny_model).partial_fit(TEXTS[:4], [[], [], [], []])
    assert of_texts.classes_.tolist() == ["O"]
    of_texts.partial_fit(X, told_in(scheme))
    assert of_texts.scheme_ == scheme


def test_a_batch_in_another_scheme_is_refused(tiny_model: Path) -> None:
    alone = [[tag[-3:] for tag in row] for row in Y]
    with_scheme, without = (tagger(tiny_model).partial_fit(X, y) for y in (Y, alone))
    for fitted, y, words in (
        (with_scheme, told_in("BIOES"), "'S-.*' at word .*not a tag of scheme='IOB2'"),
        (with_scheme, alone, "not a tag of scheme='IOB2'"),
        (without, Y, "follow the scheme IOB2.*scheme=None"),
    ):
        before = fitted.predict_proba(X[:1])[0]
        with pytest.raises(InputError, match=words):
            fitted.partial_fit(X, y)
        np.testing.assert_array_equal(fitted.predict_proba(X[:1])[0], before)
    without.set_params(scheme=None).partial_fit(X, Y)
    assert set(TAGS) < {*without.classes_}


@pytest.mark.parametrize(
    ("classes", "error", "words"),
    [
        ({"B-A"}, InputTypeError, r"type set.*sorted\(classes\)"),
        ("B-A", InputTypeError, "type str.*a list of labels"),
        ([1, 2], InputTypeError, "row 0 of classes is 1.*classes_"),
        (["B-A", ""], InputError, "row 1 of classes is ''"),
        (["B-A", None], InputError, "1 missing.*position 1"),
        ([["B-A"]], InputError, r"row 0 of classes holds \['B-A'\]"),
        (["THING"], InputError, "classes holds 'THING'.*not a tag of scheme='IOB2'"),
        (["S-THING", "B-THING"], InputError, "not a tag|B-THING"),
    ],
)
def test_classes_that_are_no_tags(
    classes: Any, error: type[Exception], words: str, tiny_model: Path
) -> None:
    for gold in ((X, Y), (TEXTS, SPANS)):
        with pytest.raises(error, match=words):
            tagger(tiny_model, scheme="IOB2").partial_fit(*gold, classes=classes)


# --- scikit-learn --------------------------------------------------------------------------------


def test_it_is_no_classifier_and_needs_y(tiny_model: Path) -> None:
    estimator = tagger(tiny_model)
    assert not is_classifier(estimator)
    assert estimator.__sklearn_tags__().target_tags.required
    with pytest.raises(InputError, match="requires y"):
        estimator.fit(X, None)


def test_clone_and_parameters(tiny_model: Path) -> None:
    estimator = tagger(tiny_model, scheme="IO", label_pieces="all", decoding="argmax")
    assert clone(estimator).get_params() == estimator.get_params()
    for bad in ({"label_pieces": "last"}, {"decoding": "beam"}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            tagger(tiny_model, **bad).fit(X, Y)


@pytest.mark.parametrize("hold", [list, objects, pd.Series])
@pytest.mark.parametrize("data", [(X, Y), (TEXTS, SPANS)], ids=["words", "texts"])
@pytest.mark.long
def test_cross_validation(hold: Any, data: Any, tiny_model: Path) -> None:
    rows, wanted = hold(data[0]), hold(data[1])
    scores = cross_val_score(tagger(tiny_model, **LEARNS), rows, wanted, cv=3)
    assert scores.shape == (3,)
    assert scores.min() > 0.9
    predicted = cross_val_predict(tagger(tiny_model, **LEARNS), rows, wanted, cv=3)
    assert (predicted.dtype, predicted.shape) == (object, (40,))
    assert entity_f1(data[1], predicted) > 0.9


@pytest.mark.parametrize("hold", [list, objects, pd.Series])
@pytest.mark.long
def test_grid_search_of_equal_lengths(hold: Any, tiny_model: Path) -> None:
    rows, tags = hold([row[:7] for row in X]), hold([row[:7] for row in Y])
    search = GridSearchCV(
        tagger(tiny_model, **LEARNS), {"epochs": [1, 4], "decoding": ["argmax"]}, cv=2
    ).fit(rows, tags)
    assert search.best_score_ > 0.9
    assert search.predict(rows).tolist() == [list(row) for row in tags]


def lowered(rows: Any) -> Any:
    return [[word.lower() for word in row] for row in rows]


def test_in_a_pipeline_with_weights(tiny_model: Path) -> None:
    weight = np.where(np.arange(40) % 5 == 0, 0.0, 1.0)
    y = [["O"] * len(tags) if not weight[row] else tags for row, tags in enumerate(Y)]
    with config_context(enable_metadata_routing=True):
        asks = tagger(tiny_model, **LEARNS).set_fit_request(sample_weight=True)
        asks.set_score_request(sample_weight=True)
        pipeline = make_pipeline(FunctionTransformer(lowered), asks)
        result = cross_validate(
            pipeline, X, y, cv=KFold(2), params={"sample_weight": weight}, return_estimator=True
        )
    for (_, held), fitted, score in zip(
        KFold(2).split(X), result["estimator"], result["test_score"], strict=True
    ):
        part = [[each[row] for row in held] for each in (X, y)]
        alone = fitted[-1].score(*part, sample_weight=weight[held])
        assert score == alone > fitted[-1].score(*part)


# --- kept and opened -----------------------------------------------------------------------------


def assert_same(first: BertTokenTagger, second: BertTokenTagger) -> None:
    assert_equal_rows(first.predict_proba(X), second.predict_proba(X))
    assert first.predict_spans(TEXTS).equals(second.predict_spans(TEXTS))
    assert first.classes_.tolist() == second.classes_.tolist()
    assert (first.scheme_, first.get_params()) == (second.scheme_, second.get_params())


@pytest.mark.parametrize("data", [(X, Y), (TEXTS, SPANS)], ids=["words", "texts"])
def test_save_load_and_pickle(data: Any, tiny_model: Path, tmp_path: Path) -> None:
    fitted = tagger(str(tiny_model), label_pieces="all", validation_fraction=0.2).fit(*data)
    fitted.save(tmp_path / "kept")
    loaded = BertTokenTagger.load(tmp_path / "kept")
    assert_same(fitted, loaded)
    assert loaded.history_ == fitted.history_
    assert_same(fitted, pickle.loads(pickle.dumps(fitted)))
    assert_same(fitted, copy.deepcopy(fitted))


def test_a_plain_task_is_kept(tiny_model: Path, tmp_path: Path) -> None:
    plain = tagger(str(tiny_model)).fit(X, [["NN"] * len(row) for row in X])
    plain.save(tmp_path / "kept")
    loaded = BertTokenTagger.load(tmp_path / "kept")
    assert loaded.scheme_ is None
    assert loaded.predict(X[:1]).tolist() == [["NN"] * 7]


def test_iob1_is_learned_as_iob2_ever_after(tiny_model: Path, tmp_path: Path) -> None:
    y = told_in("IOB1")
    fitted = tagger(str(tiny_model), warm_start=True, **LEARNS).fit(X, y)
    fitted.save(tmp_path / "kept")
    loaded = BertTokenTagger.load(tmp_path / "kept")
    for again in (loaded, loaded.fit(X, y), fitted.fit(TEXTS, SPANS)):
        assert (again.scheme_, again.learned_scheme_) == ("IOB1", "IOB2")
        assert again.score(X, y) > 0.9
        assert "B-WHO" in again.predict(X[:1])[0]  # one that follows another
        assert again.predict(X[:1])[0][3] == "I-THING"
    assert fitted.model_.config.id2label[0] == "B-THING"


def test_the_folder_opens_in_transformers(fitted: BertTokenTagger, tmp_path: Path) -> None:
    fitted.save_pretrained(tmp_path)
    model = AutoModelForTokenClassification.from_pretrained(tmp_path).eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert type(model) is BertForTokenClassification
    assert model.config.id2label == dict(enumerate(TAGS))
    assert model.config.label2id == {tag: code for code, tag in enumerate(TAGS)}
    for words, found in zip(X[:4], fitted.predict_proba(X[:4]), strict=True):
        inputs = tokenizer(words, is_split_into_words=True, return_tensors="pt")
        with torch.no_grad():
            logits = model(**inputs).logits[0, 1:-1]
        np.testing.assert_allclose(logits.softmax(dim=1).numpy(), found, atol=1e-5)
    again = BertTokenTagger.from_pretrained(tmp_path, device="cpu", precision="float32")
    assert (again.classes_.tolist(), again.scheme_) == (TAGS, "IOB2")
    assert_equal_rows(again.predict(X), fitted.predict(X))
    np.testing.assert_allclose(again.predict_proba(X[:1])[0], fitted.predict_proba(X[:1])[0],
                               atol=1e-6)  # fmt: skip
    assert again.predict(TEXTS).tolist() == SPANS


def fine_tuned(tiny_model: Path, folder: Path, names: Sequence[str]) -> Any:
    """A folder as transformers writes it, its labels in any order; and its model."""
    config = BertConfig.from_pretrained(
        tiny_model, num_labels=len(names), id2label=dict(enumerate(names)),
        label2id={name: code for code, name in enumerate(names)},
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        model = BertForTokenClassification(config).eval()
        torch.nn.init.normal_(model.classifier.weight)
    model.save_pretrained(folder)
    BertTokenizerFast.from_pretrained(tiny_model).save_pretrained(folder)
    return model


@pytest.mark.parametrize(
    ("names", "scheme"),
    [
        ("O B-PER I-PER", "IOB2"),
        ("I-PER O B-PER I-LOC", "IOB1"),
        ("S-PER O E-PER B-PER I-PER", "BIOES"),
        ("O I-X", "IO"),
        ("LABEL_0 LABEL_1 LABEL_2", None),
        ("VERB NOUN", None),
    ],
)
def test_from_pretrained(names: str, scheme: str | None, tiny_model: Path, tmp_path: Path) -> None:
    model = fine_tuned(tiny_model, tmp_path, names.split())
    opened = BertTokenTagger.from_pretrained(tmp_path, device="cpu", precision="float32")
    assert opened.scheme_ == scheme
    assert opened.classes_.tolist() == sorted(names.split())
    inputs = opened.tokenizer_(X[0], is_split_into_words=True, return_tensors="pt")
    with torch.no_grad():
        want = model(**inputs).logits[0, 1:-1].softmax(dim=1).numpy()
    order = np.argsort(names.split())
    np.testing.assert_allclose(opened.predict_proba(X[:1])[0], want[:, order], atol=1e-5)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["id2label"]["0"] == names.split(maxsplit=1)[0]  # the folder is as it was
    if scheme is not None:
        (tags,) = opened.predict(X[:1])
        assert convert(tags, scheme) == tags
        assert list(opened.predict_spans(TEXTS[:1])["text"])
    else:
        assert_tags_stand_alone(opened)


def assert_tags_stand_alone(opened: BertTokenTagger) -> None:
    """Each word has a tag of its own, in methods that read the scheme, too."""
    assert opened.learned_scheme_ is None
    (tags,) = opened.predict(X[:1])
    spans = opened.predict_spans(X[:1])
    assert (spans["label"].tolist(), spans["text"].tolist()) == ([*tags], [*X[0]])
    y = [[opened.classes_[0]] * len(words) for words in X]
    assert opened.set_params(epochs=1).partial_fit(X, y).scheme_ is None


def test_iob1_comes_back_from_a_folder(tiny_model: Path, tmp_path: Path) -> None:
    y = told_in("IOB1")
    fitted = tagger(tiny_model, **LEARNS).fit(X, y)
    fitted.save_pretrained(tmp_path)
    for scheme in ("auto", "IOB1"):
        opened = BertTokenTagger.from_pretrained(
            tmp_path, scheme=scheme, device="cpu", precision="float32"
        )
        assert (opened.scheme_, opened.learned_scheme_) == ("IOB1", "IOB2")
        assert opened.predict(X).tolist() == fitted.predict(X).tolist()
        assert opened.score(X, y) == fitted.score(X, y) == 1.0
    other = BertTokenTagger(tmp_path, epochs=1, device="cpu", random_state=0)
    other.fit(X, told_in("IOB2")).save_pretrained(tmp_path / "other")
    assert BertTokenTagger.from_pretrained(tmp_path / "other").scheme_ == "IOB2"


def test_a_folder_of_bilou_is_one_of_bioes(tiny_model: Path, tmp_path: Path) -> None:
    model = fine_tuned(tiny_model, tmp_path, ["O", "U-PER", "L-PER", "B-PER", "I-PER"])
    opened = BertTokenTagger.from_pretrained(tmp_path, device="cpu", precision="float32")
    tags = ["B-PER", "E-PER", "I-PER", "O", "S-PER"]
    assert opened.classes_.tolist() == tags
    inputs = opened.tokenizer_(X[0], is_split_into_words=True, return_tensors="pt")
    with torch.no_grad():
        want = model(**inputs).logits[0, 1:-1].softmax(dim=1).numpy()
    found = opened.predict_proba(X[:1])[0]
    np.testing.assert_allclose(found, want[:, [3, 2, 4, 0, 1]], atol=1e-5)
    y = [["S-PER"] * len(words) for words in X]
    opened.set_params(epochs=1).conformalize(X, y).partial_fit(X, y)
    assert opened.classes_.tolist() == tags


def test_from_pretrained_with_a_scheme(tiny_model: Path, tmp_path: Path) -> None:
    fine_tuned(tiny_model, tmp_path, ["O", "B-PER", "I-PER"])
    opened = BertTokenTagger.from_pretrained(tmp_path, scheme="IOB1", device="cpu")
    assert (opened.scheme_, opened.learned_scheme_) == ("IOB1", "IOB1")
    with torch.no_grad():
        opened.model_.classifier.bias[1] += 50.0  # I-PER, with which an entity begins in IOB1
    assert opened.predict(X[:1]).tolist() == [["I-PER"] * 7]
    assert_tags_stand_alone(BertTokenTagger.from_pretrained(tmp_path, scheme=None, device="cpu"))
    with pytest.raises(InputError, match=r"id2label.*'B-PER'.*IO"):
        BertTokenTagger.from_pretrained(tmp_path, scheme="IO")


# --- the real encoder ----------------------------------------------------------------------------


def test_the_real_encoder_finds_names_it_never_saw(minilm: Path) -> None:
    from skbert.datasets import load_entities

    rows, tags = load_entities(return_X_y=True)
    found = tagger(minilm, freeze="all").fit(rows[:200], tags[:200])
    assert found.score(rows[200:], tags[200:]) > 0.6
    assert found.predict(["Hedda moved to Paris."])[0] == [(0, 5, "PER"), (15, 20, "LOC")]


def test_real_rows_joined_to_two_thousand_words(minilm: Path, shared_data: Path) -> None:
    lines = (shared_data / "entities" / "test.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    words = [word for row in rows for word in row["tokens"]]
    joined = [words[at : at + 2000] for at in range(0, 6000, 2000)]
    learned = tagger(minilm, freeze="all", epochs=1)
    learned.fit([row["tokens"] for row in rows[:100]], [row["tags"] for row in rows[:100]])
    found = learned.predict([*joined, *[row["tokens"] for row in rows[:50]]])
    assert [*map(len, found)] == [2000] * 3 + [len(row["tokens"]) for row in rows[:50]]
    assert {tag for tags in found for tag in tags} <= {*learned.classes_}
