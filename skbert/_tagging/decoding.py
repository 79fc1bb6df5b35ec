"""What the scores of words say: tags, spans, tables of entities, sets of tags.

Depends on `task` and `schemes`, and on pandas where a table is made.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from skbert._arrays import Array, FloatArray, objects
from skbert._core.scores import log_softmax, softmax
from skbert._tagging.schemes import Chain, convert, in_characters
from skbert._tagging.task import ScoredWords
from skbert._validation.texts import Texts
from skbert._validation.words import WordRows

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["chances_of", "decoded", "entity_table", "tag_sets"]


def decoded(
    chain: Chain, scored: Iterable[ScoredWords], scheme: str | None, *, in_words: bool
) -> list[list[Any]]:
    """The best tags of every row in ``scheme``, or the spans that they stand for."""
    rows: list[list[Any]] = []
    for row in scored:
        codes = chain.best(log_softmax(row.logits, axis=1))
        if in_words:
            tags = [chain.tags[code] for code in codes]
            rows.append(tags if scheme in (None, chain.scheme) else convert(tags, scheme))
        else:
            rows.append([in_characters(each, row.places) for each in chain.entities(codes)])
    return rows


def entity_table(
    chain: Chain, rows: WordRows | Texts, scored: Iterable[ScoredWords]
) -> pd.DataFrame:
    """One line per entity: row, start, end, label, score and text."""
    import pandas as pd

    lines: list[tuple[Any, ...]] = []
    for number, row in enumerate(scored):
        chances = log_softmax(row.logits, axis=1)
        entities = chain.entities(chain.best(chances))
        scores = chain.probabilities(chances, entities)
        for each, score in zip(entities, scores, strict=True):
            start, end, label = in_characters(each, row.places)
            if isinstance(rows, WordRows):
                text = " ".join(rows.words[number][start:end])
            else:
                text = rows.first[number][start:end]
            lines.append((number, start, end, label, score, text))
    # A label as it was learned may hold lone surrogates, which pandas' own type of text refuses.
    kinds = {"row": int, "start": int, "end": int, "label": object, "score": float, "text": str}
    return pd.DataFrame(lines, columns=list(kinds), dtype=object).astype(kinds)


def tag_sets(scored: Array, tags: list[str], level: FloatArray) -> Array:
    """For each row a list with a list of tags per word, best first."""
    return objects([[_within(word, tags, level) for word in chances_of(row)] for row in scored])


def _within(chances: FloatArray, tags: list[str], level: FloatArray) -> list[str]:
    """The tags whose probability is at least ``1 - level``, best first."""
    distances = 1 - chances
    order = np.argsort(distances, kind="stable").tolist()
    return [tags[code] for code in order if distances[code] <= level]


def chances_of(row: ScoredWords) -> FloatArray:
    """The probability of each tag for each word of a row, ``(n_words, n_tags)`` in float64."""
    return np.asarray(softmax(row.logits, axis=1), np.float64)
