"""The processes that train one model together, as torchrun starts them.

Each computes its share of every step, gradients are added up, and all take the same step. Depends
on torch only.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import distributed

from skbert._arrays import IntArray

__all__ = ["ProcessGroup", "join", "local_rank"]


class ProcessGroup(NamedTuple):
    """A process among those that train together."""

    rank: int = 0
    size: int = 1

    def share(self, chosen: IntArray) -> tuple[IntArray, float]:
        """Its part of the chosen items, and the factor of their loss.

        Where items are fewer than processes, several compute the same one.
        """
        first = self.rank % len(chosen)
        return chosen[first :: self.size], 1.0 / len(range(first, self.size, len(chosen)))

    def add_up(self, tensors: Sequence[torch.Tensor]) -> None:
        """Replace each tensor by its sum over all processes."""
        if self.size > 1:
            _together(distributed.all_reduce, tensors)

    def agree(self, tensors: Sequence[torch.Tensor]) -> None:
        """Replace each tensor by what the first process has."""
        if self.size > 1:
            _together(partial(distributed.broadcast, src=0), tensors)

    def agree_on(self, number: int) -> int:
        """The first process's number."""
        if self.size == 1:
            return number
        whole = torch.tensor([number], device="cpu")
        self.agree([whole])
        return int(whole)


def join() -> ProcessGroup:
    """The world of this process: alone, unless torchrun started it beside others."""
    if not _is_launched():
        return ProcessGroup()
    if not distributed.is_initialized():
        distributed.init_process_group()  # gloo for CPUs, and NCCL where GPUs are
        atexit.register(distributed.destroy_process_group)
    return ProcessGroup(distributed.get_rank(), distributed.get_world_size())


def local_rank() -> int:
    """Place among torchrun's processes on this machine; 0 for any other process."""
    return int(os.environ["LOCAL_RANK"]) if _is_launched() else 0


def _is_launched() -> bool:
    """Whether torchrun started this process; its workers are on their own."""
    launched = distributed.is_available() and distributed.is_torchelastic_launched()
    return launched and multiprocessing.current_process().name == "MainProcess"


def _together(exchange: Callable[[torch.Tensor], object], tensors: Sequence[torch.Tensor]) -> None:
    """Exchange all tensors in one message, in place."""
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    exchange(flat)
    parts = torch.split(flat, [tensor.numel() for tensor in tensors])
    for tensor, part in zip(tensors, parts, strict=True):
        tensor.copy_(part.view_as(tensor))
