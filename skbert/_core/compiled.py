"""The kernels of ``kernels.c`` as operations of torch, where they were built and serve.

Attention within short rows keeps no weights and no masks of dropout for the way back, but
computes them again from a seed; and one pass does what lies between two products: dropout, the
sum with what went around the product, layer normalisation and rounding. Products of few tokens
read the weights as fast as memory gives them. Steps of AdamW read gradients in bfloat16 as they
are. Without the kernels ``layers``, ``products`` and ``optim`` do the same with torch's
operations. Depends on torch, a batch's layout and ``device``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import torch

from skbert._core.device import has_instructions
from skbert._core.task import Layout

try:
    kernels: Any = import_module("skbert._core.kernels")
except ImportError:  # no compiler where this was installed
    kernels = None

__all__ = [
    "Learned",
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
]

_LONGEST = 512  # tokens of a row up to which torch's products are no faster
_LONGEST_BESIDE_AMX = 128  # whose products of bfloat16 are many times as fast as float32's
_LANES = 16  # numbers in a vector, of which sizes are multiples
_ACROSS = 32  # numbers of a result that a product computes at once
_FEW = 48  # tokens up to which oneDNN is no faster
_FEW_BESIDE_AMX = 16
_DTYPES = (torch.float32, torch.bfloat16)


def attends(joined: torch.Tensor, layout: Layout, head_size: int) -> bool:
    """Whether `attend` serves."""
    return (
        kernels is not None
        and joined.dtype in _DTYPES
        and _is_short(layout.longest, joined.dtype)
        and head_size % _LANES == 0
    )


def _is_short(longest: int, dtype: torch.dtype) -> bool:
    if longest <= _LONGEST_BESIDE_AMX:
        return True
    amx = dtype == torch.bfloat16 and has_instructions("amx_bf16")
    return longest <= _LONGEST and not amx


def normalises(found: torch.Tensor, states: torch.Tensor, norm: torch.nn.LayerNorm) -> bool:
    """Whether `normalise` serves."""
    whole = states.dtype == norm.weight.dtype == torch.float32
    fits = states.shape[1] % _LANES == 0 and len(states) > 0
    return kernels is not None and whole and found.dtype in _DTYPES and fits


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
        n_heads, bounds = joined.shape[1] // (3 * head_size), layout.bounds
        found = joined.new_empty(len(joined), n_heads * head_size)
        shape = len(layout.lengths), n_heads, head_size, layout.longest
        how = causal, joined.dtype == torch.bfloat16, scaling, rate, _seed(rate)
        sums = None
        if any(ctx.needs_input_grad):
            sums = joined.new_empty(len(joined), n_heads, dtype=torch.float32)
            ctx.save_for_backward(joined, bounds, sums)
            ctx.n_tokens, ctx.given = len(layout.row_of_token), (*shape, *how)
        _attention(joined, found, None, sums, bounds, *shape, *how)
        if len(layout.row_of_token) < len(joined):
            found[len(layout.row_of_token) :] = 0
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        joined, bounds, sums = ctx.saved_tensors
        inner = torch.empty_like(joined)
        _attention(joined, gradients[0].contiguous(), inner, sums, bounds, *ctx.given)
        inner[ctx.n_tokens :] = 0
        return inner, None, None, None, None, None


def _attention(*given: Any) -> None:
    kernels.attention(*_addresses(given), torch.get_num_threads())


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
        normed, scales = torch.empty_like(states), states.new_empty(len(states))
        rounded = None if found.dtype == torch.float32 else torch.empty_like(found)
        kept = torch.empty_like(found) if any(ctx.needs_input_grad) else None
        ctx.given = *states.shape, rounded is not None
        ctx.drawn = rate, _seed(rate)
        kernels.norm(
            *_addresses((found, states, weight, bias, normed, scales, rounded, kept)),
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
            *_addresses((kept, scales, weight, outer, of_rounded, inner, inner_part, learned)),
            *ctx.given, *ctx.drawn, n_threads,
        )  # fmt: skip
        of_weight, of_bias = learned.sum(0)
        return inner_part, inner, of_weight, of_bias, None, None


def most_tokens(weight: torch.Tensor) -> int:
    """Up to how many tokens `multiply` serves for a weight ``(n_out, n_in)``; 0: for none."""
    fits = weight.shape[0] % _ACROSS == 0 and weight.shape[1] % 2 == 0
    if not (fits and weight.dtype == torch.bfloat16 and getattr(kernels, "dots", False)):
        return 0
    return _FEW_BESIDE_AMX if has_instructions("amx_bf16") else _FEW


def across(weight: torch.Tensor) -> torch.Tensor:
    """A weight in the order in which `multiply` reads it."""
    n_out, n_in = weight.shape
    parts = weight.view(n_out // _ACROSS, _ACROSS, n_in // 2, 2)
    return parts.transpose(1, 2).contiguous()


def multiply(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *, gelu: bool
) -> torch.Tensor:
    """A linear layer of few tokens, ``(n_tokens, n_in)`` in bfloat16, and GELU if asked for."""
    x, n_out = x.contiguous(), len(bias)
    found = x.new_empty(len(x), n_out)
    given = x, weight, bias, found, *x.shape, n_out, gelu, torch.get_num_threads()
    kernels.product(*_addresses(given))
    return found


def learns(weights: Iterable[torch.Tensor]) -> bool:
    """Whether `learn` serves."""
    return _are_here(weights, [torch.float32])


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
    table = _table([(t.gradient, t.weight, *t.moments) for t in tensors])
    paces = torch.tensor([t.pace for t in tensors], dtype=torch.float32, device="cpu")
    given = table, paces, len(tensors), divisor, epsilon, *betas
    kernels.adamw(*_addresses(given), torch.get_num_threads())


def norm_of(gradients: Sequence[torch.Tensor]) -> torch.Tensor:
    """Euclidean norm of contiguous tensors together."""
    n_threads = torch.get_num_threads()
    squares = torch.zeros(n_threads, dtype=torch.float64, device="cpu")
    table = _table([(gradient, None, None, None) for gradient in gradients])
    kernels.square(*_addresses((table, len(gradients), squares)), n_threads)
    return squares.sum().sqrt().float()


def _table(rows: Sequence[tuple[Any, ...]]) -> torch.Tensor:
    """The table of the kernels that go over many tensors, the first of which are gradients."""
    low = torch.bfloat16
    table = [(r[0].numel(), r[0].dtype == low, *_addresses(r)) for r in rows]
    return torch.tensor(table, dtype=torch.int64, device="cpu")


def _addresses(given: tuple[Any, ...]) -> list[Any]:
    """Where tensors begin, 0 for none; anything else as it is."""
    return [0 if x is None else x.data_ptr() if isinstance(x, torch.Tensor) else x for x in given]
