"""The kernels for GPUs as operations with a gradient, and where each of them can be used.

Triton, in which they are written, comes with torch for CUDA, and compiles each of them when it is
first called; what it compiled is kept on disk. Where a kernel cannot be used torch's operations
do the same. Norms, gates and rotary positions are made operations by ``cpu.fused``; a step of
AdamW has no gradient. Depends on torch, a batch's layout and the kernels beside this module.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any

import numpy as np
import torch

from skbert._core.attention.settings import AttentionSettings
from skbert._core.runtime.autograd import AdamWTensor, Context, apply, draw_seed
from skbert._core.runtime.device import is_out_of_memory
from skbert._core.task import Layout
from skbert.exceptions import warn

__all__ = [
    "SHORT", "adamw_step", "can_fuse_adamw", "can_fuse_attention", "can_fuse_gate",
    "can_fuse_gelu", "can_fuse_grad_norm", "can_fuse_layernorm", "can_fuse_rotary",
    "can_sum_tokens", "fused_attention", "gelu_backward", "grad_norm", "has_short_rows",
    "is_on_gpu", "kernels", "on_device_of", "sum_tokens",
]  # fmt: skip

_HEAD_SIZES = (16, 32, 64, 128)
# Tokens in the rows of tokens, on average, up to which torch's kernel, which starts anew with each
# row, is no faster.
SHORT = 256


def is_on_gpu(x: torch.Tensor) -> bool:
    """Whether a tensor is where these kernels compute."""
    return x.is_cuda


def on_device_of(x: torch.Tensor) -> AbstractContextManager[object]:
    """Inside the ``with``, Triton starts kernels on the GPU that a tensor is on."""
    return torch.cuda.device_of(x)  # type: ignore[no-untyped-call]


@functools.cache
def kernels(name: str) -> Any:
    """The module of kernels with this name, None without Triton."""
    try:
        return import_module(f"skbert._core.gpu.{name}")
    except ImportError:  # torch was built without it
        return None


def _has_kernel(name: str, x: torch.Tensor) -> bool:
    """Whether there are such kernels, for numbers like these."""
    fits = x.dtype != torch.float64 and x.is_contiguous()
    return fits and kernels(name) is not None and _can_run(x.device)


@functools.cache
def _can_run(device: torch.device) -> bool:
    """Whether kernels can be compiled for a device: it may be too old, or a compiler missing."""
    x = torch.zeros(1, 1, device=device)
    return _runs(
        "The kernels for GPUs", x, lambda: kernels("gelu").gelu_backward(hidden=x, grad_active=x)
    )


@functools.cache
def _can_attend(
    device: torch.device, dtype: torch.dtype, settings: AttentionSettings, *, trains: bool
) -> bool:
    """Whether those of attention can, which need much of a GPU's own memory."""
    qkv = torch.zeros(1, 3 * settings.head_size, dtype=dtype, device=device)
    starts = torch.arange(2, dtype=torch.int32, device=device)
    layout = Layout(np.ones(1, np.int64), ((0, 1, 1),), starts, starts[:1].long())
    how: dict[str, Any] = {"qkv": qkv, "layout": layout, "settings": settings, "seed": 0}

    def attend() -> None:
        output, logsumexp = kernels("attention").attention_forward(**how)
        if trains:
            kernels("attention").attention_backward(
                output=output, grad_output=output, logsumexp=logsumexp, **how
            )

    return _runs("The kernels of attention for GPUs", qkv, attend)


def _runs(what: str, x: torch.Tensor, start: Callable[[], object]) -> bool:
    """Whether kernels can be started on the device of a tensor; a warning says why not."""
    device = x.device
    try:
        with on_device_of(x):
            start()
    except Exception as error:  # Triton's, a compiler's or the driver's
        if is_out_of_memory(error):
            raise
        warn(
            f"{what} are not used: Triton could not compile one for {device}"
            f" ({type(error).__name__}: {error!s:.200}). What they would compute is computed by"
            " torch, more slowly. Triton needs a C compiler, such as gcc, and a GPU that it knows."
        )
        return False
    return True


# --- attention -----------------------------------------------------------------------------------


def can_fuse_attention(qkv: torch.Tensor, layout: Layout, settings: AttentionSettings) -> bool:
    """Whether `fused_attention` can be used, and is not slower than torch's operations."""
    is_half = qkv.dtype in (torch.bfloat16, torch.float16)
    is_faster = settings.dropout > 0 or has_short_rows(layout)
    fits = is_half and settings.head_size in _HEAD_SIZES and is_faster
    if not (fits and _has_kernel("attention", qkv)):
        return False
    return _can_attend(qkv.device, qkv.dtype, settings, trains=torch.is_grad_enabled())


def has_short_rows(layout: Layout) -> bool:
    """Whether `fused_attention` is not slower for such rows."""
    return layout.mean_seqlen <= SHORT


def fused_attention(
    qkv: torch.Tensor, layout: Layout, settings: AttentionSettings
) -> torch.Tensor:
    """Attention within rows from ``(n_tokens, 3 * n_heads * head_size)``, a third of it back."""
    output: torch.Tensor = apply(_Attention, qkv, layout, settings)
    return output


class _Attention(torch.autograd.Function):
    """Attention within rows, as `fused_attention` returns it."""

    @staticmethod
    def forward(
        ctx: Context, qkv: torch.Tensor, layout: Layout, settings: AttentionSettings
    ) -> torch.Tensor:
        seed = draw_seed(settings.dropout)
        output, logsumexp = kernels("attention").attention_forward(
            qkv=qkv, layout=layout, settings=settings, seed=seed
        )
        if any(ctx.needs_input_grad):
            ctx.save_for_backward(qkv, output, logsumexp)
            ctx.settings = layout, settings, seed
        return torch.as_tensor(output)

    @staticmethod
    def backward(ctx: Context, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        qkv, output, logsumexp = ctx.saved_tensors
        layout, settings, seed = ctx.settings
        grad_qkv = kernels("attention").attention_backward(
            qkv=qkv, output=output, grad_output=gradients[0].contiguous(), logsumexp=logsumexp,
            layout=layout, settings=settings, seed=seed,
        )  # fmt: skip
        return grad_qkv, None, None


# --- norms, gates and rotary positions -----------------------------------------------------------


def can_fuse_layernorm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
) -> bool:
    """Whether the kernels of layer normalisation can be used."""
    if weight is None:
        return False
    singles = [residual, weight] if bias is None else [residual, weight, bias]
    shapes = [x.shape, *[x.shape[1:]] * (len(singles) - 1)]
    fits = all(each.dtype == torch.float32 and each.is_contiguous() for each in singles)
    return fits and [each.shape for each in singles] == shapes and _has_kernel("layernorm", x)


def can_fuse_rotary(qkv: torch.Tensor, head_size: int) -> bool:
    """Whether the kernel of rotary positions can be used."""
    return head_size in _HEAD_SIZES and _has_kernel("rotary", qkv)


def can_fuse_gate(hidden: torch.Tensor) -> bool:
    """Whether the kernels of gates can be used."""
    return hidden.shape[-1] % 2 == 0 and _has_kernel("gelu", hidden)


# --- GELU ----------------------------------------------------------------------------------------


def can_fuse_gelu(hidden: torch.Tensor) -> bool:
    """Whether `gelu_backward` can be used."""
    return _has_kernel("gelu", hidden)


def gelu_backward(
    hidden: torch.Tensor, grad_active: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """GELU of ``hidden``, computed again, the gradient of ``hidden``, and its sum over tokens."""
    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor] = kernels("gelu").gelu_backward(
        hidden=hidden.contiguous(), grad_active=grad_active.contiguous()
    )
    return tensors


# --- gradients of biases -------------------------------------------------------------------------


def can_sum_tokens(x: torch.Tensor) -> bool:
    """Whether `sum_tokens` can be used."""
    return is_on_gpu(x) and _has_kernel("sums", x)


def sum_tokens(x: torch.Tensor) -> torch.Tensor:
    """The sum over tokens of ``(n_tokens, size)``, in float32."""
    total: torch.Tensor = kernels("sums").sum_tokens(x=x)
    return total


# --- steps of the optimizer ----------------------------------------------------------------------


def can_fuse_adamw(weights: Sequence[torch.Tensor]) -> bool:
    """Whether `adamw_step` can be used, if no two weights share memory."""
    fits = all(x.dtype == torch.float32 and _has_kernel("adamw", x) for x in weights)
    return fits and len({x.device for x in weights}) == 1


def adamw_step(
    tensors: Sequence[AdamWTensor],
    divisor: torch.Tensor | None,
    failed: torch.Tensor | None,
    epsilon: float,
    betas: tuple[float, float],
) -> None:
    """Take a step of AdamW with the gradients divided by ``divisor``; none if ``failed`` is 1."""
    with on_device_of(tensors[0].weight):
        kernels("adamw").adamw_step(
            tensors=tensors, divisor=divisor, failed=failed, epsilon=epsilon, betas=betas
        )


def can_fuse_grad_norm(gradients: Sequence[torch.Tensor]) -> bool:
    """Whether `grad_norm` can be used."""
    if not any(x.numel() for x in gradients) or not is_on_gpu(gradients[0]):
        return False
    fits = {x.dtype for x in gradients} <= {torch.bfloat16, torch.float32}
    return fits and len({x.device for x in gradients}) == 1 and _has_kernel("adamw", gradients[0])


def grad_norm(gradients: Sequence[torch.Tensor]) -> torch.Tensor:
    """Euclidean norm of all gradients together, a tensor on their device."""
    with on_device_of(gradients[0]):
        norm: torch.Tensor = kernels("adamw").grad_norm(gradients=gradients)
    return norm
