"""What a caller may change without an effect on a network, and networks that nobody else holds.

Depends on the network.
"""

from __future__ import annotations

import copy
from itertools import chain
from typing import Any

from skbert._core.models.network import Network, can_pack, check_outputs

__all__ = ["hand_out_tokenizer", "share_weights", "take_back"]


def share_weights(network: Network) -> Network:
    """Another network over the same weights: in eval mode, not compiled, reading the last layer.

    It can get hooks and new modules without an effect on the first; only weights are shared.
    """
    model = network.model
    shared = {id(tensor): tensor for tensor in chain(model.parameters(), model.buffers())}
    twin_model = copy.deepcopy(model, shared).eval()
    twin = Network(twin_model, network.tokenizer, network.head, network.pooling, network.anatomy)
    twin.layer_runner.is_enabled = False
    twin.is_packed = can_pack(twin)
    return twin


def hand_out_tokenizer(network: Network) -> Any:
    """A copy of the tokenizer, always the same one."""
    if network.tokenizer_copy is None:
        network.tokenizer_copy = copy.deepcopy(network.tokenizer)
    return network.tokenizer_copy


def take_back(network: Network) -> None:
    """Let a copy of a model that was handed out be trained, which nobody else holds.

    It is as any other from now on if its modules are those that it was opened with.
    """
    check_outputs(network)
    network.is_packed = can_pack(network)
    network.is_handed_out = not network.is_packed
    for weight in network.model.parameters():  # none may be a view of another's memory
        weight.data = weight.data.contiguous()
