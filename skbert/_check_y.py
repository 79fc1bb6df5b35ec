"""y and weights as numpy arrays, or an error that names the first bad row.

Depends on numpy, scikit-learn's target rules, `skbert._check` and `skbert.exceptions`; knows no
torch and no tokenizer. Where scikit-learn has words for a mistake, these are used.
"""

from __future__ import annotations

import difflib
import math
import reprlib
import warnings
from collections.abc import Mapping
from numbers import Complex, Number, Real
from typing import Any

import numpy as np
from sklearn.exceptions import DataConversionWarning
from sklearn.utils.multiclass import check_classification_targets

from skbert._check import Table, is_missing, open_table
from skbert.exceptions import InputError, InputTypeError

COLUMN_VECTOR = (
    "A column-vector y was passed when a 1d array was expected. Please change the shape of y to "
    "(n_samples, ), for example using ravel()."
)
INDICATOR = (
    "Several labels per row are an indicator matrix of 0 and 1, one column per label: type "
    "sklearn.preprocessing.MultiLabelBinarizer().fit_transform(y)."
)


def listed(values: Any) -> Any:
    """What has no rows of its own, only a way to become an array, as that array."""
    bare = hasattr(values, "__array__") and not hasattr(values, "__len__")
    return np.asarray(values) if bare and not isinstance(values, np.generic) else values


def check_length(n_x: int, n_other: int, name: str = "y") -> None:
    """Raise when X and something that goes with it differ in length."""
    if n_x != n_other:
        msg = (
            f"Found input variables with inconsistent numbers of samples: [{n_x}, {n_other}]. "
            f"X has {n_x} rows and {name} has {n_other}; give {name} one entry per row of X."
        )
        raise InputError(msg)


def check_labels(
    y: Any, n: int, *, estimator_name: str = "BertClassifier"
) -> tuple[np.ndarray, bool]:
    """Return the labels of `n` rows, and whether they are a multi-label indicator.

    One label per row comes back as a 1-D array of str (``<U`` from a list, object from a
    Series), bool, integers or whole floats; an indicator as an (n, k) int64 array of 0 and 1.
    """
    dense = y.toarray() if hasattr(y, "toarray") and hasattr(y, "nnz") else y
    table = _open_y(dense, n, estimator_name, INDICATOR)
    columns = [_plain_labels(dense, table, column) for column in range(table.width)]
    if table.width > 1:
        return _indicator(columns, table), True
    try:
        check_classification_targets(columns[0])
    except (ValueError, TypeError) as error:
        raise InputError(str(error)) from None
    return columns[0], False


def check_targets(
    y: Any, n: int, dtype: Any = np.float64, *, estimator_name: str = "BertRegressor"
) -> np.ndarray:
    """Return the numbers to predict for `n` rows, (n,) or (n, k), all finite in `dtype`."""
    table = _open_y(y, n, estimator_name, "")
    columns = [_numbers(y, table, column, "y") for column in range(table.width)]
    with np.errstate(over="ignore"):
        columns = [numbers.astype(dtype) for numbers in columns]
    for column, numbers in enumerate(columns):
        _check_finite(numbers, table, column, "y")
    return np.stack(columns, axis=1) if table.width > 1 else columns[0]


def check_sample_weight(weight: Any, n: int) -> np.ndarray | None:
    """Return one finite, non-negative float64 weight per row, None for no weights."""
    if weight is None:
        return None
    weight = np.full(n, weight) if isinstance(weight, Number) else weight
    table = _open(weight, "sample_weight", "")
    if len(table.shape) != 1:
        msg = (
            f"Sample weights must be 1D array or scalar, got {len(table.shape)}D array. Expected "
            f"either a scalar value or a 1D array of length {n}."
        )
        raise InputError(msg)
    if table.shape != (n,):
        msg = (
            f"sample_weight.shape == {table.shape}, expected {(n,)}! Give sample_weight one "
            "number per row of X."
        )
        raise InputError(msg)
    weights = _numbers(weight, table, 0, "sample_weight")
    _check_finite(weights, table, 0, "sample_weight")
    _check_worth(weights)
    return weights


def _check_worth(weights: np.ndarray) -> None:
    """Raise when a weight is negative or none is above zero, in scikit-learn's words."""
    if (weights < 0).any():
        row = int(np.argmax(weights < 0))
        msg = (
            f"Negative values in data passed to `sample_weight`, the first in row {row} "
            f"({weights[row]}). A weight says how often a row counts; use 0 to leave a row out."
        )
        raise InputError(msg)
    if not weights.any():
        msg = (
            "Sample weights must contain at least one non-zero number. With zeros only no row "
            "would count; type sample_weight=None to count all rows alike."
        )
        raise InputError(msg)


def check_class_weight(
    class_weight: Any,
    classes: np.ndarray,
    codes: np.ndarray,
    sample_weight: np.ndarray | None = None,
) -> np.ndarray | None:
    """Return one float64 multiplier per class, None for no class weights.

    `codes` (n,) are positions in `classes`. "balanced" gives each class the same total weight; a
    sample weight of 2 counts like repeating the row, and a class without any weight gets 1.
    """
    if class_weight is None:
        return None
    if isinstance(class_weight, str) and class_weight == "balanced":
        counts = np.bincount(codes, weights=sample_weight, minlength=len(classes))
        present = counts > 0
        multipliers = np.ones(len(classes))
        multipliers[present] = counts.sum() / (present.sum() * counts[present])
        return multipliers
    if not isinstance(class_weight, Mapping):
        close = difflib.get_close_matches(str(class_weight), ["balanced"])
        hint = " Did you mean 'balanced'?" if close else ""
        msg = (
            f"class_weight={class_weight!r} is not a choice. It must be None, 'balanced' or a "
            f"dict of weights per class, such as {{{classes.tolist()[0]!r}: 2.0}}.{hint}"
        )
        raise InputError(msg)
    _check_class_keys(class_weight, classes.tolist())
    return np.array([_class_weight(class_weight, label) for label in classes.tolist()])


def _check_class_keys(class_weight: Mapping[Any, Any], classes: list[Any]) -> None:
    """Raise when a key is no class, or when no class is left with a weight."""
    unknown = [key for key in class_weight if key not in classes]
    if unknown:
        by_name = {str(label): label for label in classes}
        close = difflib.get_close_matches(str(unknown[0]), list(by_name), n=1)
        hint = f" Did you mean {by_name[close[0]]!r} for {unknown[0]!r}?" if close else ""
        msg = (
            f"class_weight has keys that are not classes: {unknown}. The classes are "
            f"{reprlib.repr(classes)}; those left out of the dict get a weight of 1.{hint}"
        )
        raise InputError(msg)
    if not any(_class_weight(class_weight, label) for label in classes):
        msg = (
            "class_weight gives every class a weight of 0, so no row would count. Give at least "
            "one class a weight above 0."
        )
        raise InputError(msg)


def _class_weight(class_weight: Mapping[Any, Any], label: Any) -> float:
    """Return the weight of one class, 1 when it has none."""
    value: Any = class_weight.get(label, 1.0)
    if not (isinstance(value, Real) and math.isfinite(value) and float(value) >= 0):
        msg = (
            f"class_weight[{label!r}] is {value!r}, but a class weight must be a finite number "
            "that is not negative. Use 0 to leave a class out, 1 for no change."
        )
        raise InputError(msg)
    return float(value)


def _open(values: Any, name: str, hint: str) -> Table:
    """Open y or weights; a single str is no sequence of values."""
    if isinstance(values, (str, bytes)):
        msg = f"{name} is {values!r}, but must hold one value per row of X. Pass a list of values."
        raise InputError(msg)
    return open_table(values, name, hint)


def _open_y(y: Any, n: int, estimator_name: str, hint: str) -> Table:
    """Open y, check its length, and warn when it is a column of a table."""
    if y is None:
        msg = (
            f"This {estimator_name} estimator requires y to be passed, but the target y is None. "
            "Give one value per row of X; type fit(X, y)."
        )
        raise InputError(msg)
    table = _open(y, "y", hint)
    check_length(n, table.shape[0])
    if table.width == 0:
        msg = (
            f"Found array with 0 feature(s) (shape={table.shape}) while a minimum of 1 is "
            "required. y has no columns; give one value per row of X."
        )
        raise InputError(msg)
    if table.shape == (n, 1):
        warnings.warn(COLUMN_VECTOR, DataConversionWarning, stacklevel=3)
    return table


def _column(values: Any, table: Table, column: int) -> np.ndarray | list[Any]:
    """Return one column, as an array where it is one of numbers or ``<U`` already."""
    dtype = getattr(values, "dtype", None)
    if isinstance(dtype, np.dtype) and dtype.kind in "biufcU" and not np.ma.isMaskedArray(values):
        array = np.asarray(values)
        return array[:, column] if array.ndim == 2 else array
    return table.read(column)


def _plain_labels(y: Any, table: Table, column: int) -> np.ndarray:
    """Return the labels of one column as an array of one kind, without gaps."""
    labels = _column(y, table, column)
    if isinstance(labels, list):
        _refuse_gaps([r for r, cell in enumerate(labels) if is_missing(cell)], table, column, "y")
        _check_kinds(labels, table, column)
        array = np.array(labels)
        # NumPy drops a NUL at the end of a str, and rounds integers beyond 64 bits.
        is_exact = array.tolist() == labels
        is_foreign = array.dtype.kind == "U" and not isinstance(y, (list, tuple))
        labels = array if is_exact and not is_foreign else np.array(labels, dtype=object)
    if labels.dtype.kind == "c":
        raise _complex_error("y", table.place(0, column))
    if labels.dtype.kind == "f":
        _refuse_gaps(np.flatnonzero(np.isnan(labels)).tolist(), table, column, "y")
        _check_finite(labels, table, column, "y")
    return labels


def _check_kinds(labels: list[Any], table: Table, column: int) -> None:
    """Raise unless the labels are all str or all real numbers."""
    family = {kind: _family(kind) for kind in set(map(type, labels))}
    odd = {kind for kind, name in family.items() if name not in {"str", "number"}}
    if odd:
        row = next(row for row, label in enumerate(labels) if type(label) in odd)
        raise _odd_label_error(labels[row], table.place(row, column))
    if len(set(family.values())) > 1:
        rows = {family[type(label)]: row for row, label in reversed([*enumerate(labels)])}
        text, number = rows["str"], rows["number"]
        msg = (
            f"y mixes str and numbers: {table.place(text, column)} is {labels[text]!r}, "
            f"{table.place(number, column)} is {labels[number]!r}. Labels must be of one kind; "
            "type y = [str(label) for label in y]."
        )
        raise InputTypeError(msg)


def _family(kind: type) -> str:
    """Return "str" or "number" for what can be a label, else "odd"."""
    if issubclass(kind, str):
        return "str"
    return "number" if issubclass(kind, (Real, np.bool_)) else "odd"


def _odd_label_error(label: Any, place: str) -> InputError | InputTypeError:
    """Make the error for what can be no label."""
    if isinstance(label, Complex):
        return _complex_error("y", place)
    found = f"{place} of y holds {reprlib.repr(label)}, of type {type(label).__name__}."
    if isinstance(label, bytes):
        return InputTypeError(
            "Support for labels represented as bytes is not supported. Convert the labels to a "
            f"string or integer format. {found} Type y = [label.decode('utf-8') for label in y]."
        )
    return InputError(
        f"Unknown label type: unknown. {found} Labels must be str, bool or whole numbers. "
        f"{INDICATOR}"
    )


def _complex_error(name: str, place: str) -> InputError:
    """Make the error for complex numbers, in scikit-learn's words."""
    return InputError(
        f"Complex data not supported. {name} holds complex numbers, the first in {place}. Give "
        f"real numbers; type numpy.real({name})."
    )


def _indicator(columns: list[np.ndarray], table: Table) -> np.ndarray:
    """Return the columns as one array of 0 and 1."""
    for column, values in enumerate(columns):
        is_number = values.dtype.kind in "biuf"
        good = np.isin(values, (0, 1)) if is_number else np.zeros(len(values), dtype=bool)
        if not good.all():
            row = int(np.argmin(good))
            whole = not is_number or bool((values == np.floor(values)).all())
            kind = "multiclass-multioutput" if whole else "continuous-multioutput"
            msg = (
                f"Unknown label type: {kind}. y has {table.width} columns, but "
                f"{table.place(row, column)} is {values.tolist()[row]!r}, not 0 or 1. {INDICATOR}"
            )
            raise InputError(msg)
    return np.stack(columns, axis=1).astype(np.int64)


def _numbers(values: Any, table: Table, column: int, name: str) -> np.ndarray:
    """Return one column as float64 without gaps."""
    cells = _column(values, table, column)
    if isinstance(cells, np.ndarray) and cells.dtype.kind in "biuf":
        numbers = cells.astype(np.float64)
    else:
        numbers = np.empty(table.shape[0])
        for row, cell in enumerate(cells):
            number = _number(cell)
            if number is None:
                raise _no_number_error(cell, name, table.place(row, column))
            numbers[row] = number
    _refuse_gaps(np.flatnonzero(np.isnan(numbers)).tolist(), table, column, name)
    return numbers


def _number(cell: Any) -> float | None:
    """Return a cell as a float, NaN for a missing one, None for what is no real number."""
    if is_missing(cell):
        return math.nan
    if isinstance(cell, (str, bytes, np.ndarray, np.complexfloating)):
        return None
    try:
        return float(cell)
    except OverflowError:
        return math.inf
    except (TypeError, ValueError):
        return None


def _no_number_error(cell: Any, name: str, place: str) -> InputError | InputTypeError:
    """Make the error for a cell that is no real number."""
    if isinstance(cell, Complex):
        return _complex_error(name, place)
    if isinstance(cell, (str, bytes)):
        return InputError(
            f"could not convert string to float: {reprlib.repr(cell)}, in {place} of {name}. "
            f"Give numbers; type {name} = [float(value) for value in {name}] if all are some."
        )
    return InputTypeError(
        f"{name} must hold real numbers, but {place} holds {reprlib.repr(cell)}, of type "
        f"{type(cell).__name__}. Give one number per row of X."
    )


def _refuse_gaps(rows: list[int], table: Table, column: int, name: str) -> None:
    """Raise when there are rows without a value, in scikit-learn's words."""
    if rows:
        msg = (
            f"Input {name} contains NaN. It has {len(rows)} missing value(s), the first in "
            f"{table.place(rows[0], column)}. Leave these rows out; for a Series or an array type "
            f"keep = ~pandas.isna({name}), then X[keep] and {name}[keep]."
        )
        raise InputError(msg)


def _check_finite(numbers: np.ndarray, table: Table, column: int, name: str) -> None:
    """Raise when a number is infinite, in scikit-learn's words."""
    infinite = np.isinf(numbers)
    if infinite.any():
        msg = (
            f"Input {name} contains infinity or a value too large for {numbers.dtype!r}. The "
            f"first is in {table.place(int(np.argmax(infinite)), column)}. Give finite numbers."
        )
        raise InputError(msg)
