"""Questions with contexts, and their best spans found by hand."""

from __future__ import annotations

from typing import Any

import numpy as np

from skbert._core.items import Items
from skbert._core.text.tokens import Ragged
from skbert._validation.texts import Texts


def as_objects(cells: list[Any]) -> np.ndarray:
    held = np.empty(len(cells), dtype=object)
    held[:] = cells
    return held


def pairs(questions: list[str], contexts: list[str]) -> Texts:
    return Texts(questions, contexts, None, 2)


def by_hand(items: Items, outputs: Ragged, longest: int) -> tuple[dict[Any, float], float]:
    """Every span with its best score, and that of "no answer"."""
    spans: dict[tuple[int, int], float] = {}
    nulls = []
    assert items.places is not None
    for item in range(len(items)):
        logits, places = outputs[item].astype(np.float64), items.places[item].tolist()
        nulls.append(logits[0].sum())
        for i in range(len(places)):
            for j in range(i, min(i + longest, len(places))):
                if places[i][0] >= 0 and places[j][0] >= 0:
                    span = (places[i][0], places[j][1])
                    score = logits[i, 0] + logits[j, 1]
                    spans[span] = max(spans.get(span, -np.inf), score)
    return spans, min(nulls)
