"""Attention in tiles and its gradient against torch in float64, and where they are refused."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch
from torch.nn import functional as F

from skbert._core.attention.settings import AttentionSettings
from skbert._core.cpu import fused
from skbert._core.cpu.bindings import module
from skbert._core.cpu.bindings.attention import (
    PackedRows,
    attention_backward,
    attention_forward,
)
from skbert._core.cpu.bindings.attention_grad_tiles import attention_grad_tiles
from skbert._core.cpu.bindings.attention_tiles import attention_tiles, fits_tiles

pytestmark = pytest.mark.skipif(not module.has_amx(), reason="needs a processor with AMX")

SETTINGS = AttentionSettings(32, 0.2, False, 0.0)
LENGTHS = [1, 2, 15, 0, 16, 17, 31, 32, 33, 64, 100, 257, 600]


def rows_of(lengths: list[int], before: int = 0) -> PackedRows:
    return PackedRows(torch.tensor([before, *lengths]).cumsum(0, dtype=torch.int32))


def drawn(n_tokens: int, width: int, size: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(n_tokens)
    return (torch.randn(n_tokens, 3 * width, generator=generator) * size).bfloat16()


def attend(qkv: torch.Tensor, rows: PackedRows, settings: AttentionSettings) -> torch.Tensor:
    output, logsumexp = attention_tiles(
        qkv=qkv, rows=rows, settings=settings, seed=0, with_logsumexp=False
    )
    assert logsumexp is None
    return output


def gradient(
    qkv: torch.Tensor, grad_output: torch.Tensor, rows: PackedRows, settings: AttentionSettings
) -> torch.Tensor:
    shared: Any = {"qkv": qkv, "rows": rows, "settings": settings, "seed": 5}
    output, logsumexp = attention_tiles(**shared, with_logsumexp=True)
    assert logsumexp is not None
    return attention_grad_tiles(
        **shared, output=output, grad_output=grad_output, logsumexp=logsumexp
    )


def by_torch(qkv: torch.Tensor, head_size: int, scaling: float) -> torch.Tensor:
    q, k, v = qkv.double().view(len(qkv), 3, -1, head_size).permute(1, 2, 0, 3)
    return (F.softmax(q @ k.mT * scaling, -1) @ v).transpose(0, 1).flatten(1)


@pytest.mark.parametrize("n_threads", [1, 3])
@pytest.mark.parametrize(
    ("head_size", "n_heads", "size"), [(32, 3, 1.0), (64, 2, 3.0), (96, 1, 0.1)]
)
def test_rows_of_odd_lengths(head_size: int, n_heads: int, size: float, n_threads: int) -> None:
    before, n_tokens = 3, sum(LENGTHS)
    qkv = drawn(before + n_tokens, head_size * n_heads, size)
    settings = SETTINGS._replace(head_size=head_size)
    with mock.patch.object(torch, "get_num_threads", return_value=n_threads):
        found = attend(qkv, rows_of(LENGTHS, before), settings)
    expected = [by_torch(row, head_size, 0.2) for row in qkv[before:].split(LENGTHS) if len(row)]
    largest = float(qkv.abs().max())
    off = (found[before:].double() - torch.cat(expected)).abs().max()
    assert float(off) < 0.015 * largest


def test_a_row_does_not_depend_on_others() -> None:
    qkv = drawn(sum(LENGTHS), 64)
    together = attend(qkv, rows_of(LENGTHS), SETTINGS)
    for row, found in zip(qkv.split(LENGTHS), together.split(LENGTHS), strict=True):
        alone = attend(row.clone(), rows_of([len(row)]), SETTINGS)
        assert torch.equal(alone, found)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("length", [1, 3, 4, 5, 7, 18, 45])
def test_queries_side_by_side_are_as_one_alone(length: int, dropout: float) -> None:
    same = drawn(length, 32)
    same[:, :32] = same[0, :32].clone()
    output, logsumexp = attention_tiles(
        qkv=same, rows=rows_of([length]), settings=SETTINGS._replace(dropout=dropout), seed=1,
        with_logsumexp=True,
    )  # fmt: skip
    assert logsumexp is not None
    assert logsumexp.unique().numel() == 1
    assert dropout or torch.equal(output, output[:1].expand_as(output))


@pytest.mark.parametrize("part", range(3))
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_no_number_stays_in_its_row_and_head(part: int, value: float) -> None:
    qkv = drawn(70, 64)
    clean = attend(qkv, rows_of([17, 20, 33]), SETTINGS)
    qkv.view(70, 3, 2, 32)[20, part, 1, 5] = value
    found = attend(qkv, rows_of([17, 20, 33]), SETTINGS)
    same = torch.ones(70, 64, dtype=torch.bool)
    same[17:37, 32:] = False
    assert torch.equal(found[same], clean[same])
    assert not found[20].isfinite().all()


def test_large_scores_are_no_overflow() -> None:
    qkv = drawn(40, 32, 100.0)
    found = attend(qkv, rows_of([40]), SETTINGS._replace(scaling=1.0))
    expected = by_torch(qkv, 32, 1.0)
    assert float((found.double() - expected).abs().max()) < 0.01 * float(qkv.abs().max())


@pytest.mark.parametrize(
    "changes",
    [{"is_causal": True}, {"sliding_window": 4}, {"head_size": 16}],
    ids=str,
)
def test_what_tiles_do_not_compute_is_refused(changes: dict[str, Any]) -> None:
    settings = SETTINGS._replace(**changes)
    with torch.no_grad():
        assert fits_tiles(torch.bfloat16, 8, SETTINGS)
        assert not fits_tiles(torch.bfloat16, 8, settings)
    with pytest.raises(ValueError, match="a kernel"):
        attend(drawn(8, 96), rows_of([8]), settings)


def test_float32_is_refused() -> None:
    with pytest.raises(ValueError, match="bfloat16"):
        attend(drawn(8, 32).float(), rows_of([8]), SETTINGS)


def test_a_processor_without_tiles_enters_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "kernels", mock.Mock(spec=["attention_tiles"]))
    with pytest.raises(RuntimeError, match="this processor"):
        attend(drawn(8, 32), rows_of([8]), SETTINGS)


# --- the gradient --------------------------------------------------------------------------------


def off(found: torch.Tensor, exact: torch.Tensor) -> float:
    """The error as a share of the whole, 0 of nothing."""
    return float((found.double() - exact).norm() / exact.norm().clamp(min=1e-30))


@pytest.mark.parametrize("n_threads", [1, 3])
@pytest.mark.parametrize(("head_size", "n_heads"), [(32, 3), (64, 2), (96, 1)])
def test_the_gradient_is_as_exact_as_torch_s(head_size: int, n_heads: int, n_threads: int) -> None:
    before, n_tokens = 3, sum(LENGTHS)
    qkv = drawn(before + n_tokens, head_size * n_heads)
    grad_output = drawn(before + n_tokens, head_size * n_heads)[:, : head_size * n_heads].clone()
    settings = SETTINGS._replace(head_size=head_size)
    with mock.patch.object(torch, "get_num_threads", return_value=n_threads):
        found = gradient(qkv, grad_output, rows_of(LENGTHS, before), settings)
    rows = zip(*[x[before:].split(LENGTHS) for x in (qkv, grad_output, found)], strict=True)
    for states, grad, row in rows:
        if not len(states):
            continue
        exact, rounded = states.double().requires_grad_(), states.clone().requires_grad_()
        by_torch(exact, head_size, 0.2).backward(grad.double())
        q, k, v = rounded.view(1, len(states), 3, -1, head_size).permute(2, 0, 3, 1, 4)
        output = F.scaled_dot_product_attention(q, k, v, scale=0.2)
        output[0].transpose(0, 1).flatten(1).backward(grad)
        assert exact.grad is not None
        assert rounded.grad is not None
        assert off(row, exact.grad) <= 1.1 * off(rounded.grad, exact.grad) + 1e-6


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("head_size", [32, 64])
def test_tiles_drop_what_vectors_drop(head_size: int, rate: float) -> None:
    qkv, grad_output = drawn(sum(LENGTHS), 64), drawn(sum(LENGTHS), 64)[:, :64].clone()
    settings = SETTINGS._replace(head_size=head_size, dropout=rate)
    shared: Any = {"qkv": qkv, "rows": rows_of(LENGTHS), "settings": settings, "seed": 5}
    output, logsumexp = attention_tiles(**shared, with_logsumexp=True)
    expected, expected_logsumexp = attention_forward(**shared, with_logsumexp=True)
    assert logsumexp is not None
    assert expected_logsumexp is not None
    assert off(output, expected.double()) < 0.004
    torch.testing.assert_close(logsumexp, expected_logsumexp, atol=1e-5, rtol=1e-5)
    grads = {"grad_output": grad_output, "logsumexp": logsumexp}
    found = attention_grad_tiles(**shared, **grads, output=output)
    assert off(found, attention_backward(**shared, **grads).double()) < 0.005


def test_the_gradient_of_a_row_does_not_depend_on_others() -> None:
    qkv, grad_output = drawn(sum(LENGTHS), 64), drawn(sum(LENGTHS), 64)[:, :64].clone()
    together = gradient(qkv, grad_output, rows_of(LENGTHS), SETTINGS)
    rows = zip(*[x.split(LENGTHS) for x in (qkv, grad_output, together)], strict=True)
    for states, grad, found in rows:
        alone = gradient(states.clone(), grad.clone(), rows_of([len(states)]), SETTINGS)
        assert torch.equal(alone, found)


@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_no_number_stays_in_the_gradient_of_its_row_and_head(
    part: int, value: float
) -> None:
    qkv, grad_output = drawn(70, 64), drawn(70, 64)[:, :64].clone()
    rows = rows_of([17, 20, 33])
    clean = gradient(qkv, grad_output, rows, SETTINGS)
    changed = grad_output if part == 3 else qkv.view(70, 3, 64)[:, part]
    changed[20, 37] = value
    found = gradient(qkv, grad_output, rows, SETTINGS).view(70, 3, 64)
    same = torch.ones(70, 3, 64, dtype=torch.bool)
    same[17:37, :, 32:] = False
    assert torch.equal(found[same], clean.view(70, 3, 64)[same])
    assert not found[17:37, :, 32:].isfinite().all()


def test_gradients_of_nothing() -> None:
    nothing = drawn(0, 32)
    for lengths in ([], [0, 0]):
        assert gradient(nothing, nothing[:, :32].clone(), rows_of(lengths), SETTINGS).shape == (
            0,
            96,
        )


# --- where they are used -------------------------------------------------------------------------


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the kernels in tiles that are called."""
    names: list[str] = []

    def counted(name: str) -> Any:
        compute = getattr(fused, name)

        def count(**arguments: Any) -> Any:
            names.append(name)
            return compute(**arguments)

        return count

    for name in ("attention_tiles", "attention_grad_tiles"):
        monkeypatch.setattr(fused, name, counted(name))
    return names


@pytest.mark.parametrize(("length", "is_used"), [(8, 0), (9, 1), (1024, 1), (1025, 0)])
def test_training_uses_tiles_for_rows_of_these_lengths(
    length: int, is_used: bool, calls: list[str]
) -> None:
    qkv = drawn(length + 1, 32).requires_grad_()
    found = fused.fused_attention(qkv, rows_of([length]), SETTINGS._replace(dropout=0.1))
    found.sum().backward()
    assert calls == ["attention_tiles", "attention_grad_tiles"] * is_used
    assert qkv.grad is not None
    assert not found[length].any()
    assert not qkv.grad[length].any()
    assert qkv.grad[:length].any()


def test_inference_uses_tiles_for_any_length(
    calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with torch.no_grad():
        for length in (1, 8, 1025):
            found = fused.fused_attention(drawn(length + 1, 32), rows_of([length]), SETTINGS)
            assert not found[length].any()
    assert calls == ["attention_tiles"] * 3
    monkeypatch.setattr(fused, "has_instructions", lambda name: False)
    with torch.no_grad():
        fused.fused_attention(drawn(9, 32), rows_of([9]), SETTINGS)
    fused.fused_attention(drawn(9, 32), rows_of([9]), SETTINGS)
    assert len(calls) == 3
