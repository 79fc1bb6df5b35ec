"""Tags and the entities that they mean under each scheme; y of a tagger, as tags or as spans.

Depends on `tables` and `skbert.exceptions`. The tagger and the metrics both read tags here, so
that a tag always means the same entity.
"""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain, pairwise
from numbers import Integral
from typing import Any

from skbert._validation.tables import (
    ROW_TYPES,
    check_length,
    is_missing,
    open_table,
    require_y,
    row_entries,
)
from skbert.exceptions import InputError, InputTypeError

__all__ = [
    "OUTSIDE", "SCHEMES", "Entity", "can_follow", "check_scheme", "check_spans", "check_tags",
    "entities_of", "is_continuation", "is_tag", "join_tag", "split_tag", "tag_names", "tags_of",
]  # fmt: skip

Entity = tuple[int, int, str]  # first word, word after the last, type
Tag = tuple[str, str]  # letter and type
SCHEMES = ("BIOES", "IO", "IOB1", "IOB2")

# The letters that can begin a tag besides O, and those that can begin an entity.
_LETTERS = {None: "BIESLU", "BIOES": "BIESLU", "IO": "I", "IOB1": "BI", "IOB2": "BI"}
_STARTS = {None: "BIES", "BIOES": "BS", "IO": "I", "IOB1": "BI", "IOB2": "B"}
_BIOES = {"L": "E", "U": "S"}  # BILOU has other letters for the same two things
OUTSIDE: Tag = ("O", "")  # a word of no entity, and what lies before and after a row

_TAGS = "Give for each row a list with one tag (str) per word: type [['B-PER', 'O', 'O'], ...]."
_SPANS = (
    "For raw texts y holds for each row a list of (start, end, label) in characters, empty if "
    "there are none: type [[(0, 4, 'PER')], [], ...]."
)


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
        If `scheme` is unknown, or a tag has a letter that is not in the scheme.
    InputTypeError
        If a tag is not a str.
    """
    check_scheme(scheme)
    words = []
    for position, tag in enumerate(tags):
        if not (isinstance(tag, str) and is_tag(tag, scheme)):
            raise _bad_tag(tag, position, scheme, place)
        words.append(split_tag(tag))
    words.append(OUTSIDE)
    entities, start, before = [], 0, OUTSIDE
    while start < len(tags):
        end = start + 1
        if _is_beginning(before, words[start], scheme):
            while is_continuation(words[end - 1], words[end]):
                end += 1
            if _can_end(words[end - 1], words[end], scheme):
                entities.append((start, end, words[start][1]))
        before = words[end - 1]
        start = end
    return entities


def check_scheme(scheme: str | None) -> None:
    """Raise when `scheme` is neither None nor the name of a scheme."""
    if scheme is not None and scheme not in SCHEMES:
        close = difflib.get_close_matches(str(scheme).upper(), SCHEMES, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        msg = f"scheme={scheme!r} is not a choice. It must be None or one of {SCHEMES}.{hint}"
        raise InputError(msg)


@lru_cache(maxsize=4096)
def is_tag(tag: str, scheme: str | None = None) -> bool:
    """Return whether a tag has the form of a scheme, or of any scheme for None."""
    letter = tag.partition("-")[0]
    return tag == "O" or (len(letter) == 1 and letter in _LETTERS[scheme])


@lru_cache(maxsize=4096)
def split_tag(tag: str) -> Tag:
    """Return the letter and the type of a tag; a letter without a type has the type ``_``."""
    if tag == "O":
        return OUTSIDE
    letter, _, label = tag.partition("-")
    return _BIOES.get(letter, letter), label or "_"


def join_tag(letter: str, label: str) -> str:
    """Return the tag with a letter and a type, the inverse of `split_tag`."""
    return letter if label == "_" else f"{letter}-{label}"


def _is_beginning(before: Tag, word: Tag, scheme: str | None) -> bool:
    """Return whether a word that continues no entity begins one."""
    if scheme == "IOB1" and word[0] == "B":  # B only separates two entities of one type
        return before[0] != "O" and before[1] == word[1]
    return word[0] in _STARTS[scheme]


def is_continuation(before: Tag, word: Tag) -> bool:
    """Return whether a word belongs to the entity of the word before it."""
    return before[0] in "BI" and word[0] in "IE" and before[1] == word[1]


def can_follow(before: Tag, word: Tag, scheme: str | None) -> bool:
    """Return whether a scheme allows two tags side by side."""
    is_continued = is_continuation(before, word)
    match scheme:
        case "IOB1":  # B only separates two entities of one type
            return word[0] != "B" or before[1] == word[1]
        case "IOB2":
            return is_continued or word[0] != "I"
        case "BIOES":  # from B on, I until E
            return is_continued or (before[0] not in "BI" and word[0] not in "IE")
    return True


def _can_end(last: Tag, after: Tag, scheme: str | None) -> bool:
    """Return whether an entity may end between these two words."""
    if scheme == "BIOES":
        return last[0] in "ES"
    return not (scheme == "IOB1" and last[0] == after[0] == "B" and last[1] != after[1])


def tag_names(labels: Iterable[str], scheme: str) -> list[str]:
    """Return all tags that entities of these types can have, sorted."""
    letters = [letter for letter in _LETTERS[scheme] if letter not in _BIOES]
    return sorted({"O", *(join_tag(letter, label) for label in labels for letter in letters)})


def tags_of(entities: Iterable[Entity], n_words: int, scheme: str) -> list[str]:
    """Return the tags of a row of `n_words` words with these entities, in order."""
    tags = ["O"] * n_words
    last: tuple[int, str] = (-1, "")  # where the entity before ends, and its type
    for start, end, label in entities:
        inner = ["I"] * (end - start)
        if scheme == "IOB2" or (scheme == "IOB1" and last == (start, label)):
            inner[0] = "B"
        if scheme == "BIOES":
            inner[0], inner[-1] = "B", "E"
            inner = inner if len(inner) > 1 else ["S"]
        tags[start:end] = [join_tag(letter, label) for letter in inner]
        last = end, label
    return tags


def _bad_tag(tag: object, word: int, scheme: str | None, place: str) -> Exception:
    """Return the error for a value that is not a tag of the scheme."""
    shown = f"{place} holds {reprlib.repr(tag)} at word {word}"
    if not isinstance(tag, str):
        return InputTypeError(
            f"Tags must be str, but {shown}, of type {type(tag).__name__}. Give one str per word, "
            "such as 'B-PER' or 'O'."
        )
    letters = ", ".join(_LETTERS[scheme])
    return InputError(
        f"{shown}, which is not a tag of scheme={scheme!r}. A tag is 'O', or one of the letters "
        f"{letters}, a dash and a type, such as '{_LETTERS[scheme][0]}-PER'."
    )


# --- y of a tagger -------------------------------------------------------------------------------


def check_tags(y: Any, lengths: Sequence[int]) -> list[list[str]]:
    """Return one tag for each word of X, whose rows hold `lengths` words.

    Raises
    ------
    InputError
        If rows differ in number or in length, or a tag is missing or empty.
    InputTypeError
        If a row is not a list, or a tag not a str.
    """
    rows = _rows_of_y(y, len(lengths), _TAGS)
    for number, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        if len(row) != length:
            form = _SPANS if row and isinstance(row[0], ROW_TYPES) else _TAGS
            msg = (
                f"Row {number} of y has {len(row)} tag(s), but row {number} of X has {length} "
                f"word(s). {form}"
            )
            raise InputError(msg)
    if set(map(type, chain.from_iterable(rows))) == {str} and all(map(all, rows)):
        return rows
    return [
        [_tag(cell, f"row {number} of y, word {word}") for word, cell in enumerate(row)]
        for number, row in enumerate(rows)
    ]


def _tag(cell: object, place: str) -> str:
    """Return a tag as an exact str."""
    if is_missing(cell) or (isinstance(cell, str) and not cell):
        msg = f"y has a missing tag, in {place} ({cell!r}). A word of no entity is 'O'. {_TAGS}"
        raise InputError(msg)
    if isinstance(cell, str):
        return str.__str__(cell)
    hint = _SPANS if isinstance(cell, ROW_TYPES) else _TAGS
    msg = (
        f"Tags must be str, but {place} holds {reprlib.repr(cell)}, of type "
        f"{type(cell).__name__}. {hint}"
    )
    raise InputTypeError(msg)


def check_spans(y: Any, texts: Sequence[str]) -> list[list[Entity]]:
    """Return the labelled spans of each text, sorted.

    Raises
    ------
    InputError
        If a span lies outside of its text, holds no character or only blanks, or overlaps
        another, or a label is not a str.
    InputTypeError
        If y holds anything else, such as tags.
    """
    rows = _rows_of_y(y, len(texts), _SPANS)
    spans = []
    for number, (cells, text) in enumerate(zip(rows, texts, strict=True)):
        in_row = sorted(_span(cell, text, f"row {number} of y") for cell in cells)
        for span, following in pairwise(in_row):
            if following[0] < span[1]:
                msg = (
                    f"The spans {span} and {following} in row {number} of y overlap. A word has "
                    "one tag; leave one of them out."
                )
                raise InputError(msg)
        spans.append(in_row)
    return spans


def _span(cell: object, text: str, place: str) -> Entity:
    """Return one labelled span as a tuple of int, int and str."""
    if isinstance(cell, str):
        raise _flat_words_error(cell, place)
    if not isinstance(cell, ROW_TYPES) or len(cell) != 3:
        msg = f"{place} holds {reprlib.repr(cell)}, which is not (start, end, label). {_SPANS}"
        raise InputTypeError(msg)
    start, end, label = cell
    if not (_is_int(start) and _is_int(end)):
        msg = f"{place} holds {reprlib.repr(cell)}, whose start and end must be int. {_SPANS}"
        raise InputTypeError(msg)
    if not (isinstance(label, str) and label):
        msg = f"{place} holds {reprlib.repr(cell)}, whose label must be a str. {_SPANS}"
        raise InputError(msg)
    _check_bounds(start, end, text, f"{place} holds {reprlib.repr(cell)}")
    return int(start), int(end), str.__str__(label)


def _check_bounds(start: int, end: int, text: str, shown: str) -> None:
    """Raise when a text has nothing to label from `start` to `end`."""
    if not 0 <= start < end <= len(text):
        msg = (
            f"{shown}, but its text has {len(text)} character(s). Use 0 <= start < end, with end "
            "at most the length of the text."
        )
        raise InputError(msg)
    if not text[start:end].strip():
        msg = f"{shown}, where its text has only blanks. {_SPANS}"
        raise InputError(msg)


def _is_int(value: object) -> bool:
    """Return whether a value is an integer and not a bool."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def _rows_of_y(y: Any, n: int, form: str) -> list[list[Any]]:
    """Return the rows of y as lists, whatever containers they came in."""
    require_y(y, "BertTokenTagger", form)
    table = open_table(y, "y", None)
    check_length(n, table.shape[0])
    columns = [table.read(column) for column in range(table.width)]
    if table.width > 1:
        return [list(row) for row in zip(*columns, strict=True)]
    for number, cell in enumerate(columns[0]):
        if isinstance(cell, str):
            raise _flat_words_error(cell, f"row {number} of y")
        if isinstance(cell, Mapping) or not isinstance(cell, ROW_TYPES):
            msg = (
                f"Row {number} of y holds {reprlib.repr(cell)}, of type {type(cell).__name__}. "
                f"{form}"
            )
            raise InputError(msg) if is_missing(cell) else InputTypeError(msg)
    return [row_entries(cell) for cell in columns[0]]


def _flat_words_error(cell: str, place: str) -> InputTypeError:
    """Return the error for a flat list of tags where one list per row is expected."""
    return InputTypeError(
        f"{place} holds the tag {reprlib.repr(cell)} where a row is expected, so X or y is a flat "
        'list. X holds one list of words per row, and y one list of tags: type X = [["Anna", '
        '"lives"], ...] and y = [["B-PER", "O"], ...]. For raw texts y holds (start, end, label).'
    )
