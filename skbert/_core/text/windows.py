"""How a sequence that is too long for one row becomes several windows, and one result again.

Here is where windows begin, how much neighbours share, what a window weighs, and which of several
results counts. Of a sequence only the length is known. Depends on
numpy only.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import numpy as np

from skbert._arrays import BoolArray, FloatArray, IntArray, arange_within, is_arange

__all__ = [
    "Windows", "is_read_here", "mean_by_place", "mean_by_sample", "most_overlap",
    "whole_word_windows",
]  # fmt: skip

_Size = TypeVar("_Size", int, IntArray)


def most_overlap(size: _Size) -> _Size:
    """The most that neighbouring windows of this size may share: half of one."""
    return size // 2


@dataclass(frozen=True)
class Windows:
    """Stretches of sequences, one sequence after another, each from left to right.

    Attributes
    ----------
    samples : array of shape (n_windows,)
        The sequence that each window is a part of.
    begins, lengths : arrays of shape (n_windows,)
        Where in its sequence it begins, and how long it is.
    """

    samples: IntArray
    begins: IntArray
    lengths: IntArray

    @classmethod
    def whole(cls, lengths: IntArray) -> Windows:
        """One window for each sequence, which holds all of it."""
        return cls(np.arange(len(lengths)), np.zeros(len(lengths), np.int64), lengths)

    @classmethod
    def overlapping(
        cls, lengths: IntArray, size: IntArray, overlap: int | IntArray | None = None
    ) -> Windows:
        """Windows of ``size`` that share ``overlap``, by default a quarter, at most half.

        The last window of a sequence ends where the sequence does, and is no shorter for it.
        """
        shared = size // 4 if overlap is None else np.minimum(overlap, most_overlap(size))
        step = np.maximum(size - shared, 1)
        rest = np.maximum(lengths - size, 0)
        counts = 1 + -(-rest // step)
        samples = np.repeat(np.arange(len(lengths)), counts)
        begins = np.minimum(arange_within(counts) * step[samples], rest[samples])
        return cls(samples, begins, np.minimum(lengths, size)[samples])

    @classmethod
    def end_to_end(cls, lengths: IntArray, size: int) -> Windows:
        """Windows of ``size`` that share nothing; the last is as long as what is left."""
        counts = np.maximum(1, -(-lengths // size))
        samples = np.repeat(np.arange(len(lengths)), counts)
        begins = size * arange_within(counts)
        return cls(samples, begins, np.minimum(size, lengths[samples] - begins))

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def weights(self) -> FloatArray:
        """Weight of each window; those of a sample add up to 1."""
        return 1.0 / np.bincount(self.samples)[self.samples]

    def holding(
        self, spans: IntArray, lengths: IntArray, size: IntArray
    ) -> tuple[Windows, IntArray, BoolArray]:
        """These windows, and one more for each span that does not lie within one of them.

        ``spans`` is ``(n_sequences, 2)``, the first and last place of a span in each sequence,
        -1 for none. They are returned too, cut at the end where longer than a window, and which
        windows are more.
        """
        first, last = spans[self.samples].T
        holds = (self.begins <= first) & (last < self.begins + self.lengths)
        lost = np.setdiff1d(np.flatnonzero(spans[:, 0] >= 0), self.samples[holds])
        sizes = np.minimum(lengths, size)[lost]
        begins = np.minimum(spans[lost, 0], lengths[lost] - sizes)
        spans = spans.copy()
        spans[lost, 1] = np.minimum(spans[lost, 1], begins + sizes - 1)
        samples, begins = np.append(self.samples, lost), np.append(self.begins, begins)
        order = np.lexsort((begins, samples))
        windows = Windows(samples[order], begins[order], np.append(self.lengths, sizes)[order])
        return windows, spans, order >= len(self)


def whole_word_windows(words: IntArray, rows: IntArray, size: int) -> Windows:
    """Windows of whole words, up to ``size`` pieces each, that share about a quarter of them.

    The pieces of word i lie from ``words[i]`` to ``words[i + 1]``, the words of row i from
    ``rows[i]`` to ``rows[i + 1]``. The windows count words. The last one of a row ends where the
    row does, and is as long as it can be.
    """
    windows = []
    for row, (first, last) in enumerate(pairwise(rows.tolist())):
        begin = first
        while words[last] - words[begin] > size:
            end = int(np.searchsorted(words, words[begin] + size, side="right")) - 1
            windows.append((row, begin - first, end - begin))
            begin = int(np.searchsorted(words, words[end] - size // 4))
        begin = max(int(np.searchsorted(words, words[last] - size)), first)
        windows.append((row, begin - first, last - begin))
    return Windows(*np.array(windows).T)


def is_read_here(windows: Windows, words: IntArray, rows: IntArray) -> BoolArray:
    """Whether each word of each window is read there: farthest from both ends, of all windows.

    ``words`` and ``rows`` are those of `whole_word_windows`; the result is ``(n_words,)``, with
    the words of one window after another.
    """
    firsts = rows[windows.samples] + windows.begins
    window = np.repeat(np.arange(len(windows)), windows.lengths)
    word = firsts[window] + arange_within(windows.lengths)
    begins, ends = words[firsts], words[firsts + windows.lengths]
    to_edge = np.minimum(words[word] - begins[window], ends[window] - words[word + 1])
    order = np.lexsort((window, -to_edge, word))
    _, best = np.unique(word[order], return_index=True)
    is_read = np.zeros(len(word), bool)
    is_read[order[best]] = True
    return is_read


def mean_by_sample(values: FloatArray, samples: IntArray) -> FloatArray:
    """Average ``(n_windows, ...)`` over the windows of each sample, in the order of samples."""
    if is_arange(samples, len(values)):  # one window each
        return values
    distinct, owner = np.unique(samples, return_inverse=True)
    total = np.zeros((len(distinct), *values.shape[1:]), values.dtype)
    np.add.at(total, owner, values)
    counts = np.bincount(owner).reshape(-1, *[1] * (values.ndim - 1))
    return np.asarray(total / counts, values.dtype)


def mean_by_place(
    values: FloatArray, samples: IntArray, places: IntArray
) -> tuple[FloatArray, IntArray]:
    """Average ``(n_tokens, size)`` over the tokens at the same place of the same sample.

    A token at place -1 is left out. The second array says for each mean which token is the first
    at its place; means are sorted by sample, then by place.
    """
    order = np.lexsort((places, samples))
    order = order[places[order] >= 0]
    is_new = np.ones(len(order), bool)
    is_new[1:] = (np.diff(places[order]) != 0) | (np.diff(samples[order]) != 0)
    starts = np.flatnonzero(is_new)
    sums = np.add.reduceat(values[order], starts, axis=0)
    counts = np.diff(starts, append=len(order)).astype(values.dtype)
    return sums / counts[:, None], order[starts]
