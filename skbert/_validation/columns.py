"""Which columns of a table hold the texts, and whether they are those of fit.

Depends on `tables`, `features` and `skbert.exceptions`.
"""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from skbert._validation.features import FeatureColumn
from skbert._validation.tables import (
    MAX_NAMES,
    TWO_COLUMNS,
    Table,
    check_not_empty,
    open_table,
    open_values,
)
from skbert.exceptions import InputError, InputTypeError

# One column, several, or several with the names of their fields.
TextColumns = str | int | Sequence[str | int] | Mapping[str, str] | Mapping[int, str] | None


class FitRecord(NamedTuple):
    """The columns of the X of fit: all names, how many hold texts, and what others hold."""

    names: tuple[str, ...] | None
    n_columns: int
    features: tuple[FeatureColumn, ...] = ()  # learned of the columns beside the texts
    width: int = 0  # how many columns X had; 0 where that is not known

    @property
    def n_features(self) -> int:
        """Number of features that these columns make."""
        return sum(column.n_features for column in self.features)


def wanted_columns(columns: TextColumns, width: int) -> list[str | int]:
    """Return the chosen columns as a list, or all columns of X for None."""
    if columns is None:
        return list(range(width))
    wanted, good = _as_list(columns)
    if not good or not wanted or len(set(wanted)) < len(wanted):
        msg = (
            f"text_columns={columns!r} does not choose text columns. It must be None, or one or "
            "several different names or positions; type text_columns=['question', 'context']."
        )
        raise InputError(msg)
    return wanted


def _as_list(columns: str | int | Iterable[Any]) -> tuple[list[Any], bool]:
    """Return chosen columns as a list, and whether they are names and positions in an order."""
    wanted = [columns] if isinstance(columns, (str, int, np.integer)) else list(columns)
    good = all(isinstance(c, (str, int, np.integer)) and not isinstance(c, bool) for c in wanted)
    return wanted, good and not isinstance(columns, (set, frozenset))


def field_names(columns: TextColumns) -> list[str | None]:
    """Return the names of the fields that several columns make; empty for a text and a pair.

    Three columns or more are fields, named after their columns, and so are columns for which a
    mapping has names. A position is no name.
    """
    if isinstance(columns, Mapping):
        _check_field_names(columns)
        return [str(name) for name in columns.values()] if len(columns) > 1 else []
    if columns is None or isinstance(columns, (str, int, np.integer)) or len(columns) < 3:
        return []
    return [
        str(column) if isinstance(column, str) and column.strip() else None for column in columns
    ]


def _check_field_names(columns: Mapping[Any, Any]) -> None:
    """Raise unless a mapping gives each column a field name of its own."""
    seen: dict[str, Any] = {}
    for column, name in columns.items():
        if not isinstance(name, str) or not name.strip():
            msg = (
                f"text_columns maps the column {column!r} to {name!r}, which is no field name. "
                "Give a str that is not blank; type text_columns={'col_7': 'title', ...}."
            )
            raise InputError(msg)
        if name in seen:
            msg = (
                f"text_columns gives the columns {seen[name]!r} and {column!r} the same field "
                f"name, {name!r}. Give each column a name of its own."
            )
            raise InputError(msg)
        seen[name] = column


def column_positions(table: Table, wanted: Sequence[str | int]) -> list[int]:
    """Return the positions of the chosen columns."""
    labels = list(range(table.width) if table.labels is None else table.labels)
    if table.labels is None and [type(column) for column in wanted] == [str] * table.width:
        return list(range(table.width))  # nothing but the text columns, in their order
    positions = [_position(column, labels) for column in wanted]
    for at, place in enumerate(positions):
        if place in positions[:at]:
            first = wanted[positions.index(place)]
            msg = (
                f"text_columns names one column of X twice, as {first!r} and as {wanted[at]!r}. "
                "Name each column once."
            )
            raise InputError(msg)
    return positions


def many_columns_error(table: Table) -> InputError:
    """Return the error for three columns or more, of which nobody has said what they hold."""
    labels = list(range(table.width) if table.labels is None else table.labels)
    return InputError(
        f"X has {len(labels)} columns, and nothing says which of them hold texts: {labels}. "
        f"Choose them: type text_columns={labels[:1]!r} for one text, {labels[:2]!r} for a "
        f"pair, or {labels[:3]!r} for named fields of one text. {TWO_COLUMNS}"
    )


def feature_positions(table: Table, wanted: Sequence[str | int]) -> list[int]:
    """Return the positions of the columns beside the texts."""
    labels = list(range(table.width) if table.labels is None else table.labels)
    return [_position(column, labels, "feature_columns") for column in wanted]


def wanted_features(columns: str | int | Sequence[str | int]) -> list[str | int]:
    """Return the chosen columns beside the texts as a list."""
    wanted, good = _as_list(columns)
    if not good or not 0 < len(set(wanted)) == len(wanted):
        msg = (
            f"feature_columns={columns!r} does not choose columns. It must be None, or different "
            "names or positions; type feature_columns=['price', 'channel']."
        )
        raise InputError(msg)
    return [column if isinstance(column, str) else int(column) for column in wanted]


def _position(column: str | int, labels: list[Any], parameter: str = "text_columns") -> int:
    """Return the position of one chosen column."""
    if isinstance(column, str) and labels.count(column) == 1:
        return labels.index(column)
    if not isinstance(column, str):
        if -len(labels) <= column < len(labels):
            return int(column) % len(labels)
        raise InputError(
            f"{parameter} names the column {column}, but whole numbers are positions, here from 0 "
            f"to {len(labels) - 1}; the columns of X are {labels}."
        )
    close = difflib.get_close_matches(column, [str(label) for label in labels], n=1)
    hint = f" Did you mean {close[0]!r}?" if close and close[0] != column else ""
    msg = (
        f"{parameter} names the column {column!r}, which X has {labels.count(column)} times "
        f"instead of once; the columns of X are {labels}.{hint}"
    )
    raise InputError(msg)


def input_names(input_features: Any, fitted: FitRecord | None, columns: TextColumns) -> list[str]:
    """Return the names of the text columns, from `input_features` or from fit; empty for none."""
    names, n_columns = (None, 0) if fitted is None else fitted[:2]
    if input_features is not None:
        features = _feature_names(input_features)
        _check_input_features(features, names, n_columns)
        names = tuple(features)  # those of fit, if it had some
    return [] if names is None else _chosen_names(names, columns)


def _chosen_names(names: tuple[str, ...], columns: TextColumns) -> list[str]:
    """Return the names of the text columns; empty for many columns without a choice."""
    if columns is None and len(names) > 2:
        return []
    table = Table((1, len(names)), lambda _: [], names)
    return [names[place] for place in column_positions(table, wanted_columns(columns, len(names)))]


def _feature_names(input_features: Any) -> list[str]:
    """Return names of columns as a list of exact str."""
    table = open_values(input_features, "input_features", None)
    cells: list[Any] = table.read(0) if len(table.shape) == 1 else [None]
    if not all(isinstance(name, str) for name in cells):
        msg = (
            f"input_features is {reprlib.repr(input_features)}, but must be a flat list of str, "
            "a name per column of X; type input_features=None for the names seen in fit."
        )
        raise InputTypeError(msg)
    return [str.__str__(name) for name in cells]


def _check_input_features(features: list[str], names: tuple[str, ...] | None, n: int) -> None:
    """Raise, in scikit-learn's words, unless the names or their number are those of fit."""
    if names is not None and features != list(names):
        msg = (
            "input_features is not equal to feature_names_in_. They are "
            f"{reprlib.repr(features)}, but the columns in fit were {reprlib.repr(list(names))}. "
            "Type input_features=None."
        )
        raise InputError(msg)
    if names is None and n and len(features) != n:
        msg = (
            f"input_features should have length equal to number of features ({n}), got "
            f"{len(features)}. Give a name per column of X, or type input_features=None."
        )
        raise InputError(msg)


def compare_with_fit(table: Table, wanted: list[Any], fitted: FitRecord, estimator: str) -> None:
    """Raise, in scikit-learn's words, when the columns are not those of fit."""
    _compare_tables(table, wanted, fitted, estimator)
    check_order(table, wanted, fitted)
    is_unnamed_table = table.labels is None and _are_names(wanted) and len(wanted) > 1
    n_columns = table.width if is_unnamed_table else len(wanted)
    if n_columns != fitted.n_columns:
        msg = (
            f"X has {n_columns} features, but {estimator} is expecting {fitted.n_columns} "
            f"features as input. {_other_number(table, n_columns, fitted.n_columns)}"
        )
        raise InputError(msg)


def _compare_tables(table: Table, wanted: list[Any], fitted: FitRecord, estimator: str) -> None:
    """Raise where chosen columns are missing, or may lie elsewhere than in fit."""
    features = [column for column, *_ in fitted.features]
    by_name = _are_names([*wanted, *features])
    if fitted.names is not None and table.names is not None:
        if by_name:
            # X may have other columns than in fit.
            _check_feature_names(sorted(wanted), sorted({*wanted} & {*table.names}))
        else:
            _check_feature_names(list(fitted.names), list(table.names))
    elif not by_name and (features or wanted != [*range(table.width)]):
        _check_width(table, fitted.width, estimator)


def _are_names(columns: Sequence[object]) -> bool:
    return all(isinstance(column, str) for column in columns)


def _check_width(table: Table, width: int, estimator: str) -> None:
    """Raise where X, whose columns are chosen by position, has not as many as in fit."""
    if table.width != (width or table.width):  # 0 is unknown
        msg = (
            f"X has {table.width} features, but {estimator} is expecting {width} features as "
            f"input. Columns are chosen by their positions: give all {width} columns of fit, in "
            "their order, or choose columns of frames by name."
        )
        raise InputError(msg)


def check_order(table: Table, columns: TextColumns, fitted: FitRecord) -> None:
    """Raise where names choose columns of an array, and fit had them in another order.

    Rows that are lists or tuples are written by hand, in the order of the names.
    """
    if issubclass(table.container, (list, tuple)):
        return
    names, chosen = list(fitted.names or ()), wanted_columns(columns, table.width)
    is_unnamed = table.labels is None and table.width == len(names)
    if is_unnamed and _are_names(chosen) and chosen != names:
        msg = (
            f"X has no column names, and text_columns={chosen} is not the order in which fit "
            f"had the columns, {names}: which column is which? Give X as a frame with these names."
        )
        raise InputError(msg)


def _other_number(table: Table, n_now: int, n_fit: int) -> str:
    """What to give where fit read another number of texts per row."""
    read = {1: "one text", 2: "a pair of texts"}.get(n_fit, f"{n_fit} texts")
    if n_now < n_fit:
        lists, texts = (
            ", ".join(f"{name}_{at + 1}" for at in range(n_fit)) for name in ("texts", "text")
        )
        return (
            f"In fit each row was {read}; here row 0 and all others have only {n_now}. Give all "
            f"{n_fit}: type list(zip({lists})), or for a single row [({texts})]."
        )
    if table.labels is None:
        form = "[row[0] for row in X]" if n_fit == 1 else f"[tuple(row[:{n_fit}]) for row in X]"
        return (
            f"In fit each row was {read}; here row 0 and all others have {n_now} entries. Give "
            f"as many as in fit; for the first ones type {form}."
        )
    names = [*table.labels]
    chosen = names[0] if n_fit == 1 else names[:n_fit]
    return (
        f"In fit each row was {read}; here X has the columns {reprlib.repr(names)}. Give those "
        f"with the texts only: type X[{chosen!r}] if they are in {chosen!r}."
    )


def _check_feature_names(seen: list[str], names: list[str]) -> None:
    """Raise, in scikit-learn's words, when the columns differ from those of fit."""
    if seen == names:
        return
    msg = "The feature names should match those that were passed during fit.\n"
    unseen, gone = sorted({*names} - {*seen}), sorted({*seen} - {*names})
    for title, differing in (
        ("unseen at fit time", unseen),
        ("seen at fit time, yet now missing", gone),
    ):
        if differing:
            shown = differing[:MAX_NAMES] + ["..."] * (len(differing) > MAX_NAMES)
            msg += f"Feature names {title}:\n" + "".join(f"- {name}\n" for name in shown)
    if not unseen and not gone:
        msg += "Feature names must be in the same order as they were in fit.\n"
    raise InputError(msg + _same_names(seen, unseen, gone))


def _same_names(seen: list[str], unseen: list[str], gone: list[str]) -> str:
    """What to type for a frame with the columns of fit."""
    if not gone:
        return f"Give the columns of fit, in their order: type X[{reprlib.repr(seen)}]."
    if not unseen:
        return "Give X all of the columns of fit."
    old = next(iter(difflib.get_close_matches(gone[0], unseen, n=1)), unseen[0])
    return (
        "Give X the columns of fit. If one has another name, type "
        f"X.rename(columns={{{old!r}: {gone[0]!r}}})."
    )


def open_rows(
    X: Any, columns: TextColumns, estimator_name: str, form: str
) -> tuple[Table, list[Any], int]:
    """Return X as a table, the chosen columns, and the position of the one that holds the rows.

    Rows of equal length stay rows. `form` says in errors what a row may be.
    """
    if isinstance(columns, Mapping):
        msg = (
            f"text_columns={columns!r} names fields, which {estimator_name} does not read. Choose "
            f"one column: type text_columns={next(iter(columns), 'text')!r}. {form}"
        )
        raise InputError(msg)
    table = open_table(X, hint=None)
    check_not_empty(table)
    if columns is None and table.labels is None and table.width > 1:
        cells = [list(row) for row in zip(*map(table.read, range(table.width)), strict=True)]
        table = Table((len(cells),), lambda _: cells, None)
    wanted = wanted_columns(columns, table.width)
    if len(wanted) > 1:
        msg = (
            f"X has {table.width} columns, but {estimator_name} reads one. Choose it: type "
            f"text_columns={wanted[0]!r}. {form}"
        )
        raise InputError(msg)
    (column,) = column_positions(table, wanted)
    return table, wanted, column
