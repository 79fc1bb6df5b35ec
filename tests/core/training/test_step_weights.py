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
    found = StepWeights(items.weighted(weights), 5)
    assert [found.of_step(step) for step in STEPS] == [1.0] * 4


def test_windows_without_weights_change_nothing(items: Items) -> None:
    windows = replace(items, weights=1 / np.arange(1, N + 1))
    for each in (windows, windows.weighted(np.full(N, 7.0))):
        found = StepWeights(each, 5)
        assert [found.of_step(step) for step in STEPS] == [1.0] * 4


def test_steps_weigh_what_their_samples_do(items: Items) -> None:
    weights = np.random.default_rng(4).uniform(0.1, 9.0, N)
    expected = np.array([weights[step].mean() for step in STEPS])
    for factor in (1.0, 100.0):
        steps = StepWeights(items.weighted(factor * weights), 5)
        found = np.array([steps.of_step(step) for step in STEPS])
        np.testing.assert_allclose(found / found[0], expected / expected[0])
        assert 0.5 < found.mean() < 2


def test_a_step_weighs_as_much_as_ten_at_most(items: Items) -> None:
    heavy = StepWeights(items.weighted(np.r_[1e6, np.ones(N - 1)]), 5)
    assert sorted(heavy.of_step(step) for step in STEPS) == [1.0, 1.0, 1.0, 10.0]


def test_a_step_has_samples_whatever_they_are_cut_into(items: Items) -> None:
    """Most windows are of light samples; most steps have a heavy one."""
    n_windows = np.where(np.arange(N) % 4 == 0, 1, 30)
    at = np.repeat(np.arange(N), n_windows)
    cut = replace(items.take(at), samples=at, weights=1 / n_windows[at])
    weights = np.where(np.arange(N) % 4 == 0, 100.0, 1.0)
    whole, found = (StepWeights(each.weighted(weights), 5) for each in (items, cut))
    for step in STEPS:
        windows = np.flatnonzero(np.isin(at, step))
        assert found.of_step(windows) == pytest.approx(whole.of_step(step))


def test_samples_of_weight_0_are_of_no_step(items: Items) -> None:
    weights = np.arange(N) % 4.0
    kept = items.weighted(weights)
    assert len(kept) == np.count_nonzero(weights)
    found = StepWeights(kept, 3)
    whole = np.arange(len(kept))
    assert found.of_step(whole[:2]) / found.of_step(whole[1:3]) == pytest.approx(1.5 / 2.5)
