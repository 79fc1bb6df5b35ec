"""The expected calibration error against a slow reference, and what it says of bad input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import make_scorer

from skbert.exceptions import InputError, InputTypeError
from skbert.metrics import calibration_error

SURE = [[0.9, 0.1], [0.7, 0.3], [0.1, 0.9], [0.3, 0.7]]
TRUE = ["a", "b", "b", "b"]


def slow_error(true: list[int], chances: np.ndarray, n_bins: int, weights: np.ndarray) -> float:
    """The definition, bin by bin and row by row."""
    total = 0.0
    for number in range(n_bins):
        inside = [
            row
            for row, chance in enumerate(chances.max(axis=1))
            if (number / n_bins < chance <= (number + 1) / n_bins) or (number == 0 and chance == 0)
        ]
        weight = sum(weights[row] for row in inside)
        if not weight:
            continue
        said = sum(weights[row] * chances[row].max() for row in inside) / weight
        right = sum(weights[row] * (chances[row].argmax() == true[row]) for row in inside) / weight
        total += weight * abs(said - right)
    return total / weights.sum()


@given(st.integers(0, 10**6), st.integers(2, 6), st.sampled_from([1, 3, 10, 15]), st.booleans())
def test_the_error_is_that_of_the_definition(
    seed: int, n_classes: int, n_bins: int, weighted: bool
) -> None:
    rng = np.random.default_rng(seed)
    chances = rng.dirichlet(np.ones(n_classes), 60)
    true = rng.integers(n_classes, size=60)
    weights = rng.integers(0, 3, size=60) + (rng.random() if weighted else 1.0)
    given_weights = weights if weighted else None
    reference = slow_error(true.tolist(), chances, n_bins, weights if weighted else np.ones(60))
    error = calibration_error(
        true, chances, range(n_classes), n_bins=n_bins, sample_weight=given_weights
    )
    assert error == pytest.approx(reference, abs=1e-12)


def test_a_worked_example() -> None:
    # Two bins: (0, 0.5] is empty; of four predictions at 0.8 on average three are right.
    assert calibration_error(TRUE, SURE, n_bins=2) == pytest.approx(0.05)


def test_a_weight_is_a_repeated_row() -> None:
    repeated = calibration_error([*TRUE, "b", "b"], [*SURE, SURE[1], SURE[1]])
    assert calibration_error(TRUE, SURE, sample_weight=[1, 3, 1, 1]) == pytest.approx(repeated)


@pytest.mark.parametrize("make", [list, np.array, pd.Series])
def test_two_classes_need_only_the_second(make: Any) -> None:
    of_second = make([row[1] for row in SURE])
    assert calibration_error(make(TRUE), of_second) == calibration_error(TRUE, SURE)


def test_a_label_that_is_no_class_is_an_error() -> None:
    assert calibration_error(["c"], [[0.0, 1.0]], ["a", "b"]) == 1.0


def test_it_makes_a_scorer() -> None:
    X, y = np.arange(40.0)[:, None], np.arange(40) % 4 // 2
    scorer = make_scorer(
        calibration_error, response_method="predict_proba", greater_is_better=False
    )
    model = LogisticRegression().fit(X, y)
    assert scorer(model, X, y) == -calibration_error(y, model.predict_proba(X))


@pytest.mark.parametrize(
    ("true", "chances", "more", "error", "words"),
    [
        ([], np.empty((0, 2)), {}, InputError, "y_true has no rows"),
        (TRUE, SURE[:3], {}, InputError, r"y_proba has the shape \(3, 2\)"),
        (TRUE, [*SURE[:3], [0.2, 0.2]], {}, InputError, "Row 3 of y_proba sums to 0.400"),
        (TRUE, [*SURE[:3], [1.2, -0.2]], {}, InputError, "Row 3 of y_proba is"),
        (TRUE, [*SURE[:3], [np.nan, 1]], {}, InputError, "Row 3 of y_proba is"),
        (TRUE, [0.5, 0.5, 0.5, 1.5], {}, InputError, "Row 3 of y_proba is"),
        (TRUE, ["x", "y", "z", "z"], {}, InputTypeError, "y_proba does not hold numbers"),
        (TRUE, [["x", "y"]] * 4, {}, InputTypeError, "y_proba does not hold numbers"),
        (["a"] * 4, SURE, {}, InputError, "1 different labels, but y_proba has 2 columns.*class"),
        (TRUE, [[0.5, 0.5], [1]] * 2, {}, InputTypeError, "y_proba does not hold numbers"),
        (TRUE, 0.5, {}, InputError, "2 different labels, but y_proba has 0 columns"),
        (TRUE, SURE, {"classes": [0, 1]}, InputTypeError, "Give both as str or both as numbers"),
        (TRUE, SURE, {"classes": ["a"]}, InputError, r"shape \(4, 1\), a column for each"),
        ([[0, 1]] * 4, SURE, {}, InputError, "y_true has several labels per row"),
        (TRUE, SURE, {"n_bins": 0}, InputError, "n_bins is 0, but must be an int"),
        (TRUE, SURE, {"n_bins": True}, InputTypeError, "n_bins is True, of type bool"),
        (TRUE, SURE, {"sample_weight": [1, 2]}, InputError, r"sample_weight.shape == \(2,\)"),
        (TRUE, SURE, {"sample_weight": [-1, 2, 1, 1]}, InputError, "Negative values"),
    ],
)
def test_bad_input(
    true: Any, chances: Any, more: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        calibration_error(true, chances, **more)
