"""The kernels of ``kernels.c`` as operations of torch, where they were built and serve.

Attention within short rows keeps no weights and no masks of dropout for the way back, but
computes them again from a seed; and one pass does what lies between two products: dropout, the
sum with what went around the product, layer normalisation and rounding. Products of bfloat16
keep what they compute in registers, fetch weights while others are multiplied, and do GELU and
its way back in passing. Steps of AdamW read gradients in bfloat16 as they are. Without the kernels
``layers``, ``linear`` and ``optim`` do the same with torch's operations. Depends on torch, a
batch's layout and ``device``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from importlib import import_module
from itertools import pairwise
from typing import Any, NamedTuple

import torch

from skbert._core.runtime.device import has_instructions
from skbert._core.task import Layout

try:
    kernels: Any = import_module("skbert._core.cpu.kernels")
except ImportError:  # no compiler where this was installed
    kernels = None

__all__ = [
    "Learned",
    "Rounding",
    "across",
    "attend",
    "attends",
    "learn",
    "learns",
    "measures",
    "most_tokens",
    "multiply",
    "norm_of",
    "normalise",
    "normalises",
    "rounds",
]

_LONGEST = 512  # tokens of a row up to which torch's products are no faster
_LONGEST_BESIDE_AMX = 128  # whose products of bfloat16 are many times as fast as float32's
_LANES = 16  # numbers in a vector, of which sizes are multiples
_ACROSS = 32  # numbers of a result that a product computes at once
_FEW_BESIDE_AMX = 16  # tokens up to which oneDNN is no faster
_NOTHING, _GELU, _GELU_APART, _GELU_BACK = range(4)  # what follows a product
_DTYPES = (torch.float32, torch.bfloat16)


def attends(joined: torch.Tensor, layout: Layout, head_size: int) -> bool:
    """Whether `attend` serves."""
    return (
        kernels is not None
        and joined.dtype in _DTYPES
        and _is_short(layout.max_seqlen, joined.dtype)
        and head_size % _LANES == 0
    )


def _is_short(longest: int, dtype: torch.dtype) -> bool:
    if longest <= _LONGEST_BESIDE_AMX:
        return True
    amx = dtype == torch.bfloat16 and has_instructions("amx_bf16")
    return longest <= _LONGEST and not amx


def normalises(found: torch.Tensor, states: torch.Tensor, norm: torch.nn.LayerNorm) -> bool:
    """Whether `normalise` serves."""
    n_tokens, size = states.shape
    here = kernels is not None and size % _LANES == 0 and n_tokens > 0
    fits = found.shape == states.shape and found.dtype in _DTYPES
    whole = (
        states.dtype == torch.float32 and _is_row(norm.weight, size) and _is_row(norm.bias, size)
    )
    return here and fits and whole


def _is_row(weight: torch.Tensor | None, size: int) -> bool:
    """Whether a norm's weight is as many numbers, side by side."""
    if weight is None or weight.dtype != torch.float32:
        return False
    return weight.shape == (size,) and weight.is_contiguous()


def attend(*given: Any) -> torch.Tensor:
    """Attention within rows from ``(n_tokens, 3 * n_heads * head_size)``, a third of it back.

    What else is given: the layout, the size of a head, the factor of scores, whether tokens see
    only what is before them, the rate of dropout.
    """
    found: torch.Tensor = _apply(_Within, given)
    return found


def normalise(*given: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Layer normalisation of a product's result after dropout plus the states around it.

    Both are ``(n_tokens, size)``, the states in float32; weight, bias, epsilon and the rate of
    dropout follow. Returned in float32, and rounded to the type of the product. What is kept for
    the way back is rounded, too.
    """
    whole, rounded = _apply(_Normed, given)
    return whole, whole if rounded is None else rounded


class _Unwatched:
    """What a function of autograd notes, where nothing needs a gradient."""

    needs_input_grad = ()


def _apply(function: Any, given: tuple[Any, ...]) -> Any:
    watched = torch.is_grad_enabled()
    return function.apply(*given) if watched else function.forward(_Unwatched(), *given)


def _seed(rate: float) -> int:
    """From torch's generator where anything is drawn."""
    return int(torch.empty((), dtype=torch.int64, device="cpu").random_()) if rate else 0


class _Within(torch.autograd.Function):
    """As `attend`."""

    @staticmethod
    def forward(
        ctx: Any,
        joined: torch.Tensor,
        layout: Layout,
        head_size: int,
        scaling: float,
        causal: bool,
        rate: float,
    ) -> torch.Tensor:
        n_tokens, width = joined.shape
        n_heads, bounds = width // (3 * head_size), layout.cu_seqlens
        found = joined.new_empty(n_tokens, n_heads * head_size)
        shape = len(layout.lengths), n_heads, head_size, layout.max_seqlen
        how = causal, joined.dtype == torch.bfloat16, scaling, rate, _seed(rate)
        sums = None
        if any(ctx.needs_input_grad):
            sums = joined.new_empty(n_tokens, n_heads, dtype=torch.float32)
            ctx.save_for_backward(joined, bounds, sums)
            ctx.n_tokens, ctx.given = layout.n_tokens, (*shape, *how)
        _attention(joined, found, None, sums, bounds, *shape, *how)
        if layout.n_tokens < n_tokens:
            found[layout.n_tokens :] = 0
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        joined, bounds, sums = ctx.saved_tensors
        inner = torch.empty_like(joined)
        _attention(joined, gradients[0].contiguous(), inner, sums, bounds, *ctx.given)
        inner[ctx.n_tokens :] = 0
        return inner, None, None, None, None, None


def _attention(
    joined: torch.Tensor,
    found: torch.Tensor,
    inner: torch.Tensor | None,
    sums: torch.Tensor | None,
    bounds: torch.Tensor,
    n_rows: int,
    n_heads: int,
    head_size: int,
    *given: Any,
) -> None:
    n_tokens, width, dtype = joined.shape[0], n_heads * head_size, joined.dtype
    kernels.attention(
        _at(joined, (n_tokens, 3 * width), dtype),
        _at(found, (n_tokens, width), dtype),
        _at(inner, (n_tokens, 3 * width), dtype),
        _at(sums, (n_tokens, n_heads), torch.float32),
        _at(bounds, (n_rows + 1,), torch.int32),
        n_rows, n_heads, head_size, *given, torch.get_num_threads(),
    )  # fmt: skip


class _Normed(torch.autograd.Function):
    """As `normalise`, but what is rounded is None where nothing is."""

    @staticmethod
    def forward(
        ctx: Any,
        found: torch.Tensor,
        states: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor,
        epsilon: float,
        rate: float,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        shape = n_tokens, size = states.shape
        normed, scales = torch.empty_like(states), states.new_empty(n_tokens)
        rounded = None if found.dtype == torch.float32 else torch.empty_like(found)
        kept = torch.empty_like(found) if any(ctx.needs_input_grad) else None
        ctx.given = n_tokens, size, rounded is not None
        ctx.drawn = rate, _seed(rate)
        kernels.norm(
            _at(found, shape, found.dtype),
            _at(states, shape, torch.float32),
            _at(weight, (size,), torch.float32),
            _at(bias, (size,), torch.float32),
            *_made(normed, scales, rounded, kept),
            *ctx.given, epsilon, *ctx.drawn, torch.get_num_threads(),
        )  # fmt: skip
        if kept is not None:
            ctx.save_for_backward(kept, scales, weight)
            ctx.set_materialize_grads(False)
        return normed, rounded

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        kept, scales, weight = ctx.saved_tensors
        n_threads = torch.get_num_threads()
        inner, inner_part = torch.empty_like(kept, dtype=torch.float32), torch.empty_like(kept)
        learned = kept.new_zeros(n_threads, 2, kept.shape[1], dtype=torch.float32)
        outer, of_rounded = (None if g is None else g.contiguous() for g in gradients)
        kernels.norm_back(
            _at(kept, kept.shape, kept.dtype),
            _at(scales, kept.shape[:1], torch.float32),
            _at(weight, kept.shape[1:], torch.float32),
            _at(outer, kept.shape, torch.float32),
            _at(of_rounded, kept.shape, kept.dtype),
            *_made(inner, inner_part, learned),
            *ctx.given, *ctx.drawn, n_threads,
        )  # fmt: skip
        of_weight, of_bias = learned.sum(0)
        return inner_part, inner, of_weight, of_bias, None, None


def most_tokens(n_in: int, n_out: int, dtype: torch.dtype) -> float:
    """Up to how many tokens `multiply` serves for a weight ``(n_out, n_in)``; 0: for none."""
    fits = n_in % 2 == 0 and n_out % _ACROSS == 0 and dtype == torch.bfloat16
    if not (fits and getattr(kernels, "dots", False)):
        return 0
    return _FEW_BESIDE_AMX if has_instructions("amx_bf16") else math.inf


def across(weight: torch.Tensor) -> torch.Tensor:
    """A weight in the order in which `multiply` reads it."""
    n_out, n_in = weight.shape
    parts = weight.view(n_out // _ACROSS, _ACROSS, n_in // 2, 2)
    return parts.transpose(1, 2).contiguous()


def multiply(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *, gelu: bool
) -> torch.Tensor:
    """A linear layer of tokens ``(n_tokens, n_in)`` in bfloat16, and GELU if asked for.

    The weight is laid `across`, the bias in float32.
    """
    return _product(x, weight, None, bias, bias.shape[0], then=_GELU if gelu else _NOTHING)


def rounds(weights: Iterable[torch.Tensor], dtype: torch.dtype) -> bool:
    """Whether `Rounding` serves, for linear layers whose products are in ``dtype``."""
    weights = list(weights)
    if dtype != torch.bfloat16 or not getattr(kernels, "dots", False):
        return False
    fits = all(size % _ACROSS == 0 for weight in weights for size in weight.shape)
    return fits and _are_here(weights, [torch.float32]) and not has_instructions("amx_bf16")


class Rounding:
    """Linear layers side by side, whose weights are rounded to bfloat16 as they are multiplied.

    They are read in each product, and no copies are kept: weights that are changed between a
    product and its way back are read as they have become.
    """

    def __init__(self, parts: Sequence[torch.nn.Linear]) -> None:
        self.parts = parts
        self.n_rows, self.n_in = parts[0].weight.shape
        self.weights = [part.weight.detach() for part in parts]  # their memory stays
        addresses = [weight.data_ptr() for weight in self.weights]
        self.table = torch.tensor(addresses, dtype=torch.int64, device="cpu")

    def read(self) -> None:
        """Have the biases as they are now."""
        biases = [part.bias.detach() for part in self.parts]
        self.bias = biases[0] if len(biases) == 1 else torch.cat(biases)

    def forward(self, x: torch.Tensor, *, gelu: torch.Tensor | None = None) -> torch.Tensor:
        """From ``(n_tokens, n_in)`` to ``(n_tokens, n_out)``; its GELU is written to ``gelu``."""
        then = _NOTHING if gelu is None else _GELU_APART
        given = self.bias, len(self.bias), self.n_rows
        return _product(x, None, self.table, *given, other=gelu, then=then)

    def back(self, outer: torch.Tensor, *, before: torch.Tensor | None = None) -> torch.Tensor:
        """The gradient of what is multiplied, from that of the product.

        Or of what was ``before`` the GELU that is multiplied.
        """
        then = _NOTHING if before is None else _GELU_BACK
        given = None, self.n_in, self.n_rows
        return _product(outer, None, self.table, *given, turned=True, other=before, then=then)

    @staticmethod
    def gradients(
        outer: torch.Tensor,
        x: torch.Tensor,
        of_weight: torch.Tensor,
        of_bias: torch.Tensor,
        *,
        gelu: bool = False,
    ) -> None:
        """Write the gradients of weights and biases, in bfloat16, from that of the product.

        Its factor is ``x``, or the GELU of that.
        """
        outer, x = outer.contiguous(), x.contiguous()
        (n_tokens, n_in), n_out = x.shape, outer.shape[1]
        kernels.product_back(
            _at(outer, (n_tokens, n_out), torch.bfloat16),
            _at(x, (n_tokens, n_in), torch.bfloat16),
            _at(of_weight, (n_out, n_in), torch.bfloat16),
            _at(of_bias, (n_out,), torch.bfloat16),
            n_tokens, n_in, n_out, gelu, torch.get_num_threads(),
        )  # fmt: skip


def _product(
    x: torch.Tensor,
    laid: torch.Tensor | None,
    parts: torch.Tensor | None,
    bias: torch.Tensor | None,
    n_out: int,
    n_rows: int = 0,
    *,
    turned: bool = False,
    other: torch.Tensor | None = None,
    then: int = _NOTHING,
) -> torch.Tensor:
    x = x.contiguous()
    n_tokens, n_in = x.shape
    found = x.new_empty(n_tokens, n_out)
    kernels.product(
        _at(x, (n_tokens, n_in), torch.bfloat16),
        _at(laid, (n_out // _ACROSS, n_in // 2, _ACROSS, 2), torch.bfloat16),
        *_made(parts),
        _at(bias, (n_out,), torch.float32),
        *_made(found),
        _at(other, (n_tokens, n_out), torch.bfloat16),
        n_tokens, n_in, n_out, n_rows, turned, then, torch.get_num_threads(),
    )  # fmt: skip
    return found


def learns(weights: Iterable[torch.Tensor]) -> bool:
    """Whether `learn` serves: no two tensors that it writes to may share memory."""
    weights = list(weights)
    ranges = sorted((each.data_ptr(), each.data_ptr() + each.nbytes) for each in weights)
    apart = all(end <= begin for (_, end), (begin, _) in pairwise(ranges))
    return apart and _are_here(weights, [torch.float32])


def measures(gradients: Iterable[torch.Tensor]) -> bool:
    """Whether `norm_of` serves."""
    return _are_here(gradients, _DTYPES)


def _are_here(tensors: Iterable[torch.Tensor], dtypes: Sequence[torch.dtype]) -> bool:
    return kernels is not None and all(
        t.dtype in dtypes and t.device.type == "cpu" and t.is_contiguous() for t in tensors
    )


class Learned(NamedTuple):
    """A tensor that learns, contiguous as are its gradient and moments, and its pace.

    ``kept`` is the share of the weight that decay leaves, ``step`` the learning rate by the first
    moment's correction, ``root`` the square root of the second's.
    """

    weight: torch.Tensor
    gradient: torch.Tensor
    moments: tuple[torch.Tensor, torch.Tensor]
    pace: tuple[float, float, float]


def learn(
    tensors: Sequence[Learned], divisor: float, epsilon: float, betas: tuple[float, float]
) -> None:
    """Take a step of AdamW with the gradients divided by ``divisor``."""
    rows = [_row(t.gradient, t.weight, *t.moments) for t in tensors]
    table = torch.tensor(rows, dtype=torch.int64, device="cpu")
    paces = torch.tensor([t.pace for t in tensors], dtype=torch.float32, device="cpu")
    given = len(tensors), divisor, epsilon, *betas
    kernels.adamw(*_made(table, paces), *given, torch.get_num_threads())


def norm_of(gradients: Sequence[torch.Tensor]) -> torch.Tensor:
    """Euclidean norm of contiguous tensors together."""
    n_threads = torch.get_num_threads()
    squares = torch.zeros(n_threads, dtype=torch.float64, device="cpu")
    rows = [_row(gradient, None, None, None) for gradient in gradients]
    table = torch.tensor(rows, dtype=torch.int64, device="cpu")
    kernels.square(*_made(table), len(gradients), *_made(squares), n_threads)
    return squares.sum().sqrt().float()


def _row(gradient: torch.Tensor, *others: torch.Tensor | None) -> tuple[int, ...]:
    """What the kernels that go over many tensors are told of one, and of what belongs to it."""
    shape, low = gradient.shape, gradient.dtype == torch.bfloat16
    where = [_at(x, shape, torch.float32) for x in others]
    return gradient.numel(), low, _at(gradient, shape, gradient.dtype), *where


def _at(x: torch.Tensor | None, shape: tuple[int, ...], dtype: torch.dtype) -> int:
    """Where a tensor begins, 0 for none; ValueError unless it is what a kernel reads there.

    A kernel goes from there on without looking, so that this is where to look.
    """
    if x is None:
        return 0
    if x.shape == shape and x.dtype == dtype and x.is_cpu and x.is_contiguous():
        return x.data_ptr()
    raise ValueError(
        f"a kernel was given {tuple(x.shape)} of {x.dtype} on {x.device} with strides "
        f"{x.stride()} in the place of {tuple(shape)} of {dtype} on the CPU"
    )


def _made(*tensors: torch.Tensor | None) -> list[int]:
    """Where tensors begin that were made here for a kernel; 0 for none."""
    return [0 if x is None else x.data_ptr() for x in tensors]
