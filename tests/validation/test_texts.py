"""The checks of X, y and weights by themselves: results, messages, speed."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
import time
import unicodedata
import warnings
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import BaseEstimator
from sklearn.exceptions import DataConversionWarning
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.validation import _check_feature_names
from support.bad_inputs import ONE_TEXT_PER_ROW, TWO_TEXTS_PER_ROW

import skbert
from skbert import exceptions
from skbert._validation.tables import check_length, is_missing, open_table
from skbert._validation.targets import check_labels, check_targets
from skbert._validation.texts import Texts, check_texts
from skbert._validation.weights import check_class_weight, check_sample_weight, rescale_weights
from skbert.exceptions import InputError, InputTypeError, SkbertWarning

SCALARS = st.characters(exclude_categories=["Cs"])  # all characters there are
STORED = st.characters(exclude_categories=["Cs"], exclude_characters="\0")  # and numpy keeps
CODES = st.characters()  # lone surrogates too
WORDS = st.lists(st.text(SCALARS, min_size=1), min_size=1, max_size=8)


class Seen(NamedTuple):
    """The X of some fit."""

    names: tuple[str, ...] | None = None
    n_columns: int = 1
    features: tuple[()] = ()
    width: int = 0


def quietly(X: Any, **options: Any) -> Texts:
    """Check X; how much of it is empty is not the question."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SkbertWarning)
        return check_texts(X, **options)


def is_plain(texts: list[str]) -> bool:
    return type(texts) is list and all(type(text) is str for text in texts)


# --- containers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ONE_TEXT_PER_ROW)
def test_one_text_per_row(name: str) -> None:
    cells = ["b", "a", "", "b", "d e", "\u00e9\u4e2d\U0001f44d"]
    X = ONE_TEXT_PER_ROW[name](cells)
    texts = check_texts(X)
    assert texts.first == cells
    assert texts.second is None
    assert texts.n_columns == 1
    assert len(texts) == 6
    assert is_plain(texts.first)


@pytest.mark.parametrize("name", TWO_TEXTS_PER_ROW)
def test_two_texts_per_row(name: str) -> None:
    pairs = [("b", "a"), ("a", "b"), ("", "x y"), ("b", "a")]
    texts = check_texts(TWO_TEXTS_PER_ROW[name](pairs))
    assert texts.first == ["b", "a", "", "b"]
    assert texts.second == ["a", "b", "x y", "a"]
    assert texts.n_columns == 2
    assert is_plain(texts.first)
    assert is_plain(texts.second)


@pytest.mark.parametrize("name", ["pairs-tuples", "pairs-lists", "pairs-array", "pairs-frame"])
def test_two_rows_of_two_texts_are_pairs(name: str) -> None:
    """The form that is hardest to tell from two columns."""
    texts = check_texts(TWO_TEXTS_PER_ROW[name]([("a", "b"), ("c", "d")]))
    assert (texts.first, texts.second) == (["a", "c"], ["b", "d"])


@pytest.mark.parametrize(
    "X",
    [
        (["a"], ["b"]),
        (["a", "b"], ["c", "d"]),
        (["a", "b", "c"], ["d", "e", "f"]),
        [["a", "b", "c"], ["d", "e", "f"]],
        (("a", "b", "c"), ("d", "e", "f")),
        (pd.Series(["a", "b"]), pd.Series(["c", "d"])),
        [pl.Series(["a", "b"]), pl.Series(["c", "d"])],
        (pa.array(["a", "b"]), pa.array(["c", "d"])),
        (np.array(["a", "b"]), np.array(["c", "d"])),
        (["a", "b"], pd.Series(["c", "d"])),
    ],
)
def test_two_columns_are_not_taken_for_two_rows(X: Any) -> None:
    with pytest.raises(InputError, match=r"two columns.*list\(zip\(questions, contexts\)\)"):
        check_texts(X)


@pytest.mark.parametrize(
    "X",
    [
        ("a", "b"),
        ["a", "b"],
        [["a"], ["b"]],
        (("a",), ("b",)),
        list(np.array(["a", "b"])),
        tuple(np.array(["a", "b"])),
        ["a", np.str_("b")],
        np.array(["a", "b"]),
        [np.array(["a"]), np.array(["b"])],
    ],
)
def test_two_rows_of_one_text(X: Any) -> None:
    assert check_texts(X).first == ["a", "b"]


@given(WORDS)
def test_any_text_through_python_containers(cells: list[str]) -> None:
    for build in (list, tuple, lambda cells: np.array(cells, dtype=object)):
        assert quietly(build(cells)).first == cells


@given(st.lists(st.text(STORED, min_size=1), min_size=1, max_size=8))
def test_any_text_through_numpy_and_frames(cells: list[str]) -> None:
    for name in ("array-u", "array-stringdtype", "array-n-by-1", "series-categorical"):
        assert quietly(ONE_TEXT_PER_ROW[name](cells)).first == cells


@given(WORDS)
def test_any_text_through_other_memory(cells: list[str]) -> None:
    for name in ("series", "series-string-pyarrow", "polars-series", "arrow-array"):
        assert quietly(ONE_TEXT_PER_ROW[name](cells)).first == cells


@given(st.lists(st.tuples(st.text(SCALARS), st.text(SCALARS)), min_size=1, max_size=6))
def test_any_pair(pairs: list[tuple[str, str]]) -> None:
    for name in ("pairs-tuples", "pairs-lists", "pairs-frame", "pairs-polars-frame"):
        texts = quietly(TWO_TEXTS_PER_ROW[name](pairs))
        assert list(zip(texts.first, texts.second or [], strict=True)) == pairs


def test_cells_are_taken_by_position() -> None:
    X = pd.Series(["a", "b", "c"], index=[2, 0, 1])
    assert check_texts(X).first == ["a", "b", "c"]
    assert check_texts(X.iloc[[2, 0]]).first == ["c", "a"]
    assert check_texts(X[X != "b"]).first == ["a", "c"]


def test_a_frame_is_its_cells_and_not_its_names() -> None:
    texts = check_texts(pd.DataFrame({"question": ["a", "b", "c"]}))
    assert texts.first == ["a", "b", "c"]
    assert texts.names == ("question",)


def test_columns_of_one_name_are_told_apart_by_position() -> None:
    texts = check_texts(pd.DataFrame([["a", "b"]], columns=["x", "x"]))
    assert (texts.first, texts.second, texts.names) == (["a"], ["b"], ("x", "x"))


@pytest.mark.parametrize("labels", [[0, 1], ["a", 1], [("a", "b"), ("a", "c")], [None, "b"]])
def test_names_are_kept_only_where_all_are_str(labels: list[Any]) -> None:
    assert check_texts(pd.DataFrame([["x", "y"]], columns=pd.Index(labels))).names is None


def test_the_list_given_is_neither_changed_nor_kept() -> None:
    cells = ["a\ud800", np.str_("b"), "c"]
    before = list(cells)
    texts = quietly(cells)
    assert texts.first is not cells
    assert cells == before
    plain = ["a", "b"]
    assert check_texts(plain).first is not plain


def test_iterators_are_not_used_up() -> None:
    X = iter(["a", "b"])
    with pytest.raises(InputError, match=r"list\(X\)"):
        check_texts(X)
    assert list(X) == ["a", "b"]


def test_tables_that_are_read_once_are_not_used_up() -> None:
    table = pa.table({"text": ["a", "b"]})
    reader = pa.RecordBatchReader.from_batches(table.schema, table.to_batches())
    with pytest.raises(InputError, match=r"X\.read_all\(\)"):
        check_texts(reader)
    assert check_texts(reader.read_all()).first == ["a", "b"]
    with pytest.raises(InputError, match=r"X\.collect\(\)"):
        check_texts(pl.LazyFrame({"text": ["a", "b"]}))


def test_only_the_chosen_columns_are_read() -> None:
    class Frame:
        """A table that can be read in one column only."""

        column_names = ("a", "b", "c")

        def __len__(self) -> int:
            return 2

        def __getitem__(self, name: str) -> list[str]:
            assert name == "b"
            return ["x", "y"]

    assert check_texts(Frame(), columns="b").first == ["x", "y"]


def test_an_object_that_only_counts_and_indexes() -> None:
    class Column:
        def __len__(self) -> int:
            return 3

        def __getitem__(self, rows: slice) -> list[str]:
            return ["a", "b", "c"][rows]

    assert check_texts(Column()).first == ["a", "b", "c"]


@pytest.mark.parametrize(
    "odd", [b"x", bytearray(b"x"), {"t": "x"}, {"x"}, 1, np.array("x"), np.array(1), np.float32(1)]
)
def test_two_odd_cells_are_cells(odd: Any) -> None:
    with pytest.raises(InputTypeError, match="row 0 holds"):
        check_texts([odd, odd])
    with pytest.raises(InputTypeError, match="row 1 holds"):
        check_texts(("a", odd))


# --- Texts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [[2, 0, 0], [], [True, False, True]])
def test_take(rows: list[Any]) -> None:
    texts = Texts(["a", "b", "c"], ["x", "y", "z"], ("p", "q"), 2)
    array = np.array(rows, dtype=bool if rows[:1] == [True] else int)
    taken = texts.take(array)
    assert taken.first == np.array(texts.first, dtype=object)[array].tolist()
    assert taken.second == np.array(texts.second, dtype=object)[array].tolist()
    assert (taken.names, taken.n_columns) == (texts.names, texts.n_columns)
    assert len(taken) == len(taken.first)


def test_take_of_single_texts() -> None:
    assert Texts(["a", "b"], None, None, 1).take(np.array([1])) == Texts(["b"], None, None, 1)


# --- cells ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "cell",
    [
        None,
        float("nan"),
        np.nan,
        np.float16("nan"),
        np.float64("nan"),
        pd.NA,
        pd.NaT,
    ],
)
def test_missing(cell: Any) -> None:
    assert is_missing(cell)


@pytest.mark.parametrize(
    "cell", ["", "nan", "None", 0, 0.0, False, [], {}, b"", np.array([]), "NA"]
)
def test_not_missing(cell: Any) -> None:
    assert not is_missing(cell)


@pytest.mark.parametrize(
    "build", [list, pd.Series, pl.Series, lambda c: np.array(c, dtype=object)]
)
def test_missing_cells_are_counted_and_placed(build: Callable[[list[Any]], Any]) -> None:
    X = build(["a", None, "c", None, None])
    with pytest.raises(InputError, match=r"3 missing text\(s\), the first in row 1 "):
        check_texts(X)
    assert check_texts(build(["a", None, "c"]), missing="empty").first == ["a", "", "c"]


def test_missing_cells_of_pairs_name_the_column() -> None:
    X = pd.DataFrame({"q": ["a", "b"], "c": ["x", None]})
    with pytest.raises(InputError, match="row 1 of column 'c'"):
        check_texts(X)
    with pytest.raises(InputError, match="row 1 of column 1"):
        check_texts([("a", "x"), ("b", None)])
    texts = check_texts(X, missing="empty")
    assert (texts.first, texts.second) == (["a", "b"], ["x", ""])


@given(st.lists(st.text(CODES), min_size=1, max_size=6))
def test_lone_surrogates_are_replaced_one_for_one(cells: list[str]) -> None:
    expected = [
        "".join("\ufffd" if unicodedata.category(sign) == "Cs" else sign for sign in cell)
        for cell in cells
    ]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        texts = check_texts(cells)
    assert texts.first == expected
    "".join(texts.first).encode()
    told = [warning for warning in caught if "surrogate" in str(warning.message)]
    assert len(told) == (expected != cells)


def test_a_lone_surrogate_far_into_a_long_text() -> None:
    long = "\u00e9" * (3 << 20) + "\udc80" + "x"
    with pytest.warns(SkbertWarning, match="first is row 1"):
        texts = check_texts(["a", long, "b"])
    assert texts.first[1] == long.replace("\udc80", "\ufffd")


@pytest.mark.parametrize(
    ("cells", "told"),
    [
        (["", "a"], False),
        (["", "", "a"], True),
        (["\u3000\t", "\u2003", "a"], True),
        (["\u200b", "\u200b", "a"], False),
        ([("", "a"), ("", "b"), ("", "c")], False),
        ([("", ""), ("", "b"), (" ", "\n")], True),
    ],
)
def test_warning_of_mostly_empty_rows(cells: list[Any], told: bool) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_texts(cells)
    assert [warning.category for warning in caught] == [SkbertWarning] * told


@given(
    st.lists(
        st.one_of(
            st.integers(),
            st.floats(allow_nan=False),
            st.booleans(),
            st.binary(),
            st.dictionaries(st.text(), st.text()),
            st.fractions(),
            st.dates(),
        ),
        min_size=1,
        max_size=3,
    ),
    st.integers(1, 4),
)
def test_no_other_cell_becomes_a_text(odd: list[Any], before: int) -> None:
    X = ["a"] * before + odd + ["b"]
    with pytest.raises(InputTypeError, match=f"row {before} holds .*{type(odd[0]).__name__}"):
        check_texts(X)
    with pytest.raises(InputTypeError, match=f"row {before} "):
        check_texts(np.array([*X, None], dtype=object), missing="empty")


def test_a_cell_is_shown_briefly() -> None:
    with pytest.raises(InputTypeError) as caught:
        check_texts(["a", list(range(100_000))])
    assert len(str(caught.value)) < 300


# --- choice of columns ---------------------------------------------------------------------------


def wide() -> pd.DataFrame:
    return pd.DataFrame({"stars": [1, 2], "title": ["a", "b"], "body": ["x", "y"]})


@pytest.mark.parametrize("build", [lambda X: X, pl.from_pandas, pa.Table.from_pandas])
@pytest.mark.parametrize(
    ("columns", "first", "second"),
    [
        ("title", ["a", "b"], None),
        (["title"], ["a", "b"], None),
        (1, ["a", "b"], None),
        (-1, ["x", "y"], None),
        (np.int64(2), ["x", "y"], None),
        (["title", "body"], ["a", "b"], ["x", "y"]),
        (["body", "title"], ["x", "y"], ["a", "b"]),
        ((2, "title"), ["x", "y"], ["a", "b"]),
        (np.array([1, 2]), ["a", "b"], ["x", "y"]),
        (pd.Index(["title", "body"]), ["a", "b"], ["x", "y"]),
    ],
)
def test_choice_of_columns(
    build: Callable[[pd.DataFrame], Any], columns: Any, first: list[str], second: list[str] | None
) -> None:
    columns = [columns] if isinstance(columns, np.integer) else columns
    texts = check_texts(build(wide()), columns=columns)
    assert (texts.first, texts.second) == (first, second)
    assert texts.names == ("stars", "title", "body")
    assert texts.n_columns == (1 if second is None else 2)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ("tilte", "'tilte'.*Did you mean 'title'"),
        ("x", r"'x'.*\['stars', 'title', 'body'\]\.$"),
        (3, r"column 3.*\['stars', 'title', 'body'\]"),
        (-4, "column -4"),
        (["title", 5], "column 5"),
        (["title", "title"], "does not choose"),
        ([], "does not choose"),
        ({}, "does not choose"),
        ({"title": "t", "x": "b"}, r"'x'.*\['stars', 'title', 'body'\]\.$"),
        (["title", "body", 1], "one column of X twice, as 'title' and as 1"),
        (["body", -1], "one column of X twice, as 'body' and as -1"),
        ({"title": "", "body": "b"}, "column 'title' to ''.* no field name"),
        ({"title": 3}, "column 'title' to 3.* no field name"),
        ({"title": "a", "body": "a"}, "columns 'title' and 'body' the same field name, 'a'"),
        ([True], "does not choose"),
        ({"title", "body"}, "does not choose"),
        ([None], "does not choose"),
    ],
)
def test_choice_of_columns_that_are_not_there(columns: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        check_texts(wide(), columns=columns)


def test_choice_of_a_column_without_texts() -> None:
    with pytest.raises(InputTypeError, match="row 0 of column 'stars' holds 1, of type int"):
        check_texts(wide(), columns="stars")


@pytest.mark.parametrize(
    ("X", "columns"), [(["a", "b"], "title"), ([("a", "x"), ("b", "y")], ["title", "body"])]
)
def test_choice_by_name_takes_texts_without_names(X: Any, columns: Any) -> None:
    """Rows that are nothing but the chosen columns need no names."""
    assert check_texts(X, columns=columns).first == ["a", "b"]


def test_choice_by_name_takes_no_table_without_names() -> None:
    with pytest.raises(InputError, match="'title'"):
        check_texts([("a", "x")], columns="title")


def test_three_columns_are_not_guessed() -> None:
    for X in (wide(), pl.from_pandas(wide()), wide()[["title", "body"]].assign(c="c").to_numpy()):
        with pytest.raises(InputError, match=r"3 columns.*text_columns=.*named fields"):
            check_texts(X)


# --- fields --------------------------------------------------------------------------------------


def four() -> pd.DataFrame:
    return wide().assign(tags=["u", "v"])


@pytest.mark.parametrize(
    ("columns", "names", "texts"),
    [
        (["title", "body", "tags"], ["title", "body", "tags"], ["a", "x", "u"]),
        (("tags", "title", "body"), ["tags", "title", "body"], ["u", "a", "x"]),
        ([3, 1, 2], [None, None, None], ["u", "a", "x"]),
        (np.array([1, 2, 3]), [None, None, None], ["a", "x", "u"]),
        (["title", 2, -1], ["title", None, None], ["a", "x", "u"]),
        ({"title": "t", "body": "text"}, ["t", "text"], ["a", "x"]),
        ({2: "text", 1: "t"}, ["text", "t"], ["x", "a"]),
        ({"title": "a\ud800", "body": "b"}, ["a\ufffd", "b"], ["a", "x"]),
    ],
)
@pytest.mark.parametrize("build", [lambda X: X, pl.from_pandas])
def test_columns_that_are_fields(
    build: Callable[[pd.DataFrame], Any], columns: Any, names: list[str | None], texts: list[str]
) -> None:
    found = check_texts(build(four()), columns=columns)
    assert [field.name for field in found.fields] == names
    assert [field.texts[0] for field in found.fields] == texts
    assert found.columns == [field.texts for field in found.fields]
    assert (found.first, found.second) == (found.columns[0], None)
    assert found.n_columns == len(names)
    taken = found.take(np.array([1]))
    assert taken.columns == [[column[1]] for column in found.columns]
    assert [field.name for field in taken.fields] == names


def test_a_single_field_is_a_text() -> None:
    assert check_texts(four(), columns={"body": "text"}) == check_texts(four(), columns="body")


def test_two_columns_are_a_pair() -> None:
    assert not check_texts(four(), columns=["title", "body"]).fields


def test_a_column_without_a_name_is_a_field_without_one() -> None:
    X = pd.DataFrame([["a", "b", "c"]], columns=["", " ", "tags"])
    found = check_texts(X, columns=["", " ", "tags"])
    assert [field.name for field in found.fields] == [None, None, "tags"]


@pytest.mark.parametrize("build", [pd.DataFrame.to_numpy, lambda X: [*X.itertuples(index=False)]])
def test_fields_by_name_take_rows_without_names(build: Callable[[pd.DataFrame], Any]) -> None:
    columns = ["title", "body", "tags"]
    X = build(four()[columns])
    found = check_texts(X, columns=columns, fitted=Seen(("title", "body", "tags"), 3))
    assert [field.name for field in found.fields] == columns
    with pytest.raises(InputError, match="X has 2 features, but Name is expecting 3 features"):
        check_texts([("a", "b")], columns=columns, fitted=Seen(None, 3), estimator_name="Name")


def test_gaps_in_fields() -> None:
    X = four().assign(body=["x", None])
    columns = ["title", "body", "tags"]
    with pytest.raises(InputError, match="row 1 of column 'body'"):
        check_texts(X, columns=columns)
    assert check_texts(X, columns=columns, missing="empty").columns[1] == ["x", ""]
    with pytest.raises(InputTypeError, match="row 0 of column 'stars' holds 1"):
        check_texts(X, columns=["title", "stars", "tags"])


# --- after fit -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seen", "now"),
    [
        (["a", "b"], ["b", "a"]),
        (["a", "b"], ["a"]),
        (["a", "b"], ["a", "c"]),
        (["a"], ["a", "b"]),
        (["a", "b"], [f"x{i}" for i in range(9)]),
    ],
)
def test_feature_names_are_refused_in_the_words_of_scikit_learn(
    seen: list[str], now: list[str]
) -> None:
    X = pd.DataFrame([["x"] * len(now)], columns=now)
    estimator = BaseEstimator()
    estimator.feature_names_in_ = np.array(seen, dtype=object)
    with pytest.raises(ValueError, match="feature names") as expected:
        _check_feature_names(estimator, X, reset=False)
    with pytest.raises(InputError) as found:
        check_texts(X, fitted=Seen(tuple(seen), len(seen)))
    assert str(found.value).startswith(str(expected.value))


@pytest.mark.parametrize(
    ("seen", "now", "fix"),
    [
        (["a", "b"], ["b", "a"], "type X[['a', 'b']]."),
        (["a"], ["a", "b"], "type X[['a']]."),
        (["a", "b"], ["a"], "Give X all of the columns of fit."),
        (["text"], ["tekst", "n"], "type X.rename(columns={'tekst': 'text'})."),
        (["text"], ["n"], "type X.rename(columns={'n': 'text'})."),
    ],
)
def test_other_names_are_refused_with_what_to_type(
    seen: list[str], now: list[str], fix: str
) -> None:
    X = pd.DataFrame([["x"] * len(now)], columns=now)
    with pytest.raises(InputError) as found:
        check_texts(X, fitted=Seen(tuple(seen), len(seen)))
    assert str(found.value).endswith(fix)


@pytest.mark.parametrize(
    ("fitted", "X"),
    [
        (Seen(("a",), 1), ["x"]),
        (Seen(("a",), 1), pd.Series(["x"], name="other")),
        (Seen(("a", "b"), 2), [("x", "y")]),
        (Seen(None, 1), pd.DataFrame({"a": ["x"]})),
        (Seen(None, 2), pd.DataFrame({"a": ["x"], "b": ["y"]})),
        (Seen(("a",), 1), pl.DataFrame({"a": ["x"]})),
        (Seen(("a",), 1), pd.DataFrame({"a": ["x"]})),
    ],
)
def test_what_fits_after_fit(fitted: Any, X: Any) -> None:
    assert check_texts(X, fitted=fitted).first == ["x"]


WIDE = np.array([["x", "y", "z", "w"]], object)


def test_columns_by_position_are_those_of_a_table_as_wide_as_in_fit() -> None:
    X = pd.DataFrame(WIDE)
    for columns, first in ((1, "y"), ([1, 2], "y"), ([-1, 0], "w"), ({1: "a", 3: "b"}, "y")):
        read = check_texts(WIDE, columns=columns)
        seen = Seen(None, read.n_columns, width=read.width)
        assert check_texts(X, columns=columns, fitted=seen).first == [first]
        for other in (X.drop(columns=0), WIDE[:, [0, 1, 2, 3, 3]]):
            n = other.shape[1]
            words = f"X has {n} features, but Name is expecting 4 features as input.*position"
            with pytest.raises(InputError, match=words):
                check_texts(other, columns=columns, fitted=seen, estimator_name="Name")
    seen = Seen(("a", "b", "c", "d"), 2, width=4)
    assert check_texts([("x", "y")], columns=[0, 1], fitted=seen).second == ["y"]
    assert check_texts(["x"], columns=0, fitted=Seen(None, 1, width=4)).first == ["x"]


@pytest.mark.parametrize("columns", [["title", "body"], {"title": "Title", "body": "Body"}])
def test_unnamed_columns_are_not_taken_for_those_of_fit_in_another_order(columns: Any) -> None:
    X = pd.DataFrame({"body": ["b"], "title": ["t"]})
    seen = Seen(("body", "title"), 2, width=2)
    assert check_texts(X, columns=columns, fitted=seen).first == ["t"]
    with pytest.raises(InputError, match=r"no column names.*'title', 'body'.*fit had.*'body'"):
        check_texts(X.to_numpy(), columns=columns, fitted=seen)
    assert check_texts([("t", "b")], columns=columns, fitted=seen).first == ["t"]
    assert check_texts([("t", "b")], columns=columns, fitted=Seen(("b", "t", "x"), 2)).first == [
        "t"
    ]
    assert check_texts([("t", "b")], columns=columns, fitted=Seen(None, 2, width=2)).first == ["t"]


@pytest.mark.parametrize(
    ("fitted", "X", "count"),
    [
        (Seen(None, 2), ["x"], 1),
        (Seen(None, 1), [("x", "y")], 2),
        (Seen(("a", "b"), 2), ["x"], 1),
        (Seen(None, 2), [("x", "y", "z")], 3),
        (Seen(None, 2), pd.DataFrame({"a": ["x"]}), 1),
        (Seen(None, 1), pd.DataFrame({"a": ["x"], "b": ["y"]}), 2),
        (Seen(None, 1), pd.DataFrame([["x", "y"]]), 2),
        (Seen(None, 2), pd.DataFrame({"a": ["x"], "b": ["y"], "c": ["z"]}), 3),
    ],
)
def test_another_number_of_texts_after_fit(fitted: Seen, X: Any, count: int) -> None:
    words = f"X has {count} features, but Name is expecting {fitted.n_columns} features as input"
    with pytest.raises(InputError, match=words) as found:
        check_texts(X, fitted=fitted, estimator_name="Name")
    assert "row 0" in str(found.value) or "X has the columns" in str(found.value)
    if count > fitted.n_columns:  # what the message says to type
        typed = re.findall(r"type (.+?\]+)(?:\.$| if)", str(found.value))
        (form,) = typed
        check_texts(eval(form, {"X": X}), fitted=fitted)


def test_columns_chosen_by_name_may_move() -> None:
    fitted = Seen(check_texts(wide(), columns=["title", "body"]).names, 2)
    moved = wide()[["body", "title"]].assign(more=0)
    texts = check_texts(moved, columns=["title", "body"], fitted=fitted)
    assert (texts.first, texts.second) == (["a", "b"], ["x", "y"])
    with pytest.raises(InputError, match=r"yet now missing:\n- body\nGive"):
        check_texts(wide()[["title"]], columns=["title", "body"], fitted=fitted)


def test_columns_chosen_by_position_may_not_move() -> None:
    fitted = Seen(check_texts(wide(), columns=1).names, 1)
    with pytest.raises(InputError, match="must be in the same order"):
        check_texts(wide()[["title", "stars", "body"]], columns=1, fitted=fitted)


# --- lengths and labels --------------------------------------------------------------------------


def test_length() -> None:
    check_length(3, 3)
    with pytest.raises(InputError, match=r"numbers of samples: \[3, 2\].*spans has 2"):
        check_length(3, 2, "spans")


Y = ["b", "a", "b", "c"]
FROM_LIST: dict[str, tuple[Any, str]] = {
    "list": (Y, "U"),
    "tuple": (tuple(Y), "U"),
    "numpy-strs": ([np.str_(label) for label in Y], "U"),
    "array": (np.array(Y), "U"),
    "object-array": (np.array(Y, dtype=object), "O"),
    "stringdtype": (np.array(Y, dtype=np.dtypes.StringDType()), "O"),
    "series": (pd.Series(Y, index=[3, 1, 1, 0]), "O"),
    "categorical": (pd.Series(pd.Categorical(Y, ["z", "c", "b", "a"], ordered=True)), "O"),
    "string": (pd.Series(Y, dtype="string"), "O"),
    "polars": (pl.Series(Y), "O"),
    "polars-categorical": (pl.Series(Y, dtype=pl.Categorical), "O"),
    "arrow": (pa.array(Y), "O"),
}


@pytest.mark.parametrize(("y", "kind"), FROM_LIST.values(), ids=FROM_LIST)
def test_str_labels(y: Any, kind: str) -> None:
    labels, is_multilabel = check_labels(y, 4)
    assert labels.tolist() == Y
    assert labels.dtype.kind == kind
    assert not is_multilabel
    assert np.unique(labels).tolist() == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("y", "dtype"),
    [
        ([2, 1, 3], np.int64),
        ([True, False, True], np.bool_),
        ([1.0, 2.0, 1.0], np.float64),
        (np.array([2, 1, 3], dtype=np.uint8), np.uint8),
        (np.array([2, 1, 3], dtype=object), np.int64),
        (np.array([True, False, True], dtype=object), np.bool_),
        (pd.Series([2, 1, 3], dtype="Int32"), np.int64),
        (pd.Series([2, 1, 3], dtype="int16"), np.int16),
        (pd.Series([True, False, True], dtype="boolean"), np.bool_),
        (pd.Series([1, 0, 1], dtype="category"), np.int64),
        (pl.Series([2, 1, 3]), np.int64),
        (pa.array([True, False, True]), np.bool_),
    ],
)
def test_number_labels(y: Any, dtype: type) -> None:
    labels, is_multilabel = check_labels(y, 3)
    assert labels.tolist() == list(y.to_pylist() if isinstance(y, pa.Array) else y)
    assert labels.dtype == dtype
    assert not is_multilabel


@given(st.lists(st.text(SCALARS), min_size=1, max_size=10))
def test_any_str_is_a_label(y: list[str]) -> None:
    labels, _ = check_labels(y, len(y))
    assert labels.tolist() == y
    assert np.unique(labels).tolist() == sorted(set(y))


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=10))
def test_any_int_is_a_label(y: list[int]) -> None:
    labels, _ = check_labels(y, len(y))
    assert labels.tolist() == y


def test_many_labels_of_one_use_are_told_as_by_scikit_learn() -> None:
    with pytest.warns(UserWarning, match="number of unique classes is greater than 50%"):
        check_labels(list(range(30)), 30)


INDICATOR = [[0, 1, 0], [1, 1, 0]]


@pytest.mark.parametrize(
    "build",
    [
        list,
        np.array,
        lambda y: np.array(y, dtype=float),
        lambda y: np.array(y, dtype=bool),
        lambda y: np.array(y, dtype=object),
        pd.DataFrame,
        lambda y: pd.DataFrame(y, dtype="boolean"),
        lambda y: pl.DataFrame(y, schema=["a", "b", "c"], orient="row"),
        scipy.sparse.csr_matrix,
        scipy.sparse.coo_array,
    ],
)
def test_indicator(build: Callable[[Any], Any]) -> None:
    labels, is_multilabel = check_labels(build(INDICATOR), 2)
    assert labels.tolist() == INDICATOR
    assert labels.dtype == np.int64
    assert is_multilabel


@pytest.mark.parametrize("build", [lambda y: y, np.array, pd.DataFrame, pl.DataFrame])
def test_a_column_of_labels_is_flattened(build: Callable[[Any], Any]) -> None:
    with pytest.warns(DataConversionWarning, match="A column-vector y was passed when a 1d array"):
        labels, is_multilabel = check_labels(build([["a"], ["b"], ["a"]]), 3) if build is not (
            pl.DataFrame) else check_labels(pl.DataFrame({"y": ["a", "b", "a"]}), 3)  # fmt: skip
    assert labels.tolist() == ["a", "b", "a"]
    assert not is_multilabel


def test_where_an_indicator_goes_wrong() -> None:
    with pytest.raises(InputError, match="row 1 of column 'q' is 2, not 0 or 1"):
        check_labels(pd.DataFrame({"p": [0, 1], "q": [1, 2]}), 2)


def test_where_kinds_of_labels_mix() -> None:
    with pytest.raises(InputTypeError, match="row 0 is 'a', row 2 is 1"):
        check_labels(["a", "b", 1, 2, "c"], 5)
    with pytest.raises(InputTypeError, match="row 2 is 'a', row 0 is 1"):
        check_labels([1, 2, "a"], 3)


def test_labels_name_the_estimator() -> None:
    with pytest.raises(InputError, match="This Name estimator requires y to be passed"):
        check_labels(None, 3, estimator_name="Name")


# --- targets -------------------------------------------------------------------------------------


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=8))
def test_any_finite_number_is_a_target(y: list[float]) -> None:
    n = len(y)
    for build in (list, np.array, pd.Series, pl.Series, pa.array):
        targets = check_targets(build(y), n)
        assert targets.dtype == np.float64
        assert targets.tolist() == y
    columns = check_targets([[number, -number] for number in y], n)
    assert columns.tolist() == [[number, -number] for number in y]


def test_targets_of_other_types() -> None:
    assert check_targets([True, Fraction(1, 4), np.float32(0.5)], 3).tolist() == [1, 0.25, 0.5]
    assert check_targets([0.1, 2], 2, np.float32).tolist() == [0.1, 2]
    with pytest.raises(
        InputError, match=r"too large for dtype\('float32'\)\. The first is in row 1"
    ):
        check_targets([1.0, 1e300], 2, np.float32)


def test_a_column_of_targets_is_flattened() -> None:
    with pytest.warns(DataConversionWarning, match="A column-vector y was passed"):
        assert check_targets([[1.0], [2.0]], 2).tolist() == [1, 2]


def test_where_targets_are_missing() -> None:
    with pytest.raises(InputError, match=r"Input y contains NaN\. It has 2 missing.*row 1"):
        check_targets(pd.Series([1, None, None], dtype="Float32"), 3)


# --- weights -------------------------------------------------------------------------------------


def test_sample_weight() -> None:
    assert check_sample_weight(None, 3) is None
    for weight in ([1, 2, 0], np.array([1.0, 2, 0]), pd.Series([1, 2, 0], index=[2, 1, 0])):
        found = check_sample_weight(weight, 3)
        assert found is not None
        assert found.dtype == np.float64
        assert found.tolist() == [1, 2, 0]
    assert check_sample_weight(2, 3).tolist() == [2, 2, 2]
    assert check_sample_weight(np.float32(0.5), 2).tolist() == [0.5, 0.5]


def test_weights_to_learn_from_keep_their_ratios() -> None:
    assert rescale_weights(None) is None
    usual = np.array([0.3, 1.0, 0.0, 700.0, 1e-9])
    np.testing.assert_array_equal(rescale_weights(usual), usual)
    for exponent in (-1060, -300, -40, 40, 300, 1000):
        found = rescale_weights(check_sample_weight(np.array([1.0, 3, 0]) * 2.0**exponent, 3))
        assert 2.0**-31 <= found.mean() <= 2.0**10
        np.testing.assert_array_equal(found / found[0], [1, 3, 0])
        assert np.isfinite(np.float32(found) ** 2).all()
    assert rescale_weights(np.array([1.0, 1e-40])).tolist() == [1, 0]  # float32 has no such number
    assert rescale_weights(np.array([0.0, 0.0])).tolist() == [0, 0]


def test_weights_too_large_to_be_added_up() -> None:
    found = check_sample_weight([1.7e308, 0.85e308], 2)
    assert np.isfinite(found.sum())
    assert found[0] == 2 * found[1] > 1e200
    huge = check_class_weight({"a": 1.7e308}, np.array(["a", "b"]), np.array([0, 1]))
    assert np.isfinite(huge.sum() * 2.0**20)


def test_a_weight_that_is_kept_is_not_the_one_given() -> None:
    weight = np.ones(3)
    found = check_sample_weight(weight, 3)
    found[0] = 5
    assert weight.tolist() == [1, 1, 1]


CODES_AND_REPEATS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 3)), min_size=1, max_size=9
)


@given(CODES_AND_REPEATS)
def test_balanced_weights_count_a_weight_like_repeated_rows(rows: list[tuple[int, int]]) -> None:
    classes = np.array(["a", "b", "c"])
    codes = np.array([code for code, _ in rows])
    repeats = np.array([repeat for _, repeat in rows])
    repeated = np.repeat(codes, repeats)
    weighted = check_class_weight("balanced", classes, codes, repeats.astype(float))
    np.testing.assert_allclose(weighted, check_class_weight("balanced", classes, repeated))
    present = np.unique(repeated)
    if len(present):
        expected = compute_class_weight("balanced", classes=present, y=repeated)
        np.testing.assert_allclose(weighted[present], expected)
    assert np.isfinite(weighted).all()


def test_class_weight() -> None:
    classes, codes = np.array([3, 5, 7]), np.array([0, 1, 1, 2])
    assert check_class_weight(None, classes, codes) is None
    assert check_class_weight({5: 2}, classes, codes).tolist() == [1, 2, 1]
    assert check_class_weight({5.0: 0, 3: 0.5}, classes, codes).tolist() == [0.5, 0, 1]
    bools = np.array([False, True])
    assert check_class_weight({True: 3}, bools, np.array([0, 1])).tolist() == [1, 3]
    strings = np.array(["a", "b"], dtype=object)
    found = check_class_weight({np.str_("b"): 3}, strings, np.array([0, 1]))
    assert found.dtype == np.float64
    assert found.tolist() == [1, 3]


def test_class_weight_says_what_was_meant() -> None:
    classes, codes = np.array(["positive", "negative"]), np.array([0, 1])
    with pytest.raises(InputError, match="Did you mean 'balanced'"):
        check_class_weight("ballanced", classes, codes)
    with pytest.raises(InputError, match="Did you mean 'positive' for 'positve'"):
        check_class_weight({"positve": 2}, classes, codes)
    with pytest.raises(InputError, match=r"\['x', 'y'\]"):
        check_class_weight({"x": 2, "positive": 1, "y": 3}, classes, codes)


# --- errors --------------------------------------------------------------------------------------


def test_errors_are_a_tree_with_the_names_python_has() -> None:
    assert issubclass(exceptions.InputError, (exceptions.SkbertError, ValueError))
    parents = {
        "InputError": ValueError,
        "InputTypeError": TypeError,
        "ModelError": ValueError,
        "ModelNotFoundError": OSError,
        "SaveError": ValueError,
        "TrainingError": RuntimeError,
        "NonFiniteError": exceptions.TrainingError,
        "SkbertWarning": UserWarning,
        "TruncationWarning": exceptions.SkbertWarning,
        "SkbertError": Exception,
    }
    assert sorted([*parents, "warn", "warning_once"]) == exceptions.__all__
    for name, parent in parents.items():
        kind = getattr(exceptions, name)
        assert issubclass(kind, parent)
        if not issubclass(kind, Warning):
            assert issubclass(kind, exceptions.SkbertError)
        assert name in exceptions.__doc__
        again = pickle.loads(pickle.dumps(kind("what is wrong")))
        assert type(again) is kind
        assert str(again) == "what is wrong"


# --- cost ----------------------------------------------------------------------------------------


def best_of(tries: int, call: Callable[[], Any]) -> float:
    """Seconds of computing, whatever else this machine is busy with."""
    times = []
    for _ in range(tries):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return min(times)


@pytest.mark.parametrize("cell", ["a plain text %d", "\u00e9t\u00e9 \u4e2d %d"])
@pytest.mark.long
def test_a_million_cells_take_less_than_half_a_second(cell: str) -> None:
    cells = [cell % row for row in range(1_000_000)]
    assert best_of(5, lambda: check_texts(cells)) < 0.5


@pytest.mark.parametrize(("sign", "seconds"), [("a", 0.03), ("\u00e9", 0.1), ("\u4e2d", 0.1)])
def test_a_text_of_fifty_megabytes_is_not_copied(sign: str, seconds: float) -> None:
    text = sign * (50_000_000 // len(sign.encode()))
    assert check_texts([text, "b", "c"]).first[0] is text
    assert best_of(5, lambda: check_texts([text, "b", "c"])) < seconds


def test_no_container_is_imported_to_be_recognised() -> None:
    code = (
        "import sys\n"
        "from skbert._validation.texts import check_texts\n"
        "check_texts(['a', 'b'])\n"
        "heavy = 'torch transformers tokenizers pandas polars pyarrow datasets'.split()\n"
        "sys.exit(' '.join(set(heavy) & set(sys.modules)) or 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_tables_are_named_in_messages() -> None:
    with pytest.raises(InputTypeError, match="spans is of type dict"):
        open_table({}, "spans")
    with pytest.raises(InputError, match=r"rows of spans differ.*Say so\."):
        open_table([[1, 2], [1]], "spans", "Say so.")


def test_modules_build_on_the_first_six_of_the_list_alone() -> None:
    folder = Path(skbert.__file__).parent / "_validation"
    listed = re.findall(r"^- `(\w+)`", (folder / "__init__.py").read_text(), flags=re.MULTILINE)
    assert sorted(listed) == sorted(path.stem for path in folder.glob("[!_]*.py"))
    for place, name in enumerate(listed):
        source = (folder / f"{name}.py").read_text(encoding="utf-8")
        used = set(re.findall(r"^from skbert\._validation\.(\w+)", source, flags=re.MULTILINE))
        others = {"targets"} if name == "probabilities" else set()
        assert used <= {*listed[: min(place, 6)], *others}, name
