"""y as numpy arrays, or an error that names the first bad row.

Depends on `tables`, scikit-learn's rules for targets and `skbert.exceptions`. Where
scikit-learn has words for a mistake, these are used.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from numbers import Complex, Real
from typing import Any

import numpy as np
from sklearn.utils.multiclass import check_classification_targets

from skbert._validation.tables import (
    Table,
    check_finite,
    check_length,
    complex_error,
    is_missing,
    open_table,
    open_values,
    read_column,
    read_numbers,
    refuse_gaps,
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


def check_labels(
    y: Any, n: int, *, estimator_name: str = "BertClassifier"
) -> tuple[np.ndarray, bool]:
    """Return the labels of `n` rows, and whether they are a multi-label indicator.

    One label per row comes back as a 1-D array of str (``<U`` from a list, object from a
    Series), bool, integers or whole floats; an indicator as an (n, k) int64 array of 0 and 1.
    """
    dense = y.toarray() if hasattr(y, "toarray") and hasattr(y, "nnz") else y
    table = _open_y(dense, n, estimator_name, INDICATOR)
    columns = [_plain_labels(dense, table, column, "y") for column in range(table.width)]
    if table.width > 1:
        return _indicator(columns, table), True
    _refuse_huge(columns[0], "y")
    try:
        check_classification_targets(columns[0])
    except (ValueError, TypeError) as error:
        raise InputError(str(error)) from None
    return columns[0], False


def check_classes(classes: Any) -> np.ndarray:
    """Return labels that need not be in y as a 1-D array, empty for None."""
    if classes is None:
        return np.array([], dtype=np.int64)
    table = _open_classes(classes)
    labels = _plain_labels(classes, table, 0, "classes")
    _refuse_huge(labels, "classes")
    are_whole_numbers = labels.dtype.kind != "f" or bool((labels == np.floor(labels)).all())
    if not are_whole_numbers or (labels.dtype.kind == "O" and not isinstance(labels[0], str)):
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
    y: Any, n: int, dtype: Any = np.float64, *, estimator_name: str = "BertRegressor"
) -> np.ndarray:
    """Return the numbers to predict for `n` rows as float64, (n,) or (n, k), finite in `dtype`."""
    table = _open_y(y, n, estimator_name, "")
    columns = [read_numbers(y, table, column, "y") for column in range(table.width)]
    for column, numbers in enumerate(columns):
        with np.errstate(over="ignore"):
            check_finite(numbers.astype(dtype), table, column, "y")
    return np.stack(columns, axis=1) if table.width > 1 else columns[0]


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
    return labels


def _refuse_huge(labels: np.ndarray, name: str) -> None:
    """Raise for whole floats beyond 64 bits, which scikit-learn takes for continuous ones."""
    if labels.dtype.kind != "f" or (labels != np.floor(labels)).any():
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
    return "number" if issubclass(kind, (Real, np.bool_)) else "odd"


def _odd_label_error(label: object, place: str, name: str) -> InputError | InputTypeError:
    """Return the error for a cell that cannot be a label."""
    if isinstance(label, Complex):
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


def _indicator(columns: list[np.ndarray], table: Table) -> np.ndarray:
    """Return the columns as one array of 0 and 1."""
    for column, values in enumerate(columns):
        is_number = values.dtype.kind in "biuf"
        good = np.isin(values, (0, 1)) if is_number else np.zeros(len(values), dtype=bool)
        if not good.all():
            row = int(np.argmin(good))
            are_whole_numbers = not is_number or bool((values == np.floor(values)).all())
            kind = "multiclass-multioutput" if are_whole_numbers else "continuous-multioutput"
            msg = (
                f"Unknown label type: {kind}. y has {table.width} columns, but "
                f"{table.place(row, column)} is {values.tolist()[row]!r}, not 0 or 1. {INDICATOR}"
            )
            raise InputError(msg)
    return np.stack(columns, axis=1).astype(np.int64)
