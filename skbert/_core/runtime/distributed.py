"""The processes that train one model together, as torchrun starts them.

Each process computes its share of every step, gradients are summed over all of them, and all take
the same step. Depends on torch only.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import NamedTuple

import torch
from torch import distributed

from skbert._arrays import IntArray
from skbert.exceptions import TrainingError

__all__ = ["ProcessGroup", "local_rank", "process_group"]


TIMEOUT = timedelta(minutes=10)  # that a process waits for others at most, if nobody set another


class ProcessGroup(NamedTuple):
    """The processes that train one model together, and which of them this one is."""

    rank: int = 0
    size: int = 1

    def share(self, item_indices: IntArray) -> tuple[IntArray, float]:
        """The items that this process computes of those of a step, and the factor of their loss.

        Where items are fewer than processes, several processes compute the same item.
        """
        first = self.rank % len(item_indices)
        return item_indices[first :: self.size], 1.0 / len(
            range(first, self.size, len(item_indices))
        )

    def all_reduce(self, tensors: Sequence[torch.Tensor]) -> None:
        """Replace each tensor by its sum over all processes."""
        if self.size > 1:
            with _waiting(self):
                _in_one_message(distributed.all_reduce, tensors)

    def begin_all_reduce(self, tensor: torch.Tensor) -> Callable[[], None]:
        """Begin to replace a tensor by its sum over all processes; wait by what is returned."""
        with _waiting(self):
            work = distributed.all_reduce(tensor, async_op=True)

        def wait() -> None:
            with _waiting(self):
                work.wait()

        return wait

    def broadcast(self, tensors: Sequence[torch.Tensor]) -> None:
        """Replace each tensor by that of the first process."""
        if self.size > 1:
            with _waiting(self):
                _in_one_message(partial(distributed.broadcast, src=0), tensors)

    def gather(self, row: torch.Tensor) -> torch.Tensor:
        """The rows of all processes, ``(n_processes, size)``; each gives one of the same size."""
        rows = row.new_empty(self.size, len(row))
        if self.size == 1:
            return row[None]
        with _waiting(self):
            distributed.all_gather(list(rows), row)
        return rows

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in any process."""
        flags = torch.tensor([int(flag)], device="cpu")
        self.all_reduce([flags])
        return bool(flags)

    def broadcast_number(self, number: int) -> int:
        """The first process's number."""
        if self.size == 1:
            return number
        tensor = torch.tensor([number], device="cpu")
        self.broadcast([tensor])
        return int(tensor)


def process_group() -> ProcessGroup:
    """The group of processes that torchrun started; else a group of this process alone."""
    if not _is_launched():
        return ProcessGroup()
    if not distributed.is_initialized():
        _join()
        atexit.register(distributed.destroy_process_group)
    elif distributed.get_backend() == "nccl" and distributed.get_world_size() > 1:
        raise TrainingError(
            "torch.distributed was initialised for NCCL alone, but skbert sends numbers of the "
            "CPU, too. Type init_process_group('cpu:gloo,cuda:nccl')."
        )
    return ProcessGroup(distributed.get_rank(), distributed.get_world_size())


def _join() -> None:
    """Meet the other processes: by gloo for CPUs, and by NCCL where GPUs are.

    torchrun keeps its store when it restarts processes, with the addresses of those that ended.
    On a single machine all know how often it did; on several the store is to be a new one.
    """
    from torch.distributed.distributed_c10d import PrefixStore  # which not every torch has
    from torch.distributed.rendezvous import rendezvous

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    is_single = os.environ.get("LOCAL_WORLD_SIZE") == str(size)
    n_restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") if is_single else "0"
    with _waiting(ProcessGroup(rank, size)):
        store, *_ = next(rendezvous("env://", timeout=TIMEOUT))
        store = PrefixStore(f"skbert {n_restarts}", store)
        distributed.init_process_group(store=store, rank=rank, world_size=size, timeout=TIMEOUT)


def local_rank() -> int:
    """Rank among torchrun's processes on this machine; 0 for any other process."""
    return int(os.environ["LOCAL_RANK"]) if _is_launched() else 0


def _is_launched() -> bool:
    """Whether torchrun started this process itself, not a worker of it."""
    launched = distributed.is_available() and distributed.is_torchelastic_launched()
    return launched and multiprocessing.current_process().name == "MainProcess"


@contextmanager
def _waiting(group: ProcessGroup) -> Iterator[None]:
    """Say what to do where another process does not answer."""
    try:
        yield
    except RuntimeError as error:
        raise TrainingError(
            f"Process {group.rank} of {group.size}, counted from 0, waits in vain for another one,"
            f" which has ended or does not answer ({error!s:.200}). The error of that process says"
            " why. Set checkpoint_dir and start torchrun with --max-restarts=3: the fit then goes"
            " on from its last checkpoint."
        ) from error


def _in_one_message(
    exchange: Callable[[torch.Tensor], object], tensors: Sequence[torch.Tensor]
) -> None:
    """Exchange all tensors at once, in place."""
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    exchange(flat)
    parts = torch.split(flat, [tensor.numel() for tensor in tensors])
    for tensor, part in zip(tensors, parts, strict=True):
        tensor.copy_(part.view_as(tensor))
