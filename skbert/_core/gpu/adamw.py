"""Steps of AdamW over many tensors, and the norm of gradients, each in one pass, on a GPU.

The kernels go through a table of the tensors, which is kept for other steps in which all of them
are where they were. Depends on torch, ``batches`` and the kernels.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from operator import attrgetter

import numpy as np
import torch

from skbert._core.batches import in_one_copy
from skbert._core.gpu.kernels import adamw as kernels
from skbert._core.runtime.autograd import AdamWTensor

__all__ = ["adamw_step", "grad_norm"]

_CHUNK = 4096  # numbers of a tensor that a program computes,
_NUMBERS = 512  # and that it computes together: four, which are 16 bytes, by each thread
_WARPS = 4  # of 32 threads
_ALIGNMENT = 16  # of what is read and written in vectors, in bytes
_MOST_TABLES = 128  # two for each graph of layers, and some
# Read of many tensors at once, which is faster.
_address, _n_numbers, _dtype = torch.Tensor.data_ptr, torch.Tensor.numel, attrgetter("dtype")

_tables: dict[tuple[bytes, torch.device], torch.Tensor] = {}


def adamw_step(
    *,
    tensors: Sequence[AdamWTensor],
    divisor: torch.Tensor | None,
    failed: torch.Tensor | None,
    epsilon: float,
    betas: tuple[float, float],
) -> None:
    """Take a step of AdamW with the gradients divided by ``divisor``; none if ``failed`` is 1.

    Both are tensors of one number in float32, and the GPU is not waited for. None stands for a
    divisor of 1, and for a step that has not failed. There is at least one tensor.
    """
    device = tensors[0].weight.device
    weights, gradients, exp_avgs, exp_avg_sqs, *factors, copies = zip(*tensors, strict=True)
    sizes = [*map(_n_numbers, weights)]
    rows = [
        *([*map(_address, column)] for column in (weights, gradients, exp_avgs, exp_avg_sqs)),
        [0 if x is None else x.data_ptr() for x in copies],
        _are_bf16(gradients),
        sizes,
    ]
    if not all(map(torch.Tensor.is_contiguous, weights)):
        _check(tensors)
    table = _table(rows, 5, device, lambda: _check(tensors))
    factors_of_each = torch.from_numpy(np.array(factors, np.float32).T.copy())
    sent = in_one_copy({"factors": factors_of_each}, device)
    programs, (beta1, beta2) = _programs(tuple(sizes), device), betas
    kernels.adamw_step[(len(programs),)](
        table, sent["factors"], programs, divisor, failed,
        epsilon, 1.0 - beta1, beta2, 1.0 - beta2,
        NUMBERS=_NUMBERS, CHUNK=_CHUNK, num_warps=_WARPS,
    )  # fmt: skip


def grad_norm(*, gradients: Sequence[torch.Tensor]) -> torch.Tensor:
    """Euclidean norm of all gradients together, in float32; the GPU is not waited for.

    They are contiguous, in float32 or bfloat16, and have at least one number.
    """
    device, sizes = gradients[0].device, [*map(_n_numbers, gradients)]
    rows = [[*map(_address, gradients)], _are_bf16(gradients), sizes]
    programs = _programs(tuple(sizes), device)
    sums = torch.empty(len(programs), dtype=torch.float32, device=device)
    kernels.sum_squares[(len(programs),)](
        _table(rows, 1, device), programs, sums, NUMBERS=_NUMBERS, CHUNK=_CHUNK, num_warps=_WARPS
    )
    return sums.sum().sqrt()


def _are_bf16(gradients: Sequence[torch.Tensor]) -> list[int]:
    return [dtype == torch.bfloat16 for dtype in map(_dtype, gradients)]


def _check(tensors: Sequence[AdamWTensor]) -> None:
    """ValueError for tensors that the kernel would read or write wrongly."""
    single, rounded = (torch.float32,), (torch.bfloat16,)
    for t in tensors:
        columns = (
            (t.weight, single), (t.gradient, rounded + single), (t.exp_avg, single),
            (t.exp_avg_sq, single), (t.bf16_weight, rounded),
        )  # fmt: skip
        for x, dtypes in columns:
            if x is None:
                continue
            like = t.weight.numel(), tensors[0].weight.device
            if x.dtype not in dtypes or (x.numel(), x.device) != like or not x.is_contiguous():
                raise ValueError(
                    f"a kernel was given {tuple(x.shape)} of {x.dtype} on {x.device}, which is to"
                    f" be {like[0]} numbers of {dtypes[-1]}, contiguous, all on one device"
                )


def _table(
    rows: Sequence[Sequence[int]],
    n_addresses: int,
    device: torch.device,
    check: Callable[[], None] = lambda: None,
) -> torch.Tensor:
    """Rows on the device, tensor by tensor, with whether all addresses can be read in vectors.

    The first are addresses. Tensors are checked unless the same table is kept.
    """
    table = np.array(rows, np.int64)
    key = table.tobytes(), device
    sent = _tables.get(key)
    if sent is None:
        check()
        is_aligned = (table[:n_addresses] % _ALIGNMENT == 0).all(axis=0)
        by_tensor = torch.from_numpy(np.vstack([table, is_aligned]).T.copy())
        sent = in_one_copy({"tensors": by_tensor}, device)["tensors"]
        for oldest in [*_tables][: len(_tables) + 1 - _MOST_TABLES]:  # other threads add some, too
            _tables.pop(oldest, None)
        _tables[key] = sent
    return sent


@functools.lru_cache(maxsize=4)
def _programs(sizes: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """The tensor of each program, by its number, and the chunk of it, ``(n_programs, 2)``."""
    n_chunks = -(-np.array(sizes) // _CHUNK)
    numbers = np.repeat(np.arange(len(sizes)), n_chunks)
    chunks = np.arange(len(numbers)) - np.repeat(np.cumsum(n_chunks) - n_chunks, n_chunks)
    programs = np.column_stack([numbers, chunks]).astype(np.int32)
    return in_one_copy({"programs": torch.from_numpy(programs)}, device)["programs"]
