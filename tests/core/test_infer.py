"""Inference: the order of the items, no influence of neighbours, and memory that runs out."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.items import make_items
from support.networks import (
    CPU,
    GPU,
    HEAD,
    Labels,
    open_model,
    padded,
    plain_twin,
    sentences,
    watch,
)

from skbert._core import infer as infer_module
from skbert._core.batches import Batch, collate
from skbert._core.checkpoints.vet import vet
from skbert._core.infer import INFERENCE_TOKENS, infer
from skbert._core.items import Head, Items
from skbert._core.models.network import Network
from skbert._core.models.opening import open_network
from skbert._core.runtime.device import Precision, seeded
from skbert._core.text.tokens import EncodedTexts, Ragged
from skbert._core.text.windows import Windows

if TYPE_CHECKING:
    from pathlib import Path

EXACT, SINGLE = Precision("float64", CPU), Precision("float32", CPU)
ROWS = ["", *sentences(np.random.default_rng(0).integers(3, 20, 39).tolist())]
assert len({*ROWS}) == 40  # equal rows would be computed once


@pytest.fixture(scope="module")
def network(tiny_model: Path) -> Network:
    return open_model(tiny_model, n_outputs=3)


@pytest.fixture(scope="module")
def exact_network(tiny_model: Path) -> Network:
    return open_model(tiny_model, n_outputs=3, dtype=torch.float64)


def make(network: Network, rows: list[str] = ROWS) -> Items:
    return Labels(3).encode((rows, None), None, network.text_tokenizer)


def one_by_one(network: Network, items: Items) -> np.ndarray[Any, Any]:
    """Logits of each item in a batch of its own."""
    results = []
    for item in range(len(items)):
        batch = collate(items, np.array([item]), network.device, network.dtype)
        with torch.no_grad():
            results.append(network.logits(batch).numpy())
    return np.concatenate(results)


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[Batch]:
    """Every batch that goes through a network from now on."""
    return watch(monkeypatch, "features", lambda batch: batch)


# --- order and neighbours ------------------------------------------------------------------------


def test_one_row_per_text_in_the_order_of_the_texts(network: Network) -> None:
    items = make(network)
    found = infer(network, items, SINGLE)
    assert found.values.shape == (len(ROWS), 3)
    assert found.values.dtype == np.float32
    assert found.lengths.tolist() == [1] * len(ROWS)
    np.testing.assert_allclose(found.values, one_by_one(network, items), rtol=1e-5, atol=1e-5)


def test_it_is_transformers_answer(network: Network) -> None:
    with torch.no_grad():
        want = plain_twin(network)(**padded(network, ROWS, None, 128)).logits.numpy()
    found = infer(network, make(network), SINGLE).values
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5)


@given(order=st.permutations(range(len(ROWS))), n=st.integers(1, len(ROWS)))
def test_order_and_neighbours_do_not_matter(network: Network, order: list[int], n: int) -> None:
    whole = infer(network, make(network), SINGLE).values
    part = infer(network, make(network, [ROWS[i] for i in order[:n]]), SINGLE).values
    np.testing.assert_allclose(part, whole[order[:n]], rtol=1e-5, atol=1e-5)


@given(order=st.permutations(range(len(ROWS))), n=st.integers(1, len(ROWS)))
def test_in_float64_they_round_to_the_same(
    exact_network: Network, order: list[int], n: int
) -> None:
    whole = infer(exact_network, make(exact_network), EXACT).values
    chosen = [ROWS[i] for i in order[:n]]
    part = infer(exact_network, make(exact_network, chosen), EXACT).values
    assert whole.dtype == np.float64
    assert np.array_equal(part.astype(np.float32), whole[order[:n]].astype(np.float32))


def test_the_real_encoder_in_float64_rounds_to_the_same(minilm: Path) -> None:
    network = open_model(minilm, pooling="mean", dtype=torch.float64)
    rows = [*sentences([3, 9, 3, 12, 1, 9, 70]), ""]
    whole = infer(network, make(network, rows), EXACT).values
    alone = one_by_one(network, make(network, rows))
    assert np.array_equal(whole.astype(np.float32), alone.astype(np.float32))


@pytest.mark.parametrize("budget", [1, 30, 100, 10_000])
def test_the_budget_of_tokens_does_not_matter(
    network: Network, monkeypatch: pytest.MonkeyPatch, batches: list[Batch], budget: int
) -> None:
    items = make(network)
    want = infer(network, items, SINGLE).values
    assert len(batches) == 1
    del batches[:]
    monkeypatch.setitem(INFERENCE_TOKENS, "cpu", budget)
    np.testing.assert_allclose(infer(network, items, SINGLE).values, want, rtol=1e-5, atol=1e-5)
    sizes = [batch.input_ids.shape[1] for batch in batches]
    assert max(sizes) <= max(budget, int(items.sizes.max()))
    assert sum(sizes) == items.sizes.sum()  # not one token of padding, and none twice


@pytest.mark.parametrize(
    ("precision", "fewest", "most"),
    [("float32", 20, 64), ("bfloat16", 20, 128), ("float64", 20, 32), ("float64", 50, 50)],
)
def test_results_of_wide_layers_stay_small(
    precision: str,
    fewest: int,
    most: int,
    network: Network,
    batches: list[Batch],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    width = network.model.config.intermediate_size
    monkeypatch.setattr(infer_module, "_MOST_BYTES", 64 * 4 * width)
    monkeypatch.setattr(infer_module, "_FEWEST_TOKENS", fewest)
    items = make(network)
    infer(network, items, Precision(precision, CPU))
    sizes = [batch.input_ids.shape[1] for batch in batches]
    assert most - items.sizes.max() < max(sizes) <= most
    assert sum(sizes) == items.sizes.sum()


def test_bfloat16_stays_near(network: Network) -> None:
    items = make(network)
    want = infer(network, items, SINGLE, forward=Network.features).values
    found = infer(network, items, Precision("bfloat16", CPU), forward=Network.features).values
    assert found.dtype == np.float32
    assert not np.array_equal(found, want)
    np.testing.assert_allclose(found, want, rtol=0, atol=3e-2)


# --- what comes back -----------------------------------------------------------------------------


def test_features_are_what_the_head_reads(network: Network) -> None:
    items = make(network)
    features = infer(network, items, SINGLE, forward=Network.features)
    assert features.values.shape == (len(ROWS), 32)
    with torch.no_grad():
        logits = network.output_layer(torch.from_numpy(features.values)).numpy()
    np.testing.assert_allclose(infer(network, items, SINGLE).values, logits, rtol=1e-5, atol=1e-5)


def test_an_item_of_several_rows_gets_as_many(network: Network) -> None:
    rows = make(network, ROWS[:6])
    single = infer(network, rows, SINGLE).values
    items = Items(rows.tokens, np.array([0, 1, 4, 6]), np.arange(3), np.ones(3))
    found = infer(network, items, SINGLE)
    assert found.lengths.tolist() == [1, 3, 2]
    np.testing.assert_allclose(found.values, single, rtol=1e-5, atol=1e-5)
    turned = infer(network, items.take(np.array([2, 0, 1])), SINGLE)
    assert turned.lengths.tolist() == [2, 1, 3]
    np.testing.assert_allclose(turned[2], found[1], rtol=1e-5, atol=1e-5)


def test_a_head_that_reads_tokens_gives_a_row_per_token(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with seeded(0, CPU):
        head = Head("token classification", 4, reads="tokens")
        tagger = open_network(vet(tiny_model), head)
    items = make(tagger)
    monkeypatch.setitem(INFERENCE_TOKENS, "cpu", 60)
    found = infer(tagger, items, SINGLE)
    assert found.lengths.tolist() == items.sizes.tolist()
    for item in (0, 7, 39):
        want = one_by_one(tagger, items.take(np.array([item])))
        np.testing.assert_allclose(found[item], want, rtol=1e-5, atol=1e-5)


# --- equal rows ----------------------------------------------------------------------------------


def n_tokens(batches: list[Batch]) -> int:
    return sum(batch.input_ids.shape[1] for batch in batches)


@pytest.mark.parametrize(
    "forward", [None, lambda network, batch: network.features(batch)], ids=["logits", "features"]
)
def test_equal_texts_are_computed_once(
    network: Network, batches: list[Batch], forward: Any
) -> None:
    texts = [ROWS[i] for i in [3, 5, 3, 3, 8, 5, 3, 8, 0]]
    items = make(network, texts)
    got = infer(network, items, SINGLE, forward=forward).values
    assert n_tokens(batches) == items.sizes[[0, 1, 4, 8]].sum()
    for text in {*texts}:
        which = [i for i, other in enumerate(texts) if other == text]
        alone = infer(network, make(network, [text]), SINGLE, forward=forward).values
        np.testing.assert_allclose(got[which], alone.repeat(len(which), 0), rtol=1e-5, atol=1e-5)
        assert (got[which] == got[which[0]]).all()


def test_fifty_equal_texts_cost_one(network: Network, batches: list[Batch]) -> None:
    items = make(network, [ROWS[4]] * 50)
    got = infer(network, items, SINGLE)
    assert n_tokens(batches) == items.sizes[0]
    assert got.values.shape == (50, 3)
    assert got.lengths.tolist() == [1] * 50


@given(chosen=st.lists(st.integers(0, 9), min_size=1, max_size=20))
def test_only_rows_that_are_not_equal_are_computed(network: Network, chosen: list[int]) -> None:
    whole = infer(network, make(network, ROWS[:10]), SINGLE).values
    part = infer(network, make(network, [ROWS[i] for i in chosen]), SINGLE).values
    np.testing.assert_allclose(part, whole[chosen], rtol=1e-5, atol=1e-5)


def test_rows_with_another_second_segment_are_not_equal(
    network: Network, batches: list[Batch]
) -> None:
    tokens = make(network, [ROWS[4]] * 3).tokens
    tokens = replace(tokens, second=tokens.second - np.array([0, 2, 0]))
    encoded = EncodedTexts(tokens, Windows.whole(tokens.lengths), 0)
    got = infer(network, Items.one_row_each(encoded, None), SINGLE)
    assert n_tokens(batches) == 2 * tokens.lengths[0]
    assert (got[0] == got[2]).all()
    assert not np.allclose(got[0], got[1])


def test_rows_with_other_selected_tokens_are_not_equal(
    tiny_model: Path, batches: list[Batch]
) -> None:
    with seeded(0, CPU):
        head = Head("masked language modelling", 0, reads="selected tokens", fresh=False)
        network = open_network(vet(tiny_model), head)
    items = make(network, [ROWS[4]] * 4)
    selected = Ragged.of(np.array([1, 1, 2, 1, 2]), np.array([1, 2, 0, 2]))
    got = infer(network, replace(items, selected_tokens=selected), SINGLE)
    assert n_tokens(batches) == 3 * items.sizes[0]
    assert got.lengths.tolist() == [1, 2, 0, 2]
    np.testing.assert_allclose(got[0], got[1][:1], rtol=1e-5, atol=1e-5)
    assert not np.allclose(got[1][0], got[1][1])
    assert (got[1] == got[3]).all()


def test_items_of_equal_rows_share_them(network: Network, batches: list[Batch]) -> None:
    rows = make(network, [ROWS[i] for i in [0, 1, 1, 0, 2, 1]])
    items = Items(rows.tokens, np.array([0, 2, 3, 6]), np.arange(3), np.ones(3))
    got = infer(network, items, SINGLE)
    assert n_tokens(batches) == rows.sizes[[0, 1, 4]].sum()
    assert got.lengths.tolist() == [2, 1, 3]
    single = infer(network, rows, SINGLE)
    for item, own in enumerate(([0, 1], [2], [3, 4, 5])):
        np.testing.assert_allclose(got[item], single.values[own], rtol=1e-5, atol=1e-5)


# --- memory --------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("full"), MemoryError()])
def test_out_of_memory_makes_smaller_batches(
    network: Network, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    items = make(network)
    want = infer(network, items, SINGLE).values
    monkeypatch.setitem(INFERENCE_TOKENS, "cpu", 128)
    forward, refused, done = Network.logits, [], []

    def cramped(self: Network, batch: Batch) -> torch.Tensor:
        n_tokens = batch.input_ids.shape[1]
        (refused if n_tokens > 70 else done).append(n_tokens)
        if n_tokens > 70:
            raise error
        return forward(self, batch)

    monkeypatch.setattr(Network, "logits", cramped)
    found = infer(network, items, SINGLE).values
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5)
    assert len(refused) == 1  # what waits is cut smaller too, and does not fail in its turn
    assert sum(done) == items.sizes.sum()
    assert max(done) <= 64


def test_when_next_to_nothing_fits_it_says_so(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Network, batch: Batch) -> torch.Tensor:
        raise torch.OutOfMemoryError("not a byte left")

    monkeypatch.setattr(Network, "logits", full)
    with pytest.raises(MemoryError, match="Out of memory on cpu with only 32 tokens"):
        infer(network, make(network), SINGLE)


def test_other_errors_go_through(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Network, batch: Batch) -> torch.Tensor:
        raise RuntimeError("shapes do not match")

    monkeypatch.setattr(Network, "logits", broken)
    with pytest.raises(RuntimeError, match="shapes do not match"):
        infer(network, make(network), SINGLE)


# --- the world around it -------------------------------------------------------------------------


def global_flags() -> list[Any]:
    return [
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.is_autocast_cache_enabled(),
        torch.get_default_dtype(),
        torch.get_num_threads(),
        torch.get_float32_matmul_precision(),
        torch.are_deterministic_algorithms_enabled(),
        torch.backends.mkldnn.enabled,
        torch.get_rng_state().tolist(),
        np.random.get_state()[1].tolist(),  # noqa: NPY002
    ]


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_global_flags_are_as_before(network: Network, precision: str) -> None:
    before = global_flags()
    infer(network, make(network), Precision(precision, CPU))
    assert global_flags() == before
    assert all(p.grad is None and p.requires_grad for p in network.model.parameters())


def test_results_can_be_written_to_and_learned_from(network: Network) -> None:
    found = infer(network, make(network), SINGLE, forward=Network.features).values
    found += 1.0
    layer = torch.nn.Linear(32, 1)
    layer(torch.from_numpy(found)).sum().backward()  # no inference tensor
    assert layer.weight.grad is not None


def test_plans_are_by_length() -> None:
    items = make_items([5, 1, 9, 1])
    plan = infer_module.by_length(items.sizes, 10)
    assert [part.tolist() for part in plan] == [[1, 3, 0], [2]]


@pytest.mark.gpu
@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 1e-4), ("bfloat16", 3e-2)])
def test_a_gpu_gives_the_same(tiny_model: Path, precision: str, tolerance: float) -> None:
    with seeded(0, CPU):
        network = open_network(vet(tiny_model), Head(HEAD, 3))
    items = make(network)
    want = infer(network, items, SINGLE, forward=Network.features).values
    network.to(GPU, torch.float32)
    found = infer(network, items, Precision(precision, GPU), forward=Network.features).values
    np.testing.assert_allclose(found, want, rtol=0, atol=tolerance)
