"""Probabilities of scores, and scores of probabilities. Depends on numpy only."""

from __future__ import annotations

import numpy as np

from skbert._arrays import Array

__all__ = ["expit", "log_softmax", "logit", "softmax"]


def softmax(scores: Array, axis: int = -1) -> Array:
    """The probability of each of several scores that exclude each other."""
    exps = np.exp(scores - np.max(scores, axis=axis, keepdims=True))
    return np.asarray(exps / exps.sum(axis=axis, keepdims=True))


def log_softmax(scores: Array, axis: int = -1) -> Array:
    """The logarithm of `softmax`, also where a probability is too small for its type."""
    shifted = scores - np.max(scores, axis=axis, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True)))


def expit(scores: Array) -> Array:
    """The logistic function, the probability of each score by itself."""
    small = np.exp(-np.abs(scores))  # at most 1, so that nothing overflows
    return np.asarray(np.where(scores >= 0, 1, small) / (1 + small), dtype=scores.dtype)


def logit(chances: Array) -> Array:
    """The score of each probability, which `expit` turns back into it."""
    return np.asarray(np.log(chances) - np.log1p(-chances))
