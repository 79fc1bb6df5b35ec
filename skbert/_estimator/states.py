"""What frozen layers give for all rows of a fit or a prediction, in the folder of ``memory``.

Rows are kept together: what is kept of them was computed from the same batches as what would be
computed now, so that no result depends on what ran before. Depends on ``_core`` and on the cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from weakref import ref

import torch

from skbert import __version__
from skbert._arrays import hash_of
from skbert._core.items import Items
from skbert._core.models.network import Network
from skbert._core.runtime.device import Precision
from skbert._core.text.tokens import Ragged
from skbert._core.training.frozen import ComputeStates, compute_states
from skbert._estimator.cache import frozen_fingerprint, open_cache

__all__ = ["KeptStates", "LastStates"]


@dataclass(frozen=True)
class KeptStates:
    """Computes states as `compute_states` does, or reads them from a file in a folder."""

    folder: Path
    freeze: int | str

    def __call__(self, network: Network, rows: Items, precision: Precision) -> Ragged:
        """What a network gives for rows; only what ``freeze`` leaves as it is takes part."""
        lengths = rows.outputs_per_row(network.head)
        shape = int(lengths.sum()), network.model.config.hidden_size
        settings = {
            "network": frozen_fingerprint(network, self.freeze),
            "reads": [network.head.reads, network.layers],
            "rows": hash_of(rows.arrays_read),
            "compiled": network.compiled is not None,
            "threads": torch.get_num_threads(),
            "versions": [__version__, torch.__version__],
        }
        cache = open_cache(self.folder, settings, shape[0] * shape[1], precision)
        states = cache.vectors(
            ["all rows"],
            lambda _: compute_states(network, rows, precision).values.reshape(1, -1),
        )
        return Ragged.of(states.reshape(shape), lengths)


class LastStates:
    """Remembers the states that were computed last; a copy of it knows none."""

    def __init__(self) -> None:
        self._known: tuple[object, Ragged] | None = None

    def __reduce__(self) -> tuple[type[LastStates], tuple[()]]:
        return LastStates, ()

    def __call__(
        self, compute: ComputeStates, network: Network, rows: Items, precision: Precision
    ) -> Ragged:
        """What a network gives for rows, computed unless it was asked for the same before."""
        if network.is_handed_out:  # and may have other weights by now
            return compute(network, rows, precision)
        reads = network.head.reads, network.layers, precision.products, precision.device
        key = ref(network.model), reads, hash_of(rows.arrays_read)
        known = self._known
        if known is None or known[0] != key:
            known = self._known = key, compute(network, rows, precision)
        return known[1]
