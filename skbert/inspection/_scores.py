"""Scores of predictions with bootstrap intervals, and the calibration of probabilities.

Every score is a function of sums over rows, so that a resample of the rows is a product of their
counts with a table. Depends on `_outcomes`, on the display of reliability and on the metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np

from skbert._arrays import FloatArray
from skbert.inspection._displays.reliability import ReliabilityDisplay
from skbert.inspection._outcomes import Confidences, Outcomes
from skbert.metrics import squad_f1
from skbert.metrics._calibration import reliability_bins

__all__ = ["Interval", "Score", "calibration_of", "intervals", "scores_of"]

_N_RESAMPLES = 1000
_PERCENTILES = (2.5, 97.5)
_N_BINS = 10
_LEAST_SPREAD = 1e-9  # of numbers in a resample, as a share of their mean square; less is rounding


class Score(NamedTuple):
    """A score as a function of sums over rows."""

    name: str
    table: FloatArray  # (n_rows, k): what is summed
    of_sums: Callable[[FloatArray], FloatArray]  # (n, k) -> (n,)


class Interval(NamedTuple):
    """A score, and the range in which it lies for 95 % of the resamples of its rows."""

    name: str
    estimate: float
    low: float
    high: float


def intervals(scores: list[Score], rng: np.random.RandomState) -> list[Interval]:
    """Each score with its percentile interval over resamples of the rows, the same for all."""
    n_rows = len(scores[0].table)
    tables = np.concatenate([score.table for score in scores], axis=1)
    resamples = (
        np.bincount(rng.randint(n_rows, size=n_rows), minlength=n_rows) @ tables
        for _ in range(_N_RESAMPLES)
    )
    sums = np.concatenate([tables.sum(axis=0)[None], np.array([*resamples])])
    results, at = [], 0
    for name, table, of_sums in scores:
        values = of_sums(sums[:, at : at + table.shape[1]])
        at += table.shape[1]
        low, high = np.nanpercentile(values[1:], _PERCENTILES)
        results.append(Interval(name, float(values[0]), float(low), float(high)))
    return results


def scores_of(outcomes: Outcomes, losses: FloatArray) -> list[Score]:
    """The scores that fit the kind of predictions, and the mean of the losses of the rows."""
    n_rows = len(losses)
    truths = [outcomes.truth(row) for row in range(n_rows)]
    predictions = [outcomes.prediction(row) for row in range(n_rows)]
    is_right = np.array([outcomes.is_right(row) for row in range(n_rows)])
    if None in is_right:
        return _of_numbers(np.array(truths), np.array(predictions))
    shares = is_right.astype(np.float64)
    mean_loss = [_mean("mean loss", losses)] if np.isfinite(losses).all() else []
    if isinstance(predictions[0], str) and isinstance(truths[0], list):
        overlaps = [squad_f1([t or ""], [p]) for t, p in zip(truths, predictions, strict=True)]
        return [_mean("F1 of words", overlaps), _mean("exact match", shares), *mean_loss]
    if isinstance(predictions[0], list):
        return [*_of_sets(truths, predictions), _mean("rows all right", shares), *mean_loss]
    scores = [_mean("accuracy", shares), *mean_loss]
    if hasattr(outcomes, "classes"):
        scores.insert(1, _macro_f1([[t] for t in truths], [[p] for p in predictions]))
    return scores


def calibration_of(confidences: Confidences) -> ReliabilityDisplay:
    """Probabilities in bins beside the share that came true."""
    chances, flags = confidences.chances.astype(np.float64), np.array(confidences.is_true, bool)
    return ReliabilityDisplay(reliability_bins(chances, flags, _N_BINS))


def _mean(name: str, values: Sequence[float] | FloatArray) -> Score:
    """The mean of a number per row."""
    column = np.asarray(values, np.float64)[:, None]
    n_rows = len(column)
    return Score(name, column, lambda sums: sums[:, 0] / n_rows)


def _f1(sums: FloatArray) -> FloatArray:
    """F1 of sums (..., 3) of what is right, predicted and true; 0 where there is nothing."""
    return np.asarray(2 * sums[..., 0] / np.maximum(sums[..., 1] + sums[..., 2], 1e-12))


def _of_sets(truths: list[list[Any]], predictions: list[list[Any]]) -> list[Score]:
    """Precision, recall and F1 of entities or labels, of which a row may have any number."""
    pairs = [({*map(_key, t)}, {*map(_key, p)}) for t, p in zip(truths, predictions, strict=True)]
    table = np.array([[len(t & p), len(p), len(t)] for t, p in pairs], np.float64)
    return [
        Score("F1", table, _f1),
        Score("precision", table, lambda sums: sums[:, 0] / np.maximum(sums[:, 1], 1e-12)),
        Score("recall", table, lambda sums: sums[:, 0] / np.maximum(sums[:, 2], 1e-12)),
    ]


def _key(value: object) -> Hashable:
    return tuple(value) if isinstance(value, list) else value


def _macro_f1(truths: list[list[Any]], predictions: list[list[Any]]) -> Score:
    """The mean of the F1 of all classes that are true or predicted somewhere."""
    classes = sorted({each for row in (*truths, *predictions) for each in row}, key=str)
    place = {each: at for at, each in enumerate(classes)}
    table = np.zeros((len(truths), len(classes), 3))
    for row, (true, predicted) in enumerate(zip(truths, predictions, strict=True)):
        for each in predicted:
            table[row, place[each], :2] += each in true, 1
        for each in true:
            table[row, place[each], 2] += 1

    def mean_f1(sums: FloatArray) -> FloatArray:
        parts = sums.reshape(len(sums), -1, 3)
        is_there = parts[..., 1:].any(axis=-1)
        return np.asarray(_f1(parts).sum(axis=1) / is_there.sum(axis=1))

    return Score("macro F1", table.reshape(len(truths), -1), mean_f1)


def _of_numbers(true: FloatArray, predicted: FloatArray) -> list[Score]:
    """R² and the mean absolute error, averaged over outputs; no R² of numbers that are equal."""
    n_rows = len(true)
    true, predicted = (values.reshape(n_rows, -1) for values in (true, predicted))
    centred = true - true.mean(axis=0)  # far from 0, squares would lose digits
    squares = np.concatenate([centred, centred**2, (true - predicted) ** 2], axis=1)

    def r2(sums: FloatArray) -> FloatArray:
        first, second, errors = np.split(sums, 3, axis=1)
        spread = second - first**2 / n_rows
        spread = np.where(spread > _LEAST_SPREAD * second, spread, np.nan)
        return np.asarray((1 - errors / spread).mean(axis=1))

    error = _mean("mean absolute error", np.abs(true - predicted).mean(axis=1))
    return [Score("R²", squares, r2), error] if np.ptp(true, axis=0).all() else [error]
