"""y of a span extractor as places in the contexts, or an error that names the first bad rows.

Depends on numpy, `texts`, `tables`, `targets` and
`skbert.exceptions`; knows no torch and no tokenizer.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any, NamedTuple, TypeGuard

import numpy as np

from skbert._arrays import Array
from skbert._validation.tables import ROW_TYPES, is_missing, open_table, read_cells
from skbert._validation.targets import check_length
from skbert._validation.texts import MAX_NAMES, SURROGATE
from skbert.exceptions import InputError, InputTypeError, warn

__all__ = [
    "Gold",
    "check_answers",
    "is_placed",
    "is_whole",
    "one_per_row",
    "warn_if_swapped",
]

_FORMS = (
    "Give per row the answer (str), (answer, start), a list of several right answers, or '' where "
    "the context holds none."
)
_TIMES_LONGER = 4  # than its context: what can hardly be a question
_QUESTION_MARKS = ("?", "\u037e", "\u061f", "\uff1f")  # Latin, Greek, Arabic and wide Chinese
_CLOSING = "\t\n\r \"')]\u2019\u201d\u00bb"  # may follow a question mark


class Gold(NamedTuple):
    """The right answers of each row."""

    spans: Array  # (n, 2) int64: start and end in the context, -1 for no answer
    texts: list[list[str]]  # every right answer; empty where there is none


def check_answers(
    y: Any,
    contexts: Sequence[str],
    *,
    on_ambiguous: str = "raise",
    estimator_name: str = "BertSpanExtractor",
) -> Gold:
    """Return the answers of all rows, and where in the contexts the first one of each lies.

    Raises
    ------
    InputError
        If an answer is missing, blank, not in its context, not where it is said to be, or there
        more than once without saying where (unless `on_ambiguous` is "first").
    InputTypeError
        If a row of y holds something else than answers.
    """
    cells = _cells(y, estimator_name)
    check_length(len(contexts), len(cells))
    gaps = [row for row, cell in enumerate(cells) if is_missing(cell)]
    if gaps:
        msg = (
            f"Input y contains NaN. It has {len(gaps)} missing answer(s), the first in row "
            f"{gaps[0]}. Leave these rows out, or give '' where the context holds no answer."
        )
        raise InputError(msg)
    answers = [_answers(cell, row) for row, cell in enumerate(cells)]
    firsts = {row: found[0] for row, found in enumerate(answers) if found}
    _refuse_written_starts(cells, contexts)
    _refuse_blank(firsts)
    _refuse_absent(firsts, contexts)
    _refuse_misplaced(firsts, contexts)
    if on_ambiguous == "raise":
        _refuse_ambiguous(firsts, contexts)
    spans = np.full((len(cells), 2), -1, dtype=np.int64)
    for row, (text, start) in firsts.items():
        begin = contexts[row].find(text) if start is None else start
        spans[row] = begin, begin + len(text)
    return Gold(spans, [[text for text, _ in found] for found in answers])


def warn_if_swapped(questions: Sequence[str], contexts: Sequence[str]) -> None:
    """Warn when more than half of the rows look as if the context came first.

    In such a row the second text asks and the first does not, or neither asks and the first is
    by far the longer one.
    """
    rows = [
        row
        for row, (question, context) in enumerate(zip(questions, contexts, strict=True))
        if not _asks(question)
        and (_asks(context) or len(question) > _TIMES_LONGER * len(context.strip()) > 0)
    ]
    if 2 * len(rows) > len(questions):
        question, context = questions[rows[0]], contexts[rows[0]]
        warn(
            f"{len(rows)} of {len(questions)} rows of X look as if the context came first: row "
            f"{rows[0]} asks {reprlib.repr(question)} about {reprlib.repr(context)}. A row is a "
            "question and then its context; if they changed places, type "
            "list(zip(questions, contexts))."
        )


def _asks(text: str) -> bool:
    return text[-9:].rstrip(_CLOSING).endswith(_QUESTION_MARKS)


_Answer = tuple[str, int | None]  # and where it starts, if that was said


def _cells(y: Any, estimator_name: str) -> list[Any]:
    """Return one cell per row, whatever container they came in."""
    if y is None:
        msg = (
            f"This {estimator_name} estimator requires y to be passed, but the target y is None. "
            f"{_FORMS}"
        )
        raise InputError(msg)
    if isinstance(y, (str, bytes, Mapping, set, frozenset)) or not hasattr(y, "__len__"):
        msg = f"y is {reprlib.repr(y)}, but must be a list with one entry per row. {_FORMS}"
        raise InputTypeError(msg)
    return one_per_row(y, "y")


def _answers(cell: Any, row: int) -> list[_Answer]:
    """Return the answers in one cell of y, without empty ones."""
    if isinstance(cell, str) or is_placed(cell):
        cell = [cell]
    if not isinstance(cell, ROW_TYPES):
        raise _odd_cell(cell, row)
    found: list[_Answer] = []
    for answer in cell:
        text, start = (answer[0], int(answer[1])) if is_placed(answer) else (answer, None)
        if not isinstance(text, str):
            raise _odd_cell(answer, row)
        if text:
            found.append((SURROGATE.sub("\ufffd", str.__str__(text)), start))  # as in X
    return found


def one_per_row(values: Any, name: str) -> list[Any]:
    """Entries of any container with one per row, a frame of one column among them."""
    if any(hasattr(values, columns) for columns in ("columns", "column_names")):
        table = open_table(values, name, None)
        if table.width != 1:
            msg = (
                f"{name} is a frame of {table.width} columns, but must hold one entry per row. "
                f"For one of them type {name}['answer'], for answers and their starts "
                f"list(zip({name}['answer'], {name}['answer_start']))."
            )
            raise InputTypeError(msg)
        return table.read(0)
    if isinstance(values, np.ndarray) and values.ndim == 2 and values.dtype.kind in "UT":
        msg = (
            f"{name} is a 2-D array of str, in which numbers became text. Pass a list with one "
            "entry per row; for answers and their starts type list(zip(answers, starts))."
        )
        raise InputTypeError(msg)
    return read_cells(values, name)


def is_whole(cell: Any) -> bool:
    """Tell whether a cell is a whole number, 2.0 as well as 2, but no bool."""
    is_bool = isinstance(cell, (bool, np.bool_))
    return isinstance(cell, Real) and not is_bool and float(cell).is_integer()


def is_placed(cell: Any) -> TypeGuard[tuple[str, float]]:
    """Tell whether a cell is an answer with its place in the context."""
    return (
        isinstance(cell, (list, tuple))
        and len(cell) == 2
        and isinstance(cell[0], str)
        and is_whole(cell[1])
    )


def _odd_cell(cell: Any, row: int) -> InputTypeError:
    """Make the error for what is no answer."""
    hint = _FORMS
    if isinstance(cell, Mapping):
        hint = "For the dicts of SQuAD type [list(zip(a['text'], a['answer_start'])) for a in y]."
    return InputTypeError(
        f"Row {row} of y holds {reprlib.repr(cell)}, of type {type(cell).__name__}, which is no "
        f"answer. {hint}"
    )


def _listed(
    rows: list[int], answers: Mapping[int, _Answer], contexts: Sequence[str] | None = None
) -> str:
    """Name the first rows of many, with their answers, and how often the contexts hold them."""
    shown = []
    for row in rows[:MAX_NAMES]:
        text, _ = answers[row]
        times = ""
        if contexts is not None:
            times = f", {len(re.findall(f'(?={re.escape(text)})', contexts[row]))} times"
        shown.append(f"row {row} ({reprlib.repr(text)}{times})")
    return ", ".join(shown + ["..."] * (len(rows) > MAX_NAMES))


def _refuse_written_starts(cells: list[Any], contexts: Sequence[str]) -> None:
    """Raise for an answer with its start as a str, which would count as a second answer."""
    for row, cell in enumerate(cells):
        if not isinstance(cell, (list, tuple)) or [*map(type, cell)] != [str, str]:
            continue
        text, start = cell
        if start.isdecimal() and (isinstance(cell, tuple) or start not in contexts[row]):
            msg = (
                f"Row {row} of y is {reprlib.repr(cell)}, an answer with a start that is a str. "
                f"Give starts as int; type ({reprlib.repr(text)}, {int(start)}). For several "
                "right answers give a list of parts of the context."
            )
            raise InputError(msg)


def _refuse_blank(firsts: Mapping[int, _Answer]) -> None:
    """Raise for answers of nothing but white space."""
    rows = [row for row, (text, _) in firsts.items() if text.isspace()]
    if rows:
        msg = (
            f"y has {len(rows)} answer(s) of nothing but white space: {_listed(rows, firsts)}. "
            "Give '' where the context holds no answer."
        )
        raise InputError(msg)


def _refuse_absent(firsts: Mapping[int, _Answer], contexts: Sequence[str]) -> None:
    """Raise for answers that are nowhere in their contexts."""
    rows = [row for row, (text, _) in firsts.items() if text not in contexts[row]]
    if rows:
        msg = (
            f"y has {len(rows)} answer(s) that are not in the context: {_listed(rows, firsts)}. "
            "An answer is a part of the context to the letter, case, accents and blanks included; "
            "give '' where the context holds none."
        )
        raise InputError(msg)


def _refuse_misplaced(firsts: Mapping[int, _Answer], contexts: Sequence[str]) -> None:
    """Raise for answers that are not where they are said to start."""
    wrong = {
        row: start
        for row, (text, start) in firsts.items()
        if start is not None and not (start >= 0 and contexts[row].startswith(text, start))
    }
    if rows := list(wrong):
        text, start, context = firsts[rows[0]][0], wrong[rows[0]], contexts[rows[0]]
        found = f"has {len(context)} characters"
        if 0 <= start < len(context):
            found = f"holds {reprlib.repr(context[start : start + len(text)])} there"
        msg = (
            f"y has {len(rows)} answer(s) that do not start where they are said to: "
            f"{_listed(rows, firsts)}. In row {rows[0]} the start is {start}, but the context "
            f"{found}; the answer starts at {context.find(text)}. Starts count characters (not "
            "bytes) from 0; give the answer alone to have it looked up."
        )
        raise InputError(msg)


def _refuse_ambiguous(firsts: Mapping[int, _Answer], contexts: Sequence[str]) -> None:
    """Raise for answers without a start that their contexts hold more than once."""
    rows = [
        row
        for row, (text, start) in firsts.items()
        if start is None and contexts[row].find(text) != contexts[row].rfind(text)
    ]
    if rows:
        msg = (
            f"y has {len(rows)} answer(s) that the context holds more than once: "
            f"{_listed(rows, firsts, contexts)}. Give (answer, start) to say which is meant, or "
            "set on_ambiguous='first' to take the first."
        )
        raise InputError(msg)
