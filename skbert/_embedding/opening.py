"""The encoder that a transformer reads, and the vectors of texts, from a cache where there is one.

Depends on ``_core``, the checked texts and the base of all estimators.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from sklearn.decomposition import PCA
from sklearn.frozen import FrozenEstimator

from skbert._arrays import Array, IntArray
from skbert._core.attention.pooling import POOLER, LayerJoin, parts_of
from skbert._core.checkpoints.find import find
from skbert._core.checkpoints.vet import vet
from skbert._core.families.record import Family
from skbert._core.models.int8 import check_int8
from skbert._core.models.network import Network, has_pooler, inference_network, is_as_opened
from skbert._core.models.opening import copy_encoder, drop_pooler, open_network
from skbert._core.runtime.device import Precision, pick_device, seeded
from skbert._core.text.tokens import LongText
from skbert._embedding.task import HEAD, Features
from skbert._estimator.bar import ProgressBar
from skbert._estimator.base import TextEstimator, predict_rows
from skbert._estimator.cache import cache_folder, fingerprint, open_cache
from skbert._estimator.checks import resolve_max_length
from skbert._estimator.fitted import Fitted
from skbert._validation.texts import Texts
from skbert.exceptions import InputError, ModelError

__all__ = ["configure", "open_features", "pca_of", "vectors_of", "width"]


def pca_of(vectors: Array, n_components: int) -> dict[str, Array]:
    """Return the fitted attributes that reduce vectors to their principal components."""
    most = max(min(len(vectors) - 1, vectors.shape[1]), 0)
    if n_components > most:
        raise InputError(
            f"n_components={n_components} is more than {most}, the most that X allows: it has "
            f"n_samples = {len(vectors)} different texts, with vectors of {vectors.shape[1]} "
            "numbers. Use fewer, or None."
        )
    with np.errstate(invalid="ignore"):
        pca = PCA(n_components, svd_solver="covariance_eigh").fit(vectors.astype(np.float64))
    ratio = np.nan_to_num(pca.explained_variance_ratio_)  # of equal vectors there is no variance
    return {
        "components_": pca.components_,
        "mean_": pca.mean_,
        "explained_variance_ratio_": ratio,
    }


def _resolve_layers(layers: int | Sequence[int] | None, depth: int) -> tuple[int, ...] | None:
    """Return the hidden states, from 0 to ``depth``, that the parameter ``layers`` names."""
    if layers is None:
        return None
    array = np.asarray(layers)
    is_valid = array.dtype.kind in "iu" and array.ndim <= 1 and array.size > 0
    if not is_valid or array.min() < -depth - 1 or array.max() > depth:
        raise InputError(
            f"layers={layers!r} does not name hidden states of this model: give one whole number "
            f"or several, from 0, the embeddings, to {depth}, the last layer, or from -1 for the "
            f"last to {-depth - 1}. Type layers=[-1, -2] for the last two."
        )
    positions = tuple(int(layer) % (depth + 1) for layer in np.atleast_1d(array))
    if len(set(positions)) < len(positions):
        raise InputError(
            f"layers={layers!r} names a layer twice; of {depth} layers, {depth} and -1 are the "
            "same. Name each once."
        )
    return positions


class FeatureParameters(Protocol):
    """The parameters of a transformer that say what to read, and how."""

    model: Any
    pooling: str
    layers: int | Sequence[int] | None
    layer_join: LayerJoin
    long_text: LongText
    max_length: int | None
    precision: str
    device: str


class _Source(NamedTuple):
    """The encoder that the parameter ``model`` names; its weights are not opened yet."""

    pooling: str  # declared in its files, or usual in its family
    depth: int  # layers
    max_length: int
    has_pooler: bool
    open: Callable[[str, torch.dtype], Network]  # from pooling and type of the weights
    check_row_vector: Callable[[], None] = lambda: None  # refuses more than a pooling


def _find_source(model: Any, *, pairs: bool) -> _Source:
    """Return the checkpoint, or the fitted estimator, that ``model`` names."""
    model = model.estimator if isinstance(model, FrozenEstimator) else model
    if isinstance(model, TextEstimator):
        return _fitted_source(model)
    checkpoint = vet(find(model))
    names = [name for file in checkpoint.weights for name in file.tensors]
    pooled = any(map(checkpoint.family.is_of_pooler, names))

    def open_(pooling: str, dtype: torch.dtype) -> Network:
        with seeded(0, pick_device("cpu")):  # a missing pooler is drawn at random, then dropped
            network = open_network(checkpoint, HEAD, pooling=_plain(pooling), dtype=dtype)
        if not pooled:
            drop_pooler(network)
        return network

    depth = checkpoint.config["num_hidden_layers"]
    # A sentence encoder declares a pooling for texts, not for pairs.
    declared = checkpoint.head_pooling or (None if pairs else checkpoint.pooling)
    declared = declared or _usual_pooling(checkpoint.family, checkpoint.config)
    source = _Source(declared, depth, checkpoint.max_length, pooled, open_)
    return source if pairs else source._replace(check_row_vector=checkpoint.check_row_vector)


def _fitted_source(estimator: TextEstimator) -> _Source:
    """Return the encoder of a fitted estimator; opening it makes a copy."""
    if not estimator.__sklearn_is_fitted__():
        raise InputError(
            f"model is a {type(estimator).__name__} that is not fitted. Call its fit first, or "
            "give the name or folder of a model. In the grid of a search, where estimators are "
            "cloned, wrap a fitted one: FrozenEstimator(estimator)."
        )
    network = estimator._fitted.network

    def open_(pooling: str, dtype: torch.dtype) -> Network:
        return copy_encoder(network, HEAD, _plain(pooling), dtype)

    depth = network.model.config.num_hidden_layers
    return _Source(network.pooling, depth, network.max_length, has_pooler(network), open_)


def _usual_pooling(family: Family, config: Mapping[str, Any]) -> str:
    """The pooling of an encoder whose files name none: that of its config.json or its family."""
    return family.head_class("embedding").own_pooling(config)


def _plain(pooling: str) -> str:
    """The pooling to note in the model's configuration, where every estimator reads it."""
    return parts_of(pooling)[0]


def open_features(params: FeatureParameters, *, pairs: bool) -> tuple[Network, Features]:
    """Return the encoder that the parameters name, and the task that reads it."""
    precision = Precision(params.precision, pick_device(params.device))
    source = _find_source(params.model, pairs=pairs)
    layers = _resolve_layers(params.layers, source.depth)
    longest = resolve_max_length(source.max_length, params.max_length)
    pooling = _chosen_pooling(params, source)
    task = Features(longest, params.long_text, pooling, layers, params.layer_join)
    network = source.open(pooling, precision.weight_dtype)
    network.to(precision.device, precision.weight_dtype)
    if precision.is_int8:
        check_int8(inference_network(network))
    return configure(network, task), task


def _chosen_pooling(params: FeatureParameters, source: _Source) -> str:
    """Return the pooling for this encoder, with "auto" resolved."""
    pooling: str = params.pooling
    if pooling == "auto":
        source.check_row_vector()
        pooling = source.pooling
    if pooling != POOLER or (source.has_pooler and params.layers is None):
        return pooling
    if params.pooling == "auto":
        return "mean"
    if params.layers is None:
        raise ModelError("pooling='pooler', but this model has no pooler. Use pooling='mean'.")
    raise InputError(
        f"pooling='pooler' reads the last layer only, but layers={params.layers!r} chooses "
        "others. Use pooling='mean', or layers=None."
    )


def configure(network: Network, task: Features) -> Network:
    """Return the network, set to read what the task needs."""
    network.pooling = task.pooling
    network.layers, network.layer_join = task.layers, task.layer_join
    return network


def width(network: Network, task: Features) -> int:
    """Return how many numbers a vector has."""
    size: int = network.model.config.hidden_size
    side_by_side = len(task.layers) if task.layers and task.layer_join == "concat" else 1
    return size * side_by_side * len(parts_of(task.pooling))


def vectors_of(
    memory: Any, precision: Precision, fitted: Fitted, rows: Texts, bar: ProgressBar
) -> Array:
    """Return the vectors of different texts, from the cache in ``memory`` if there is one."""
    network, task = fitted.network, fitted.task
    folder = cache_folder(memory)
    if folder is None or not is_as_opened(network):  # a changed model cannot be hashed
        return predict_rows(task, rows, network, precision, bar.on_rows)
    settings = {**asdict(task), "network": fingerprint(network)}
    cache = open_cache(folder, settings, width(network, task), precision)

    def compute(places: IntArray) -> Array:
        return predict_rows(task, rows.take(places), network, precision, bar.on_rows)

    return cache.vectors(_keys(rows), compute, bar.skip)


def _keys(texts: Texts) -> list[str]:
    """Return a hash of each text, of each pair, or of the fields of each row."""
    names = [each.name for each in texts.fields]
    rows: Any = zip(*texts.columns, strict=True) if texts.n_columns > 1 else texts.first
    if names:
        rows = ([*names, *row] for row in rows)
    return [hashlib.sha256(json.dumps(row).encode()).hexdigest() for row in rows]
