"""What a frozen encoder gives for each row, computed once for all passes of a fit.

Depends on inference and on what `optim` freezes.
"""

from __future__ import annotations

from dataclasses import replace

from skbert._core.infer import infer
from skbert._core.items import Items
from skbert._core.models.network import Network, can_pack, has_states
from skbert._core.models.vectors import encoder_states
from skbert._core.runtime.device import Precision
from skbert._core.training.optim import trainable_parameters

__all__ = ["with_states"]

_MOST_BYTES = 1_000_000_000  # of what is kept; beyond that every pass runs the encoder


def with_states(network: Network, items: Items, precision: Precision, layers: int | str) -> Items:
    """The items with what the head reads of the encoder, where that cannot change.

    That is so if ``layers`` freezes all of the encoder, and nobody changed its modules. It is then
    computed without dropout.
    """
    n_vectors = len(items.tokens.ids.values if network.head.reads == "tokens" else items.tokens)
    n_bytes = n_vectors * network.model.config.hidden_size * precision.weight_dtype.itemsize
    is_kept = has_states(network) and can_pack(network) and n_bytes <= _MOST_BYTES
    if not (is_kept and _is_frozen(network, layers)):
        return items
    states = infer(network, items.by_row(), precision, forward=encoder_states)
    return replace(items, states=states)


def _is_frozen(network: Network, layers: int | str) -> bool:
    """Whether `freeze` leaves nothing but the head to train."""
    prefixes = network.head_class.prefixes
    trained = {*map(id, trainable_parameters(network.model, prefixes, layers))}
    return not any(
        id(weight) in trained and not name.startswith(prefixes)
        for name, weight in network.model.named_parameters()
    )
