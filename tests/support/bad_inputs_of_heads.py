"""The rows of the table of bad and odd inputs that are of words, answers and options.

Importing this module adds them to `bad_inputs.ROWS`. The usual X and y are those of
`skbert.testing._samples`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from skbert.exceptions import InputError, InputTypeError, SkbertWarning
from skbert.testing._samples import objects, sample_of
from support.bad_inputs import Make, accept, refuse, warn

TAGS, SPANS, CHOICES = (sample_of(kind, None, None) for kind in ("tags", "spans", "choices"))
PERSON = "\U0001f469\u200d\U0001f680 cafe\u0301: the "


def cell(sample: Any, value: Any, row: int = 2) -> Make:
    """The usual X with another cell in the last column of a row."""
    return lambda _: {"X": sample.with_cell(row, value)}


def target(sample: Any, value: Any, row: int = 2) -> Make:
    """The usual y with another entry."""
    y = list(sample.y)
    y[row] = value
    return lambda _: {"y": y}


def table(
    estimator: str,
    rows: dict[str, tuple[str, type[Exception], str | tuple[str, ...], Make]],
) -> None:
    for name, (kind, error, words, make) in rows.items():
        refuse(f"{estimator}-{name}", kind, error, words, make, on=estimator)


def gives(X: Any, expected: Callable[[Any], bool]) -> Callable[[Any], None]:
    """Assert something of what the fitted estimator predicts for X."""

    def check(estimator: Any) -> None:
        predicted = estimator.predict(X)
        assert len(predicted) == len(X)
        assert expected(predicted), predicted

    return check


# --- words -------------------------------------------------------------------------------------

table(
    "tagger",
    {
        "flat-list": (
            "container",
            InputTypeError,
            ("words", "row"),
            lambda _: {"X": ["good", "food"], "y": ["O", "B-A"]},
        ),
        "words-of-a-dict": ("container", InputTypeError, "dict", lambda _: {"X": {"a": TAGS.X}}),
        "word-none": ("cell", InputError, "row 2", cell(TAGS, ["good", None])),
        "word-nan": ("cell", InputError, "row 2", cell(TAGS, ["good", np.nan])),
        "word-number": ("cell", InputTypeError, ("row 2", "int"), cell(TAGS, ["good", 5])),
        "word-bytes": ("cell", InputTypeError, ("row 2", "bytes"), cell(TAGS, ["good", b"a"])),
        "word-list": ("cell", InputTypeError, ("row 2", "list"), cell(TAGS, ["good", ["a"]])),
        "row-none": ("cell", InputError, "row 2", cell(TAGS, None)),
        "row-of-text-among-words": ("cell", InputTypeError, "row 2", cell(TAGS, "good food")),
        "tags-too-few": ("label", InputError, ("[Rr]ow 2", "1"), target(TAGS, ["O"])),
        "tags-too-many": ("label", InputError, ("[Rr]ow 2", "9"), target(TAGS, ["O"] * 9)),
        "tags-none": ("label", InputError, "[Rr]ow 2", target(TAGS, None)),
        "tag-none": ("label", InputError, "[Rr]ow 0", target(TAGS, [None, *TAGS.y[0][1:]], 0)),
        "tag-number": (
            "label",
            InputTypeError,
            ("[Rr]ow 0", "int"),
            target(TAGS, [1, *TAGS.y[0][1:]], 0),
        ),
        "tags-as-one-str": ("label", InputTypeError, "[Rr]ow 2", target(TAGS, "O O O O O")),
        "tags-of-fewer-rows": (
            "label",
            InputError,
            r"\[8, 7\]",
            lambda _: {"y": TAGS.y[:7]},
        ),
        "scheme-typo": (
            "parameter",
            ValueError,
            "scheme",
            lambda _: {"params": {"scheme": "BIO"}},
        ),
    },
)
accept(
    "tagger-words-without-pieces",
    "cell",
    cell(TAGS, ["", "\u200b", "good", "  ", "\x00"]),
    on="tagger",
    check=gives([["", "\u200b", "\x00"]], lambda predicted: len(predicted[0]) == 3),
)
accept(
    "tagger-two-thousand-words",
    "cell",
    cell(TAGS, TAGS.X[2]),
    on="tagger",
    check=gives([["good", "bad"] * 1000], lambda predicted: len(predicted[0]) == 2000),
)
accept(
    "tagger-rows-as-series",
    "container",
    lambda _: {"X": [pd.Series(words) for words in TAGS.X]},
    on="tagger",
    check=gives([pd.Series(["good", "bad"])], lambda predicted: len(predicted[0]) == 2),
)
warn(
    "tagger-inside-without-begin",
    "label",
    SkbertWarning,
    "conlleval",
    lambda _: {"y": [["I-A"] * len(words) for words in TAGS.X], "params": {"scheme": "IOB2"}},
    on="tagger",
)

# --- answers -----------------------------------------------------------------------------------

table(
    "extractor",
    {
        "one-text-per-row": (
            "container",
            InputError,
            "question",
            lambda _: {"X": SPANS.column(1)},
        ),
        "columns-for-rows": (
            "container",
            InputError,
            "zip",
            lambda _: {"X": (SPANS.column(0), SPANS.column(1))},
        ),
        "columns-exchanged": (
            "container",
            InputError,
            ("context", "question"),
            lambda _: {
                "X": pd.DataFrame({"context": SPANS.column(1), "question": SPANS.column(0)})
            },
        ),
        "ragged": ("container", InputError, "row 1", lambda _: {"X": [("a", "b"), ("a",)]}),
        "context-none": ("cell", InputError, "row 2", cell(SPANS, None)),
        "context-number": ("cell", InputTypeError, ("row 2", "int"), cell(SPANS, 5)),
        "context-list": ("cell", InputTypeError, "row 2", cell(SPANS, ["a", "b"])),
        "absent": ("label", InputError, ("[Rr]ow 2", "context"), target(SPANS, "nowhere at all")),
        "ambiguous": (
            "label",
            InputError,
            ("[Rr]ow 2", "on_ambiguous"),
            target(SPANS, "o"),
        ),
        "start-out-of-range": ("label", InputError, "[Rr]ow 2", target(SPANS, ("book", 900))),
        "start-negative": ("label", InputError, "[Rr]ow 2", target(SPANS, ("book", -3))),
        "start-of-another-text": ("label", InputError, "[Rr]ow 2", target(SPANS, ("book", 0))),
        "answer-none": ("label", InputError, "[Rr]ow 2", target(SPANS, None)),
        "answer-number": ("label", InputTypeError, "[Rr]ow 2", target(SPANS, 7)),
        "answers-and-starts-as-array": (
            "label",
            InputTypeError,
            ("2-D", "zip"),
            lambda _: {"y": np.array([(answer, 0) for answer in SPANS.y])},
        ),
        "answers-as-columns": (
            "label",
            InputTypeError,
            ("2 columns", "zip"),
            lambda _: {"y": pd.DataFrame({"answer": SPANS.y, "answer_start": 0})},
        ),
        "stride-as-step": (
            "parameter",
            InputError,
            ("stride=100", "64"),
            lambda _: {"params": {"stride": 100}},
        ),
        "answers-of-fewer-rows": ("label", InputError, r"\[8, 7\]", lambda _: {"y": SPANS.y[:7]}),
        "stride-negative": (
            "parameter",
            ValueError,
            "stride",
            lambda _: {"params": {"stride": -1}},
        ),
    },
)
accept(
    "extractor-after-emoji-and-marks",
    "cell",
    lambda _: {
        "X": [(question, PERSON + context) for question, context in SPANS.X],
        "y": [PERSON.rsplit(maxsplit=1)[-1]] * len(SPANS),
        "params": {"on_ambiguous": "first"},
    },
    on="extractor",
    check=gives(
        [("what?", PERSON + "end")],
        lambda predicted: not predicted[0] or predicted[0] in PERSON + "end",
    ),
)
accept("extractor-several-answers", "label", target(SPANS, ["I love", "book"]), on="extractor")
accept(
    "extractor-frame-of-one-column",
    "label",
    lambda _: {"y": pd.DataFrame({"answer": SPANS.y})},
    on="extractor",
)
accept(
    "extractor-starts-as-floats",
    "label",
    target(SPANS, ("good", 12.0)),
    on="extractor",
)
accept(
    "extractor-empty-context",
    "cell",
    cell(SPANS, SPANS.X[2][1]),
    on="extractor",
    check=gives([("what?", "")], lambda predicted: predicted[0] == ""),
)

# --- options -----------------------------------------------------------------------------------

table(
    "ranker",
    {
        "prompts-alone": (
            "container",
            InputError,
            "one column",
            lambda _: {"X": CHOICES.column(0)},
        ),
        "options-before-the-prompt": (
            "container",
            InputTypeError,
            "only the last column may hold lists",
            lambda _: {"X": [(options, prompt) for prompt, options in CHOICES.X]},
        ),
        "ragged": (
            "container",
            InputError,
            "row 1",
            lambda _: {"X": [("p", "a"), ("q", "b", "c")]},
        ),
        "options-from-csv": (
            "cell",
            InputError,
            ("row 0", "literal_eval"),
            lambda _: {"X": [(prompt, str(options)) for prompt, options in CHOICES.X]},
        ),
        "no-options": ("cell", InputError, "row 2", cell(CHOICES, [])),
        "options-none": ("cell", InputError, "row 2", cell(CHOICES, None)),
        "option-none": ("cell", InputError, "row 2", cell(CHOICES, ["a", None])),
        "option-number": ("cell", InputTypeError, ("row 2", "int"), cell(CHOICES, ["a", 5])),
        "option-bytes": ("cell", InputTypeError, ("row 2", "bytes"), cell(CHOICES, ["a", b"b"])),
        "options-as-a-str": ("cell", InputTypeError, "row 2", cell(CHOICES, "abc")),
        "beyond-the-last": ("label", InputError, ("[Rr]ow 2", "9"), target(CHOICES, 9)),
        "before-the-first": ("label", InputError, ("[Rr]ow 2", "-1"), target(CHOICES, -1)),
        "no-option-of-the-row": (
            "label",
            InputError,
            ("[Rr]ow 2", "fast"),
            lambda _: {"y": [c[1][0] for c in CHOICES.X[:2]] + ["fast"] * 6},
        ),
        "mixed": ("label", InputTypeError, "[Rr]ow 2", target(CHOICES, "nice")),
        "right-none": ("label", InputError, "[Rr]ow 2", target(CHOICES, None)),
        "windows": (
            "parameter",
            ValueError,
            "long_text",
            lambda _: {"params": {"long_text": "windows"}},
        ),
    },
)
accept("ranker-different-counts", "cell", cell(CHOICES, [*"abcdefg"]), on="ranker")
accept(
    "ranker-equal-options",
    "cell",
    cell(CHOICES, ["same", "same"]),
    on="ranker",
    check=gives([("p", ["same", "same"])], lambda predicted: predicted[0] == 0),
)
accept(
    "ranker-one-option",
    "cell",
    cell(CHOICES, CHOICES.X[2][1]),
    on="ranker",
    check=gives([("p", ["only"])], lambda predicted: predicted[0] == 0),
)
accept(
    "ranker-options-as-series",
    "container",
    lambda _: {"X": [(prompt, pd.Series(options)) for prompt, options in CHOICES.X]},
    on="ranker",
)
accept(
    "ranker-objects",
    "container",
    lambda _: {"X": objects(CHOICES.X)},
    on="ranker",
)

for name, answer in {
    "tuple": ("food", "5"),
    "elsewhere": ("food", "20"),
    "list": ["food", "20"],
}.items():
    refuse(
        f"extractor-start-as-str-in-{name}",
        "label",
        InputError,
        ("Row 0 of y", "starts as int", r"\('food', \d+\)"),
        target(SPANS, answer, 0),
        on="extractor",
    )
