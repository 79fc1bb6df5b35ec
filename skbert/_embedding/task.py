"""What vectors are to the engine: the tasks that give them, and the encoder they are read off.

Depends on ``_core``, the checked texts and the base of all estimators; knows none by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.decomposition import PCA
from sklearn.frozen import FrozenEstimator

from skbert._arrays import Array, IntArray
from skbert._core.attention.pooling import POOLER, parts_of
from skbert._core.checkpoints.find import find
from skbert._core.checkpoints.vet import vet
from skbert._core.models.network import Network, can_pack, has_pooler
from skbert._core.models.opening import copy_encoder, drop_pooler, open_network
from skbert._core.runtime.device import Precision, pick_device, seeded
from skbert._core.task import Batch, Head, Items
from skbert._core.text.tokens import EncodedTexts, LongText, Ragged, TextTokenizer, encode_texts
from skbert._core.text.windows import mean_by_place, mean_by_sample
from skbert._embedding.cache import EmbeddingCache, cache_folder, fingerprint
from skbert._estimator.base import TextEstimator, longest_row, results
from skbert._validation.texts import Texts
from skbert.exceptions import InputError, ModelError

__all__ = [
    "Features", "TokenFeatures", "compute", "distinct", "open_features", "pca_of", "reading",
    "vectors_of", "width",
]  # fmt: skip


_HEAD = Head("embedding", 0)


@dataclass(frozen=True)
class Features:
    """One vector per sample, nothing to learn."""

    max_length: int
    long_text: LongText = "truncate"
    pooling: str = "mean"
    layers: tuple[int, ...] | None = None  # hidden states, 0 for the embeddings; None: the last
    layer_join: str = "mean"

    def encode(self, X: Texts, y: None, tokenizer: TextTokenizer) -> Items:
        """One item per text, or per window of a long one."""
        rows = encode_texts(tokenizer, X.first, X.second, self.max_length, self.long_text)
        return Items.one_row_each(rows, y)

    def head(self) -> Head:
        """None on top of the encoder."""
        return _HEAD

    def loss(self, logits: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Refuse: there is no target."""
        del logits, batch
        raise TypeError("Features are read off an encoder as it is: there is nothing to learn.")

    def decode(self, outputs: Ragged, items: Items) -> Array:
        """Vectors ``(n_samples, width)``, those of a sample's windows averaged."""
        vectors = outputs.values
        if len(vectors) == items.samples[-1] + 1:
            return vectors
        return mean_by_sample(vectors, items.samples)


@dataclass(frozen=True)
class TokenFeatures(Features):
    """One vector per word piece."""

    def encode(self, X: Texts, y: None, tokenizer: TextTokenizer) -> Items:
        """The same items, with the number of each token's word piece in its sample."""
        encoded = encode_texts(tokenizer, X.first, X.second, self.max_length, self.long_text)
        places = _piece_numbers(encoded, tokenizer, pairs=X.second is not None)
        return replace(Items.one_row_each(encoded, y), places=places)

    def head(self) -> Head:
        """None on top of the encoder, whose tokens are read."""
        return replace(_HEAD, reads="tokens")

    def decode(self, outputs: Ragged, items: Items) -> Array:
        """One ``(n_pieces, width)`` array per sample, in a 1-D array.

        A piece that several windows hold gets the mean of what it is in each.
        """
        assert items.places is not None
        samples = np.repeat(items.samples, items.sizes)
        pieces, first = mean_by_place(outputs.values, samples, items.places.values)
        n_pieces = np.bincount(samples[first], minlength=items.samples[-1] + 1)
        return Ragged.of(pieces, n_pieces).arrays()


def _piece_numbers(encoded: EncodedTexts, tokenizer: TextTokenizer, *, pairs: bool) -> Ragged:
    """Which word piece of its sample each token is, counted through both texts; -1 for none."""
    table, windows = encoded.tokens, encoded.windows
    before, after = len(tokenizer.prefix), len(tokenizer.suffix)
    if pairs:
        starts = table.second.astype(np.int64)
        kept = starts - before - len(tokenizer.middle)
    else:
        starts = np.full(len(table), before)
        kept = np.zeros(len(table), np.int64)
    row = np.repeat(np.arange(len(table)), table.lengths)
    at = table.ids.numbers
    first = kept + windows.begins - starts
    number = np.where(at < starts[row], at - before, first[row] + at)
    between = (at >= before + kept[row]) & (at < starts[row])
    special = (at < before) | between | (at >= table.lengths[row] - after)
    return Ragged(np.where(special, -1, number), table.ids.starts)


def pca_of(vectors: Array, n_components: int) -> dict[str, Array]:
    """Attributes of a transformer whose vectors are reduced to their principal components."""
    most = max(min(len(vectors) - 1, vectors.shape[1]), 0)
    if n_components > most:
        raise InputError(
            f"n_components={n_components} is more than the different texts of X, n_samples = "
            f"{len(vectors)}, and their vectors of {vectors.shape[1]} numbers allow: {most}. Use "
            "fewer, or None."
        )
    pca = PCA(n_components, svd_solver="covariance_eigh").fit(vectors.astype(np.float64))
    names = ("components_", "mean_", "explained_variance_ratio_")
    return {name: getattr(pca, name) for name in names}


def _resolve_layers(wanted: int | Sequence[int] | None, depth: int) -> tuple[int, ...] | None:
    """Hidden states from 0 to ``depth``, for what the parameter ``layers`` says."""
    if wanted is None:
        return None
    listed = np.asarray(wanted)
    good = listed.dtype.kind in "iu" and listed.ndim <= 1 and listed.size > 0
    if not good or listed.min() < -depth - 1 or listed.max() > depth:
        raise InputError(
            f"layers={wanted!r} does not name hidden states of this model: give one whole number "
            f"or several, from 0, the embeddings, to {depth}, the last layer, or from -1 for the "
            f"last to {-depth - 1}. Type layers=[-1, -2] for the last two."
        )
    found = tuple(int(layer) % (depth + 1) for layer in np.atleast_1d(listed))
    if len(set(found)) < len(found):
        raise InputError(
            f"layers={wanted!r} names a layer twice; of {depth} layers, {depth} and -1 are the "
            "same. Name each once."
        )
    return found


class _Source(NamedTuple):
    """What the parameter ``model`` stands for; its weights are not opened yet."""

    pooling: str | None  # what it declares
    depth: int  # layers
    max_length: int
    has_pooler: bool
    open: Callable[[str, torch.dtype], Network]  # from pooling and type of the weights


def _find_source(model: Any, *, pairs: bool) -> _Source:
    """Find the checkpoint, or the fitted estimator, that is to be read."""
    model = model.estimator if isinstance(model, FrozenEstimator) else model
    if isinstance(model, TextEstimator):
        return _fitted_source(model)
    checkpoint = vet(find(model))
    declared = None if pairs else checkpoint.pooling  # what sentence encoders say is for texts

    names = [name for file in checkpoint.weights for name in file.tensors]
    pooled = any(map(checkpoint.family.is_of_pooler, names))

    def open_(pooling: str, dtype: torch.dtype) -> Network:
        with seeded(0, pick_device("cpu")):  # a pooler that is not there is drawn, and dropped
            network = open_network(checkpoint, _HEAD, pooling=_plain(pooling), dtype=dtype)
        if not pooled:
            drop_pooler(network)
        return network

    depth = checkpoint.config["num_hidden_layers"]
    declared = checkpoint.head_pooling or declared
    return _Source(declared, depth, checkpoint.max_length, pooled, open_)


def _fitted_source(estimator: TextEstimator) -> _Source:
    """The encoder of a fitted estimator; opened, it is a copy."""
    if not estimator.__sklearn_is_fitted__():
        raise InputError(
            f"model is a {type(estimator).__name__} that is not fitted. Call its fit first, or "
            "give the name or folder of a model. In the grid of a search, where estimators are "
            "cloned, wrap a fitted one: FrozenEstimator(estimator)."
        )
    network = estimator._network

    def open_(pooling: str, dtype: torch.dtype) -> Network:
        return copy_encoder(network, _HEAD, _plain(pooling), dtype)

    declared = network.pooling if network.head.reads == "rows" else None
    depth = network.model.config.num_hidden_layers
    return _Source(declared, depth, network.max_length, has_pooler(network), open_)


def _plain(pooling: str) -> str:
    """The pooling to note in the model's configuration, where every estimator reads it."""
    return parts_of(pooling)[0]


def open_features(estimator: Any, *, pairs: bool) -> tuple[Network, Features]:
    """The encoder that the estimator's parameters name, and what is read off it."""
    precision = Precision(estimator.precision, pick_device(estimator.device))
    source = _find_source(estimator.model, pairs=pairs)
    layers = _resolve_layers(estimator.layers, source.depth)
    room = longest_row(source.max_length, estimator.max_length)
    pooling = _chosen_pooling(estimator, source)
    task = Features(room, estimator.long_text, pooling, layers, estimator.layer_join)
    network = source.open(pooling, precision.weights)
    network.to(precision.device, precision.weights)
    return reading(network, task), task


def _chosen_pooling(estimator: Any, source: _Source) -> str:
    """What ``pooling`` and ``layers`` come to for this encoder."""
    pooling: str = estimator.pooling
    if pooling == "auto":
        pooling = source.pooling or POOLER
    if pooling != POOLER or (source.has_pooler and estimator.layers is None):
        return pooling
    if estimator.pooling == "auto":
        return "mean"
    if estimator.layers is None:
        raise ModelError("pooling='pooler', but this model has no pooler. Use pooling='mean'.")
    raise InputError(
        f"pooling='pooler' reads the last layer only, and layers={estimator.layers!r} chooses "
        "by itself. Use pooling='mean', or layers=None."
    )


def reading(network: Network, task: Features) -> Network:
    """The network, set to read what the task says."""
    network.pooling = task.pooling
    network.layers, network.layer_join = task.layers, task.layer_join
    return network


def width(network: Network, task: Features) -> int:
    """Numbers in one vector."""
    size: int = network.model.config.hidden_size
    side_by_side = len(task.layers) if task.layers and task.layer_join == "concat" else 1
    return size * side_by_side * len(parts_of(task.pooling))


def distinct(texts: Texts) -> tuple[Texts, IntArray]:
    """The different rows in the order of their first occurrence, and which one each row is."""
    places: dict[Any, int] = {}
    rows = texts.first if texts.second is None else zip(texts.first, texts.second, strict=True)
    owner = np.array([places.setdefault(row, len(places)) for row in rows])
    return texts.take(np.unique(owner, return_index=True)[1]), owner


def vectors_of(estimator: Any, network: Network, task: Features, rows: Texts) -> Array:
    """Vectors of different texts, from the cache where there is one."""
    folder = cache_folder(estimator.memory)
    if folder is None or not can_pack(network):  # what a changed model does has no hash
        return compute(estimator, network, task, rows)
    precision = _placed(estimator, network)
    known = vars(estimator).get("_hash", (None, ""))
    if known[0] != network.dtype or network.is_handed_out:
        known = estimator._hash = (network.dtype, fingerprint(network))
    settings = {
        **asdict(task), "network": known[1], "products": str(precision.products),
        "device": precision.device.type,
    }  # fmt: skip
    dtype = np.dtype(str(precision.weights).removeprefix("torch."))
    cache = EmbeddingCache(folder, settings, width(network, task), dtype)
    return cache.vectors(rows, lambda part: compute(estimator, network, task, part))


def compute(estimator: Any, network: Network, task: Features, rows: Texts) -> Array:
    """What the task makes of the encoder's outputs."""
    precision = _placed(estimator, network)
    return results(task, rows, network, precision)


def _placed(estimator: Any, network: Network) -> Precision:
    """Have the network where it is to compute, and say how exactly."""
    precision = Precision(estimator.precision, pick_device(estimator.device))
    network.to(precision.device, precision.weights)
    return precision
