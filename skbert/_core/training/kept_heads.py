"""Output layers that were fitted in this process, so that a search fits each once.

A layer is a few numbers, where the features that it was fitted on may be many. Depends on torch
and on what decides a fit of `probe`.
"""

from __future__ import annotations

import torch

from skbert._arrays import hash_of
from skbert._core.items import Items
from skbert._core.runtime.device import Precision
from skbert._core.runtime.forks import ForkSafeLock

__all__ = ["KEPT_HEADS", "key_of"]

_MAX_HEADS, _MAX_NUMBERS = 32, 2**18  # how many are kept, and how large each may be


class KeptHeads:
    """The layers that were fitted last, by all that decided what they became."""

    def __init__(self) -> None:
        self._heads: dict[object, list[torch.Tensor]] = {}  # the oldest first
        self._lock = ForkSafeLock()

    def take(self, key: object, layer: torch.nn.Linear) -> bool:
        """Give a layer the weights that are kept under a key; whether there are any."""
        with self._lock.lock:
            kept = self._heads.get(key)
        if kept is None:
            return False
        with torch.no_grad():
            for weight, value in zip(layer.parameters(), kept, strict=True):
                weight.copy_(value)
        return True

    def keep(self, key: object, layer: torch.nn.Linear) -> None:
        """Keep a copy of the weights of a layer under a key."""
        weights = [weight.detach().cpu().clone() for weight in layer.parameters()]
        if sum(weight.numel() for weight in weights) > _MAX_NUMBERS:
            return
        with self._lock.lock:
            self._heads[key] = weights
            while len(self._heads) > _MAX_HEADS:
                del self._heads[next(iter(self._heads))]

    def forget(self) -> None:
        """Forget all layers."""
        with self._lock.lock:
            self._heads.clear()


def key_of(origin: object, items: Items, precision: Precision, n_label_items: int) -> object:
    """What two fits have in common that end with the same layer; ``origin`` as for `probe`.

    Weights that were drawn are told apart by what torch would draw next.
    """
    return (
        origin, n_label_items, hash_of(items.arrays_learned_from), precision.products,
        precision.weight_dtype, str(precision.device), torch.get_num_threads(),
        torch.get_rng_state().numpy().tobytes(),
    )  # fmt: skip


KEPT_HEADS = KeptHeads()
