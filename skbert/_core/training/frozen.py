"""What frozen layers give for each row, computed once for all passes of a fit.

Depends on inference and on what `optim` freezes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from skbert._core.infer import infer
from skbert._core.items import Items
from skbert._core.models.network import Network, can_pack, has_states, runs_layers, twin_of
from skbert._core.models.vectors import encoder_states
from skbert._core.runtime.device import Precision
from skbert._core.text.tokens import Ragged
from skbert._core.training.optim import trainable_parameters

__all__ = ["ComputeStates", "compute_states", "with_states"]

ComputeStates = Callable[[Network, Items, Precision], Ragged]

_MOST_BYTES = 1_000_000_000  # of what is kept; beyond that every pass runs all layers


def compute_states(network: Network, rows: Items, precision: Precision) -> Ragged:
    """What the encoder gives for rows, items of one row each, that is read of it."""
    return infer(network, rows, precision, forward=encoder_states)


def with_states(
    network: Network,
    parts: Sequence[tuple[Items, Precision]],
    layers: int | str,
    compute: ComputeStates = compute_states,
) -> list[Items]:
    """The items, with what ``layers``, as `freeze` has it, leaves the same in every pass.

    It is computed in the precision that comes with them: what the head reads, if nothing but the
    head is trained, else the hidden states of tokens after the frozen layers. Nothing is kept
    where somebody changed the modules.
    """
    reader = _reader(network, layers)
    if reader is None or sum(_n_bytes(reader, *part) for part in parts) > _MOST_BYTES:
        return [items for items, _ in parts]
    after = _n_still(network, layers) if reader is not network else None
    return [
        replace(items, states=compute(reader, items.by_row(), precision), states_after=after)
        for items, precision in parts
    ]


def _reader(network: Network, layers: int | str) -> Network | None:
    """What gives the states: the network, if its encoder is frozen, or its frozen layers.

    None if there are none that the layers above can be run without.
    """
    if not (layers and can_pack(network)):
        return None
    if _is_frozen(network, layers) and has_states(network):
        return network
    if not runs_layers(network):
        return None
    reader = twin_of(network)
    reader.head = replace(network.head, reads="tokens")
    reader.layers = (_n_still(network, layers),)
    return reader


def _n_bytes(reader: Network, items: Items, precision: Precision) -> int:
    """Bytes of what a network gives for all rows, or tokens."""
    tokens = items.tokens
    n_vectors = len(tokens.ids.values) if reader.head.reads == "tokens" else len(tokens)
    n_bytes: int = reader.model.config.hidden_size * precision.weight_dtype.itemsize
    return n_vectors * n_bytes


def _n_still(network: Network, layers: int | str) -> int:
    """How many layers from the bottom give the same in every pass."""
    n_layers = len(network.family.layers(network.model))
    n_frozen = n_layers if layers == "all" else int(layers)
    # A norm after the last of all layers is trained with what lies above.
    return n_frozen if network.family.prenorm is None else min(n_frozen, n_layers - 1)


def _is_frozen(network: Network, layers: int | str) -> bool:
    """Whether `freeze` leaves nothing but the head to train."""
    prefixes = network.head_class.prefixes
    trained = {*map(id, trainable_parameters(network.model, prefixes, layers))}
    return not any(
        id(weight) in trained and not name.startswith(prefixes)
        for name, weight in network.model.named_parameters()
    )
