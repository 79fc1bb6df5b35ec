"""The first ids of long texts, from prefixes that settle them.

What follows a prefix can change the ids at its end only: those of the last words, which it may go
on or join. How far back that reaches is known for the parts that a vetted tokenizer of byte-level
BPE or Unigram can have. Depends on ``tokenizers``.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat, takewhile
from typing import Any

from tokenizers import AddedToken, Encoding, Tokenizer, pre_tokenizers

__all__ = ["BytePrefix", "Reader", "WordPrefix"]

_TOGETHER = 1 << 22  # characters of prefixes that are read at once: 100 MB of encodings
_FAR = 4096  # characters in which a place to cut is looked for
_OPEN = 2  # words at the end that what follows can go on: a gap with line breaks counts as two
_COMPOSED = 4  # characters, at most, that NFC makes one of
_LONGEST = 512  # bytes of the longest token with which endless words are read in part
_WHITE = " \t\r\n"
# A character has the same properties in all versions since.
_category = unicodedata.ucd_3_2_0.category


@dataclass(frozen=True)
class Reader:
    """Reads the first ids of texts: of all from short prefixes, then of a few from longer ones."""

    backend: Tokenizer

    def first_of(self, texts: Sequence[str], n_ids: int, size: int) -> list[list[int]]:
        """The first ``n_ids`` ids of each text.

        Prefixes of about ``size`` characters are read together, in parallel. A text whose ids
        these do not settle is read on alone.
        """
        found: list[list[int]] = []
        step = max(1, _TOGETHER // size)
        for at in range(0, len(texts), step):
            group = texts[at : at + step]
            prefixes = [self._prefix(text, size) for text in group]
            encodings = self.backend.encode_batch(prefixes, add_special_tokens=False)
            settled = map(self._settled, prefixes, encodings, repeat(n_ids))
            found += [
                self._beyond(text, n_ids, 4 * size) if ids is None else ids
                for text, ids in zip(group, settled, strict=True)
            ]
        return found

    def whole(self, text: str) -> str:
        """A text that gives the same token ids."""
        return text

    def _prefix(self, text: str, size: int) -> str:
        """A prefix of at most ``size`` characters; empty if none is of use."""
        raise NotImplementedError

    def _beyond(self, text: str, n_ids: int, size: int) -> list[int]:
        """The first ids of a text, from prefixes of ``size`` characters and more, or from all."""
        raise NotImplementedError

    def _read(self, prefix: str, n_ids: int) -> list[int] | None:
        """The first ids of ``prefix``, read alone, if what follows cannot change them."""
        encoding = self.backend.encode(prefix, add_special_tokens=False)
        return self._settled(prefix, encoding, n_ids)

    def _settled(
        self,
        prefix: str,  # noqa: ARG002 - a reader of bytes looks at it again
        encoding: Encoding,
        n_ids: int,
    ) -> list[int] | None:
        """The first ids of ``prefix`` if what follows cannot change them, else None.

        All words but the last are settled, unless a reader knows better.
        """
        words = encoding.word_ids
        settled = len(words) > n_ids and words[n_ids - 1] != words[-1]
        return list(encoding.ids[:n_ids]) if settled else None


class _Prefix(Reader):
    """Reads a whole text where nothing proves a prefix."""

    def _prefix(self, text: str, size: int) -> str:
        return text[: self._end(text, size)] if self._can_cut and size < len(text) else ""

    def _beyond(self, text: str, n_ids: int, size: int) -> list[int]:
        while self._can_cut and size < len(text):
            if (ids := self._read(self._prefix(text, size), n_ids)) is not None:
                return ids
            size *= 4
        ids = self.backend.encode(text, add_special_tokens=False).ids
        return list(ids[:n_ids])

    @property
    def _can_cut(self) -> bool:
        """Whether the steps of the tokenizer are such that a prefix can settle ids."""
        raise NotImplementedError

    def _end(self, text: str, size: int) -> int:
        """Where a prefix of at most ``size`` characters ends; 0 if no place is good."""
        raise NotImplementedError

    @cached_property
    def _added(self) -> list[AddedToken]:
        """The tokens that were added."""
        return [*self.backend.get_added_tokens_decoder().values()]

    @cached_property
    def _added_words(self) -> list[AddedToken]:
        """Those that are looked for in texts; a prefix can end in one."""
        return [token for token in self._added if not token.special]

    @cached_property
    def _normalizers(self) -> list[dict[str, Any]]:
        return [*_parts(self.backend.normalizer, "normalizers")]


class WordPrefix(_Prefix):
    """For Unigram: a prefix ends with a word, and settles all words but the last.

    A word is read whole, as the best way to cut it is known only then.
    """

    @property
    def _can_cut(self) -> bool:
        patterns = (part.get("pattern", {}).get("String", "") for part in self._normalizers)
        return not self._added_words and not any(set(_WHITE) & {*text} for text in patterns)

    def _end(self, text: str, size: int) -> int:
        places = range(size, max(size - _FAR, 0), -1)
        return next((at for at in places if text[at] in _WHITE and _is_solid(text[at - 1])), 0)


class BytePrefix(_Prefix):
    """For byte-level BPE: a prefix settles all words but the last two, and most of an endless one.

    The regular expressions that find words look two characters ahead, and to the end of a gap.
    """

    @property
    def _can_cut(self) -> bool:
        known = (self.backend.token_to_id(byte) for byte in pre_tokenizers.ByteLevel.alphabet())
        return self._reach is not None and None not in known

    @cached_property
    def _reach(self) -> int | None:
        """How far before the end of a prefix a token can begin that it ends in; None: anywhere.

        Only added tokens count, which are looked for in texts, the longest at each place.
        """
        words = self._added_words
        if any(token.lstrip or token.rstrip or token.single_word for token in words):
            return None
        return _COMPOSED * max(len(token.content) for token in self._added) if words else 0

    def _end(self, text: str, size: int) -> int:
        if not self._normalizers:
            return size
        places = range(size, max(size - _FAR, 0), -1)
        return next((at for at in places if _composes_with_nothing(text[at])), 0)

    def _settled(self, prefix: str, encoding: Encoding, n_ids: int) -> list[int] | None:
        words: list[Any] = encoding.word_ids
        n_whole = max(words, default=0) + 1 - _OPEN  # words that are as in the whole text
        if self._reach:
            end = len(prefix) - self._reach
            inside = (word for word, place in zip(words, encoding.offsets, strict=True)
                      if place[1] <= end)  # fmt: skip
            n_whole = max(inside, default=0) - _OPEN
        ids = list(encoding.ids[: sum(1 for _ in takewhile(lambda word: word < n_whole, words))])
        if len(ids) < n_ids and not self._reach:
            ids += self._of_open_words(prefix, n_whole, n_ids - len(ids))
        return ids[:n_ids] if len(ids) >= n_ids else None

    def _of_open_words(self, prefix: str, n_whole: int, n_ids: int) -> list[int]:
        """Ids that the last words have, whether or not what follows makes them one.

        About ``n_ids`` of them, if they have so many.
        """
        if self.backend.normalizer is not None:
            prefix = self.backend.normalizer.normalize_str(prefix)
        words = [word for word, _ in self.backend.pre_tokenizer.pre_tokenize_str(prefix)]
        if len(words) != n_whole + _OPEN:
            return []
        before = words[-2] if len(words) > 1 else ""
        last = words[-1][:-4]  # a gap can lose its last character, which has 4 bytes at most
        apart = self._tokenized(before) + self._begun(last, n_ids)
        return _common([apart, self._begun(before + last, n_ids)])

    def _begun(self, word: str, n_ids: int) -> list[int]:
        """Ids that every word begins with that begins like this one, about ``n_ids`` of them.

        A token that lies across a place near the end begins at one of the ``starts``; up to there
        the tokens of a word are those of its part alone, as no merge goes across.
        """
        longest = self._longest
        if len(word) < 3 * longest or longest > _LONGEST:
            return []
        tokens = self.backend.model.tokenize(word)
        if len(tokens) > n_ids:
            word = word[: max(tokens[n_ids].offsets[1], longest) + 2 * longest]
        place = len(word) - longest
        starts = [at for at in range(place - longest + 1, place) if self._crosses(word, at, place)]
        return _common(self._tokenized(word[:at]) for at in [place, *starts])

    def _crosses(self, word: str, start: int, place: int) -> bool:
        """Whether a token begins at ``start`` that ends beyond ``place``."""
        ends = range(place + 1, start + self._longest + 1)
        return any(self.backend.model.token_to_id(word[start:end]) is not None for end in ends)

    def _tokenized(self, word: str) -> list[int]:
        return [token.id for token in self.backend.model.tokenize(word)]

    @cached_property
    def _longest(self) -> int:
        """Bytes of the longest token."""
        return max(map(len, self.backend.get_vocab(with_added_tokens=False)))


def _common(rows: Iterator[list[int]] | list[list[int]]) -> list[int]:
    """The ids with which all rows begin."""
    common: list[int] | None = None
    for row in rows:
        if common is None:
            common = row
        same = takewhile(lambda pair: pair[0] == pair[1], zip(common, row, strict=False))
        common = [number for number, _ in same]
        if not common:
            return []
    return common or []


def _parts(step: Any, nested: str) -> Iterator[dict[str, Any]]:
    """The description of a step of a tokenizer, or of those that it is a sequence of."""
    waiting = [] if step is None else [json.loads(step.__getstate__())]
    while waiting:
        part = waiting.pop()
        if nested in part:
            waiting += part[nested]
        else:
            yield part


def _is_solid(character: str) -> bool:
    """Whether no step of a tokenizer joins a character with white space that follows."""
    return _category(character)[0] in "LNPS"


def _composes_with_nothing(character: str) -> bool:
    """Whether normalization leaves alone what is before a character."""
    is_jamo = "\u1160" <= character <= "\u11ff"
    is_emoji = "\U0001f000" <= character <= "\U0001faff"
    category = _category(character)
    return is_emoji or (not is_jamo and (category[0] in "LNPSZ" or category == "Cc"))
