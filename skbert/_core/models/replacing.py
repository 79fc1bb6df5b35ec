"""Another model in the place of a network's own, as a caller gives it.

Depends on the network and how it is opened.
"""

from __future__ import annotations

import copy
from typing import Any

from skbert._core.models.network import Network
from skbert._core.models.opening import PreTrainedModel, network_of
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
    tokenizer = copy.deepcopy(network.tokenizer)
    twin = network_of(unwrapped.eval(), tokenizer, network.head, network.pooling)
    tokenizer.model_max_length = twin.max_length
    _check_inputs(network, twin)
    twin.layers, twin.layer_join = network.layers, network.layer_join
    twin.anatomy, twin.is_handed_out = network.anatomy, True
    return twin


def _outline(model: object) -> str:
    """What two models have in common that can take each other's place."""
    name = f"a {type(model).__name__}"
    if not isinstance(model, PreTrainedModel):
        return name
    return f"{name} with {model.config.vocab_size} tokens and {model.config.num_labels} outputs"


def _check_inputs(network: Network, other: Network) -> None:
    """Refuse another output layer that does not read the same features beside a vector."""
    needed, given = (getattr(each.output_layer, "in_features", 0) for each in (network, other))
    if network.head.n_features and needed and given and needed != given:
        raise InputTypeError(
            f"The output layer of the new model_ reads {given} numbers of a row, but {needed} are "
            "needed: its vector, and what feature_columns adds. Change a copy of the model that "
            "is there: copy.deepcopy(estimator.model_)."
        )
