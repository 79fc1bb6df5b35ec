"""Softmax within stretches, held against torch's own, stretch by stretch."""

from __future__ import annotations

import pytest
import torch

from skbert._core.segments import log_softmax_within

COUNTS = [3, 1, 7, 2]


def by_hand(logits: torch.Tensor) -> torch.Tensor:
    return torch.cat([part.log_softmax(dim=0) for part in logits.split(COUNTS)])


@pytest.mark.parametrize("longest", [7, 13])
def test_values_and_gradients_are_those_of_each_stretch_alone(longest: int) -> None:
    torch.manual_seed(0)
    drawn = torch.randn(sum(COUNTS), 2, dtype=torch.float64)
    weights = torch.randn_like(drawn)
    ours, theirs = drawn.clone().requires_grad_(), drawn.clone().requires_grad_()
    out, expected = log_softmax_within(ours, torch.tensor(COUNTS), longest), by_hand(theirs)
    torch.testing.assert_close(out, expected)
    (out * weights).sum().backward()
    (expected * weights).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad)
    assert torch.isfinite(ours.grad).all()


def test_huge_logits_stay_finite() -> None:
    logits = torch.tensor([[1e30], [-1e30], [5.0]])
    out = log_softmax_within(logits, torch.tensor([2, 1]), 2)
    assert out[0] == 0
    assert out[2] == 0
    assert torch.isfinite(out).all()
