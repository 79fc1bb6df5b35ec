"""What learned attributes and the settings of a task may be, in a fit and in a saved file.

Hashes that are right do not make a file honest. Depends on numpy; knows no estimator by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    TypeGuard,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np

from skbert._arrays import FloatArray
from skbert.exceptions import InputError

if TYPE_CHECKING:
    from skbert._estimator.fitted import Fitted

__all__ = [
    "are_classes",
    "are_confidences",
    "are_labels",
    "are_numbers",
    "are_sorted",
    "are_weights",
    "check_settings",
    "is_count",
    "is_history",
    "is_number",
    "is_one_of",
    "is_positive",
    "is_score",
    "resolve_max_length",
]

_SHORTEST = 4  # tokens: the special tokens of a pair and one piece


def are_numbers(values: object) -> TypeGuard[FloatArray]:
    """Whether these are an array of floats, all of them finite."""
    return (
        isinstance(values, np.ndarray)
        and values.dtype.kind == "f"
        and bool(np.isfinite(values).all())
    )


def are_sorted(values: object) -> bool:
    """Whether these are an array of floats, ascending along its first axis."""
    return are_numbers(values) and bool((np.diff(values, axis=0) >= 0).all())


def are_weights(values: object) -> bool:
    """Whether these are an array of floats above 0."""
    return are_numbers(values) and bool((values > 0).all())


def are_confidences(values: object) -> bool:
    """Whether these are rows of a probability, and a 1 or a 0."""
    return (
        isinstance(values, np.ndarray)
        and values.dtype.kind == "f"
        and values.ndim == 2
        and values.shape[1] == 2
        and bool(((values >= 0) & (values <= 1)).all())
    )


def are_labels(values: object) -> bool:
    """Whether these are an array of str or numbers."""
    return isinstance(values, np.ndarray) and all(
        type(value) in (str, int, float, bool) for value in values.tolist()
    )


def are_classes(values: object) -> bool:
    """Whether these are labels that differ from each other, and none of them NaN."""
    if not (isinstance(values, np.ndarray) and are_labels(values)):
        return False
    labels = values.tolist()
    is_nan = any(isinstance(label, float) and math.isnan(label) for label in labels)
    return len({*labels}) == len(labels) and not is_nan


def is_count(value: object) -> bool:
    """Whether this is a whole number, from 0."""
    return type(value) is int and value >= 0


def is_number(value: object) -> bool:
    """Whether this is a number, and not NaN."""
    return is_score(value) and not math.isnan(value)


def is_score(value: object) -> TypeGuard[int | float]:
    """Whether this is a number, or NaN, which is the score of too few rows."""
    return type(value) in (int, float)


def is_positive(value: object) -> bool:
    """Whether this is a finite number above 0."""
    return is_score(value) and 0 < value < math.inf


def is_history(value: object) -> bool:
    """Whether this is a list with a dict for each pass."""
    return isinstance(value, list) and all(isinstance(each, dict) for each in value)


def is_one_of(*names: str | None) -> Callable[[object], bool]:
    """Whether a value is one of these names."""
    return lambda value: type(value) in (str, NoneType) and value in names


def check_settings(task: Any) -> None:
    """Refuse settings of other types than the task declares."""
    hints = get_type_hints(type(task))
    for name in (each.name for each in fields(task)):
        if not _has_type(getattr(task, name), hints[name]):
            raise ValueError(f"{name}={getattr(task, name)!r:.80}")


def _has_type(value: object, hint: Any) -> bool:
    """Whether a value is of a type as annotations spell it."""
    match get_origin(hint):
        case origin if origin in (Union, UnionType):
            return any(_has_type(value, choice) for choice in get_args(hint))
        case origin if origin is Literal:
            return isinstance(value, str) and value in get_args(hint)
        case origin if origin is tuple:
            kind = get_args(hint)[0]
            return isinstance(value, tuple) and all(_has_type(part, kind) for part in value)
    kinds = {float: (float, int)}.get(hint, (hint,))
    return type(value) in kinds and (type(value) is not float or math.isfinite(value))


def resolve_max_length(limit: int, wanted: int | None, previous: Fitted | None = None) -> int:
    """The maximum length of a row in tokens: ``wanted``, or for None what was learned before.

    If there is nothing, it is the limit of the model.
    """
    usual = limit if previous is None else previous.task.max_length
    longest = usual if wanted is None else wanted
    if not _SHORTEST <= longest <= limit:
        raise InputError(
            f"max_length={longest}: this model reads between {_SHORTEST} and {limit} tokens, "
            f"special tokens included. Use max_length={limit} for the longest."
        )
    return int(longest)
