"""Where windows begin, which of them a word is read in, and how their results become one."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from skbert._core.text.windows import (
    Windows,
    is_read_here,
    mean_by_place,
    mean_by_sample,
    most_overlap,
    whole_word_windows,
)

lengths = st.lists(st.integers(0, 50), min_size=1, max_size=5).map(np.array)


@given(lengths=lengths, size=st.integers(1, 20), overlap=st.none() | st.integers(0, 30))
def test_overlapping_windows_cover_every_sequence(
    lengths: np.ndarray, size: int, overlap: int | None
) -> None:
    windows = Windows.overlapping(lengths, np.full(len(lengths), size), overlap)
    shared = size // 4 if overlap is None else min(overlap, size // 2)
    for sample, length in enumerate(lengths):
        is_own = windows.samples == sample
        begins, ends = windows.begins[is_own], (windows.begins + windows.lengths)[is_own]
        assert begins[0] == 0
        assert ends[-1] == length
        assert (ends - begins == min(size, length)).all()
        assert (ends[:-2] - begins[1:-1] == shared).all()
        assert (ends[:-1] - begins[1:] >= shared).all()
        np.testing.assert_allclose(windows.weights[is_own].sum(), 1.0)


@given(lengths=lengths, size=st.integers(1, 20))
def test_windows_end_to_end_are_a_partition(lengths: np.ndarray, size: int) -> None:
    windows = Windows.end_to_end(lengths, size)
    for sample, length in enumerate(lengths):
        is_own = windows.samples == sample
        begins, ends = windows.begins[is_own], (windows.begins + windows.lengths)[is_own]
        assert [*begins, length] == [0, *ends]
        assert (ends - begins <= size).all()


@given(
    rows=st.lists(st.lists(st.integers(1, 4), max_size=12), min_size=1, max_size=4),
    size=st.integers(8, 12),
)
def test_each_word_is_read_where_it_is_farthest_from_the_edges(
    rows: list[list[int]], size: int
) -> None:
    words = np.concatenate([[0], np.cumsum([n for row in rows for n in row])]).astype(int)
    starts = np.concatenate([[0], np.cumsum([len(row) for row in rows])])
    windows = whole_word_windows(words, starts, size)
    is_read = np.split(is_read_here(windows, words, starts), np.cumsum(windows.lengths)[:-1])
    distances: dict[int, list[tuple[int, bool]]] = {}
    for sample, begin, length, mine in zip(
        windows.samples, windows.begins, windows.lengths, is_read, strict=True
    ):
        first = starts[sample] + begin
        left, right = words[first], words[first + length]
        assert right - left <= size
        for word, is_here in zip(range(first, first + length), mine, strict=True):
            distance = min(words[word] - left, right - words[word + 1])
            distances.setdefault(word, []).append((int(distance), bool(is_here)))
    assert sorted(distances) == list(range(starts[-1]))
    for of_word in distances.values():
        assert [distance for distance, is_here in of_word if is_here] == [max(of_word)[0]]


def test_results_of_windows_are_averaged() -> None:
    values = np.array([[1.0], [2.0], [4.0], [8.0], [16.0]], np.float32)
    samples = np.array([0, 0, 1, 0, 1])
    assert mean_by_sample(values, samples).tolist() == [[np.float32(11 / 3)], [10.0]]
    means, first = mean_by_place(values, samples, np.array([1, 0, 0, 1, -1]))
    assert means.tolist() == [[2.0], [4.5], [4.0]]
    assert first.tolist() == [1, 0, 2]
    assert means.dtype == values.dtype


def test_a_window_for_a_span_that_none_holds() -> None:
    lengths, size = np.array([9, 5, 9, 9]), np.full(4, 4)
    windows = Windows.overlapping(lengths, size, 0)
    wanted = np.array([[2, 5], [1, 3], [-1, -1], [3, 8]])
    held, spans, is_more = windows.holding(wanted, lengths, size)
    assert len(windows) == 11
    assert held.samples.tolist() == [0, 0, 0, 0, 1, 1, 2, 2, 2, 3, 3, 3, 3]
    assert held.begins.tolist() == [0, 2, 4, 5, 0, 1, 0, 4, 5, 0, 3, 4, 5]
    assert set(held.lengths.tolist()) == {4}
    assert held.weights[4:6].tolist() == [0.5, 0.5]
    assert spans.tolist() == [[2, 5], [1, 3], [-1, -1], [3, 6]]
    assert wanted[3].tolist() == [3, 8]
    assert np.flatnonzero(is_more).tolist() == [1, 10]


def test_neighbours_share_no_more_than_half() -> None:
    lengths, size = np.array([20]), np.array([7])
    half = Windows.overlapping(lengths, size, most_overlap(7))
    assert half.begins.tolist() == [0, 4, 8, 12, 13]
    assert Windows.overlapping(lengths, size, 6).begins.tolist() == half.begins.tolist()
