"""Ragged tables, plans and packed batches: every item once, no padding, all in its place."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.items import make_items

from skbert._core.batches import Batch, by_budget, by_length, collate, in_one_copy, steps_of_a_pass
from skbert._core.items import Items, joined
from skbert._core.text.tokens import EncodedTexts, Ragged, TokenTable
from skbert._core.text.windows import Windows, mean_by_sample

CPU = torch.device("cpu")


def pack(items: Items, chosen: list[int]) -> Batch:
    return collate(items, np.array(chosen), CPU, torch.float32)


sizes_of_items = st.lists(st.integers(1, 30), min_size=1, max_size=40)

# --- ragged tables -------------------------------------------------------------------------------

lists = st.lists(st.lists(st.integers(-9, 9), max_size=6), min_size=1, max_size=8)


def ragged(rows: list[list[int]]) -> Ragged:
    flat = np.array([value for row in rows for value in row], np.int32)
    return Ragged.of(flat, np.array([len(row) for row in rows]))


def unragged(table: Ragged) -> list[list[Any]]:
    return [table[i].tolist() for i in range(len(table))]


@given(rows=lists)
def test_ragged_round_trip(rows: list[list[int]]) -> None:
    table = ragged(rows)
    assert unragged(table) == rows
    assert len(table) == len(rows)
    assert table.lengths.tolist() == [len(row) for row in rows]


@given(rows=lists, data=st.data())
def test_ragged_take_is_choosing_from_a_list(rows: list[list[int]], data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=10))
    taken = ragged(rows).take(np.array(chosen, np.int64))
    assert unragged(taken) == [rows[i] for i in chosen]


@given(rows=lists, data=st.data())
def test_ragged_cut_is_slicing(rows: list[list[int]], data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=10))
    begins = [data.draw(st.integers(0, len(rows[i]))) for i in chosen]
    sizes = [
        data.draw(st.integers(0, len(rows[i]) - at)) for i, at in zip(chosen, begins, strict=True)
    ]
    cut = ragged(rows).cut(np.array(chosen), np.array(begins), np.array(sizes))
    spans = zip(chosen, begins, sizes, strict=True)
    assert unragged(cut) == [rows[i][at : at + n] for i, at, n in spans]


@given(rows=lists, data=st.data())
def test_ragged_truncate(rows: list[list[int]], data: st.DataObject) -> None:
    sizes = [data.draw(st.integers(0, len(row))) for row in rows]
    short = ragged(rows).truncate(np.array(sizes))
    assert unragged(short) == [row[:n] for row, n in zip(rows, sizes, strict=True)]


def test_ragged_rows_may_hold_vectors() -> None:
    values = np.arange(10).reshape(5, 2)
    table = Ragged.of(values, np.array([2, 0, 3]))
    assert table.take(np.array([2, 1])).values.tolist() == values[2:].tolist()
    assert unragged(table.take(np.array([1, 0]))) == [[], values[:2].tolist()]


@given(rows=lists, data=st.data())
def test_a_token_table_takes_ids_and_segments_together(
    rows: list[list[int]], data: st.DataObject
) -> None:
    seconds = np.array([data.draw(st.integers(0, len(row))) for row in rows])
    chosen = np.array(data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=10)), np.int64)
    taken = TokenTable(ragged(rows), seconds).take(chosen)
    assert unragged(taken.ids) == [rows[i] for i in chosen]
    assert taken.second.tolist() == [int(seconds[i]) for i in chosen]
    assert taken.lengths.tolist() == [len(rows[i]) for i in chosen]


# --- plans ---------------------------------------------------------------------------------------


@given(sizes=sizes_of_items, budget=st.integers(1, 80))
def test_cutting_by_budget(sizes: list[int], budget: int) -> None:
    cuts = list(by_budget(np.array(sizes), budget))
    parts = [sizes[cut] for cut in cuts]
    assert [size for part in parts for size in part] == sizes
    for part, following in zip(parts, [*parts[1:], [budget + 1]], strict=True):
        assert len(part) == 1 or sum(part) <= budget
        assert sum(part) + following[0] > budget  # nothing more would have gone in


@given(sizes=sizes_of_items, budget=st.integers(1, 80))
def test_batches_of_similar_length(sizes: list[int], budget: int) -> None:
    batches = by_length(np.array(sizes), budget)
    chosen = np.concatenate(batches)
    assert sorted(chosen.tolist()) == list(range(len(sizes)))
    assert (np.diff(np.array(sizes)[chosen]) >= 0).all()
    assert all(len(b) == 1 or sum(sizes[i] for i in b) <= budget for b in batches)


def test_a_worked_plan() -> None:
    sizes = np.array([5, 2, 9, 2, 4])
    assert [(s.start, s.stop) for s in by_budget(sizes, 7)] == [(0, 2), (2, 3), (3, 5)]
    assert [batch.tolist() for batch in by_length(sizes, 8)] == [[1, 3, 4], [0], [2]]


@st.composite
def windowed(draw: st.DrawFn) -> Items:
    """Items of samples that have one window or several."""
    windows = draw(st.lists(st.integers(1, 4), min_size=1, max_size=90))
    samples = [sample for sample, n in enumerate(windows) for _ in range(n)]
    lengths = draw(st.lists(st.integers(1, 9), min_size=len(samples), max_size=len(samples)))
    return make_items(lengths, samples=samples)


@given(items=windowed(), per_step=st.integers(1, 20), seed=st.integers(0, 9))
def test_a_pass_shows_every_item_once_in_equal_steps(
    items: Items, per_step: int, seed: int
) -> None:
    steps = steps_of_a_pass(items, per_step, np.random.default_rng(seed))
    assert sorted(np.concatenate(steps).tolist()) == list(range(len(items)))
    samples = [np.unique(items.samples[step]) for step in steps]
    counts = [len(each) for each in samples]
    n_samples = len(np.unique(items.samples))
    assert counts[:-1] == [per_step] * (len(counts) - 1)
    assert counts[-1] == (n_samples - 1) % per_step + 1
    # No sample is in two steps, so the windows of one are learned from together.
    assert sum(counts) == len(np.unique(np.concatenate(samples))) == n_samples


def test_a_pass_is_drawn_by_its_generator() -> None:
    items = make_items([3, 1, 4, 1, 5, 9, 2, 6] * 8)

    def drawn(seed: int) -> list[list[int]]:
        steps = steps_of_a_pass(items, 8, np.random.default_rng(seed))
        return [step.tolist() for step in steps]

    assert drawn(0) == drawn(0)
    assert drawn(0) != drawn(1)
    first = [seed for seed in range(40) if 5 in drawn(seed)[0]]
    assert 1 < len(first) < 20  # the long texts are not always learned first, or last


def test_samples_need_not_be_numbered_through() -> None:
    items = make_items([2, 3, 4, 5, 6], samples=[70, 70, 3, 12, 12])
    steps = steps_of_a_pass(items, 1, np.random.default_rng(0))
    assert sorted(sorted(step.tolist()) for step in steps) == [[0, 1], [2], [3, 4]]


def test_a_step_holds_few_distinct_lengths() -> None:
    lengths = np.random.default_rng(0).integers(1, 33, 32 * 16)
    items = make_items(lengths.tolist())
    steps = steps_of_a_pass(items, 16, np.random.default_rng(1))
    assert np.mean([len(np.unique(lengths[step])) for step in steps]) < 9  # 12.7 when unsorted


def test_the_short_last_step_holds_any_lengths() -> None:
    items = make_items(list(range(1, 70)))
    means = [
        items.sizes[steps_of_a_pass(items, 16, np.random.default_rng(seed))[-1]].mean()
        for seed in range(200)
    ]
    assert abs(np.mean(means) - 35) < 4  # 67 when the longest texts remain


# --- packed batches ------------------------------------------------------------------------------


@st.composite
def owning_rows(draw: st.DrawFn) -> tuple[Items, list[int]]:
    """Items of one row or several, and some of them in any order."""
    counts = draw(st.lists(st.integers(1, 3), min_size=1, max_size=8))
    lengths = draw(st.lists(st.integers(1, 7), min_size=sum(counts), max_size=sum(counts)))
    chosen = draw(st.permutations(range(len(counts))))
    items = make_items(lengths, rows=counts, targets=10 * np.arange(len(counts)))
    return items, chosen[: draw(st.integers(1, len(counts)))]


def rows_of(items: Items, chosen: list[int]) -> list[int]:
    return [row for i in chosen for row in range(items.rows[i], items.rows[i + 1])]


@given(made=owning_rows())
def test_no_padding_and_everything_in_its_place(made: tuple[Items, list[int]]) -> None:
    items, chosen = made
    batch = pack(items, chosen)
    rows = rows_of(items, chosen)
    lengths = [int(items.tokens.lengths[row]) for row in rows]
    for each in (batch.input_ids, batch.position_ids, batch.token_type_ids):
        assert each.shape == (1, sum(lengths))
        assert each.dtype == torch.int64
    # Each token is its row's number and its place there.
    row_in_items, place = batch.input_ids[0] // 1000, batch.input_ids[0] % 1000
    assert torch.equal(place, batch.position_ids[0])
    starts = batch.layout.cu_seqlens.tolist()
    assert batch.layout.cu_seqlens.dtype == torch.int32
    assert starts[-1] == sum(lengths)
    for at, end in pairwise(starts):
        assert len(set(row_in_items[at:end].tolist())) == 1
        assert batch.position_ids[0, at:end].tolist() == list(range(end - at))
        second = np.arange(end - at) >= (end - at) // 2
        assert batch.token_type_ids[0, at:end].tolist() == second.astype(int).tolist()
    assert sorted(row_in_items[starts[:-1]].tolist()) == sorted(rows)


@given(made=owning_rows())
def test_the_layout_describes_the_rows(made: tuple[Items, list[int]]) -> None:
    items, chosen = made
    layout = pack(items, chosen).layout
    assert (np.diff(layout.lengths) >= 0).all()
    assert torch.diff(layout.cu_seqlens).tolist() == layout.lengths.tolist()
    assert layout.max_seqlen == max(items.tokens.lengths[row] for row in rows_of(items, chosen))
    owners = np.repeat(np.arange(len(layout.lengths)), layout.lengths)
    assert layout.row_of_token.tolist() == owners.tolist()
    run_lengths = [size for _, _, size in layout.runs]
    assert run_lengths == sorted(set(layout.lengths.tolist()))
    assert [n for _, n, _ in layout.runs] == [
        int((layout.lengths == size).sum()) for size in run_lengths
    ]
    first = 0
    for begin, n, size in layout.runs:
        assert begin == first
        first += n * size
    assert first == layout.lengths.sum()


@given(made=owning_rows())
def test_the_orders_restore_the_items(made: tuple[Items, list[int]]) -> None:
    items, chosen = made
    batch = pack(items, chosen)
    rows = rows_of(items, chosen)
    firsts = (
        batch.input_ids[0][batch.layout.cu_seqlens[:-1].long()] // 1000
    )  # row of each packed row
    in_order = firsts if batch.row_order is None else firsts[batch.row_order]
    assert in_order.tolist() == rows
    ids = (
        batch.input_ids[0] if batch.token_order is None else batch.input_ids[0][batch.token_order]
    )
    assert ids.tolist() == [int(i) for row in rows for i in items.tokens.ids[row]]
    assert batch.rows_per_item.tolist() == np.diff(items.rows)[chosen].tolist()
    assert batch.weights.tolist() == items.weights[chosen].tolist()
    assert batch.targets is not None
    assert batch.targets.tolist() == [10 * i for i in chosen]


def test_rows_already_in_order_need_no_restoring() -> None:
    items = make_items([2, 2, 5])
    assert pack(items, [0, 1, 2]).row_order is None
    assert pack(items, [0, 1, 2]).token_order is None
    assert pack(items, [2, 0]).row_order is not None


def test_a_worked_batch() -> None:
    batch = pack(make_items([3, 1, 3]), [0, 1, 2])
    assert batch.input_ids.tolist() == [[1000, 0, 1, 2, 2000, 2001, 2002]]
    assert batch.position_ids.tolist() == [[0, 0, 1, 2, 0, 1, 2]]
    assert batch.token_type_ids.tolist() == [[1, 0, 1, 1, 0, 1, 1]]
    assert batch.layout.runs == ((0, 1, 1), (1, 2, 3))
    assert batch.layout.cu_seqlens.tolist() == [0, 1, 4, 7]
    assert batch.row_order is not None
    assert batch.row_order.tolist() == [1, 0, 2]
    assert batch.token_order is not None
    assert batch.token_order.tolist() == [1, 2, 3, 0, 4, 5, 6]


def test_ragged_targets_come_one_per_token() -> None:
    lengths = [3, 1, 2]
    tags = Ragged.of(np.arange(6) + 100, np.array(lengths))
    batch = pack(make_items(lengths, targets=tags), [2, 0])
    assert batch.targets is not None
    assert batch.token_order is None
    assert batch.targets.tolist() == [104, 105, 100, 101, 102]
    turned = pack(make_items(lengths, targets=tags), [0, 2])
    assert turned.token_order is not None
    assert turned.input_ids[0][turned.token_order].tolist() == [0, 1, 2, 2000, 2001]
    assert turned.targets is not None
    assert turned.targets.tolist() == [100, 101, 102, 104, 105]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_numbers_come_in_the_type_of_the_weights(dtype: torch.dtype) -> None:
    floats = make_items([2, 3], targets=np.array([[0.1, 0.2], [0.3, 0.4]]))
    batch = collate(floats, np.array([1]), CPU, dtype)
    assert batch.targets is not None
    assert (batch.weights.dtype, batch.targets.dtype) == (dtype, dtype)
    assert torch.equal(batch.targets, torch.tensor([[0.3, 0.4]], dtype=dtype))
    codes = collate(make_items([2], targets=np.array([7])), np.array([0]), CPU, dtype)
    assert codes.targets is not None
    assert codes.targets.dtype == torch.int64
    assert collate(make_items([2]), np.array([0]), CPU, dtype).targets is None


def test_tensors_are_the_same_side_by_side() -> None:
    tensors = {
        "ids": torch.arange(5)[None], "counts": torch.tensor([1, 2, 3], dtype=torch.int32),
        "weights": torch.rand(7, 2, dtype=torch.float64), "one": torch.tensor(2.5),
        "none": torch.empty(0, 3), "marks": torch.tensor([True, False, True]),
    }  # fmt: skip
    found = in_one_copy(tensors, CPU)
    assert list(found) == list(tensors)
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)
    assert len({each.untyped_storage().data_ptr() for each in found.values()}) == 1


@pytest.mark.gpu
def test_batches_are_the_same_on_a_gpu() -> None:
    items = make_items([3, 1, 3, 2], targets=np.arange(4.0))
    here = pack(items, [3, 0, 1])
    there = collate(items, np.array([3, 0, 1]), torch.device("cuda:0"), torch.float32)
    for name in ("input_ids", "position_ids", "token_type_ids", "row_order", "token_order",
                 "weights", "targets"):  # fmt: skip
        assert getattr(there, name).is_cuda
        assert torch.equal(getattr(there, name).cpu(), getattr(here, name))
    assert torch.equal(there.layout.cu_seqlens.cpu(), here.layout.cu_seqlens)
    assert there.layout.runs == here.layout.runs


# --- items ---------------------------------------------------------------------------------------


def test_windows_share_the_weight_and_target_of_their_sample() -> None:
    table = make_items([2, 2, 2, 5]).tokens
    windows = Windows(np.array([0, 0, 0, 1]), np.array([0, 1, 2, 0]), np.array([2, 2, 2, 5]))
    encoded = EncodedTexts(table, windows, 1)
    items = Items.one_row_each(encoded, np.array([7, 8]))
    assert items.weights.tolist() == pytest.approx([1 / 3] * 3 + [1.0])
    assert isinstance(items.targets, np.ndarray)
    assert items.targets.tolist() == [7, 7, 7, 8]
    assert items.n_truncated == 1
    assert items.sizes.tolist() == [2, 2, 2, 5]
    assert Items.one_row_each(encoded, None).targets is None


def test_weighted_items_drop_what_weighs_nothing() -> None:
    items = make_items([2, 3, 4, 5], samples=[0, 0, 1, 2], targets=np.arange(4))
    weighted = items.weighted(np.array([2.0, 0.0, 0.5]))
    assert weighted.weights.tolist() == [2.0, 4.0, 2.0]
    assert weighted.samples.tolist() == [0, 0, 2]
    assert weighted.sizes.tolist() == [2, 3, 5]
    assert isinstance(weighted.targets, np.ndarray)
    assert weighted.targets.tolist() == [0, 1, 3]
    assert items.weighted(None) is items


@given(made=owning_rows())
def test_taking_items_takes_all_that_is_theirs(made: tuple[Items, list[int]]) -> None:
    items, chosen = made
    taken = items.take(np.array(chosen))
    rows = rows_of(items, chosen)
    assert (
        taken.tokens.ids.values.tolist() == items.tokens.ids.take(np.array(rows)).values.tolist()
    )
    assert taken.tokens.second.tolist() == items.tokens.second[rows].tolist()
    assert np.diff(taken.rows).tolist() == np.diff(items.rows)[chosen].tolist()
    assert taken.sizes.tolist() == items.sizes[chosen].tolist()
    assert taken.samples.tolist() == items.samples[chosen].tolist()


def test_items_of_samples_keep_their_order() -> None:
    items = make_items([1, 2, 3, 4, 5], samples=[0, 0, 1, 2, 2])
    chosen = items.of_samples(np.array([2, 0]))
    assert chosen.samples.tolist() == [0, 0, 2, 2]
    assert chosen.sizes.tolist() == [1, 2, 4, 5]


def test_joined_items_are_all_items() -> None:
    first = make_items([3, 1, 2], samples=[0, 0, 2], targets=np.array([5, 5, 6]))
    others = make_items([2, 4, 1], rows=[1, 2], targets=np.array([7, 8]))
    both = joined([(first, 3), (others, 2)])
    assert both.samples.tolist() == [0, 0, 2, 3, 4]
    for part, items in ((slice(0, 3), first), (slice(3, 5), others)):
        own = both.take(np.arange(5)[part])
        assert unragged(own.tokens.ids) == unragged(items.tokens.ids)
        assert own.tokens.second.tolist() == items.tokens.second.tolist()
        assert own.rows.tolist() == items.rows.tolist()
        assert own.weights.tolist() == items.weights.tolist()
        assert own.targets.tolist() == items.targets.tolist()


def test_the_mean_of_a_sample_is_over_its_items() -> None:
    items = replace(make_items([1, 1, 1, 1]), samples=np.array([4, 0, 4, 4]))
    values = np.array([[1.0, 0.0], [5.0, 6.0], [3.0, 3.0], [5.0, 0.0]], np.float32)
    means = mean_by_sample(values, items.samples)
    assert means.tolist() == [[5.0, 6.0], [3.0, 1.0]]
    assert means.dtype == np.float32
