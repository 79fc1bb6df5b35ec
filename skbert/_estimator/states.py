"""What frozen layers give for all rows of a fit or a prediction, in the folder of ``memory``.

Rows are kept together: what is kept of them was computed from the same batches as what would be
computed now, so that no result depends on what ran before. Depends on ``_core`` and on the cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from skbert import __version__
from skbert._arrays import hash_of
from skbert._core.items import Items
from skbert._core.models.network import Network
from skbert._core.runtime.device import Precision
from skbert._core.text.tokens import Ragged
from skbert._core.training.frozen import compute_states
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


@dataclass
class LastStates:
    """Computes states as `compute_states` does, and remembers those that it computed last."""

    known: tuple[str, Ragged] | None = None

    def __call__(self, network: Network, rows: Items, precision: Precision) -> Ragged:
        """What a network, always the same, gives for rows."""
        if network.is_handed_out:  # and may have other weights by now
            return compute_states(network, rows, precision)
        key = hash_of(rows.arrays_read)
        if self.known is None or self.known[0] != key:
            self.known = key, compute_states(network, rows, precision)
        return self.known[1]
