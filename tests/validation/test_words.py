"""Rows of words, their tags, and spans in texts: every container, and every refusal by its row."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from skbert._validation.columns import FitRecord
from skbert._validation.entities import check_spans, check_tags
from skbert._validation.texts import Texts
from skbert._validation.words import WordRows, check_words
from skbert.exceptions import InputError, InputTypeError, SkbertWarning

ROWS = [["Anna", "lives", "here"], ["Bob"], []]
EVEN = [["a", "b"], ["c", "d"], ["e", "f"]]
TAGS = [["B-PER", "O", "O"], ["B-PER"], []]


def objects(rows: list[Any]) -> np.ndarray:
    found = np.empty(len(rows), object)
    for row, value in enumerate(rows):
        found[row] = value
    return found


def column(rows: list[Any]) -> np.ndarray:
    return objects(rows).reshape(-1, 1)


CONTAINERS = {
    "list": list,
    "tuple": tuple,
    "rows that are tuples": lambda rows: [tuple(row) for row in rows],
    "rows that are arrays": lambda rows: [np.array(row, str) for row in rows],
    "rows that are object arrays": lambda rows: [objects(row) for row in rows],
    "object array": objects,
    "(n, 1) object array": column,
    "Series": lambda rows: pd.Series(rows, index=[7] * len(rows)),
    "Series of arrays": lambda rows: pd.Series([np.array(row, object) for row in rows]),
    "Series of arrow lists": lambda rows: pd.Series(
        rows, dtype=pd.ArrowDtype(pa.list_(pa.string()))
    ),
    "one-column frame": lambda rows: pd.DataFrame({"words": rows}),
    "polars Series": lambda rows: pl.Series("words", rows, dtype=pl.List(pl.String)),
    "polars frame": lambda rows: pl.DataFrame(
        {"words": rows}, schema={"words": pl.List(pl.String)}
    ),
    "pyarrow array": lambda rows: pa.array(rows, pa.list_(pa.string())),
    "pyarrow table": lambda rows: pa.table({"words": pa.array(rows, pa.list_(pa.string()))}),
}


def words(X: Any, **settings: Any) -> list[list[str]]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = check_words(X, **settings)
    assert isinstance(found, WordRows)
    assert len(found) == len(found.words)
    assert all(type(word) is str for row in found.words for word in row)
    return found.words


# --- rows of words -------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [ROWS, EVEN, [["a", "b"]], [["a"], ["b"]]], ids=len)
@pytest.mark.parametrize("container", CONTAINERS)
def test_every_container_holds_rows_of_words(container: str, rows: list[list[str]]) -> None:
    assert words(CONTAINERS[container](rows)) == rows


@pytest.mark.parametrize("dtype", [str, object])
def test_a_two_dimensional_array_is_rows_of_words(dtype: type) -> None:
    assert words(np.array(EVEN, dtype)) == EVEN


def test_the_lists_are_new() -> None:
    X = [["a", "b"], ["c"]]
    found = words(X)
    found[0][0] = "changed"
    assert X[0] == ["a", "b"]


def test_one_column_of_a_frame_is_chosen() -> None:
    frame = pd.DataFrame({"id": range(3), "words": ROWS})
    assert words(frame, columns="words") == words(frame, columns=["words"]) == ROWS
    assert words(frame, columns=1) == ROWS
    assert check_words(frame, columns="words").names == ("id", "words")
    with pytest.raises(InputError, match=r"2 columns.*text_columns="):
        check_words(frame)
    with pytest.raises(InputError, match=r"Did you mean 'words'"):
        check_words(frame, columns="word")
    with pytest.raises(InputError, match=r"text_columns='words'"):
        check_words(frame, columns=["words", "id"])


def test_columns_must_be_those_of_fit() -> None:
    frame = pd.DataFrame({"words": ROWS})
    words(frame, fitted=FitRecord(("words",), 1))
    words(ROWS, fitted=FitRecord(("words",), 1))
    with pytest.raises(InputError, match="feature names should match"):
        check_words(frame, fitted=FitRecord(("tokens",), 1))


def test_words_of_any_kind_of_str() -> None:
    odd = [["", " ", "\x00", "a b", "[SEP]", "\u200b", np.str_("é"), "e\u0301"]]
    assert words(odd) == [[str(word) for word in odd[0]]]


def test_lone_surrogates_are_replaced_with_one_warning() -> None:
    X = [["a", "b"], ["\ud800x", "\udfff"], ["c"]]
    with pytest.warns(SkbertWarning, match=r"1 row\(s\) of X.*row 1") as caught:
        assert check_words(X).words == [["a", "b"], ["\ufffdx", "\ufffd"], ["c"]]
    assert len(caught) == 1
    assert X[1] == ["\ud800x", "\udfff"]


def test_mostly_empty_rows_give_one_warning() -> None:
    with pytest.warns(SkbertWarning, match="2 of 3 rows of X hold no word, the first is row 0"):
        check_words([[], [], ["a"]])


def test_missing_rows_and_words_may_be_read_as_empty_ones() -> None:
    assert words([["a", None], None, ["b", float("nan")]], missing="empty") == [
        ["a", ""], [], ["b", ""]]  # fmt: skip


MISSING = [None, float("nan"), np.nan, pd.NA, pd.NaT]


@pytest.mark.parametrize("cell", MISSING, ids=repr)
def test_missing_rows_and_words_are_refused(cell: Any) -> None:
    with pytest.raises(InputError, match=r"2 missing row\(s\), the first is row 1"):
        check_words([["a"], cell, ["b"], cell])
    with pytest.raises(InputError, match="missing word, in row 1, word 2"):
        check_words([["a"], ["b", "c", cell]])


@pytest.mark.parametrize(
    ("cell", "hint"),
    [
        (b"bytes", "decode"),
        (7, "str"),
        (1.5, "str"),
        (True, "str"),
        (["nested"], "flat list"),
        (("w", "POS"), "flat list"),
        ({"a": 1}, "str"),
        (Path("x"), "str"),
    ],
)
def test_words_that_are_no_str(cell: Any, hint: str) -> None:
    name = type(cell).__name__
    with pytest.raises(InputTypeError, match=f"row 1, word 1 holds.*type {name}.*{hint}"):
        check_words([["a"], ["b", cell]])


def test_an_array_of_bytes_or_numbers_as_a_row() -> None:
    with pytest.raises(InputTypeError, match=r"row 1, word 0.*bytes"):
        check_words([["a"], np.array([b"x"])])
    with pytest.raises(InputTypeError, match=r"row 0, word 0.*int"):
        check_words(np.arange(6).reshape(3, 2))
    with pytest.raises(InputTypeError, match=r"row 0, word 0.*list"):
        check_words([np.array([["a"]])])


def test_rows_of_words_beside_texts() -> None:
    with pytest.raises(InputTypeError, match=r"row 0 is \['a'\], row 1 is 'text', of type str"):
        check_words([["a"], "text"])
    with pytest.raises(InputTypeError, match=r"row 1 is \['a'\], row 0 is 3, of type int"):
        check_words([3, ["a"]])


@pytest.mark.parametrize(
    ("X", "error", "match"),
    [
        ("text", InputError, "Iterable over raw text documents"),
        (b"text", InputError, "Iterable over raw text documents"),
        ([], InputError, r"Found array with 0 sample\(s\)"),
        (np.empty((0, 3)), InputError, r"Found array with 0 sample\(s\)"),
        ({"a": ["b"]}, InputTypeError, "dict"),
        ({"a"}, InputTypeError, "set"),
        ((row for row in ROWS), InputError, r"list\(X\)"),
        (np.empty((2, 2, 2), object), InputError, "dim 3"),
        ([{"a"}, {"b"}], InputTypeError, "row 0.*set"),
        ([1, 2], InputTypeError, "row 0.*int"),
        ([b"a"], InputTypeError, "row 0.*bytes"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_has_no_rows_of_words(X: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        check_words(X)


def test_one_word_in_every_text_is_worth_a_warning() -> None:
    fitted = FitRecord(None, 1)
    with pytest.warns(SkbertWarning, match=r"row 0 'Anna'.*type \[X\]"):
        check_words(["Anna", "lives"], fitted=fitted)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_words(["Anna"], fitted=fitted)
        check_words(["Anna", "lives here"], fitted=fitted)
        check_words(["Anna", "lives"])  # y tells what they are
        check_words(["\u4f60\u597d", "\u518d\u89c1"], fitted=fitted)


def test_texts_are_checked_as_texts() -> None:
    found = check_words(["Anna lives here", "Bob"])
    assert isinstance(found, Texts)
    assert found.first == ["Anna lives here", "Bob"]
    frame = pd.DataFrame({"id": [1, 2], "text": found.first})
    assert check_words(frame, columns="text").first == found.first
    assert check_words(np.array([["a b"], ["c"]])).first == ["a b", "c"]
    with pytest.raises(InputError, match=r"1 missing text\(s\), the first in row 1"):
        check_words(["a", None])
    assert check_words(["a", None], missing="empty").first == ["a", ""]
    with pytest.raises(InputError, match="feature names should match"):
        check_words(frame[["text"]], fitted=FitRecord(("title",), 1))


# --- tags ----------------------------------------------------------------------------------------

LENGTHS = [3, 1, 0]


@pytest.mark.parametrize("container", CONTAINERS)
def test_every_container_holds_tags(container: str) -> None:
    assert check_tags(CONTAINERS[container](TAGS), LENGTHS) == TAGS
    assert check_tags(CONTAINERS[container](EVEN), [2, 2, 2]) == EVEN


def test_tags_in_two_dimensions() -> None:
    assert check_tags(np.array(EVEN), [2, 2, 2]) == EVEN
    assert check_tags(pd.DataFrame(EVEN), [2, 2, 2]) == EVEN


def test_tags_are_exact_str_in_new_lists() -> None:
    y = [[np.str_("O"), "B-X"]]
    found = check_tags(y, [2])
    assert [type(tag) for tag in found[0]] == [str, str]
    plain = [["O"]]
    check_tags(plain, [1])[0].append("more")
    assert plain == [["O"]]


@pytest.mark.parametrize(
    ("y", "error", "match"),
    [
        (None, InputError, "requires y"),
        ([["O"] * 3, ["O"]], InputError, r"inconsistent numbers of samples: \[3, 2\]"),
        ([["O"] * 2, ["O"], []], InputError, r"Row 0 of y has 2 tag.*row 0 of X has 3 word"),
        ([["O"] * 3, ["O"] * 2, []], InputError, r"Row 1 of y has 2 tag.*row 1 of X has 1 word"),
        ([["O"] * 3, None, []], InputError, "Row 1 of y holds None"),
        ([["O"] * 3, float("nan"), []], InputError, "Row 1 of y holds nan"),
        ([["O", None, "O"], ["O"], []], InputError, "missing tag, in row 0 of y, word 1"),
        ([["O", "", "O"], ["O"], []], InputError, "missing tag, in row 0 of y, word 1"),
        ([["O", "O", float("nan")], ["O"], []], InputError, "row 0 of y, word 2"),
        ([["O", 3, "O"], ["O"], []], InputTypeError, "row 0 of y, word 1 holds 3, of type int"),
        ([["O", b"O", "O"], ["O"], []], InputTypeError, "row 0 of y, word 1.*bytes"),
        ([[1, 0, 0], [1], []], InputTypeError, "row 0 of y, word 0 holds 1"),
        ([["O"] * 3, 1, []], InputTypeError, "Row 1 of y holds 1, of type int"),
        ([["O"] * 3, {"O"}, []], InputTypeError, "Row 1 of y.*set"),
        ([[(0, 4, "X")], [], []], InputError, r"Row 0 of y has 1 tag.*For raw texts"),
        ([[(0, 4, "X")] * 3, ["O"], []], InputTypeError, r"row 0 of y, word 0.*For raw texts"),
        (["O", "O", "O"], InputTypeError, r'\[\["Anna", "lives"\], \.\.\.\]'),
        ({"a": 1}, InputTypeError, "dict"),
        ("OOO", InputError, "string object received"),
        ((row for row in TAGS), InputError, r"list\(y\)"),
    ],
)
def test_tags_that_cannot_be_used(y: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        check_tags(y, LENGTHS)


# --- spans ---------------------------------------------------------------------------------------

TEXTS = ["Anna lives here", "e\u0301 👩\u200d👧 ok", ""]


@pytest.mark.parametrize("container", [list, tuple, objects, pd.Series, column])
def test_every_container_holds_spans(container: Any) -> None:
    y = [[(5, 10, "V"), (0, 4, "PER")], [[np.int64(0), 2, np.str_("X")]], []]
    found = check_spans(container(y), TEXTS)
    assert found == [[(0, 4, "PER"), (5, 10, "V")], [(0, 2, "X")], []]
    assert {type(part) for row in found for span in row for part in span} == {int, str}


def test_rows_of_as_many_spans_stay_rows() -> None:
    y = [[(0, 4, "PER")], [(0, 2, "X")]]
    assert check_spans(y, TEXTS[:2]) == y
    assert check_spans([[], []], TEXTS[:2]) == [[], []]
    assert check_spans([np.array([(0, 4, "PER")], object)], TEXTS[:1]) == [[(0, 4, "PER")]]


@pytest.mark.parametrize(
    ("row", "error", "match"),
    [
        ([(0, 16, "X")], InputError, r"row 1 of y holds \(0, 16, 'X'\).*15 character"),
        ([(-1, 4, "X")], InputError, r"row 1 of y holds \(-1, 4, 'X'\)"),
        ([(4, 0, "X")], InputError, r"row 1 of y holds \(4, 0, 'X'\)"),
        ([(4, 4, "X")], InputError, r"row 1 of y holds \(4, 4, 'X'\)"),
        ([(4, 5, "X")], InputError, "only blanks"),
        ([(5, 10, "X"), (0, 6, "Y")], InputError, r"\(0, 6, 'Y'\) and \(5, 10, 'X'\) in row 1"),
        ([(0, 4, "X"), (0, 4, "Y")], InputError, "overlap"),
        ([(0, 4, None)], InputError, "row 1 of y.*label must be a str"),
        ([(0, 4, 3)], InputError, "row 1 of y.*label must be a str"),
        ([(0, 4, "")], InputError, "row 1 of y.*label must be a str"),
        ([(0, 4)], InputTypeError, r"row 1 of y holds \(0, 4\)"),
        ([(0.0, 4, "X")], InputTypeError, "start and end must be int"),
        ([("0", 4, "X")], InputTypeError, "start and end must be int"),
        ([(None, 4, "X")], InputTypeError, "start and end must be int"),
        ([(False, 4, "X")], InputTypeError, "start and end must be int"),
        ([{"start": 0, "end": 4, "label": "X"}], InputTypeError, "row 1 of y holds {"),
        ([3], InputTypeError, "row 1 of y holds 3"),
        (None, InputError, "Row 1 of y holds None"),
        ({}, InputTypeError, "Row 1 of y holds {}"),
        (["B-PER", "O", "O"], InputTypeError, r'row 1 of y.*\[\["Anna", "lives"\], \.\.\.\]'),
        ("B-PER", InputTypeError, r'row 1 of y.*\[\["Anna", "lives"\], \.\.\.\]'),
        ((0, 4, "X"), InputTypeError, "row 1 of y holds 0"),
    ],
)
def test_spans_that_cannot_be_used(row: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        check_spans([[], row], ["", TEXTS[0]])


def test_a_flat_list_of_words_with_tags() -> None:
    rows = check_words(["Anna", "lives"])
    assert isinstance(rows, Texts)
    for y in (["B-PER", "O"], [["B-PER"], ["O"]], [["B-PER", "O"], ["O"]]):
        with pytest.raises(InputTypeError, match=r'\[\["Anna", "lives"\], \.\.\.\]'):
            check_spans(y, rows.first)


@pytest.mark.parametrize("y", [None, [[]], [[], [], []]], ids=repr)
def test_spans_without_y_or_of_another_length(y: Any) -> None:
    with pytest.raises(InputError, match="requires y" if y is None else "inconsistent numbers"):
        check_spans(y, TEXTS[:2])
