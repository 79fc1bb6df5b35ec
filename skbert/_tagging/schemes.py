"""Tagging schemes: which one rows follow, conversion, and the sequences of tags that are allowed.

Depends on numpy, `_validation.entities`, which reads and writes tags, and `skbert.exceptions`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np

from skbert._arrays import Array, BoolArray
from skbert._validation.entities import (
    OUTSIDE,
    Entity,
    can_follow,
    entities_of,
    is_continuation,
    is_tag,
    split_tag,
    tags_of,
)
from skbert.exceptions import warn

__all__ = [
    "Chain", "CharacterSpans", "convert", "follow", "guess_scheme", "in_characters",
    "warn_if_prefixed", "whole_words",
]  # fmt: skip

_PREFIXED = re.compile("[BIbi][-_]")
_FORBIDDEN = -1e9  # in place of a log-probability; finite, so that some sequence is always left


def guess_scheme(rows: Iterable[Sequence[str]]) -> str | None:
    """Return the scheme that rows of tags follow, None for tags without prefixes.

    Where the letters fit both IOB1 and IOB2, it is the one that fewer places contradict.
    """
    pairs: Counter[tuple[str, str]] = Counter()
    for row in rows:
        pairs.update(pairwise(["O", *row, "O"]))
    tags = {tag for pair in pairs for tag in pair}
    has_prefixes = any("-" in tag for tag in tags) or "B" in tags
    if not has_prefixes or not all(map(is_tag, tags)):
        return None
    letters = {split_tag(tag)[0] for tag in tags}
    if letters & {"E", "S"}:
        return "BIOES"
    if "B" not in letters:
        return "IO"
    wrong = {
        scheme: sum(
            count
            for (before, tag), count in pairs.items()
            if not can_follow(split_tag(before), split_tag(tag), scheme)
        )
        for scheme in ("IOB2", "IOB1")
    }
    return min(wrong, key=lambda scheme: wrong[scheme])


def follow(rows: Sequence[list[str]], scheme: str | None) -> tuple[list[list[str]], str | None]:
    """Return rows of tags that follow the scheme, and the scheme; ``"auto"`` recognises it.

    Rows that break it are read as by the conlleval script, with one warning. BILOU becomes
    BIOES. Tags without prefixes stay as they are; the scheme is then None.

    Raises
    ------
    InputError
        If a tag has a letter that is not in the scheme.
    """
    if scheme == "auto":
        scheme = guess_scheme(rows)
        if scheme is None:
            warn_if_prefixed({tag for row in rows for tag in row}, "y")
    if scheme is None:
        return list(rows), None
    known: set[str] = set()
    for number, row in enumerate(rows):
        if {*row} - known:
            entities_of(row, scheme, place=f"row {number} of y")
        known.update(row)
    legal = [convert(row, scheme) for row in rows]
    changed = [
        f"row {number}, word {word}: {old!r} became {new!r}"
        for number, (before, after) in enumerate(zip(rows, legal, strict=True))
        for word, (old, new) in enumerate(zip(before, after, strict=True))
        if split_tag(old) != split_tag(new)
    ]
    if changed:
        msg = (
            f"{len(changed)} tag(s) of y do not follow the scheme {scheme}, the first is in "
            f"{changed[0]}. Entities were read as by the conlleval script, as score does, and "
            "written in that scheme. If y follows another one, name it, for example scheme='IOB1'."
        )
        warn(msg)
    return legal, scheme


def warn_if_prefixed(tags: set[str], what: str) -> None:
    """Warn when some tags that are read as plain labels have the prefix of a scheme."""
    prefixed = sorted(tag for tag in tags if _PREFIXED.match(tag))
    if prefixed:
        odd = min((tag for tag in tags if not is_tag(tag)), default="O")
        msg = (
            f"{what} holds tags with the prefix of a scheme, such as {prefixed[0]!r}, but follows "
            f"none, because of {odd!r}: each tag is read as a label of single words. Tags of "
            "schemes look like 'B-PER', 'I-PER' and 'O'. Use scheme=None if that is meant."
        )
        warn(msg)


def convert(tags: Sequence[str], scheme: str) -> list[str]:
    """Return the same entities in tags of another scheme.

    Tags that break their own scheme are read as by the conlleval script. IO cannot separate
    neighbours of one type; all other schemes can.
    """
    return tags_of(entities_of(tags), len(tags), scheme)


@dataclass(frozen=True)
class CharacterSpans:
    """The entities of texts in characters, which become tags once the words are known."""

    rows: list[list[Entity]]  # sorted, none overlaps the next
    tags: list[str]  # all tags there are
    scheme: str

    def __iter__(self) -> Iterator[list[int]]:
        """Positions in ``tags`` of the tags of each text's entities, as far as they are known."""
        for entities in self.rows:
            labels = {label for _, _, label in entities}
            yield [code for code, tag in enumerate(self.tags) if tag.partition("-")[2] in labels]

    def codes(self, places: Sequence[Array], *, warns: bool) -> list[Array]:
        """Return per text the position in ``tags`` of each word's tag.

        ``places`` are the words' ``(n_words, 2)`` starts and ends. An entity that begins or ends
        inside a word takes the whole word, unless the entity before it has that; ``warns`` says
        how many do.
        """
        code = {tag: position for position, tag in enumerate(self.tags)}
        coded, moved = [], []
        for row, (entities, words) in enumerate(zip(self.rows, places, strict=True)):
            found = _words_of(entities, words)
            moved += [
                f"row {row}, {entity}" for entity, own in zip(entities, found, strict=True)
                if own is None or in_characters(own, words) != entity
            ]  # fmt: skip
            named = tags_of([each for each in found if each is not None], len(words), self.scheme)
            coded.append(np.array([code[tag] for tag in named], np.int64))
        if moved and warns:
            msg = (
                f"{len(moved)} span(s) of y do not begin and end where words do, the first is "
                f"{moved[0]}. Each was widened to the whole words that it touches, and left out "
                "where it touches none; predictions are whole words, too."
            )
            warn(msg)
        return coded


def whole_words(rows: Sequence[list[Entity]], places: Sequence[Array]) -> list[list[Entity]]:
    """The entities of each text with whole words, as they are learned and predicted.

    Those that touch no word stay as they are.
    """
    widened: list[list[Entity]] = []
    for entities, words in zip(rows, places, strict=True):
        pairs = zip(entities, _words_of(entities, words), strict=True)
        widened.append([each if own is None else in_characters(own, words) for each, own in pairs])
    return widened


def _words_of(entities: Sequence[Entity], words: Array) -> list[Entity | None]:
    """The words that each entity of a text touches, and none before it; None for no words."""
    found: list[Entity | None] = []
    free = 0
    for start, end, label in entities:
        first = max(free, int(np.searchsorted(words[:, 1], start, side="right")))
        last = int(np.searchsorted(words[:, 0], end, side="left"))
        found.append((first, last, label) if first < last else None)
        free = last if first < last else free
    return found


def in_characters(entity: Entity, words: Array) -> Entity:
    """The same entity in the terms of the places of words, ``(n_words, 2)``."""
    start, end, label = entity
    return int(words[start, 0]), int(words[end - 1, 1]), label


@lru_cache(maxsize=8)
def _pairs(parts: tuple[tuple[str, str], ...], scheme: str | None) -> tuple[BoolArray, BoolArray]:
    """Whether each of some tags, in parts, is continued by each, and whether that may follow."""
    continued = [[is_continuation(a, b) for b in parts] for a in parts]
    allowed = [[can_follow(a, b, scheme) for b in parts] for a in parts]
    return np.array(continued), np.array(allowed)


class Chain:
    """A linear chain over tags, as in a CRF whose transitions are those that a scheme allows.

    The probability of a sequence is the product of its words' probabilities, divided by the sum of
    these products over all sequences that are allowed. Where none is allowed, the sequences with
    the fewest forbidden transitions take their place.

    Parameters
    ----------
    tags : sequence of k str
        All tags there are.
    scheme : str or None
        How entities are read; None reads every word by itself.
    constrained : bool, default=True
        Whether sequences must follow the scheme.
    """

    def __init__(self, tags: Sequence[str], scheme: str | None, *, constrained: bool = True):
        self.tags, self.scheme = list(tags), scheme
        parts = [
            ("S", tag) if scheme is None and tag != "O" else split_tag(tag) for tag in tags
        ]  # without prefixes each tag is a type
        parts.append(OUTSIDE)  # the last state is what lies beyond both ends of a row
        self.types = [label for _, label in parts]
        self.is_continued, allowed = _pairs(tuple(parts), scheme)
        self.transitions = np.where(allowed, 0.0, _FORBIDDEN) * constrained

    def best(self, log_probabilities: Array) -> Array:
        """Return the most probable sequence, ``(n_words,)`` positions of tags (Viterbi).

        ``log_probabilities`` is ``(n_words, k)``.
        """
        best: Array = log_probabilities.argmax(axis=1)
        padded = self._padded(best)
        if not self.transitions[padded[:-1], padded[1:]].any():
            return best
        emissions = self._emissions(log_probabilities)
        best_scores, backpointers = emissions[0], []
        for emission in emissions[1:]:
            candidates = best_scores[:, None] + self.transitions
            backpointers.append(candidates.argmax(axis=0))
            best_scores = candidates.max(axis=0) + emission
        path = [len(self.types) - 1]
        for pointers in reversed(backpointers):
            path.append(pointers[path[-1]])
        return np.array(path[-2:0:-1], np.int64)

    def entities(self, codes: Array) -> list[Entity]:
        """Return the entities of a sequence, read as by the conlleval script."""
        padded = self._padded(codes)
        continued = self.is_continued[padded[:-1], padded[1:]]
        inside = np.array([self.types[code] != "" for code in codes], bool)
        starts = np.flatnonzero(inside & ~continued[:-1])
        ends = np.flatnonzero(inside & ~continued[1:]) + 1
        return [
            (start, end, self.types[codes[start]])
            for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
        ]

    def probabilities(self, log_probabilities: Array, entities: Sequence[Entity]) -> list[float]:
        """Return for each entity the probability that the row has exactly this entity.

        It is the sum over all sequences that have it, by the forward-backward algorithm.
        """
        if not entities:
            return []
        emissions = self._emissions(log_probabilities)
        forward, backward = [emissions[0]], [np.zeros(len(self.types))]
        for emission in emissions[1:]:
            forward.append(emission + _propagate(forward[-1], self.transitions))
        for emission in emissions[:0:-1]:
            backward.append(_propagate(emission + backward[-1], self.transitions.T))
        backward.reverse()
        inside = np.where(self.is_continued, self.transitions, -np.inf)
        outside = np.where(self.is_continued, -np.inf, self.transitions)
        total = forward[-1][-1]
        probabilities = []
        for start, end, label in entities:
            others = [other != label for other in self.types]
            state = emissions[start + 1] + _propagate(forward[start], outside)
            state[others] = -np.inf
            for word in range(start + 1, end):
                state = emissions[word + 1] + _propagate(state, inside)
            state = emissions[end + 1] + _propagate(state, outside) + backward[end + 1]
            probabilities.append(float(np.exp(min(np.logaddexp.reduce(state) - total, 0.0))))
        return probabilities

    def _padded(self, codes: Array) -> Array:
        """Return a sequence with the state beyond its ends added on both sides."""
        beyond = len(self.types) - 1
        return np.array([beyond, *codes, beyond])

    def _emissions(self, log_probabilities: Array) -> Array:
        """Return log-probabilities in float64, with the state beyond the ends of the row added."""
        n_words, n_tags = log_probabilities.shape
        emissions = np.full((n_words + 2, n_tags + 1), -np.inf)
        emissions[1:-1, :-1] = log_probabilities
        emissions[[0, -1], -1] = 0.0
        return emissions


def _propagate(state: Array, transitions: Array) -> Array:
    """Return the log of the sum over all transitions into each state."""
    following: Array = np.logaddexp.reduce(state[:, None] + transitions, axis=0)
    return following
