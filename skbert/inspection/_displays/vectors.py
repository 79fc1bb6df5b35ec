"""Vectors of texts from estimators, and their places in the plane, for a map.

Depends on scikit-learn and on the base of the estimators; umap-learn is imported when it is used.
"""

from __future__ import annotations

from dataclasses import fields
from importlib import import_module
from typing import Any

import numpy as np
from scipy.sparse import issparse
from sklearn.decomposition import PCA
from sklearn.utils.validation import check_is_fitted

from skbert._arrays import FloatArray
from skbert._catalogue import load_name
from skbert._estimator.base import TextEstimator
from skbert._validation.tables import ROW_TYPES
from skbert._validation.targets import as_sequence
from skbert.exceptions import InputError, InputTypeError

__all__ = ["METHODS", "check_source", "vectors_of"]


def check_source(estimator: object, X: object, method: object) -> None:
    """Refuse what gives no vectors, and methods that are not known, before texts are read."""
    if not isinstance(method, str) or method not in METHODS:
        raise InputError(
            f"method={method!r:.80} is unknown. Give one of {', '.join(map(repr, METHODS))}."
        )
    has_vectors = hasattr(estimator, "transform") or isinstance(estimator, TextEstimator)
    if isinstance(estimator, type) or not has_vectors:
        raise InputTypeError(
            f"A {type(estimator).__name__} gives no vectors. Give a fitted BertTransformer, or a "
            "fitted estimator of skbert; of a Pipeline, the steps that make vectors, such as "
            "pipeline[:-1]."
        )
    check_is_fitted(estimator)
    if hasattr(estimator, "predict_spans") or hasattr(estimator, "rank"):
        _check_texts(estimator, X)


def _check_texts(estimator: object, X: object) -> None:
    """Refuse rows of words and of options: vectors are of texts."""
    for row, cell in enumerate(as_sequence(X)):
        if isinstance(cell, ROW_TYPES):
            raise InputTypeError(
                f"Row {row} of X is {cell!r:.80}, but a map shows a text per row, also with the "
                f"encoder of a {type(estimator).__name__}. Join words into texts: "
                "[' '.join(words) for words in X]; of rows with options, give the first texts: "
                "[text for text, _ in X]."
            )


def vectors_of(estimator: object, X: object) -> FloatArray:
    """The vectors of X, at least two of at least two numbers each."""
    name = type(estimator).__name__
    made = _of_texts(estimator, X)
    if issparse(made):
        raise InputTypeError(
            f"{name} gives a sparse matrix, but a map needs an array. Add a step that makes one: "
            "make_pipeline(estimator, TruncatedSVD(50)).fit(X)."
        )
    instead = "Give a transformer that makes vectors of texts, such as BertTransformer().fit(X)."
    try:
        vectors: FloatArray = np.asarray(made, float)
    except (TypeError, ValueError) as error:
        raise InputTypeError(f"{name} does not give numbers: {error}. {instead}") from error
    if vectors.ndim != 2 or min(vectors.shape) < 2:
        raise InputError(
            f"The vectors have the shape {vectors.shape}, and a map needs at least 2 rows and 2 "
            f"features. Give more texts. {instead}"
        )
    if (bad := np.flatnonzero(~np.isfinite(vectors).all(axis=1))).size:
        raise InputError(f"{name} gives NaN or infinity for row {bad[0]} of X. {instead}")
    return vectors


def _of_texts(estimator: object, X: object) -> Any:
    """What the estimator makes of X, or a transformer that reads its texts with its encoder."""
    if hasattr(estimator, "transform"):
        return estimator.transform(X)
    assert isinstance(estimator, TextEstimator)
    if estimator.text_columns is None and getattr(estimator, "feature_columns", None) is not None:
        X = [*zip(*estimator._rows(X, estimator._state().record).columns, strict=True)]
    shared = [each.name for each in fields(TextEstimator) if each.name != "model"]
    settings = {name: getattr(estimator, name) for name in shared}
    settings["long_text"] = getattr(estimator, "long_text", "truncate")
    return load_name("BertTransformer")(model=estimator, **settings).fit(X).transform(X)


def _by_pca(vectors: FloatArray, _: int | None) -> tuple[FloatArray, tuple[str, str]]:
    pca = PCA(2, svd_solver="full")
    with np.errstate(invalid="ignore"):  # vectors that are equal have no variance
        places = pca.fit_transform(vectors)
    shares = np.nan_to_num(pca.explained_variance_ratio_)
    first, second = (f"{share:.0%} of the variance" for share in shares)
    return places, (f"first component, {first}", f"second component, {second}")


def _by_umap(vectors: FloatArray, seed: int | None) -> tuple[FloatArray, tuple[str, str]]:
    try:
        umap = import_module("umap")
    except ImportError as error:
        raise ImportError(
            'method="umap" needs umap-learn, which is not installed. Type '
            'pip install "skbert[umap]", or use method="pca".'
        ) from error
    n_jobs = -1 if seed is None else 1  # umap-learn uses one with a seed, and warns of more
    reducer = umap.UMAP(n_components=2, metric="cosine", random_state=seed, n_jobs=n_jobs)
    return reducer.fit_transform(vectors), ("UMAP, first dimension", "UMAP, second dimension")


METHODS = {"pca": _by_pca, "umap": _by_umap}
