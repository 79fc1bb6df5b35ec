"""What an estimator keeps beside its weights, as JSON and back.

A file whose hashes are right may still be hostile: nothing takes much more memory than the file.
Whether its values are those of an estimator is asked in `checks`. Depends on numpy.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from skbert._estimator.checks import check_settings
from skbert._validation.columns import FitRecord
from skbert._validation.features import feature_column_of
from skbert.exceptions import SaveError

__all__ = [
    "describing", "dumps", "loads", "not_written_here", "plain", "record_of", "task_of",
]  # fmt: skip

_KINDS = "biufUO"  # of arrays: bool, whole numbers, floats, str, and objects that are plain
_ARRAY_BYTES = 64_000_000  # bytes that arrays may take, beside a hundred for each byte of JSON
_JSON_BYTES = 100_000_000  # bytes of JSON


def dumps(state: Mapping[str, Any]) -> bytes:
    """A state as JSON that `loads` takes."""
    tagged = {name: plain(value) for name, value in state.items()}
    data = json.dumps(tagged).encode()
    try:
        _check_sizes(tagged, len(data))
    except ValueError as error:
        raise SaveError(
            f"Attributes or parameters are too large for a saved folder: {error}. Use shorter "
            "labels, or pickle the estimator."
        ) from error
    return data


def loads(data: bytes) -> Any:
    """The state that `dumps` made JSON of; ValueError, TypeError or RecursionError where none."""
    if len(data) > _JSON_BYTES:
        raise ValueError(f"{len(data)} bytes, where at most {_JSON_BYTES} are read")
    tagged = json.loads(data)
    _check_sizes(tagged, len(data))
    return _value(tagged)


def plain(value: object) -> Any:
    """A value as JSON knows it; what is no JSON of itself becomes a tagged object."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case np.generic():
            return value.item()
        case list():
            return [plain(part) for part in value]
        case tuple():
            return {"tuple": [plain(part) for part in value]}
        case Mapping():
            return {"dict": [[plain(key), plain(part)] for key, part in value.items()]}
        case np.ndarray():
            return {"array": plain(value.tolist()), "dtype": value.dtype.str}
    raise SaveError(
        f"A {type(value).__name__} cannot be saved as JSON: {value!r:.80}. Use str, numbers or "
        "bool for labels and parameters, or pickle the estimator."
    )


def _value(tagged: object) -> Any:
    """The value that `plain` made JSON of."""
    if isinstance(tagged, list):
        return [_value(part) for part in tagged]
    if not isinstance(tagged, dict):
        return tagged
    if "array" in tagged:
        return np.array(_value(tagged["array"]), dtype=_dtype(tagged))
    if "tuple" in tagged:
        return tuple(_value(part) for part in tagged["tuple"])
    if "dict" in tagged:
        return {_value(key): _value(part) for key, part in tagged["dict"]}
    return {key: _value(part) for key, part in tagged.items()}


def _dtype(tagged: dict[str, Any]) -> np.dtype[Any]:
    dtype: np.dtype[Any] = np.dtype(str(tagged["dtype"]))
    if dtype.kind not in _KINDS:
        raise ValueError(f"an array of {dtype}")
    return dtype


def _check_sizes(tagged: object, n_bytes: int) -> None:
    """Refuse arrays that would take far more memory than the JSON that describes them."""
    needed = sum(
        _dtype(part).itemsize * max(1, sum(not isinstance(leaf, list) for leaf in _parts(part)))
        for part in _parts(tagged)
        if isinstance(part, dict) and "array" in part
    )
    if needed > _ARRAY_BYTES + 100 * n_bytes:
        raise ValueError(f"arrays of {needed} bytes from {n_bytes} of JSON")


def _parts(tagged: object) -> Iterator[Any]:
    """A value and all in it, by a stack: nesting may be deep."""
    stack = [tagged]
    while stack:
        part = stack.pop()
        yield part
        if isinstance(part, list | dict):
            stack += part if isinstance(part, list) else part.values()


def record_of(seen: object) -> FitRecord | None:
    """What was known about the X of fit."""
    match seen:
        case None:
            return None
        case ((None | tuple()) as names, int(n_columns), *rest) if n_columns > 0 and all(
            isinstance(name, str) for name in names or ()
        ):
            features, width = _features_and_width(rest)
            return FitRecord(names, n_columns, tuple(map(feature_column_of, features)), width)
    raise ValueError(f"seen={seen!r:.80}")


def _features_and_width(saved: Sequence[Any]) -> tuple[Any, int]:
    """What a record says of the other columns of X; older versions said less, or nothing."""
    match saved:
        case []:
            return (), 0
        case [features]:
            return features, 0
        case [features, int(width)] if width >= 0:
            return features, width
    raise ValueError(f"columns {saved!r:.80}")


def task_of(kinds: Sequence[type[Any]], saved: Sequence[Any]) -> Any:
    """The task of one of these kinds, from its name and its settings."""
    kind, settings = saved
    task = {each.__name__: each for each in kinds}[kind](**settings)
    check_settings(task)
    return task


@contextmanager
def describing(problem: str, advice: str) -> Iterator[None]:
    """Raise a SaveError for whatever is wrong with a state."""
    try:
        yield
    except (AttributeError, LookupError, MemoryError, OverflowError, RecursionError, TypeError,
            ValueError) as error:  # fmt: skip
        if isinstance(error, SaveError):
            raise
        raise SaveError(f"{problem}: {error!r:.200}. {advice}") from error


def not_written_here(path: Path, cls: type[Any]) -> tuple[str, str]:
    """What to say of a file that holds no such state, and what to do about it."""
    advice = "It was not written by this version of skbert; save again with it."
    return f"{path} does not describe a {cls.__name__}", advice
