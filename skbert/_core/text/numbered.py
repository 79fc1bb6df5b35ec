"""A tokenizer that numbers the pieces it reads, so that a token can be traced to its text.

Depends on ``tokens``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from skbert._arrays import IntArray
from skbert._core.text.tokens import Ragged, TextTokenizer

__all__ = ["NumberedPieces"]


class NumberedPieces(TextTokenizer):
    """Give each piece a number of its own in place of its id, and look both up.

    A task that encodes with it cuts and joins numbers as it would cut and join ids, so that each
    token still says which piece of which text it is. Special tokens, and the unknown one, are
    negative: the bitwise complement of their ids.

    Parameters
    ----------
    tokenizer : TextTokenizer
        The tokenizer that reads the texts.
    """

    def __init__(self, tokenizer: TextTokenizer) -> None:
        parts = {name: getattr(tokenizer, name) for name in ("prefix", "middle", "suffix")}
        specials = {name: tuple(~code for code in ids) for name, ids in parts.items()}
        self._found: list[IntArray]
        vars(self).update({**vars(tokenizer), **specials, "_found": [np.empty((0, 4), np.int64)]})

    @property
    def unk_id(self) -> int | None:
        """The complement of the id of the unknown token; None where there is none."""
        code = super().unk_id
        return None if code is None else ~code

    @property
    def table(self) -> IntArray:
        """Id, start, end and word of each piece by its number, ``(n_pieces, 4)``.

        They are those of `pieces_with_offsets`. A piece of white space counts with the word after
        it, or with the one before it at the end of a text.
        """
        return np.concatenate(self._found)

    def ids_of(self, numbers: IntArray) -> IntArray:
        """The ids that belong to numbers, and to the complements of special tokens."""
        codes = np.append(self.table[:, 0], 0)  # so that there is one to look up for -1
        return np.where(numbers < 0, ~numbers, codes[np.maximum(numbers, -1)]).astype(np.int32)

    def pieces(self, texts: Sequence[str], limit: int | None = None) -> Ragged:
        """Numbers of the pieces of each text, at most ``limit + 1``."""
        numbers, _, _ = self.pieces_with_offsets(texts)
        if limit is None:
            return numbers
        return numbers.truncate(np.minimum(numbers.lengths, limit + 1))

    def pieces_of_words(self, words: Sequence[str], limit: int | None = None) -> Ragged:
        """Numbers of the pieces of words, each as if it stood inside a sentence."""
        numbers = super().pieces_of_words(words, limit)
        if self._marks_sentences:
            added = np.array([not word.startswith(" ") for word in words], np.int64)
            places = self._found[-1][:, 1:3]
            first = sum(map(len, self._found[:-1]))
            owner = np.repeat(added, numbers.lengths)
            places[numbers.values - first] = np.maximum(
                places[numbers.values - first] - owner[:, None], 0
            )
        return numbers

    def pieces_with_offsets(self, texts: Sequence[str]) -> tuple[Ragged, Ragged, Ragged]:
        """Numbers of the pieces of each text, their offsets, and their words."""
        ids, spans, words = super().pieces_with_offsets(texts)
        first = sum(map(len, self._found))
        counted = [_without_gaps(row) for row in words.arrays()]
        columns = ids.values, *spans.values.T, np.concatenate([*counted, words.values[:0]])
        self._found.append(np.stack(columns, axis=1).astype(np.int64))
        numbers = np.arange(first, first + len(ids.values), dtype=np.int32)
        return Ragged(numbers, ids.starts), spans, words


def _without_gaps(words: IntArray) -> IntArray:
    """The word of each piece of a text; a piece of no word gets the next one, or the last."""
    filled = np.flatnonzero(words >= 0)
    if not len(filled):
        return np.zeros_like(words)
    following = np.searchsorted(filled, np.arange(len(words)))
    return words[filled[np.minimum(following, len(filled) - 1)]]
