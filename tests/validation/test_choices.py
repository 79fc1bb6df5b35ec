"""X and y of the choice ranker by themselves: forms, results, messages."""

from __future__ import annotations

import subprocess
import sys
import warnings
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.exceptions import DataConversionWarning

from skbert._validation.choices import Choices, check_choices, check_picks
from skbert._validation.columns import FitRecord
from skbert.exceptions import InputError, InputTypeError, SkbertWarning

PROMPTS = ["the cat", "a dog", "my room"]
OPTIONS = [["sat", "ran"], ["is it", "was it", "so"], ["on"]]
ROWS = list(zip(PROMPTS, OPTIONS, strict=True))
FRAME = pd.DataFrame({"prompt": PROMPTS, "choices": OPTIONS})
WIDE = pd.DataFrame({
    "prompt": PROMPTS, "a": ["sat", "is it", "on"], "b": ["ran", "was it", None],
    "c": [None, "so", None],
})  # fmt: skip


def objects(cells: list[Any]) -> np.ndarray:
    """A 1-D array, whatever the cells are."""
    array = np.empty(len(cells), dtype=object)
    array[:] = cells
    return array


def table(rows: list[Any]) -> np.ndarray:
    """A 2-D array of objects, lists and all."""
    array = np.empty((len(rows), len(rows[0])), dtype=object)
    for i, row in enumerate(rows):
        for j, cell in enumerate(row):
            array[i, j] = cell
    return array


def there(choices: Choices) -> list[list[str]]:
    return [[text for text in row if text is not None] for row in choices.options]


# --- forms ---------------------------------------------------------------------------------------

FORMS: dict[str, Any] = {
    "list of tuples": ROWS,
    "list of lists": [list(row) for row in ROWS],
    "tuple of tuples": tuple(ROWS),
    "options as tuples": [(prompt, tuple(options)) for prompt, options in ROWS],
    "options as arrays": [(prompt, np.array(options)) for prompt, options in ROWS],
    "options as arrays of objects": [(prompt, objects(options)) for prompt, options in ROWS],
    "object array of rows": objects(ROWS),
    "object table": table(ROWS),
    "Series of rows, odd index": pd.Series(ROWS, index=[7, 7, -1]),
    "frame": FRAME,
    "frame, odd index": FRAME.set_axis([3, 3, 1], axis=0),
    "polars frame": pl.DataFrame({"prompt": PROMPTS, "choices": OPTIONS}),
    "pyarrow table": pa.table({"prompt": PROMPTS, "choices": OPTIONS}),
    "wide frame": WIDE,
    "wide frame with NaN": WIDE.astype(object).where(WIDE.notna(), np.nan),
    "wide frame with pandas.NA": WIDE.convert_dtypes(),
    "wide polars frame": pl.DataFrame(
        WIDE.astype(object).where(WIDE.notna(), None).to_dict("list")
    ),
    "wide rows": [tuple(row) for row in WIDE.to_numpy(dtype=object).tolist()],
    "wide array": WIDE.to_numpy(dtype=object),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms(form: str) -> None:
    found = check_choices(FORMS[form])
    assert found.first == PROMPTS
    assert found.second is None
    assert there(found) == OPTIONS
    assert found.places == [{text: i for i, text in enumerate(row)} for row in OPTIONS]
    assert found.n_columns == 2
    assert len(found) == 3
    named = hasattr(FORMS[form], "columns") or hasattr(FORMS[form], "column_names")
    names = {2: ("prompt", "choices"), 4: ("prompt", "a", "b", "c")}
    width = len(getattr(FORMS[form], "columns", names[2]))
    assert found.names == (names[width] if named else None)
    assert {type(text) for row in there(found) for text in row} == {str}


EVEN = [("p", ["a", "b"]), ("q", ["c", "d"])]


@pytest.mark.parametrize(
    "X", [EVEN, tuple(EVEN), objects(EVEN), table(EVEN), np.array([[*"pab"], [*"qcd"]])]
)
def test_rows_of_equal_shape_are_rows(X: Any) -> None:
    found = check_choices(X)
    assert found.first == ["p", "q"]
    assert there(found) == [["a", "b"], ["c", "d"]]


def test_a_second_text() -> None:
    rows = [("p", "x", ["a", "b"]), ("q", "y", ["c"])]
    for X in (rows, objects(rows), table(rows), pd.DataFrame(rows, columns=["p", "s", "o"])):
        found = check_choices(X)
        assert (found.first, found.second, there(found)) == (
            ["p", "q"], ["x", "y"], [["a", "b"], ["c"]])  # fmt: skip
        assert found.n_columns == 3


def test_three_columns_of_str_are_a_prompt_and_two_options() -> None:
    found = check_choices([("p", "x", "a"), ("q", "y", "b")])
    assert found.second is None
    assert there(found) == [["x", "a"], ["y", "b"]]


def test_a_cell_that_is_missing_is_an_option_that_is_not_there() -> None:
    found = check_choices([("p", None, "b", float("nan"), "d")])
    assert found.options == [[None, "b", None, "d"]]
    assert found.places == [{"b": 1, "d": 3}]


def test_the_first_of_equal_options_counts() -> None:
    found = check_choices([("p", ["b", "a", "b", "a", "c"])])
    assert list(found.places[0].items()) == [("b", 0), ("a", 1), ("c", 4)]
    assert found.options == [["b", "a", "b", "a", "c"]]


def test_empty_options_are_texts() -> None:
    assert check_choices([("p", ["", " "])]).places == [{"": 0, " ": 1}]


def test_nothing_is_changed_or_shared() -> None:
    rows = [("p", ["a", "\ud800"]), ("q", ["c"])]
    with pytest.warns(SkbertWarning):
        found = check_choices(rows)
    found.options[1].append("more")
    assert rows == [("p", ["a", "\ud800"]), ("q", ["c"])]


# --- columns -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "first", "options"),
    [
        (["prompt", "a", "b", "c"], PROMPTS, OPTIONS),
        (["prompt", "c", "a"], PROMPTS, [["sat"], ["so", "is it"], ["on"]]),
        ([0, 1], PROMPTS, [["sat"], ["is it"], ["on"]]),
        (["a", 0], ["sat", "is it", "on"], [[prompt] for prompt in PROMPTS]),
        (("prompt", -1, 1), PROMPTS, [["sat"], ["so", "is it"], ["on"]]),
    ],
)
def test_text_columns(columns: Any, first: list[str], options: list[list[str]]) -> None:
    found = check_choices(WIDE, columns=columns)
    assert (found.first, there(found)) == (first, options)
    assert found.names == ("prompt", "a", "b", "c")


def test_text_columns_put_the_lists_last() -> None:
    frame = FRAME.assign(id=range(3), second=["x", "y", "z"])[
        ["id", "choices", "second", "prompt"]
    ]
    found = check_choices(frame, columns=["prompt", "second", "choices"])
    assert (found.first, found.second, there(found)) == (PROMPTS, ["x", "y", "z"], OPTIONS)


def test_names_for_rows_without_names_are_all_there_is() -> None:
    for rows in (ROWS, FORMS["wide rows"]):
        assert there(check_choices(rows, columns=["prompt", "choices"])) == OPTIONS


@pytest.mark.parametrize("columns", ["prompt", 0, [], ["prompt"], ["a", "a"]])
def test_text_columns_must_choose_two(columns: Any) -> None:
    with pytest.raises(InputError, match=r"text_columns=.*type text_columns=\['prompt', 'choi"):
        check_choices(WIDE, columns=columns)


def test_an_unknown_column_is_named() -> None:
    with pytest.raises(InputError, match=r"'promt'.*Did you mean 'prompt'\?"):
        check_choices(WIDE, columns=["promt", "a"])
    with pytest.raises(InputError, match=r"names the column 9"):
        check_choices(WIDE, columns=["prompt", 9])


def fitted(X: Any, **options: Any) -> FitRecord:
    found = check_choices(X, **options)
    return FitRecord(found.names, found.n_columns, width=found.width)


def test_rows_may_come_with_other_numbers_of_options_than_in_fit() -> None:
    seen = fitted(FRAME)
    for X in (ROWS, [("p", ["a"])], [("p", "a", "b", "c", "d", "e")], WIDE.to_numpy(object)):
        check_choices(X, fitted=seen)
    check_choices(FRAME, fitted=fitted(ROWS))


def test_frames_must_have_the_columns_of_fit() -> None:
    with pytest.raises(InputError, match=r"feature names should match.*\n.*unseen.*\n- c"):
        check_choices(WIDE, fitted=fitted(WIDE.drop(columns="c")))
    with pytest.raises(InputError, match="same order"):
        check_choices(WIDE[["prompt", "b", "a", "c"]], fitted=fitted(WIDE))
    chosen = {"columns": ["prompt", "a"]}
    check_choices(WIDE[["c", "a", "prompt"]], fitted=fitted(WIDE, **chosen), **chosen)
    with pytest.raises(InputError, match="now missing:\n- a"):
        check_choices(WIDE[["prompt", "b"]], fitted=fitted(WIDE, **chosen), **chosen)


def test_an_array_of_a_whole_frame_is_not_read_as_its_chosen_columns() -> None:
    X = WIDE[["c", "prompt", "a", "b"]]
    for chosen in (["prompt", "a", "b"], ["prompt", "a", "b", "c"]):
        seen = fitted(X, columns=chosen)
        check_choices(X, columns=chosen, fitted=seen)
        with pytest.raises(InputError, match=r"no column names.*'prompt', 'a'.*fit had.*'c', 'pr"):
            check_choices(X.to_numpy(object), columns=chosen, fitted=seen)
        check_choices([("p", "x", "y")], columns=chosen, fitted=seen)
        check_choices([("p", "x", "y", "z")], columns=chosen, fitted=seen)


def test_positions_are_those_of_a_table_as_wide_as_in_fit() -> None:
    array = WIDE.assign(id="1")[["id", "prompt", "a", "b"]].to_numpy(object)
    seen = fitted(array, columns=[1, 2, 3])
    assert check_choices(array, columns=[1, 2, 3], fitted=seen).first == PROMPTS
    with pytest.raises(InputError, match="X has 5 features, but BertChoiceRanker"):
        check_choices(np.insert(array, 0, "x", axis=1), columns=[1, 2, 3], fitted=seen)


def test_a_second_text_belongs_to_all_or_none() -> None:
    rows = [("p", "x", ["a", "b"])]
    with pytest.raises(
        InputError, match="X has 3 features, but BertChoiceRanker is expecting 2 f"
    ):
        check_choices(rows, fitted=fitted(ROWS))
    with pytest.raises(InputError, match="X has 2 features, but Mine is expecting 3 features"):
        check_choices(ROWS, fitted=fitted(rows), estimator_name="Mine")


# --- refusals ------------------------------------------------------------------------------------

TWO = [("p", ["a"]), ("q", ["b"])]

# name: what is wrong -> the kind of error and what it says
BAD_X: dict[str, tuple[Any, type[Exception], str]] = {
    "str": ("p", InputError, "string object received"),
    "dict": ({"prompt": PROMPTS}, InputTypeError, r"of type dict.*pandas\.DataFrame\(X\)"),
    "set": ({1}, InputTypeError, "of type set"),
    "generator": ((row for row in ROWS), InputError, r"Pass list\(X\)"),
    "empty": ([], InputError, r"0 sample\(s\)"),
    "empty frame": (FRAME[:0], InputError, r"0 sample\(s\)"),
    "no columns": (FRAME[[]], InputError, r"0 feature\(s\)"),
    "a cube": (np.zeros((2, 2, 2)), InputError, "Found array with dim 3"),
    "prompts alone": (PROMPTS, InputError, r"one column.*row 0 holds 'the cat', of type str"),
    "rows as dicts": ([{"prompt": "p"}], InputError, "one column.*of type dict"),
    "one column of lists": (FRAME[["choices"]], InputError, "one column"),
    "ragged rows": ([("p", "a"), ("q", "b", "c")], InputError, "row 1 holds 3.*Type list"),
    "a row is missing": ([*TWO, None], InputError, "row 2 holds None"),
    "columns for rows": (
        (PROMPTS, OPTIONS), InputTypeError,
        r"row 1 of column 0, \['sat', .*Type list\(zip\(prompts, options\)\)"),
    "two columns for two rows": (
        (["p", "q"], [["a"], ["b"]]), InputTypeError, r"row 1 of column 0.*list\(zip"),
    "options before the prompt": (
        FRAME[["choices", "prompt"]], InputTypeError,
        r"row 0 of column 'choices'.*text_columns=\['prompt', 'choices'\]"),
    "three texts": ([("p", "q", "r", ["a"])], InputError, "3 columns before the lists"),
    "prompt is a list": ([("p", ["a"]), (["q"], ["b"])], InputTypeError, "row 1 of column 0, "),
    "prompt is a number": ([("p", ["a"]), (3, ["b"])], InputTypeError, "of column 0 holds 3"),
    "prompt is missing": ([*TWO, (None, ["c"])], InputError, r"row 2 of column 0 \(None\)"),
    "second text is missing": (
        [("p", "x", ["a"]), ("q", np.nan, ["b"])], InputError, r"row 1 of column 1 \(nan\)"),
    "no options": ([*TWO, ("r", [])], InputError, "without options: row 2 of column 1"),
    "options are missing": ([*TWO, ("r", None)], InputError, "without options: row 2"),
    "no option in any column": (
        [("p", "a", "b"), ("q", None, None)], InputError, "without options: row 1"),
    "no option anywhere": ([("p", None)], InputError, "without options: row 0"),
    "an option is None": (
        [*TWO, ("r", ["a", None])], InputError, "option 1 of row 2 of column 1 is None"),
    "an option is NaN": (
        pd.DataFrame({"p": ["x"], "o": [[float("nan")]]}), InputError,
        "option 0 of row 0 of column 'o' is nan"),
    "an option is a number": (
        [*TWO, ("r", ["a", "b", 3])], InputTypeError, "option 2 of row 2.*3, of type int"),
    "an option is bytes": ([("r", [b"a"])], InputTypeError, "of type bytes.*decode"),
    "an option is a list": ([("r", [["a"]])], InputTypeError, "option 0 of row 0.*of type list"),
    "a cell is a number": (
        WIDE.assign(b=[1, 2, 3]), InputTypeError, "row 0 of column 'b' is 1, of type int"),
    "a str for a list": ([*TWO, ("r", "abc")], InputTypeError, "row 2 of column 1 is 'abc'"),
    "a set for a list": ([*TWO, ("r", {"a"})], InputTypeError, "row 2 of column 1 is {'a'}"),
    "a cell of no dimension": (
        table([("p", ["a"]), ("q", np.array("b"))]), InputTypeError, "row 1 of column 1 is array"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_X)
def test_bad_questions(case: str) -> None:
    X, kind, message = BAD_X[case]
    with pytest.raises(kind, match=message):
        check_choices(X)


def test_missing_texts_can_be_empty() -> None:
    rows = [("p", "x", ["a"]), (None, np.nan, ["b"]), ("q", "y", ["c"])]
    found = check_choices(rows, missing="empty")
    assert (found.first, found.second) == (["p", "", "q"], ["x", "", "y"])
    with pytest.raises(InputError, match="missing option"):
        check_choices([("p", [None])], missing="empty")


def test_lone_surrogates_become_characters_with_one_warning() -> None:
    rows = [("p", ["a", "b"]), ("q", ["\ud800x", "\udfff", "\ud800x"])]
    with pytest.warns(SkbertWarning, match=r"1 row\(s\) of X hold lone surrogates.*row 1") as seen:
        found = check_choices(rows)
    assert len(seen) == 1
    assert found.options[1] == ["\ufffdx", "\ufffd", "\ufffdx"]
    assert found.places[1] == {"\ufffdx": 0, "\ufffd": 1}
    assert check_picks(["b", "\ud800x"], found).tolist() == [1, 0]


def test_clean_questions_cause_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for X in FORMS.values():
            check_choices(X)


# --- y -------------------------------------------------------------------------------------------

CHOICES = check_choices(
    [("p", ["1", "0"]), ("q", ["c", "d", "c", "e"]), ("r", ["", "f"])], columns=None
)

GOOD_Y: dict[str, tuple[Any, list[int]]] = {
    "list of int": ([1, 0, 1], [1, 0, 1]),
    "array": (np.array([1, 0, 1]), [1, 0, 1]),
    "small unsigned array": (np.array([1, 0, 1], dtype=np.uint8), [1, 0, 1]),
    "Series, odd index": (pd.Series([1, 3, 1], index=[9, 9, 0]), [1, 3, 1]),
    "objects": (objects([1, np.int64(3), Fraction(1)]), [1, 3, 1]),
    "whole floats": ([1.0, 0.0, np.float32(1)], [1, 0, 1]),
    "polars": (pl.Series([1, 3, 1]), [1, 3, 1]),
    "a later copy": ([0, 2, 0], [0, 0, 0]),
    "texts": (["0", "e", ""], [1, 3, 0]),
    "texts that look like positions": (["1", "c", "f"], [0, 0, 1]),
    "array of texts": (np.array(["0", "d", "f"]), [1, 1, 1]),
    "categorical texts": (pd.Categorical(["0", "d", "f"]), [1, 1, 1]),
}


@pytest.mark.parametrize("case", GOOD_Y)
def test_good_y(case: str) -> None:
    y, expected = GOOD_Y[case]
    found = check_picks(y, CHOICES)
    assert found.tolist() == expected
    assert found.dtype == np.int64


def test_a_column_of_y_is_flattened_with_a_warning() -> None:
    with pytest.warns(DataConversionWarning, match="ravel"):
        assert check_picks([[1], [0], [1]], CHOICES).tolist() == [1, 0, 1]


BAD_Y: dict[str, tuple[Any, type[Exception], str]] = {
    "nothing": (None, InputError, "requires y to be passed"),
    "a str": ("101", InputError, "must hold one value per row"),
    "too short": ([1, 0], InputError, r"\[3, 2\]"),
    "too long": ([1, 0, 1, 1], InputError, r"\[3, 4\]"),
    "two columns": ([[1, 0], [0, 1], [1, 0]], InputError, "2 values per row"),
    "beyond the last": ([1, 4, 1], InputError, r"Row 1 of y is 4.*\['c', 'd', 'c', 'e'\]"),
    "before the first": ([1, -1, 1], InputError, "Row 1 of y is -1"),
    "an unknown text": (["0", "x", ""], InputError, r"Row 1 of y is 'x', which is not an.*'d'"),
    "a text of another row": (["c", "c", "f"], InputError, r"Row 0 of y is 'c'.*\['1', '0'\]"),
    "mixed": ([1, "c", 1], InputTypeError, "mixes positions and texts: row 0 is 1, row 1 is 'c'"),
    "mixed the other way": (["1", "c", 1], InputTypeError, "row 2 is 1"),
    "NaN": ([1, 0, np.nan], InputError, "contains NaN. Row 2 is nan"),
    "None": (["1", None, "f"], InputError, "contains NaN. Row 1 is None"),
    "bool": ([True, False, True], InputTypeError, "Row 0 of y is True, of type bool"),
    "numpy bool": (np.array([True, False, True]), InputTypeError, "of type bool"),
    "half": ([1, 0.5, 1], InputError, "Row 1 of y is 0.5, which is not a position"),
    "infinite": ([1, np.inf, 1], InputError, "Row 1 of y is inf"),
    "bytes": ([b"1", b"c", b"f"], InputTypeError, "Row 0 of y is b'1', of type bytes"),
    "complex": ([1j, 0, 1], InputTypeError, "of type complex"),
    "dict": ({0: 1}, InputTypeError, "of type dict"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_Y)
def test_bad_y(case: str) -> None:
    y, kind, message = BAD_Y[case]
    with pytest.raises(kind, match=message):
        check_picks(y, CHOICES)


def test_a_near_miss_is_pointed_out() -> None:
    choices = check_choices([("p", ["the kitchen", "the garden"])])
    with pytest.raises(InputError, match=r"Did you mean 'the kitchen'\?"):
        check_picks(["the kitchn"], choices)


def test_an_option_that_is_not_there_is_no_answer() -> None:
    choices = check_choices([("p", None, "b", None)])
    assert check_picks([1], choices).tolist() == [1]
    for position in (0, 2):
        with pytest.raises(InputError, match=rf"Row 0 of y is {position}.*\[None, 'b', None\]"):
            check_picks([position], choices)


# --- any questions -------------------------------------------------------------------------------

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
QUESTIONS = st.lists(st.tuples(TEXTS, st.lists(TEXTS, min_size=1, max_size=5)), min_size=1)


@given(QUESTIONS, st.data())
def test_any_questions(rows: list[tuple[str, list[str]]], data: st.DataObject) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SkbertWarning)
        found = check_choices(rows)
    assert list(zip(found.first, found.options, strict=True)) == rows
    positions = [data.draw(st.integers(0, len(options) - 1)) for _, options in rows]
    texts = [options[i] for (_, options), i in zip(rows, positions, strict=True)]
    expected = [options.index(text) for (_, options), text in zip(rows, texts, strict=True)]
    assert check_picks(positions, found).tolist() == expected
    assert check_picks(texts, found).tolist() == expected


def test_no_torch_is_needed() -> None:
    code = "import sys, skbert._validation.choices as m; m.check_choices([('p', 'a')]); "
    code += "sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
