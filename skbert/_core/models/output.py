"""The layers of a head: drawn anew, given more inputs or outputs, or scaled.

Depends on torch, the network and the record of its family.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from skbert._arrays import IntArray, is_arange
from skbert._core.attention.pooling import POOLER
from skbert._core.families import family_of
from skbert._core.families.record import HeadClass
from skbert._core.items import Head
from skbert._core.models.network import Network
from skbert.exceptions import ModelError

__all__ = [
    "draw_head_layers",
    "draw_output",
    "grow_output",
    "linear_output",
    "scale_output",
    "widen_output",
]


def draw_output(model: Any, path: str) -> None:
    """Draw new weights for the output layer, if there is one, as the authors of BERT do."""
    if not path:
        return
    layer = model.get_submodule(path)
    torch.nn.init.normal_(layer.weight, std=model.config.initializer_range)
    if layer.bias is not None:
        torch.nn.init.zeros_(layer.bias)


def widen_output(model: torch.nn.Module, head: Head) -> None:
    """Let the output layer read the features of a head beside the vector of a row."""
    if head.n_features:
        path = family_of(model).head_class(head.job).output_layer
        old: Any = model.get_submodule(path)
        wide = torch.nn.Linear(old.in_features + head.n_features, old.out_features)
        model.set_submodule(path, wide)


def draw_head_layers(model: torch.nn.Module, head_class: HeadClass, missing: set[str]) -> None:
    """Draw those layers below the output layer that a checkpoint lacks, as orthogonal matrices.

    They keep the length of what they read, so that a linear model on top of them is as good as one
    without them; the small weights that transformers draws would have to be learned away first.
    """
    family, steps = family_of(model), [step for step in head_class.steps if isinstance(step, str)]
    pooler = f"{model.base_model_prefix}.{family.encoder.pooler}"
    is_trained = family.head_class("embedding").pooling == POOLER  # before there is a head
    if not is_trained and pooler in dict(model.named_modules()):
        steps.append(pooler)
    for step in steps:
        for name, layer in model.get_submodule(step).named_modules():
            path = f"{step}.{name}".removesuffix(".")
            if isinstance(layer, torch.nn.Linear) and f"{path}.weight" in missing:
                with torch.no_grad():
                    drawn = torch.empty(layer.weight.shape, device=layer.weight.device)
                    layer.weight.copy_(torch.nn.init.orthogonal_(drawn))


def grow_output(network: Network, n_outputs: int, output_map: IntArray) -> None:
    """Give the output layer ``n_outputs`` outputs; the present output i becomes ``output_map[i]``.

    The others are drawn as in ``open_network``, from torch's global generator. A layer that has
    the outputs that it needs stays as it is, with all that a caller did to it.
    """
    if n_outputs == network.head.n_outputs and is_arange(output_map, n_outputs):
        return
    old, model, path = linear_output(network), network.model, network.head_class.output_layer
    where: Any = {"device": old.weight.device, "dtype": old.weight.dtype}
    grown = torch.nn.Linear(old.in_features, n_outputs, bias=old.bias is not None, **where)
    model.set_submodule(path, grown)
    draw_output(model, path)
    with torch.no_grad():
        for new, before in zip(grown.parameters(), old.parameters(), strict=True):
            new[output_map] = before
            new.requires_grad_(before.requires_grad)
    network.head = replace(network.head, n_outputs=n_outputs)
    model.num_labels = model.config.num_labels = n_outputs


def scale_output(network: Network, factor: Any, shift: Any = 0.0) -> None:
    """Change the output layer to give ``factor * logits + shift``; both per output or numbers."""
    layer: Any = linear_output(network)  # torch says that there is a bias
    factor, shift = (torch.as_tensor(x).to(layer.weight) for x in (factor, shift))
    with torch.no_grad():
        if layer.bias is None:
            layer.bias = torch.nn.Parameter(layer.weight.new_zeros(layer.out_features))
        layer.weight *= factor.reshape(-1, 1)
        layer.bias.mul_(factor).add_(shift)


def linear_output(network: Network) -> torch.nn.Linear:
    """The output layer, which can be scaled and grown; ModelError for one that was replaced."""
    layer = network.output_layer
    if not isinstance(layer, torch.nn.Linear):
        raise ModelError(
            f"The output layer of model_ was replaced by a {type(layer).__name__}, which can be "
            "neither scaled nor given other outputs. Put a torch.nn.Linear there."
        )
    return layer
