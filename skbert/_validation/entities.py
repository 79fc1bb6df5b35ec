"""Entities in a row of tags, under each tagging scheme.

Depends on `skbert.exceptions` and the standard library alone: the metrics and the tagger both
read tags here, so they always mean the same entities.
"""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Sequence
from functools import lru_cache

from skbert.exceptions import InputError, InputTypeError

__all__ = ["SCHEMES", "Entity", "check_scheme", "entities_of"]

Entity = tuple[int, int, str]  # first word, word after the last, type
SCHEMES = ("BIOES", "IO", "IOB1", "IOB2")

# The letters that can begin a tag besides O, and those that can begin an entity.
_LETTERS = {None: "BIESLU", "BIOES": "BIESLU", "IO": "I", "IOB1": "BI", "IOB2": "BI"}
_STARTS = {None: "BIES", "BIOES": "BS", "IO": "I", "IOB1": "BI", "IOB2": "B"}
_BIOES = {"L": "E", "U": "S"}  # BILOU has other letters for the same two things
_OUTSIDE = ("O", "")


def entities_of(
    tags: Sequence[str], scheme: str | None = None, *, place: str = "the row"
) -> list[Entity]:
    """Return the entities of one row as ``(start, end, type)``, in order.

    Words ``start`` to ``end - 1`` make up the entity. Without a `scheme` the reading is that of
    the conlleval script, which takes any mix of the letters B, I, E and S and never fails on a
    broken row: an entity goes on from B or I to I or E of the same type, and all else that is not
    O begins a new one. With a scheme only entities that are whole under it count, as in seqeval's
    strict mode. L and U of BILOU are read as E and S. A letter without a type, such as a bare
    ``B``, has the type ``_``. `place` says in errors where the tags are.

    Raises
    ------
    InputError
        If `scheme` is unknown, or a tag has a letter that the scheme has not.
    InputTypeError
        If a tag is not a str.
    """
    check_scheme(scheme)
    words = []
    for position, tag in enumerate(tags):
        word = _split(tag, scheme) if isinstance(tag, str) else None
        if word is None:
            raise _bad_tag(tag, position, scheme, place)
        words.append(word)
    words.append(_OUTSIDE)
    found, start, before = [], 0, _OUTSIDE
    while start < len(tags):
        end = start + 1
        if _begins(before, words[start], scheme):
            while _goes_on(words[end - 1], words[end]):
                end += 1
            if _is_whole(words[end - 1], words[end], scheme):
                found.append((start, end, words[start][1]))
        before = words[end - 1]
        start = end
    return found


def check_scheme(scheme: str | None) -> None:
    """Raise when `scheme` is neither None nor the name of a scheme."""
    if scheme is not None and scheme not in SCHEMES:
        close = difflib.get_close_matches(str(scheme).upper(), SCHEMES, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        msg = f"scheme={scheme!r} is not a choice. It must be None or one of {SCHEMES}.{hint}"
        raise InputError(msg)


@lru_cache(maxsize=4096)
def _split(tag: str, scheme: str | None) -> tuple[str, str] | None:
    """Return the letter and the type of a tag, None when it is no tag of the scheme."""
    if tag == "O":
        return _OUTSIDE
    letter, _, label = tag.partition("-")
    if len(letter) != 1 or letter not in _LETTERS[scheme]:
        return None
    return _BIOES.get(letter, letter), label or "_"


def _begins(before: tuple[str, str], word: tuple[str, str], scheme: str | None) -> bool:
    """Tell whether a word that continues no entity begins one."""
    if scheme == "IOB1" and word[0] == "B":  # B parts two entities of one type
        return before[0] != "O" and before[1] == word[1]
    return word[0] in _STARTS[scheme]


def _goes_on(before: tuple[str, str], word: tuple[str, str]) -> bool:
    """Tell whether a word belongs to the entity of the word before it."""
    return before[0] in "BI" and word[0] in "IE" and before[1] == word[1]


def _is_whole(last: tuple[str, str], after: tuple[str, str], scheme: str | None) -> bool:
    """Tell whether an entity may end between these two words."""
    if scheme == "BIOES":
        return last[0] in "ES"
    return not (scheme == "IOB1" and last[0] == after[0] == "B" and last[1] != after[1])


def _bad_tag(tag: object, word: int, scheme: str | None, place: str) -> Exception:
    """Make the error for what is no tag of the scheme."""
    found = f"{place} holds {reprlib.repr(tag)} at word {word}"
    if not isinstance(tag, str):
        return InputTypeError(
            f"Tags must be str, but {found}, of type {type(tag).__name__}. Give one str per word, "
            "such as 'B-PER' or 'O'."
        )
    letters = ", ".join(_LETTERS[scheme])
    return InputError(
        f"{found}, which is no tag of scheme={scheme!r}. A tag is 'O', or one of the letters "
        f"{letters}, a dash and a type, such as '{_LETTERS[scheme][0]}-PER'."
    )
