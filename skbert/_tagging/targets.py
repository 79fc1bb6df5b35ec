"""What a tagger learns from ``y``, and what it makes of a model's scores: tags, spans, F1.

Depends on `task`, `schemes` and the checks, on pandas and on ``metrics``.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import log_softmax

from skbert._arrays import Array
from skbert._core.models.network import Network
from skbert._estimator.fitting import TrainingPlan
from skbert._tagging.schemes import Chain, CharacterSpans, convert, follow, tag_names
from skbert._tagging.task import ScoredWords, WordTags
from skbert._validation.entities import Entity, check_spans, check_tags
from skbert._validation.texts import Texts
from skbert._validation.words import WordRows
from skbert.exceptions import InputError
from skbert.metrics import entity_f1

__all__ = ["f1", "objects", "right", "spans", "teach", "tell"]


def right(y: Any, rows: WordRows | Texts) -> list[Any]:
    """What ``y`` says of rows of words, one list of tags each, or of texts, one list of spans."""
    if isinstance(rows, WordRows):
        return check_tags(y, [len(words) for words in rows.words])
    return check_spans(y, rows.first)


def teach(
    estimator: Any, y: Any, rows: WordRows | Texts, room: int, network: Network | None, weight: Any
) -> TrainingPlan:
    """The lesson for these rows; ``network`` is one that goes on learning, if there is one."""
    gold = right(y, rows)
    scheme, learned, old = _known(estimator, network)
    in_words = isinstance(rows, WordRows)
    if in_words:
        gold, scheme = follow(gold, scheme)
    else:
        scheme = _scheme_of_spans(scheme)
    if learned is None:  # where IOB1 has B or I depends on the words before, not on the word
        learned = "IOB2" if scheme == "IOB1" else scheme
    tags, targets = (_code_words if in_words else _code_spans)(gold, learned, old)
    chain = Chain(tags, learned, constrained=estimator.decoding == "viterbi")

    def score(scored: Array, held: Array) -> float:
        found = tell(chain, scored, scheme, in_words=in_words)
        return f1([gold[row] for row in held], found, scheme, None)

    kept = None if network is None else np.array([tags.index(tag) for tag in old])
    attributes = {
        "classes_": np.array(tags, object),
        "scheme_": scheme,
        "learned_scheme_": learned,
    }
    task = WordTags(len(tags), room, estimator.label_pieces == "all")
    return TrainingPlan(task, targets, attributes, score, None, weight, kept=kept)


def _code_words(
    rows: list[list[str]], scheme: str | None, old: list[str]
) -> tuple[list[str], Any]:
    """All tags there are, and for each row the codes of its tags in ``scheme``."""
    if scheme is not None:
        rows = [convert(row, scheme) for row in rows]
    tags = sorted({*old, *itertools.chain.from_iterable(rows)} or {"O"})
    codes = {tag: code for code, tag in enumerate(tags)}
    return tags, [np.array([codes[tag] for tag in row], np.int64) for row in rows]


def _code_spans(
    rows: list[list[Entity]], scheme: str | None, old: list[str]
) -> tuple[list[str], Any]:
    """All tags there are, and the spans, which become tags once the words are known."""
    assert scheme is not None
    labels = {label for row in rows for _, _, label in row}
    tags = sorted({*old, *tag_names(labels, scheme)})
    return tags, CharacterSpans(rows, tags, scheme)


def _known(estimator: Any, network: Network | None) -> tuple[str | None, str | None, list[str]]:
    """The scheme of ``y``, that of the network and its tags, as far as they are known."""
    if network is None:
        return estimator.scheme, None, []
    if estimator.scheme not in ("auto", estimator.scheme_):
        raise InputError(
            f"scheme={estimator.scheme!r}, but the fitted estimator learned tags in "
            f"{estimator.scheme_!r}. Use scheme='auto', or fit anew with warm_start=False."
        )
    return estimator.scheme_, estimator.learned_scheme_, estimator.classes_.tolist()


def _scheme_of_spans(scheme: str | None) -> str:
    """The scheme in which spans are told in tags."""
    if scheme is None:
        raise InputError(
            "Tags without a scheme stand for single words, so spans in raw texts cannot be told "
            "in them. Use scheme='auto', or fit anew with warm_start=False."
        )
    return "IOB2" if scheme == "auto" else scheme


def tell(chain: Chain, scored: Any, scheme: str | None, *, in_words: bool) -> list[list[Any]]:
    """The best tags of every row in ``scheme``, or the spans that they tell."""
    found: list[list[Any]] = []
    for row in scored:
        codes = chain.best(log_softmax(row.logits, axis=1))
        if in_words:
            tags = [chain.tags[code] for code in codes]
            found.append(tags if scheme in (None, chain.scheme) else convert(tags, scheme))
        else:
            found.append([(*_bounds(row, each), each[2]) for each in chain.entities(codes)])
    return found


def spans(chain: Chain, rows: WordRows | Texts, scored: Any) -> pd.DataFrame:
    """One line per entity: row, start, end, label, score and text."""
    lines: list[tuple[Any, ...]] = []
    for number, row in enumerate(scored):
        chances = log_softmax(row.logits, axis=1)
        found = chain.entities(chain.best(chances))
        for each, score in zip(found, chain.probabilities(chances, found), strict=True):
            start, end = _bounds(row, each)
            if isinstance(rows, WordRows):
                text = " ".join(rows.words[number][start:end])
            else:
                text = rows.first[number][start:end]
            lines.append((number, start, end, each[2], score, text))
    kinds = {"row": int, "start": int, "end": int, "label": str, "score": float, "text": str}
    return pd.DataFrame(lines, columns=list(kinds)).astype(kinds)


def _bounds(row: ScoredWords, entity: Entity) -> tuple[int, int]:
    """Where an entity starts and ends, in the terms of the places."""
    start, end, _ = entity
    return int(row.places[start, 0]), int(row.places[end - 1, 1])


def f1(true: Any, found: Any, scheme: str | None, weight: Any) -> float:
    """F1 of entities; without a scheme each word is one, which makes it the accuracy."""
    if scheme is None:
        true, found = ([_each_word(row) for row in rows] for rows in (true, found))
    return entity_f1(true, found, sample_weight=weight)


def _each_word(row: Sequence[Any]) -> list[Entity]:
    """The tags of a row as entities of one word; entities stay as they are."""
    return [(word, word + 1, tag) if isinstance(tag, str) else tag for word, tag in enumerate(row)]


def objects(values: Sequence[Any]) -> Array:
    """Values of any lengths as a 1-D array of objects."""
    found = np.empty(len(values), object)
    for row, value in enumerate(values):
        found[row] = value
    return found
