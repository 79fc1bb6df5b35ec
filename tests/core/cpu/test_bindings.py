"""The compiled kernels against the same arithmetic in torch's operations."""

from __future__ import annotations

import ctypes
import dataclasses
import hashlib
import math
import mmap
import re
import resource
import sys
from contextlib import contextmanager, nullcontext
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from support import ROOT
from torch.nn import functional as F

from skbert._core.attention.settings import AttentionSettings
from skbert._core.cpu import fused
from skbert._core.cpu.bindings import module
from skbert._core.cpu.bindings.adamw import AdamWStates, adamw_step, grad_norm
from skbert._core.cpu.bindings.attention import (
    PackedRows,
    attention_backward,
    attention_forward,
)
from skbert._core.cpu.bindings.checks import WrittenMemory
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
from skbert._core.cpu.fused import (
    can_fuse_adamw,
    can_fuse_attention,
    can_fuse_grad_norm,
    can_fuse_layernorm,
    can_fuse_linear,
    fused_attention,
    max_packed_tokens,
)
from skbert._core.cpu.stacked import StackedLinear
from skbert._core.runtime.autograd import AdamWTensor
from skbert._core.task import Layout
from skbert._core.training.optim import adamw
from skbert.exceptions import SkbertWarning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [
    pytest.mark.skipif(module.kernels is None, reason="built without a compiler"),
    pytest.mark.usefixtures("either_width"),
]


@pytest.fixture(autouse=True)
def vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are chosen, whatever processor runs the tests."""
    monkeypatch.setattr(fused, "has_vectors", lambda: True)


CSRC = ROOT / "skbert" / "_core" / "cpu" / "csrc"


def test_a_change_of_the_interface_raises_its_version() -> None:
    sources = "".join((CSRC / name).read_text("utf-8") for name in ("kernels.h", "module.c"))
    code = "".join(re.sub(r"/\*.*?\*/", "", sources, flags=re.DOTALL).split())
    digest = hashlib.sha256(code.encode()).hexdigest()[:16]
    assert (module.INTERFACE_VERSION, digest) == (15, "c5616296caa5ac49"), (
        "raise the version in module.c and bindings/module.py if a function or a struct changed, "
        "and note both here"
    )


@pytest.mark.parametrize("version", [{}, {"interface_version": module.INTERFACE_VERSION + 1}])
def test_kernels_from_other_sources_are_not_used(
    version: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = SimpleNamespace(__file__="kernels.so", has_bf16_dot=1, **version)
    monkeypatch.setitem(sys.modules, "skbert._core.cpu.kernels", other)
    spec: Any = spec_from_file_location("skbert.module", module.__file__)
    found = module_from_spec(spec)
    spec.loader.exec_module(found)
    with pytest.warns(SkbertWarning, match=r"kernels\.so are not used.*build_ext") as caught:
        assert not found.has_kernels()
    assert caught[0].filename == __file__
    assert not found.has_kernels()  # without another warning
    assert not found.has_bf16_products()


LENGTHS = {
    "one": [1],
    "short": [1, 2, 3, 3, 5, 11, 16],
    "at the edges of vectors": [15, 16, 17, 31, 32, 33],
    "long": [64, 100, 129, 250],
    "longest": [512],
}
# How far a token sees, beside lengths of rows that this cuts in different ways.
WINDOWS = {
    "itself": (1, [1, 5, 70]),
    "neighbours": (3, [2, 64, 65, 130]),
    "within a block": (65, [64, 66, 129, 300]),
    "blocks": (130, [100, 260, 600]),
    "all": (600, [100, 600]),
}
WITHIN = {torch.float32: 1e-5, torch.bfloat16: 3e-2}
BEHIND = 5  # tokens that belong to no row


def layout_of(lengths: list[int]) -> Layout:
    rows = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    return Layout(np.array(lengths), (), rows_of(lengths).cu_seqlens, rows)


def rows_of(lengths: list[int]) -> PackedRows:
    return PackedRows(torch.tensor(np.cumsum([0, *lengths]), dtype=torch.int32))


def random_qkv(lengths: list[int], width: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(sum(lengths) + BEHIND, width).to(dtype).requires_grad_()


def by_torch(
    qkv: torch.Tensor,
    lengths: list[int],
    size: int,
    causal: bool,
    keeps: list[torch.Tensor] | None = None,
    window: int | None = None,
) -> torch.Tensor:
    """Attention in float64, row by row; ``keeps`` are factors of dropout of each row."""
    found = []
    for number, states in enumerate(qkv[: sum(lengths)].double().split(lengths)):
        q, k, v = states.view(len(states), 3, -1, size).permute(1, 2, 0, 3)
        scores = q @ k.transpose(1, 2) * 0.3
        if causal:
            scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf)
        if window is not None:
            at = torch.arange(len(states))
            scores = scores.masked_fill((at[:, None] - at).abs() >= window, -torch.inf)
        weights = scores.softmax(-1)
        if keeps is not None:
            weights = weights * keeps[number]
        found.append((weights @ v).transpose(0, 1).flatten(1))
    return F.pad(torch.cat(found), (0, 0, 0, BEHIND))


@pytest.mark.usefixtures("either_registers")
@pytest.mark.parametrize("dtype", WITHIN)
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize(("n_heads", "size"), [(1, 16), (2, 32), (3, 64), (1, 48)])
@pytest.mark.parametrize("causal", [False, True], ids=["whole", "causal"])
def test_attention_and_its_gradient(
    dtype: torch.dtype, lengths: list[int], n_heads: int, size: int, causal: bool
) -> None:
    torch.manual_seed(0)
    qkv = random_qkv(lengths, 3 * n_heads * size, dtype)
    grad_output = torch.randn(len(qkv), n_heads * size).to(dtype)
    found = fused_attention(qkv, rows_of(lengths), AttentionSettings(size, 0.3, causal, 0.0))
    found.backward(grad_output)
    exact = qkv.detach().double().requires_grad_()
    expected = by_torch(exact, lengths, size, causal)
    expected.backward(grad_output.double())
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), expected, atol=WITHIN[dtype], rtol=WITHIN[dtype])
    assert qkv.grad is not None
    assert exact.grad is not None
    torch.testing.assert_close(
        qkv.grad.double(), exact.grad, atol=4 * WITHIN[dtype], rtol=4 * WITHIN[dtype]
    )


@pytest.mark.parametrize("dtype", WITHIN)
@pytest.mark.parametrize(("window", "lengths"), WINDOWS.values(), ids=WINDOWS)
@pytest.mark.parametrize("causal", [False, True], ids=["whole", "causal"])
def test_attention_within_a_window_and_its_gradient(
    dtype: torch.dtype, window: int, lengths: list[int], causal: bool
) -> None:
    torch.manual_seed(0)
    qkv = random_qkv(lengths, 3 * 2 * 32, dtype)
    grad_output = torch.randn(len(qkv), 2 * 32).to(dtype)
    settings = AttentionSettings(32, 0.3, causal, 0.0, window)
    found = fused_attention(qkv, rows_of(lengths), settings)
    found.backward(grad_output)
    exact = qkv.detach().double().requires_grad_()
    expected = by_torch(exact, lengths, 32, causal, window=window)
    expected.backward(grad_output.double())
    torch.testing.assert_close(found.double(), expected, atol=WITHIN[dtype], rtol=WITHIN[dtype])
    assert qkv.grad is not None
    assert exact.grad is not None
    torch.testing.assert_close(
        qkv.grad.double(), exact.grad, atol=4 * WITHIN[dtype], rtol=4 * WITHIN[dtype]
    )


def test_a_window_drops_the_same_weights_on_the_way_back() -> None:
    settings = AttentionSettings(16, 0.3, False, 0.4, 3)
    torch.manual_seed(0)
    qkv = random_qkv([70, 90], 48, torch.float32)

    def attend(x: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(1)
        return fused_attention(x, rows_of([70, 90]), settings)[: 70 + 90]

    attend(qkv).square().sum().backward()
    assert qkv.grad is not None
    direction = torch.randn_like(qkv)
    with torch.no_grad():
        ends = [attend(qkv + step * direction).double().square().sum() for step in (1e-3, -1e-3)]
    slope = (qkv.grad.double() * direction).sum()
    torch.testing.assert_close((ends[0] - ends[1]) / 2e-3, slope, rtol=1e-2, atol=1e-2)


@contextmanager
def limited_memory(n_bytes: int) -> Iterator[None]:
    """Let nothing allocate more than so much beyond what is allocated now."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limits = resource.getrlimit(resource.RLIMIT_AS)
    now = pages * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + n_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


@pytest.mark.parametrize("dtype", WITHIN)
@pytest.mark.parametrize("window", [65, None])
def test_a_long_row_takes_memory_by_its_length(dtype: torch.dtype, window: int | None) -> None:
    length, threads = 8192, torch.get_num_threads()
    torch.manual_seed(0)
    qkv = torch.randn(length, 3 * 16).to(dtype)
    settings = AttentionSettings(16, 0.3, False, 0.0, window)
    how: Any = {"qkv": qkv, "rows": rows_of([length]), "settings": settings, "seed": 0}
    torch.set_num_threads(1)
    try:
        attention_forward(**how, with_logsumexp=True)
        with limited_memory(1 << 25):  # all scores would take eight times as much
            output, logsumexp = attention_forward(**how, with_logsumexp=True)
            assert logsumexp is not None
            grad = attention_backward(**how, grad_output=output, logsumexp=logsumexp)
            with pytest.raises(OSError, match="allocate"):
                mmap.mmap(-1, 1 << 26)
    finally:
        torch.set_num_threads(threads)
    q, k, v = qkv.detach().double().split(16, dim=1)
    scores = q[4096:4100] @ k.t() * 0.3
    if window is not None:
        distances = torch.arange(4096, 4100)[:, None] - torch.arange(length)
        scores[distances.abs() >= window] = -torch.inf
    torch.testing.assert_close(
        output[4096:4100].double(), scores.softmax(-1) @ v, atol=WITHIN[dtype], rtol=WITHIN[dtype]
    )
    assert grad.isfinite().all()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout_hides_no_nan_from_the_gradient_of_values(dtype: torch.dtype, bad: float) -> None:
    qkv = torch.randn(16, 96, generator=torch.Generator().manual_seed(0)).to(dtype)
    qkv[3, :32] = bad  # a query, whose weights are NaN
    how: Any = {"qkv": qkv, "rows": rows_of([16]), "seed": 1}
    how["settings"] = AttentionSettings(32, 0.2, False, 0.5)
    _, logsumexp = attention_forward(**how, with_logsumexp=True)
    assert logsumexp is not None
    grad = attention_backward(**how, grad_output=qkv.new_ones(16, 32), logsumexp=logsumexp)
    assert bool(grad[:, 64:].isnan().all())


@pytest.mark.usefixtures("either_registers")
@pytest.mark.parametrize("scale", [1e2, 1e3, 1e4, 1e5])
def test_large_scores_give_no_weight_above_one_on_the_way_back(scale: float) -> None:
    torch.manual_seed(0)
    qkv = torch.randn(60, 3, 64)
    qkv[:, :2] *= scale
    qkv = qkv.flatten(1).bfloat16().requires_grad_()
    found = fused_attention(qkv, rows_of([60]), AttentionSettings(64, 0.125, False, 0.0))
    found.sum().backward()
    assert qkv.grad is not None
    grad_value = qkv.grad[:, 128:]
    assert grad_value.min() >= 0
    assert grad_value.max() <= 60


def keeps_of(lengths: list[int], n_heads: int, size: int, rate: float) -> list[torch.Tensor]:
    """Factors of dropout: where scores are zero and values the unit matrix, they are seen."""
    qkv = torch.zeros(sum(lengths) + BEHIND, 3, n_heads, size)
    for begin, length in zip(np.cumsum([0, *lengths]), lengths, strict=False):
        qkv[begin : begin + length, 2] = torch.eye(length, size)[:, None]
    seen = fused_attention(
        qkv.flatten(1), rows_of(lengths), AttentionSettings(size, 0.3, False, rate)
    )
    rows = seen[: sum(lengths)].view(-1, n_heads, size).split(lengths)
    return [row.transpose(0, 1)[..., : len(row)] * len(row) for row in rows]


@pytest.mark.usefixtures("either_registers")
@pytest.mark.parametrize("dtype", WITHIN)
def test_attention_drops_the_same_weights_on_the_way_back(dtype: torch.dtype) -> None:
    lengths, n_heads, size = [3, 17, 30], 2, 32
    torch.manual_seed(3)
    qkv = random_qkv(lengths, 3 * n_heads * size, dtype)
    grad_output = torch.randn(len(qkv), n_heads * size).to(dtype)
    torch.manual_seed(4)
    keeps = keeps_of(lengths, n_heads, size, 0.3)
    torch.manual_seed(4)
    found = fused_attention(qkv, rows_of(lengths), AttentionSettings(size, 0.3, False, 0.3))
    found.backward(grad_output)
    exact = qkv.detach().double().requires_grad_()
    expected = by_torch(exact, lengths, size, False, keeps)
    expected.backward(grad_output.double())
    near = {"atol": WITHIN[dtype], "rtol": WITHIN[dtype]}
    torch.testing.assert_close(found.double(), expected, **near)
    assert qkv.grad is not None
    torch.testing.assert_close(qkv.grad.double(), exact.grad, **near)


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_a_share_of_weights_is_dropped_independently(rate: float) -> None:
    torch.manual_seed(0)
    kept = torch.stack(keeps_of([64] * 60, 4, 64, rate))
    values = torch.unique(kept.round(decimals=4))
    assert values.tolist() == pytest.approx([0.0, 1 / (1 - rate)], abs=1e-3)
    dropped = (kept == 0).double()
    spread = np.sqrt(rate * (1 - rate) / dropped.numel())
    assert abs(dropped.mean() - rate) < 5 * spread
    centred = dropped - dropped.mean()
    for axis in range(4):  # neighbours among rows, heads, tokens and places
        n = dropped.shape[axis] - 1
        both = (centred.narrow(axis, 0, n) * centred.narrow(axis, 1, n)).mean()
        assert abs(both) < 5 * rate * (1 - rate) / np.sqrt(dropped.numel() * n / (n + 1))


def test_torch_s_seed_says_what_is_dropped() -> None:
    def drawn() -> torch.Tensor:
        return torch.stack(keeps_of([20, 20], 2, 32, 0.5))

    torch.manual_seed(7)
    first, second = drawn(), drawn()
    torch.manual_seed(7)
    assert torch.equal(drawn(), first)
    assert not torch.equal(second, first)
    torch.manual_seed(7)
    keeps_of([20], 2, 32, 0.0)  # draws nothing
    assert torch.equal(drawn(), first)


def inputs_of_norm(dtype: torch.dtype, width: int = 48) -> list[torch.Tensor]:
    torch.manual_seed(1)
    found = torch.randn(37, width).to(dtype)
    states, weight, bias = torch.randn(37, width), torch.randn(width), torch.randn(width)
    return [x.requires_grad_() for x in (found, states, weight, bias)]


# Which of the two results are used, the whole one and the rounded: float32 is not rounded.
USED = [
    (torch.float32, (True, False)),
    (torch.bfloat16, (True, True)),
    (torch.bfloat16, (True, False)),
    (torch.bfloat16, (False, True)),
]


@pytest.mark.parametrize(("dtype", "used"), USED)
@pytest.mark.parametrize("rate", [0.0, 0.4])
def test_normed_and_its_gradients(
    dtype: torch.dtype, rate: float, used: tuple[bool, bool]
) -> None:
    given = inputs_of_norm(dtype)
    torch.manual_seed(5)
    results = fused.fused_layernorm(*given, 1e-6, rate)
    grad_outputs = [torch.randn(37, 48), torch.randn(37, 48).to(dtype)]
    taken = [(results[i], grad_outputs[i]) for i in range(2) if used[i]]
    torch.autograd.backward(*zip(*taken, strict=True))
    found, states = given[0].grad, given[1].grad
    assert found is not None
    assert states is not None
    # The gradient of what is dropped tells the factors.
    keep = (found.double() / states.double()).detach()
    keep = torch.where(keep > 0.5 / (1 - rate), 1 / (1 - rate), 0.0) if rate else keep.fill_(1)
    exact = [x.detach().double().requires_grad_() for x in given]
    total = exact[0] * keep + exact[1]
    normed = F.layer_norm(total, (48,), exact[2], exact[3], 1e-6)
    torch.testing.assert_close(results[0].double(), normed, atol=1e-5, rtol=1e-5)
    if results[1] is not None:
        assert torch.equal(results[1], results[0].to(dtype))
    normed.backward(sum(g.double() for _, g in taken))
    for own, expected in zip(given, exact, strict=True):
        assert own.grad is not None
        tolerance = 4e-2 if dtype == torch.bfloat16 else 2e-5  # where what is kept is rounded
        torch.testing.assert_close(
            own.grad.double(), expected.grad, atol=tolerance, rtol=tolerance
        )
    if rate:
        assert abs((keep == 0).double().mean() - rate) < 0.06


@pytest.mark.parametrize("dtype", WITHIN)
@pytest.mark.parametrize("with_bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("used", [(True, True), (True, False), (False, True)], ids=str)
def test_a_sum_its_normalisation_and_their_gradients(
    dtype: torch.dtype, with_bias: bool, used: tuple[bool, bool]
) -> None:
    given = inputs_of_norm(dtype)
    bias = given[3] if with_bias else None
    results = fused.fused_add_norm(*given[:3], bias, 1e-6, 0.0)
    assert [result.dtype for result in results] == [torch.float32, dtype]
    grad_outputs = [torch.randn(37, 48), torch.randn(37, 48).to(dtype)]
    taken = [(results[i], grad_outputs[i]) for i in range(2) if used[i]]
    torch.autograd.backward(*zip(*taken, strict=True))
    exact = [x.detach().double().requires_grad_() for x in given]
    total = exact[0] + exact[1]
    normed = F.layer_norm(total, (48,), exact[2], exact[3] if with_bias else None, 1e-6)
    torch.testing.assert_close(results[0].double(), total, atol=1e-6, rtol=1e-6)
    near = {"atol": WITHIN[dtype], "rtol": WITHIN[dtype]}
    torch.testing.assert_close(results[1].double(), normed, **near)
    wanted = [((total, normed)[i], grad_outputs[i].double()) for i in range(2) if used[i]]
    torch.autograd.backward(*zip(*wanted, strict=True))
    assert (given[3].grad is None) == (not with_bias)
    for own, expected in zip(given[: 3 + with_bias], exact, strict=False):
        assert own.grad is not None
        want = torch.zeros_like(expected) if expected.grad is None else expected.grad
        tolerance = 4e-2 if dtype == torch.bfloat16 else 2e-5
        torch.testing.assert_close(own.grad.double(), want, atol=tolerance, rtol=tolerance)


def test_a_sum_drops_what_its_gradient_drops() -> None:
    x, residual, weight, _ = inputs_of_norm(torch.float32, 320)
    total, _ = fused.fused_add_norm(x, residual, weight, None, 1e-6, 0.3)
    total.sum().backward()
    factors = (total - residual) / x
    assert x.grad is not None
    torch.testing.assert_close(x.grad, factors.detach(), atol=1e-2, rtol=1e-2)
    assert abs((x.grad == 0).double().mean() - 0.3) < 0.03


@pytest.mark.parametrize("dtype", WITHIN)
@pytest.mark.parametrize(("n_tokens", "size"), [(1, 32), (2, 48), (3, 64), (37, 384)])
def test_normed_for_inference_as_in_training(dtype: torch.dtype, n_tokens: int, size: int) -> None:
    torch.manual_seed(n_tokens)
    x = torch.randn(n_tokens, size).to(dtype).requires_grad_()
    given = x, torch.randn(n_tokens, size), torch.randn(size), torch.randn(size)
    trained = fused.fused_layernorm(*given, 1e-6, 0.0)
    with torch.no_grad():
        found = fused.fused_layernorm(*given, 1e-6, 0.0)
    assert torch.equal(found[0], trained[0])
    assert torch.equal(found[1], trained[1])


@pytest.mark.parametrize("with_grad", [False, True])
@pytest.mark.parametrize("dtype", WITHIN)
@pytest.mark.parametrize(("n_tokens", "size"), [(1, 32), (37, 48)])
def test_a_token_whose_variance_overflows_has_no_norm(
    n_tokens: int, size: int, dtype: torch.dtype, with_grad: bool
) -> None:
    x, residual = torch.randn(n_tokens, size).to(dtype), torch.randn(n_tokens, size)
    residual[-1] *= 1e30
    with torch.set_grad_enabled(with_grad):
        x.requires_grad_(with_grad)
        found = fused.fused_layernorm(x, residual, torch.ones(size), torch.ones(size), 1e-6, 0.0)
    for states in found:
        assert states[-1].isnan().all()
        assert states[:-1].isfinite().all()


@pytest.mark.parametrize("dtype", WITHIN)
def test_no_bias_is_a_bias_of_zeros(dtype: torch.dtype) -> None:
    x, residual, weight, bias = inputs_of_norm(dtype)
    found = fused.fused_layernorm(x, residual, weight, None, 1e-6, 0.0)
    expected = fused.fused_layernorm(x, residual, weight, torch.zeros_like(bias), 1e-6, 0.0)
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])


@pytest.mark.parametrize("with_bias", [False, True], ids=["no bias", "bias"])
def test_normalisation_without_a_bias(with_bias: bool) -> None:
    x, residual, weight, bias = inputs_of_norm(torch.float32)
    own_bias = bias if with_bias else None
    assert can_fuse_layernorm(x, residual, weight, own_bias)
    found, _ = fused.fused_layernorm(x, residual, weight, own_bias, 1e-6, 0.0)
    torch.testing.assert_close(
        found, F.layer_norm(x + residual, (48,), weight, own_bias, 1e-6), atol=1e-5, rtol=1e-5
    )
    found.sum().backward()
    assert (bias.grad is None) == (not with_bias)


# --- rotary positions and gates ------------------------------------------------------------------


def turned(qkv: torch.Tensor, angles: torch.Tensor, size: int) -> torch.Tensor:
    """Query and key as complex numbers, multiplied by those of length 1."""
    parts = qkv.view(len(qkv), 3, -1, 2, size // 2).movedim(3, -1).contiguous()
    factors = torch.polar(torch.ones_like(angles), angles)[:, None, None]
    query_key = torch.view_as_complex(parts[:, :2]) * factors
    return torch.cat([torch.view_as_real(query_key), parts[:, 2:]], 1).movedim(-1, 3).flatten(1)


@pytest.mark.parametrize("dtype", WITHIN)
@pytest.mark.parametrize(("n_heads", "size"), [(1, 32), (3, 64), (2, 96)])
def test_rotary_positions_and_their_gradient(dtype: torch.dtype, n_heads: int, size: int) -> None:
    torch.manual_seed(0)
    qkv = torch.randn(23, 3 * n_heads * size).to(dtype).requires_grad_()
    angles = 10 * torch.randn(7, size // 2)
    positions = torch.randint(7, (23,), dtype=torch.int32)
    table = RotaryTable(cosines=angles.cos(), sines=angles.sin(), positions=positions)
    assert fused.can_fuse_rotary(qkv, size)
    found = fused.fused_rotary(qkv.clone(), table)
    grad_output = torch.randn(found.shape).to(dtype)
    unchanged = grad_output.clone()
    found.backward(grad_output)
    assert torch.equal(grad_output, unchanged)
    exact = qkv.detach().double().requires_grad_()
    expected = turned(exact, angles.double()[positions.long()], size)
    expected.backward(grad_output.double())
    near = {"atol": 2 * WITHIN[dtype], "rtol": WITHIN[dtype]}
    torch.testing.assert_close(found.double(), expected, **near)
    assert qkv.grad is not None
    torch.testing.assert_close(qkv.grad.double(), exact.grad, **near)
    with torch.no_grad():
        states = qkv.detach().clone()
        assert fused.fused_rotary(states, table).data_ptr() == states.data_ptr()
        assert torch.equal(states, found)


ODD_POSITIONS: dict[str, dict[str, Any]] = {
    "too far": {"positions": torch.tensor([0, 5], dtype=torch.int32)},
    "before the first": {"positions": torch.tensor([-1, 0], dtype=torch.int32)},
    "type": {"positions": torch.tensor([0, 1])},
    "shape": {"positions": torch.zeros(1, 2, dtype=torch.int32)},
    "narrow": {"cosines": torch.zeros(5, 8), "sines": torch.zeros(5, 8)},
    "shapes": {"sines": torch.zeros(4, 16)},
    "type of sines": {"sines": torch.zeros(5, 16).double()},
    "strides": {"cosines": torch.zeros(16, 5).t()},
}


@pytest.mark.parametrize("odd", ODD_POSITIONS.values(), ids=ODD_POSITIONS)
def test_odd_positions_are_refused(odd: dict[str, Any]) -> None:
    table = torch.zeros(5, 16)
    right = {"cosines": table, "sines": table, "positions": torch.zeros(2, dtype=torch.int32)}
    RotaryTable(**right)
    with pytest.raises(ValueError, match="a kernel"):
        RotaryTable(**right | odd)


# --- products of bfloat16 ------------------------------------------------------------------------

needs_bf16_products = pytest.mark.skipif(
    not module.has_bf16_products(),
    reason="this processor, or the compiler, has no products of bfloat16",
)


@pytest.fixture(params=["tiles", "vectors"])
def either_registers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With products in tiles, and in vectors."""
    if request.param == "vectors":
        monkeypatch.setattr(module.kernels, "has_amx", 0)
    elif not module.has_amx():
        pytest.skip("this processor has no AMX")


@needs_bf16_products
@pytest.mark.usefixtures("either_registers")
@pytest.mark.parametrize("n_tokens", [*range(1, 14), 25, 36, 97, 300])
@pytest.mark.parametrize(("n_in", "n_out"), [(2, 32), (34, 96), (384, 64)])
@pytest.mark.parametrize("gelu", [False, True], ids=["alone", "gelu"])
def test_products_for_inference(n_tokens: int, n_in: int, n_out: int, gelu: bool) -> None:
    torch.manual_seed(0)
    weight = (torch.randn(n_out, n_in) / n_in**0.5).bfloat16()
    bias, x = torch.randn(n_out), 3.0 * torch.randn(n_tokens, n_in).bfloat16()
    exact = F.linear(x.double(), weight.double(), bias.double())
    found = packed_linear(x=x, weights=PackedWeights(weight=weight, bias=bias), gelu=gelu)
    assert found.dtype == torch.bfloat16
    expected = F.gelu(exact) if gelu else exact
    torch.testing.assert_close(found.double(), expected, rtol=2**-8, atol=2e-5)
    x[n_tokens // 2, 1] = torch.nan
    found = packed_linear(x=x, weights=PackedWeights(weight=weight, bias=bias), gelu=gelu)
    assert found.isnan().all(1).nonzero().flatten().tolist() == [n_tokens // 2]


@needs_bf16_products
@pytest.mark.usefixtures("either_registers")
@pytest.mark.parametrize("value", [0.0, 1e-30, -3.0, -9.0, -50.0, 9.0, 3e38, torch.inf])
def test_gelu_everywhere(value: float) -> None:
    x = torch.tensor([[value, 0.0]], dtype=torch.bfloat16)
    one = torch.ones(32, 2, dtype=torch.bfloat16)
    found = packed_linear(x=x, weights=PackedWeights(weight=one, bias=torch.zeros(32)), gelu=True)
    expected = F.gelu(x[:, :1].double()).expand(1, 32)
    torch.testing.assert_close(found.double(), expected, rtol=2**-8, atol=1e-6)


@needs_bf16_products
@pytest.mark.usefixtures("either_registers")
def test_gelu_is_off_by_less_than_5e_6_beside_its_rounding() -> None:
    x = torch.zeros(2000, 32, dtype=torch.bfloat16)  # a number and what its rounding left
    exact = torch.linspace(-8, 8, 2000)
    x[:, 0] = exact
    x[:, 1] = exact - x[:, 0]
    one = torch.ones(32, 32, dtype=torch.bfloat16)
    found = packed_linear(x=x, weights=PackedWeights(weight=one, bias=torch.zeros(32)), gelu=True)
    expected = F.gelu(x.double().sum(1, keepdim=True))
    least, most = ((expected + error).bfloat16() for error in (-5e-6, 5e-6))
    assert ((least <= found) & (found <= most)).all()


def linears(
    n_parts: int, n_in: int, n_out: int
) -> tuple[StackedLinear, torch.Tensor, torch.Tensor]:
    """Layers side by side, and their weights and biases as they are multiplied."""
    torch.manual_seed(0)
    parts = [torch.nn.Linear(n_in, n_out) for _ in range(n_parts)]
    weight = torch.cat([part.weight.detach().bfloat16() for part in parts]).double()
    made = StackedLinear(parts)
    made.refresh()
    return made, weight, torch.cat([part.bias.detach() for part in parts]).double()


@needs_bf16_products
@pytest.mark.parametrize("n_tokens", [0, 1, 40])
def test_the_gate_of_hidden_states_and_its_gradient(n_tokens: int) -> None:
    torch.manual_seed(0)
    hidden = (3 * torch.randn(n_tokens, 2 * 96)).bfloat16().requires_grad_()
    grad_output = torch.randn(n_tokens, 96).bfloat16()
    assert fused.can_fuse_gate(hidden)
    assert not fused.can_fuse_gate(hidden[:, :96])
    assert not fused.can_fuse_gate(hidden.float())
    found = fused.fused_gate(hidden)
    found.backward(grad_output)
    exact = hidden.detach().double().requires_grad_()
    x, gate = exact.chunk(2, dim=1)
    expected = F.gelu(x) * gate
    expected.backward(grad_output.double())
    assert_rounded(found, expected)
    assert hidden.grad is not None
    assert exact.grad is not None
    assert_rounded(hidden.grad, exact.grad)


@needs_bf16_products
@pytest.mark.usefixtures("either_registers")
def test_products_without_biases() -> None:
    torch.manual_seed(0)
    parts = [torch.nn.Linear(64, 32, bias=False) for _ in range(2)]
    weight = torch.cat([part.weight.detach().bfloat16() for part in parts])
    x, grad_output = torch.randn(20, 64).bfloat16(), torch.randn(20, 64).bfloat16()
    exact = x.double() @ weight.double().t()
    made = StackedLinear(parts)
    made.refresh()
    assert_rounded(made.forward(x), exact)
    packed = PackedWeights(weight=weight, bias=None)
    assert_rounded(packed_linear(x=x, weights=packed, gelu=False), exact)
    grad_weight = torch.empty_like(weight)
    made.grad_weight(grad_output, x, grad_weight, None)
    assert_rounded(grad_weight, grad_output.double().t() @ x.double())


def assert_rounded(found: torch.Tensor, exact: torch.Tensor) -> None:
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.double(), exact, rtol=2**-8, atol=1e-4)


@needs_bf16_products
@pytest.mark.usefixtures("either_registers")
@pytest.mark.parametrize("n_threads", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("n_tokens", [1, 2, 13, 97])
@pytest.mark.parametrize(
    ("n_parts", "n_in", "n_out"), [(1, 32, 96), (3, 64, 32), (1, 160, 64), (1, 96, 96)]
)
def test_products_that_learn(
    n_threads: int, n_tokens: int, n_parts: int, n_in: int, n_out: int
) -> None:
    check_products_that_learn(n_threads, n_tokens, n_parts, n_in, n_out)


@needs_bf16_products
@pytest.mark.usefixtures("either_registers")
@pytest.mark.parametrize(
    ("n_threads", "n_tokens", "n_parts", "n_in", "n_out"),
    [
        (1, 600, 1, 64, 96), (2, 2200, 3, 64, 32), (7, 2200, 1, 32, 32), (2, 200, 1, 3072, 64),
        (1, 2210, 1, 320, 288), (2, 2210, 1, 320, 288),  # written past the caches
    ],
)  # fmt: skip
def test_products_of_more_tokens_than_stay_in_a_cache(
    n_threads: int, n_tokens: int, n_parts: int, n_in: int, n_out: int
) -> None:
    check_products_that_learn(n_threads, n_tokens, n_parts, n_in, n_out)


def check_products_that_learn(
    n_threads: int, n_tokens: int, n_parts: int, n_in: int, n_out: int
) -> None:
    made, weight, bias = linears(n_parts, n_in, n_out)
    x = torch.randn(n_tokens, n_in).bfloat16()
    grad_output = torch.randn(n_tokens, n_parts * n_out).bfloat16()
    wide = (3 * torch.randn(n_tokens, n_in)).bfloat16().double().requires_grad_()
    F.gelu(wide).backward(grad_output.double() @ weight)
    active = torch.empty(n_tokens, n_parts * n_out, dtype=torch.bfloat16)
    grad_weight, grad_bias = torch.empty_like(weight).bfloat16(), torch.empty_like(bias).bfloat16()
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(n_threads)
        found = made.forward(x, gelu_output=active)
        assert torch.equal(made.forward(x), found)
        assert torch.equal(made.forward(x[-40:]), found[-40:])
        assert_rounded(found, F.linear(x.double(), weight, bias))
        assert_rounded(active, F.gelu(found.double()))
        assert_rounded(made.grad_input(grad_output), grad_output.double() @ weight)
        before, again = wide.detach().bfloat16(), torch.empty_like(x)
        inner = made.grad_input(grad_output, pre_activation=before, gelu_output=again)
        assert wide.grad is not None
        assert_rounded(inner, wide.grad)
        assert_rounded(again, F.gelu(before.double()))
        if (n_in, n_parts) == (n_out, 1):  # computed again as it was
            made.grad_input(grad_output, pre_activation=found, gelu_output=again)
            assert torch.equal(again, active)
        made.grad_weight(grad_output, x, grad_weight, grad_bias)
        assert_rounded(grad_weight, grad_output.double().t() @ x.double())
        assert_rounded(grad_bias, grad_output.double().sum(0))
    finally:
        torch.set_num_threads(threads)


@needs_bf16_products
@pytest.mark.usefixtures("either_registers")
def test_results_larger_than_the_caches_anywhere_in_memory() -> None:
    made, _, _ = linears(1, 64, 288)
    x = torch.randn(4210, 64).bfloat16()
    wanted = torch.empty(len(x), 288, dtype=torch.bfloat16)
    shifted = torch.empty(wanted.numel() + 1, dtype=torch.bfloat16)[1:].view(wanted.shape)
    assert shifted.data_ptr() % 64
    assert torch.equal(made.forward(x, gelu_output=wanted), made.forward(x, gelu_output=shifted))
    assert torch.equal(shifted, wanted)


@needs_bf16_products
@pytest.mark.usefixtures("either_registers")
@pytest.mark.parametrize(
    ("n_tokens", "n_out", "n_in"), [(8191, 32, 320), (16400, 544, 32), (40, 1088, 64)]
)
def test_gradients_of_more_numbers_than_are_laid_out_at_once(
    n_tokens: int, n_out: int, n_in: int
) -> None:
    torch.manual_seed(0)
    grad_output, x = (
        torch.randn(n_tokens, n_out).bfloat16(),
        torch.randn(n_tokens, n_in).bfloat16(),
    )
    grad_weight, grad_bias = torch.empty(n_out, n_in).bfloat16(), torch.empty(n_out).bfloat16()
    StackedLinear.grad_weight(grad_output, x, grad_weight, grad_bias)
    assert_rounded(grad_weight, grad_output.double().t() @ x.double())
    assert_rounded(grad_bias, grad_output.double().sum(0))


@needs_bf16_products
@pytest.mark.usefixtures("either_registers")
def test_gradients_anywhere_in_memory() -> None:
    torch.manual_seed(0)
    grad_output, x = torch.randn(50, 64).bfloat16(), torch.randn(50, 96).bfloat16()
    grad_weight = torch.empty(64 * 96 + 1).bfloat16()[1:].view(64, 96)
    assert grad_weight.data_ptr() % 64
    StackedLinear.grad_weight(grad_output, x, grad_weight, None)
    assert_rounded(grad_weight, grad_output.double().t() @ x.double())


@needs_bf16_products
def test_gradients_from_any_order_in_memory() -> None:
    torch.manual_seed(0)
    grad_output, x = torch.randn(64, 4096).bfloat16().t(), torch.randn(64, 4096).bfloat16().t()
    grad_weight = torch.empty(64, 64, dtype=torch.bfloat16)
    StackedLinear.grad_weight(grad_output, x, grad_weight, torch.empty(64, dtype=torch.bfloat16))
    assert_rounded(grad_weight, grad_output.double().t() @ x.double())


@needs_bf16_products
@pytest.mark.parametrize("value", [0.0, 1e-30, -3.0, -9.0, -50.0, 9.0, 1e30, 3e38, -3e38])
def test_slope_of_gelu_everywhere(value: float) -> None:
    made, weight, _ = linears(1, 32, 32)
    wide = torch.full((1, 32), value, dtype=torch.bfloat16)
    ones, active = torch.ones(1, 32, dtype=torch.bfloat16), torch.empty_like(wide)
    inner = made.grad_input(ones, pre_activation=wide, gelu_output=active)
    exact = wide.double().requires_grad_()
    F.gelu(exact).backward(weight.sum(0, keepdim=True))
    assert exact.grad is not None
    assert_rounded(inner, exact.grad)


# --- steps of the optimizer ----------------------------------------------------------------------


@pytest.mark.parametrize("is_bf16", [False, True], ids=["float32", "bfloat16"])
def test_a_step_is_that_of_torch(is_bf16: bool) -> None:
    torch.manual_seed(0)
    starts = [torch.randn(shape) for shape in [(), (1,), (15,), (7, 5), (130, 129), (300, 64)]]
    results = []
    for make in (adamw, lambda groups, _: torch.optim.AdamW(groups, fused=True)):
        weights = [torch.nn.Parameter(start.clone()) for start in starts]
        groups = [
            {"params": weights[::2], "lr": 1e-2, "weight_decay": 0.1},
            {"params": weights[1::2], "lr": 1e-3, "weight_decay": 0.0},
        ]
        optimizer: Any = make(groups, torch.device("cpu"))
        is_compiled = type(optimizer) is not torch.optim.AdamW
        torch.manual_seed(1)
        for step in range(4):
            groups[0]["lr"] = np.float64(1e-2) / (1 + step)  # as searches draw them
            for number, weight in enumerate(weights):
                gradient = torch.randn(weight.shape) * 10.0 ** (number - 3)
                gradient = gradient.bfloat16() if is_bf16 else gradient
                if step == number == 0:  # it begins later
                    continue
                if is_compiled and is_bf16:
                    optimizer.bf16_state.grads[weight] = gradient
                else:
                    weight.grad = gradient.float()
            optimizer.grad_scale = torch.tensor(2.0) if step % 2 else None
            optimizer.step()
        assert is_compiled is (not results)
        results.append([*weights, *(optimizer.state[w]["exp_avg_sq"] for w in weights)])
    for own, expected in zip(*results, strict=True):
        torch.testing.assert_close(own, expected, rtol=1e-5, atol=1e-6)


def test_the_norm_of_gradients() -> None:
    torch.manual_seed(0)
    gradients = [torch.randn(17), torch.randn(200, 300).bfloat16(), torch.randn(())]
    assert can_fuse_grad_norm(gradients)
    exact = torch.cat([gradient.flatten().double() for gradient in gradients]).norm()
    norm = grad_norm(gradients=gradients)
    assert (norm.dtype, norm.shape) == (torch.float32, ())
    torch.testing.assert_close(norm.double(), exact, rtol=1e-6, atol=0)
    for value in (torch.inf, torch.nan):
        gradients[0][16] = value
        assert not grad_norm(gradients=gradients).isfinite()


@pytest.mark.parametrize("n_threads", [1, 2, 3, 4])
def test_any_number_of_threads(n_threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = [40] * 30
    torch.manual_seed(0)
    qkv = random_qkv(lengths, 3 * 64, torch.float32)

    def both() -> list[torch.Tensor]:
        qkv.grad = None
        torch.manual_seed(2)
        out = fused_attention(qkv, rows_of(lengths), AttentionSettings(32, 0.3, False, 0.1))
        given = (
            out.repeat(1, 4),
            torch.ones_like(out).repeat(1, 4),
            torch.ones(256),
            torch.ones(256),
        )
        normed = fused.fused_layernorm(*given, 1e-6, 0.1)[0]
        normed.square().sum().backward()
        assert qkv.grad is not None
        return [normed.detach(), qkv.grad]

    expected = both()
    monkeypatch.setattr(torch, "get_num_threads", lambda: n_threads)
    for own, one in zip(both(), expected, strict=True):
        torch.testing.assert_close(own, one)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_not_finite_is_handed_on(value: float) -> None:
    qkv = torch.zeros(8 + BEHIND, 96)
    qkv[2, 3] = value  # part of a query
    qkv[:, 35] = 1.0
    found = fused_attention(qkv, rows_of([8]), AttentionSettings(32, 0.3, False, 0.0))
    assert found[2].isnan().all()
    assert found[3].isfinite().all()
    states = torch.zeros(3, 16)
    states[1, 5] = value
    normed = fused.fused_layernorm(
        torch.zeros(3, 16), states, torch.ones(16), torch.ones(16), 1e-6, 0.0
    )
    assert normed[0][1].isnan().all()
    assert normed[0][2].isfinite().all()


def test_bfloat16_is_rounded_as_torch_does() -> None:
    numbers = torch.randn(100, 16) * 10.0 ** torch.randint(-30, 30, (100, 1))
    numbers[0, :3] = torch.tensor([1.00390625, 1.01171875, 3.4e38])  # halfway, halfway, overflow
    x = torch.zeros(100, 16, dtype=torch.bfloat16)
    normed, rounded = fused.fused_layernorm(x, numbers, torch.ones(16), torch.zeros(16), 1e-6, 0.0)
    is_number = ~normed.isnan()  # for the variance of a token with huge ones overflows
    bits = [x[is_number].view(torch.int16) for x in (rounded, normed.bfloat16())]
    assert torch.equal(*bits)
    assert rounded[~is_number].isnan().all()
    assert 0.3 < is_number.double().mean() < 1.0


def test_where_they_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    short, long = layout_of([5, 7]), layout_of([5, 513])
    qkv, norm = torch.zeros(12, 96), torch.nn.LayerNorm(32)
    states, weight = torch.zeros(12, 32), torch.zeros(96, 64)
    whole = AttentionSettings(32, 0.3, False, 0.0)
    assert can_fuse_attention(qkv, short, whole)
    assert not can_fuse_attention(qkv, long, whole)
    assert can_fuse_attention(qkv, long, whole._replace(dropout=0.1))
    assert can_fuse_attention(qkv, long, whole._replace(sliding_window=512))
    assert not can_fuse_attention(qkv, long, whole._replace(sliding_window=513))
    endless = dataclasses.replace(short, lengths=np.array([1 << 15]))
    assert not can_fuse_attention(qkv, endless, whole._replace(sliding_window=5))
    assert not can_fuse_attention(qkv, short, whole._replace(head_size=8))
    assert not can_fuse_attention(qkv.double(), short, whole)
    assert not can_fuse_attention(qkv.half(), short, whole)
    assert can_fuse_layernorm(states.bfloat16(), states, *norm.parameters())
    assert not can_fuse_layernorm(states.double(), states.double(), *norm.double().parameters())
    assert not can_fuse_layernorm(states[:, :24], states[:, :24], states[0, :24], states[0, :24])
    for amx in (False, True):
        monkeypatch.setattr(fused, "has_instructions", lambda name, amx=amx: amx)
        monkeypatch.setattr(module.kernels, "has_amx", 0)
        assert can_fuse_attention(qkv.bfloat16(), layout_of([5, 512]), whole) is not amx
        assert can_fuse_attention(qkv.bfloat16(), layout_of([128]), whole)
        assert can_fuse_attention(qkv.bfloat16(), layout_of([512]), whole._replace(dropout=0.1))
        assert can_fuse_attention(qkv, layout_of([512]), whole)
        few = (16 if amx else math.inf) if module.kernels.has_bf16_dot else 0
        assert max_packed_tokens(2, 32, torch.bfloat16) == few
        has_products = module.has_bf16_products()
        assert can_fuse_linear([weight], torch.bfloat16) is (has_products and not amx)
        monkeypatch.setattr(module.kernels, "has_amx", amx)
        assert max_packed_tokens(2, 32, torch.bfloat16) == few  # tiles are filled with 32 inputs
        assert max_packed_tokens(64, 32, torch.bfloat16) == (math.inf if has_products else 0)
        most = (512 if amx else math.inf) if has_products else 0
        assert max_packed_tokens(64, 32, torch.bfloat16, is_alone=True) == most
        assert can_fuse_linear([weight], torch.bfloat16) is has_products
    assert max_packed_tokens(3, 32, torch.float32) == math.inf
    assert not max_packed_tokens(3, 31, torch.float32)
    assert not max_packed_tokens(2, 31, torch.bfloat16)
    assert not max_packed_tokens(3, 32, torch.bfloat16)
    assert not can_fuse_linear([weight], torch.float32)
    assert not can_fuse_linear([weight, weight.bfloat16()], torch.bfloat16)
    assert not can_fuse_linear([weight, weight[:, :32]], torch.bfloat16)
    assert not can_fuse_linear([weight.t()], torch.bfloat16)
    assert not can_fuse_linear([weight, weight[0].half()], torch.bfloat16)
    assert can_fuse_adamw([states])
    assert not can_fuse_adamw([states, qkv.double()])
    assert not can_fuse_adamw([states.t()])
    assert not can_fuse_grad_norm([states, qkv.half()])
    monkeypatch.setattr(module, "kernels", None)
    assert not can_fuse_adamw([states])
    assert not can_fuse_grad_norm([states])
    assert not max_packed_tokens(2, 32, torch.bfloat16)
    assert not can_fuse_attention(qkv, short, whole)
    assert not can_fuse_layernorm(states, states, *norm.parameters())


def test_arguments_are_counted() -> None:
    wanted = {
        "adamw_step": 8,
        "attention_backward": 16,
        "attention_forward": 15,
        "embed": 11,
        "embed_backward": 11,
        "grad_norm": 4,
        "rotate": 11,
        "layernorm_backward": 15,
        "layernorm_forward": 16,
    }
    if module.has_bf16_products():
        wanted |= {
            "gated_backward": 6,
            "gated_forward": 5,
            "linear_forward": 15,
            "linear_grad_weight": 9,
            "attention_grad_tiles": 17,
            "attention_tiles": 15,
        }
    for name, n in wanted.items():
        with pytest.raises(TypeError, match=f"1 arguments instead of {n}$"):
            getattr(module.kernels, name)(0)


# --- at the border -------------------------------------------------------------------------------


def states_for_norm() -> dict[str, torch.Tensor]:
    return {
        "x": torch.ones(3, 32),
        "residual": torch.ones(3, 32),
        "weight": torch.ones(32),
        "bias": torch.zeros(32),
    }


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("weight", torch.ones(64)[::2]),
        ("weight", torch.ones(()).expand(32)),
        ("weight", torch.ones(31)),
        ("bias", torch.zeros(32, dtype=torch.float64)),
        ("bias", torch.zeros(32, device="meta")),
        ("residual", torch.ones(3, 64)[:, ::2]),
        ("residual", torch.ones(2, 32)),
        ("x", torch.ones(32, 3).t()),
    ],
)
def test_a_kernel_is_not_given_what_it_cannot_read(name: str, wrong: torch.Tensor) -> None:
    right = states_for_norm()
    assert fused.fused_layernorm(*right.values(), 1e-5, 0.0)[0].shape == (3, 32)
    with pytest.raises(ValueError, match="a kernel"):
        fused.fused_layernorm(*{**right, name: wrong}.values(), 1e-5, 0.0)


def test_weights_that_share_memory_learn_elsewhere() -> None:
    memory = torch.zeros(48)
    assert can_fuse_adamw([memory[:16], memory[16:32], memory[32:]])
    assert not can_fuse_adamw([memory[:17], memory[16:32]])
    assert not can_fuse_adamw([memory, memory])
    moment = torch.zeros(16)
    short = AdamWTensor(moment, moment[:8], moment, moment, 1.0, 1.0, 1.0)
    with pytest.raises(ValueError, match="a kernel"):
        adamw_step(tensors=[short], divisor=1.0, epsilon=0.1, betas=(0.9, 0.9))


def misaligned(*shape: int) -> torch.Tensor:
    """Zeros in float32 that begin at an odd address."""
    return torch.frombuffer(
        bytearray(4 * math.prod(shape) + 1), dtype=torch.float32, offset=1
    ).view(shape)


def test_misaligned_numbers_are_left_to_torch() -> None:
    norm, weight = torch.nn.LayerNorm(32), torch.nn.Parameter(misaligned(32))
    states = torch.ones(3, 32)
    assert can_fuse_layernorm(states, states, *norm.parameters())
    norm.weight = weight
    assert not can_fuse_layernorm(states, states, *norm.parameters())
    assert not can_fuse_adamw([weight])
    assert not can_fuse_grad_norm([weight])
    assert not can_fuse_linear([misaligned(32, 32)], torch.bfloat16)
    with pytest.raises(ValueError, match=r"a kernel was given .* as residual, .* aligned"):
        fused.fused_layernorm(states, misaligned(3, 32), torch.ones(32), torch.ones(32), 1e-5, 0.0)


ODD_ROWS = {
    "no tensor": ([0, 3], TypeError),
    "numpy": (np.array([0, 3], np.int32), TypeError),
    "matrix": (torch.zeros(2, 2, dtype=torch.int32), ValueError),
    "scalar": (torch.tensor(0, dtype=torch.int32), ValueError),
    "no start": (torch.empty(0, dtype=torch.int32), ValueError),
    "type": (torch.tensor([0, 3]), ValueError),
    "strides": (torch.zeros(4, dtype=torch.int32)[::2], ValueError),
    "device": (torch.zeros(2, dtype=torch.int32, device="meta"), ValueError),
    "order": (torch.tensor([0, 5, 4], dtype=torch.int32), ValueError),
    "sign": (torch.tensor([-1, 3], dtype=torch.int32), ValueError),
    "beyond int32": (torch.tensor([0, 2**31 - 1, -5], dtype=torch.int32), ValueError),
    "long row": (torch.tensor([0, 1 << 15], dtype=torch.int32), ValueError),
}


@pytest.mark.parametrize(("cu_seqlens", "error"), ODD_ROWS.values(), ids=ODD_ROWS)
def test_odd_rows_are_refused(cu_seqlens: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="a kernel"):
        PackedRows(cu_seqlens)


def test_rows_stay_as_they_were_checked() -> None:
    cu_seqlens = torch.tensor([2, 5, 5, 12], dtype=torch.int32)
    rows = PackedRows(cu_seqlens)
    cu_seqlens[-1] = 1000
    assert rows.cu_seqlens.tolist() == [2, 5, 5, 12]
    assert (rows.max_seqlen, rows.n_tokens) == (7, 12)


def matrix(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.bfloat16)


EMBEDDING: dict[str, Any] = {
    "tables": [torch.zeros(5, 32), torch.zeros(1, 32)],
    "weight": torch.zeros(32),
    "bias": torch.zeros(32),
    "epsilon": 1e-5,
}
# Arguments with which each wrapper enters C.
RIGHT: dict[Any, dict[str, Any]] = {
    attention_forward: {
        "qkv": torch.zeros(12, 96),
        "rows": rows_of([4, 8]),
        "settings": AttentionSettings(32, 0.3, False, 0.0),
        "seed": 2**63 - 1,
        "with_logsumexp": True,
    },
    attention_backward: {
        "qkv": torch.zeros(12, 96),
        "grad_output": torch.zeros(12, 32),
        "logsumexp": torch.zeros(12, 1),
        "rows": rows_of([4, 8]),
        "settings": AttentionSettings(32, 0.3, False, 1.0),
        "seed": 0,
    },
    layernorm_forward: {
        "x": torch.zeros(3, 32),
        "residual": torch.zeros(3, 32),
        "weight": torch.zeros(32),
        "bias": torch.zeros(32),
        "epsilon": 1e-5,
        "dropout": 0,
        "seed": 0,
        "with_normalized": True,
    },
    add_layernorm_forward: {
        "x": matrix(3, 32),
        "residual": torch.zeros(3, 32),
        "weight": torch.zeros(32),
        "bias": None,
        "epsilon": 1e-5,
        "dropout": 0,
        "seed": 0,
        "with_normalized": True,
    },
    layernorm_backward: {
        "normalized": torch.zeros(3, 32),
        "rstd": torch.zeros(3),
        "weight": torch.zeros(32),
        "grad_output": torch.zeros(3, 32),
        "grad_rounded": None,
        "dropout": 0.5,
        "seed": 0,
    },
    embed: {
        "weights": EmbeddingWeights(**EMBEDDING),
        "ids": [torch.tensor([4, 0, 1]), None],
        "n_tokens": 3,
    },
    embed_backward: {
        "tables": [
            Table(torch.zeros(5, 32), torch.tensor([4, 0, 1])),
            Table(torch.zeros(1, 32), None),
        ],
        "grads": [torch.zeros(5, 32), None],
        "weight": torch.zeros(32),
        "normalized": torch.zeros(3, 32),
        "rstd": torch.zeros(3),
        "grad_output": torch.zeros(3, 32),
    },
    rotate: {
        "qkv": torch.zeros(3, 96),
        "table": RotaryTable(
            cosines=torch.zeros(5, 16),
            sines=torch.zeros(5, 16),
            positions=torch.zeros(3, dtype=torch.int32),
        ),
        "in_place": True,
    },
    gated_forward: {"hidden": matrix(3, 64)},
    gated_backward: {"hidden": matrix(3, 64), "grad_output": matrix(3, 32)},
    packed_linear: {
        "x": matrix(3, 34),
        "weights": PackedWeights(weight=matrix(64, 34), bias=torch.zeros(64)),
        "gelu": True,
    },
    linear_float32: {
        "x": torch.zeros(3, 33),
        "weights": Float32Weights(weight=torch.zeros(64, 33), bias=torch.zeros(64)),
        "gelu": True,
    },
    int8_linears: {
        "x": matrix(3, 48),
        "layers": [Int8Weights(weight=torch.zeros(32, 48), bias=torch.zeros(32))],
    },
    linear_stacked: {
        "x": matrix(3, 64),
        "weights": StackedWeights([torch.zeros(32, 64)]),
        "bias": torch.zeros(32),
        "gelu_output": matrix(3, 32),
    },
    linear_grad_input: {
        "grad_output": matrix(3, 32),
        "weights": StackedWeights([torch.zeros(32, 64)]),
        "pre_activation": matrix(3, 64),
        "gelu_output": matrix(3, 64),
    },
    linear_grad_weight: {
        "grad_output": matrix(3, 32),
        "x": matrix(3, 64),
        "grad_weight": matrix(32, 64),
        "grad_bias": matrix(32),
    },
    adamw_step: {
        "tensors": [AdamWTensor(*torch.zeros(4, 7), 1.0, 1.0, 1.0)],
        "divisor": math.inf,
        "epsilon": 0.1,
        "betas": (0.9, 0.99),
    },
    grad_norm: {"gradients": [torch.zeros(7)]},
}

SETTINGS = RIGHT[attention_forward]["settings"]
ODD_SETTINGS: list[tuple[str, Any, type[Exception]]] = [
    *[("head_size", size, ValueError) for size in (0, -16, 8, 24, 64, 1 << 40)],
    *[("head_size", size, TypeError) for size in (32.0, "32", None)],
    *[("scaling", value, ValueError) for value in (math.nan, math.inf, 1e39, 10**400, -1)],
    *[("scaling", value, TypeError) for value in ("1", None, torch.tensor(1.0))],
    *[("sliding_window", value, ValueError) for value in (0, -1, 2**31)],
    *[("sliding_window", value, TypeError) for value in (1.0, "1", torch.tensor(1))],
]
ODD_DROPOUTS = [
    *[(value, ValueError) for value in (math.nan, math.inf, -0.1, 1.1, 10**400)],
    *[(value, TypeError) for value in ("0.1", None, torch.tensor(0.1))],
]
ODD_SEEDS = [
    *[(seed, ValueError) for seed in (-1, 2**63, 2**64)],
    *[(seed, TypeError) for seed in (1.0, "1", None, torch.tensor(1))],
]
ODD_TENSORS: list[tuple[Any, type[Exception]]] = [
    ([[0.0]], TypeError),
    (np.zeros((3, 32), np.float32), TypeError),
    (torch.zeros(()), ValueError),
    (torch.zeros(3, 5, 32), ValueError),
    (torch.zeros(3, 7), ValueError),
    (torch.zeros(3, 0), ValueError),
    (torch.zeros(64, dtype=torch.float16), ValueError),
    (torch.zeros(3, 32, dtype=torch.complex64), ValueError),
    (torch.zeros(3, 32).to_sparse(), ValueError),
    (torch.zeros(3, 32, device="meta"), ValueError),
    (torch.zeros(3, 64)[:, ::2], ValueError),
    (torch.zeros(32, 3).t(), ValueError),
]


def odd_arguments() -> Iterator[tuple[Any, dict[str, Any], type[Exception]]]:
    """Wrapper, arguments of which one is odd, and the error."""
    for wrapper, right in RIGHT.items():
        for name, value in right.items():
            odd = ODD_TENSORS if isinstance(value, torch.Tensor) else []
            odd = ODD_DROPOUTS if name == "dropout" else ODD_SEEDS if name == "seed" else odd
            for wrong, error in odd:
                yield wrapper, {name: wrong}, error
    for wrapper in (attention_forward, attention_backward):
        for name, value, error in ODD_SETTINGS:
            yield wrapper, {"settings": SETTINGS._replace(**{name: value})}, error
        for value, error in ODD_DROPOUTS:
            yield wrapper, {"settings": SETTINGS._replace(dropout=value)}, error
        yield wrapper, {"rows": torch.tensor([0, 12], dtype=torch.int32)}, TypeError
        yield wrapper, {"rows": rows_of([13])}, ValueError
    for value in (math.nan, -1e-5, math.inf, 1e39):
        yield layernorm_forward, {"epsilon": value}, ValueError
        yield adamw_step, {"epsilon": value}, ValueError
    for value in (math.nan, 0.0, -1.0):
        yield adamw_step, {"divisor": value}, ValueError
    for betas in ((1.0, 0.9), (0.9, math.nan), (-0.1, 0.9), (0.9,)):
        yield adamw_step, {"betas": betas}, ValueError
    yield rotate, {"table": torch.zeros(5, 32)}, TypeError
    for wrapper in (packed_linear, linear_float32, linear_stacked, linear_grad_input):
        yield wrapper, {"weights": torch.zeros(32, 64)}, TypeError
    right = RIGHT[int8_linears]["layers"][0]
    for wrong, error in (([], ValueError), ([torch.zeros(32, 48)], TypeError)):
        yield int8_linears, {"layers": wrong}, error
    for wrong in ([right] * 2, [right] * 3, [Int8Weights(weight=torch.zeros(32, 32), bias=None)]):
        yield int8_linears, {"layers": wrong}, ValueError
    right = RIGHT[adamw_step]["tensors"][0]
    for name in right._fields[:4]:
        for wrong in (None, torch.zeros(8), torch.zeros(14)[::2], torch.zeros(7).double()):
            error = TypeError if wrong is None else ValueError
            yield adamw_step, {"tensors": [right._replace(**{name: wrong})]}, error
    yield adamw_step, {"tensors": [right._replace(bf16_weight=torch.zeros(7))]}, ValueError
    for wrong, error in ODD_TENSORS[:2] + ODD_TENSORS[6:]:
        yield grad_norm, {"gradients": [wrong]}, error
    yield grad_norm, {"gradients": [None]}, TypeError
    (words, ids), _ = RIGHT[embed_backward]["tables"]
    yield embed, {"weights": words}, TypeError
    for wrong, error in ODD_TENSORS:
        yield embed, {"ids": [wrong, None]}, error
        yield embed_backward, {"tables": [Table(words, wrong)] * 2}, error
        yield embed_backward, {"grads": [wrong, None]}, error
    for wrong in ([], [ids], [ids] * 3, [ids[:2], None]):
        yield embed, {"ids": wrong}, ValueError
    shared = torch.zeros(5, 32)
    parts = {"grad_output": shared[2:], "normalized": shared[:3], "rstd": shared[0, :3]}
    for name, part in parts.items():
        yield embed_backward, {"grads": [shared, None], name: part}, ValueError
    yield embed_backward, {"grads": [words, None]}, ValueError
    yield embed_backward, {"grads": [torch.zeros(5, 32)]}, ValueError
    yield embed_backward, {"tables": [Table(words, ids)] * 2, "grads": [shared] * 2}, ValueError
    for tables in ([], [Table(words, ids)] * 4, [Table(words[:0], None)], [Table(words, ids[:2])]):
        grads = [None] * len(tables)
        yield embed_backward, {"tables": tables, "grads": grads}, ValueError
    for n_tokens, error in ((0, ValueError), (4, ValueError), (3.0, TypeError)):
        yield embed, {"n_tokens": n_tokens}, error


@pytest.fixture
def entered(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The functions of C that were called, none of which computes anything."""
    entered: list[str] = []

    class Kernels:
        has_bf16_dot = has_int8_dot = has_amx = True

        def __getattr__(self, name: str) -> Callable[..., None]:
            return lambda *_: entered.append(name)

    monkeypatch.setattr(module, "kernels", Kernels())
    return entered


@pytest.mark.parametrize("wrapper", RIGHT)
def test_right_arguments_enter_c_by_name_only(wrapper: Any, entered: list[str]) -> None:
    wrapper(**RIGHT[wrapper])
    assert len(entered) == 1
    with pytest.raises(TypeError, match="positional"):
        wrapper(*RIGHT[wrapper].values())
    assert len(entered) == 1


def test_odd_arguments_do_not_enter_c(entered: list[str]) -> None:
    accepted = []
    for wrapper, odd, error in odd_arguments():
        try:
            wrapper(**RIGHT[wrapper] | odd)
        except (TypeError, ValueError) as raised:
            if type(raised) is error:
                continue
        accepted.append((wrapper.__name__, odd))
    assert not accepted
    assert not entered


@pytest.mark.parametrize(
    "wrapper", [packed_linear, linear_stacked, linear_grad_input, gated_forward, gated_backward]
)
def test_a_processor_without_bfloat16_enters_no_product(
    wrapper: Any, entered: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(module.kernels), "has_bf16_dot", False)
    with pytest.raises(RuntimeError, match="this processor"):
        wrapper(**RIGHT[wrapper])
    assert not entered


def test_a_processor_without_int8_enters_no_product(
    entered: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(module.kernels), "has_int8_dot", False)
    with pytest.raises(RuntimeError, match="this processor"):
        int8_linears(**RIGHT[int8_linears])
    assert not entered


ODD_WEIGHTS = {
    "none": ([], ValueError),
    "no tensor": ([None], TypeError),
    "vector": ([torch.zeros(32)], ValueError),
    "size": ([torch.zeros(32, 48)], ValueError),
    "empty": ([torch.zeros(0, 32)], ValueError),
    "shapes": ([torch.zeros(32, 32), torch.zeros(64, 32)], ValueError),
    "type": ([torch.zeros(32, 32), torch.zeros(32, 32).bfloat16()], ValueError),
    "strides": ([torch.zeros(32, 64)[:, ::2]], ValueError),
}


@pytest.mark.parametrize(("weights", "error"), ODD_WEIGHTS.values(), ids=ODD_WEIGHTS)
def test_odd_weights_are_refused(weights: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="a kernel"):
        StackedWeights(weights)


@pytest.mark.parametrize("name", ["tables", "weight", "bias"])
def test_odd_weights_are_not_embedded(name: str) -> None:
    for wrong, error in ODD_TENSORS:
        odd = [EMBEDDING["tables"][0], wrong] if name == "tables" else wrong
        with pytest.raises(error, match="a kernel"):
            EmbeddingWeights(**EMBEDDING | {name: odd})


ODD_EMBEDDING: dict[str, dict[str, Any]] = {
    "no table": {"tables": []},
    "many tables": {"tables": [torch.zeros(5, 32)] * 4},
    "no rows": {"tables": [torch.zeros(0, 32)]},
    "size": {"tables": [torch.zeros(5, 24)], "weight": torch.zeros(24), "bias": None},
    **{f"epsilon {x}": {"epsilon": x} for x in (math.nan, -1e-5, math.inf, 1e39)},
}


@pytest.mark.parametrize("odd", ODD_EMBEDDING.values(), ids=ODD_EMBEDDING)
def test_odd_tables_are_not_embedded(odd: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="a kernel"):
        EmbeddingWeights(**EMBEDDING | odd)


ODD_PACKED: dict[str, tuple[dict[str, Any], type[Exception]]] = {
    "no tensor": ({"weight": None}, TypeError),
    "vector": ({"weight": matrix(32)}, ValueError),
    "outputs": ({"weight": matrix(33, 2), "bias": torch.zeros(33)}, ValueError),
    "inputs": ({"weight": matrix(32, 3)}, ValueError),
    "empty": ({"weight": matrix(32, 0)}, ValueError),
    "type": ({"weight": torch.zeros(32, 2)}, ValueError),
    "strides": ({"weight": matrix(32, 4)[:, ::2]}, ValueError),
    "size of bias": ({"bias": torch.zeros(31)}, ValueError),
    "type of bias": ({"bias": torch.zeros(32).bfloat16()}, ValueError),
}


@pytest.mark.parametrize(("odd", "error"), ODD_PACKED.values(), ids=ODD_PACKED)
def test_odd_weights_are_not_packed(odd: dict[str, Any], error: type[Exception]) -> None:
    right = {"weight": matrix(32, 2), "bias": torch.zeros(32)}
    assert PackedWeights(**right).panels.shape == (1, 1, 32, 2)
    with pytest.raises(error, match="a kernel"):
        PackedWeights(**{**right, **odd})


ODD_INT8: dict[str, tuple[dict[str, Any], type[Exception]]] = {
    "no tensor": ({"weight": None}, TypeError),
    "vector": ({"weight": torch.zeros(32)}, ValueError),
    "outputs": ({"weight": torch.zeros(33, 16), "bias": torch.zeros(33)}, ValueError),
    "inputs": ({"weight": torch.zeros(32, 24)}, ValueError),
    "empty": ({"weight": torch.zeros(32, 0)}, ValueError),
    "too many inputs": ({"weight": torch.zeros(32, 2**16 + 16)}, ValueError),
    "type": ({"weight": matrix(32, 16)}, ValueError),
    "strides": ({"weight": torch.zeros(32, 32)[:, ::2]}, ValueError),
    "size of bias": ({"bias": torch.zeros(31)}, ValueError),
    "type of bias": ({"bias": torch.zeros(32).bfloat16()}, ValueError),
}


@pytest.mark.parametrize(("odd", "error"), ODD_INT8.values(), ids=ODD_INT8)
def test_odd_weights_are_not_rounded_to_int8(odd: dict[str, Any], error: type[Exception]) -> None:
    right = {"weight": torch.zeros(32, 16), "bias": torch.zeros(32)}
    assert Int8Weights(**right).panels.shape == (1, 16, 32, 4)
    with pytest.raises(error, match="a kernel"):
        Int8Weights(**{**right, **odd})


def test_packed_weights_are_a_copy() -> None:
    weight, bias = matrix(32, 2), torch.zeros(32)
    packed = PackedWeights(weight=weight, bias=bias)
    weight += 1.0
    bias += 1.0
    assert not packed.panels.any()
    assert not packed.bias.any()


@needs_bf16_products
def test_weights_are_read_where_they_are_now() -> None:
    made, _, bias = linears(2, 64, 32)
    x, linear = torch.randn(5, 64).bfloat16(), made.linears[1]
    linear.weight.data = torch.randn(32, 64)
    weight = torch.cat([each.weight.detach().bfloat16() for each in made.linears]).double()
    assert_rounded(made.forward(x), F.linear(x.double(), weight, bias))
    assert_rounded(made.grad_input(x), x.double() @ weight)
    linear.weight.data = torch.randn(32, 32)
    with pytest.raises(ValueError, match="as weights"):
        made.forward(x)


@pytest.mark.usefixtures("either_registers")
@pytest.mark.parametrize("dtype", WITHIN)
def test_all_may_be_dropped(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    qkv = torch.randn(12, 96).to(dtype).requires_grad_()
    found = fused_attention(qkv, rows_of([4, 8]), AttentionSettings(32, 0.3, False, 1.0))
    found.sum().backward()
    assert qkv.grad is not None
    assert not found.any()
    assert not qkv.grad.any()
    residual, weight = torch.randn(12, 96), torch.ones(96)
    normed = fused.fused_layernorm(qkv.detach(), residual, weight, weight, 1e-6, 1.0)[0]
    torch.testing.assert_close(normed, F.layer_norm(residual, (96,), weight, weight, 1e-6))


@pytest.mark.parametrize("dtype", WITHIN)
@pytest.mark.parametrize("lengths", [[], [0, 3, 0]], ids=["no rows", "rows of no tokens"])
def test_attention_over_nothing(lengths: list[int], dtype: torch.dtype) -> None:
    qkv = torch.randn(sum(lengths), 96).to(dtype)
    how: Any = {
        "rows": rows_of(lengths),
        "settings": AttentionSettings(32, 0.3, False, 0.1),
        "seed": 3,
    }
    output, logsumexp = attention_forward(qkv=qkv, with_logsumexp=True, **how)
    assert logsumexp is not None
    assert output.shape == (len(qkv), 32)
    grad = attention_backward(qkv=qkv, grad_output=output, logsumexp=logsumexp, **how)
    assert grad.shape == qkv.shape
    assert grad.isfinite().all()


@pytest.mark.parametrize("dtype", WITHIN)
def test_normalisation_of_nothing(dtype: torch.dtype) -> None:
    x, weight = torch.empty(0, 32, dtype=dtype), torch.ones(32)
    how: Any = {"dropout": 0.1, "seed": 3}
    result = layernorm_forward(
        x=x, residual=x.float(), weight=weight, bias=weight,
        epsilon=1e-5, with_normalized=True, **how,
    )  # fmt: skip
    assert result.output.shape == (0, 32)
    assert result.normalized is not None
    grads = layernorm_backward(
        normalized=result.normalized, rstd=result.rstd, weight=weight,
        grad_output=x.float(), grad_rounded=x, **how,
    )  # fmt: skip
    assert [tuple(grad.shape) for grad in grads] == [(0, 32), (0, 32), (32,), (32,)]
    assert not grads[2].any()


def test_gelu_is_as_exact_as_float32() -> None:
    x = torch.linspace(-8, 8, 32 * 4000).view(-1, 32)
    weights = Float32Weights(weight=torch.eye(32), bias=None)
    found = linear_float32(x=x, weights=weights, gelu=True)
    assert float((found - F.gelu(x.double())).abs().max()) < 5e-7
    large = torch.full((1, 32), 1e30) * torch.tensor([-1.0, 1.0]).repeat(16)
    found = linear_float32(x=large, weights=weights, gelu=True)
    torch.testing.assert_close(found, large.clamp(min=0), atol=1e-36, rtol=0)


def test_a_product_of_nothing_in_float32() -> None:
    weights = Float32Weights(weight=torch.zeros(64, 3), bias=None)
    assert linear_float32(x=torch.empty(0, 3), weights=weights, gelu=True).shape == (0, 64)


@pytest.mark.parametrize(
    ("weight", "bias"),
    [
        (torch.zeros(48, 32), None),
        (torch.zeros(32, 0), None),
        (torch.zeros(32), None),
        (torch.zeros(32, 32).double(), None),
        (torch.zeros(32, 32), torch.zeros(31)),
        (torch.zeros(32, 32), torch.zeros(32).bfloat16()),
    ],
)
def test_weights_that_no_product_in_float32_reads(
    weight: torch.Tensor, bias: torch.Tensor | None
) -> None:
    with pytest.raises(ValueError, match="a kernel"):
        Float32Weights(weight=weight, bias=bias)


@needs_bf16_products
@pytest.mark.usefixtures("either_registers")
def test_products_of_nothing() -> None:
    made, weight, _ = linears(2, 64, 32)
    x, grad_output = torch.empty(0, 64).bfloat16(), torch.empty(0, 64).bfloat16()
    active = torch.empty(0, 64, dtype=torch.bfloat16)
    assert made.forward(x, gelu_output=active).shape == (0, 64)
    found = made.grad_input(grad_output, pre_activation=x, gelu_output=active)
    assert found.shape == (0, 64)
    packed = PackedWeights(weight=weight.bfloat16(), bias=torch.zeros(64))
    assert packed_linear(x=x, weights=packed, gelu=True).shape == (0, 64)
    grad_weight = torch.ones(64, 64, dtype=torch.bfloat16)
    grad_bias = torch.ones(64, dtype=torch.bfloat16)
    made.grad_weight(grad_output, x, grad_weight, grad_bias)
    assert not grad_weight.any()
    assert not grad_bias.any()


def test_steps_over_nothing() -> None:
    nothing = torch.empty(0, 3)
    adamw_step(tensors=[], divisor=1.0, epsilon=0.1, betas=(0.9, 0.9))
    empty = AdamWTensor(nothing, nothing, nothing, nothing, 1.0, 1.0, 1.0)
    adamw_step(tensors=[empty], divisor=1.0, epsilon=0.1, betas=(0.9, 0.9))
    assert grad_norm(gradients=[]) == grad_norm(gradients=[nothing]) == 0


def read_only(x: torch.Tensor) -> torch.Tensor:
    """The same numbers in memory that nobody may write to."""
    memory = mmap.mmap(-1, max(1, x.nbytes))
    memory.write(x.contiguous().view(torch.uint8).numpy().tobytes())
    libc = ctypes.CDLL(None, use_errno=True)
    begin = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert libc.mprotect(ctypes.c_void_p(begin), ctypes.c_size_t(x.nbytes), mmap.PROT_READ) == 0
    return torch.frombuffer(memory, dtype=x.dtype, count=x.numel()).view(x.shape)


@pytest.mark.parametrize("dtype", WITHIN)
def test_inputs_may_be_read_only(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    rows = PackedRows(read_only(torch.tensor([0, 7, 24], dtype=torch.int32)))
    qkv, grad = read_only(torch.randn(24, 96).to(dtype)), read_only(torch.ones(24, 32).to(dtype))
    how: Any = {"rows": rows, "seed": 1, "settings": AttentionSettings(32, 0.3, True, 0.1)}
    output, logsumexp = attention_forward(qkv=qkv, with_logsumexp=True, **how)
    assert logsumexp is not None
    attention_backward(qkv=qkv, grad_output=grad, logsumexp=read_only(logsumexp), **how)
    weight, residual = read_only(torch.randn(32)), read_only(torch.randn(24, 32))
    result = layernorm_forward(
        x=read_only(output), residual=residual, weight=weight, bias=weight,
        epsilon=1e-5, dropout=0.1, seed=1, with_normalized=True,
    )  # fmt: skip
    assert result.normalized is not None
    layernorm_backward(
        normalized=read_only(result.normalized), rstd=read_only(result.rstd), weight=weight,
        grad_output=residual, grad_rounded=grad, dropout=0.1, seed=1,
    )  # fmt: skip
    gradient, states = read_only(torch.randn(35).to(dtype)), torch.zeros(3, 35)
    adamw_step(
        tensors=[AdamWTensor(states[0], gradient, states[1], states[2], 1.0, 1.0, 1.0)],
        divisor=1.0, epsilon=0.1, betas=(0.9, 0.9),
    )  # fmt: skip
    assert states.any()
    assert grad_norm(gradients=[gradient]) > 0


@needs_bf16_products
def test_factors_may_be_read_only() -> None:
    torch.manual_seed(0)
    x, weight = read_only(torch.randn(13, 64).bfloat16()), read_only(torch.randn(64, 64))
    bias = read_only(torch.randn(64))
    expected = F.linear(x.double(), weight.bfloat16().double(), bias.double())
    packed = PackedWeights(weight=read_only(weight.bfloat16()), bias=bias)
    assert_rounded(packed_linear(x=x, weights=packed, gelu=False), expected)
    stacked = StackedWeights([weight])
    assert_rounded(linear_stacked(x=x, weights=stacked, bias=bias), expected)
    active = torch.empty(13, 64).bfloat16()
    linear_grad_input(grad_output=x, weights=stacked, pre_activation=x, gelu_output=active)
    grads = torch.empty(64, 64).bfloat16(), torch.empty(64).bfloat16()
    linear_grad_weight(grad_output=x, x=x, grad_weight=grads[0], grad_bias=grads[1])


@needs_bf16_products
def test_a_product_is_not_written_over_what_it_reads() -> None:
    made, _, _ = linears(1, 64, 64)
    x = torch.ones(64, 64).bfloat16()
    bias = torch.empty(64, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="memory that another of its tensors has"):
        made.forward(x, gelu_output=x)
    for before, gelu in ((x, x), (x.clone(), x)):
        with pytest.raises(ValueError, match="memory that another of its tensors has"):
            made.grad_input(x, pre_activation=before, gelu_output=gelu)
    with pytest.raises(ValueError, match="both pre_activation and gelu_output, or neither"):
        made.grad_input(x, pre_activation=x)
    with pytest.raises(ValueError, match="memory that another of its tensors has"):
        made.grad_weight(x, x, x, bias)
    with pytest.raises(ValueError, match="memory that another of its tensors has"):
        made.grad_weight(x, x.clone(), torch.empty_like(x), x[0])


@pytest.mark.parametrize("place", ["weight", "exp_avg", "exp_avg_sq"])
def test_a_step_is_not_written_over_what_it_reads(place: str) -> None:
    weight, gradient, exp_avg, exp_avg_sq = torch.zeros(4, 16)
    right = AdamWTensor(weight, gradient, exp_avg, exp_avg_sq, 1.0, 1.0, 1.0)
    with pytest.raises(ValueError, match="memory that another of its tensors has"):
        adamw_step(
            tensors=[right._replace(**{place: gradient})],
            divisor=1.0,
            epsilon=0.1,
            betas=(0.9, 0.9),
        )
    with pytest.raises(ValueError, match="memory that another of its tensors has"):
        adamw_step(tensors=[right, right], divisor=1.0, epsilon=0.1, betas=(0.9, 0.9))


def in_other_memory(t: AdamWTensor) -> None:
    t.exp_avg.data = torch.zeros(16, 32)[:, ::2]


def on_its_side(t: AdamWTensor) -> None:
    t.exp_avg.data = t.exp_avg.data.t()


def in_another_type(t: AdamWTensor) -> None:
    t.exp_avg_sq.data = torch.zeros(16, 16, dtype=torch.float64)


def over_its_gradient(t: AdamWTensor) -> None:
    t.weight.data = t.gradient[:]


@pytest.mark.parametrize(
    "change", [in_other_memory, on_its_side, in_another_type, over_its_gradient]
)
def test_what_moves_between_steps_is_checked_again(change: Callable[[AdamWTensor], None]) -> None:
    states, how = AdamWStates(), {"divisor": 1.0, "epsilon": 0.1, "betas": (0.9, 0.9)}
    tensor = AdamWTensor(*(torch.ones(16, 16) for _ in range(4)), 1.0, 1.0, 1.0)
    for place in (tensor.weight, tensor.weight.clone()):
        tensor.weight.data = place
        before = place.clone()
        adamw_step(tensors=[tensor], states=states, **how)
        assert not torch.equal(place, before)
    with pytest.raises(ValueError, match="a kernel"):
        adamw_step(tensors=[tensor._replace(gradient=torch.ones(16, 8))], states=states, **how)
    with pytest.raises(ValueError, match="memory that another of its tensors has"):
        adamw_step(tensors=[tensor._replace(gradient=tensor.exp_avg)], states=states, **how)
    change(tensor)
    with pytest.raises(ValueError, match="a kernel"):
        adamw_step(tensors=[tensor], states=states, **how)


@pytest.mark.parametrize("begin", range(1, 13))
def test_memory_that_is_written_shares_no_byte_with_what_is_read(begin: int) -> None:
    written = [(10, 12), (2, 5), (5, 6), (6, 6), (8, 8)]
    memory, bytes_of_it = WrittenMemory(written), {2, 3, 4, 5, 10, 11}
    for end in range(begin, 14):
        apart = bytes_of_it.isdisjoint(range(begin, end))
        with nullcontext() if apart else pytest.raises(ValueError, match="memory that another"):
            memory.check_apart([(0, 2), (begin, end), (20, 30)])
    with pytest.raises(ValueError, match="memory that another"):
        WrittenMemory([*written, (11, 13)])


@pytest.mark.parametrize("n_threads", [1, 2, 3, 4])
def test_steps_by_any_number_of_threads(n_threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    gradient, start = torch.randn(70_001), torch.randn(3, 70_001).abs()

    def step() -> torch.Tensor:
        states = start.clone()
        rounded = torch.empty(70_001, dtype=torch.bfloat16)
        tensor = AdamWTensor(states[0], gradient, states[1], states[2], 0.9, 0.1, 0.5, rounded)
        adamw_step(tensors=[tensor], divisor=2.0, epsilon=1e-8, betas=(0.9, 0.99))
        assert torch.equal(rounded, states[0].bfloat16())
        return states

    expected, norm = step(), grad_norm(gradients=[gradient])
    monkeypatch.setattr(torch, "get_num_threads", lambda: n_threads)
    assert torch.equal(step(), expected)
    torch.testing.assert_close(grad_norm(gradients=[gradient]), norm)
