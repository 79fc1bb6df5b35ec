"""Attention in tiles against torch in float64, at odd lengths, and where it is refused."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch
from torch.nn import functional as F

from skbert._core.attention.settings import AttentionSettings
from skbert._core.cpu import fused
from skbert._core.cpu.bindings import module
from skbert._core.cpu.bindings.attention import PackedRows
from skbert._core.cpu.bindings.attention_tiles import attention_tiles, fits_tiles

pytestmark = pytest.mark.skipif(not module.has_amx(), reason="needs a processor with AMX")

SETTINGS = AttentionSettings(32, 0.2, False, 0.0)
LENGTHS = [1, 2, 15, 0, 16, 17, 31, 32, 33, 64, 100, 257, 600]


def rows_of(lengths: list[int], before: int = 0) -> PackedRows:
    return PackedRows(torch.tensor([before, *lengths]).cumsum(0, dtype=torch.int32))


def drawn(n_tokens: int, width: int, size: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(n_tokens)
    return (torch.randn(n_tokens, 3 * width, generator=generator) * size).bfloat16()


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
        found = attention_tiles(qkv=qkv, rows=rows_of(LENGTHS, before), settings=settings)
    expected = [by_torch(row, head_size, 0.2) for row in qkv[before:].split(LENGTHS) if len(row)]
    largest = float(qkv.abs().max())
    off = (found[before:].double() - torch.cat(expected)).abs().max()
    assert float(off) < 0.015 * largest


def test_a_row_does_not_depend_on_others() -> None:
    qkv = drawn(sum(LENGTHS), 64)
    together = attention_tiles(qkv=qkv, rows=rows_of(LENGTHS), settings=SETTINGS)
    for row, found in zip(qkv.split(LENGTHS), together.split(LENGTHS), strict=True):
        alone = attention_tiles(qkv=row.clone(), rows=rows_of([len(row)]), settings=SETTINGS)
        assert torch.equal(alone, found)


@pytest.mark.parametrize("part", range(3))
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_no_number_stays_in_its_row_and_head(part: int, value: float) -> None:
    qkv = drawn(70, 64)
    clean = attention_tiles(qkv=qkv, rows=rows_of([17, 20, 33]), settings=SETTINGS)
    qkv.view(70, 3, 2, 32)[20, part, 1, 5] = value
    found = attention_tiles(qkv=qkv, rows=rows_of([17, 20, 33]), settings=SETTINGS)
    same = torch.ones(70, 64, dtype=torch.bool)
    same[17:37, 32:] = False
    assert torch.equal(found[same], clean[same])
    assert not found[20].isfinite().all()


def test_large_scores_are_no_overflow() -> None:
    qkv = drawn(40, 32, 100.0)
    found = attention_tiles(qkv=qkv, rows=rows_of([40]), settings=SETTINGS._replace(scaling=1.0))
    expected = by_torch(qkv, 32, 1.0)
    assert float((found.double() - expected).abs().max()) < 0.01 * float(qkv.abs().max())


@pytest.mark.parametrize(
    "changes",
    [{"is_causal": True}, {"dropout": 0.1}, {"sliding_window": 4}, {"head_size": 16}],
    ids=str,
)
def test_what_tiles_do_not_compute_is_refused(changes: dict[str, Any]) -> None:
    settings = SETTINGS._replace(**changes)
    with torch.no_grad():
        assert fits_tiles(drawn(8, 96), 8, SETTINGS)
        assert not fits_tiles(drawn(8, 96), 8, settings)
    with pytest.raises(ValueError, match="a kernel"):
        attention_tiles(qkv=drawn(8, 96), rows=rows_of([8]), settings=settings)


def test_float32_is_refused() -> None:
    with pytest.raises(ValueError, match="bfloat16"):
        attention_tiles(qkv=drawn(8, 32).float(), rows=rows_of([8]), settings=SETTINGS)


def test_a_processor_without_tiles_enters_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "kernels", mock.Mock(spec=["attention_tiles"]))
    with pytest.raises(RuntimeError, match="this processor"):
        attention_tiles(qkv=drawn(8, 32), rows=rows_of([8]), settings=SETTINGS)


def test_tiles_are_for_inference_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def count(**arguments: Any) -> torch.Tensor:
        calls.append(arguments)
        return attention_tiles(**arguments)

    monkeypatch.setattr(fused, "attention_tiles", count)
    qkv, rows = drawn(9, 32), rows_of([8])
    fused.fused_attention(qkv, rows, SETTINGS)
    assert not calls
    with torch.no_grad():
        found = fused.fused_attention(qkv, rows, SETTINGS)
    assert len(calls) == 1
    assert not found[8].any()
    monkeypatch.setattr(fused, "has_instructions", lambda name: False)
    with torch.no_grad():
        fused.fused_attention(qkv, rows, SETTINGS)
    assert len(calls) == 1
