"""X as plain lists of str, or an error that names the first bad row.

Depends on numpy, `numbers`, `tables` and `skbert.exceptions`; knows no
torch and no tokenizer.
Labels and targets are checked in `targets`, weights in `weights`.
"""

from __future__ import annotations

import difflib
import re
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any, NamedTuple

import numpy as np

from skbert._validation.numbers import open_values
from skbert._validation.tables import (
    ROW_TYPES,
    TWO_COLUMNS,
    Table,
    check_not_empty,
    is_missing,
    open_table,
    row_length,
)
from skbert.exceptions import InputError, InputTypeError, warn

SURROGATE = re.compile("[\ud800-\udfff]")
SLICE = 1 << 20  # characters encoded at once: no copy of a huge text
MAX_NAMES = 5  # names listed in one error
CELL_HINTS: tuple[tuple[tuple[type, ...], str], ...] = (
    ((bytes, bytearray), "Decode it first: [cell.decode('utf-8') for cell in X]."),
    ((PurePath,), "Read the file first: [path.read_text(encoding='utf-8') for path in X]."),
    ((Mapping,), "Take the text out of it first: [cell['text'] for cell in X]."),
    (ROW_TYPES, "Join words into one text first: [' '.join(words) for words in X]."),
    ((object,), "If it is meant as text, convert it first: [str(cell) for cell in X]."),
)


class FitRecord(NamedTuple):
    """What `check_texts` knows about the X of fit: all column names, and 1 or 2 text columns."""

    names: tuple[str, ...] | None
    n_columns: int


@dataclass(frozen=True)
class Texts:
    """The texts of X, one row per sample, whatever container they came in."""

    first: list[str]
    second: list[str] | None  # None: one text per row
    names: tuple[str, ...] | None  # all column names of a frame with str columns, else None
    n_columns: int  # text columns used, 1 or 2

    def __len__(self) -> int:
        return len(self.first)

    def take(self, rows: np.ndarray) -> Texts:
        """Return the rows at the given positions (integers, or one bool per row)."""
        chosen = (np.flatnonzero(rows) if rows.dtype == bool else rows).tolist()
        second = None if self.second is None else [self.second[row] for row in chosen]
        return replace(self, first=[self.first[row] for row in chosen], second=second)


def check_texts(
    X: Any,
    *,
    columns: str | int | Sequence[str | int] | None = None,
    missing: str = "raise",
    fitted: FitRecord | None = None,
    estimator_name: str = "BertClassifier",
) -> Texts:
    """Return the texts of X, or raise an error that names the first bad row.

    `columns` chooses the one or two text columns of a frame or 2-D array, `missing` is "raise" or
    "empty", and `fitted` is what fit saw when X comes after fit. The lists returned are new and
    hold exact ``str`` objects.
    """
    if columns is None and _looks_like_two_columns(X):
        raise InputError(f"X holds two columns of texts where rows are expected. {TWO_COLUMNS}")
    table = open_table(X)
    check_not_empty(table)
    wanted = wanted_columns(columns, table.width)
    if fitted is not None:
        compare_with_fit(table, wanted, fitted, estimator_name)
    found = [_check_cells(table, column, missing) for column in column_positions(table, wanted)]
    _replace_surrogates(found)
    _warn_if_mostly_empty(found)
    second = found[1] if len(found) == 2 else None
    return Texts(first=found[0], second=second, names=table.names, n_columns=len(found))


def _looks_like_two_columns(X: Any) -> bool:
    """Tell whether X is ``(questions, contexts)``, two columns where rows are expected."""
    if not isinstance(X, (list, tuple)) or len(X) != 2:
        return False
    if any(
        row_length(part) is None
        and len(getattr(part, "shape", ())) != 1
        and not hasattr(part, "to_pylist")
        for part in X
    ):
        return False
    if all(isinstance(part, tuple if isinstance(X, tuple) else ROW_TYPES) for part in X):
        return len(X[0]) == len(X[1]) > 2  # else two rows of one or two texts, or ragged ones
    return True


def wanted_columns(columns: Any, width: int) -> list[str | int]:
    """Return the choice of columns as a list of one or two, or all that there are."""
    if columns is None:
        return list(range(width))
    wanted = [columns] if isinstance(columns, (str, int)) else list(columns)
    good = all(isinstance(c, (str, int, np.integer)) and not isinstance(c, bool) for c in wanted)
    if not good or len(wanted) not in {1, 2} or len(set(wanted)) < len(wanted):
        msg = (
            f"text_columns={columns!r} does not choose text columns. It must be None, or one or "
            "two different names or positions; type text_columns=['question', 'context']."
        )
        raise InputError(msg)
    return wanted


def column_positions(table: Table, wanted: list[str | int]) -> list[int]:
    """Return the positions of the one or two text columns."""
    labels = list(range(table.width) if table.labels is None else table.labels)
    if len(wanted) > 2:
        if table.labels is None:
            _check_cells(table, 0, missing="empty")  # a table of numbers is told so first
        msg = (
            f"X has {len(labels)} columns, but the texts are in one or two of them: {labels}. "
            f"Choose, for example text_columns={labels[:1]!r} or {labels[:2]!r}. {TWO_COLUMNS}"
        )
        raise InputError(msg)
    if table.labels is None and [type(column) for column in wanted] == [str] * table.width:
        return list(range(table.width))  # nothing but the text columns, in their order
    return [_position(column, labels) for column in wanted]


def _position(column: str | int, labels: list[Any]) -> int:
    """Return the position of one chosen column."""
    if isinstance(column, str) and labels.count(column) == 1:
        return labels.index(column)
    if not isinstance(column, str) and -len(labels) <= column < len(labels):
        return int(column) % len(labels)
    close = difflib.get_close_matches(str(column), [str(label) for label in labels], n=1)
    hint = f" Did you mean {close[0]!r}?" if close and close[0] != column else ""
    msg = (
        f"text_columns chooses the column {column!r}, which X has {labels.count(column)} times "
        f"instead of once; the columns of X are {labels}.{hint}"
    )
    raise InputError(msg)


def input_names(given: Any, fitted: FitRecord | None, columns: Any) -> list[str]:
    """Return the names of the one or two text columns, as given or as seen in fit; or none."""
    names, n_columns = (None, 0) if fitted is None else fitted
    if given is not None:
        listed = _listed_names(given)
        _check_input_features(listed, names, n_columns)
        if names is None:
            return listed if len(listed) <= 2 else []
    if names is None:
        return []
    wanted = wanted_columns(columns, len(names))
    if len(wanted) > 2:
        return []
    table = Table((1, len(names)), lambda _: [], names)
    return [names[place] for place in column_positions(table, wanted)]


def _listed_names(given: Any) -> list[str]:
    """Return names of columns as a list of exact str."""
    table = open_values(given, "input_features", None)
    listed: list[Any] = table.read(0) if len(table.shape) == 1 else [None]
    if not all(isinstance(name, str) for name in listed):
        msg = (
            f"input_features is {reprlib.repr(given)}, but must be a flat list of str, a name "
            "per column of X; type input_features=None for the names seen in fit."
        )
        raise InputTypeError(msg)
    return [str.__str__(name) for name in listed]


def _check_input_features(listed: list[str], names: tuple[str, ...] | None, n: int) -> None:
    """Raise, in scikit-learn's words, unless names are those of fit, or as many as its columns."""
    if names is not None and listed != list(names):
        msg = (
            "input_features is not equal to feature_names_in_. They are "
            f"{reprlib.repr(listed)}, but the columns in fit were {reprlib.repr(list(names))}. "
            "Type input_features=None."
        )
        raise InputError(msg)
    if names is None and n and len(listed) != n:
        msg = (
            f"input_features should have length equal to number of features ({n}), got "
            f"{len(listed)}. Give a name per column of X, or type input_features=None."
        )
        raise InputError(msg)


def compare_with_fit(table: Table, wanted: list[Any], fitted: FitRecord, estimator: str) -> None:
    """Raise, in scikit-learn's words, when the columns are not those of fit."""
    chosen = [column for column in wanted if isinstance(column, str)]
    if fitted.names is not None and table.names is not None:
        if chosen:  # by name: other columns may come and go
            _check_feature_names(sorted(chosen), sorted({*chosen} & {*table.names}))
        else:
            _check_feature_names(list(fitted.names), list(table.names))
    if len(wanted) != fitted.n_columns:
        msg = (
            f"X has {len(wanted)} features, but {estimator} is expecting {fitted.n_columns} "
            f"features as input. Pass as many. {TWO_COLUMNS * (fitted.n_columns == 2)}"
        )
        raise InputError(msg)


def _check_feature_names(seen: list[str], names: list[str]) -> None:
    """Raise, in scikit-learn's words, when the columns differ from those of fit."""
    if seen == names:
        return
    msg = "The feature names should match those that were passed during fit.\n"
    unseen, gone = sorted({*names} - {*seen}), sorted({*seen} - {*names})
    for title, listed in (
        ("unseen at fit time", unseen),
        ("seen at fit time, yet now missing", gone),
    ):
        if listed:
            shown = listed[:MAX_NAMES] + ["..."] * (len(listed) > MAX_NAMES)
            msg += f"Feature names {title}:\n" + "".join(f"- {name}\n" for name in shown)
    if not unseen and not gone:
        msg += "Feature names must be in the same order as they were in fit.\n"
    raise InputError(msg)


def _check_cells(table: Table, column: int, missing: str) -> list[str]:
    """Return the cells of one column as exact str."""
    cells = table.read(column)
    if set(map(type, cells)) == {str}:
        return cells
    gaps = []
    for row, cell in enumerate(cells):
        if is_missing(cell):
            gaps.append(row)
        elif not isinstance(cell, str):
            raise _bad_cell(cell, table.place(row, column))
    if gaps and missing != "empty":
        msg = (
            f"X has {len(gaps)} missing text(s), the first in {table.place(gaps[0], column)} "
            f"({cells[gaps[0]]!r}). Every row must hold a str. Drop or fill these rows, or set "
            "missing='empty' to read them as ''."
        )
        raise InputError(msg)
    # str.__str__ turns numpy and enum strings into exact str without asking their class
    return [str.__str__(cell) if isinstance(cell, str) else "" for cell in cells]


def _bad_cell(cell: Any, place: str) -> InputTypeError:
    """Make the error for a cell that is not a text."""
    hint = next(text for types, text in CELL_HINTS if isinstance(cell, types))
    return InputTypeError(
        f"X must hold one text (str) per cell, but {place} holds {reprlib.repr(cell)}, of type "
        f"{type(cell).__name__}. {hint}"
    )


def _has_lone_surrogate(text: str) -> bool:
    """Tell whether a text holds half a character, which has no UTF-8 form."""
    if text.isascii():
        return False
    if len(text) > SLICE:
        return any(_has_lone_surrogate(text[at : at + SLICE]) for at in range(0, len(text), SLICE))
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _replace_surrogates(found: list[list[str]]) -> None:
    """Put U+FFFD for each lone surrogate, with one warning; lengths stay as they were."""
    dirty = {row for texts in found for row, text in enumerate(texts) if _has_lone_surrogate(text)}
    for texts in found:
        for row in dirty:
            texts[row] = SURROGATE.sub("\ufffd", texts[row])
    if dirty:
        msg = (
            f"{len(dirty)} row(s) of X hold lone surrogates (no characters), the first is row "
            f"{min(dirty)}; each became U+FFFD. Read the file in the encoding it was written in."
        )
        warn(msg)


def _warn_if_mostly_empty(found: list[list[str]]) -> None:
    """Warn when more than half of the rows hold nothing but whitespace."""
    empty = [row for row, text in enumerate(found[0]) if not text or text.isspace()]
    if len(found) == 2:
        empty = [row for row in empty if not found[1][row] or found[1][row].isspace()]
    if 2 * len(empty) > len(found[0]):
        msg = (
            f"{len(empty)} of {len(found[0])} rows of X are empty or whitespace, the first is row "
            f"{empty[0]}. Nothing can be learned or told from them; look at how X was read."
        )
        warn(msg)
