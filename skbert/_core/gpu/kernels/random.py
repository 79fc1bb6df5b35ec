"""What dropout leaves, computed again from a seed in the backward pass. Depends on Triton."""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["SEEDS", "dropped", "kept", "shifted"]

SEEDS = 1 << 31  # as many different ones a kernel knows


@triton.jit
def shifted(seed, shift):
    """The seed plus the number at an address, if there is one: that of a graph's run."""
    if shift is not None:
        seed += tl.load(shift)
    return seed


@triton.jit
def kept(seed, places, dropout):
    """Whether the numbers at these places are not dropped: a hash of place and seed decides.

    The hash is lowbias32 (Wellons 2018, "Prospecting for hash functions").
    """
    bits = places.to(tl.uint32) ^ seed.to(tl.uint32)
    bits = (bits ^ (bits >> 16)) * 0x7FEB352D
    bits = (bits ^ (bits >> 15)) * 0x846CA68B
    bits = bits ^ (bits >> 16)
    return (bits >> 8).to(tl.float32) * (1.0 / 16777216.0) >= dropout


@triton.jit
def dropped(values, is_kept, dropout):
    """The values after dropout: those kept are larger, so that the mean stays."""
    return tl.where(is_kept, values / (1.0 - dropout), 0.0)
