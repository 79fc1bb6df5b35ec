"""A step of AdamW over many tensors, in one pass over memory, on a GPU.

The kernel goes through a table of the tensors, which is kept for other steps in which all of them
are where they were. Depends on torch, ``batches`` and the kernels.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import torch

from skbert._arrays import IntArray
from skbert._core.batches import in_one_copy
from skbert._core.gpu.kernels import adamw as kernels
from skbert._core.runtime.autograd import AdamWTensor

__all__ = ["adamw_step"]

_CHUNK = 4096  # numbers of a tensor that a program computes,
_NUMBERS = 512  # and that it computes together: four, which are 16 bytes, by each thread
_WARPS = 4  # of 32 threads
_ALIGNMENT = 16  # of what is read and written in vectors, in bytes


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
    table = _table(tensors)
    factors = [(t.decay, t.step_size, t.bias_correction2_sqrt) for t in tensors]
    sent = in_one_copy({"factors": torch.from_numpy(np.array(factors, np.float32))}, device)
    programs, (beta1, beta2) = _programs(tuple(table[6].tolist()), device), betas
    kernels.adamw_step[(len(programs),)](
        _sent(table.tobytes(), device), sent["factors"], programs, divisor, failed,
        epsilon, 1.0 - beta1, beta2, 1.0 - beta2,
        NUMBERS=_NUMBERS, CHUNK=_CHUNK, num_warps=_WARPS,
    )  # fmt: skip


def _table(tensors: Sequence[AdamWTensor]) -> IntArray:
    """``(7, n)``: five addresses of each tensor, whether its gradient is in bfloat16, its size."""
    weights, gradients, exp_avgs, exp_avg_sqs, _, _, _, copies = zip(*tensors, strict=True)
    sizes, device = [weight.numel() for weight in weights], weights[0].get_device()

    def addresses(column: Sequence[torch.Tensor | None], *dtypes: torch.dtype) -> list[int]:
        for x, size in zip(column, sizes, strict=True):
            if x is None:
                continue
            fits = x.dtype in dtypes and x.numel() == size and x.get_device() == device
            if not fits or not x.is_contiguous():
                raise ValueError(
                    f"a kernel was given {tuple(x.shape)} of {x.dtype} on {x.device}, which is to"
                    f" be {size} numbers of {dtypes[-1]}, contiguous, all on one device"
                )
        return [0 if x is None else x.data_ptr() for x in column]

    rows = [
        addresses(weights, torch.float32),
        addresses(gradients, torch.bfloat16, torch.float32),
        addresses(exp_avgs, torch.float32),
        addresses(exp_avg_sqs, torch.float32),
        addresses(copies, torch.bfloat16),
        [gradient.dtype == torch.bfloat16 for gradient in gradients],
        sizes,
    ]
    return np.array(rows, np.int64)


@functools.lru_cache(maxsize=32)
def _sent(table: bytes, device: torch.device) -> torch.Tensor:
    """A table on the device, tensor by tensor, and for each whether all can be read in vectors."""
    rows = np.frombuffer(table, np.int64).reshape(7, -1)
    is_aligned = (rows[:5] % _ALIGNMENT == 0).all(axis=0)
    sent = torch.from_numpy(np.vstack([rows, is_aligned]).T.copy())
    return in_one_copy({"tensors": sent}, device)["tensors"]


@functools.lru_cache(maxsize=4)
def _programs(sizes: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """The tensor of each program, by its number, and the chunk of it, ``(n_programs, 2)``."""
    n_chunks = -(-np.array(sizes) // _CHUNK)
    numbers = np.repeat(np.arange(len(sizes)), n_chunks)
    chunks = np.arange(len(numbers)) - np.repeat(np.cumsum(n_chunks) - n_chunks, n_chunks)
    programs = np.column_stack([numbers, chunks]).astype(np.int32)
    return in_one_copy({"programs": torch.from_numpy(programs)}, device)["programs"]
