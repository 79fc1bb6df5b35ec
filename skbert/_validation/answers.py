"""y of a span extractor as places in the contexts, or an error that names the first bad rows.

Depends on `tables`, `texts` and `skbert.exceptions`.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any, NamedTuple, TypeGuard

import numpy as np

from skbert._arrays import Array
from skbert._validation.tables import (
    MAX_NAMES,
    ROW_TYPES,
    check_length,
    is_missing,
    open_table,
    read_cells,
    require_y,
)
from skbert._validation.texts import without_surrogates
from skbert.exceptions import InputError, InputTypeError, warn

__all__ = [
    "Gold",
    "check_answers",
    "is_placed",
    "is_whole_number",
    "one_per_row",
    "warn_if_swapped",
]

_FORMS = (
    "Give for each row the answer (str), (answer, start), a list of several right answers, or '' "
    "if the context holds none."
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
        If an answer is missing, blank, not in its context, not at its start, or more than once
        in the context without a start (unless `on_ambiguous` is "first").
    InputTypeError
        If a row of y holds something else than answers.
    """
    cells = _cells(y, estimator_name)
    check_length(len(contexts), len(cells))
    gaps = [row for row, cell in enumerate(cells) if is_missing(cell)]
    if gaps:
        msg = (
            f"Input y contains NaN. It has {len(gaps)} missing answer(s), the first in row "
            f"{gaps[0]}. Leave these rows out, or give '' if the context holds no answer."
        )
        raise InputError(msg)
    answers = [_answers(cell, row) for row, cell in enumerate(cells)]
    firsts = {row: several[0] for row, several in enumerate(answers) if several}
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
    return Gold(spans, [[text for text, _ in several] for several in answers])


def warn_if_swapped(questions: Sequence[str], contexts: Sequence[str]) -> None:
    """Warn when more than half of the rows look as if the context came first.

    In such a row the second text is a question and the first is not, or neither is and the first
    is by far the longer one.
    """
    rows = [
        row
        for row, (question, context) in enumerate(zip(questions, contexts, strict=True))
        if not _is_question(question)
        and (_is_question(context) or len(question) > _TIMES_LONGER * len(context.strip()) > 0)
    ]
    if 2 * len(rows) > len(questions):
        question, context = questions[rows[0]], contexts[rows[0]]
        warn(
            f"{len(rows)} of {len(questions)} rows of X look as if the context came first: row "
            f"{rows[0]} has the question {reprlib.repr(question)} and the context "
            f"{reprlib.repr(context)}. The question comes first in a row; if X has them the other "
            "way round, type list(zip(questions, contexts))."
        )


def _is_question(text: str) -> bool:
    return text[-9:].rstrip(_CLOSING).endswith(_QUESTION_MARKS)


_Answer = tuple[str, int | None]  # and where it starts, if y has that


def _cells(y: Any, estimator_name: str) -> list[Any]:
    """Return one cell per row, whatever container they came in."""
    require_y(y, estimator_name, _FORMS)
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
    answers: list[_Answer] = []
    for answer in cell:
        text, start = (answer[0], int(answer[1])) if is_placed(answer) else (answer, None)
        if not isinstance(text, str):
            raise _odd_cell(answer, row)
        if text:
            answers.append((without_surrogates(str.__str__(text)), start))  # as in X
    return answers


def one_per_row(values: Any, name: str) -> list[Any]:
    """Return the entries of any container of one per row; a frame must have one column."""
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


def is_whole_number(cell: object) -> bool:
    """Return whether a cell is a whole number, 2.0 as well as 2, but not a bool."""
    is_bool = isinstance(cell, (bool, np.bool_))
    return isinstance(cell, Real) and not is_bool and float(cell).is_integer()


def is_placed(cell: object) -> TypeGuard[tuple[str, float]]:
    """Return whether a cell is an answer with its start in the context."""
    return (
        isinstance(cell, (list, tuple))
        and len(cell) == 2
        and isinstance(cell[0], str)
        and is_whole_number(cell[1])
    )


def _odd_cell(cell: object, row: int) -> InputTypeError:
    """Return the error for a cell that is not an answer."""
    hint = _FORMS
    if isinstance(cell, Mapping):
        hint = "For the dicts of SQuAD type [list(zip(a['text'], a['answer_start'])) for a in y]."
    return InputTypeError(
        f"Row {row} of y holds {reprlib.repr(cell)}, of type {type(cell).__name__}, which is not "
        f"an answer. {hint}"
    )


def _describe(
    rows: list[int], answers: Mapping[int, _Answer], contexts: Sequence[str] | None = None
) -> str:
    """Return the first rows with their answers, and how often the contexts hold these."""
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
                f"Row {row} of y is {reprlib.repr(cell)}, an answer whose start is a str. "
                f"Give starts as int; type ({reprlib.repr(text)}, {int(start)}). For several "
                "right answers give a list of parts of the context."
            )
            raise InputError(msg)


def _refuse_blank(firsts: Mapping[int, _Answer]) -> None:
    """Raise for answers of nothing but white space."""
    rows = [row for row, (text, _) in firsts.items() if text.isspace()]
    if rows:
        msg = (
            f"y has {len(rows)} answer(s) that are only white space: {_describe(rows, firsts)}. "
            "Give '' if the context holds no answer."
        )
        raise InputError(msg)


def _refuse_absent(firsts: Mapping[int, _Answer], contexts: Sequence[str]) -> None:
    """Raise for answers that their contexts do not hold."""
    rows = [row for row, (text, _) in firsts.items() if text not in contexts[row]]
    if rows:
        msg = (
            f"y has {len(rows)} answer(s) that are not in the context: {_describe(rows, firsts)}. "
            "An answer must be an exact part of the context, with the same case, accents and "
            "blanks; give '' if the context holds none."
        )
        raise InputError(msg)


def _refuse_misplaced(firsts: Mapping[int, _Answer], contexts: Sequence[str]) -> None:
    """Raise for answers that do not start where y says."""
    wrong = {
        row: start
        for row, (text, start) in firsts.items()
        if start is not None and not (start >= 0 and contexts[row].startswith(text, start))
    }
    if rows := list(wrong):
        text, start, context = firsts[rows[0]][0], wrong[rows[0]], contexts[rows[0]]
        contrast = f"has {len(context)} characters"
        if 0 <= start < len(context):
            contrast = f"holds {reprlib.repr(context[start : start + len(text)])} there"
        msg = (
            f"y has {len(rows)} answer(s) that do not start where y says: "
            f"{_describe(rows, firsts)}. In row {rows[0]} the start is {start}, but the context "
            f"{contrast}; the answer starts at {context.find(text)}. Starts count characters (not "
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
            f"{_describe(rows, firsts, contexts)}. Give (answer, start) to say which is meant, or "
            "set on_ambiguous='first' to take the first."
        )
        raise InputError(msg)
