"""Where pieces lie in their text, and which word each belongs to.

Depends on numpy.
"""

from __future__ import annotations

import re
import string
import sys
import unicodedata
from functools import cache

import numpy as np

from skbert._arrays import BoolArray, IntArray
from skbert._core.text.skim import CHINESE

__all__ = ["located", "with_marks", "words_of"]

_JOINERS = {"\u200c", "\u200d", *map(chr, range(0xE0020, 0xE0080))}  # with the tags in flags

_Spans = list[tuple[int, int]]


def with_marks(text: str, spans: _Spans) -> _Spans:
    """The spans, widened by the marks, joiners and tags of their first and last character."""
    if text.isascii():
        return spans
    whole: _Spans = []
    last = 0  # where the span before ends
    for start, end in spans:
        before, after = start, max(end, last)  # all between are marks
        while after < len(text) and _is_combining(text[after]):
            after += 1
        while before > last and _is_combining(text[before - 1]):
            before -= 1
        whole.append((before, after))
        last = after
    return whole


def _is_combining(character: str) -> bool:
    """Whether a character belongs to the one before it: a mark, a joiner or a tag."""
    return unicodedata.category(character)[0] == "M" or character in _JOINERS


def located(text: str, spans: _Spans, is_blank: BoolArray) -> tuple[_Spans, IntArray]:
    """The spans without white space at their ends, but with marks, and each piece's word."""
    inner = _trimmed(text, spans, is_blank)
    widened = zip(inner, with_marks(text, inner), strict=True)
    return [wide if span[0] < span[1] else span for span, wide in widened], words_of(text, inner)


def _trimmed(text: str, spans: _Spans, is_blank: BoolArray) -> _Spans:
    """The spans without white space at their ends; those of blank pieces are empty."""
    inner: _Spans = []
    last = 0
    for (start, end), blank in zip(spans, is_blank.tolist(), strict=True):
        piece = text[start:end]
        begin = start + len(piece) - len(piece.lstrip())
        if begin == end or (blank and start >= last):  # a blank within one character is part of it
            inner.append((start, start))
        else:
            inner.append((begin, start + len(piece.rstrip())))
            last = end
    return inner


def words_of(text: str, spans: _Spans) -> IntArray:
    """The number of each piece's word, from 0; -1 where a piece is empty.

    White space parts words; punctuation and Chinese characters are words of their own. A piece
    belongs to the word of its first character, and a word in which no piece begins has no number.
    """
    begins = np.array([word.start() for word in _words().finditer(text)], np.int64)
    places = np.array(spans, np.int64).reshape(-1, 2)
    words = np.searchsorted(begins, places[:, 0], side="right") - 1
    filled = np.flatnonzero(places[:, 0] < places[:, 1])
    numbers = np.full(len(words), -1)
    is_new = np.diff(words[filled], prepend=-1) != 0
    numbers[filled] = np.cumsum(is_new) - 1
    for row in np.flatnonzero((np.diff(filled) > 1) & ~is_new[1:]).tolist():
        numbers[filled[row] : filled[row + 1]] = numbers[filled[row]]  # no gap within a word
    return numbers


@cache
def _words() -> re.Pattern[str]:
    """A word: a sign with its marks, or whatever else is between signs and white space."""
    signs = re.escape(string.punctuation) + _ranges("P")
    signs += "".join(f"{chr(start)}-{chr(end - 1)}" for start, end in CHINESE)
    marks = _ranges("M") + "".join(sorted(_JOINERS))
    return re.compile(f"[{signs}][{marks}]*|[^\\s{signs}]+")


def _ranges(category: str) -> str:
    """The characters of a category beyond ASCII, as the ranges of a regular expression."""
    has = np.array([unicodedata.category(chr(code))[0] == category
                    for code in range(128, sys.maxunicode + 1)])  # fmt: skip
    edges = 128 + np.flatnonzero(np.diff(has, prepend=False, append=False))
    return "".join(f"{chr(start)}-{chr(end - 1)}" for start, end in edges.reshape(-1, 2).tolist())
