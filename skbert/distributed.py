"""Predictions in the workers of Dask, Ray, Spark and of any other engine that pickles functions.

Depends on the folders that estimators are saved in and exported to; imports no engine. torch is
loaded for a saved folder only.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Iterator, Mapping, Sized
from pathlib import Path
from typing import Any

import pandas as pd

from skbert import runtime
from skbert._catalogue import load_name
from skbert._core.checkpoints import archive
from skbert._estimator.loading import load
from skbert.exceptions import InputError, InputTypeError, SaveError
from skbert.runtime._models import MODELS

__all__ = ["Predictor"]


class Predictor:
    """A method of a saved or exported estimator, as a function that is sent to other processes.

    It is pickled as a path and a few hashes, not with the weights. Each process opens the folder
    when it first predicts, and keeps the estimator: further calls of any `Predictor` of the same
    folder use it. Threads of a process share it.

    Parameters
    ----------
    path : str or path-like
        The folder that ``save`` or ``export`` wrote. All processes must see it under this path.
    method : str, default="predict"
        The method that is called, such as ``"predict_proba"`` or ``"transform"``.

    Raises
    ------
    InputError
        If the estimator in the folder has no such method.
    SaveError
        If the folder is missing or damaged, or if a process finds another estimator in it than
        there was when the `Predictor` was made.

    See Also
    --------
    skbert.load : Opens a saved folder, and gives the estimator itself.
    skbert.runtime.load : The same for an exported one.

    Examples
    --------
    >>> import pickle
    >>> from skbert import BertTransformer
    >>> from skbert.distributed import Predictor
    >>> BertTransformer().fit(["a text"]).save("encoder")
    >>> embed = Predictor("encoder", "transform")
    >>> embed(["a text", "another"]).shape
    (2, 384)
    >>> embed([]).shape
    (0, 384)
    >>> len(pickle.dumps(embed)) < 2000
    True
    """

    def __init__(self, path: str | os.PathLike[str], method: str = "predict") -> None:
        self._path, self._method = Path(path).expanduser().resolve(), method
        self._hashes = archive.hashes(self._path)
        header = archive.header(self._path)
        name = str(header["class"])
        kind = MODELS.get(name) if _is_exported(header) else load_name(name)
        if not callable(getattr(kind, method, None)):
            raise InputError(
                f"method={method!r}, but {self._path} holds a {name}, which has no such method."
                " Give the name of one that it has, such as 'predict' or 'transform'."
            )

    def __repr__(self) -> str:
        """Return the path and the method."""
        return f"Predictor({os.fspath(self._path)!r}, {self._method!r})"

    def __call__(self, X: Sized, **options: object) -> Any:
        """Call the method on some rows; of no rows the result is empty.

        Parameters
        ----------
        X : array-like
            Rows in the form of X in ``fit``, such as the column of a partition.
        **options : object
            Further arguments of the method.

        Returns
        -------
        results : ndarray, DataFrame or list of ndarray
            What the method returns.
        """
        method = getattr(_opened(self._path, self._hashes), self._method)
        if len(X):
            return method(X, **options)
        for row in _example_rows(X):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    found = method(row, **options)
                    return [each[:0] for each in found] if isinstance(found, list) else found[:0]
                except (InputError, InputTypeError):
                    continue
        return method(X, **options)


# What each folder holds, as far as this process has opened it.
_estimators: dict[Path, tuple[dict[str, str], Any]] = {}
_opening = threading.Lock()


def _opened(path: Path, hashes: dict[str, str]) -> Any:
    """The estimator that a folder holds; it is opened once a process."""
    with _opening:
        known, estimator = _estimators.get(path, ({}, None))
        if known == hashes:
            return estimator
        if archive.hashes(path) != hashes:
            raise SaveError(
                f"{path} holds another estimator than when the Predictor was made. Make a new"
                " Predictor, and give each estimator a folder of its own."
            )
        is_exported = _is_exported(archive.header(path))
        estimator = runtime.load(path) if is_exported else load(path)
        _estimators[path] = hashes, estimator
        return estimator


def _is_exported(header: Mapping[str, object]) -> bool:
    """Whether ``export`` wrote a folder, not ``save``."""
    return "engine" in header


def _example_rows(X: object) -> Iterator[object]:
    """One row in the form of an empty X, in each of the kinds that its cells may have."""
    X = X.to_pandas() if hasattr(X, "to_pandas") else X
    for last in ("a", ["a", "b"]):
        if isinstance(X, pd.DataFrame):
            is_number = map(pd.api.types.is_numeric_dtype, X.dtypes)
            cells: list[object] = [0.0 if number else "a" for number in is_number]
            if cells[-1:] == ["a"]:
                cells[-1] = last
            yield pd.DataFrame([cells], columns=X.columns)
        else:
            _, *width = getattr(X, "shape", (0,))
            yield [[*["a"] * (width[0] - 1), last]] if width else [last]
