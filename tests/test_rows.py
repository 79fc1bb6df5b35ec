"""Gradients by row are autograd's own, and leave nothing behind."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from skbert._core.rows import RowGradients


@pytest.fixture
def table() -> torch.nn.Parameter:
    """An embedding table of 50 rows."""
    generator = torch.Generator().manual_seed(0)
    return torch.nn.Parameter(torch.randn(50, 8, generator=generator))


def draw_ids(seed: int, n: int = 30) -> torch.Tensor:
    """Ids as a packed batch has them, with repetitions."""
    return torch.randint(50, (1, n), generator=torch.Generator().manual_seed(seed))


def test_forward_equals_embedding(table: torch.nn.Parameter) -> None:
    ids = draw_ids(0)
    assert torch.equal(RowGradients(table)(ids), F.embedding(ids, table))


def test_gradients_over_several_steps_and_batches_equal_autograd(
    table: torch.nn.Parameter,
) -> None:
    twin = torch.nn.Parameter(table.detach().clone())
    rows = RowGradients(table)
    for step in range(3):
        rows.clear()
        twin.grad = None
        for part in range(2):  # gradients of two micro-batches add up
            ids = draw_ids(10 * step + part)
            rows(ids).square().sum().backward()
            F.embedding(ids, twin).square().sum().backward()
        assert table.grad is not None
        assert twin.grad is not None
        torch.testing.assert_close(table.grad, twin.grad, rtol=1e-6, atol=1e-6)


def test_gradient_works_in_double_precision(table: torch.nn.Parameter) -> None:
    double = torch.nn.Parameter(table.detach().double())
    ids = draw_ids(3)
    RowGradients(double)(ids).sum().backward()
    assert double.grad is not None
    counts = torch.bincount(ids.flatten(), minlength=50).double()
    assert torch.equal(double.grad, counts[:, None].expand(50, 8))


def test_clear_leaves_zeros_and_the_same_memory(table: torch.nn.Parameter) -> None:
    rows = RowGradients(table)
    rows(draw_ids(1)).sum().backward()
    assert table.grad is not None
    address = table.grad.data_ptr()
    rows.clear()
    assert table.grad is None
    assert not rows.kept.any()
    rows(draw_ids(2)).sum().backward()
    assert table.grad.data_ptr() == address


@pytest.mark.parametrize("frozen", [False, True])
def test_nothing_is_kept_without_gradients(table: torch.nn.Parameter, *, frozen: bool) -> None:
    rows = RowGradients(table)
    table.requires_grad_(not frozen)
    with torch.set_grad_enabled(frozen):
        found = rows(draw_ids(4))
    assert not found.requires_grad
    assert rows.used == []
    assert table.grad is None
