"""The kernels for GPUs compute what torch does; without a GPU Triton's interpreter runs them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.networks import CPU, GPU, layout_of
from torch.nn import functional as F

from skbert._core.attention.settings import AttentionSettings
from skbert._core.runtime.device import seeded

pytest.importorskip("triton", reason="kernels for GPUs are written in Triton: it is missing")

from skbert._core.cpu import fused
from skbert._core.gpu import attention, gelu, layernorm, operations, rotary

pytestmark = [pytest.mark.usefixtures("on_gpu")]
if torch.cuda.is_available():
    pytestmark.append(pytest.mark.gpu)

WHERE = GPU if torch.cuda.is_available() else CPU
ROUNDED = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the kernels for GPUs, wherever tensors are."""
    monkeypatch.setattr(operations, "is_on_gpu", lambda _: True)


def drawn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(WHERE, dtype)


def close(got: torch.Tensor, want: torch.Tensor, tolerance: float) -> None:
    torch.testing.assert_close(got.double(), want.double(), rtol=0, atol=tolerance)


# --- layer normalisation -------------------------------------------------------------------------


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize(("n_tokens", "size"), [(1, 16), (37, 48), (130, 100)])
def test_norms_and_their_gradients(
    n_tokens: int, size: int, has_bias: bool, dropout: float
) -> None:
    x, residual, grad = (drawn(n_tokens, size, seed=seed) for seed in range(3))
    weight, bias = drawn(size, seed=3) + 2, drawn(size, seed=4) if has_bias else None
    leaves = [x, residual, weight] + [bias] * has_bias
    leaves = [leaf.requires_grad_() for leaf in leaves]
    with seeded(0, WHERE):
        output, rounded = fused.fused_layernorm(x, residual, weight, bias, 1e-5, dropout)
    assert output is rounded
    got = torch.autograd.grad(output, leaves, grad)
    kept = (got[0] != 0) / (1 - dropout)
    assert kept.mean().item() == pytest.approx(1.0, abs=4 / x.numel() ** 0.5)
    want = F.layer_norm(x * kept + residual, (size,), weight, bias, 1e-5)
    close(output, want, 1e-5)
    for one, other in zip(got, torch.autograd.grad(want, leaves, grad), strict=True):
        close(one, other, 2e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("used", ["output", "rounded", "both"])
def test_norms_in_lower_precision(dtype: torch.dtype, used: str) -> None:
    x, residual = drawn(40, 48, dtype=dtype), drawn(40, 48, seed=1)
    leaves = [x.requires_grad_(), residual.requires_grad_()]
    weight, bias = drawn(48, seed=2), drawn(48, seed=3)
    results = fused.fused_layernorm(x, residual, weight, bias, 1e-5, 0.0)
    assert [each.dtype for each in results] == [torch.float32, dtype]
    want = F.layer_norm(x.float() + residual, (48,), weight, bias, 1e-5)
    close(results[0], want, 1e-5)
    close(results[1], want, 2 * ROUNDED[dtype])
    chosen = {"output": results[:1], "rounded": results[1:], "both": results}[used]
    grad = drawn(40, 48, seed=5)
    got = torch.autograd.grad(chosen, leaves, [grad.to(each.dtype) for each in chosen])
    wanted = torch.autograd.grad(want, leaves, grad * len(chosen))
    assert got[0].dtype == dtype
    for one, other in zip(got, wanted, strict=True):
        close(one, other, 4 * ROUNDED[dtype])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_sums_and_their_norms(dtype: torch.dtype) -> None:
    x, residual = drawn(40, 48, dtype=dtype), drawn(40, 48, seed=1)
    weight = drawn(48, seed=2)
    leaves = [x.requires_grad_(), residual.requires_grad_(), weight.requires_grad_()]
    total, rounded = fused.fused_add_norm(x, residual, weight, None, 1e-5, 0.0)
    assert (total.dtype, rounded.dtype) == (torch.float32, dtype)
    want = x.float() + residual
    want_norm = F.layer_norm(want, (48,), weight, None, 1e-5)
    close(total, want, 1e-6)
    close(rounded, want_norm, 2 * ROUNDED[dtype])
    grads = drawn(40, 48, seed=3), drawn(40, 48, dtype=dtype, seed=4)
    for some in (slice(1), slice(1, 2), slice(2)):
        got = torch.autograd.grad(
            (total, rounded)[some], leaves, grads[some], retain_graph=True, allow_unused=True
        )
        wanted = torch.autograd.grad(
            (want, want_norm)[some], leaves, [grad.float() for grad in grads[some]],
            retain_graph=True, allow_unused=True,
        )  # fmt: skip
        for one, other in zip(got, wanted, strict=True):
            close(one, torch.zeros_like(one) if other is None else other, 8 * ROUNDED[dtype])


@pytest.mark.parametrize("at", range(4))
@pytest.mark.parametrize("what", ["strided", "in float64", "of another size"])
def test_norms_of_other_tensors_are_left_to_torch(at: int, what: str) -> None:
    tensors = [drawn(6, 16), drawn(6, 16), drawn(16), drawn(16)]
    assert fused.can_fuse_layernorm(*tensors)
    x = tensors[at]
    tensors[at] = {
        "strided": torch.stack([x, x], -1)[..., 0], "in float64": x.double(),
        "of another size": x[:5],
    }[what]  # fmt: skip
    assert not fused.can_fuse_layernorm(*tensors)


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")  # of Triton's interpreter
def test_a_token_whose_variance_overflows_has_no_norm() -> None:
    x = drawn(5, 48)
    x[3] *= 1e30
    found, _ = fused.fused_layernorm(x, torch.zeros_like(x), x[0], None, 1e-5, 0.0)
    assert found.isnan().all(1).tolist() == [False, False, False, True, False]


def test_norms_without_gradients_save_nothing() -> None:
    x = drawn(3, 16).requires_grad_()
    with torch.no_grad():
        output, _ = fused.fused_layernorm(x, x, x[0], None, 1e-5, 0.0)
    assert not output.requires_grad


# --- GELU ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("n_tokens", "size"), [(50, 48), (1100, 17), (3, 300)])
def test_gelu_and_its_gradient(n_tokens: int, size: int, dtype: torch.dtype) -> None:
    hidden = (3 * drawn(n_tokens, size)).to(dtype).requires_grad_()
    grad = drawn(n_tokens, size, dtype=dtype, seed=1)
    active, grad_hidden, sums = operations.gelu_backward(hidden.detach(), grad)
    want = F.gelu(hidden.double())
    close(active, want, 2 * ROUNDED[dtype])
    (want_grad,) = torch.autograd.grad(want, hidden, grad.double())
    close(grad_hidden, want_grad, 2 * ROUNDED[dtype])
    assert sums.dtype == torch.float32
    close(sums, want_grad.double().sum(0), 1e-4 if dtype == torch.float32 else 2 * ROUNDED[dtype])


# --- sums ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("n_tokens", "size"), [(0, 4), (1, 16), (70, 130), (2100, 3)])
def test_sums_over_tokens(n_tokens: int, size: int, dtype: torch.dtype) -> None:
    x = drawn(n_tokens, size, dtype=dtype)
    assert operations.can_sum_tokens(x)
    got = operations.sum_tokens(x)
    assert got.dtype == torch.float32
    close(got, x.double().sum(0), 1e-4)
    assert not operations.can_sum_tokens(x.t() if min(x.shape) > 1 else x.double())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_gates_and_their_gradients(dtype: torch.dtype) -> None:
    hidden = drawn(50, 2 * 24, dtype=dtype).requires_grad_()
    assert fused.can_fuse_gate(hidden)
    got = fused.fused_gate(hidden)
    x, gate = hidden.double().chunk(2, dim=1)
    want = F.gelu(x) * gate
    close(got, want, 2 * ROUNDED[dtype])
    grad = drawn(50, 24, dtype=dtype, seed=1)
    (got_grad,) = torch.autograd.grad(got, hidden, grad)
    close(got_grad, torch.autograd.grad(want, hidden, grad.double())[0], 4 * ROUNDED[dtype])
    assert torch.equal(gelu.gated_forward(hidden=hidden.detach()), got)


# --- rotary positions ----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_turned_states_and_their_gradient(dtype: torch.dtype) -> None:
    positions, angles = torch.randint(0, 9, (70,)).to(WHERE), drawn(9, 8)
    qkv = drawn(70, 3 * 2 * 16, dtype=dtype)
    assert fused.can_fuse_rotary(qkv, 16)
    table = fused.rotary_table(qkv, cosines=angles.cos(), sines=angles.sin(), positions=positions)
    leaf = qkv.clone().requires_grad_()
    got = fused.fused_rotary(leaf.clone(), table)
    x, y = leaf.double().view(70, 3, 2, 2, 8).unbind(3)
    cosine, sine = (
        each[positions][:, None, None].double() for each in (angles.cos(), angles.sin())
    )
    turned = torch.stack([x * cosine - y * sine, y * cosine + x * sine], 3)
    want = torch.cat([turned[:, :2], torch.stack([x, y], 3)[:, 2:]], 1).flatten(1)
    close(got, want, ROUNDED[dtype])
    grad = drawn(*qkv.shape, dtype=dtype, seed=1)
    (got_grad,) = torch.autograd.grad(got, leaf, grad)
    close(got_grad, torch.autograd.grad(want, leaf, grad.double())[0], ROUNDED[dtype])
    copied = rotary.rotate(qkv=qkv, table=table, in_place=False)
    assert torch.equal(copied, got)
    assert not torch.equal(copied, qkv)


# --- attention -----------------------------------------------------------------------------------

LENGTHS = [3, 5, 5, 70, 130, 1, 30]


def by_torch(
    qkv: torch.Tensor, layout: Any, settings: AttentionSettings, kept: torch.Tensor | None = None
) -> torch.Tensor:
    """Attention by plain products, with what is kept of the weights, in float64."""
    row, n_tokens = layout.row_of_token, len(qkv)
    states = qkv.double().view(n_tokens, 3, -1, settings.head_size).permute(1, 2, 0, 3)
    places = torch.arange(n_tokens, device=row.device)
    ahead = places - places[:, None]
    meets = row[:, None] == row
    if settings.is_causal:
        meets = meets & (ahead <= 0)
    if settings.sliding_window:
        meets = meets & (ahead.abs() < settings.sliding_window)
    scores = states[0] @ states[1].transpose(1, 2) * settings.scaling
    weights = scores.masked_fill(~meets, -torch.inf).softmax(-1)
    if kept is not None:
        weights = weights * kept
    return (weights @ states[2]).transpose(0, 1).flatten(1)


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float32,
        torch.float16,
        pytest.param(torch.bfloat16, marks=pytest.mark.gpu),  # not interpreted
    ],
)
@pytest.mark.parametrize("window", [None, 9])
@pytest.mark.parametrize("is_causal", [False, True])
def test_attention_and_its_gradient(
    is_causal: bool, window: int | None, dtype: torch.dtype
) -> None:
    layout = layout_of(LENGTHS, WHERE)
    settings = AttentionSettings(16, 0.25, is_causal, 0.0, window)
    qkv = drawn(sum(LENGTHS), 3 * 2 * 16, dtype=dtype).requires_grad_()
    got, want = operations.fused_attention(qkv, layout, settings), by_torch(qkv, layout, settings)
    close(got, want, ROUNDED[dtype])
    grad = drawn(*got.shape, dtype=dtype, seed=1)
    (got_grad,) = torch.autograd.grad(got, qkv, grad)
    (want_grad,) = torch.autograd.grad(want, qkv, grad.double())
    close(got_grad, want_grad, 2 * ROUNDED[dtype])


@pytest.mark.parametrize("head_size", [32, 64, 128])
def test_heads_of_each_size(head_size: int) -> None:
    layout = layout_of(LENGTHS, WHERE)
    settings = AttentionSettings(head_size, head_size**-0.5, False, 0.0)
    qkv = drawn(sum(LENGTHS), 3 * head_size, dtype=torch.float16)
    got = operations.fused_attention(qkv, layout, settings)
    close(got, by_torch(qkv, layout, settings), ROUNDED[torch.float16])


def test_dropped_weights_are_the_same_in_the_backward_pass() -> None:
    """What was kept is read off the values of one-hot vectors."""
    n_tokens, n_heads = 32, 2
    layout = layout_of([n_tokens], WHERE)
    settings = AttentionSettings(32, 0.2, False, 0.25)
    qkv = drawn(n_tokens, 3, n_heads, 32)
    value = qkv[:, 2].clone()
    qkv[:, 2] = torch.eye(n_tokens, device=WHERE)[:, None]
    weights, _ = attention.attention_forward(
        qkv=qkv.flatten(1), layout=layout, settings=settings, seed=3
    )
    kept = (weights.view(n_tokens, n_heads, n_tokens).transpose(0, 1) > 0) / 0.75
    assert kept.mean().item() == pytest.approx(1.0, abs=0.05)
    assert not torch.equal(kept[0], kept[1])
    qkv[:, 2] = value
    qkv = qkv.flatten(1).requires_grad_()
    output, logsumexp = attention.attention_forward(
        qkv=qkv.detach(), layout=layout, settings=settings, seed=3
    )
    want = by_torch(qkv, layout, settings, kept)
    close(output, want, 1e-5)
    grad = drawn(*output.shape, seed=1)
    got_grad = attention.attention_backward(
        qkv=qkv.detach(), output=output, grad_output=grad, logsumexp=logsumexp,
        layout=layout, settings=settings, seed=3,
    )  # fmt: skip
    (want_grad,) = torch.autograd.grad(want, qkv, grad.double())
    close(got_grad, want_grad, 1e-5)


def test_each_call_drops_others() -> None:
    layout, settings = layout_of([40], WHERE), AttentionSettings(16, 0.25, False, 0.5)
    qkv = drawn(40, 48, dtype=torch.float16)
    with seeded(0, WHERE):
        draws = [operations.fused_attention(qkv, layout, settings) for _ in range(2)]
    assert (draws[0] - draws[1]).abs().max() > 0.1
    with seeded(0, WHERE):
        assert torch.equal(operations.fused_attention(qkv, layout, settings), draws[0])


def test_a_large_seed_is_taken() -> None:
    x = drawn(8, 16)
    for seed in (0, 2**31, 2**63 - 1):
        result = layernorm.layernorm_forward(
            x=x, residual=x, weight=x[0], bias=None,
            epsilon=1e-5, dropout=0.5, seed=seed, with_normalized=False,
        )  # fmt: skip
        assert result.rstd.isfinite().all()


def test_rows_are_short_where_tokens_attend_to_few_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(operations, "_can_attend", lambda *_, **__: True)
    mixed, long = layout_of([300, *[10] * 60], WHERE), layout_of([300, 200], WHERE)
    assert (mixed.max_seqlen, mixed.mean_seqlen) == (300, (300**2 + 60 * 10**2) / 900)
    qkv = drawn(1, 48, dtype=torch.bfloat16)
    for dropout, layout, is_used in [
        (0.0, mixed, True), (0.0, long, False), (0.1, mixed, True), (0.1, long, True),
    ]:  # fmt: skip
        settings = AttentionSettings(16, 0.25, False, dropout)
        assert operations.can_fuse_attention(qkv, layout, settings) is is_used
