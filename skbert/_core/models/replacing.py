"""Another model in the place of a network's own, as a caller gives it.

Depends on torch, the network and how it is opened.
"""

from __future__ import annotations

import copy
from typing import Any

import torch

from skbert._core.attention.pooling import parts_of
from skbert._core.models.network import Network
from skbert._core.models.opening import PreTrainedModel, has_other_class, network_of
from skbert.exceptions import InputTypeError

__all__ = ["with_model"]


def with_model(network: Network, model: object) -> Network:
    """A network with another model in the place of its own, or with its own in peft's wrapper."""
    unwrapped: Any = getattr(model, "get_base_model", lambda: model)()
    if _outline(unwrapped) != _outline(network.model):
        raise InputTypeError(
            f"model_ can be replaced by {_outline(network.model)}, or by such a model in peft's"
            f" wrapper, not by {_outline(unwrapped)}. To use another model, pass its folder as"
            " model= and call fit."
        )
    tokenizer, (head, pooling) = copy.deepcopy(network.tokenizer), (network.head, network.pooling)
    said = getattr(unwrapped.config, "skbert_pooling", pooling)
    if said != parts_of(pooling)[0] or has_other_class(unwrapped, head, pooling):
        unwrapped = _beside(unwrapped)
    twin = network_of(unwrapped.eval(), tokenizer, head, pooling)
    tokenizer.model_max_length = twin.max_length
    _check_inputs(network, twin)
    _check_vectors(network, twin)
    twin.layers, twin.layer_join = network.layers, network.layer_join
    twin.anatomy, twin.is_handed_out = network.anatomy, True
    return twin


def _outline(model: object) -> str:
    """What two models have in common that can take each other's place."""
    name = f"a {type(model).__name__}"
    if not isinstance(model, PreTrainedModel):
        return name
    return f"{name} with {model.config.vocab_size} tokens and {model.config.num_labels} outputs"


def _beside(model: PreTrainedModel) -> Any:
    """A model over the same modules and weights, whose encoder can be pooled in another way."""
    twin, encoder = _shallow(model), model.base_model
    twin.config = copy.deepcopy(model.config)
    if encoder is not model:
        (name,) = (name for name, module in model.named_children() if module is encoder)
        twin._modules[name] = _shallow(encoder)
        twin._modules[name].config = twin.config
    return twin


def _shallow(module: torch.nn.Module) -> Any:
    """The same module as another object, with children that can be exchanged."""
    twin = copy.copy(module)
    twin._modules = dict(module._modules)
    return twin


def _check_vectors(network: Network, other: Network) -> None:
    """Refuse vectors of another size without a head, and layers that the new model has not."""
    sizes = [each.model.config.hidden_size for each in (network, other)]
    depths = [len(each.family.layers(each.model)) for each in (network, other)]
    is_read_alike = network.head.has_output_layer or sizes[0] == sizes[1]
    if not is_read_alike or (network.layers and depths[0] != depths[1]):
        raise InputTypeError(
            f"The new model_ has {depths[1]} layers, whose states have {sizes[1]} numbers, and not"
            f" {depths[0]} and {sizes[0]}, as what was fitted reads. To use another model, pass"
            " its folder as model= and call fit."
        )


def _check_inputs(network: Network, other: Network) -> None:
    """Refuse another output layer that does not read the same features beside a vector."""
    needed, given = (getattr(each.output_layer, "in_features", 0) for each in (network, other))
    if network.head.n_features and needed and given and needed != given:
        raise InputTypeError(
            f"The output layer of the new model_ reads {given} numbers of a row, but {needed} are "
            "needed: its vector, and what feature_columns adds. Change a copy of the model that "
            "is there: copy.deepcopy(estimator.model_)."
        )
