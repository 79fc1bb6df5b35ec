"""What a tagger is to learn from ``y``, and what its scores say: tags, spans, F1.

Depends on `task`, `schemes` and the checks, on pandas and on ``metrics``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.special import log_softmax, softmax

from skbert._arrays import Array, FloatArray, IntArray, objects
from skbert._estimator.conformal import Conformity
from skbert._tagging.schemes import Chain, CharacterSpans, convert, follow, guess_scheme
from skbert._tagging.task import ScoredWords
from skbert._validation.entities import (
    Entity,
    check_spans,
    check_tags,
    entities_of,
    join_tag,
    split_tag,
    tag_names,
)
from skbert._validation.targets import check_classes
from skbert._validation.texts import Texts
from skbert._validation.words import WordRows
from skbert.exceptions import InputError, InputTypeError
from skbert.metrics import entity_f1

__all__ = [
    "TagPlan", "checked_names", "checked_targets", "decoded", "entity_table", "f1", "plan_tags",
    "tag_sets",
]  # fmt: skip


class TagPlan(NamedTuple):
    """What ``y`` says of tags: the part of a `TrainingPlan` that depends on it."""

    targets: Any
    attributes: dict[str, Any]
    score: Callable[[Array, Array], float]
    conform: Callable[[Array, Array], dict[str, Any]]
    output_map: IntArray | None


def checked_targets(y: Any, rows: WordRows | Texts) -> list[Any]:
    """The tags of each row of words, or the spans of each text."""
    if isinstance(rows, WordRows):
        return check_tags(y, [len(words) for words in rows.words])
    return check_spans(y, rows.first)


def checked_names(classes: Sequence[str] | Array | None) -> list[str]:
    """The tags that need not be in ``y``; none for None."""
    tags: list[Any] = check_classes(classes).tolist()
    odd = [row for row, tag in enumerate(tags) if not (isinstance(tag, str) and tag)]
    if odd:
        tag = tags[odd[0]]
        msg = (
            f"Tags must be str, but row {odd[0]} of classes is {tag!r}. Give tags as they are in "
            "classes_: type classes=['B-PER', 'I-PER', 'O']."
        )
        raise InputError(msg) if tag == "" else InputTypeError(msg)
    return tags


def plan_tags(
    gold: list[Any], scheme: str | None, previous: Mapping[str, Any] | None, named: list[str], *,
    in_words: bool, constrained: bool,
) -> TagPlan:  # fmt: skip
    """The plan for tags or spans; with the attributes of ``previous``, in their scheme.

    ``named`` are tags that need not be in ``gold``.
    """
    chosen, (scheme, learned, old) = scheme, _known(scheme, previous)
    if in_words:
        if chosen == "auto" and scheme in ("auto", None):
            scheme = _guessed([*gold, *([tag] for tag in named)], scheme)
        gold, scheme = follow(gold, scheme)
    else:
        scheme = _scheme_of_spans(scheme)
    if learned is None:  # where IOB1 has B or I depends on the words before, not on the word
        learned = "IOB2" if scheme == "IOB1" else scheme
    known = [*old, *_written_in(learned, named)]
    tags, targets = (_code_words if in_words else _code_spans)(gold, learned, known)
    chain = Chain(tags, learned, constrained=constrained)

    def score(scored: Array, held: Array) -> float:
        predicted = decoded(chain, scored, scheme, in_words=in_words)
        return f1([gold[row] for row in held], predicted, scheme, None)

    def conform(scored: Array, held: Array) -> dict[str, Any]:
        codes = _codes_of(targets, scored, held)
        return Conformity.of_rows(
            1 - _chances(row)[np.arange(len(true)), true]
            for row, true in zip(scored, codes, strict=True)
        ).attributes()

    attributes = {
        "classes_": np.array(tags, object),
        "scheme_": scheme,
        "learned_scheme_": learned,
    }
    output_map = None if previous is None else np.array([tags.index(tag) for tag in old])
    return TagPlan(targets, attributes, score, conform, output_map)


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


def _codes_of(
    targets: list[IntArray] | CharacterSpans, scored: Array, rows: Array
) -> list[IntArray]:
    """The codes of the tags of these rows, one for each word that was scored."""
    if isinstance(targets, CharacterSpans):
        own = replace(targets, rows=[targets.rows[row] for row in rows])
        return own.codes([row.places for row in scored])
    return [targets[row] for row in rows]


def _chances(row: ScoredWords) -> FloatArray:
    """The probability of each tag for each word of a row, ``(n_words, n_tags)`` in float64."""
    return np.asarray(softmax(row.logits, axis=1), np.float64)


def tag_sets(scored: Array, tags: list[str], level: FloatArray) -> Array:
    """For each row a list with a list of tags per word, best first."""
    return objects([[_within(word, tags, level) for word in _chances(row)] for row in scored])


def _within(chances: FloatArray, tags: list[str], level: FloatArray) -> list[str]:
    """The tags whose probability is at least ``1 - level``, best first."""
    distances = 1 - chances
    order = np.argsort(distances, kind="stable").tolist()
    return [tags[code] for code in order if distances[code] <= level]


def _known(
    scheme: str | None, previous: Mapping[str, Any] | None
) -> tuple[str | None, str | None, list[str]]:
    """The scheme of ``y``, that of the network and its tags, as far as they are known."""
    if previous is None:
        return scheme, None, []
    if previous["scheme_"] is None and previous["classes_"].tolist() == ["O"]:
        return scheme, None, ["O"]  # which says nothing of the scheme
    if scheme not in ("auto", previous["scheme_"]):
        raise InputError(
            f"scheme={scheme!r}, but the fitted estimator learned tags in "
            f"{previous['scheme_']!r}. Use scheme='auto', or fit anew with warm_start=False."
        )
    return previous["scheme_"], previous["learned_scheme_"], previous["classes_"].tolist()


def _guessed(rows: list[list[str]], scheme: str | None) -> str | None:
    """The scheme of rows; ``scheme`` is None where a network has learned tags that stand alone."""
    guessed = guess_scheme(rows)
    if scheme is None and guessed is not None:
        raise InputError(
            f"The tags of y follow the scheme {guessed}, but the fitted estimator learned tags "
            "that stand alone. Use scheme=None if these do too, or fit anew with "
            "warm_start=False."
        )
    return guessed or scheme


def _written_in(scheme: str | None, named: list[str]) -> list[str]:
    """The tags of ``classes`` in the letters of the scheme."""
    if scheme is None:
        return named
    for tag in named:
        entities_of([tag], scheme, place="classes")
    return ["O" if tag == "O" else join_tag(*split_tag(tag)) for tag in named]


def _scheme_of_spans(scheme: str | None) -> str:
    """The scheme of the tags that spans are learned as."""
    if scheme is None:
        raise InputError(
            "Tags without a scheme stand for single words, so they cannot mark spans in raw "
            "texts. Use scheme='auto', or fit anew with warm_start=False."
        )
    return "IOB2" if scheme == "auto" else scheme


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
            rows.append([(*_bounds(row, each), each[2]) for each in chain.entities(codes)])
    return rows


def entity_table(
    chain: Chain, rows: WordRows | Texts, scored: Iterable[ScoredWords]
) -> pd.DataFrame:
    """One line per entity: row, start, end, label, score and text."""
    lines: list[tuple[Any, ...]] = []
    for number, row in enumerate(scored):
        chances = log_softmax(row.logits, axis=1)
        entities = chain.entities(chain.best(chances))
        scores = chain.probabilities(chances, entities)
        for each, score in zip(entities, scores, strict=True):
            start, end = _bounds(row, each)
            if isinstance(rows, WordRows):
                text = " ".join(rows.words[number][start:end])
            else:
                text = rows.first[number][start:end]
            lines.append((number, start, end, each[2], score, text))
    # A label as it was learned may hold lone surrogates, which pandas' own type of text refuses.
    kinds = {"row": int, "start": int, "end": int, "label": object, "score": float, "text": str}
    return pd.DataFrame(lines, columns=list(kinds), dtype=object).astype(kinds)


def _bounds(row: ScoredWords, entity: Entity) -> tuple[int, int]:
    """Where an entity starts and ends, in the terms of the places."""
    start, end, _ = entity
    return int(row.places[start, 0]), int(row.places[end - 1, 1])


def f1(true: Any, predicted: Any, scheme: str | None, weight: Any) -> float:
    """F1 of entities; without a scheme each word is one, which makes it the accuracy."""
    if scheme is None:
        true, predicted = ([_each_word(row) for row in rows] for rows in (true, predicted))
    return entity_f1(true, predicted, sample_weight=weight)


def _each_word(row: Sequence[Any]) -> list[Entity]:
    """The tags of a row as entities of one word; entities stay as they are."""
    return [(word, word + 1, tag) if isinstance(tag, str) else tag for word, tag in enumerate(row)]
