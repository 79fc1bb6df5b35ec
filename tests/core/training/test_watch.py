"""The hold-out, the best weights and patience."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.networks import CPU, Labels, open_model
from support.training import RECIPE, make_items, same, weights_of

from skbert._core.runtime.device import Precision, seeded
from skbert._core.training.loop import TrainingLoop
from skbert._core.training.watch import EarlyStopping, hold_out

if TYPE_CHECKING:
    from pathlib import Path

fractions = st.floats(0.01, 0.99)
strata_of_samples = st.lists(st.sampled_from([0, 1, 2, 5]), min_size=2, max_size=120)


def drawn(
    n_samples: int, fraction: float, seed: int = 0, strata: list[int] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    codes = None if strata is None else np.array(strata)
    return hold_out(n_samples, fraction, np.random.default_rng(seed), codes)


# --- the hold-out --------------------------------------------------------------------------------


@given(n_samples=st.integers(2, 200), fraction=fractions, seed=st.integers(0, 99))
def test_every_sample_is_on_one_side(n_samples: int, fraction: float, seed: int) -> None:
    learn, held = drawn(n_samples, fraction, seed)
    assert sorted([*learn, *held]) == list(range(n_samples))
    assert (np.diff(learn) > 0).all()
    assert (np.diff(held) > 0).all()
    assert min(len(learn), len(held)) >= 1
    if 0.5 < fraction * n_samples < n_samples - 0.5:
        assert abs(len(held) - fraction * n_samples) <= 0.5


def test_strata_without_samples_change_nothing() -> None:
    codes = np.arange(60) % 12
    few, more = (drawn(60, 0.1, strata=[*code]) for code in (codes, 2 * codes + 1))
    assert all(map(np.array_equal, few, more))


@given(strata=strata_of_samples, fraction=fractions, seed=st.integers(0, 99))
def test_every_stratum_gives_its_share(strata: list[int], fraction: float, seed: int) -> None:
    learn, held = drawn(len(strata), fraction, seed, strata)
    assert sorted([*learn, *held]) == list(range(len(strata)))
    plain = drawn(len(strata), fraction, seed)
    assert (len(learn), len(held)) == (len(plain[0]), len(plain[1]))
    codes = np.array(strata)
    share = len(held) / len(strata)
    for stratum in set(strata):
        of_all, of_held = (codes == stratum).sum(), (codes[held] == stratum).sum()
        assert abs(of_held - share * of_all) < 2, (stratum, of_held, of_all)


def test_a_rare_stratum_is_not_left_to_luck() -> None:
    strata = [1 if i % 20 == 0 else 0 for i in range(400)]  # twenty of one, 380 of the other
    counts = {int(sum(strata[i] for i in drawn(400, 0.2, seed, strata)[1])) for seed in range(50)}
    assert counts <= {3, 4, 5}
    by_luck = {int(sum(strata[i] for i in drawn(400, 0.2, seed)[1])) for seed in range(50)}
    assert max(by_luck) - min(by_luck) > 4


def test_the_generator_decides() -> None:
    for strata in (None, [0, 1] * 25):
        one, same_one, other = (drawn(50, 0.3, seed, strata)[1] for seed in (0, 0, 1))
        assert one.tolist() == same_one.tolist() != other.tolist()


def test_every_sample_but_the_only_one_of_its_stratum_can_be_held_out() -> None:
    strata = [0] * 7 + [1] * 3 + [2]
    held = [set(drawn(11, 0.3, seed, strata)[1].tolist()) for seed in range(100)]
    assert set().union(*held) == set(range(10))


def test_no_stratum_is_held_out_whole_while_others_can_give_a_sample() -> None:
    strata = [0] * 20 + [1] * 2 + [*range(2, 12)]
    for seed in range(100):
        learn, held = drawn(32, 0.5, seed, strata)
        assert {strata[i] for i in learn} == {*strata}
        assert len(held) == 16
        assert len(drawn(32, 0.9, seed, strata)[1]) == 29


@pytest.mark.parametrize(
    ("n_samples", "fraction", "n_held"),
    [(2, 0.01, 1), (2, 0.99, 1), (10, 0.1, 1), (10, 0.25, 2), (11, 0.5, 6), (1000, 0.001, 1)],
)
def test_worked_sizes(n_samples: int, fraction: float, n_held: int) -> None:
    learn, held = drawn(n_samples, fraction)
    assert (len(learn), len(held)) == (n_samples - n_held, n_held)


# --- the best weights ----------------------------------------------------------------------------


class Still(torch.nn.Module):
    """One weight and one buffer, that are what they are set to."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(2))
        self.register_buffer("count", torch.zeros(()))

    def become(self, value: float) -> None:
        with torch.no_grad():
            self.weight.fill_(value)
            self.count.fill_(value)


def watched(losses: list[float], patience: int | None = None) -> tuple[Still, EarlyStopping, int]:
    """Pass k has weights k and the k-th loss; what is left, and how many passes it took."""
    model = Still()
    watch = EarlyStopping(model, patience)
    n_passes = 0
    for number, loss in enumerate(losses, start=1):
        model.become(float(number))
        watch.note(-loss)
        n_passes = number
        if watch.is_exhausted:
            break
    watch.restore()
    return model, watch, n_passes


@pytest.mark.parametrize(
    ("losses", "best"),
    [
        ([3.0, 2.0, 1.0], 3),
        ([1.0, 2.0, 3.0], 1),
        ([2.0, 1.0, 3.0, 1.5], 2),
        ([2.0, 1.0, 1.0], 2),  # the first of equals
        ([math.nan, 1.0, 2.0], 2),
        ([1.0, math.nan, 2.0], 1),
        ([math.inf, 5.0], 2),
        ([1.0, -2.0, 0.0], 2),
    ],
)
def test_the_best_weights_are_put_back(losses: list[float], best: int) -> None:
    model, watch, _ = watched(losses)
    assert model.weight.tolist() == [best, best]
    assert model.count.item() == best
    assert watch.best == -losses[best - 1]


def test_without_a_single_number_the_last_weights_stay() -> None:
    assert watched([math.nan, math.nan])[0].weight.tolist() == [2.0, 2.0]
    assert watched([])[0].weight.tolist() == [0.0, 0.0]


def test_what_is_kept_does_not_move_with_the_model() -> None:
    model = Still()
    watch = EarlyStopping(model, None)
    parameter = model.weight
    for loss in (2.0, 1.0):
        model.become(loss)
        watch.note(-loss)
    model.become(9.0)
    assert watch._weights["weight"].tolist() == [1.0, 1.0]
    watch.restore()
    assert model.weight is parameter  # an optimizer would still hold it
    assert parameter.tolist() == [1.0, 1.0]
    assert parameter.requires_grad


@pytest.mark.parametrize(
    ("losses", "patience", "n_passes"),
    [
        ([1.0, 2.0, 3.0, 4.0], 1, 2),
        ([1.0, 2.0, 3.0, 4.0], 2, 3),
        ([1.0, 2.0, 0.5, 2.0, 2.0, 0.1], 2, 5),  # an improvement starts the count again
        ([1.0, 1.0, 1.0], 2, 3),
        ([3.0, 2.0, 1.0], 1, 3),
        ([1.0, 2.0, 3.0, 4.0], None, 4),
        ([math.nan, math.nan, 1.0], 2, 2),
    ],
)
def test_patience(losses: list[float], patience: int | None, n_passes: int) -> None:
    assert watched(losses, patience)[2] == n_passes


def test_the_best_pass_of_a_training(tiny_model: Path) -> None:
    network = open_model(tiny_model)
    items = make_items(network)
    watch = EarlyStopping(network.model, 1)
    seen = []
    with seeded(0, CPU):
        for epoch in TrainingLoop(network, Labels(), items, RECIPE, Precision("float32", CPU), 0):
            seen.append(weights_of(network))
            watch.note({1: -0.5, 2: -0.9}[epoch.epoch])
            if watch.is_exhausted:
                break
    assert len(seen) == 2
    assert same(weights_of(network), seen[1])
    watch.restore()
    assert same(weights_of(network), seen[0])
    assert not same(seen[0], seen[1])
