"""What is chosen and measured on rows whose answers are known: a threshold, and distances.

Depends on `task` and on the metrics.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from skbert._arrays import Array
from skbert._extraction.task import OUT_OF_REACH, RankedAnswers, best_texts, candidates
from skbert.metrics import squad_em, squad_f1

__all__ = ["best_threshold", "distance_of_truth"]


def distance_of_truth(ranked: RankedAnswers, context: str, golds: list[str]) -> float:
    """1 minus the probability of the best right answer; 2 where none is kept."""
    pairs = candidates(ranked, context)
    right = (1 - chance for text, chance in pairs if squad_em([golds], [text]))
    return next(right, OUT_OF_REACH)


def best_threshold(ranked: Array, contexts: Sequence[str], golds: Sequence[list[str]]) -> float:
    """Return the threshold of the best mean F1 in `best_texts`; of several, the nearest to 0."""
    answers = best_texts(ranked, contexts, np.inf)
    rows = [row for row, each in enumerate(ranked) if len(each.scores)]
    if not rows:
        return 0.0
    lead = np.array([ranked[row].null - ranked[row].scores[0] for row in rows])
    gains = [squad_f1([golds[row]], [answers[row]]) - squad_f1([golds[row]], [""]) for row in rows]
    order = np.argsort(lead)
    lead = np.concatenate([lead[order[:1]] - 2, lead[order], lead[order[-1:]] + 2])
    totals = np.cumsum([0.0, *np.array(gains)[order]])
    thresholds = (lead[:-1] + lead[1:]) / 2
    parts = lead[:-1] < lead[1:]
    totals, thresholds = totals[parts].round(9), thresholds[parts]
    best = np.lexsort((np.abs(thresholds), -totals))[0]
    return float(thresholds[best])
