"""One table of bad and odd inputs, and what an estimator must do with each.

Every row says what `fit` is called with and what is expected: an error that helps, a warning
with a right result, or acceptance with a right result. A row depends on the promises of the
package only, never on how they are kept.

``make`` is called with the folder of a tiny model, and returns a dict of what is not the usual:

``X``, ``y``, ``sample_weight``, ``classes``, ``groups``, ``X_val``, ``y_val``, and its weights
    What `fit` is called with; by default ``TEXTS``, the usual targets of the estimator, and None.
``params``
    Parameters of the estimator, besides those that every test sets.
``predict_X``
    What `predict` is called with; by default ``X``.
``asked``
    A method of the fitted estimator, and the arguments beside X with which it is called.
``plain``
    The list of str, or of pairs of str, that ``predict_X`` must give equal predictions to.
``reference``
    The list that an estimator must learn the same from; by default ``plain``.
"""

from __future__ import annotations

import collections
import datetime as dt
import decimal
import enum
import math
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import scipy.sparse
import torch
from sklearn.exceptions import DataConversionWarning

from skbert.exceptions import (
    InputError,
    InputTypeError,
    ModelError,
    ModelNotFoundError,
    SkbertWarning,
    TruncationWarning,
)

TEXTS = [
    "the food was great, i love it",
    "the staff is awful and so slow",
    "nice room and good service",
    "poor phone, it works no more",
    "best book of all",
    "worst film, i want a refund",
]
SECONDS = ["the food", "staff", "room and service", "the phone", "a book", "this film"]
PAIRS = list(zip(TEXTS, SECONDS, strict=True))
LABELS = ["good", "bad", "good", "bad", "good", "bad"]
NUMBERS = [4.5, 1.0, 4.0, 1.5, 5.0, 0.5]
INDICATOR = [[1, 0, 1], [0, 1, 0], [1, 1, 0], [0, 0, 0], [1, 0, 0], [0, 1, 1]]

KINDS = ("container", "cell", "label", "weight", "parameter", "validation", "method")
BOTH = ("classifier", "regressor")
OF_TEXTS = (*BOTH, "transformer")  # what a cell or a container is to one, it is to the others
ESTIMATORS = (*OF_TEXTS, "ranker", "extractor", "tagger")

Make = Callable[[Path], dict[str, Any]]
Check = Callable[[Any], None]  # what else to assert of the fitted estimator


@dataclass(frozen=True)
class Refused:
    """`fit`, or after a good `fit` `predict` or what is asked, raises this error.

    Its message has all these words.
    """

    error: type[Exception]
    words: tuple[str, ...]  # regular expressions
    when: str = "fit"


@dataclass(frozen=True)
class Warned:
    """`fit` gives this warning once, and the result is right."""

    warning: type[Warning]
    words: str
    check: Check | None = None


@dataclass(frozen=True)
class Accepted:
    """`fit` and `predict` work without a warning, and the result is right."""

    check: Check | None = None


@dataclass(frozen=True)
class Row:
    """One bad or odd input."""

    id: str
    applies_to: str  # an estimator, "both", or "learners": both and no other
    kind: str
    make: Make
    expect: Refused | Warned | Accepted

    @property
    def estimators(self) -> tuple[str, ...]:
        """Both, and with them all to which the row means the same; of methods, all there are."""
        if self.applies_to != "both":
            return BOTH if self.applies_to == "learners" else (self.applies_to,)
        arguments = self.make(Path()).keys()
        if self.kind == "method":
            return ESTIMATORS
        if self.kind == "parameter" and arguments == {"params"}:
            return ESTIMATORS
        return BOTH if arguments & {"y", "sample_weight"} else OF_TEXTS


ROWS: list[Row] = []


def refuse(
    name: str,
    kind: str,
    error: type[Exception],
    words: str | tuple[str, ...],
    make: Make,
    on: str = "both",
    when: str = "fit",
) -> None:
    words = (words,) if isinstance(words, str) else words
    ROWS.append(Row(name, on, kind, make, Refused(error, words, when)))


def warn(
    name: str,
    kind: str,
    warning: type[Warning],
    words: str,
    make: Make,
    on: str = "both",
    check: Check | None = None,
) -> None:
    ROWS.append(Row(name, on, kind, make, Warned(warning, words, check)))


def accept(name: str, kind: str, make: Make, on: str = "both", check: Check | None = None) -> None:
    ROWS.append(Row(name, on, kind, make, Accepted(check)))


# --- containers: what is accepted --------------------------------------------------------------


class Lines(collections.UserList):
    """A list of somebody's own."""


def read_only(texts: list[str]) -> np.ndarray:
    array = np.array(texts)
    array.setflags(write=False)
    return array


def memory_mapped(texts: list[str]) -> np.ndarray:
    array = np.array(texts)
    with tempfile.TemporaryFile() as file:
        mapped = np.memmap(file, dtype=array.dtype, shape=array.shape, mode="w+")
        mapped[:] = array
        return mapped


class Pages:
    """Counts rows and selects one of them, and can do nothing else."""

    def __init__(self, texts: list[str]) -> None:
        self.texts = texts

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, page: int) -> str:
        if page < 0:  # comparing fails for a slice
            raise IndexError(page)
        return self.texts[page]


class Fields(Pages):
    """Selects by name only."""

    def __getitem__(self, name: str) -> str:
        return vars(self)[name]


ONE_TEXT_PER_ROW: dict[str, Callable[[list[str]], Any]] = {
    "list": list,
    "tuple": tuple,
    "user-list": Lines,
    "sequence-without-slices": Pages,
    "deque": collections.deque,
    "array-u": np.array,
    "array-object": lambda texts: np.array(texts, dtype=object),
    "array-stringdtype": lambda texts: np.array(texts, dtype=np.dtypes.StringDType()),
    "array-read-only": read_only,
    "array-memmap": memory_mapped,
    "array-not-contiguous": lambda texts: np.repeat(np.array(texts), 2)[::2],
    "array-masked": np.ma.array,
    "array-n-by-1": lambda texts: np.array(texts).reshape(-1, 1),
    "lists-of-one": lambda texts: [[text] for text in texts],
    "series": pd.Series,
    "series-object": lambda texts: pd.Series(texts, dtype=object),
    "series-string-python": lambda texts: pd.Series(texts, dtype="string[python]"),
    "series-string-pyarrow": lambda texts: pd.Series(texts, dtype="string[pyarrow]"),
    "series-arrowdtype": lambda texts: pd.Series(texts, dtype=pd.ArrowDtype(pa.string())),
    "series-categorical": lambda texts: pd.Series(texts, dtype="category"),
    "series-backward-index": lambda texts: pd.Series(texts, index=range(len(texts))[::-1]),
    "series-index-of-zeros": lambda texts: pd.Series(texts, index=[0] * len(texts)),
    "series-index-of-str": lambda texts: pd.Series(texts, index=texts),
    "pandas-index": pd.Index,
    "pandas-categorical": pd.Categorical,
    "frame-one-column": lambda texts: pd.DataFrame({"review": texts}),
    "frame-column-without-name": pd.DataFrame,
    "polars-series": pl.Series,
    "polars-categorical": lambda texts: pl.Series(texts, dtype=pl.Categorical),
    "polars-frame-one-column": lambda texts: pl.DataFrame({"review": texts}),
    "arrow-array": pa.array,
    "arrow-dictionary": lambda texts: pa.array(texts).dictionary_encode(),
    "arrow-chunked": lambda texts: pa.chunked_array([texts[:2], texts[2:]]),
    "arrow-table-one-column": lambda texts: pa.table({"review": texts}),
    "datasets-column": lambda texts: datasets.Dataset.from_dict({"review": texts})["review"],
    "datasets-one-column": lambda texts: datasets.Dataset.from_dict({"review": texts}),
}
TWO_TEXTS_PER_ROW: dict[str, Callable[[list[tuple[str, str]]], Any]] = {
    "pairs-tuples": list,
    "pairs-lists": lambda pairs: [list(pair) for pair in pairs],
    "pairs-tuple-of-tuples": tuple,
    "pairs-array": np.array,
    "pairs-array-object": lambda pairs: np.array(pairs, dtype=object),
    "pairs-list-of-arrays": lambda pairs: [np.array(pair) for pair in pairs],
    "pairs-series-of-tuples": pd.Series,
    "pairs-frame": lambda pairs: pd.DataFrame(pairs, columns=["text", "about"]),
    "pairs-polars-frame": lambda pairs: pl.DataFrame(
        pairs, schema=["text", "about"], orient="row"
    ),
    "pairs-arrow-table": lambda pairs: pa.Table.from_pylist(
        [{"text": first, "about": second} for first, second in pairs]
    ),
    "pairs-arrow-table-one-name": lambda pairs: pa.table(
        [list(column) for column in zip(*pairs, strict=True)], names=["text", "text"]
    ),
    "pairs-arrow-batch": lambda pairs: pa.RecordBatch.from_arrays(
        [pa.array(column) for column in zip(*pairs, strict=True)], names=["text", "about"]
    ),
    "pairs-datasets": lambda pairs: datasets.Dataset.from_dict(
        {"text": [first for first, _ in pairs], "about": [second for _, second in pairs]}
    ),
}
for name, build in ONE_TEXT_PER_ROW.items():
    accept(name, "container", lambda _, build=build: {"X": build(TEXTS), "plain": TEXTS})
for name, build in TWO_TEXTS_PER_ROW.items():
    accept(name, "container", lambda _, build=build: {"X": build(PAIRS), "plain": PAIRS})


def wide() -> pd.DataFrame:
    return pd.DataFrame({"stars": NUMBERS, "text": TEXTS, "about": SECONDS})


def chosen(columns: Any, X: Callable[[], Any], **plain: Any) -> Make:
    return lambda _: {"X": X(), "params": {"text_columns": columns}, **plain}


accept("choice-name", "container", chosen("text", wide, plain=TEXTS))
accept("choice-names", "container", chosen(["text", "about"], wide, plain=PAIRS))
accept("choice-tuple-of-names", "container", chosen(("text", "about"), wide, plain=PAIRS))
accept("choice-position", "container", chosen(1, wide, reference=TEXTS))
accept("choice-position-from-the-end", "container", chosen(-2, wide, reference=TEXTS))
accept(
    "choice-positions-of-array",
    "container",
    chosen([1, 2], lambda: wide().to_numpy(), reference=PAIRS),
)
accept(
    "choice-position-in-arrow-table-one-name",
    "container",
    chosen(1, lambda: pa.table([SECONDS, TEXTS], names=["text", "text"]), reference=TEXTS),
)
accept(
    "choice-in-polars", "container", chosen("text", lambda: pl.from_pandas(wide()), plain=TEXTS)
)
accept(
    "choice-by-name-lets-other-columns-go",
    "container",
    lambda _: {
        "X": wide(),
        "predict_X": wide()[["about", "text"]].assign(new=0),
        "plain": PAIRS,
        "params": {"text_columns": ["text", "about"]},
    },
)
accept(
    "choice-by-name-takes-a-list-later",
    "container",
    lambda _: {
        "X": wide(),
        "predict_X": TEXTS,
        "plain": TEXTS,
        "params": {"text_columns": "text"},
    },
)

# --- containers: what is refused ---------------------------------------------------------------

ONE_STRING = "Iterable over raw text documents expected, string object received"
PAIR_FORM = r"list\(zip\(questions, contexts\)\)"


def input_of(X: Callable[[], Any]) -> Make:
    return lambda _: {"X": X()}


refuse("one-str", "container", InputError, ONE_STRING, input_of(lambda: "a single text"))
refuse("one-bytes", "container", InputError, ONE_STRING, input_of(lambda: b"a single text"))
refuse("one-numpy-str", "container", InputError, ONE_STRING, input_of(lambda: np.str_("a text")))
refuse(
    "array-0d",
    "container",
    InputError,
    ("dim 0", "one entry"),
    input_of(lambda: np.array("a text")),
)
refuse(
    "array-3d",
    "container",
    InputError,
    "Found array with dim 3",
    input_of(lambda: np.array(TEXTS).reshape(2, 3, 1)),
)
refuse(
    "three-columns-frame",
    "container",
    InputError,
    ("3 columns", r"\['stars', 'text', 'about'\]", "text_columns="),
    input_of(wide),
)
refuse(
    "three-columns-polars",
    "container",
    InputError,
    ("3 columns", r"\['stars', 'text', 'about'\]", "text_columns="),
    input_of(lambda: pl.from_pandas(wide())),
)
refuse(
    "three-columns-array",
    "container",
    InputError,
    ("3 columns", "text_columns="),
    input_of(lambda: np.array([(*pair, "more") for pair in PAIRS])),
)
refuse(
    "three-columns-tuples",
    "container",
    InputError,
    ("3 columns", "text_columns="),
    input_of(lambda: [(*pair, "more") for pair in PAIRS]),
)
refuse(
    "generator",
    "container",
    InputError,
    ("generator", r"list\(X\)"),
    input_of(lambda: (text for text in TEXTS)),
)
refuse(
    "map", "container", InputError, ("map", r"list\(X\)"), input_of(lambda: map(str.lower, TEXTS))
)
refuse("iterator", "container", InputError, r"list\(X\)", input_of(lambda: iter(TEXTS)))
refuse(
    "zip",
    "container",
    InputError,
    r"list\(X\)",
    input_of(lambda: zip(TEXTS, SECONDS, strict=True)),
)
refuse("x-none", "container", InputError, "NoneType", input_of(lambda: None))
refuse("x-number", "container", InputError, "int", input_of(lambda: 3))
refuse(
    "dict-of-lists",
    "container",
    InputTypeError,
    ("dict", r"DataFrame\(X\)"),
    input_of(lambda: {"text": TEXTS, "about": SECONDS}),
)
refuse(
    "dict-of-texts",
    "container",
    InputTypeError,
    "dict",
    input_of(lambda: dict(enumerate(TEXTS))),
)
refuse(
    "tokenizer-output",
    "container",
    InputTypeError,
    "UserDict",
    input_of(lambda: collections.UserDict(input_ids=[[1, 2]] * 6)),
)
refuse("set", "container", InputTypeError, ("set", "list"), input_of(lambda: set(TEXTS)))
refuse("frozenset", "container", InputTypeError, "set", input_of(lambda: frozenset(TEXTS)))
refuse(
    "tensor-of-ids",
    "container",
    InputTypeError,
    ("tensor", "texts themselves"),
    input_of(lambda: torch.ones((6, 4), dtype=torch.int64)),
)
for name, build in {
    "matrix": scipy.sparse.csr_matrix,
    "array": scipy.sparse.coo_array,
}.items():
    refuse(
        f"sparse-{name}",
        "container",
        InputTypeError,
        "Sparse data was passed for X, but dense data is required",
        lambda _, build=build: {"X": build(np.eye(6))},
    )
refuse(
    "ragged-pairs",
    "container",
    InputError,
    ("row 2", "holds 1"),
    input_of(lambda: [*PAIRS[:2], ("alone",), *PAIRS[3:]]),
)
refuse(
    "pairs-and-a-text",
    "container",
    InputError,
    "row 3",
    input_of(lambda: [*PAIRS[:3], "alone", *PAIRS[4:]]),
)
refuse(
    "pairs-and-none",
    "container",
    InputError,
    "row 1",
    input_of(lambda: [PAIRS[0], None, *PAIRS[2:]]),
)
refuse(
    "word-lists",
    "container",
    InputError,
    "row 2",
    input_of(lambda: [text.split() for text in TEXTS]),
)
for name, build in {
    "lists-in-a-tuple": lambda: (TEXTS, SECONDS),
    "lists-in-a-list": lambda: [TEXTS, SECONDS],
    "arrays-in-a-tuple": lambda: (np.array(TEXTS), np.array(SECONDS)),
    "series-in-a-tuple": lambda: (pd.Series(TEXTS), pd.Series(SECONDS)),
    "series-in-a-list": lambda: [pd.Series(TEXTS), pd.Series(SECONDS)],
}.items():
    refuse(f"two-{name}", "container", InputError, PAIR_FORM, input_of(build))
for name, build in {
    "list": list,
    "array": lambda: np.array([], dtype=str),
    "series": lambda: pd.Series([], dtype=str),
    "frame": lambda: pd.DataFrame({"review": []}),
    "polars": lambda: pl.Series([], dtype=pl.String),
    "arrow": lambda: pa.array([], type=pa.string()),
}.items():
    refuse(
        f"empty-{name}",
        "container",
        InputError,
        (r"Found array with 0 sample\(s\)", "minimum of 1 is required"),
        lambda _, build=build: {"X": build(), "y": []},
    )
refuse(
    "no-columns",
    "container",
    InputError,
    r"0 feature\(s\) \(shape=\(6, 0\)\) while a minimum of 1 is required",
    input_of(lambda: np.empty((6, 0))),
)
refuse(
    "numbers-1d",
    "container",
    InputTypeError,
    ("row 0", "float"),
    input_of(lambda: np.array(NUMBERS)),
)
refuse(
    "numbers-2d",
    "container",
    InputTypeError,
    ("row 0", "float"),
    input_of(lambda: np.ones((6, 4))),
)
refuse(
    "numbers-series",
    "container",
    InputTypeError,
    ("row 0", "int"),
    input_of(lambda: pd.Series(range(6))),
)
refuse("range", "container", InputTypeError, ("row 0", "int"), input_of(lambda: range(6)))
for name, build in {"frame": wide, "series": lambda: wide()["text"]}.items():
    for kind in ("X", "y"):
        refuse(
            f"{kind.lower()}-groups-of-{name}",
            "container",
            InputTypeError,
            (f"{kind} is of type .*GroupBy", "groups", rf"{kind}\.obj"),
            lambda _, build=build, kind=kind: {kind: build().groupby(LABELS)},
        )
refuse(
    "resampled",
    "container",
    InputTypeError,
    ("Resampler", "groups"),
    input_of(lambda: pd.Series(TEXTS, pd.date_range("2020", periods=6)).resample("D")),
)
refuse(
    "choice-of-a-name-there-twice",
    "container",
    InputError,
    ("column 'text', which X has 2 times", r"\['text', 'text'\]"),
    chosen("text", lambda: pa.table([TEXTS, SECONDS], names=["text", "text"])),
)
refuse(
    "rows-by-name-only",
    "container",
    InputError,
    ("Fields", r"X\[0\] raises KeyError\(0\)", "a list"),
    input_of(lambda: Fields(TEXTS)),
)
refuse(
    "lazy-frame",
    "container",
    InputError,
    (r"collect\(\)",),
    input_of(lambda: pl.LazyFrame({"review": TEXTS})),
)

# --- containers: after fit ---------------------------------------------------------------------

NAMES_SHOULD_MATCH = "The feature names should match those that were passed during fit"


def pair_frame() -> pd.DataFrame:
    return pd.DataFrame({"text": TEXTS, "about": SECONDS})


def later(X: Callable[[], Any], predict_X: Callable[[], Any], **params: Any) -> Make:
    return lambda _: {"X": X(), "predict_X": predict_X(), "params": params}


def refuse_later(
    name: str, words: str | tuple[str, ...], make: Make, error: Any = InputError
) -> None:
    refuse(f"later-{name}", "container", error, words, make, when="predict")


refuse_later(
    "renamed-column",
    (NAMES_SHOULD_MATCH, "unseen at fit time:\n- topic", "yet now missing:\n- about"),
    later(pair_frame, lambda: pair_frame().rename(columns={"about": "topic"})),
)
refuse_later(
    "columns-in-another-order",
    (NAMES_SHOULD_MATCH, "must be in the same order"),
    later(pair_frame, lambda: pair_frame()[["about", "text"]]),
)
refuse_later(
    "polars-in-another-order",
    (NAMES_SHOULD_MATCH, "must be in the same order"),
    later(pair_frame, lambda: pl.from_pandas(pair_frame()[["about", "text"]])),
)
refuse_later(
    "column-gone",
    (NAMES_SHOULD_MATCH, "yet now missing:\n- about"),
    later(pair_frame, lambda: pair_frame()[["text"]]),
)
refuse_later(
    "column-added",
    (NAMES_SHOULD_MATCH, "unseen at fit time:\n- stars"),
    later(pair_frame, lambda: pair_frame().assign(stars=1)),
)
refuse_later(
    "chosen-column-gone",
    (NAMES_SHOULD_MATCH, "yet now missing:\n- about"),
    later(wide, lambda: wide()[["text"]], text_columns=["text", "about"]),
)
refuse_later(
    "one-text-for-pairs",
    r"X has 1 features, but Bert\w+ is expecting 2 features as input",
    later(lambda: PAIRS, lambda: TEXTS),
)
refuse_later(
    "pairs-for-one-text",
    r"X has 2 features, but Bert\w+ is expecting 1 features as input",
    later(lambda: TEXTS, lambda: PAIRS),
)
refuse_later(
    "three-for-two-columns",
    r"X has 3 features, but Bert\w+ is expecting 2 features as input",
    later(lambda: PAIRS, lambda: [(*pair, "more") for pair in PAIRS]),
)
refuse_later("one-str", ONE_STRING, later(lambda: TEXTS, lambda: TEXTS[0]))
refuse_later("empty", r"Found array with 0 sample\(s\)", later(lambda: TEXTS, list))
refuse_later("missing", ("1 missing", "row 1"), later(lambda: TEXTS, lambda: ["a", None]))
refuse_later(
    "number", ("row 1", "int"), later(lambda: TEXTS, lambda: ["a", 7]), error=InputTypeError
)

# --- cells: what is refused --------------------------------------------------------------------


def with_cells(*cells: Any, after: int = 2) -> list[Any]:
    """The usual texts, some of them replaced; as many as before."""
    return [*TEXTS[:after], *cells, *TEXTS[after + len(cells) :]]


for name, gap in {
    "none": None,
    "nan": float("nan"),
    "numpy-nan": np.float32("nan"),
    "pandas-na": pd.NA,
    "pandas-nat": pd.NaT,
}.items():
    refuse(
        f"missing-{name}",
        "cell",
        InputError,
        ("2 missing", "row 2", "missing='empty'"),
        lambda _, gap=gap: {"X": with_cells(gap, gap)},
    )
    accept(
        f"missing-{name}-as-empty",
        "cell",
        lambda _, gap=gap: {
            "X": with_cells(gap, gap),
            "plain": with_cells("", ""),
            "params": {"missing": "empty"},
        },
    )
for name, build in {
    "object-array": lambda cells: np.array(cells, dtype=object),
    "series": pd.Series,
    "string-pyarrow": lambda cells: pd.Series(cells, dtype="string[pyarrow]"),
    "categorical": lambda cells: pd.Series(cells, dtype="category"),
    "frame": lambda cells: pd.DataFrame({"review": cells}),
    "polars": pl.Series,
    "arrow": pa.array,
    "datasets": lambda cells: datasets.Dataset.from_dict({"review": cells})["review"],
}.items():
    refuse(
        f"missing-in-{name}",
        "cell",
        InputError,
        ("1 missing", "row 2", "missing='empty'"),
        lambda _, build=build: {"X": build(with_cells(None))},
    )
refuse(
    "missing-in-masked-array",
    "cell",
    InputError,
    ("1 missing", "row 2"),
    lambda _: {"X": np.ma.array(TEXTS, mask=[0, 0, 1, 0, 0, 0])},
)
refuse(
    "missing-second-text",
    "cell",
    InputError,
    ("1 missing", "row 2", "about"),
    lambda _: {"X": pd.DataFrame({"text": TEXTS, "about": with_cells(None)})},
)
refuse(
    "missing-everywhere",
    "cell",
    InputError,
    ("6 missing", "row 0"),
    lambda _: {"X": [None] * 6},
)
refuse(
    "missing-everywhere-in-frame",
    "cell",
    InputError,
    ("6 missing", "row 0"),
    lambda _: {"X": pd.DataFrame({"review": [np.nan] * 6})},
)
for name, (cell, words) in {
    "bytes": (b"a text", ("bytes", r"decode\(")),
    "bytearray": (bytearray(b"a text"), ("bytearray", r"decode\(")),
    "int": (7, ("7", "int", r"str\(")),
    "numpy-int": (np.int64(7), ("7", "int64")),
    "float": (0.5, ("0.5", "float")),
    "infinity": (float("inf"), ("inf", "float")),
    "bool": (True, ("True", "bool")),
    "complex": (1j, ("1j", "complex")),
    "list": (["a", "text"], ("list", "join")),
    "tuple": (("a", "text"), ("tuple", "join")),
    "array": (np.array(["a", "text"]), ("ndarray", "join")),
    "dict": ({"text": "a text"}, ("dict", r"\['text'\]")),
    "path": (Path("review.txt"), ("Path", r"read_text\(")),
    "date": (dt.date(2020, 1, 1), ("2020", "date")),
    "class": (str, ("type",)),
    "enum": (enum.Enum("Color", "RED").RED, ("Color",)),
}.items():
    refuse(
        f"cell-{name}",
        "cell",
        InputTypeError,
        ("row 2", *words),
        lambda _, cell=cell: {"X": with_cells(cell)},
    )
refuse(
    "cell-bytes-array",
    "cell",
    InputTypeError,
    ("row 0", "bytes"),
    lambda _: {"X": np.array([text.encode() for text in TEXTS])},
)
refuse(
    "cell-number-in-frame",
    "cell",
    InputTypeError,
    ("row 0", "stars", "float"),
    lambda _: {"X": wide()[["text", "stars"]]},
)
refuse(
    "cell-wrong-before-missing",
    "cell",
    InputTypeError,
    ("row 3", "int"),
    lambda _: {"X": with_cells(None, 7)},
)
refuse(
    "cell-records",
    "cell",
    InputTypeError,
    ("row 0", "dict"),
    lambda _: {"X": [{"text": text} for text in TEXTS]},
)

# --- cells: what is accepted -------------------------------------------------------------------


class Mood(enum.StrEnum):
    GOOD = "good film"


class Shout(str):
    """A str that prints as something else."""

    __slots__ = ()

    def __str__(self) -> str:
        return "not me"


for name, (cell, plain) in {
    "empty": ("", ""),
    "space": (" \t\r\n ", " \t\r\n "),
    "numpy-str": (np.str_("good film"), "good film"),
    "str-enum": (Mood.GOOD, "good film"),
    "str-subclass": (Shout("good film"), "good film"),
}.items():
    accept(
        f"cell-{name}",
        "cell",
        lambda _, cell=cell, plain=plain: {"X": with_cells(cell), "plain": with_cells(plain)},
    )
for name, cell in {
    "zero-width": "\u200b\u200c\u2060\ufeff",
    "zero-width-inside": "go\u200bod fi\u00adlm",
    "control": "good\x01\x1b[31m\x7f\x9f film",
    "nul": "good\x00film\x00",
    "emoji-with-joiners": "\U0001f468\u200d\U0001f469\u200d\U0001f467 good \U0001f44d\U0001f3fd",
    "combining-marks": "g" + "\u0301\u0323" * 40 + "ood film",
    "right-to-left": "\u05e1\u05e8\u05d8 \u0637\u064a\u0628 \u202egood\u202c",
    "chinese": "\u5f88\u597d\u7684\u7535\u5f71",
    "unassigned": "\u0378\U000e0fff\uffff film",
    "private-use": "\ue000\U000f0000 film",
    "composed": "caf\u00e9 \u00c5",
    "decomposed": "cafe\u0301 A\u030a",
    "line-separators": "good\u2028film\u2029\x85\x0b\x0c",
    "special-tokens": "[CLS] good [SEP] film [MASK] [PAD] [UNK]",
    "special-tokens-alone": "[SEP]",
    "percent-and-braces": "{0} %s {film} ${good} \\N{DASH}",
    "markup": "<b onload='x'>good</b> &amp; film",
    "one-long-word": "o" * 300,
}.items():
    accept(f"cell-{name}", "cell", lambda _, cell=cell: {"X": with_cells(cell), "plain": None})
warn(
    "cell-lone-surrogate",
    "cell",
    SkbertWarning,
    r"lone surrogate.*row 2.*U\+FFFD",
    lambda _: {"X": with_cells("go\ud800od film"), "plain": with_cells("go\ufffdod film")},
)
warn(
    "cell-lone-surrogates-in-pairs",
    "cell",
    SkbertWarning,
    r"2 row.*lone surrogate.*row 0",
    lambda _: {
        "X": [("\udfffa", "b"), ("a", "b\ud800"), *PAIRS[2:]],
        "plain": [("\ufffda", "b"), ("a", "b\ufffd"), *PAIRS[2:]],
    },
)
warn(
    "cell-mostly-empty",
    "cell",
    SkbertWarning,
    "4 of 6 rows.*empty",
    lambda _: {"X": with_cells("", " ", "\n", "\u3000"), "plain": with_cells("", " ", "\n", " ")},
)
warn("cell-all-empty", "cell", SkbertWarning, "6 of 6 rows.*empty", input_of(lambda: [""] * 6))
warn(
    "cell-all-missing-as-empty",
    "cell",
    SkbertWarning,
    "6 of 6 rows.*empty",
    lambda _: {"X": [None] * 6, "params": {"missing": "empty"}, "plain": [""] * 6},
)
accept("cell-half-empty", "cell", lambda _: {"X": with_cells("", "", ""), "plain": None})
accept(
    "cell-empty-second-text",
    "cell",
    lambda _: {"X": [(text, "") for text in TEXTS], "plain": None},
)


def says_truncated(count: int) -> Check:
    def check(estimator: Any) -> None:
        assert estimator.n_truncated_ == count

    return check


warn(
    "cell-too-long",
    "cell",
    TruncationWarning,
    "2 of 6",
    lambda _: {"X": with_cells("good film " * 200, "so " * 5000), "plain": None},
    on="learners",
    check=says_truncated(2),
)
warn(
    "cell-too-long-for-max-length",
    "cell",
    TruncationWarning,
    "6 of 6",
    lambda _: {"X": TEXTS, "params": {"max_length": 5}},
    on="learners",
    check=says_truncated(6),
)
accept(
    "cell-too-long-in-windows",
    "cell",
    lambda _: {
        "X": with_cells("good film " * 200),
        "params": {"long_text": "windows"},
        "plain": None,
    },
    on="learners",
    check=says_truncated(0),
)

# --- labels ------------------------------------------------------------------------------------


def target(y: Callable[[], Any], **more: Any) -> Make:
    return lambda _: {"y": y(), **more}


def has_classes(*classes: Any) -> Check:
    def check(estimator: Any) -> None:
        assert estimator.classes_.tolist() == list(classes)
        assert estimator.predict_proba(TEXTS).shape == (len(TEXTS), len(classes))

    return check


def keeps_kind(kind: str) -> Check:
    def check(estimator: Any) -> None:
        assert estimator.classes_.dtype.kind == kind
        assert estimator.predict(TEXTS).dtype.kind == kind

    return check


def predicts_only(label: Any) -> Check:
    def check(estimator: Any) -> None:
        assert estimator.classes_.tolist() == [label]
        assert estimator.predict(["anything", "at all"]).tolist() == [label] * 2

    return check


def scores_unseen_as_wrong(estimator: Any) -> None:
    truth = estimator.predict(TEXTS).tolist()
    assert estimator.score(TEXTS, truth) == 1
    assert estimator.score(TEXTS, ["never seen", *truth[1:]]) == 5 / 6


def is_near(number: float, within: float) -> Check:
    def check(estimator: Any) -> None:
        assert np.abs(estimator.predict(TEXTS) - number).max() <= within

    return check


def has_shape(*shape: int) -> Check:
    def check(estimator: Any) -> None:
        assert estimator.predict(TEXTS).shape == shape

    return check


GOOD_BAD = has_classes("bad", "good")
for name, build in {
    "list": list,
    "tuple": tuple,
    "array": np.array,
    "object-array": lambda y: np.array(y, dtype=object),
    "series": pd.Series,
    "series-other-index": lambda y: pd.Series(y, index=[9, 9, 9, 1, 2, 3]),
    "string-pyarrow": lambda y: pd.Series(y, dtype="string[pyarrow]"),
    "categorical": lambda y: pd.Series(y, dtype="category"),
    "unused-category": lambda y: pd.Series(pd.Categorical(y, ["worst", "good", "fine", "bad"])),
    "polars": pl.Series,
    "arrow": pa.array,
    "datasets": lambda y: datasets.Dataset.from_dict({"y": y})["y"],
    "read-only": read_only,
}.items():
    accept(
        f"label-{name}",
        "label",
        lambda _, build=build: {"y": build(LABELS), "plain": TEXTS},
        on="classifier",
        check=GOOD_BAD,
    )
ONES = [1, 0, 1, 0, 1, 0]
for name, (y, kind) in {
    "ints": (ONES, "i"),
    "negative-ints": ([-1, 1, -1, 1, -1, 1], "i"),
    "int8": (np.array(ONES, dtype=np.int8), "i"),
    "bools": ([True, False] * 3, "b"),
    "bool-array": (np.array(ONES, dtype=bool), "b"),
    "nullable-boolean": (pd.Series([True, False] * 3, dtype="boolean"), "b"),
    "nullable-int": (pd.Series(ONES, dtype="Int64"), "i"),
    "whole-floats": ([1.0, 2.0] * 3, "f"),
    "object-of-ints": (np.array(ONES, dtype=object), "i"),
    "category-of-ints": (pd.Series(pd.Categorical(ONES, [0, 1, 2])), "i"),
    "numpy-ints": ([np.int32(one) for one in ONES], "i"),
    "tensor": (torch.tensor(ONES), "i"),
}.items():
    accept(
        f"label-{name}",
        "label",
        lambda _, y=y: {"y": y, "plain": TEXTS},
        on="classifier",
        check=keeps_kind(kind),
    )
accept(
    "label-one-class", "label", target(lambda: ["only"] * 6), "classifier", predicts_only("only")
)
accept("label-one-int", "label", target(lambda: [3] * 6), "classifier", predicts_only(3))
accept(
    "label-ends-in-nul",
    "label",
    target(lambda: ["a", "a\0"] * 3),
    "classifier",
    has_classes("a", "a\0"),
)
accept(
    "label-every-row-another",
    "label",
    target(lambda: list("fedcba")),
    "classifier",
    has_classes(*"abcdef"),
)
accept(
    "label-unseen-in-score", "label", target(lambda: LABELS), "classifier", scores_unseen_as_wrong
)
for name, build in {
    "array": np.array,
    "lists": list,
    "bool": lambda y: np.array(y, dtype=bool),
    "float": lambda y: np.array(y, dtype=float),
    "frame": lambda y: pd.DataFrame(y, columns=["a", "b", "c"]),
    "polars": lambda y: pl.DataFrame(y, schema=["a", "b", "c"], orient="row"),
    "sparse": scipy.sparse.csr_matrix,
}.items():
    accept(
        f"indicator-{name}",
        "label",
        lambda _, build=build: {"y": build(INDICATOR)},
        on="classifier",
        check=has_shape(6, 3),
    )
accept(
    "indicator-empty-column",
    "label",
    target(lambda: [[1, 0], [0, 0]] * 3),
    on="classifier",
    check=has_shape(6, 2),
)
warn(
    "label-column",
    "label",
    DataConversionWarning,
    "A column-vector y was passed",
    target(lambda: np.array(LABELS).reshape(-1, 1)),
    on="classifier",
    check=GOOD_BAD,
)
warn(
    "label-one-column-frame",
    "label",
    DataConversionWarning,
    "A column-vector y was passed",
    target(lambda: pd.DataFrame({"y": LABELS})),
    on="classifier",
    check=GOOD_BAD,
)
refuse(
    "y-none",
    "label",
    InputError,
    "requires y to be passed, but the target y is None",
    target(lambda: None),
)
refuse("y-str", "label", InputError, "one value per row", target(lambda: "goodbad"))
refuse("y-number", "label", InputError, "y is of type int", target(lambda: 1))
refuse(
    "y-dict", "label", InputTypeError, "y is of type dict", target(lambda: dict(enumerate(ONES)))
)
refuse("y-set", "label", InputTypeError, "y is of type set", target(lambda: {0, 1, 2, 3, 4, 5}))
refuse("y-generator", "label", InputError, r"list\(y\)", target(lambda: (one for one in ONES)))
refuse("y-3d", "label", InputError, "dim 3", target(lambda: np.zeros((6, 2, 2))))
refuse("y-no-columns", "label", InputError, r"0 feature\(s\)", target(lambda: np.zeros((6, 0))))
refuse(
    "y-short",
    "label",
    InputError,
    r"inconsistent numbers of samples: \[6, 5\]",
    target(lambda: ONES[1:]),
)
refuse(
    "y-long",
    "label",
    InputError,
    r"inconsistent numbers of samples: \[6, 7\]",
    target(lambda: [*ONES, 1]),
)
refuse("y-empty", "label", InputError, r"\[6, 0\]", target(list))
refuse(
    "y-complex",
    "label",
    InputError,
    "Complex data not supported",
    target(lambda: [1j, 2, 3, 4, 5, 6]),
)
refuse(
    "y-complex-array",
    "label",
    InputError,
    "Complex data not supported",
    target(lambda: np.arange(6) + 1j),
)
for name, y in {
    "nan": [1.0, np.nan, 0.0, np.nan, 1.0, 0.0],
    "none": [1, None, 0, None, 1, 0],
    "nan-array": np.array([1.0, np.nan, 0.0, np.nan, 1.0, 0.0]),
    "nullable": pd.Series([1, None, 0, None, 1, 0], dtype="Int64"),
    "polars": pl.Series([1, None, 0, None, 1, 0]),
    "arrow": pa.array([1, None, 0, None, 1, 0]),
    "masked": np.ma.array(ONES, mask=[0, 1, 0, 1, 0, 0]),
}.items():
    refuse(
        f"y-missing-{name}",
        "label",
        InputError,
        ("Input y contains NaN", "2 missing", "row 1"),
        lambda _, y=y: {"y": y},
    )
refuse(
    "y-infinity",
    "label",
    InputError,
    ("Input y contains infinity", "row 2"),
    target(lambda: [1.0, 0.0, np.inf, 0.0, 1.0, 0.0]),
)
for name, gap in {"nan": np.nan, "none": None, "na": pd.NA, "nat": pd.NaT}.items():
    refuse(
        f"label-missing-{name}-among-str",
        "label",
        InputError,
        ("contains NaN", "1 missing", "row 3"),
        lambda _, gap=gap: {"y": [*LABELS[:3], gap, *LABELS[4:]]},
        on="classifier",
    )
for name, build in {
    "series": pd.Series,
    "categorical": lambda y: pd.Series(y, dtype="category"),
    "polars": pl.Series,
    "object-array": lambda y: np.array(y, dtype=object),
}.items():
    refuse(
        f"label-missing-in-{name}",
        "label",
        InputError,
        ("contains NaN", "1 missing", "row 3"),
        lambda _, build=build: {"y": build([*LABELS[:3], None, *LABELS[4:]])},
        on="classifier",
    )
for name, (odd, words) in {
    "int": (1, "row 2.*1"),
    "bool": (True, "row 2.*True"),
    "float": (0.5, "row 2.*0.5"),
}.items():
    refuse(
        f"label-str-and-{name}",
        "label",
        InputTypeError,
        ("str and numbers", words, r"\[str\("),
        lambda _, odd=odd: {"y": [*LABELS[:2], odd, *LABELS[3:]]},
        on="classifier",
    )
for name, (error, y) in {
    "bytes": (InputTypeError, [label.encode() for label in LABELS]),
    "dates": (InputError, pd.Series(pd.to_datetime(["2020-01-01"] * 6))),
    "dicts": (InputError, [{"label": 1}] * 6),
    "huge-floats": (InputError, [2.0, 1e300] * 3),
    "huge-ints": (InputError, [2**70, 1, 2, 2**70, 1, 2]),
}.items():
    refuse(
        f"label-{name}",
        "label",
        error,
        "(?i)label",
        lambda _, y=y: {"y": y},
        on="classifier",
    )
refuse(
    "label-continuous",
    "label",
    InputError,
    "Unknown label type: continuous",
    target(lambda: NUMBERS),
    on="classifier",
)
refuse(
    "label-two-continuous-columns",
    "label",
    InputError,
    "continuous-multioutput",
    target(lambda: np.linspace(0.1, 1, 12).reshape(6, 2)),
    on="classifier",
)
refuse(
    "label-two-columns-of-classes",
    "label",
    InputError,
    ("multiclass-multioutput", "row 1", "MultiLabelBinarizer"),
    target(lambda: [[0, 1], [2, 1]] * 3),
    on="classifier",
)
refuse(
    "label-two-columns-of-str",
    "label",
    InputError,
    ("multiclass-multioutput", "MultiLabelBinarizer"),
    target(lambda: [["a", "b"]] * 6),
    on="classifier",
)
refuse(
    "label-lists",
    "label",
    InputError,
    ("row 1", "MultiLabelBinarizer"),
    target(lambda: [["a", "b"], ["a"]] * 3),
    on="classifier",
)
refuse(
    "label-sets",
    "label",
    InputError,
    ("Unknown label type", "row 0", "MultiLabelBinarizer"),
    target(lambda: [{"a"}, {"a", "b"}] * 3),
    on="classifier",
)
refuse(
    "indicator-nan",
    "label",
    InputError,
    ("contains NaN", "row 2"),
    target(lambda: [[0, 1], [1, 1], [np.nan, 0], [1, 0], [0, 0], [1, 1]]),
    on="classifier",
)

# --- targets of a regressor --------------------------------------------------------------------

for name, build in {
    "list": list,
    "tuple": tuple,
    "array": np.array,
    "float32": lambda y: np.array(y, dtype=np.float32),
    "read-only": read_only,
    "series": lambda y: pd.Series(y, index=[3, 3, 3, 2, 1, 0]),
    "nullable": lambda y: pd.Series(y, dtype="Float64"),
    "polars": pl.Series,
    "arrow": pa.array,
    "object-array": lambda y: np.array(y, dtype=object),
    "decimals": lambda y: [decimal.Decimal(str(number)) for number in y],
    "tensor": lambda y: torch.tensor(y, dtype=torch.float64),
}.items():
    accept(
        f"number-{name}",
        "label",
        lambda _, build=build: {"y": build(NUMBERS), "plain": TEXTS},
        on="regressor",
        check=has_shape(6),
    )
accept("number-ints", "label", target(lambda: ONES), "regressor", has_shape(6))
accept("number-bools", "label", target(lambda: [True, False] * 3), "regressor", has_shape(6))
accept("number-huge", "label", target(lambda: [1e30, -1e30] * 3), "regressor", has_shape(6))
accept("number-tiny", "label", target(lambda: [1e-30, 0.0] * 3), "regressor", is_near(0, 1e-25))
accept("number-tiniest", "label", target(lambda: [5e-324, 0.0] * 3), "regressor", is_near(0, 1e-9))
accept(
    "number-hugest-in-float64",
    "label",
    target(lambda: [1.7e308, -1.7e308] * 3, params={"precision": "float64"}),
    "regressor",
    has_shape(6),
)
refuse(
    "number-beyond-float32",
    "label",
    InputError,
    ("Input y contains infinity or a value too large for dtype.'float32'", "row 2"),
    target(lambda: [1.0, 2.0, 1e39, 1.0, 2.0, 3.0]),
    on="regressor",
)
accept("number-constant", "label", target(lambda: [7.0] * 6), "regressor", is_near(7, 3))
accept("number-zeros", "label", target(lambda: [0.0] * 6), "regressor", is_near(0, 3))
accept(
    "number-huge-constant", "label", target(lambda: [1e30] * 6), "regressor", is_near(1e30, 1e30)
)
for name, build in {"lists": list, "array": np.array, "frame": pd.DataFrame}.items():
    accept(
        f"numbers-{name}",
        "label",
        lambda _, build=build: {"y": build([[number, -number] for number in NUMBERS])},
        on="regressor",
        check=has_shape(6, 2),
    )
warn(
    "number-column",
    "label",
    DataConversionWarning,
    "A column-vector y was passed",
    target(lambda: np.array(NUMBERS).reshape(-1, 1)),
    on="regressor",
    check=has_shape(6),
)
refuse(
    "number-str",
    "label",
    InputError,
    ("could not convert string to float: 'good'", "row 0"),
    target(lambda: LABELS),
    on="regressor",
)
refuse(
    "number-digits-as-str",
    "label",
    InputError,
    ("could not convert string to float", "row 0"),
    target(lambda: np.array([str(number) for number in NUMBERS])),
    on="regressor",
)
refuse(
    "number-and-str",
    "label",
    InputError,
    ("could not convert string to float: 'x'", "row 5"),
    target(lambda: [*NUMBERS[:5], "x"]),
    on="regressor",
)
refuse(
    "number-dates",
    "label",
    InputTypeError,
    ("row 0", "Timestamp"),
    target(lambda: pd.Series(pd.to_datetime(["2020-01-01"] * 6))),
    on="regressor",
)
refuse(
    "number-dicts",
    "label",
    InputTypeError,
    ("row 0", "dict"),
    target(lambda: [{}] * 6),
    on="regressor",
)
refuse(
    "number-too-large",
    "label",
    InputError,
    ("contains infinity or a value too large", "row 1"),
    target(lambda: [1, 10**400, 1, 1, 1, 1]),
    on="regressor",
)
refuse(
    "numbers-ragged",
    "label",
    InputError,
    "row 1",
    target(lambda: [[1.0, 2.0], [1.0]] * 3),
    on="regressor",
)
refuse(
    "numbers-sparse",
    "label",
    InputTypeError,
    "Sparse data was passed for y",
    target(lambda: scipy.sparse.csr_matrix(np.eye(6))),
    on="regressor",
)
refuse(
    "numbers-nan-in-second-column",
    "label",
    InputError,
    ("contains NaN", "row 1"),
    target(lambda: [[1.0, 2.0], [1.0, np.nan]] * 3),
    on="regressor",
)

# --- weights -----------------------------------------------------------------------------------


def weighted(weight: Callable[[], Any], **more: Any) -> Make:
    return lambda _: {"sample_weight": weight(), **more}


WEIGHTS = [1.0, 2.0, 0.5, 1.0, 0.0, 3.0]
for name, build in {
    "list": list,
    "array": np.array,
    "float32": lambda weights: np.array(weights, dtype=np.float32),
    "series": lambda weights: pd.Series(weights, index=[5, 4, 3, 2, 1, 0]),
    "polars": pl.Series,
    "read-only": read_only,
    "ints": lambda weights: [int(2 * weight) for weight in weights],
    "number": lambda weights: 2.0,
}.items():
    accept(
        f"weight-{name}",
        "weight",
        lambda _, build=build: {"sample_weight": build(WEIGHTS), "plain": TEXTS},
    )
accept(
    "weight-zero-for-a-class",
    "weight",
    weighted(lambda: [1, 0, 1, 0, 1, 0], y=LABELS),
    "classifier",
    GOOD_BAD,
)
EXTREMES = {"tiniest": 5e-324, "tiny": 1e-300, "small": 1e-40, "large": 1e20, "huge": 1e300,
            "hugest": 1.7e308}  # fmt: skip
for name, weight in EXTREMES.items():
    for head in ("random", "probe"):
        params = {"head_init": head}
        accept(
            f"weight-{name}-{head}",
            "weight",
            lambda _, weight=weight, params=params: {
                "sample_weight": [weight] * 6,
                "params": params,
                "plain": TEXTS,
            },
            "learners",
        )
        accept(
            f"weight-{name}-beside-1-{head}",
            "weight",
            lambda _, weight=weight, params=params: {
                "sample_weight": [weight, *[1.0] * 5],
                "params": params,
                "plain": TEXTS,
            },
            "learners",
        )
        for targets, y, label in (("labels", LABELS, "good"), ("indicator", INDICATOR, 1)):
            accept(
                f"class-weight-{name}-{targets}-{head}",
                "weight",
                lambda _, y=y, params={**params, "class_weight": {label: weight}}: {
                    "y": y,
                    "params": params,
                    "sample_weight": [1e300] * 6,
                    "plain": TEXTS,
                },
                "classifier",
            )
accept("weight-one-row-counts", "weight", weighted(lambda: [0, 0, 0, 0, 0, 1]))
for name, (weight, words) in {
    "short": (WEIGHTS[1:], r"sample_weight\.shape == \(5,\), expected \(6,\)"),
    "long": ([*WEIGHTS, 1.0], r"sample_weight\.shape == \(7,\), expected \(6,\)"),
    "empty": ([], r"sample_weight\.shape == \(0,\), expected \(6,\)"),
    "column": (np.ones((6, 1)), "Sample weights must be 1D array or scalar"),
    "2d": (np.ones((6, 6)), "Sample weights must be 1D array or scalar"),
    "nan": ([1, np.nan, 1, 1, 1, 1], "Input sample_weight contains NaN.*row 1"),
    "none-inside": ([1, None, 1, 1, 1, 1], "Input sample_weight contains NaN.*row 1"),
    "infinity": ([1, 1, np.inf, 1, 1, 1], "Input sample_weight contains infinity.*row 2"),
    "negative": ([1, 1, 1, -0.5, 1, 1], "Negative values.*sample_weight.*row 3"),
    "all-zero": ([0] * 6, "must contain at least one non-zero number"),
    "zero": (0, "must contain at least one non-zero number"),
    "str": ("balanced", "sample_weight is 'balanced'"),
    "strs": (["1"] * 6, "could not convert string to float: '1'.*sample_weight"),
    "complex": ([1j] * 6, "Complex data not supported"),
}.items():
    refuse(
        f"weight-{name}",
        "weight",
        InputError,
        words,
        lambda _, weight=weight: {"sample_weight": weight},
    )
refuse(
    "weight-dict",
    "weight",
    InputTypeError,
    "sample_weight is of type dict",
    weighted(lambda: {"good": 1.0}),
)


def class_weighted(class_weight: Any, **more: Any) -> Make:
    return lambda _: {"params": {"class_weight": class_weight}, **more}


accept("class-weight-balanced", "weight", class_weighted("balanced"), "classifier")
accept("class-weight-dict", "weight", class_weighted({"good": 1, "bad": 2.5}), "classifier")
accept("class-weight-for-one", "weight", class_weighted({"bad": 0}), "classifier", GOOD_BAD)
accept("class-weight-none-named", "weight", class_weighted({}), "classifier")
accept(
    "class-weight-of-ints",
    "weight",
    class_weighted({0: 1.0, 1: np.float32(2)}, y=ONES),
    "classifier",
)
accept(
    "class-weight-and-sample-weight",
    "weight",
    class_weighted("balanced", sample_weight=WEIGHTS),
    "classifier",
)
for name, (class_weight, words) in {
    "unknown-key": ({"good": 1, "fine": 2}, (r"\['fine'\]", r"\['bad', 'good'\]")),
    "near-key": ({"godo": 2}, (r"\['godo'\]", "Did you mean 'good'")),
    "int-key": ({0: 1.0, 1: 2.0}, (r"\[0, 1\]", r"\['bad', 'good'\]")),
    "typo": ("balance", ("class_weight", "'balanced'")),
    "list": ([1.0, 2.0], ("class_weight", "'balanced'")),
    "negative": ({"good": -1}, (r"class_weight\['good'\]", "-1")),
    "nan": ({"good": np.nan}, (r"class_weight\['good'\]", "nan")),
    "infinity": ({"good": np.inf}, (r"class_weight\['good'\]", "inf")),
    "str": ({"good": "2"}, (r"class_weight\['good'\]", "'2'")),
    "beyond-floats": ({"good": 10**400}, (r"class_weight\['good'\]", "finite")),
    "all-zero": ({"good": 0, "bad": 0}, ("class_weight", "0")),
}.items():
    refuse(
        f"class-weight-{name}",
        "weight",
        ValueError,
        words,
        class_weighted(class_weight),
        "classifier",
    )
refuse(
    "class-weight-str-key-for-int",
    "weight",
    InputError,
    (r"\['1'\]", r"\[0, 1\]", "Did you mean 1"),
    class_weighted({"1": 2.0}, y=ONES),
    "classifier",
)


def labels_in_words(label_texts: Any, **more: Any) -> Make:
    params = {"label_texts": label_texts, "head_init": "auto"} | more.pop("params", {})
    return lambda _: {"params": params, **more}


for name, make in {
    "dict": labels_in_words({"good": "it is good", "bad": "it is bad"}),
    "of-one": labels_in_words({"bad": "it is bad"}),
    "several": labels_in_words({"good": ["it is good", "i love it"], "bad": ("awful",)}),
    "true": labels_in_words(True),
    "false": labels_in_words(False, params={"head_init": "random"}),
    "list": labels_in_words(["good", "bad"]),
    "array": labels_in_words(np.array(["good", "bad"])),
    "of-ints": labels_in_words({0: "it is bad", np.int64(1): "it is good"}, y=ONES),
    "of-ints-for-bools": labels_in_words({False: "bad"}, y=[bool(one) for one in ONES]),
    "of-columns": labels_in_words({0: "the first", 2: ["the last", "the end"]}, y=INDICATOR),
    "long": labels_in_words({"good": "good " * 500}, params={"long_text": "windows"}),
}.items():
    accept(f"label-texts-{name}", "label", make, "classifier")
accept(
    "label-texts-without-rows",
    "label",
    labels_in_words({"ugly": "it is ugly"}),
    "classifier",
    lambda fitted: fitted.classes_.tolist() == ["bad", "good", "ugly"],
)
for name, (make, error, words) in {
    "str": (labels_in_words("good"), ValueError, ("label_texts", "'good'")),
    "set": (labels_in_words({"good", "bad"}), InputTypeError, ("of type set", "label_texts=")),
    "series": (
        labels_in_words(pd.Series({"good": "it is good"})),
        InputTypeError,
        ("of type Series", "label_texts="),
    ),
    "none-at-all": (labels_in_words({}), InputError, ("label_texts is empty", "label_texts=None")),
    "empty-text": (
        labels_in_words({"good": ""}),
        InputError,
        (r"label_texts\['good'\] is empty",),
    ),
    "blank-text": (labels_in_words({"good": [" \n"]}), InputError, (r"\['good'\] is empty",)),
    "no-texts": (labels_in_words({"good": []}), InputError, (r"\['good'\] is an empty list",)),
    "half-a-character": (
        labels_in_words({"good": "\ud800 good"}),
        InputError,
        (r"\['good'\]", "half a character"),
    ),
    "number": (labels_in_words({"good": 3}), InputTypeError, (r"\['good'\] holds 3", "int")),
    "none": (labels_in_words({"good": None}), InputTypeError, (r"\['good'\] holds None",)),
    "int-keys-for-str": (
        labels_in_words({0: "bad", 1: "good"}),
        InputTypeError,
        ("label 0, of type int", "row 0 of y is 'good'", r"str\(label\)"),
    ),
    "str-keys-for-int": (
        labels_in_words({"0": "bad", "1": "good"}, y=ONES),
        InputTypeError,
        ("label '0', of type str", r"int\(label\)"),
    ),
    "mixed-keys": (
        labels_in_words({"good": "good", 1: "bad"}),
        InputTypeError,
        ("mixes str and numbers", "'good' and 1"),
    ),
    "odd-key": (
        labels_in_words({"good": "good", None: "bad"}),
        InputTypeError,
        ("label None", "NoneType"),
    ),
    "fraction-key": (labels_in_words({0.5: "half"}, y=ONES), InputTypeError, ("label 0.5",)),
    "twice": (labels_in_words(["good", "bad", "good"]), InputError, ("'good' 2 times",)),
    "ints-in-a-list": (
        labels_in_words([0, 1], y=ONES),
        InputTypeError,
        ("label 0, of type int", "says nothing in words"),
    ),
    "true-for-ints": (
        labels_in_words(True, y=ONES),
        InputTypeError,
        ("label 0, of type int", "says nothing in words", "label_texts={0:"),
    ),
    "true-for-columns": (
        labels_in_words(True, y=INDICATOR),
        InputTypeError,
        ("label 0, of type int", "says nothing in words"),
    ),
    "name-of-a-column": (
        labels_in_words({"first": "the first"}, y=INDICATOR),
        InputError,
        (r"no column of y: \['first'\]", r"\[0, 1, 2\]"),
    ),
    "absent-column": (
        labels_in_words({3: "the fourth"}, y=INDICATOR),
        InputError,
        (r"no column of y: \[3\]", r"\[0, 1, 2\]"),
    ),
    "without-words": (labels_in_words(["good", "_"]), InputError, (r"\['_'\] is empty",)),
    "random-head": (
        labels_in_words({"good": "good"}, params={"head_init": "random"}),
        InputError,
        ("label_texts", "head_init='auto'"),
    ),
    "pairs": (
        labels_in_words({"good": "good"}, X=PAIRS),
        InputError,
        ("one text per row", "pairs of texts"),
    ),
    "feature-columns": (
        labels_in_words(
            {"good": "good"},
            X=pd.DataFrame({"text": TEXTS, "stars": range(6)}),
            params={"feature_columns": "stars"},
        ),
        InputError,
        ("label_texts", "feature_columns=None"),
    ),
}.items():
    refuse(f"label-texts-{name}", "label", error, words, make, "classifier")

# --- parameters --------------------------------------------------------------------------------


def parameter(**params: Any) -> Make:
    return lambda _: {"params": params}


# name of the row: (parameters, words of the error besides the name of the first parameter)
NOT_ALLOWED: dict[str, tuple[dict[str, Any], str]] = {
    "epochs-zero": ({"epochs": 0}, "0"),
    "epochs-negative": ({"epochs": -1}, "-1"),
    "epochs-fraction": ({"epochs": 1.5}, "1.5"),
    "epochs-str": ({"epochs": "3"}, "'3'"),
    "epochs-none": ({"epochs": None}, "None"),
    "batch-size-zero": ({"batch_size": 0}, "0"),
    "batch-size-negative": ({"batch_size": -8}, "-8"),
    "learning-rate-zero": ({"learning_rate": 0.0}, "0.0"),
    "learning-rate-negative": ({"learning_rate": -1e-5}, "-1e-05"),
    "learning-rate-nan": ({"learning_rate": float("nan")}, "nan"),
    "learning-rate-fraction": ({"learning_rate": Fraction(1, 1000)}, "Fraction(1, 1000)"),
    "warmup-fraction": ({"warmup": Fraction(1, 10)}, "Fraction(1, 10)"),
    "learning-rate-str": ({"learning_rate": "5e-5"}, "'5e-5'"),
    "learning-rate-none": ({"learning_rate": None}, "None"),
    "head-learning-rate-zero": ({"head_learning_rate": 0}, "0"),
    "head-learning-rate-typo": ({"head_learning_rate": "own"}, "'auto'"),
    "weight-decay-negative": ({"weight_decay": -0.1}, "-0.1"),
    "warmup-negative": ({"warmup": -0.1}, "-0.1"),
    "schedule-typo": ({"schedule": "cosin"}, "'cosine'"),
    "layer-decay-zero": ({"layer_decay": 0.0}, "0.0"),
    "layer-decay-above-one": ({"layer_decay": 1.5}, "1.5"),
    "freeze-negative": ({"freeze": -1}, "-1"),
    "freeze-typo": ({"freeze": "al"}, "'all'"),
    "max-grad-norm-zero": ({"max_grad_norm": 0}, "0"),
    "accumulate-zero": ({"accumulate": 0}, "0"),
    "pooling-typo": ({"pooling": "avg"}, "'mean'"),
    "head-init-typo": ({"head_init": "zeros"}, "'probe'"),
    "max-length-zero": ({"max_length": 0}, "0"),
    "max-length-negative": ({"max_length": -5}, "-5"),
    "max-length-fraction": ({"max_length": 64.5}, "64.5"),
    "max-length-beyond-the-model": ({"max_length": 129}, "128"),
    "max-length-far-beyond": ({"max_length": 10**6}, "128"),
    "max-length-without-room": ({"max_length": 1}, "1"),
    "long-text-typo": ({"long_text": "truncation"}, "'truncate'"),
    "text-columns-empty": ({"text_columns": []}, "."),
    "text-columns-three": ({"text_columns": ["a", "b", "c"]}, "."),
    "text-columns-twice": ({"text_columns": ["text", "text"]}, "."),
    "text-columns-fraction": ({"text_columns": 1.5}, "1.5"),
    "text-columns-no-fields": ({"text_columns": {}}, "{}"),
    "text-columns-blank-field": ({"text_columns": {"text": " ", "about": "b"}}, "' '"),
    "text-columns-number-field": ({"text_columns": {"text": 1, "about": "b"}}, "1"),
    "text-columns-same-field": ({"text_columns": {"text": "a", "about": "a"}}, "'about'"),
    "missing-typo": ({"missing": "drop"}, "'raise'"),
    "validation-fraction-zero": ({"validation_fraction": 0.0}, "0.0"),
    "validation-fraction-one": ({"validation_fraction": 1.0}, "1.0"),
    "validation-fraction-percent": ({"validation_fraction": 10}, "10"),
    "patience-zero": ({"patience": 0}, "0"),
    "precision-typo": ({"precision": "fp16"}, "'float16'"),
    "device-gpu": ({"device": "gpu"}, "'cuda'"),
    "device-number": ({"device": 0}, "0"),
    "device-without-number": ({"device": "cuda:one"}, "cuda"),
    "warm-start-str": ({"warm_start": "no"}, "'no'"),
    "random-state-str": ({"random_state": "seed"}, "'seed'"),
    "random-state-negative": ({"random_state": -1}, "-1"),
    "verbose-str": ({"verbose": "yes"}, "'yes'"),
    "model-none": ({"model": None}, "None"),
    "model-number": ({"model": 3}, "3"),
}
for name, (params, words) in NOT_ALLOWED.items():
    first = next(iter(params))
    on = "learners" if name == "text-columns-three" else "both"  # a ranker may have as many
    refuse(name, "parameter", ValueError, (first, re.escape(words)), parameter(**params), on)
for name, (params, words) in {
    "label-smoothing-one": ({"label_smoothing": 1.0}, "1.0"),
    "label-smoothing-negative": ({"label_smoothing": -0.1}, "-0.1"),
    "thresholds-without-hold-out": ({"tune_thresholds": True}, "validation_fraction"),
    "thresholds-of-one-label": (
        {"tune_thresholds": True, "validation_fraction": 0.5},
        "multi-label",
    ),
}.items():
    first = next(iter(params))
    refuse(
        name, "parameter", ValueError, (first, re.escape(words)), parameter(**params), "classifier"
    )
for name, (columns, error, words) in {
    "empty": ([], InputError, "does not choose columns"),
    "twice": (["stars", "stars"], InputError, "does not choose columns"),
    "a set": ({"stars", "shop"}, InputError, "does not choose columns"),
    "absent": ("strs", InputError, "'stars'"),
    "also-text": (["stars", "text"], InputError, "both name 'text'"),
    "of-texts": ("about", InputError, "an id or a text"),
    "of-dates": ("day", InputTypeError, "row 0 of column 'day'"),
    "of-lists": ("list", InputTypeError, "row 0 of column 'list'"),
    "of-infinity": ("inf", InputError, "row 1 of column 'inf'"),
}.items():
    refuse(
        f"feature-columns-{name}",
        "parameter",
        error,
        ("feature_columns", words),
        lambda _, columns=columns: {
            "X": wide().assign(
                day=pd.date_range("2024-01-01", periods=6),
                list=[[1, 2]] * 6,
                inf=[0.5, math.inf, 1.0, 2.0, 3.0, 4.0],
            ),
            "params": {"text_columns": "text", "feature_columns": columns},
        },
        "learners",
    )
refuse(
    "later-number-written-as-text",
    "cell",
    InputTypeError,
    ("feature_columns", "row 1 of column 'stars'", "to_numeric"),
    lambda _: {
        "X": wide(),
        "predict_X": wide().assign(stars=[4.5, "1,0", 4.0, 1.5, 5.0, 0.5]),
        "params": {"text_columns": "text", "feature_columns": "stars"},
    },
    "learners",
    when="predict",
)
for on in ("classifier", "extractor", "ranker", "tagger"):
    for name, value, words in (
        ("calibrate-str", "sigmoid", "'sigmoid'"),
        ("calibrate-without-hold-out", True, "validation_fraction"),
    ):
        refuse(
            f"{name}-{on}", "parameter", ValueError, ("calibrate", words),
            parameter(calibrate=value), on,
        )  # fmt: skip
refuse(
    "text-columns-absent",
    "parameter",
    InputError,
    ("text_columns", "'txet'", "'text'"),
    lambda _: {"X": wide(), "params": {"text_columns": "txet"}},
)
refuse(
    "text-columns-beyond",
    "parameter",
    InputError,
    ("text_columns", "9", "'text'"),
    lambda _: {"X": wide(), "params": {"text_columns": [1, 9]}},
)
refuse(
    "text-columns-named-twice-in-frame",
    "parameter",
    InputError,
    ("text_columns", "2 times"),
    lambda _: {
        "X": pd.DataFrame(PAIRS, columns=["text", "text"]),
        "params": {"text_columns": "text"},
    },
)
refuse(
    "text-columns-names-for-an-array",
    "parameter",
    InputError,
    ("text_columns", "'text'"),
    lambda _: {"X": wide().to_numpy(), "params": {"text_columns": "text"}},
)
refuse(
    "device-cuda-where-none-is",
    "parameter",
    InputError,
    "torch sees no CUDA device; use device='auto'",
    parameter(device="cuda"),
)
refuse(
    "device-cuda-number-where-none-is",
    "parameter",
    InputError,
    "torch sees",
    parameter(device="cuda:99"),
)
refuse(
    "model-path-not-there",
    "parameter",
    ModelNotFoundError,
    ("not found", "no-such-folder"),
    lambda model: {"params": {"model": model / "no-such-folder"}},
)
refuse(
    "model-str-not-there",
    "parameter",
    ModelNotFoundError,
    ("not found", "no-such-folder"),
    lambda model: {"params": {"model": str(model / "no-such-folder")}},
)
refuse(
    "model-id-not-there",
    "parameter",
    ModelNotFoundError,
    ("not found", "nobody/no-such-model"),
    lambda _: {"params": {"model": "nobody/no-such-model"}},
)
refuse(
    "model-is-a-file",
    "parameter",
    ModelNotFoundError,
    ("file", "folder"),
    lambda model: {"params": {"model": model / "config.json"}},
)
refuse("model-is-an-empty-name", "parameter", ModelNotFoundError, "model", parameter(model=""))
refuse(
    "model-is-no-model-folder",
    "parameter",
    ModelError,
    "config.json",
    lambda model: {"params": {"model": model.parent}},
)
