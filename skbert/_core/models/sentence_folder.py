"""Writes a model whose head transformers has no class for as a folder of sentence-transformers.

The modules of such a folder are the encoder, a pooling, and the head's layers: what its `encode`
gives are the logits. Depends on torch, safetensors, `opening` and `writing`.
"""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file

from skbert._core.attention.pooling import TOKEN_POOLINGS
from skbert._core.checkpoints.sentences import CHAIN, HEAD, SETTINGS
from skbert._core.items import Head
from skbert._core.models.network import Network, has_own_modules
from skbert._core.models.opening import copy_encoder, drop_pooler
from skbert._core.models.writing import is_as_configured, write_folder
from skbert.exceptions import ModelError

__all__ = ["has_class", "write_sentence_folder"]

_LIBRARY = "sentence_transformers.models"  # also where later versions look modules up
_ACTIVATIONS = (torch.nn.Identity, torch.nn.Tanh, torch.nn.ReLU, torch.nn.GELU, torch.nn.SiLU)


def has_class(network: Network) -> bool:
    """Whether transformers has a class for the head and its pooling."""
    own = network.head_class.own_pooling(vars(network.model.config))
    is_over_rows = network.head.has_output_layer and network.head.reads == "rows"
    return not is_over_rows or network.pooling == own


def write_sentence_folder(network: Network, folder: Path, max_length: int) -> None:
    """Write encoder, pooling and the layers of a head as modules of sentence-transformers.

    Raises
    ------
    ModelError
        If its modules cannot compute what the head does.
    """
    layers = _layers(network)
    encoder = copy_encoder(network, Head("embedding", 0), network.pooling, network.dtype)
    named = {"class": network.head_class.name, "layers": [layer.path for layer in layers]}
    setattr(encoder.model.config, HEAD, named)  # goes into config.json
    if has_own_modules(encoder) and not is_as_configured(encoder.model, encoder.head):
        drop_pooler(encoder)  # which some classes make for a head only
    write_folder(encoder, folder)
    size = layers[0].linear.in_features
    modes = {mode.declared_as: name == network.pooling for name, mode in TOKEN_POOLINGS.items()}
    _write(folder / "1_Pooling/config.json", {"word_embedding_dimension": size, **modes})
    for at, layer in enumerate(layers, 2):
        _write(folder / f"{at}_Dense/config.json", layer.settings())
        save_file(layer.tensors(), folder / f"{at}_Dense/model.safetensors")
    _write(folder / SETTINGS, {"max_seq_length": max_length, "do_lower_case": False})
    kinds = ["Transformer", "Pooling", *["Dense"] * len(layers)]
    chain = [
        {
            "idx": at,
            "name": str(at),
            "path": f"{at}_{kind}" * (at > 0),
            "type": f"{_LIBRARY}.{kind}",
        }
        for at, kind in enumerate(kinds)
    ]
    _write(folder / CHAIN, chain)  # last: nothing opens without it


def _write(path: Path, value: object) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


class _Layer(NamedTuple):
    """A linear layer of a head, and what is applied to its outputs."""

    path: str
    linear: torch.nn.Linear
    activation: type[torch.nn.Module]

    def settings(self) -> dict[str, Any]:
        """The settings of sentence-transformers' module."""
        return {
            "in_features": self.linear.in_features,
            "out_features": self.linear.out_features,
            "bias": self.linear.bias is not None,
            "activation_function": f"{self.activation.__module__}.{self.activation.__name__}",
        }

    def tensors(self) -> dict[str, torch.Tensor]:
        """The weights by their names in that module."""
        return {
            f"linear.{name}": weight.detach().cpu().clone()
            for name, weight in self.linear.named_parameters()
        }


@torch.inference_mode()
def _layers(network: Network) -> list[_Layer]:
    """The linear layers of a head, lowest first; together they give what the head gives.

    Their activation, which families name in many ways, is the one with which that is so.
    """
    head_class, model = network.head_class, network.model.eval()
    steps = (*head_class.steps, head_class.output_layer)
    named = [
        (path, layer)
        for step in steps if isinstance(step, str)
        for path, layer in model.get_submodule(step).named_modules(prefix=step)
        if isinstance(layer, torch.nn.Linear)
    ]  # fmt: skip
    linears = [layer for _, layer in named]
    fit = all(low.out_features == high.in_features for low, high in pairwise(linears))
    if fit and network.pooling in TOKEN_POOLINGS:
        like = linears[0].weight
        drawn = torch.randn(64, like.shape[1], generator=torch.Generator().manual_seed(0))
        vectors = drawn.to(like)
        logits = network.output_layer(head_class.transform(model, vectors))
        for activation in _ACTIVATIONS:
            kinds = [activation] * (len(named) - 1) + [torch.nn.Identity]
            layers = [_Layer(*each, kind) for each, kind in zip(named, kinds, strict=True)]
            if _are_close(_run(layers, vectors), logits):
                return layers
    own = head_class.own_pooling(vars(model.config))
    raise ModelError(
        f"The head reads pooling={network.pooling!r}, for which transformers has no class, and its"
        " layers are none of sentence-transformers. Use save(path) to keep the estimator as it is,"
        f" export(path) to predict without torch, or fit with pooling={own!r}."
    )


def _run(layers: list[_Layer], vectors: torch.Tensor) -> torch.Tensor:
    for layer in layers:
        vectors = layer.activation()(layer.linear(vectors))
    return vectors


def _are_close(found: torch.Tensor, logits: torch.Tensor) -> bool:
    size = float(logits.abs().max())
    return found.shape == logits.shape and bool((found - logits).abs().max() <= 1e-5 * size)
