"""What a tagger is to learn from ``y``, and how its predictions are judged.

Depends on `task`, `schemes`, `decoding` and the checks, and on ``metrics``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from skbert._arrays import Array, IntArray
from skbert._estimator.conformity import Conformity
from skbert._tagging.decoding import chances_of, decoded
from skbert._tagging.schemes import (
    Chain,
    CharacterSpans,
    convert,
    follow,
    guess_scheme,
    whole_words,
)
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
    "TagPlan", "checked_names", "checked_targets", "f1", "plan_tags", "written_in",
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
        scheme = _scheme_of_spans(scheme, named)
    if learned is None:  # where IOB1 has B or I depends on the words before, not on the word
        learned = "IOB2" if scheme == "IOB1" else scheme
    known = [*old, *written_in(learned, named, "classes")]
    tags, targets = (_code_words if in_words else _code_spans)(gold, learned, known)
    chain = Chain(tags, learned, constrained=constrained)

    def score(scored: Array, held: Array) -> float:
        predicted = decoded(chain, scored, scheme, in_words=in_words)
        true = [gold[row] for row in held]
        if not in_words:
            true = whole_words(true, [row.places for row in scored])
        return f1(true, predicted, scheme, None)

    def conform(scored: Array, held: Array) -> dict[str, Any]:
        codes = _codes_of(targets, scored, held)
        return Conformity.of_rows(
            1 - chances_of(row)[np.arange(len(true)), true]
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
        return own.codes([row.places for row in scored], warns=False)
    return [targets[row] for row in rows]


def _known(
    scheme: str | None, previous: Mapping[str, Any] | None
) -> tuple[str | None, str | None, list[str]]:
    """The scheme of ``y``, that of the network and its tags, as far as they are known."""
    if previous is None:
        return scheme, None, []
    if previous["classes_"].tolist() == ["O"]:
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


def written_in(scheme: str | None, named: list[str], place: str) -> list[str]:
    """Tags in the letters of the scheme; an error that names their place where one has others."""
    if scheme is None:
        return named
    for tag in named:
        entities_of([tag], scheme, place=place)
    return ["O" if tag == "O" else join_tag(*split_tag(tag)) for tag in named]


def _scheme_of_spans(scheme: str | None, named: list[str]) -> str:
    """The scheme of the tags that spans are learned as; ``named`` are some of them."""
    if scheme is None:
        raise InputError(
            "Tags without a scheme stand for single words, so they cannot mark spans in raw "
            "texts. Use scheme='auto', or fit anew with warm_start=False."
        )
    if scheme == "auto":  # no other is as sure to tell neighbouring spans of one label apart
        return "BIOES" if guess_scheme([[tag] for tag in named]) == "BIOES" else "IOB2"
    return scheme


def f1(true: Any, predicted: Any, scheme: str | None, weight: Any) -> float:
    """F1 of entities; without a scheme each word is one, which makes it the accuracy."""
    if scheme is None:
        true, predicted = ([_each_word(row) for row in rows] for rows in (true, predicted))
    return entity_f1(true, predicted, sample_weight=weight)


def _each_word(row: Sequence[Any]) -> list[Entity]:
    """The tags of a row as entities of one word; entities stay as they are."""
    return [(word, word + 1, tag) if isinstance(tag, str) else tag for word, tag in enumerate(row)]
