"""Long texts without the inside of endless words and gaps, which does not change their tokens.

A word beyond the model's limit is one unknown token however long it is, and any run of white space
separates words like one blank. Depends on numpy and ``tokenizers``; knows no ids.
"""

from __future__ import annotations

import functools
import json
import sys
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from skbert._arrays import Array, IntArray
from skbert._core.text.prefix import Reader

__all__ = ["CHINESE", "Skimmer"]

_CHUNK = 1 << 16  # characters looked at together
_UTF = "utf-32-le"  # four bytes for each character
_MANY = 400  # dropped characters that are kept in a row
_COMPOSED = 4  # characters that a normalizer can make one of
# What a character is to the tokenizer: not known yet; something to keep; a part of the word that
# it is in; something that it drops; white space.
_UNKNOWN, _KEPT, _COUNTS, _SILENT, _BLANK = range(5)
_STEPS = ["BertNormalizer", "BertPreTokenizer"]  # these make no letter of several
CHINESE = (
    (0x3400, 0x4DC0), (0x4E00, 0xA000), (0xF900, 0xFB00), (0x20000, 0x2A6E0), (0x2A700, 0x2B820),
    (0x2B820, 0x2CEB0), (0x2F800, 0x2FA20),
)  # fmt: skip


class _Run(NamedTuple):
    """The word or gap that a chunk ends in."""

    kind: int = _KEPT
    counted: int = 0  # characters so far
    silent: int = 0  # and those that the tokenizer drops


@dataclass(frozen=True)
class Skimmer(Reader):
    """Leaves out of long texts what has no effect on their tokens.

    The kind of a character is what the tokenizer makes of it between two letters. It is the same
    everywhere, as no step of the tokenizer looks at more than one character to separate words; for
    tokenizers with such a step nothing is left out.
    """

    @property
    def longest_word(self) -> int:
        """Characters in the longest word that the model knows; 0 if words can be cut elsewhere."""
        return self._rules[0]

    def whole(self, text: str) -> str:
        """A text that gives the same token ids."""
        return "".join(self.chunks(text))

    def _prefix(self, text: str, size: int) -> str:
        return text[:size]

    def _beyond(self, text: str, n_ids: int, size: int) -> list[int]:
        grown: list[str] = []
        held = 0
        for chunk in self.chunks(text):
            grown.append(chunk)
            held += len(chunk)
            if held >= size:
                if (ids := self._read("".join(grown), n_ids)) is not None:
                    return ids
                size *= 4
        return list(self.backend.encode("".join(grown), add_special_tokens=False).ids[:n_ids])

    def chunks(self, text: str) -> Iterator[str]:
        """Parts of the text, in order, which joined give the same token ids as the text."""
        run = _Run()
        for at in range(0, len(text), _CHUNK):
            chunk = text[at : at + _CHUNK]
            if not self.longest_word:
                yield chunk
                continue
            kinds = self._kinds_of(chunk)
            if not self._can_skip(kinds, run):
                kept, run = self._kept(kinds, run)
                yield _take(chunk, kept)

    @cached_property
    def _rules(self) -> tuple[int, bool]:
        """The limit to a word, and whether all steps are those of every BERT."""
        description = json.loads(self.backend.to_str())
        steps = [description["normalizer"], description["pre_tokenizer"]]
        is_plain = [(step or {}).get("type") for step in steps] == _STEPS
        added = any(not token["special"] for token in description["added_tokens"])
        if added or any(f'"{name}"' in json.dumps(steps) for name in ("Digits", "Replace")):
            return 0, is_plain
        return int(description["model"].get("max_input_chars_per_word", 0)), is_plain

    @cached_property
    def _limits(self) -> IntArray:
        """How many characters of a run to keep, by kind."""
        longest, is_plain = self._rules
        return np.array([1, 1, (longest + 1) * (1 if is_plain else _COMPOSED), 1, 1])

    @cached_property
    def _kinds(self) -> IntArray:
        """The kind of every character, as far as it is known."""
        kinds = np.zeros(sys.maxunicode + 1, np.uint8)
        kinds[0xD800:0xE000] = _KEPT  # surrogates, which no tokenizer reads
        if self._rules[1]:
            kinds[_letters()] = _COUNTS
            for start, end in CHINESE:
                kinds[start:end] = _KEPT
        return kinds

    def _kinds_of(self, chunk: str) -> Array:
        if chunk.isascii():  # in a tenth of the time
            return np.frombuffer(chunk.encode("ascii").translate(self._kinds_of_ascii), np.uint8)
        codes = _codes(chunk)
        kinds: Array = self._kinds[codes]
        unknown = codes[kinds == _UNKNOWN]
        if len(unknown):
            for code in np.unique(unknown).tolist():
                self._kinds[code] = self._kind_of(chr(code))
            kinds = self._kinds[codes]
        return kinds

    @cached_property
    def _kinds_of_ascii(self) -> bytes:
        """A table for `bytes.translate`, of which the first half is used."""
        return bytes([self._kind_of(chr(code)) for code in range(128)]) * 2

    def _kind_of(self, character: str) -> int:
        """The kind of a character, by what the tokenizer makes of it between two letters."""
        text = f"a{character}a"
        if self.backend.normalizer is not None:
            text = self.backend.normalizer.normalize_str(text)
        words = [word for word, _ in self.backend.pre_tokenizer.pre_tokenize_str(text)]
        if words == ["a", "a"]:
            return _BLANK
        if words == ["aa"]:
            return _SILENT
        whole = len(words) == 1 and len(words[0]) > 2
        return _COUNTS if whole and words[0][0] == words[0][-1] == "a" else _KEPT

    def _can_skip(self, kinds: Array, run: _Run) -> bool:
        """Whether a whole chunk lies inside a word or a gap of which enough has been kept."""
        silent = kinds == _SILENT
        if run.kind == _KEPT or run.counted < self._limits[run.kind]:
            return run.silent >= _MANY and bool(silent.all())
        return bool(((kinds == run.kind) | silent).all())

    def _kept(self, kinds: Array, run: _Run) -> tuple[Array, _Run]:
        """Which characters of a chunk to keep, and the run that it ends in.

        A character that the tokenizer drops belongs to the run before it.
        """
        silent = kinds == _SILENT
        last = np.maximum.accumulate(np.where(silent, -1, np.arange(len(kinds))))
        owners = np.where(last < 0, run.kind, kinds[last])
        before = np.concatenate([[run.kind], owners[:-1]])
        starts = ~silent & ((owners != before) | (owners == _KEPT))
        counted, gone = np.cumsum(~silent), np.cumsum(silent)
        # Counts from the start of each run; the first run began in the chunk before.
        counted -= np.maximum.accumulate(np.where(starts, counted - 1, -run.counted))
        first = np.flatnonzero(starts)[:1]
        base = np.maximum.accumulate(np.where(starts, gone, 0))
        base[: first[0] if len(first) else len(base)] = -run.silent
        gone -= base
        kept = (counted <= self._limits[owners]) & (gone <= _MANY)
        return kept, _Run(int(owners[-1]), int(counted[-1]), int(gone[-1]))


def _codes(text: str) -> Array:
    return np.frombuffer(text.encode(_UTF, "surrogatepass"), np.uint32)


def _take(text: str, kept: Array) -> str:
    """The characters of a text that a mask keeps."""
    some: bytes = _codes(text)[kept].tobytes()
    return some.decode(_UTF, "surrogatepass")


@functools.cache
def _letters() -> Array:
    """Letters of all alphabets that are letters in every version of Unicode in use."""
    category = unicodedata.ucd_3_2_0.category
    known = [
        code for code in range(0x20000) if chr(code).isalpha() and category(chr(code))[0] == "L"
    ]
    letters = np.array(known)
    for start, end in CHINESE:
        letters = letters[(letters < start) | (letters >= end)]
    return letters
