"""y as numpy arrays, or an error that names the first bad row.

Several columns of y may be an indicator, the probabilities of classes or a class each.
Depends on `tables`, scikit-learn's rules for targets and `skbert.exceptions`. Where
scikit-learn has words for a mistake, these are used.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping
from numbers import Real
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import DTypeLike
from sklearn.utils.multiclass import check_classification_targets

from skbert._arrays import Array
from skbert._validation.features import (
    check_finite,
    complex_error,
    is_complex,
    read_column,
    read_numbers,
    refuse_gaps,
)
from skbert._validation.tables import (
    Table,
    check_length,
    is_missing,
    open_table,
    open_values,
    require_y,
    warn_if_column_vector,
)
from skbert.exceptions import InputError, InputTypeError

INDICATOR = (
    "Several labels per row must be an indicator matrix of 0 and 1 with one column per label: "
    "type sklearn.preprocessing.MultiLabelBinarizer().fit_transform(y)."
)


def as_sequence(values: Any) -> Any:
    """Return values as they are, or as an array if they can only be converted to one."""
    bare = hasattr(values, "__array__") and not hasattr(values, "__len__")
    return np.asarray(values) if bare and not isinstance(values, np.generic) else values


class LabelTable(NamedTuple):
    """The columns of y, without gaps, and what they are.

    A column of labels is an array of str (``<U`` from a list, object from a Series), bool,
    integers or whole floats.
    """

    kind: Literal["labels", "indicator", "probabilities", "several"]
    columns: list[np.ndarray]
    table: Table


def check_labels(
    y: object, n: int, *, estimator_name: str = "BertClassifier"
) -> tuple[np.ndarray, bool]:
    """Return the labels of `n` rows, and whether they are a multi-label indicator.

    One label per row comes back as a 1-D array; an indicator as an (n, k) int64 array of 0 and 1.
    """
    kind, columns, table = read_label_table(y, n, estimator_name=estimator_name)
    if kind not in {"labels", "indicator"}:
        error = _no_indicator_error(columns, table)
        raise InputError(f"{error} Of several columns of classes, give one.")
    return as_labels(columns), kind == "indicator"


def read_label_table(
    y: Any, n: int, *, are_named: bool = False, estimator_name: str = "BertClassifier"
) -> LabelTable:
    """Return the columns of y for `n` rows, and what they are; see `label_kind`.

    `are_named` says whether the classes of the columns are named beside y.
    """
    dense = y.toarray() if hasattr(y, "toarray") and hasattr(y, "nnz") else y
    table = _open_y(dense, n, estimator_name, INDICATOR)
    columns = [_plain_labels(dense, table, column, "y") for column in range(table.width)]
    kind = _label_kind(columns, are_named=are_named)
    if kind == "several" and len(getattr(dense, "shape", ())) != 2:
        raise _no_indicator_error(columns, table)  # a list of lists of labels
    if kind in {"labels", "several"}:
        for place, column in enumerate(columns):
            _check_discrete(column, table, place)
    return LabelTable(kind, columns, table)


def as_labels(columns: list[np.ndarray]) -> np.ndarray:
    """Return one column of labels as it is, and those of an indicator as an int64 array."""
    return columns[0] if len(columns) == 1 else np.stack(columns, axis=1).astype(np.int64)


def _label_kind(
    columns: list[np.ndarray], *, are_named: bool
) -> Literal["labels", "indicator", "probabilities", "several"]:
    """Return what columns of y are: one column is labels, and several are told by their values.

    Numbers that are all 0 and 1 are an indicator. Numbers of which one is no whole number are
    probabilities, as are all whose classes are named. Anything else is a class per column.
    """
    if len(columns) == 1:
        return "labels"
    are_numbers = all(column.dtype.kind in "biuf" for column in columns)
    if not are_named and all(_is_zero_or_one(column).all() for column in columns):
        return "indicator"
    if are_named or (are_numbers and not all(map(_are_whole, columns))):
        return "probabilities"
    return "several"


def _are_whole(values: np.ndarray) -> bool:
    """Return whether these are no fractions; str are none."""
    return values.dtype.kind != "f" or bool((values == np.floor(values)).all())


def _check_discrete(labels: np.ndarray, table: Table, column: int) -> None:
    """Raise, in scikit-learn's words, for numbers that cannot be classes."""
    name = "y" if table.width == 1 else f"column {table.label(column)!r} of y"
    _refuse_huge(labels, name)
    if table.width > 1 and not _are_whole(labels):
        row = int(np.argmin(labels == np.floor(labels)))
        msg = (
            f"Unknown label type: continuous. {table.place(row, column)} of y is "
            f"{labels[row]!s}, a number beside columns of classes. Leave this column out of y, "
            "and fit a BertRegressor on it."
        )
        raise InputError(msg)
    try:
        check_classification_targets(labels)
    except (ValueError, TypeError) as error:
        raise InputError(str(error)) from None


def check_classes(classes: Any) -> np.ndarray:
    """Return labels that need not be in y as a 1-D array, empty for None."""
    if classes is None:
        return np.array([], dtype=np.int64)
    table = _open_classes(classes)
    labels = _plain_labels(classes, table, 0, "classes")
    _refuse_huge(labels, "classes")
    if not _are_whole(labels) or (labels.dtype.kind == "O" and not isinstance(labels[0], str)):
        msg = (
            f"Unknown label type: classes is {reprlib.repr(labels.tolist())}. Labels must be str, "
            "bool or whole numbers of 64 bits; type classes=['bad', 'good']."
        )
        raise InputError(msg)
    return labels


def _open_classes(classes: Any) -> Table:
    """Open a flat list of labels without gaps."""
    odd = isinstance(classes, (str, bytes, Mapping, set, frozenset))
    if odd or not (hasattr(classes, "__len__") and hasattr(classes, "__getitem__")):
        msg = (
            f"classes is of type {type(classes).__name__}, but must be a list of labels, such as "
            "classes=['bad', 'good']. For a set or a generator type classes=sorted(classes)."
        )
        raise InputTypeError(msg)
    table = open_table(classes, "classes", None)
    if len(table.shape) > 1:
        msg = (
            f"classes has the shape {table.shape}, but must be a flat list of labels; type "
            "classes=['bad', 'good']."
        )
        raise InputError(msg)
    gaps = [place for place, cell in enumerate(table.read(0)) if is_missing(cell)]
    if gaps:
        msg = (
            f"classes has {len(gaps)} missing value(s), the first at position {gaps[0]}, but a "
            "missing value cannot be a label. Leave it out."
        )
        raise InputError(msg)
    return table


def check_targets(
    y: Any, n: int, dtype: DTypeLike = np.float64, *, estimator_name: str = "BertRegressor"
) -> np.ndarray:
    """Return the numbers to predict for `n` rows as float64, (n,) or (n, k), finite in `dtype`."""
    return read_target_table(y, n, dtype, estimator_name=estimator_name).numbers


class TargetTable(NamedTuple):
    """Numbers to predict, and the names of several columns that are all str."""

    numbers: np.ndarray
    names: tuple[str, ...] | None


def read_target_table(y: Any, n: int, dtype: DTypeLike, *, estimator_name: str) -> TargetTable:
    """Return the numbers to predict as `check_targets` does, and their names."""
    table = _open_y(y, n, estimator_name, "")
    columns = [read_numbers(y, table, column, "y") for column in range(table.width)]
    for column, numbers in enumerate(columns):
        with np.errstate(over="ignore"):
            check_finite(numbers.astype(dtype), table, column, "y")
    if table.width == 1:
        return TargetTable(columns[0], None)
    return TargetTable(np.stack(columns, axis=1), table.names)


def learned_names(names: tuple[str, ...] | None) -> dict[str, Array]:
    """Return what fit learns of the names of the columns of y, nothing where they have none."""
    return {} if names is None else {"target_names_": np.array(names, dtype=object)}


def check_target_names(names: Iterable[str] | None, learned: Mapping[str, Any]) -> None:
    """Raise where the columns of y have other names than those learned in fit, if both have."""
    known = learned.get("target_names_")
    if names is None or known is None or [*names] == known.tolist():
        return
    msg = (
        f"y has the columns {reprlib.repr([*names])}, but in fit they were "
        f"{reprlib.repr(known.tolist())}. Give the same columns in the same order: type "
        f"y[{reprlib.repr(known.tolist())}]."
    )
    raise InputError(msg)


def _open_y(y: Any, n: int, estimator_name: str, hint: str) -> Table:
    """Open y, check its length, and warn when it is a column of a table."""
    require_y(y, estimator_name, "Give one value per row of X; type fit(X, y).")
    table = open_values(y, "y", hint)
    check_length(n, table.shape[0])
    if table.width == 0:
        msg = (
            f"Found array with 0 feature(s) (shape={table.shape}) while a minimum of 1 is "
            "required. y has no columns; give one value per row of X."
        )
        raise InputError(msg)
    warn_if_column_vector(table)
    return table


def _plain_labels(y: Any, table: Table, column: int, name: str) -> np.ndarray:
    """Return the labels of one column as an array of one kind, without gaps."""
    labels = read_column(y, table, column)
    if isinstance(labels, list):
        refuse_gaps([r for r, cell in enumerate(labels) if is_missing(cell)], table, column, name)
        _check_kinds(labels, table, column, name)
        array = np.array(labels)
        # NumPy drops a NUL at the end of a str, and rounds integers beyond 64 bits.
        is_exact = array.tolist() == labels
        is_foreign = array.dtype.kind == "U" and not isinstance(y, (list, tuple))
        labels = array if is_exact and not is_foreign else np.array(labels, dtype=object)
    if labels.dtype.kind == "c":
        raise complex_error(name, table.place(0, column))
    if labels.dtype.kind == "f":
        refuse_gaps(np.flatnonzero(np.isnan(labels)).tolist(), table, column, name)
        check_finite(labels, table, column, name)
        at_most = min(labels.dtype, np.dtype(np.float64), key=lambda kind: kind.itemsize)
        labels = labels.astype(at_most, copy=False)  # JSON knows no wider ones
    return labels


def _refuse_huge(labels: np.ndarray, name: str) -> None:
    """Raise for whole floats beyond 64 bits, which scikit-learn takes for continuous ones."""
    if labels.dtype.kind != "f" or not _are_whole(labels):
        return
    huge = np.abs(labels) >= 2.0**63
    if huge.any():
        row = int(np.argmax(huge))
        msg = (
            f"Unknown label type: row {row} of {name} is {labels[row]!s}, and labels that are "
            f"numbers must be integers of 64 bits. Type {name} = [str(label) for label in {name}]."
        )
        raise InputError(msg)


def _check_kinds(labels: list[Any], table: Table, column: int, name: str) -> None:
    """Raise unless the labels are all str or all real numbers."""
    family = {kind: _family(kind) for kind in set(map(type, labels))}
    odd = {kind for kind, of_kind in family.items() if of_kind not in {"str", "number"}}
    if odd:
        row = next(row for row, label in enumerate(labels) if type(label) in odd)
        raise _odd_label_error(labels[row], table.place(row, column), name)
    if len(set(family.values())) > 1:
        rows = {family[type(label)]: row for row, label in reversed([*enumerate(labels)])}
        text, number = rows["str"], rows["number"]
        msg = (
            f"{name} mixes str and numbers: {table.place(text, column)} is {labels[text]!r}, "
            f"{table.place(number, column)} is {labels[number]!r}. Labels must be of one kind; "
            f"type {name} = [str(label) for label in {name}]."
        )
        raise InputTypeError(msg)


def _family(kind: type) -> str:
    """Return "str" or "number" for what can be a label, else "odd"."""
    if issubclass(kind, str):
        return "str"
    is_number = issubclass(kind, (Real, np.bool_)) and not issubclass(kind, np.timedelta64)
    return "number" if is_number else "odd"


def _odd_label_error(label: object, place: str, name: str) -> InputError | InputTypeError:
    """Return the error for a cell that cannot be a label."""
    if is_complex(label):
        return complex_error(name, place)
    shown = f"{place} of {name} holds {reprlib.repr(label)}, of type {type(label).__name__}."
    if isinstance(label, bytes):
        return InputTypeError(
            "Support for labels represented as bytes is not supported. Convert the labels to a "
            f"string or integer format. {shown} Type {name} = [label.decode('utf-8') for label in "
            f"{name}]."
        )
    return InputError(
        f"Unknown label type: unknown. {shown} Labels must be str, bool or whole numbers. "
        f"{INDICATOR}"
    )


def _no_indicator_error(columns: list[np.ndarray], table: Table) -> InputError:
    """Return the error for the first cell that is not 0 or 1."""
    good = [_is_zero_or_one(values) for values in columns]
    column = next(place for place, each in enumerate(good) if not each.all())
    row, are_whole = int(np.argmin(good[column])), _are_whole(columns[column])
    kind = "multiclass-multioutput" if are_whole else "continuous-multioutput"
    return InputError(
        f"Unknown label type: {kind}. y has {table.width} columns, but "
        f"{table.place(row, column)} is {columns[column].tolist()[row]!r}, not 0 or 1. {INDICATOR}"
    )


def _is_zero_or_one(values: np.ndarray) -> np.ndarray:
    """Return for each value whether it is the number 0 or 1."""
    is_number = values.dtype.kind in "biuf"
    return np.isin(values, (0, 1)) if is_number else np.zeros(len(values), dtype=bool)
