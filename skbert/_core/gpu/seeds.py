"""Seeds as kernels take them. Depends on torch and the kernels."""

from __future__ import annotations

import torch

from skbert._core.gpu.kernels.random import SEEDS
from skbert._core.runtime.autograd import DeviceSeed, Seed

__all__ = ["both_parts"]


def both_parts(seed: Seed) -> tuple[int, torch.Tensor | None]:
    """The number that is known on the host, and what is added to it on the device, if anything."""
    return seed if isinstance(seed, DeviceSeed) else (seed % SEEDS, None)
