"""What an estimator keeps beside its weights, as JSON and back; what comes back is checked.

A file whose hashes are right may still be hostile: nothing takes much more memory than the file,
and every value has the type and length that the estimator counts on. Depends on numpy; is handed
estimators' classes, never imports one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

from skbert._arrays import Array
from skbert._core.attention.pooling import COMBINED, POOLINGS
from skbert._validation.columns import FitRecord
from skbert._validation.entities import SCHEMES
from skbert.exceptions import SaveError

__all__ = ["check_attributes", "check_task", "dumps", "loads", "plain", "record_of"]

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


def plain(value: Any) -> Any:
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


def _value(tagged: Any) -> Any:
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


def _check_sizes(tagged: Any, n_bytes: int) -> None:
    """Refuse arrays that would take far more memory than the JSON that describes them."""
    needed = sum(
        _dtype(part).itemsize * max(1, sum(not isinstance(leaf, list) for leaf in _parts(part)))
        for part in _parts(tagged)
        if isinstance(part, dict) and "array" in part
    )
    if needed > _ARRAY_BYTES + 100 * n_bytes:
        raise ValueError(f"arrays of {needed} bytes from {n_bytes} of JSON")


def _parts(tagged: Any) -> Iterator[Any]:
    """A value and all in it, by a stack: nesting may be deep."""
    stack = [tagged]
    while stack:
        part = stack.pop()
        yield part
        if isinstance(part, list | dict):
            stack += part if isinstance(part, list) else part.values()


# --- checks --------------------------------------------------------------------------------------


def check_task(task: Any, longest: int, depth: int) -> None:
    """Refuse settings that no fit makes; ``longest`` row and ``depth`` are those of the model."""
    settings = {each.name: getattr(task, each.name) for each in fields(task)}
    hints = get_type_hints(type(task))
    for name, value in settings.items():
        if not _has_type(value, hints[name]):
            raise ValueError(f"{name}={value!r:.80}")
    rules: dict[str, Callable[[Any], bool]] = {
        "max_length": lambda length: 4 <= length <= longest,
        "stride": lambda stride: stride is None or 0 <= stride <= longest // 2,
        "max_answer_length": lambda most: most >= 1,
        "label_smoothing": lambda share: 0 <= share <= 1,
        "layers": lambda layers: layers is None or _are_within(layers, depth),
        "layer_join": lambda how: how in {"mean", "concat"},
        "pooling": lambda how: how in (*POOLINGS, *COMBINED),
    }
    for name in rules.keys() & settings.keys():
        if not rules[name](settings[name]):
            raise ValueError(f"{name}={settings[name]!r:.80}")


def _are_within(layers: tuple[int, ...], depth: int) -> bool:
    return 0 < len(layers) <= 1024 and all(0 <= layer <= depth for layer in layers)


def _has_type(value: Any, hint: Any) -> bool:
    """Whether a setting is of the type that its task declares."""
    match get_origin(hint):
        case origin if origin in (Union, UnionType):
            return any(_has_type(value, choice) for choice in get_args(hint))
        case origin if origin is Literal:
            return isinstance(value, str) and value in get_args(hint)
        case origin if origin is tuple:
            kind = get_args(hint)[0]
            return isinstance(value, tuple) and all(_has_type(part, kind) for part in value)
    kinds = {float: (float, int), None: (NoneType,)}.get(hint, (hint,))
    return type(value) in kinds and (type(value) is not float or math.isfinite(value))


def check_attributes(attributes: dict[str, Any], names: tuple[str, ...], n_outputs: int) -> None:
    """Refuse attributes that are missing, or of another type or length than a fit sets them."""
    shapes: dict[str, tuple[int | None, ...]] = {
        "classes_": (n_outputs,), "thresholds_": (n_outputs,), "mean_": (n_outputs,),
        "scale_": (n_outputs,), "feature_names_in_": (attributes.get("n_features_in_"),),
    }  # fmt: skip
    needed = {"classes_", "scheme_", "temperature_", "n_outputs_", "scale_", "mean_"} & {*names}
    if "components_" in names:
        components = np.asarray(attributes.get("components_"))
        rows, width = components.shape if components.ndim == 2 else (0, 0)
        shapes |= {"components_": (rows, width), "mean_": (width,),
                   "explained_variance_ratio_": (rows,)}  # fmt: skip
        needed = {"components_", "mean_", "explained_variance_ratio_"} if rows else set()
    absent = sorted(needed - attributes.keys())
    if absent:
        raise KeyError(absent[0])
    for name, value in attributes.items():
        if not _is_right(name, value, shapes.get(name)):
            raise ValueError(f"{name}={value!r:.80}")
    if attributes.get("n_outputs_", n_outputs) != n_outputs:
        raise ValueError(f"n_outputs_={attributes['n_outputs_']} for {n_outputs} outputs")


def _is_right(name: str, value: Any, shape: tuple[int | None, ...] | None) -> bool:
    if shape is not None:
        return isinstance(value, np.ndarray) and value.shape == shape and _CONTENTS[name](value)
    return _CONTENTS[name](value)


def _are_numbers(values: Array) -> bool:
    return values.dtype.kind == "f" and bool(np.isfinite(values).all())


def _are_labels(values: Array) -> bool:
    return all(type(value) in (str, int, float, bool) for value in values.tolist())


def _are_classes(values: Array) -> bool:
    """Labels that differ from each other, and none of them NaN."""
    labels = values.tolist()
    is_nan = any(isinstance(label, float) and math.isnan(label) for label in labels)
    return _are_labels(values) and len({*labels}) == len(labels) and not is_nan


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and not math.isnan(value)


def _is_history(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, dict) for each in value)


def _is_scheme(value: Any) -> bool:
    return value is None or value in SCHEMES


_CONTENTS: dict[str, Callable[[Any], bool]] = {
    "classes_": _are_classes,
    "feature_names_in_": _are_labels,
    **dict.fromkeys(("components_", "explained_variance_ratio_", "mean_", "scale_",
                     "thresholds_"), _are_numbers),
    **dict.fromkeys(("n_features_in_", "n_iter_", "n_outputs_", "n_truncated_"), _is_count),
    **dict.fromkeys(("no_answer_threshold_", "probe_score_"), _is_number),
    "temperature_": lambda value: _is_number(value) and value > 0,
    **dict.fromkeys(("learned_scheme_", "scheme_"), _is_scheme),
    "history_": _is_history,
}  # fmt: skip


def record_of(seen: Any) -> FitRecord | None:
    """What was known about the X of fit."""
    match seen:
        case None:
            return None
        case ((None | tuple()) as names, int(n_columns)) if n_columns in {1, 2} and all(
            isinstance(name, str) for name in names or ()
        ):
            return FitRecord(names, n_columns)
    raise ValueError(f"seen={seen!r:.80}")
