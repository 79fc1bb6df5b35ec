"""Tagging schemes: recognised, converted, and the sequences of tags that they allow.

Depends on numpy, `entities` and `skbert.exceptions`; knows no torch and no tokenizer.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np

from skbert._arrays import Array
from skbert._validation.entities import Entity, entities_of
from skbert.exceptions import warn

__all__ = [
    "Chain", "CharacterSpans", "convert", "follow", "guess_scheme", "tag_names", "tags_of",
    "warn_if_prefixed",
]  # fmt: skip

_FORM = re.compile("O|[BIESLU](-.*)?", re.DOTALL)
_PREFIXED = re.compile("[BIbi][-_]")
_BIOES = {"L": "E", "U": "S"}  # BILOU has other letters for the same two things
_NOTHING = ("O", "")  # an untagged word, and what lies before and after a row
_BARRED = -1e9  # in place of a log-probability; finite, so that some sequence is always left


@lru_cache(maxsize=4096)
def _split(tag: str) -> tuple[str, str]:
    """Return the letter and the type of a tag; a bare letter has the type ``_``."""
    if tag == "O":
        return _NOTHING
    letter, _, label = tag.partition("-")
    return _BIOES.get(letter, letter), label or "_"


def _join(before: tuple[str, str], word: tuple[str, str]) -> bool:
    """Tell whether a word goes on with the entity of the word before it."""
    return before[0] in "BI" and word[0] in "IE" and before[1] == word[1]


def _may_follow(before: tuple[str, str], word: tuple[str, str], scheme: str | None) -> bool:
    """Tell whether a scheme allows two tags side by side."""
    joins = _join(before, word)
    match scheme:
        case "IOB1":  # B only parts two entities of one type
            return word[0] != "B" or before[1] == word[1]
        case "IOB2":
            return joins or word[0] != "I"
        case "BIOES":  # from B on, I until E
            return joins or (before[0] not in "BI" and word[0] not in "IE")
    return True


def guess_scheme(rows: Iterable[Sequence[str]]) -> str | None:
    """Return the scheme that rows of tags follow, None for tags without prefixes.

    Where the letters fit both IOB1 and IOB2, it is the one that fewer places contradict.
    """
    pairs: Counter[tuple[str, str]] = Counter()
    for row in rows:
        pairs.update(pairwise(["O", *row, "O"]))
    tags = {tag for pair in pairs for tag in pair}
    has_prefixes = any("-" in tag for tag in tags) or "B" in tags
    if not has_prefixes or not all(map(_FORM.fullmatch, tags)):
        return None
    letters = {_split(tag)[0] for tag in tags}
    if letters & {"E", "S"}:
        return "BIOES"
    if "B" not in letters:
        return "IO"
    wrong = {
        scheme: sum(
            count
            for (before, tag), count in pairs.items()
            if not _may_follow(_split(before), _split(tag), scheme)
        )
        for scheme in ("IOB2", "IOB1")
    }
    return min(wrong, key=lambda scheme: wrong[scheme])


def follow(rows: Sequence[list[str]], scheme: str | None) -> tuple[list[list[str]], str | None]:
    """Return rows of tags that follow the scheme, ``"auto"`` for a guess, and the scheme.

    Rows that break it are read as by the conlleval script, with one warning. BILOU becomes
    BIOES. Tags without prefixes stay as they are; the scheme is then None.

    Raises
    ------
    InputError
        If a tag has a letter that the scheme has not.
    """
    if scheme == "auto":
        scheme = guess_scheme(rows)
        if scheme is None:
            warn_if_prefixed({tag for row in rows for tag in row}, "y")
    if scheme is None:
        return list(rows), None
    known: set[str] = set()
    for number, row in enumerate(rows):
        for tag in {*row} - known:
            entities_of([tag], scheme, place=f"row {number} of y")
        known.update(row)
    legal = [convert(row, scheme) for row in rows]
    changed = [
        f"row {number}, word {word}: {old!r} became {new!r}"
        for number, (before, after) in enumerate(zip(rows, legal, strict=True))
        for word, (old, new) in enumerate(zip(before, after, strict=True))
        if _split(old) != _split(new)
    ]
    if changed:
        msg = (
            f"{len(changed)} tag(s) of y do not follow the scheme {scheme}, the first is in "
            f"{changed[0]}. Entities were read as by the conlleval script, as score does, and "
            "told in that scheme. If y is in another one, name it: scheme='IOB1', for example."
        )
        warn(msg)
    return legal, scheme


def warn_if_prefixed(tags: set[str], what: str) -> None:
    """Warn when some of the tags that are taken for plain ones have the prefix of a scheme."""
    prefixed = sorted(tag for tag in tags if _PREFIXED.match(tag))
    if prefixed:
        odd = min((tag for tag in tags if not _FORM.fullmatch(tag)), default="O")
        msg = (
            f"{what} holds tags with the prefix of a scheme, such as {prefixed[0]!r}, but follows "
            f"none, because of {odd!r}: each tag is read as a label of single words. Tags of "
            "schemes look like 'B-PER', 'I-PER' and 'O'. Use scheme=None if that is meant."
        )
        warn(msg)


def tag_names(labels: Iterable[str], scheme: str) -> list[str]:
    """Return all tags that entities of these types can have, sorted."""
    letters = {"BIOES": "BIES", "IO": "I"}.get(scheme, "BI")
    return sorted({"O", *(_tag(letter, label) for label in labels for letter in letters)})


def _tag(letter: str, label: str) -> str:
    return letter if label == "_" else f"{letter}-{label}"


def tags_of(entities: Iterable[Entity], n_words: int, scheme: str) -> list[str]:
    """Return the tags of a row of `n_words`, given its entities in order."""
    tags = ["O"] * n_words
    last: tuple[int, str] = (-1, "")  # where the entity before ends, and its type
    for start, end, label in entities:
        inner = ["I"] * (end - start)
        if scheme == "IOB2" or (scheme == "IOB1" and last == (start, label)):
            inner[0] = "B"
        if scheme == "BIOES":
            inner[0], inner[-1] = "B", "E"
            inner = inner if len(inner) > 1 else ["S"]
        tags[start:end] = [_tag(letter, label) for letter in inner]
        last = end, label
    return tags


def convert(tags: Sequence[str], scheme: str) -> list[str]:
    """Return the same entities in tags of another scheme.

    Tags that break their own scheme are read as by the conlleval script. IO cannot part
    neighbours of one type, and all other schemes can.
    """
    return tags_of(entities_of(tags), len(tags), scheme)


@dataclass(frozen=True)
class CharacterSpans:
    """The entities of texts in characters, to be told in tags once the words are known."""

    rows: list[list[Entity]]  # sorted, none overlaps the next
    tags: list[str]  # all tags there are
    scheme: str

    def on(self, places: Sequence[Array]) -> list[Array]:
        """Return per text the position in ``tags`` of each word's tag.

        ``places`` are the words' ``(n_words, 2)`` starts and ends. An entity that begins or ends
        inside a word takes the whole word, unless the entity before it has that.
        """
        code = {tag: position for position, tag in enumerate(self.tags)}
        coded, moved = [], []
        for row, (entities, words) in enumerate(zip(self.rows, places, strict=True)):
            found: list[Entity] = []
            for start, end, label in entities:
                first = int(np.searchsorted(words[:, 1], start, side="right"))
                first = max(first, found[-1][1] if found else 0)
                last = int(np.searchsorted(words[:, 0], end, side="left"))
                if first < last:
                    found.append((first, last, label))
                if first >= last or (words[first, 0], words[last - 1, 1]) != (start, end):
                    moved.append(f"row {row}, {(start, end, label)}")
            named = tags_of(found, len(words), self.scheme)
            coded.append(np.array([code[tag] for tag in named], np.int64))
        if moved:
            msg = (
                f"{len(moved)} span(s) of y do not begin and end where words do, the first is "
                f"{moved[0]}. Each was learned as the whole words that it touches, and not at all "
                "where it touches none; predictions are whole words, too."
            )
            warn(msg)
        return coded


class Chain:
    """The sequences of tags that a scheme allows, each as likely as its words make it.

    A row has the probability of a linear chain: the product of its words' probabilities, over
    the sum of these products for all sequences that are allowed. Where the tags at hand allow
    none at all, the sequences with the fewest steps that are not allowed take their place.

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
            ("S", tag) if scheme is None and tag != "O" else _split(tag) for tag in tags
        ]  # without prefixes each tag is a type
        parts.append(_NOTHING)  # the last state is what lies beyond both ends of a row
        self.types = [label for _, label in parts]
        self.joins = np.array([[_join(a, b) for b in parts] for a in parts])
        allowed = [[_may_follow(a, b, scheme) for b in parts] for a in parts]
        self.steps = np.where(allowed, 0.0, _BARRED) * constrained

    def best(self, log_probabilities: Array) -> Array:
        """Return the most probable sequence, ``(n_words,)`` positions of tags (Viterbi).

        ``log_probabilities`` is ``(n_words, k)``.
        """
        best: Array = log_probabilities.argmax(axis=1)
        edged = self._edged(best)
        if not self.steps[edged[:-1], edged[1:]].any():
            return best
        emissions = self._emissions(log_probabilities)
        arrived, origins = emissions[0], []
        for emission in emissions[1:]:
            ways = arrived[:, None] + self.steps
            origins.append(ways.argmax(axis=0))
            arrived = ways.max(axis=0) + emission
        path = [len(self.types) - 1]
        for origin in reversed(origins):
            path.append(origin[path[-1]])
        return np.array(path[-2:0:-1], np.int64)

    def entities(self, codes: Array) -> list[Entity]:
        """Return the entities of a sequence, read as by the conlleval script."""
        edged = self._edged(codes)
        joined = self.joins[edged[:-1], edged[1:]]
        inside = np.array([self.types[code] != "" for code in codes], bool)
        starts = np.flatnonzero(inside & ~joined[:-1])
        ends = np.flatnonzero(inside & ~joined[1:]) + 1
        return [
            (start, end, self.types[codes[start]])
            for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
        ]

    def probabilities(self, log_probabilities: Array, entities: Sequence[Entity]) -> list[float]:
        """Return for each entity the probability that the row has it, exactly so.

        The sum over all sequences that have an entity of this type from this word to that one,
        by the forward-backward algorithm.
        """
        if not entities:
            return []
        emissions = self._emissions(log_probabilities)
        before, after = [emissions[0]], [np.zeros(len(self.types))]
        for emission in emissions[1:]:
            before.append(emission + _step(before[-1], self.steps))
        for emission in emissions[:0:-1]:
            after.append(_step(emission + after[-1], self.steps.T))
        after.reverse()
        goes_on = np.where(self.joins, self.steps, -np.inf)
        stands_apart = np.where(self.joins, -np.inf, self.steps)
        total = before[-1][-1]
        found = []
        for start, end, label in entities:
            outside = [other != label for other in self.types]
            state = emissions[start + 1] + _step(before[start], stands_apart)
            state[outside] = -np.inf
            for word in range(start + 1, end):
                state = emissions[word + 1] + _step(state, goes_on)
            state = emissions[end + 1] + _step(state, stands_apart) + after[end + 1]
            found.append(float(np.exp(min(np.logaddexp.reduce(state) - total, 0.0))))
        return found

    def _edged(self, codes: Array) -> Array:
        """Return a sequence with what lies beyond its ends."""
        edge = len(self.types) - 1
        return np.array([edge, *codes, edge])

    def _emissions(self, log_probabilities: Array) -> Array:
        """Return the same in float64 with a row and a column for what lies beyond the ends."""
        n_words, n_tags = log_probabilities.shape
        emissions = np.full((n_words + 2, n_tags + 1), -np.inf)
        emissions[1:-1, :-1] = log_probabilities
        emissions[[0, -1], -1] = 0.0
        return emissions


def _step(state: Array, steps: Array) -> Array:
    """Return the log of the sum of all ways into each state."""
    arrived: Array = np.logaddexp.reduce(state[:, None] + steps, axis=0)
    return arrived
