"""Levels of conformity and thresholds of rejection, against slow references and by simulation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from skbert._estimator.checks import are_confidences, are_sorted, are_weights
from skbert._estimator.conformity import Conformity
from skbert._estimator.rejection import _lowest_threshold
from skbert.exceptions import InputError

NUMBERS = st.lists(st.integers(0, 20), min_size=1, max_size=40)
COVERAGES = st.floats(0.01, 0.99)
RAGGED = st.lists(st.lists(st.integers(0, 9), max_size=5), min_size=1, max_size=15)


def slow_level(scores: list[int], coverage: float) -> float:
    """The score with enough scores at or below it, by counting."""
    wanted = math.ceil(round((len(scores) + 1) * coverage, 9))
    enough = [each for each in scores if sum(other <= each for other in scores) >= wanted]
    return min(enough, default=math.inf)


def level_of(conformity: Conformity, coverage: float) -> float:
    try:
        return float(conformity.level(coverage))
    except InputError:
        return math.inf


def of_numbers(scores: list[int]) -> Conformity:
    return Conformity(np.sort(np.array(scores, float)))


@given(NUMBERS, COVERAGES)
def test_the_level_is_the_quantile_of_finite_samples(scores: list[int], coverage: float) -> None:
    assert level_of(of_numbers(scores), coverage) == slow_level(scores, coverage)


@pytest.mark.parametrize(("n", "place"), [(19, 19), (20, 20), (39, 38), (99, 95), (100, 96)])
def test_levels_of_95_percent(n: int, place: int) -> None:
    assert Conformity(np.arange(1.0, n + 1)).level(0.95) == place


@given(NUMBERS, COVERAGES)
def test_each_row_left_out_is_covered_as_often_as_asked(
    scores: list[int], coverage: float
) -> None:
    # Rows that can be exchanged make this an identity, not a matter of chance.
    inside = [
        each <= level_of(of_numbers(scores[:at] + scores[at + 1 :]), coverage)
        for at, each in enumerate(scores)
        if len(scores) > 1
    ]
    assert not inside or np.mean(inside) >= coverage - 1e-9


def of_rows(rows: list[list[int]]) -> Conformity:
    return Conformity.of_rows([np.array(row, float) for row in rows])


def share_above(row: list[int], level: float) -> float:
    return sum(each > level for each in row) / max(1, len(row))


@given(RAGGED, COVERAGES)
def test_the_level_of_several_scores_a_row_controls_the_risk(
    rows: list[list[int]], coverage: float
) -> None:
    n = len(rows)
    good = [
        level
        for level in {0, *(each for row in rows for each in row)}
        if sum(share_above(row, level) for row in rows) + 1 <= (1 - coverage) * (n + 1) + 1e-9
    ]
    assert level_of(of_rows(rows), coverage) == min(good, default=math.inf)


@given(RAGGED.filter(lambda rows: len(rows) > 1), COVERAGES)
def test_words_of_each_row_left_out_are_covered_on_average(
    rows: list[list[int]], coverage: float
) -> None:
    missed = [
        share_above(row, level_of(of_rows(rows[:at] + rows[at + 1 :]), coverage))
        for at, row in enumerate(rows)
    ]
    assert np.mean(missed) <= 1 - coverage + 1e-9


def test_one_score_a_row_is_the_usual_case() -> None:
    scores = np.random.default_rng(0).random(57)
    several = Conformity.of_rows(scores[:, None])
    assert several.level(0.9) == Conformity(np.sort(scores)).level(0.9)
    assert several.n_rows == 57


def test_too_few_rows_name_how_many_it_takes() -> None:
    with pytest.raises(InputError, match=r"at least 19 rows .* there are 9.* at most 0\.9\."):
        Conformity(np.arange(9.0)).level(0.95)
    assert Conformity(np.arange(9.0)).level(0.9) == 8


def test_columns_have_levels_of_their_own() -> None:
    scores = np.stack([np.arange(19.0), np.arange(19.0) * 10], axis=1)
    assert Conformity(scores).level(0.95).tolist() == [18, 180]


def test_scores_are_kept_sorted() -> None:
    kept = Conformity(np.array([[3, 1], [2, 5]], np.float32)).attributes()
    assert kept["conformity_scores_"].tolist() == [[2, 1], [3, 5]]
    assert kept["conformity_scores_"].dtype == np.float64


# --- rejection -----------------------------------------------------------------------------------


def test_a_threshold_is_proven_by_the_binomial_distribution() -> None:
    rng = np.random.default_rng(1)
    chances = rng.random(900)
    wrong = rng.random(900) > chances**0.2
    threshold, least = _lowest_threshold(chances, wrong, 0.1, 0.95)
    answered = chances >= threshold
    n, k = int(answered.sum()), int(wrong[answered].sum())
    steps = math.ceil(math.log2(900)) + 1
    assert 0 < threshold < 1
    assert least <= 0.1
    # With more errors than that, so few would hardly be seen.
    assert binom.cdf(k, n, 0.1) <= 0.05 / steps + 1e-12


def test_the_share_of_errors_is_kept_as_often_as_said() -> None:
    rng = np.random.default_rng(2)
    broken = 0
    for _ in range(300):
        chances = rng.random(300)
        wrong = rng.random(300) > chances
        threshold, least = _lowest_threshold(chances, wrong, 0.2, 0.9)
        if least <= 0.2:
            broken += (1 - threshold) / 2 > 0.2  # the share of errors above it
    assert broken <= 30


def test_every_row_may_be_answered_where_all_are_right() -> None:
    assert _lowest_threshold(np.linspace(0.5, 1, 200), np.zeros(200, bool), 0.05, 0.95)[0] == 0.0


@pytest.mark.parametrize(("n", "proves"), [(98, False), (99, True)])
def test_few_rows_prove_little(n: int, *, proves: bool) -> None:
    least = _lowest_threshold(np.linspace(0.5, 1, n), np.zeros(n, bool), 0.05, 0.95)[1]
    assert (least <= 0.05) == proves


def test_one_wrong_row_proves_nothing() -> None:
    assert _lowest_threshold(np.array([0.7]), np.array([True]), 0.5, 0.5) == (1.0, 1.0)


# --- what a saved file may hold ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (are_sorted, [0.0, 0.5, 0.5], [0.5, 0.0]),
        (are_sorted, [[0.0, 2.0], [1.0, 3.0]], [[0.0, 3.0], [1.0, 2.0]]),
        (are_sorted, [0.0], [np.nan]),
        (are_weights, [0.5, 1.0], [0.0, 1.0]),
        (are_confidences, [[0.5, 1.0]], [[1.5, 1.0]]),
        (are_confidences, [[0.5, 1.0]], [[np.nan, 1.0]]),
        (are_confidences, [[0.5, 1.0]], [0.5, 1.0]),
        (are_confidences, [[0.5, 1.0]], [[0.5, 1.0, 0.0]]),
    ],
)
def test_kept_arrays_are_checked(check: Any, good: list[Any], bad: list[Any]) -> None:
    assert check(np.array(good))
    assert not check(np.array(bad))
    assert not check(good)
