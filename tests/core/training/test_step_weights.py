"""What a step counts: as much as its samples weigh, whatever a sample is cut into."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from support.networks import open_model
from support.training import N, make_items

from skbert._core.training.step_weights import StepWeights

if TYPE_CHECKING:
    from pathlib import Path

    from skbert._core.items import Items

STEPS = np.random.default_rng(3).permutation(N).reshape(4, 5)


@pytest.fixture(scope="module")
def items(tiny_model: Path) -> Items:
    return make_items(open_model(tiny_model))


@pytest.mark.parametrize("weights", [None, np.ones(N), np.full(N, 0.1)])
def test_steps_of_samples_alike_weigh_1(items: Items, weights: np.ndarray | None) -> None:
    found = StepWeights(items.weighted(weights))
    assert [found.of_step(step) for step in STEPS] == [1.0] * 4


def test_windows_without_weights_change_nothing(items: Items) -> None:
    windows = replace(items, weights=1 / np.arange(1, N + 1))
    for each in (windows, windows.weighted(np.full(N, 7.0))):
        found = StepWeights(each)
        assert [found.of_step(step) for step in STEPS] == [1.0] * 4


def test_steps_weigh_what_their_samples_do(items: Items) -> None:
    weights = np.random.default_rng(4).uniform(0.1, 90.0, N)
    for factor in (1.0, 100.0):
        found = StepWeights(items.weighted(factor * weights))
        expected = [weights[step].mean() / weights.mean() for step in STEPS]
        np.testing.assert_allclose([found.of_step(step) for step in STEPS], expected)
    assert np.mean(expected) == pytest.approx(1.0)


def test_samples_of_weight_0_are_of_no_step(items: Items) -> None:
    weights = np.arange(N) % 4.0
    kept = items.weighted(weights)
    found = StepWeights(kept)
    whole = np.arange(len(kept))
    assert len(kept) == np.count_nonzero(weights)
    assert found.of_step(whole) == pytest.approx(1.0)
    assert found.of_step(whole[:2]) == pytest.approx(1.5 / 2.0)  # of 1, 2, 3 on average
