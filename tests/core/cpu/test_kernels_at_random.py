"""The wrappers of the kernels against torch's operations in float64, on random arguments.

A case is one call of a wrapper, with shapes, types, values and settings drawn by hypothesis. Three
things hold for each: the results are as near to torch's as their rounding allows; they are the
same, bit for bit, with any number of threads, but for sums over tokens; and a tensor that lies
otherwise in memory, or is of another type, is refused or read correctly.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.nn import functional as F
from torch.optim.adamw import adamw

from skbert._core.cpu.bindings import module
from skbert._core.cpu.bindings.adamw import adamw_step, grad_norm
from skbert._core.cpu.bindings.attention import (
    AttentionSettings,
    PackedRows,
    attention_backward,
    attention_forward,
)
from skbert._core.cpu.bindings.attention_grad_tiles import attention_grad_tiles
from skbert._core.cpu.bindings.attention_tiles import attention_tiles, fits_tiles
from skbert._core.cpu.bindings.embedding import EmbeddingWeights, Table, embed, embed_backward
from skbert._core.cpu.bindings.gated import gated_backward, gated_forward
from skbert._core.cpu.bindings.gemm_bf16 import (
    PackedWeights,
    StackedWeights,
    linear_grad_input,
    linear_stacked,
    packed_linear,
)
from skbert._core.cpu.bindings.gemm_float32 import Float32Weights, linear_float32
from skbert._core.cpu.bindings.gemm_grad import linear_grad_weight
from skbert._core.cpu.bindings.gemm_int8 import Int8Weights, int8_linears
from skbert._core.cpu.bindings.layernorm import (
    add_layernorm_forward,
    layernorm_backward,
    layernorm_forward,
)
from skbert._core.cpu.bindings.rotary import RotaryTable, rotate
from skbert._core.runtime.autograd import AdamWTensor

if TYPE_CHECKING:
    from collections.abc import Callable

    Draw = Callable[[st.SearchStrategy[Any]], Any]
    Tensors = dict[str, torch.Tensor]

pytestmark = [
    pytest.mark.skipif(module.kernels is None, reason="built without a compiler"),
    pytest.mark.usefixtures("either_width"),
]

EPS = 2.0**-23  # of float32, in which the kernels compute
ROUNDING = {torch.float32: EPS, torch.bfloat16: 2.0**-8}  # of what they return
TINY = 1e-37  # products of bfloat16 take smaller numbers for zero


class Case(NamedTuple):
    tensors: Tensors
    compute: Callable[[Tensors], Tensors]  # calls the wrapper
    exact: Tensors  # what torch computes in float64
    within: dict[str, Any]  # how far from it a result may be, without its own rounding
    summed: tuple[str, ...] = ()  # results that are added up thread by thread
    rows: torch.Tensor | None = None  # to which row each token belongs, if rows are independent
    first: int = 0  # the first token of a row
    poisoned: str = ""  # the tensor of which one number is made NaN to see that


# --- what is drawn -------------------------------------------------------------------------------


def numbers(draw: Draw, *shape: int, dtype: torch.dtype, least: int = -4) -> torch.Tensor:
    """Normal numbers of a drawn size, a few of them zeros with either sign."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    x = torch.randn(shape, generator=generator) * 10.0 ** draw(st.integers(least, 4))
    x[torch.rand(shape, generator=generator) < 0.02] *= 0.0
    return x.to(dtype)


def sizes(step: int, most: int) -> st.SearchStrategy[int]:
    return st.integers(1, most // step).map(lambda n: n * step)


def rates() -> st.SearchStrategy[float]:
    return st.sampled_from([0.0, 0.0, 0.1, 0.5, 0.75])


DTYPES = st.sampled_from([torch.float32, torch.bfloat16])
TOKENS = st.sampled_from([1, 2, 3, 5, 7, 11, 12, 13, 16, 17, 31, 37, 64, 97, 131])
SEEDS = st.integers(0, 2**63 - 1)
TOKENS_OF_CHUNKS = st.sampled_from([1, 2, 3, 4, 5, 6, 7, 13, 19, 97, 511, 512, 513, 1100])
STATES = st.sampled_from([1, 2, 15, 16, 17, 31, 333, 16_384, 16_385, 40_001])


# --- attention -----------------------------------------------------------------------------------


class Rows(NamedTuple):
    """A packed batch: some tokens that belong to no row, the rows, some more such tokens."""

    before: int
    lengths: list[int]
    behind: int

    def tokens(self) -> slice:
        return slice(self.before, self.before + sum(self.lengths))

    def packed(self) -> PackedRows:
        return PackedRows(
            torch.tensor([self.before, *self.lengths]).cumsum(0, dtype=torch.int32)
        )  # fmt: skip

    def split(self, x: torch.Tensor) -> list[torch.Tensor]:
        return list(x[self.tokens()].split(self.lengths))


def rows_of_tokens() -> st.SearchStrategy[Rows]:
    few = st.integers(0, 3)
    short = st.lists(st.integers(0, 90), max_size=6)
    return st.builds(Rows, few, short | st.lists(st.integers(0, 400), max_size=2), few)


def attended(settings: AttentionSettings, length: int) -> torch.Tensor:
    """Which tokens (to the right) a token (down) attends to."""
    at = torch.arange(length)
    distance = at[:, None] - at
    window = length + 1 if settings.sliding_window is None else settings.sliding_window
    return (distance.abs() < window) & ((distance >= 0) | (not settings.is_causal))


def factors_of_dropout(
    qkv: torch.Tensor, rows: Rows, settings: AttentionSettings, seed: int
) -> list[torch.Tensor]:
    """Factors of the weights of each row, seen where scores are zero and values a unit matrix."""
    size, longest = settings.head_size, max(rows.lengths, default=0)
    seen = []
    for first in range(0, longest, size):
        units = torch.zeros(len(qkv), 3, qkv.shape[1] // (3 * size), size)
        for states in rows.split(units):
            states[first : first + size, 2] = torch.eye(size)[: len(states[first:]), None]
        found, _ = attention_forward(
            qkv=units.flatten(1), rows=rows.packed(), settings=settings, seed=seed,
            with_logsumexp=False,
        )  # fmt: skip
        seen.append(found.view(len(qkv), -1, size))
    if not seen:
        return [torch.zeros(0)] * len(rows.lengths)
    keeps = (torch.cat(seen, dim=2) > 0).double() / (1 - settings.dropout)
    return [row.transpose(0, 1)[..., : len(row)] for row in rows.split(keeps)]


def attention_by_torch(
    qkv: torch.Tensor, rows: Rows, settings: AttentionSettings, seed: int
) -> torch.Tensor:
    n_heads = qkv.shape[1] // (3 * settings.head_size)
    found = [qkv[:0, : n_heads * settings.head_size]]
    keeps: list[Any] = [1.0] * len(rows.lengths)
    if settings.dropout:
        keeps = factors_of_dropout(qkv, rows, settings, seed)
    for states, keep in zip(rows.split(qkv), keeps, strict=True):
        if len(states):
            q, k, v = states.view(len(states), 3, n_heads, -1).permute(1, 2, 0, 3)
            scores = q @ k.mT * settings.scaling
            scores = scores.masked_fill(~attended(settings, len(states)), -torch.inf)
            found.append((scores.softmax(-1) * keep @ v).transpose(0, 1).flatten(1))
    return torch.cat(found)


def largest(x: torch.Tensor) -> float:
    return float(x.abs().max()) if x.numel() else 0.0


def n_lanes() -> int:
    """Numbers in a vector of kernels that multiply bfloat16 in pairs; 0: none do."""
    if not module.has_bf16_products():
        return 0
    lanes: int = module.kernels.use_lanes(16)
    module.kernels.use_lanes(lanes)
    return lanes


def attention(draw: Draw) -> Case:
    rows, dtype, size = draw(rows_of_tokens()), draw(DTYPES), draw(sizes(16, 96))
    n_heads, seed = draw(st.integers(1, 3)), draw(SEEDS)
    how = AttentionSettings(
        size, draw(st.sampled_from([0.0, 0.01, 0.125, 1.0, 30.0])), draw(st.booleans()),
        draw(rates()), draw(st.none() | st.sampled_from([1, 2, 3, 64, 65, 130, 2**31 - 1])),
    )  # fmt: skip
    n_tokens, width = rows.before + sum(rows.lengths) + rows.behind, n_heads * size
    given_tensors = {
        "qkv": numbers(draw, n_tokens, 3 * width, dtype=dtype),
        "grad_output": numbers(draw, n_tokens, width, dtype=dtype),
    }

    with torch.no_grad():
        in_tiles = fits_tiles(given_tensors["qkv"].dtype, max(rows.lengths, default=0), how)
    in_tiles = in_tiles and draw(st.booleans())
    attend = attention_tiles if in_tiles else attention_forward

    def compute(t: Tensors) -> Tensors:
        shared: Any = {"qkv": t["qkv"], "rows": rows.packed(), "settings": how, "seed": seed}
        output, logsumexp = attend(**shared, with_logsumexp=True)
        assert logsumexp is not None
        alone, _ = attend(**shared, with_logsumexp=False)
        assert torch.equal(alone[rows.tokens()], output[rows.tokens()]) or output.isnan().any()
        shared |= {"grad_output": t["grad_output"], "logsumexp": logsumexp}
        if in_tiles:
            grad = attention_grad_tiles(**shared, output=output)
        else:
            grad = attention_backward(**shared)
        return {"output": output[rows.tokens()], "grad": grad[rows.tokens()]}

    qkv = given_tensors["qkv"].double().requires_grad_()
    exact = attention_by_torch(qkv, rows, how, seed)
    grad_output = given_tensors["grad_output"].double()[rows.tokens()]
    (grad,) = torch.autograd.grad(exact, qkv, grad_output)
    q, k, v = (largest(x) for x in qkv.detach()[rows.tokens()].split(width, dim=1))
    # Errors of the scores are relative errors of the weights, which lie between 0 and 1.
    off = min(1.0, 1e-6 + 16 * EPS * size * q * k * how.scaling)
    in_pairs = dtype == torch.bfloat16 and size % 32 == 0 and n_lanes() == 16
    of_rounding = 2 * ROUNDING[dtype]  # of weights, and of gradients of scores
    off_back = min(1.0, off + of_rounding) if in_tiles or in_pairs else off
    off = min(1.0, off + of_rounding) if in_tiles else off
    keep, longest = 1 / (1 - how.dropout), max(rows.lengths, default=0)
    slope = 4 * off_back * keep * size * largest(grad_output) * v * how.scaling
    of_grad = torch.tensor(
        [slope * k, longest * slope * q, 2 * off_back * keep * longest * largest(grad_output)]
    )
    within = {
        "output": 2 * v * keep * (off + (dtype == torch.bfloat16) * ROUNDING[dtype]),
        "grad": of_grad.repeat_interleave(width).double(),
    }
    return Case(
        given_tensors, compute, {"output": exact, "grad": grad[rows.tokens()]}, within,
        rows=torch.arange(len(rows.lengths)).repeat_interleave(torch.tensor(rows.lengths).long()),
        first=rows.before, poisoned="qkv",
    )  # fmt: skip


# --- layer normalisation -------------------------------------------------------------------------


def dropped(
    x: torch.Tensor, residual: torch.Tensor, dropout: float, seed: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The sum of ``x`` after dropout and the residual, in float64, and the factors of dropout."""
    ones, zeros = torch.ones(x.shape), torch.zeros(x.shape)
    factors = add_layernorm_forward(
        x=ones, residual=zeros, weight=ones[0], bias=None, epsilon=1.0, dropout=dropout,
        seed=seed, with_normalized=False,
    ).sum  # fmt: skip
    assert factors is not None
    keep = torch.where(factors == 0, 0.0, 1 / (1 - dropout)).double()
    return x.double() * keep + residual.double(), keep


def norm(draw: Draw) -> Case:
    dtype, n_tokens, size = draw(DTYPES), draw(TOKENS), draw(sizes(16, 800))
    with_sum, has_bias = draw(st.booleans()), draw(st.booleans())
    epsilon, dropout, seed = draw(st.sampled_from([1e-12, 1e-5, 1.0])), draw(rates()), draw(SEEDS)
    tensors = {
        "x": numbers(draw, n_tokens, size, dtype=dtype),
        "residual": numbers(draw, n_tokens, size, dtype=torch.float32),
        "weight": numbers(draw, size, dtype=torch.float32),
    }
    if has_bias:
        tensors["bias"] = numbers(draw, size, dtype=torch.float32)
    total, _ = dropped(tensors["x"], tensors["residual"], dropout, seed)
    wrapper = add_layernorm_forward if with_sum else layernorm_forward

    def compute(t: Tensors) -> Tensors:
        found = wrapper(
            **{"bias": None, **t}, epsilon=epsilon, dropout=dropout, seed=seed,
            with_normalized=True,
        )  # fmt: skip
        return {name: x for name, x in found._asdict().items() if x is not None}

    weight, bias = tensors["weight"].double(), tensors.get("bias")
    output = F.layer_norm(total, (size,), weight, None if bias is None else bias.double(), epsilon)
    normalized = F.layer_norm(total, (size,), eps=epsilon)
    rstd = (total.var(1, unbiased=False) + epsilon).rsqrt()
    off = 16 * EPS * (1 + total.abs().amax(1) * rstd)
    exact = {"output": output, "normalized": normalized, "rstd": rstd}
    within = {
        "output": off[:, None] * (1 + normalized.abs()) * weight.abs() + EPS * output.abs(),
        "normalized": off[:, None] * (1 + normalized.abs()),
        "rstd": off * rstd,
    }
    if with_sum:
        exact["sum"], within["sum"] = total, 2 * EPS * (total.abs() + 4 * largest(tensors["x"]))
    if dtype == torch.bfloat16:
        exact["rounded"], within["rounded"] = exact["output"], within["output"]
    if dtype == torch.bfloat16 and with_sum:
        del exact["output"]
    return Case(
        tensors, compute, exact, within, rows=torch.arange(n_tokens), poisoned="residual"
    )  # fmt: skip


def norm_backward(draw: Draw) -> Case:
    dtype, n_tokens, size = draw(DTYPES), draw(TOKENS), draw(sizes(16, 800))
    dropout, seed = draw(rates()), draw(SEEDS)
    which = draw(st.sets(st.sampled_from(["grad_sum", "grad_output", "grad_rounded"])))
    tensors = {
        "normalized": numbers(draw, n_tokens, size, dtype=dtype, least=0),
        "rstd": numbers(draw, n_tokens, dtype=torch.float32).abs() + 1e-3,
        "weight": numbers(draw, size, dtype=torch.float32),
    }
    for name in sorted(which):
        like = dtype if name == "grad_rounded" else torch.float32
        tensors[name] = numbers(draw, n_tokens, size, dtype=like)

    def compute(t: Tensors) -> Tensors:
        absent = {"grad_output": None, "grad_rounded": None}
        found = layernorm_backward(**{**absent, **t}, dropout=dropout, seed=seed)
        return dict(zip(("x", "residual", "weight", "bias"), found, strict=True))

    _, keep = dropped(tensors["normalized"], torch.zeros(n_tokens, size), dropout, seed)
    zeros = torch.zeros(n_tokens, size, dtype=torch.float64)
    normalized, rstd, weight = [tensors[x].double() for x in ("normalized", "rstd", "weight")]
    grad = tensors.get("grad_output", zeros).double() + tensors.get("grad_rounded", zeros)
    grad_x, grad_weight, grad_bias = torch.ops.aten.native_layer_norm_backward(
        grad, normalized / rstd[:, None], [size], torch.zeros(n_tokens, 1).double(),
        rstd[:, None], weight, torch.zeros_like(weight), [True, True, True],
    )  # fmt: skip
    residual = grad_x + tensors.get("grad_sum", zeros)
    grads = sum(tensors[name].double().abs() for name in which - {"grad_sum"}) + zeros
    scaled = grads * weight.abs()
    means = scaled.mean(1, keepdim=True), (scaled * normalized.abs()).mean(1, keepdim=True)
    off = rstd[:, None] * (scaled + means[0] + normalized.abs() * means[1]) * math.sqrt(size)
    off = EPS * (8 * off + residual.abs())
    exact = {"x": residual * keep, "residual": residual, "weight": grad_weight, "bias": grad_bias}
    within = {
        "x": off * keep + 2 * EPS * residual.abs() * keep,
        "residual": off,
        "weight": EPS * (n_tokens + 2) * (grads * normalized.abs()).sum(0),
        "bias": EPS * (n_tokens + 2) * grads.sum(0),
    }
    return Case(tensors, compute, exact, within, summed=("weight", "bias"))


# --- rotary positions ----------------------------------------------------------------------------


def rotary(draw: Draw) -> Case:
    dtype, n_tokens, half = draw(DTYPES), draw(TOKENS), draw(sizes(16, 64))
    n_heads, n_positions = draw(st.integers(1, 3)), draw(st.sampled_from([1, 2, 50]))
    in_place, backward = draw(st.booleans()), draw(st.booleans())
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    angles = torch.rand(n_positions, half, generator=generator) * 7
    at = torch.randint(n_positions, (n_tokens,), generator=generator, dtype=torch.int32)
    tensors = {
        "qkv": numbers(draw, n_tokens, 6 * n_heads * half, dtype=dtype),
        "cosines": angles.cos(),
        "sines": angles.sin(),
        "positions": at,
    }

    def compute(t: Tensors) -> Tensors:
        table = RotaryTable(cosines=t["cosines"], sines=t["sines"], positions=t["positions"])
        found = rotate(qkv=t["qkv"], table=table, in_place=in_place, backward=backward)
        assert (found is t["qkv"]) is in_place
        return {"output": found}

    exact = tensors["qkv"].double().view(n_tokens, 3, n_heads, 2, half).clone()
    turn = torch.polar(torch.ones_like(angles), -angles if backward else angles).to(torch.cdouble)
    pairs = torch.complex(exact[:, :2, :, 0], exact[:, :2, :, 1]) * turn[at.long(), None, None]
    exact[:, :2] = torch.stack([pairs.real, pairs.imag], dim=3)
    return Case(
        tensors, compute, {"output": exact.flatten(1)},
        {"output": 4 * EPS * largest(tensors["qkv"])}, rows=torch.arange(n_tokens), poisoned="qkv",
    )  # fmt: skip


# --- products of bfloat16 ------------------------------------------------------------------------


def in_tiles_or_vectors(draw: Draw, compute: Callable[[Tensors], Tensors]) -> Any:
    """The same, in tiles where a processor has them, or without."""
    in_tiles = draw(st.booleans()) and module.kernels.has_amx

    def run(t: Tensors) -> Tensors:
        with mock.patch.object(module.kernels, "has_amx", in_tiles):
            return compute(t)

    return run


def gelu_error(x: torch.Tensor) -> torch.Tensor:
    """How far from GELU, or its slope, the kernels' is."""
    return 4e-6 * (1 + x.abs().clamp(max=6))


def packed_product(draw: Draw) -> Case:
    return inference_product(draw, PackedWeights, packed_linear, TOKENS, gelu_error)


def float32_product(draw: Draw) -> Case:
    return inference_product(
        draw, Float32Weights, linear_float32, TOKENS_OF_CHUNKS, lambda x: 4 * EPS * x.abs()
    )


def inference_product(
    draw: Draw,
    kind: Any,
    linear: Any,
    tokens: st.SearchStrategy[int],
    off_by_gelu: Callable[[torch.Tensor], torch.Tensor],
) -> Case:
    n_tokens, n_in, n_out = draw(tokens), draw(sizes(kind.together, 300)), draw(sizes(32, 160))
    has_bias, gelu = draw(st.booleans()), draw(st.booleans())
    tensors = {
        "x": numbers(draw, n_tokens, n_in, dtype=kind.dtype),
        "weight": numbers(draw, n_out, n_in, dtype=kind.dtype),
    }
    if has_bias:
        tensors["bias"] = numbers(draw, n_out, dtype=torch.float32)

    def compute(t: Tensors) -> Tensors:
        weights = kind(weight=t["weight"], bias=t.get("bias"))
        return {"output": linear(x=t["x"], weights=weights, gelu=gelu)}

    exact, off = product(tensors["x"], tensors["weight"], tensors.get("bias"), kind.dtype)
    if gelu:
        exact, off = F.gelu(exact), 1.2 * off + off_by_gelu(exact)
    return Case(
        tensors, in_tiles_or_vectors(draw, compute), {"output": exact}, {"output": off},
        rows=torch.arange(n_tokens), poisoned="x",
    )  # fmt: skip


def product(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    rounded_to: torch.dtype = torch.bfloat16,
) -> tuple[torch.Tensor, torch.Tensor]:
    """A linear layer of rounded weights in float64, and how far off sums in float32 may be."""
    weight = weight.to(rounded_to).double()
    shift = weight.new_zeros(len(weight)) if bias is None else bias.double()
    exact = F.linear(x.double(), weight, shift)
    size = F.linear(x.double().abs(), weight.abs(), shift.abs())
    return exact, EPS * (x.shape[1] + 2) * size + x.shape[1] * TINY


def int8_product(draw: Draw) -> Case:
    """Numbers of any size: what is rounded is off by half a step of its token or its column."""
    n_tokens, n_in, n_out = draw(TOKENS), draw(sizes(16, 300)), draw(sizes(32, 160))
    gelu = draw(st.booleans())
    tensors = {
        "x": numbers(draw, n_tokens, n_in, dtype=draw(DTYPES)),
        "weight": numbers(draw, n_out, n_in, dtype=torch.float32),
        "bias": numbers(draw, n_out, dtype=torch.float32),
    }
    x, weight, bias = (each.double() for each in tensors.values())
    step = (x.amax(1, keepdim=True) - x.amin(1, keepdim=True)) / 255
    scale = weight.abs().amax(1) / 127
    off = 0.5 * step * weight.abs().sum(1) + 0.5 * scale * (x.abs() + 0.5 * step).sum(1)[:, None]
    exact = F.linear(x, weight, bias)
    off = 1.01 * off + EPS * (n_in + 8) * F.linear(x.abs(), weight.abs(), bias.abs())
    if gelu:
        exact, off = F.gelu(exact), 1.2 * off + 4e-4 + 4 * EPS * exact.abs()
    return int8_case(draw, tensors, gelu=gelu, exact=exact, within=off + n_in * TINY)


def int8_whole_numbers(draw: Draw) -> Case:
    """Numbers that are not rounded, from 0 to 255 and from -127 to 127: sums are exact."""
    n_tokens, n_in, n_out = draw(TOKENS), draw(sizes(16, 300)), draw(sizes(32, 160))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    x = torch.randint(0, 256, (n_tokens, n_in), generator=generator)
    weight = torch.randint(-127, 128, (n_out, n_in), generator=generator)
    x[:, 0], x[:, 1], weight[:, -1] = 255, 0, -127
    bias = torch.randint(-99, 99, (n_out,), generator=generator)
    exact = F.linear(x.double(), weight.double(), bias.double())
    tensors = {"x": x.to(draw(DTYPES)), "weight": weight.float(), "bias": bias.float()}
    within = 4 * EPS * exact.abs()  # of what float32 makes of them
    return int8_case(draw, tensors, gelu=False, exact=exact, within=within)


def int8_case(
    draw: Draw, tensors: Tensors, *, gelu: bool, exact: torch.Tensor, within: torch.Tensor
) -> Case:
    outliers = draw(st.booleans())

    def compute(t: Tensors) -> Tensors:
        weights = Int8Weights(weight=t["weight"], bias=t["bias"], gelu=gelu, outliers=outliers)
        return {"output": int8_linears(x=t["x"], layers=[weights])}

    return Case(
        tensors, in_tiles_or_vectors(draw, compute), {"output": exact}, {"output": within},
        rows=torch.arange(len(tensors["x"])), poisoned="x",
    )  # fmt: skip


class Stack(NamedTuple):
    """Weights side by side."""

    weights: Tensors
    n_in: int
    n_out: int

    def joined(self) -> torch.Tensor:
        return torch.cat(list(self.weights.values()))

    def of(self, t: Tensors) -> StackedWeights:
        return StackedWeights([t[name] for name in self.weights])


def stacks(draw: Draw) -> Stack:
    n_parts, n_rows, n_in = draw(st.integers(1, 3)), draw(sizes(32, 96)), draw(sizes(32, 160))
    weights = {f"w{i}": numbers(draw, n_rows, n_in, dtype=torch.float32) for i in range(n_parts)}
    return Stack(weights, n_in, n_parts * n_rows)


def stacked_product(draw: Draw) -> Case:
    n_tokens, stack = draw(TOKENS), stacks(draw)
    tensors = {"x": numbers(draw, n_tokens, stack.n_in, dtype=torch.bfloat16), **stack.weights}
    if draw(st.booleans()):
        tensors["bias"] = numbers(draw, stack.n_out, dtype=torch.float32)
    if has_gelu := draw(st.booleans()):
        tensors["gelu"] = torch.full((n_tokens, stack.n_out), torch.nan, dtype=torch.bfloat16)

    def compute(t: Tensors) -> Tensors:
        output = linear_stacked(
            x=t["x"], weights=stack.of(t), bias=t.get("bias"), gelu_output=t.get("gelu")
        )
        return {"output": output, **({"gelu": t["gelu"]} if has_gelu else {})}

    exact, off = product(tensors["x"], stack.joined(), tensors.get("bias"))
    found = {"output": exact, "gelu": F.gelu(exact)}
    rounded = 1.2 * (off + ROUNDING[torch.bfloat16] * exact.abs()) + gelu_error(exact)
    return Case(
        tensors, in_tiles_or_vectors(draw, compute), found if has_gelu else {"output": exact},
        {"output": off, "gelu": rounded}, rows=torch.arange(n_tokens), poisoned="x",
    )  # fmt: skip


def gradient_of_input(draw: Draw) -> Case:
    n_tokens, stack = draw(TOKENS), stacks(draw)
    grad_output = numbers(draw, n_tokens, stack.n_out, dtype=torch.bfloat16)
    tensors = {"grad_output": grad_output, **stack.weights}
    exact, off = product(grad_output, stack.joined().t())
    found, within = {}, {}
    if draw(st.booleans()):
        before = numbers(draw, n_tokens, stack.n_in, dtype=torch.bfloat16)
        tensors |= {"before": before, "gelu": torch.full_like(before, torch.nan)}
        wide = before.double().requires_grad_()
        (slope,) = torch.autograd.grad(F.gelu(wide).sum(), wide)
        exact, off = exact * slope, 1.2 * off + exact.abs() * gelu_error(before.double())
        found["gelu"] = active = F.gelu(wide.detach())
        within["gelu"] = ROUNDING[torch.bfloat16] * active.abs() + gelu_error(before.double())
    found["output"], within["output"] = exact, off

    def compute(t: Tensors) -> Tensors:
        output = linear_grad_input(
            grad_output=t["grad_output"], weights=stack.of(t),
            pre_activation=t.get("before"), gelu_output=t.get("gelu"),
        )  # fmt: skip
        return {"output": output, **({"gelu": t["gelu"]} if "gelu" in t else {})}

    return Case(
        tensors, in_tiles_or_vectors(draw, compute), found, within,
        rows=torch.arange(n_tokens), poisoned="grad_output",
    )  # fmt: skip


def gradient_of_weight(draw: Draw) -> Case:
    n_tokens, n_in, n_out = draw(TOKENS), draw(sizes(32, 200)), draw(sizes(32, 100))
    x = numbers(draw, n_tokens, n_in, dtype=torch.bfloat16)
    grad_output = numbers(draw, n_tokens, n_out, dtype=torch.bfloat16)
    nothing = torch.full((n_out, n_in), torch.nan, dtype=torch.bfloat16)
    tensors = {"x": x, "grad_output": grad_output, "weight": nothing}
    if has_bias := draw(st.booleans()):
        tensors["bias"] = nothing[:, 0].clone()

    def compute(t: Tensors) -> Tensors:
        linear_grad_weight(
            grad_output=t["grad_output"], x=t["x"], grad_weight=t["weight"],
            grad_bias=t.get("bias"),
        )  # fmt: skip
        return {name: t[name] for name in ("weight", "bias") if name in t}

    grads = grad_output.double()
    exact = {"weight": grads.t() @ x.double()}
    off = EPS * (n_tokens + 2) * x.double().abs()
    within = {
        "weight": grads.abs().t() @ off + n_tokens * TINY,
        "bias": EPS * (n_tokens + 2) * grads.abs().sum(0),
    }
    if has_bias:
        exact["bias"] = grads.sum(0)
    return Case(tensors, in_tiles_or_vectors(draw, compute), exact, within)


def gate(draw: Draw) -> Case:
    n_tokens, size = draw(TOKENS), draw(sizes(32, 320))
    hidden = numbers(draw, n_tokens, 2 * size, dtype=torch.bfloat16)
    grad_output = numbers(draw, n_tokens, size, dtype=torch.bfloat16)

    def compute(t: Tensors) -> Tensors:
        grad = gated_backward(hidden=t["hidden"], grad_output=t["grad_output"])
        return {"output": gated_forward(hidden=t["hidden"]), "grad": grad}

    x = hidden.double().requires_grad_()
    left, right = x.chunk(2, dim=1)
    exact = F.gelu(left) * right
    (grad,) = torch.autograd.grad(exact, x, grad_output.double())
    scale = torch.cat([right, torch.ones_like(right)], dim=1).detach().abs()
    error = gelu_error(left.detach())
    within = {
        "output": right.detach().abs() * error + TINY,
        "grad": grad_output.double().abs().repeat(1, 2) * scale * error.repeat(1, 2) + TINY,
    }
    return Case(
        {"hidden": hidden, "grad_output": grad_output}, compute,
        {"output": exact.detach(), "grad": grad}, within,
        rows=torch.arange(n_tokens), poisoned="hidden",
    )  # fmt: skip


# --- embeddings ----------------------------------------------------------------------------------


def rows_of_tables(
    draw: Draw, n_tokens: int
) -> tuple[list[tuple[str, int]], list[torch.Tensor | None]]:
    """Names of tables and their numbers of rows, and the row that each token has in them."""
    n_rows = [n_tokens, *(draw(st.integers(1, 40)) for _ in range(draw(st.integers(0, 2))))]
    chosen: list[torch.Tensor | None] = [torch.arange(n_tokens)]
    for n in n_rows[1:]:
        ids = torch.tensor(
            draw(st.lists(st.integers(0, n - 1), min_size=n_tokens, max_size=n_tokens))
        )
        chosen.append(ids if draw(st.booleans()) else None)
    return [(f"table {i}", n) for i, n in enumerate(n_rows)], chosen


def embedding(draw: Draw) -> Case:
    n_tokens, size = draw(TOKENS), draw(sizes(16, 800))
    epsilon, has_bias = draw(st.sampled_from([1e-12, 1e-5, 1.0])), draw(st.booleans())
    named, chosen = rows_of_tables(draw, n_tokens)
    tensors = {name: numbers(draw, n, size, dtype=torch.float32) for name, n in named}
    tensors["weight"] = numbers(draw, size, dtype=torch.float32)
    if has_bias:
        tensors["bias"] = numbers(draw, size, dtype=torch.float32)

    def compute(t: Tensors) -> Tensors:
        tables = [t[name] for name, _ in named]
        weights = EmbeddingWeights(
            tables=tables, weight=t["weight"], bias=t.get("bias"), epsilon=epsilon
        )
        found = embed(weights=weights, ids=chosen, n_tokens=n_tokens, with_normalized=True)
        assert found.normalized is not None
        assert found.rstd is not None
        return {"output": found.output, "normalized": found.normalized, "rstd": found.rstd}

    read = [
        tensors[name].double()[torch.zeros(n_tokens, dtype=torch.long) if ids is None else ids]
        for (name, _), ids in zip(named, chosen, strict=True)
    ]
    total, weight, bias = sum(read), tensors["weight"].double(), tensors.get("bias")
    normalized = F.layer_norm(total, (size,), eps=epsilon)
    output = normalized * weight + (0 if bias is None else bias.double())
    rstd = (total.var(1, unbiased=False) + epsilon).rsqrt()
    relative = 16 * EPS * (1 + sum(map(torch.abs, read)).amax(1) * rstd)
    off = relative[:, None] * (1 + normalized.abs())
    within = {
        "output": off * weight.abs() + EPS * output.abs(),
        "normalized": off,
        "rstd": relative * rstd,
    }
    return Case(
        tensors, compute, {"output": output, "normalized": normalized, "rstd": rstd}, within,
        rows=torch.arange(n_tokens), poisoned="table 0",
    )  # fmt: skip


def embedding_backward(draw: Draw) -> Case:
    n_tokens, size = draw(TOKENS), draw(sizes(16, 800))
    named, chosen = rows_of_tables(draw, n_tokens)
    tensors = {
        "normalized": numbers(draw, n_tokens, size, dtype=torch.float32, least=0),
        "rstd": numbers(draw, n_tokens, dtype=torch.float32).abs() + 1e-3,
        "weight": numbers(draw, size, dtype=torch.float32),
        "grad_output": numbers(draw, n_tokens, size, dtype=torch.float32),
    }
    for name, n in named:
        if draw(st.booleans()):
            tensors[name] = numbers(draw, n, size, dtype=torch.float32)

    def compute(t: Tensors) -> Tensors:
        tables = [
            Table(torch.zeros(n, size), ids) for (_, n), ids in zip(named, chosen, strict=True)
        ]
        own = {name: t[name] for name in ("normalized", "rstd", "weight", "grad_output")}
        of_norm = embed_backward(
            tables=tables, grads=[t.get(name) for name, _ in named], **own,
        )  # fmt: skip
        found = {name: t[name] for name, _ in named if name in t}
        return found | {"weight": of_norm[0], "bias": of_norm[1]}

    normalized, rstd, weight = [tensors[x].double() for x in ("normalized", "rstd", "weight")]
    grad = tensors["grad_output"].double()
    grad_sum, grad_weight, grad_bias = torch.ops.aten.native_layer_norm_backward(
        grad, normalized / rstd[:, None], [size], torch.zeros(n_tokens, 1).double(),
        rstd[:, None], weight, torch.zeros_like(weight), [True, True, True],
    )  # fmt: skip
    scaled = grad.abs() * weight.abs()
    means = scaled.mean(1, keepdim=True), (scaled * normalized.abs()).mean(1, keepdim=True)
    off = rstd[:, None] * (scaled + means[0] + normalized.abs() * means[1]) * math.sqrt(size)
    exact = {"weight": grad_weight, "bias": grad_bias}
    within = {
        "weight": EPS * (n_tokens + 2) * (grad.abs() * normalized.abs()).sum(0),
        "bias": EPS * (n_tokens + 2) * grad.abs().sum(0),
    }
    for (name, _), ids in zip(named, chosen, strict=True):
        if name in tensors:
            at = torch.zeros(n_tokens, dtype=torch.long) if ids is None else ids
            before = tensors[name].double()
            exact[name] = before.index_add(0, at, grad_sum)
            sums = before.abs().index_add(0, at, grad_sum.abs())
            within[name] = EPS * ((n_tokens + 2) * sums).index_add(0, at, 8 * off)
    return Case(tensors, compute, exact, within, summed=("weight", "bias"))


# --- steps of the optimizer ----------------------------------------------------------------------


def step(draw: Draw) -> Case:
    shapes = draw(st.lists(STATES, min_size=1, max_size=3))
    lr, decay, epsilon = draw(st.sampled_from([1e-5, 0.1])), draw(st.sampled_from([0, 0.1])), 1e-8
    betas = draw(st.sampled_from([(0.9, 0.999), (0.0, 0.5)]))
    number = draw(st.sampled_from([1, 9, 1000]))
    divisor = draw(st.sampled_from([1.0, 3.0, 65_536.0]))
    tensors: Tensors = {}
    exact: Tensors = {}
    for i, n in enumerate(shapes):
        gradient = numbers(draw, n, dtype=draw(DTYPES))
        weight, m, v = (numbers(draw, n, dtype=torch.float32) for _ in range(3))
        states = [weight, m, v.square()]
        tensors |= {f"g{i}": gradient, f"w{i}": weight, f"m{i}": m, f"v{i}": states[2]}
        if draw(st.booleans()):
            tensors[f"b{i}"] = torch.full((n,), torch.nan, dtype=torch.bfloat16)
        own = [[x.double()] for x in states]
        adamw(
            own[0], [gradient.double() / divisor], *own[1:], [], [torch.tensor(number - 1.0)],
            amsgrad=False, beta1=betas[0], beta2=betas[1], lr=lr, weight_decay=decay, eps=epsilon,
            maximize=False, foreach=False,
        )  # fmt: skip
        exact |= {f"{name}{i}": x for name, (x,) in zip("wmv", own, strict=True)}
        exact |= {f"b{i}": own[0][0]} if f"b{i}" in tensors else {}
    factors = 1 - lr * decay, lr / (1 - betas[0] ** number), (1 - betas[1] ** number) ** 0.5

    def compute(t: Tensors) -> Tensors:
        adamw_step(
            tensors=[
                AdamWTensor(*(t[f"{s}{i}"] for s in "wgmv"), *factors, t.get(f"b{i}"))
                for i in range(len(shapes))
            ],
            divisor=divisor, epsilon=epsilon, betas=betas,
        )  # fmt: skip
        return {name: t[name] for name in exact}

    within: dict[str, Any] = {}
    for i in range(len(shapes)):
        g, m, v = (tensors[f"{name}{i}"].double().abs() for name in "gmv")
        moments, update = 8 * EPS * (m + g / divisor), 8 * EPS * (v + (g / divisor).square())
        moved = exact[f"w{i}"] - tensors[f"w{i}"].double() * factors[0]
        # m may be a small difference of large numbers
        size = factors[1] * moments / (exact[f"v{i}"].sqrt() / factors[2] + epsilon)
        off = 16 * EPS * moved.abs() + size + 2 * EPS * tensors[f"w{i}"].double().abs()
        within |= {f"m{i}": moments, f"v{i}": update + 1e-44, f"w{i}": off, f"b{i}": off}
    return Case(tensors, compute, exact, within)


def size_of_gradients(draw: Draw) -> Case:
    many = draw(st.lists(STATES, min_size=1, max_size=4))
    tensors = {f"g{i}": numbers(draw, n, dtype=draw(DTYPES)) for i, n in enumerate(many)}
    joined = torch.cat([x.double() for x in tensors.values()])
    exact = torch.linalg.vector_norm(joined)
    return Case(
        tensors, lambda t: {"norm": grad_norm(gradients=list(t.values()))}, {"norm": exact},
        {"norm": 1e-5 * exact}, summed=("norm",),
    )  # fmt: skip


# --- what holds for each -------------------------------------------------------------------------


def copied(tensors: Tensors) -> Tensors:
    return {name: x.clone() for name, x in tensors.items()}


def computed(case: Case, n_threads: int = 1, **changed: torch.Tensor) -> Tensors:
    with mock.patch.object(torch, "get_num_threads", return_value=n_threads):
        return case.compute({**copied(case.tensors), **changed})


def assert_same(found: Tensors, expected: Tensors) -> None:
    for name, x in expected.items():
        assert torch.equal(found[name].isnan(), x.isnan()), name
        assert torch.equal(found[name].nan_to_num(0), x.nan_to_num(0)), name


def is_as_torch_s(case: Case, draw: Draw) -> None:
    found = computed(case, n_threads=draw(st.integers(1, 3)))
    for name, exact in case.exact.items():
        x = found[name]
        assert x.shape == exact.shape, name
        within = case.within[name] + ROUNDING[x.dtype] * exact.abs() + TINY
        off = (x.double() - exact).abs()
        assert bool((off <= within).all()), (name, float((off / within).nan_to_num(9e9).max()))


def has_any_number_of_threads(case: Case, draw: Draw) -> None:
    one, several = computed(case), computed(case, n_threads=draw(st.sampled_from([2, 3])))
    for name in case.summed:
        off = (several.pop(name) - one.pop(name)).abs()
        assert bool((off <= 2 * case.within[name]).all()), name
    assert_same(several, one)


def keeps_nan_in_its_row(case: Case, draw: Draw) -> None:
    """What is not a number in one row stays there, and is not lost."""
    assert case.rows is not None
    assume(len(case.rows))
    token = draw(st.integers(0, len(case.rows) - 1))
    clean, poisoned = computed(case), case.tensors[case.poisoned].clone()
    poisoned[case.first + token, draw(st.integers(0, poisoned.shape[1] - 1))] = torch.nan
    found = computed(case, **{case.poisoned: poisoned})
    same = case.rows != case.rows[token]
    assert_same({k: x[same] for k, x in found.items()}, {k: x[same] for k, x in clean.items()})
    assert any(x[token].isnan().any() for x in found.values())


def beside(x: torch.Tensor, n_bytes: int) -> torch.Tensor:
    """The same numbers, so many bytes behind where memory begins."""
    memory = torch.zeros(n_bytes + x.nbytes + 8, dtype=torch.uint8).numpy()
    found = torch.frombuffer(memory, dtype=x.dtype, count=x.numel(), offset=n_bytes)
    return found.view(x.shape).copy_(x)


READ_OR_REFUSED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "columns one after another": lambda x: x.t().contiguous().t(),
    "every second number": lambda x: torch.stack([x, x], -1)[..., 0],
    "part of wider rows": lambda x: torch.cat([x, x], -1)[..., x.shape[-1] :],
    "one row again and again": lambda x: x[:1].expand_as(x),
    "one number behind another": lambda x: beside(x, x.itemsize),
    "misaligned": lambda x: beside(x, 1),
    "with another sign": torch._neg_view,
    "zeros without memory": lambda x: torch._efficientzerotensor(x.shape, dtype=x.dtype),
    "with a gradient": lambda x: x.clone().requires_grad_(),
    "shorter": lambda x: x[:-1],
    "narrower": lambda x: x[..., :-1].contiguous(),
    "of more dimensions": lambda x: x[None][None],
}
REFUSED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "float16": torch.Tensor.half,
    "float64": torch.Tensor.double,
    "int64": torch.Tensor.long,
    "complex": lambda x: x.to(torch.cfloat),
    "sparse": torch.Tensor.to_sparse,
    "on another device": lambda x: x.to("meta"),
}


def reads_or_refuses_any_layout(case: Case, draw: Draw) -> None:
    name = draw(st.sampled_from(sorted(case.tensors)))
    x = case.tensors[name]
    assume(x.numel() > 1 and (x.is_floating_point() or name == "positions"))
    odd = draw(st.sampled_from([*READ_OR_REFUSED, *REFUSED]))
    if odd in REFUSED:
        with pytest.raises(ValueError, match="a kernel"):
            computed(case, **{name: REFUSED[odd](x)})
        return
    assume(x.is_floating_point() or odd not in ("with another sign", "with a gradient"))
    view = READ_OR_REFUSED[odd](x)
    plain = torch.empty(view.shape, dtype=view.dtype).copy_(view.detach())
    try:
        found = computed(case, **{name: view})
    except (ValueError, IndexError):  # the second of a table that has no row for an id
        return
    assert_same(found, computed(case, **{name: plain}))


BF16_PRODUCTS = [packed_product, stacked_product, gradient_of_input, gradient_of_weight, gate]
INT8_PRODUCTS = [int8_product, int8_whole_numbers]
WITH_ROWS = [
    attention, norm, embedding, rotary, float32_product, packed_product, stacked_product,
    gradient_of_input, gate, *INT8_PRODUCTS,
]  # fmt: skip
ALL = [
    attention, norm, norm_backward, embedding, embedding_backward, rotary, step, size_of_gradients,
    float32_product, *BF16_PRODUCTS, *INT8_PRODUCTS,
]  # fmt: skip
PAIRS = [
    *((maker, is_as_torch_s) for maker in ALL),
    *((maker, has_any_number_of_threads) for maker in ALL),
    *((maker, keeps_nan_in_its_row) for maker in WITH_ROWS),
    *((maker, reads_or_refuses_any_layout) for maker in ALL),
]
needs_bf16_products = pytest.mark.skipif(
    not module.has_bf16_products(), reason="needs a processor that multiplies bfloat16"
)
needs_int8_products = pytest.mark.skipif(
    not module.has_int8_products(), reason="needs a processor that multiplies int8"
)


def needs(maker: Any) -> Any:
    if maker in INT8_PRODUCTS:
        return needs_int8_products
    return needs_bf16_products if maker in BF16_PRODUCTS else ()


of_each_kernel = pytest.mark.parametrize(
    ("maker", "holds"),
    [pytest.param(*pair, marks=needs(pair[0])) for pair in PAIRS],
    ids=lambda function: function.__name__,
)


@of_each_kernel
@settings(max_examples=25)
@given(data=st.data())
def test_a_kernel(maker: Any, holds: Any, data: st.DataObject) -> None:
    holds(maker(data.draw), data.draw)


@pytest.mark.slow
@of_each_kernel
@settings(max_examples=300, derandomize=False, print_blob=True)
@given(data=st.data())
def test_a_kernel_many_times(maker: Any, holds: Any, data: st.DataObject) -> None:
    holds(maker(data.draw), data.draw)
