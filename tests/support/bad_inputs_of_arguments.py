"""The rows of the table of bad and odd inputs that are of what stands beside X, y and a weight.

These are soft labels with their classes, validation sets, groups, and what methods of a fitted
estimator are asked for. Importing this module adds them to `bad_inputs.ROWS`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from skbert.exceptions import InputError, InputTypeError, SkbertError
from support.bad_inputs import INDICATOR, LABELS, PAIRS, TEXTS, Make, accept, refuse, wide
from support.bad_inputs_of_heads import CHOICES, SPANS, TAGS

# --- soft labels and their classes -------------------------------------------------------------

SHARES = [[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.3, 0.7], [1.0, 0.0], [0.5, 0.5]]
NAMES = ["bad", "good"]  # in the order of classes_


def soft(row: int = 0, shares: Any = (0.5, 0.5), **more: Any) -> Make:
    """Soft labels with another row."""
    y = [*SHARES[:row], list(shares), *SHARES[row + 1 :]]
    return lambda _: {"y": y, **more}


def framed(columns: list[str], **more: Any) -> Make:
    return lambda _: {"y": pd.DataFrame(SHARES, columns=columns), **more}


def called(classes: Any, **more: Any) -> Make:
    return lambda _: {"classes": classes, **more}


for name, make in {
    "array": lambda _: {"y": np.array(SHARES), "classes": NAMES},
    "frame": framed(NAMES),
    "within-the-tolerance": soft(2, (0.6004, 0.4), classes=NAMES),
    "hard": lambda _: {"y": np.eye(2)[[0, 1] * 3], "classes": np.array(NAMES)},
}.items():
    accept(f"soft-{name}", "label", make, "classifier")
for name, (error, words, make) in {
    "sum-below-one": (
        InputError,
        (r"row 3 sums to 0\.9 ", r"0\.001", r"type y / y\.sum"),
        soft(3, (0.5, 0.4), classes=NAMES),
    ),
    "sum-above-one": (
        InputError,
        (r"row 3 sums to 1\.2", "leave classes out"),
        soft(3, (0.6, 0.6)),
    ),
    "negative": (InputError, r"row 2 of column 1 is -0\.2, below 0", soft(2, (1.2, -0.2))),
    "nan": (InputError, ("NaN", "row 5 of column 0"), soft(5, (np.nan, 0.5))),
    "none": (InputError, ("NaN", "row 5 of column 1"), soft(5, (0.5, None))),
    "inf": (InputError, ("infinity", "row 5 of column 0"), soft(5, (np.inf, 0.5))),
    "str": (InputTypeError, ("str and numbers", "row 4 of column 0"), soft(4, ("good", 0.5))),
    "few-classes": (InputError, "names 1 classes, but y has 2", soft(classes=["good"])),
    "class-twice": (InputError, "'a' more than once", soft(classes=["a", "a"])),
    "column-twice": (InputError, "'a' more than once", framed(["a", "a"])),
    "frame-of-other-classes": (
        InputError,
        ("columns of y are named", r"list\(y\.columns\)"),
        framed(NAMES, classes=NAMES[::-1]),
    ),
    "of-several-labels": (
        InputError,
        ("row 0 sums to 2", "leave classes out"),
        called(["a", "b", "c"], y=INDICATOR),
    ),
    "of-several-columns": (
        InputTypeError,
        ("row 0 of column 0 is 'good'", "leave classes out"),
        called(NAMES, y=np.stack([LABELS, LABELS[::-1]], axis=1)),
    ),
}.items():
    refuse(f"soft-{name}", "label", error, words, make, "classifier")
for name, (error, words, classes) in {
    "str": (InputTypeError, ("classes is of type str", "classes="), "good"),
    "set": (InputTypeError, ("type set", r"sorted\(classes\)"), {"good", "bad"}),
    "none": (InputError, ("classes has 1 missing", "position 1"), ["good", None]),
    "mixed": (InputTypeError, "classes mixes str and numbers", ["good", 1]),
    "fractions": (InputError, ("classes is", "whole numbers"), [0.5, 1.0]),
    "of-ints-for-str": (InputTypeError, ("mixes str and numbers", "like 0"), [0, 1]),
    "of-columns": (InputError, "row 0 of classes holds", [["good"], ["bad"]]),
}.items():
    refuse(f"classes-{name}", "label", error, words, called(classes), "classifier")

# --- validation sets ---------------------------------------------------------------------------


def validated(X_val: Any = TEXTS[:2], y_val: Any = (1, 0), **more: Any) -> dict[str, Any]:
    return {"X_val": X_val, "y_val": y_val, **more}


def of_columns(X: pd.DataFrame, X_val: pd.DataFrame, **params: Any) -> dict[str, Any]:
    return validated(X_val[:2], X=X, params=params)


FRAME = pd.DataFrame(PAIRS, columns=["text", "about"])
OTHER_NAMES = ("X is X_val", "feature names should match")

for name, (error, words, given) in {
    "y-val-absent": (InputError, "y_val is not", {"X_val": TEXTS[:2]}),
    "y-val-alone": (InputError, ("y_val is given", "X_val"), {"y_val": [1, 0]}),
    "weights-of-x-val-alone": (InputError, "sample_weight_val is", {"sample_weight_val": [1, 1]}),
    "x-val-empty": (InputError, ("X is X_val", "0 sample"), validated([], [])),
    "x-val-none": (InputError, ("X is X_val", "row 1"), validated(["good", None])),
    "x-val-numbers": (InputTypeError, ("X is X_val", "[Rr]ow 0"), validated([1, 2])),
    "x-val-of-pairs": (InputError, ("X is X_val", "2 features"), validated(PAIRS[:2])),
    "y-val-too-long": (InputError, ("y is y_val", "2 rows and y has 3"), validated(y_val=[1] * 3)),
    "y-val-nan": (InputError, ("y is y_val", "NaN"), validated(y_val=[1.0, np.nan])),
    "weights-of-x-val-zero": (
        InputError,
        ("X is X_val", "non-zero"),
        validated(sample_weight_val=[0, 0]),
    ),
    "weights-of-x-val-too-short": (
        InputError,
        ("X is X_val", "sample_weight"),
        validated(sample_weight_val=[1]),
    ),
    "x-val-of-another-name": (
        InputError,
        (*OTHER_NAMES, r"columns=\{'body': 'text'\}"),
        of_columns(FRAME[["text"]], FRAME[["text"]].rename(columns={"text": "body"})),
    ),
    "x-val-of-fewer-columns": (
        InputError,
        (*OTHER_NAMES, "missing:\n- about"),
        of_columns(FRAME, FRAME[["text"]]),
    ),
    "x-val-of-more-columns": (
        InputError,
        (*OTHER_NAMES, r"type X\[\['text'\]\]"),
        of_columns(FRAME[["text"]], FRAME),
    ),
    "x-val-in-another-order": (
        InputError,
        (*OTHER_NAMES, "same order"),
        of_columns(FRAME, FRAME[["about", "text"]]),
    ),
    "x-val-without-a-feature-column": (
        InputError,
        ("X is X_val", "'stars', which X has 0 times"),
        of_columns(wide(), wide()[["text"]], text_columns="text", feature_columns="stars"),
    ),
    "x-val-with-texts-for-numbers": (
        InputTypeError,
        ("X is X_val", "row 0 of column 'stars'"),
        of_columns(
            wide(), wide().assign(stars="five"), text_columns="text", feature_columns="stars"
        ),
    ),
    "groups-with-x-val": (InputError, "either groups or X_val", validated(groups=[0, 1] * 3)),
    "groups-without-hold-out": (InputError, "validation_fraction=None", {"groups": [0, 1] * 3}),
}.items():
    refuse(name, "validation", error, words, lambda _, given=given: given, "learners")
for name, (words, labels) in {
    "y-val-unseen": (("y_val", "row 1", "'odd'"), ["good", "odd"]),
    "y-val-soft-sum": (("y is y_val", r"row 1 sums to 0\.9"), [[0.5, 0.5], [0.5, 0.4]]),
    "y-val-indicator": (("y is y_val", "predicts one label"), [[0, 1], [1, 1]]),
}.items():
    given = validated(y_val=labels)
    refuse(name, "validation", InputError, words, lambda _, given=given: given, "classifier")

for on, sample in {"tagger": TAGS, "extractor": SPANS, "ranker": CHOICES}.items():
    X_val, y_val = list(sample.X)[:2], list(sample.y)[:2]
    for name, (error, words, given) in {
        "y-val-absent": (InputError, "y_val is not", {"X_val": X_val}),
        "y-val-alone": (InputError, ("y_val is given", "X_val"), {"y_val": y_val}),
        "y-val-too-long": (
            InputError,
            ("y is y_val", "3"),
            validated(X_val, [*y_val, sample.y[2]]),
        ),
        "y-val-none": (InputError, ("y is y_val", "[Rr]ow 1"), validated(X_val, [y_val[0], None])),
        "x-val-empty": (InputError, ("X is X_val", "0 sample"), validated([], [])),
        "x-val-none": (InputError, ("X is X_val", "row 1"), validated([X_val[0], None], y_val)),
        "x-val-of-texts": (
            SkbertError,
            "X is X_val",
            validated(TEXTS[:2], y_val),
        ),
        "groups-with-x-val": (
            InputError,
            "either groups or X_val",
            validated(X_val, y_val, groups=range(8)),
        ),
    }.items():
        refuse(f"{name}-{on}", "validation", error, words, lambda _, given=given: given, on)

# --- groups --------------------------------------------------------------------------------------

# By estimator, the number of rows in its usual X.
ROWS_OF = {"learners": 6, "ranker": 8, "extractor": 8, "tagger": 8}
for on, n in ROWS_OF.items():
    for name, (error, words, groups) in {
        "too-few": (InputError, (f"{n} rows", "groups has 2"), [0, 1]),
        "too-many": (InputError, (f"{n} rows", "groups has 9"), range(9)),
        "all-one": (InputError, "one group", ["a"] * n),
        "nan": (InputError, ("missing", "row 1"), [0.0, np.nan] * (n // 2)),
        "none": (InputError, ("missing", "row 0"), [None, "a"] * (n // 2)),
        "of-lists": (InputTypeError, "type list", [["a"], ["b", "c"]] * (n // 2)),
        "of-columns": (InputError, "shape", np.ones((n, 2))),
        "str": (InputError, "'document'", "document"),
    }.items():
        given = {"params": {"validation_fraction": 0.5}, "groups": groups}
        refuse(f"groups-{name}-{on}", "validation", error, words, lambda _, given=given: given, on)

# --- what a fitted estimator is asked ------------------------------------------------------------

for method, argument, closed in (
    ("predict_set", "coverage", False),
    ("predict", "reject_below", True),
    ("reject_threshold", "max_error", False),
    ("reject_threshold", "confidence", False),
):
    values: dict[str, Any] = {
        "negative": -0.1, "percent": 95, "nan": np.nan, "inf": np.inf, "str": "0.9", "bool": True,
        "list": [0.9],
    }  # fmt: skip
    values |= {} if closed else {"zero": 0, "one": 1, "float-one": 1.0, "none": None}
    for name, value in values.items():
        is_number = type(value) in (int, float)
        refuse(
            f"{argument}-{name}",
            "method",
            InputError if is_number else InputTypeError,
            (rf"{argument}=", "between 0 and 1", rf"Type {argument}=0\.\d"),
            lambda _, asked=(method, {argument: value}): {"asked": asked},
            when="asked",
        )
