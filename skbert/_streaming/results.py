"""What models predict, as columns of Arrow tables.

Depends on pyarrow and numpy; knows models by their methods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import pandas as pd
import pyarrow as pa

from skbert._arrays import Array
from skbert._validation.columns import FitRecord, TextColumns
from skbert.exceptions import InputError

__all__ = ["Columns", "Model", "predicted", "vectors"]

Columns = dict[str, Any]


class Model(Protocol):
    """What is used of an estimator, or of one that was exported; not all of them have all."""

    text_columns: TextColumns
    classes_: Any
    predict: Callable[[object], Any]
    transform: Callable[[object], Array]
    _predictions: Callable[[object, object], Any]
    _rows: Callable[[object, FitRecord | None], Any]
    _state: Callable[[], Any]


def predicted(model: Model, X: object, *, with_probabilities: bool) -> Columns:
    """Return the columns of what a model predicts, with the probabilities if asked for."""
    if not with_probabilities:
        return _named([*_columns("prediction", model.predict(X))])
    if not hasattr(model, "_predictions"):
        raise InputError(
            f"--probabilities is for classifiers of texts, and this model is a "
            f"{type(model).__name__}. Leave it out."
        )
    found = model._predictions(model._state(), X)
    columns = [*_columns("prediction", found.labels())]
    probabilities, classes = found.probabilities(), model.classes_
    if not isinstance(probabilities, list):
        return _named([*columns, *_columns("probability", probabilities, classes)])
    labels = [name for name, _ in columns]  # one for each column of classes
    for name, part, own in zip(labels, probabilities, classes, strict=True):
        columns += _columns(name.replace("prediction", "probability", 1), part, own)
    return _named(columns)


def _named(columns: list[tuple[str, Any]]) -> Columns:
    """Return columns by name, which must differ."""
    names = [name for name, _ in columns]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(
            f"Two columns of the output would both be called {twice!r}, after the classes of the "
            "model. Leave out --probabilities, or fit with other names of classes or columns."
        )
    return dict(columns)


def vectors(model: Model, X: object) -> Columns:
    """Return the column of the vectors of texts."""
    made = np.asarray(model.transform(X))  # of a frame, if set_output asks for one
    return {"embedding": pa.FixedSizeListArray.from_arrays(made.reshape(-1), made.shape[1])}


def _columns(
    name: str, values: Array | pd.DataFrame, labels: Sequence[object] = ()
) -> Iterator[tuple[str, Any]]:
    """Yield the names and columns of one value per row, of a frame, or of a matrix."""
    if isinstance(values, pd.DataFrame):
        for label in values.columns:
            yield f"{name}_{label}", _array(values[label].tolist())
    elif np.ndim(values) == 2:
        for at, column in enumerate(values.T):
            yield f"{name}_{labels[at] if len(labels) else at}", pa.array(column)
    else:
        yield name, _array([_cell(value) for value in values.tolist()])


def _array(values: list[object]) -> Any:
    """Values as Arrow holds them."""
    try:
        return pa.array(values)
    except (OverflowError, UnicodeError, pa.ArrowException) as error:
        raise InputError(
            f"The predictions, such as {values[0]!r:.80}, have no place in a parquet file: "
            f"{error}. Fit with other labels, or call predict in Python."
        ) from error


def _cell(value: object) -> object:
    """A prediction as Arrow holds it: a stretch of a text as a struct."""
    if not isinstance(value, list):
        return value
    names = ("start", "end", "label")
    return [dict(zip(names, x, strict=True)) if isinstance(x, tuple) else x for x in value]
