"""torch's modes as they are by default, whatever the caller of skbert has set.

A fit inside ``torch.no_grad()`` needs gradients all the same, and a prediction inside the
caller's autocast must keep its precision. Depends on torch only.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch.overrides import (  # type: ignore[attr-defined]
    _len_torch_function_stack as count_modes,
)
from torch.overrides import _pop_mode as pop_mode
from torch.overrides import _push_mode as push_mode

__all__ = ["default_modes", "single_precision"]

_DEVICES = ("cpu", "cuda", "mps")


@contextmanager
def default_modes(*, inference: bool = False) -> Iterator[None]:
    """Turn gradients on, and inference mode, autocast and device contexts off, inside.

    For ``inference`` that mode is on, which turns gradients off; where it is off they are on.
    """
    casts = [device for device in _DEVICES if torch.is_autocast_enabled(device)]
    modes = []
    while count_modes():
        modes.append(pop_mode())  # type: ignore[no-untyped-call]
    try:
        with torch.inference_mode(inference), ExitStack() as stack:
            for device in casts:
                stack.enter_context(torch.autocast(device, enabled=False))
                torch.clear_autocast_cache()
            yield
    finally:
        for mode in reversed(modes):
            push_mode(mode)  # type: ignore[no-untyped-call]


@contextmanager
def single_precision() -> Iterator[None]:
    """Make new tensors float32 inside, in all threads: for one fit at a time."""
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(dtype)
