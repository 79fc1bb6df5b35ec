"""X and y of a choice ranker as prompts, options and positions, or an error that names the row.

Depends on `tables`, `columns`, `texts` and `skbert.exceptions`.
"""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import numpy as np

from skbert._arrays import IntArray
from skbert._validation.columns import (
    FitRecord,
    TextColumns,
    check_order,
    column_positions,
    compare_with_fit,
)
from skbert._validation.tables import (
    ROW_TYPES,
    Table,
    check_length,
    check_not_empty,
    is_missing,
    open_table,
    open_values,
    require_y,
    warn_if_column_vector,
)
from skbert._validation.texts import (
    hint_for,
    read_texts,
    replace_surrogates,
    warn_of_surrogates,
    without_surrogates,
)
from skbert.exceptions import InputError, InputTypeError

__all__ = ["Choices", "check_choices", "check_picks"]

_FORMS = (
    "A row is (prompt, [option, ...]) or (prompt, second text, [option, ...]), or a prompt and "
    "one column per option. Type list(zip(prompts, options)), or choose the columns with "
    "text_columns=['prompt', 'choices']."
)
_PICKS = "Give for each row the position of the right option (int, from 0) or its text (str)."


@dataclass(frozen=True)
class Choices:
    """The questions of X, one per row. A repeated option counts once, where it is first."""

    first: list[str]  # the prompts
    second: list[str] | None  # a text between the prompt and each option
    options: list[list[str | None]]  # as in X, by position; None: not there
    places: list[dict[str, int]]  # each option that counts -> its position, in order
    names: tuple[str, ...] | None  # all column names of a frame with str columns, else None
    n_columns: int  # 2, or 3 with a second text: all options together count as one
    width: int  # columns of X

    def __len__(self) -> int:
        return len(self.first)

    @property
    def columns(self) -> list[list[str]]:
        """The texts before the options, column by column."""
        return [self.first] if self.second is None else [self.first, self.second]

    def take(self, rows: np.ndarray) -> Choices:
        """Return the questions at the given positions."""
        second = None if self.second is None else [self.second[row] for row in rows]
        return replace(
            self,
            first=[self.first[row] for row in rows],
            second=second,
            options=[self.options[row] for row in rows],
            places=[self.places[row] for row in rows],
        )


def check_choices(
    X: Any,
    *,
    columns: TextColumns = None,
    missing: str = "raise",
    fitted: FitRecord | None = None,
    estimator_name: str = "BertChoiceRanker",
) -> Choices:
    """Return the prompts and options of X, or raise an error that names the first bad row.

    Where the last column holds lists, these are the options, and the one or two columns before it
    are the prompt and a second text. Else the first column is the prompt and every other one an
    option, which a row lacks where its cell is missing. `columns` chooses and orders the columns
    first; `missing` ("raise" or "empty") is for the texts before the options; `fitted` is what fit
    saw. Frames must have the columns of fit; other containers may offer any number of options.
    """
    table = open_table(X, hint=_FORMS)
    check_not_empty(table)
    wanted = _wanted(table, columns)
    if fitted is not None:
        check_order(table, columns, fitted)
        compare_with_fit(table, wanted, fitted._replace(n_columns=len(wanted)), estimator_name)
    positions = [column_positions(table, [column])[0] for column in wanted]
    has_lists = _has_lists(table.read(positions[-1]))
    before = wanted[: len(wanted) - 1 if has_lists else 1]
    if fitted is not None and len(before) + 1 != fitted.n_columns:
        msg = (
            f"X has {len(before) + 1} features, but {estimator_name} is expecting "
            f"{fitted.n_columns} features as input, where all options count as one. Pass as "
            "many texts before the options as in fit."
        )
        raise InputError(msg)
    _check_layout(table, positions, has_lists=has_lists)
    texts = read_texts(
        table, columns=before, missing=missing, fitted=None, estimator_name=estimator_name
    )
    read = _from_lists if has_lists else _from_columns
    options = read(table, positions)
    dirty = [row for row, cells in enumerate(options) if replace_surrogates(cells)]
    warn_of_surrogates(dirty, "The options of ")
    _refuse_printed_lists(options)
    places = [_places(row) for row in options]
    second = None if texts.second is None else [*texts.second]
    n_columns = len(before) + 1
    return Choices([*texts.first], second, options, places, table.names, n_columns, table.width)


def _wanted(table: Table, columns: Any) -> list[Any]:
    """Return the choice of columns as a list of at least two."""
    wanted: list[Any] = list(range(table.width))
    if columns is not None:
        selected = [columns] if isinstance(columns, (str, int)) else list(columns)
        if isinstance(columns, Mapping) or not 2 <= len(set(selected)) == len(selected):
            msg = (
                f"text_columns={columns!r} does not choose a prompt and options. It must be None, "
                "or the names or positions of different columns, the prompt first and the options "
                "last; type text_columns=['prompt', 'choices']."
            )
            raise InputError(msg)
        named = {type(column) for column in selected} == {str}
        wanted = wanted if named and table.labels is None else selected  # rows without any names
    if len(wanted) < 2:
        cell = table.read(0)[0]
        msg = (
            "X has one column, but a prompt and its options are two: row 0 holds "
            f"{reprlib.repr(cell)}, of type {type(cell).__name__}. {_FORMS}"
        )
        raise InputError(msg)
    return wanted


def _has_lists(cells: list[Any]) -> bool:
    """Return whether the first cell of a column that is not missing is a list."""
    return _is_list(next((cell for cell in cells if not is_missing(cell)), None))


def _is_list(cell: object) -> bool:
    is_row = isinstance(cell, ROW_TYPES) or hasattr(cell, "to_list")  # or a Series
    return is_row and getattr(cell, "ndim", 1) == 1


def _check_layout(table: Table, positions: list[int], *, has_lists: bool) -> None:
    """Raise when there are too many columns before the options, or lists in one of them."""
    if has_lists and len(positions) > 3:
        msg = (
            f"X has {len(positions) - 1} columns before the lists of options, but there must be "
            f"one or two. {_FORMS}"
        )
        raise InputError(msg)
    for column in positions[:-1]:
        for row, cell in enumerate(table.read(column)):
            if _is_list(cell):
                msg = (
                    f"X holds a list in {table.place(row, column)}, {reprlib.repr(cell)}, but "
                    f"only the last column may hold lists, of options. {_FORMS}"
                )
                raise InputTypeError(msg)


def _from_lists(table: Table, positions: list[int]) -> list[list[str | None]]:
    """Return the options of a column of lists."""
    column = positions[-1]
    options: list[list[str | None]] = []
    for row, cell in enumerate(table.read(column)):
        place = table.place(row, column)
        if is_missing(cell) or (_is_list(cell) and not len(cell)):
            raise _no_options(place)
        if not _is_list(cell):
            msg = (
                f"X must hold a list of options in every row, but {place} is "
                f"{reprlib.repr(cell)}, of type {type(cell).__name__}. {_FORMS}"
            )
            raise InputTypeError(msg)
        options.append([_option(text, f"option {i} of {place}") for i, text in enumerate(cell)])
    return options


def _from_columns(table: Table, positions: list[int]) -> list[list[str | None]]:
    """Return the options of several columns; a missing cell is an option that is not there."""
    options: list[list[str | None]] = []
    columns = [table.read(column) for column in positions[1:]]
    for row, cells in enumerate(zip(*columns, strict=True)):
        offered = [
            None if is_missing(cell) else _option(cell, table.place(row, column))
            for column, cell in zip(positions[1:], cells, strict=True)
        ]
        if offered == [None] * len(offered):
            raise _no_options(f"row {row}")
        options.append(offered)
    return options


def _refuse_printed_lists(options: list[list[str | None]]) -> None:
    """Raise when every row has one option that is the text of a list, as CSV files hold it."""
    alone = [row[0] for row in options if len(row) == 1]
    if len(alone) == len(options) and all(str(text).startswith("[") for text in alone):
        msg = (
            f"The options of row 0 are one text, {reprlib.repr(alone[0])}, that looks like a "
            "list, as a CSV file holds it. Make lists first: X['choices'].map(ast.literal_eval)."
        )
        raise InputError(msg)


def _option(cell: object, place: str) -> str:
    """Return the text of one option as an exact str."""
    if isinstance(cell, str):
        return str.__str__(cell)
    if is_missing(cell):
        msg = (
            f"X has a missing option: {place} is {cell!r}. Leave it out of the list: "
            "[option for option in options if isinstance(option, str)]."
        )
        raise InputError(msg)
    msg = (
        f"Every option of X must be a text (str), but {place} is {reprlib.repr(cell)}, of type "
        f"{type(cell).__name__}. {hint_for(cell)}"
    )
    raise InputTypeError(msg)


def _no_options(place: str) -> InputError:
    """Return the error for a question without options."""
    return InputError(
        f"X has a question without options: {place}. Give every row at least one option, or leave "
        "the row out."
    )


def _places(options: list[str | None]) -> dict[str, int]:
    """Return the first position of each option."""
    places: dict[str, int] = {}
    for position, text in enumerate(options):
        if text is not None:
            places.setdefault(text, position)
    return places


def check_picks(y: Any, choices: Choices, *, estimator_name: str = "BertChoiceRanker") -> IntArray:
    """Return the position of the right option of each row, (n,), or raise and name the row.

    `y` holds positions or texts, the same in all rows: a str is a text, whatever it looks like. A
    position of an option that the row repeats becomes its first position.
    """
    cells = _cells(y, len(choices), estimator_name)
    first_kind, picks = None, np.empty(len(cells), np.int64)
    for row, cell in enumerate(cells):
        kind = _kind(cell, row)
        first_kind = first_kind or kind
        if kind != first_kind:
            msg = (
                f"y mixes positions and texts: row 0 is {cells[0]!r}, row {row} is {cell!r}. "
                f"{_PICKS}"
            )
            raise InputTypeError(msg)
        options = choices.options[row]
        text: str | None = None
        if kind == "text":
            text = without_surrogates(cell)
        elif 0 <= cell < len(options):
            text = options[int(cell)]
        place = None if text is None else choices.places[row].get(text)
        if place is None:
            raise _no_such_option(cell, row, options)
        picks[row] = place
    return picks


def _cells(y: Any, n: int, estimator_name: str) -> list[Any]:
    """Return one cell per row, whatever container they came in."""
    require_y(y, estimator_name, _PICKS)
    table = open_values(y, "y", _PICKS)
    check_length(n, table.shape[0])
    if table.width != 1:
        msg = f"y has {table.width} values per row, but a question has one right option. {_PICKS}"
        raise InputError(msg)
    warn_if_column_vector(table)
    return table.read(0)


def _kind(cell: object, row: int) -> str:
    """Return "text" or "position", which of them a cell of y is, or raise."""
    if isinstance(cell, str):
        return "text"
    if is_missing(cell):
        msg = (
            f"Input y contains NaN. Row {row} is {cell!r}. Leave out rows without a right option."
        )
        raise InputError(msg)
    if isinstance(cell, (bool, np.bool_)) or not isinstance(cell, Real):
        msg = (
            f"Row {row} of y is {reprlib.repr(cell)}, of type {type(cell).__name__}, which is "
            f"neither a position nor a text. {_PICKS}"
        )
        raise InputTypeError(msg)
    if cell != cell // 1:
        msg = f"Row {row} of y is {cell!r}, which is not a position. {_PICKS}"
        raise InputError(msg)
    return "position"


def _no_such_option(cell: object, row: int, options: list[str | None]) -> InputError:
    """Return the error for an answer that is not among the options of its row."""
    there = [text for text in options if text is not None]
    close = difflib.get_close_matches(str(cell), there, n=1)
    hint = f" Did you mean {close[0]!r}?" if close and isinstance(cell, str) else ""
    return InputError(
        f"Row {row} of y is {cell!r}, which is not an option of that row: "
        f"{reprlib.repr(options)}.{hint} {_PICKS}"
    )
