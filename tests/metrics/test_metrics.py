"""The metrics against slow references, against seqeval where it is installed, and as scorers."""

from __future__ import annotations

import pickle
import random
import subprocess
import sys
from collections import Counter
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import sklearn
from sklearn.base import BaseEstimator, clone
from sklearn.metrics import make_scorer
from sklearn.model_selection import GridSearchCV, cross_val_score, cross_validate

from skbert import metrics
from skbert._validation.entities import SCHEMES, entities_of
from skbert.exceptions import InputError, InputTypeError
from skbert.metrics import (
    choice_accuracy,
    entity_f1,
    entity_report,
    get_scorer,
    mean_reciprocal_rank,
    squad_em,
    squad_f1,
)

Rows = list[list[str]]
LETTERS = {None: "BIES", "BIOES": "BIES", "IO": "I", "IOB1": "BI", "IOB2": "BI"}
ROUNDS = 300


def object_array(rows: list[Any]) -> np.ndarray:
    array = np.empty(len(rows), dtype=object)
    for row, cell in enumerate(rows):
        array[row] = cell
    return array


def series(rows: list[Any]) -> pd.Series:
    return pd.Series(object_array(rows), index=range(100, 100 + len(rows)))


CONTAINERS = [
    pytest.param(list, id="list"),
    pytest.param(tuple, id="tuple"),
    pytest.param(object_array, id="array"),
    pytest.param(series, id="Series"),
]


# --- entities in tags ----------------------------------------------------------------------------


def random_rows(draw: random.Random, letters: str, lengths: list[int]) -> Rows:
    """Tags that follow no rule; now and then a letter without a type."""
    rows = []
    for length in lengths:
        found = [draw.choice("O" + letters) for _ in range(length)]
        types = [draw.choice(["", "-A", "-A", "-B-C", "-B-C"]) for _ in found]
        rows.append([x if x == "O" else x + y for x, y in zip(found, types, strict=True)])
    return rows


def words_of(tags: list[str]) -> list[tuple[str, str]]:
    return [(tag[0], tag[2:] or "_" if tag != "O" else "") for tag in tags]


def linked(before: tuple[str, str], word: tuple[str, str]) -> bool:
    return before[0] in "BI" and word[0] in "IE" and before[1] == word[1]


def is_entity(words: list[tuple[str, str]], start: int, end: int, scheme: str | None) -> bool:
    """Whether words form an entity with nothing missing on either side, by its definition."""
    if any(letter == "O" for letter, _ in words[start:end]):
        return False
    if not all(linked(words[i - 1], words[i]) for i in range(start + 1, end)):
        return False
    if end < len(words) and linked(words[end - 1], words[end]):
        return False
    letters = "".join(letter for letter, _ in words[start:end])
    if scheme == "IOB2":
        return letters[0] == "B"
    if scheme == "BIOES":
        return letters == "S" or (letters[0] == "B" and letters[-1] == "E")
    return start == 0 or not linked(words[start - 1], words[start])


def slow_entities(tags: list[str], scheme: str | None) -> list[tuple[int, int, str]]:
    """Try all spans."""
    words = words_of(tags)
    spans = [(i, j) for i in range(len(words)) for j in range(i + 1, len(words) + 1)]
    return [(i, j, words[i][1]) for i, j in spans if is_entity(words, i, j, scheme)]


def slow_f1(y_true: Rows, y_pred: Rows, scheme: str | None) -> float:
    true = {(r, *each) for r, row in enumerate(y_true) for each in slow_entities(row, scheme)}
    pred = {(r, *each) for r, row in enumerate(y_pred) for each in slow_entities(row, scheme)}
    both = len(true & pred)
    return 2 * both / (len(true) + len(pred)) if true or pred else 0.0


def random_entities(draw: random.Random, length: int) -> list[tuple[int, int, str]]:
    found, at = [], 0
    while at < length:
        end = at + draw.randint(1, 3)
        if end <= length and draw.random() < 0.6:
            found.append((at, end, draw.choice("AB")))
        at = end
    return found


def written(entities: list[tuple[int, int, str]], length: int, scheme: str) -> list[str]:
    """The tags of some entities."""
    tags = ["O"] * length
    last: tuple[int, int, str] = (-1, -1, "")
    for start, end, label in entities:
        letters = ["I"] * (end - start)
        touches = last[1] == start and last[2] == label
        if scheme in ("IOB2", "BIOES") or (scheme == "IOB1" and touches):
            letters[0] = "B"
        if scheme == "BIOES":
            letters[-1] = "E" if len(letters) > 1 else "S"
        tags[start:end] = [f"{letter}-{label}" for letter in letters]
        last = (start, end, label)
    return tags


@pytest.mark.parametrize("scheme", [None, "BIOES", "IO", "IOB2"])
def test_entities_equal_the_definition(scheme: str | None) -> None:
    draw = random.Random(0)
    for _ in range(ROUNDS):
        (tags,) = random_rows(draw, LETTERS[scheme], [draw.randint(0, 9)])
        assert entities_of(tags, scheme) == slow_entities(tags, scheme), tags


@pytest.mark.parametrize("scheme", ["BIOES", "IOB1", "IOB2"])
def test_entities_come_back_from_their_tags(scheme: str) -> None:
    draw = random.Random(1)
    for _ in range(ROUNDS):
        length = draw.randint(0, 9)
        entities = random_entities(draw, length)
        tags = written(entities, length, scheme)
        assert entities_of(tags, scheme) == entities
        assert entities_of(tags) == entities  # a clean row needs no scheme


def test_touching_entities_of_one_type_are_one_in_io() -> None:
    assert entities_of(["I-A", "I-A", "I-B", "O", "I-A"], "IO") == [
        (0, 2, "A"),
        (2, 3, "B"),
        (4, 5, "A"),
    ]


@pytest.mark.parametrize(
    ("tags", "entities"),
    [
        # B begins an entity only where it parts two of one type.
        (["O", "B-A"], []),
        (["B-A", "I-A"], [(1, 2, "A")]),
        (["I-A", "B-B"], [(0, 1, "A")]),
        (["I-A", "B-A", "I-A"], [(0, 1, "A"), (1, 3, "A")]),
        (["I-A", "B-A", "B-B"], [(0, 1, "A")]),
        (["I-A", "B-A", "B-A"], [(0, 1, "A"), (1, 2, "A"), (2, 3, "A")]),
    ],
)
def test_entities_of_broken_iob1(tags: list[str], entities: list[Any]) -> None:
    assert entities_of(tags, "IOB1") == entities


@pytest.mark.parametrize("scheme", [None, "BIOES"])
def test_bilou_reads_as_bioes(scheme: str | None) -> None:
    tags = ["B-A", "I-A", "L-A", "U-B", "O", "B-A", "L-A"]
    assert entities_of(tags, scheme) == [(0, 3, "A"), (3, 4, "B"), (5, 7, "A")]


def test_entities_of_an_array_of_tags() -> None:
    assert entities_of(np.array(["B-A", "I-A", "O"])) == [(0, 2, "A")]


@pytest.mark.parametrize(
    ("tags", "scheme", "part"),
    [
        (["O", "PER"], None, "'PER' at word 1, which is not a tag of scheme=None"),
        (["O", "o"], None, "'o' at word 1"),
        ([""], None, "'' at word 0"),
        (["BI-PER"], None, "'BI-PER' at word 0"),
        (["B-PER", "E-PER"], "IOB2", "one of the letters B, I, a dash and a type"),
        (["B-PER"], "IO", "such as 'I-PER'"),
        (["S-PER"], "IOB1", "scheme='IOB1'"),
    ],
)
def test_tags_outside_the_scheme_are_named(tags: list[str], scheme: str | None, part: str) -> None:
    with pytest.raises(InputError) as caught:
        entities_of(tags, scheme, place="row 3 of y")
    assert str(caught.value).startswith("row 3 of y holds ")
    assert part in str(caught.value)


@pytest.mark.parametrize("tag", [None, 1, float("nan"), ["B-A"]])
def test_tags_that_are_no_str(tag: object) -> None:
    with pytest.raises(InputTypeError, match=r"Tags must be str, but the row holds .* at word 1"):
        entities_of(["O", tag])


@pytest.mark.parametrize(("scheme", "hint"), [("iob2", "IOB2"), ("IOBES", "BIOES"), (["IO"], "")])
def test_unknown_schemes(scheme: Any, hint: str) -> None:
    with pytest.raises(InputError, match=r"is not a choice\. It must be None or one of") as caught:
        entity_f1([["O"]], [["O"]], scheme=scheme)
    assert hint in str(caught.value)
    assert tuple(sorted(SCHEMES)) == SCHEMES


# --- entity_f1 -----------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", [None, "BIOES", "IO", "IOB2"])
def test_entity_f1_equals_the_definition(scheme: str | None) -> None:
    draw = random.Random(2)
    for _ in range(ROUNDS):
        lengths = [draw.randint(0, 6) for _ in range(3)]
        true = random_rows(draw, LETTERS[scheme], lengths)
        pred = random_rows(draw, LETTERS[scheme], lengths)
        score = entity_f1(true, pred, scheme=scheme)
        assert score == pytest.approx(slow_f1(true, pred, scheme), abs=1e-12)
        assert type(score) is float


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("scheme", [None, "BIOES", "IOB1", "IOB2"])
@pytest.mark.long
def test_entity_scores_equal_seqeval(scheme: str | None) -> None:
    seqeval = pytest.importorskip("seqeval.metrics")
    schemes = pytest.importorskip("seqeval.scheme")
    strict: dict[str, Any] = {}
    if scheme is not None:
        name = scheme.replace("BIOES", "IOBES")
        strict = {"mode": "strict", "scheme": getattr(schemes, name)}
    draw = random.Random(3)
    for _ in range(ROUNDS):
        lengths = [draw.randint(1, 8) for _ in range(4)]
        true = random_rows(draw, LETTERS[scheme], lengths)
        pred = random_rows(draw, LETTERS[scheme], lengths)
        expected = seqeval.f1_score(true, pred, **strict)
        assert entity_f1(true, pred, scheme=scheme) == pytest.approx(expected, abs=1e-12)
        report = entity_report(true, pred, scheme=scheme)
        if len(report) > 3:
            wanted = seqeval.classification_report(true, pred, output_dict=True, **strict)
            assert list(wanted) == list(report.index)
            np.testing.assert_allclose(
                report.to_numpy(), [list(row.values()) for row in wanted.values()], atol=1e-12
            )


def test_entity_f1_of_known_rows() -> None:
    true = [["O", "B-A", "I-A", "O"], ["B-B", "O"], ["O"]]
    assert entity_f1(true, true) == 1.0
    assert entity_f1(true, [["O"] * 4, ["O"] * 2, ["O"]]) == 0.0
    assert entity_f1([["O"]], [["O"]]) == 0.0
    wrong_type = [["O", "B-B", "I-B", "O"], ["B-B", "O"], ["O"]]
    too_short = [["O", "B-A", "O", "O"], ["B-B", "O"], ["B-A"]]
    assert entity_f1(true, wrong_type) == pytest.approx(0.5)
    assert entity_f1(true, too_short) == pytest.approx(2 / 5)


def test_entity_f1_needs_the_scheme_only_for_broken_rows() -> None:
    true, pred = [["I-A", "O", "B-A"]], [["B-A", "O", "B-A"]]
    assert entity_f1(true, pred) == 1.0
    assert entity_f1(true, pred, scheme="IOB2") == pytest.approx(2 / 3)


@pytest.mark.parametrize("make", CONTAINERS)
def test_entity_f1_takes_any_container(make: Any) -> None:
    true = [["B-A", "I-A"], ["O", "B-B"], ["O", "O"]]  # equal lengths: an array would be 2-D
    pred = [["B-A", "I-A"], ["O", "B-A"], ["O", "O"]]
    assert entity_f1(make(true), pred) == 0.5
    assert entity_f1(true, make(pred)) == 0.5
    assert entity_f1(make([np.array(row) for row in true]), [tuple(row) for row in pred]) == 0.5


def test_entity_f1_takes_columns_of_other_libraries() -> None:
    polars, pyarrow = pytest.importorskip("polars"), pytest.importorskip("pyarrow")
    true = [["B-A", "I-A"], ["O"], []]
    assert entity_f1(polars.Series(true), true) == 1.0
    assert entity_f1(true, pyarrow.array(true)) == 1.0


def test_entity_f1_of_spans() -> None:
    true = [[(0, 4, "A"), (9, 12, "B")], [], [(3, 5, "A")]]
    pred = [[(9, 12, "B"), (0, 4, "A")], [(1, 2, "A")], [(3, 6, "A")]]
    assert entity_f1(true, true) == 1.0
    assert entity_f1(true, pred) == pytest.approx(2 * 2 / 7)
    as_read_from_json = [[list(entity) for entity in row] for row in pred]
    assert entity_f1(true, as_read_from_json) == pytest.approx(2 * 2 / 7)
    with_numpy = [[(np.int64(a), np.int64(b), np.str_(c)) for a, b, c in row] for row in true]
    assert entity_f1(true, with_numpy) == 1.0
    assert entity_f1([[]], [[]]) == 0.0


def test_entity_f1_counts_an_entity_once() -> None:
    assert entity_f1([[(0, 4, "A")]], [[(0, 4, "A"), (0, 4, "A")]]) == 1.0


def test_entity_weights_are_those_of_repeated_rows() -> None:
    draw = random.Random(4)
    lengths = [draw.randint(1, 8) for _ in range(6)]
    true, pred = (random_rows(draw, "BI", lengths) for _ in range(2))
    weights = [3, 0, 1, 2, 1, 5]
    rows = [row for row, times in enumerate(weights) for _ in range(times)]
    again = [true[row] for row in rows], [pred[row] for row in rows]
    assert entity_f1(true, pred, sample_weight=weights) == pytest.approx(entity_f1(*again))
    weighted = entity_report(true, pred, sample_weight=weights)
    assert weighted["support"].dtype == np.float64
    pd.testing.assert_frame_equal(weighted, entity_report(*again), check_dtype=False)


@pytest.mark.parametrize(
    ("true", "pred", "kind", "part"),
    [
        ([["O"], ["O", "O"]], [["O"], ["O"]], InputError, "Row 1 has 2 tags in y_true and 1 in"),
        ([["O"], ["O"]], [["O"]], InputError, "inconsistent numbers of samples: [2, 1]"),
        ([], [], InputError, "y_true has no rows"),
        ([["O"], ["X-A"]], [["O"], ["O"]], InputError, "row 1 of y_true holds 'X-A' at word 0"),
        ([["O"], ["O"]], [["O"], [7]], InputTypeError, "row 1 of y_pred holds 7 at word 0"),
        ([["O"], "O"], [["O"], ["O"]], InputTypeError, "row 1 of y_true is 'O', of type str"),
        ([["O"], None], [["O"], ["O"]], InputTypeError, "row 1 of y_true is None"),
        (["O", "O"], ["O", "O"], InputTypeError, "row 0 of y_true is 'O'"),
        ("O", ["O"], InputTypeError, "y_true is 'O', of type str, but must be a list"),
        ({"a": ["O"]}, [["O"]], InputTypeError, "y_true is {'a': ['O']}, of type dict"),
        ([["O"]], None, InputTypeError, "y_pred is None"),
        ([[(0, 4, "A")]], [["O"]], InputTypeError, "an entity in row 0 of y_pred is 'O'"),
        ([["O"]], [[(0, 4, "A")]], InputTypeError, "row 0 of y_pred holds (0, 4, 'A')"),
        ([[(0, 4)]], [[]], InputTypeError, "must be (start, end, type)"),
        ([[(0, "4", "A")]], [[]], InputTypeError, "an entity in row 0 of y_true is (0, '4', 'A')"),
    ],
)
def test_entity_f1_names_the_bad_row(true: Any, pred: Any, kind: type, part: str) -> None:
    for metric in (entity_f1, entity_report):
        with pytest.raises(kind) as caught:
            metric(true, pred)
        assert part in str(caught.value)


def test_a_scheme_does_not_go_with_spans() -> None:
    with pytest.raises(InputError, match=r"but row 0 holds entities\. Type scheme=None"):
        entity_f1([[(0, 1, "A")]], [[]], scheme="IOB2")


def test_entity_report_of_known_rows() -> None:
    true = [["B-X", "O", "B-Y", "B-Y"], ["B-Y"]]
    pred = [["B-X", "B-Z", "B-Y", "O"], ["B-X"]]
    report = entity_report(true, pred)
    expected = pd.DataFrame(
        [
            [1 / 2, 1.0, 2 / 3, 1],
            [1.0, 1 / 3, 1 / 2, 3],
            [0.0, 0.0, 0.0, 0],
            [2 / 4, 2 / 4, 1 / 2, 4],
            [1 / 2, 4 / 9, 7 / 18, 4],
            [7 / 8, 1 / 2, 13 / 24, 4],
        ],
        index=pd.Index(["X", "Y", "Z", "micro avg", "macro avg", "weighted avg"], dtype=object),
        columns=["precision", "recall", "f1", "support"],
    ).astype({"support": np.int64})
    pd.testing.assert_frame_equal(report, expected)
    assert report.loc["micro avg", "f1"] == entity_f1(true, pred)


def test_entity_report_of_no_entities() -> None:
    report = entity_report([["O"]], [["O"]])
    assert list(report.index) == ["micro avg", "macro avg", "weighted avg"]
    assert (report.to_numpy() == 0).all()
    assert (entity_report([["O"]], [["B-A"]]).to_numpy() == 0).all()


# --- answers -------------------------------------------------------------------------------------


def slow_squad(golds: list[str], guess: str) -> tuple[float, float]:
    """Exact match and F1, written from the definition with other means."""

    def words(text: str) -> list[str]:
        kept = "".join(
            sign for sign in text.lower() if sign not in "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
        )
        return [word for word in kept.split() if word not in ("a", "an", "the")]

    found = words(guess)
    exact, best = 0.0, 0.0
    for wanted in [words(gold) for gold in golds if words(gold)] or [[]]:
        exact = max(exact, float(wanted == found))
        if not wanted or not found:
            best = max(best, float(wanted == found))
            continue
        common = sum(min(n, found.count(word)) for word, n in Counter(wanted).items())
        if common:
            precision, recall = common / len(found), common / len(wanted)
            best = max(best, 2 * precision * recall / (precision + recall))
    return exact, best


def test_squad_scores_equal_the_definition() -> None:
    draw = random.Random(5)
    pieces = [
        "the",
        "The",
        "a",
        "an",
        "cat",
        "Cat,",
        "sat.",
        "on",
        "mat",
        "(mat)",
        "--",
        "U.S.",
        "",
    ]
    golds, guesses = [], []
    for _ in range(ROUNDS):
        texts = [" ".join(draw.choices(pieces, k=draw.randint(0, 5))) for _ in range(4)]
        golds.append(texts[: draw.randint(0, 3)])
        guesses.append(texts[3])
    slow = np.array([slow_squad(*pair) for pair in zip(golds, guesses, strict=True)])
    for metric, column in ((squad_em, 0), (squad_f1, 1)):
        singly = [metric([gold], [guess]) for gold, guess in zip(golds, guesses, strict=True)]
        np.testing.assert_allclose(singly, slow[:, column], atol=1e-12)
        assert metric(golds, guesses) == pytest.approx(slow[:, column].mean(), abs=1e-12)
        weights = np.arange(ROUNDS) % 4
        weighted = np.average(slow[:, column], weights=weights)
        assert metric(golds, guesses, sample_weight=weights) == pytest.approx(weighted, abs=1e-12)


@pytest.mark.parametrize(
    ("gold", "guess", "exact", "f1"),
    [
        ("in March", "In March.", 1.0, 1.0),
        ("The  Old\tMill", "old mill", 1.0, 1.0),
        ("it's", "its", 1.0, 1.0),
        ("theatre", "atre", 0.0, 0.0),
        ("red red", "red", 0.0, 2 / 3),
        ("«rot»", "rot", 0.0, 0.0),  # only ASCII punctuation is dropped
        ("", "", 1.0, 1.0),
        ("", "the", 1.0, 1.0),
        ("", "door", 0.0, 0.0),
        ("door", "", 0.0, 0.0),
        ([], "", 1.0, 1.0),
        ([], "door", 0.0, 0.0),
        (("door", 4), "a door", 1.0, 1.0),
        (["door", 4], "door", 1.0, 1.0),
        ([("blue door", 4), "door"], "door", 1.0, 1.0),
        ([["blue door", np.int64(4)], ["door", 9]], "door", 1.0, 1.0),
        (["", "door"], "", 0.0, 0.0),  # one who found an answer outvotes one who did not
        (np.array(["blue door", "gate"]), "gate", 1.0, 1.0),
        (np.str_("door"), np.str_("door"), 1.0, 1.0),
    ],
)
def test_squad_scores_of_known_answers(gold: Any, guess: str, exact: float, f1: float) -> None:
    assert squad_em([gold], [guess]) == exact
    assert squad_f1([gold], [guess]) == pytest.approx(f1)


@pytest.mark.parametrize("make", CONTAINERS)
def test_squad_scores_take_any_container(make: Any) -> None:
    golds = [[("door", 4)], [("gate", 0)], ["none"]]
    assert squad_em(make(golds), make(["door", "gate", "wall"])) == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("true", "pred", "kind", "part"),
    [
        (["a", "b"], ["a"], InputError, "inconsistent numbers of samples: [2, 1]"),
        (["a", "b"], ["a", None], InputTypeError, "row 1 of y_pred is None"),
        (["a", None], ["a", "b"], InputTypeError, "row 1 of y_true is None"),
        (["a", 5], ["a", "b"], InputTypeError, "row 1 of y_true is 5, of type int"),
        (["a", [5]], ["a", "b"], InputTypeError, "an answer in row 1 of y_true is 5"),
        ([("a", "b", 5)], ["a"], InputTypeError, "must be a str or (str, start)"),
    ],
)
def test_squad_scores_name_the_bad_row(true: Any, pred: Any, kind: type, part: str) -> None:
    for metric in (squad_f1, squad_em):
        with pytest.raises(kind) as caught:
            metric(true, pred)
        assert part in str(caught.value)


# --- choices -------------------------------------------------------------------------------------


def test_choice_accuracy() -> None:
    assert choice_accuracy([0, 1, 2, 3], np.array([0, 1, 0, 3])) == 0.75
    assert choice_accuracy(pd.Series([0, 1]), [0, 0], sample_weight=[3, 1]) == 0.75
    assert choice_accuracy(["tea", "milk"], np.array(["tea", "rum"], dtype=object)) == 0.5


@pytest.mark.parametrize(
    ("true", "pred", "kind", "part"),
    [
        ([0, 1], [0], InputError, "inconsistent numbers of samples: [2, 1]"),
        ([0, 1.5], [0, 1], InputTypeError, "row 1 of y_true is 1.5, of type float"),
        ([0, 1], [0, None], InputTypeError, "row 1 of y_pred is None"),
        ([0, True], [0, 1], InputTypeError, "row 1 of y_true is True"),
        ([0, "tea"], [0, 1], InputTypeError, "Row 1 has 'tea' in y_true and 1 in y_pred"),
    ],
)
def test_choice_accuracy_names_the_bad_row(true: Any, pred: Any, kind: type, part: str) -> None:
    with pytest.raises(kind) as caught:
        choice_accuracy(true, pred)
    assert part in str(caught.value)


def test_mean_reciprocal_rank_of_an_array() -> None:
    scores = np.array([[0.2, 0.5, 0.3], [0.6, 0.4, 0.0], [0.1, 0.2, 0.7]], dtype=np.float32)
    assert mean_reciprocal_rank([1, 0, 2], scores) == 1.0
    assert mean_reciprocal_rank([0, 1, 1], scores) == pytest.approx((1 / 3 + 1 / 2 + 1 / 2) / 3)
    weighted = mean_reciprocal_rank([0, 1, 2], scores, sample_weight=[0, 1, 3])
    assert weighted == pytest.approx((1 / 2 + 3) / 4)


def test_mean_reciprocal_rank_of_ragged_rows() -> None:
    scores = [[-3.0, -1.0], [5.0], [0.0, -2.0, 1.0]]
    expected = pytest.approx((1 + 1 + 1 / 3) / 3)
    assert mean_reciprocal_rank([1, 0, 1], scores) == expected
    assert mean_reciprocal_rank(pd.Series([1, 0, 1]), object_array(scores)) == expected


def test_ties_count_against() -> None:
    assert mean_reciprocal_rank([0], [[0.5, 0.5]]) == 0.5
    assert mean_reciprocal_rank([2], [[0.0, 0.0, 0.0, 0.0]]) == 0.25
    assert mean_reciprocal_rank([0], [[0.4, 0.2, 0.2, 0.2]]) == 1.0


def test_mean_reciprocal_rank_equals_the_definition() -> None:
    draw = np.random.default_rng(6)
    scores = [draw.random(n) for n in draw.integers(1, 7, 200)]
    gold = [int(draw.integers(len(row))) for row in scores]
    order = [np.argsort(-row).tolist() for row in scores]
    expected = np.mean([1 / (1 + row.index(each)) for row, each in zip(order, gold, strict=True)])
    assert mean_reciprocal_rank(gold, scores) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("true", "scores", "kind", "part"),
    [
        ([0, 2], [[1, 2], [1, 2]], InputError, "Row 1 of y_true is 2, but row 1 of y_score has 2"),
        ([-1], [[1, 2]], InputError, "Positions count from 0"),
        ([0], [[]], InputError, "has 0 option(s)"),
        ([0], [[1, float("nan")]], InputError, "Row 0 of y_score holds NaN"),
        ([0, 0], [[1]], InputError, "inconsistent numbers of samples"),
        ([0, 0], np.array([[1, 2], [1, -2]]), InputError, "Row 1 of y_score has a negative score"),
        (["tea"], [[1]], InputTypeError, "row 0 of y_true is 'tea'"),
        ([0], [["tea"]], InputTypeError, "row 0 of y_score is ['tea']"),
        ([0], [0.5], InputTypeError, "row 0 of y_score is 0.5, of type float"),
        ([0], [[[1, 2]]], InputTypeError, "must be a list of numbers"),
    ],
)
def test_mean_reciprocal_rank_names_the_bad_row(
    true: Any, scores: Any, kind: type, part: str
) -> None:
    with pytest.raises(kind) as caught:
        mean_reciprocal_rank(true, scores)
    assert part in str(caught.value)


# --- weights -------------------------------------------------------------------------------------

PERFECT = [
    pytest.param(entity_f1, [["B-A"]] * 3, [["B-A"]] * 3, id="entity_f1"),
    pytest.param(squad_f1, ["x"] * 3, ["x"] * 3, id="squad_f1"),
    pytest.param(squad_em, ["x"] * 3, ["x"] * 3, id="squad_em"),
    pytest.param(choice_accuracy, [0] * 3, [0] * 3, id="choice_accuracy"),
    pytest.param(mean_reciprocal_rank, [0] * 3, [[1.0]] * 3, id="mean_reciprocal_rank"),
]


@pytest.mark.parametrize(("metric", "true", "pred"), PERFECT)
def test_weights_are_checked(metric: Any, true: Any, pred: Any) -> None:
    assert metric(true, pred, sample_weight=[1, 2, 0.5]) == 1.0
    assert type(metric(true, pred)) is float
    for weights in ([1, 2], [1, -1, 1], [0, 0, 0], [1, float("nan"), 1]):
        with pytest.raises(InputError, match=r"sample_weight|Sample weights"):
            metric(true, pred, sample_weight=weights)
    with pytest.raises(TypeError):
        metric(true, pred, None, [1, 1, 1])


# --- scorers -------------------------------------------------------------------------------------


class Memory(BaseEstimator):
    """Remembers what each row's key had in fit; knows the first ``size`` keys."""

    def __init__(self, size: int = 100, other: Any = None) -> None:
        self.size = size
        self.other = other

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Memory:
        known: dict[str, Any] = {}
        for key, cell in zip(list(X), list(y), strict=True):
            known.setdefault(key, cell)
        self.known_ = dict(sorted(known.items())[: self.size])
        return self

    def predict(self, X: Any) -> np.ndarray:
        return object_array([self.known_.get(key, self.other) for key in X])


class Ranker(Memory):
    """Memory as probabilities over three options."""

    def predict_proba(self, X: Any) -> np.ndarray:
        return np.eye(3)[[int(self.known_.get(key, 0)) for key in X]] * 0.8 + 0.1


KEYS = ["ada", "bee", "cat", "dog"] * 6
TAGS = {"ada": ["B-A", "O"], "bee": ["B-B", "I-B"], "cat": ["O", "B-A"], "dog": ["O", "O"]}
ANSWERS = {"ada": [("one", 0)], "bee": [("two", 3), "2"], "cat": "", "dog": "four"}
OPTIONS = {"ada": 0, "bee": 1, "cat": 2, "dog": 1}
JOBS = [
    pytest.param("entity_f1", Memory(other=["O", "O"]), TAGS, id="entity_f1"),
    pytest.param(
        "squad_f1", Memory(other=""), {**ANSWERS, "ada": "one", "bee": "2"}, id="squad_f1"
    ),
    pytest.param(
        "squad_em", Memory(other=""), {**ANSWERS, "ada": "one", "bee": "2"}, id="squad_em"
    ),
    pytest.param("choice_accuracy", Memory(other=0), OPTIONS, id="choice_accuracy"),
    pytest.param("mean_reciprocal_rank", Ranker(), OPTIONS, id="mean_reciprocal_rank"),
]


@pytest.mark.parametrize("make", [list, object_array, series])
@pytest.mark.parametrize(("name", "model", "truth"), JOBS)
def test_scorers_choose_in_a_grid_search(name: str, model: Any, truth: Any, make: Any) -> None:
    y = make([truth[key] for key in KEYS])
    search = GridSearchCV(model, {"size": [1, 100]}, scoring=get_scorer(name), cv=3)
    search.fit(KEYS, y)
    assert search.best_params_ == {"size": 100}
    assert search.best_score_ == 1.0
    assert search.score(KEYS, y) == 1.0
    assert (cross_val_score(clone(search), KEYS, y, cv=2) == 1.0).all()
    few = cross_val_score(clone(model).set_params(size=1), KEYS, y, scoring=get_scorer(name), cv=3)
    assert ((few > 0) | (name == "mean_reciprocal_rank")).all()
    assert (few < 1).all()


@pytest.mark.parametrize("y", [["x", "x"], [0.0, 2.0], pd.Series([2, 0])], ids=repr)
def test_scorers_of_choices_read_y_as_the_ranker_does(y: Any) -> None:
    """Texts, whole floats and later copies of an option are the first such option."""
    X = [("a", ["x", "y", "x"]), ("b", ["x", "z", "x"])]
    model = Ranker().fit([X[0][0], X[1][0]], [0, 1])
    model.predict = lambda X: [0, 1]
    model.predict_proba = lambda X: np.array([[0.9, 0.1, 0.0], [0.3, 0.7, 0.0]])
    assert get_scorer("choice_accuracy")(model, X, y) == 0.5
    assert get_scorer("mean_reciprocal_rank")(model, X, y) == 0.75


def test_frames_of_one_column_are_their_cells() -> None:
    assert squad_f1(pd.DataFrame({"a": ["x", "y"]}), pl.DataFrame({"b": ["x", "y"]})) == 1.0
    assert choice_accuracy(pd.DataFrame({0: [0, 1]}), [0.0, 1.0]) == 1.0
    frame = pd.DataFrame([[0.6, 0.4], [0.9, 0.1]])
    assert mean_reciprocal_rank([0, 1], frame) == mean_reciprocal_rank([0, 1], frame.to_numpy())
    assert mean_reciprocal_rank([0, 1], pl.from_pandas(frame.rename(columns=str))) == 0.75
    two = pd.DataFrame({"food": ["x", "y"], "staff": ["z", "w"]})
    for metric in (squad_f1, squad_em, choice_accuracy, entity_f1):
        with pytest.raises(InputTypeError, match="y_true is a frame of 2 columns"):
            metric(two, ["food", "staff"])


def test_scorers_score_gold_lists_against_str() -> None:
    model = Memory(other="").fit(KEYS, ["one", "2", "", "four"] * 6)
    golds = [ANSWERS[key] for key in KEYS]
    assert get_scorer("squad_em")(model, KEYS, golds) == 1.0
    assert get_scorer("squad_f1")(model, KEYS, series(golds)) == 1.0


@pytest.mark.parametrize(("name", "model", "truth"), JOBS)
def test_scorers_take_weights_by_routing(name: str, model: Any, truth: Any) -> None:
    y = [truth[key] for key in KEYS]
    model = clone(model).set_params(size=2)
    weights = np.array([0, 0, 1, 0] * 6)  # "cat" is not among the first two keys
    with sklearn.config_context(enable_metadata_routing=True):
        scorer = get_scorer(name).set_score_request(sample_weight=True)
        result = cross_validate(
            model.set_fit_request(sample_weight=False),
            KEYS,
            y,
            scoring={
                "asks": scorer,
                "asks not": get_scorer(name).set_score_request(sample_weight=False),
            },
            params={"sample_weight": weights},
            cv=3,
        )
    fitted = clone(model).fit(KEYS, y)
    only_cat = ["cat"] * 2, [truth["cat"]] * 2
    assert result["test_asks"] == pytest.approx([get_scorer(name)(fitted, *only_cat)] * 3)
    assert result["test_asks not"] == pytest.approx(
        [get_scorer(name)(fitted, KEYS[:8], y[:8])] * 3
    )
    assert not np.allclose(result["test_asks"], result["test_asks not"])
    assert get_scorer(name)(fitted, KEYS, y, sample_weight=weights) == result["test_asks"][0]


@pytest.mark.parametrize(("name", "model", "truth"), JOBS)
def test_scorers_can_be_pickled(name: str, model: Any, truth: Any) -> None:
    y = [truth[key] for key in KEYS]
    scorer = pickle.loads(pickle.dumps(get_scorer(name)))
    assert scorer(model.fit(KEYS, y), KEYS, y) == 1.0


def test_every_call_gives_a_new_scorer() -> None:
    with sklearn.config_context(enable_metadata_routing=True):
        asked = get_scorer("entity_f1").set_score_request(sample_weight="importance")
        assert "importance" in str(asked.get_metadata_routing())
        assert "importance" not in str(get_scorer("entity_f1").get_metadata_routing())


def test_a_scorer_of_ones_own() -> None:
    model = Memory().fit(["k"], [["I-A", "O"]])
    assert get_scorer("entity_f1")(model, ["k"], [["B-A", "O"]]) == 1.0
    assert make_scorer(entity_f1, scheme="IOB2")(model, ["k"], [["B-A", "O"]]) == 0.0


@pytest.mark.parametrize(("name", "hint"), [("entity", "entity_f1"), ("accuracy", "choice")])
def test_unknown_scorers(name: str, hint: str) -> None:
    with pytest.raises(InputError, match=rf"no scorer '{name}'; the scorers are .*{hint}"):
        get_scorer(name)


def test_the_table_of_scorers_names_them_after_their_metrics() -> None:
    others = {"calibration_error", "entity_report", "get_scorer"}  # not of predictions alone
    names = [name for name in metrics.__all__ if name not in others]
    assert names == list(metrics._METRICS)
    assert all(callable(get_scorer(name)) for name in names)
    assert "".join(f'"{name}"' for name in names) in (get_scorer.__doc__ or "").replace(", ", "")


# --- the module ----------------------------------------------------------------------------------


@pytest.mark.long  # an interpreter that imports pandas
def test_metrics_do_not_import_torch() -> None:
    code = (
        "import sys; from skbert.metrics import entity_f1; entity_f1([['B-A']], [['B-A']]); "
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
