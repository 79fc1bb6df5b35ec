"""A step of AdamW over many tensors, in one pass over memory, on a GPU.

The kernel goes through a table of the tensors, which is sent anew for each step, as gradients are
somewhere else each time. Depends on torch, ``batches`` and the kernels.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import torch

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
    rows = np.array([_row(t, tensors[0].weight.get_device()) for t in tensors], np.int64)
    is_aligned = (rows[:, :5] % _ALIGNMENT == 0).all(axis=1)
    factors = [(t.decay, t.step_size, t.bias_correction2_sqrt) for t in tensors]
    table = {
        "tensors": torch.from_numpy(np.column_stack([rows, is_aligned])),
        "factors": torch.from_numpy(np.array(factors, np.float32)),
    }
    sent = in_one_copy(table, device)
    programs, (beta1, beta2) = _programs(tuple(rows[:, 6].tolist()), device), betas
    kernels.adamw_step[(len(programs),)](
        sent["tensors"], sent["factors"], programs, divisor, failed,
        epsilon, 1.0 - beta1, beta2, 1.0 - beta2,
        NUMBERS=_NUMBERS, CHUNK=_CHUNK, num_warps=_WARPS,
    )  # fmt: skip


def _row(t: AdamWTensor, device: int) -> tuple[int, ...]:
    """One tensor in the table: five addresses, whether the gradient is in bfloat16, and a size."""
    size = t.weight.numel()

    def address(x: torch.Tensor, dtype: torch.dtype = torch.float32) -> int:
        fits = x.dtype == dtype and x.numel() == size and x.get_device() == device
        if not fits or not x.is_contiguous():
            raise ValueError(
                f"a kernel was given {tuple(x.shape)} of {x.dtype} on {x.device}, which is to be"
                f" {size} numbers of {dtype}, contiguous, all on one device"
            )
        return x.data_ptr()

    is_bf16 = t.gradient.dtype == torch.bfloat16
    return (
        address(t.weight),
        address(t.gradient, torch.bfloat16 if is_bf16 else torch.float32),
        address(t.exp_avg),
        address(t.exp_avg_sq),
        0 if t.bf16_weight is None else address(t.bf16_weight, torch.bfloat16),
        is_bf16,
        size,
    )


@functools.lru_cache(maxsize=4)
def _programs(sizes: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """The tensor of each program, by its number, and the chunk of it, ``(n_programs, 2)``."""
    n_chunks = -(-np.array(sizes) // _CHUNK)
    numbers = np.repeat(np.arange(len(sizes)), n_chunks)
    chunks = np.arange(len(numbers)) - np.repeat(np.cumsum(n_chunks) - n_chunks, n_chunks)
    programs = np.column_stack([numbers, chunks]).astype(np.int32)
    return in_one_copy({"programs": torch.from_numpy(programs)}, device)["programs"]
