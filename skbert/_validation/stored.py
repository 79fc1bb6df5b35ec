"""Texts that lie outside Python, in Arrow's memory or in files, read a chunk at a time.

Depends on numpy and `tables`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, overload

import numpy as np

from skbert._arrays import IntArray
from skbert._validation import tables

__all__ = ["StoredTexts", "take_texts"]


class StoredTexts(Sequence[str]):
    """The texts of a column, of which only a chunk is a list at any time.

    Parameters
    ----------
    read : callable
        From the first row and the end of a chunk to its texts.
    rows : array of shape (n_texts,)
        The rows that these texts are.
    """

    def __init__(self, read: Callable[[int, int], list[str]], rows: IntArray) -> None:
        self._rows = rows
        self._chunk = lru_cache(maxsize=1)(lambda at: read(at, at + tables.CHUNK_ROWS))

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> list[str]: ...
    def __getitem__(self, at: int | slice) -> str | list[str]:
        if isinstance(at, slice):
            return self._read(self._rows[at])
        row = int(self._rows[at])
        begin = row - row % tables.CHUNK_ROWS
        return self._chunk(begin)[row - begin]

    def __iter__(self) -> Iterator[str]:
        for at in range(0, len(self), tables.CHUNK_ROWS):
            yield from self[at : at + tables.CHUNK_ROWS]

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (), None, iter(self)

    def take(self, positions: IntArray) -> Sequence[str]:
        """Return the texts at these positions, as a list if they are no more than a chunk."""
        rows = self._rows[positions]
        if len(rows) <= tables.CHUNK_ROWS:
            return self._read(rows)
        taken = StoredTexts.__new__(StoredTexts)
        taken._rows, taken._chunk = rows, self._chunk
        return taken

    def _read(self, rows: IntArray) -> list[str]:
        texts = np.empty(len(rows), object)
        begins = rows - rows % tables.CHUNK_ROWS
        for begin in np.unique(begins).tolist():
            chunk = self._chunk(begin)
            where = np.flatnonzero(begins == begin)
            texts[where] = [chunk[row] for row in (rows[where] - begin).tolist()]
        listed: list[str] = texts.tolist()
        return listed


def take_texts(texts: Sequence[str], positions: IntArray) -> Sequence[str]:
    """Return the texts at these positions."""
    if isinstance(texts, StoredTexts):
        return texts.take(positions)
    return [texts[at] for at in positions.tolist()]
