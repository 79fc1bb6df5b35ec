"""Packed batches give what transformers' own padded forward gives, outputs and gradients alike."""

from __future__ import annotations

import math
from inspect import Parameter, Signature
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.networks import (
    CPU,
    GPU,
    Case,
    Labels,
    assert_all_close,
    gradients,
    layout_of,
    open_model,
    padded,
    plain_twin,
    sentences,
    without_waiting,
)
from transformers import ModernBertConfig, ModernBertModel, masking_utils

from skbert._core.attention import packed
from skbert._core.attention.pooling import pool
from skbert._core.batches import Layout, collate
from skbert._core.checkpoints.vet import vet
from skbert._core.items import Head
from skbert._core.models.network import Network
from skbert._core.models.opening import open_network
from skbert._core.runtime.device import Precision, seeded

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# AMX has a part in bfloat16 alone; the attention function and the poolings use no kernels of ours.
with_and_without = pytest.mark.usefixtures("with_or_without_kernels")


# --- against transformers ------------------------------------------------------------------------


CASES = {
    "one text": Case(sentences([5])),
    "equal lengths": Case(sentences([6, 6, 6, 6])),
    "mixed lengths": Case([*sentences([3, 9, 1, 14, 9, 2]), "", "!"]),
    "pairs": Case(sentences([3, 9, 1, 5]), sentences([4, 2, 12, 4], seed=1)),
    "an empty second text": Case(sentences([3, 9]), ["", "good"]),
    "rows of 64 and more": Case(sentences([62, 80, 3, 61, 80])),
    "long rows": Case(sentences([126, 80, 3, 61, 126])),
    "rows cut at 128": Case(sentences([126, 127, 200, 3])),
    "long pairs": Case(sentences([90, 4, 70]), sentences([80, 100, 20], seed=1)),
}


def both_ways(network: Network, case: Case, attention: str) -> tuple[Any, Any, Any, Any]:
    """Logits and gradients, packed and by transformers."""
    task = Labels(3)
    targets = np.arange(len(case.first)) % 3
    items = task.encode(case, targets, network.text_tokenizer)
    batch = collate(items, np.arange(len(items)), network.device, network.dtype)
    logits = network.logits(batch)
    loss, weight = task.loss(logits, batch)
    (loss / weight).backward()
    twin = plain_twin(network, attention)
    out = twin(
        **padded(network, *case, task.max_length), labels=torch.tensor(targets).to(network.device)
    )
    out.loss.backward()
    return logits.detach(), gradients(network.model), out.logits.detach(), gradients(twin)


@with_and_without
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", CASES)
def test_a_tiny_model_agrees_with_transformers(
    tiny_model: Path, name: str, attention: str
) -> None:
    network = open_model(tiny_model, n_outputs=3)
    assert network.is_packed
    got, got_gradients, want, want_gradients = both_ways(network, CASES[name], attention)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    assert len(want_gradients) == len(list(network.model.parameters()))
    assert_all_close(got_gradients, want_gradients, 1e-5)


@with_and_without
@pytest.mark.parametrize("name", CASES)
def test_in_float64_they_agree_to_ten_digits(tiny_model: Path, name: str) -> None:
    network = open_model(tiny_model, n_outputs=3, dtype=torch.float64)
    got, got_gradients, want, want_gradients = both_ways(network, CASES[name], "eager")
    assert got.dtype == torch.float64
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)
    assert_all_close(got_gradients, want_gradients, 1e-10)


@with_and_without
@pytest.mark.parametrize("name", ["mixed lengths", "pairs", "rows of 64 and more", "long rows"])
def test_the_real_encoder_agrees_with_transformers(minilm: Path, name: str) -> None:
    network = open_model(minilm, n_outputs=3)
    got, got_gradients, want, want_gradients = both_ways(network, CASES[name], "sdpa")
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    assert_all_close(got_gradients, want_gradients, 1e-5)


@with_and_without
def test_the_real_encoder_in_float64(minilm: Path) -> None:
    network = open_model(minilm, n_outputs=3, dtype=torch.float64)
    got, got_gradients, want, want_gradients = both_ways(network, CASES["pairs"], "sdpa")
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)
    assert_all_close(got_gradients, want_gradients, 1e-10)


@with_and_without
@pytest.mark.parametrize("pooling", ["pooler", "cls", "mean", "max"])
@pytest.mark.parametrize("name", ["mixed lengths", "pairs"])
def test_a_model_that_cannot_pack_is_padded_with_the_same_results(
    tiny_model: Path, name: str, pooling: str
) -> None:
    results = []
    for packs in (True, False):
        network = open_model(tiny_model, n_outputs=3, pooling=pooling)
        if not packs:
            network.is_packed = False
            network.model.config._attn_implementation = "sdpa"
        batch = collate(
            Labels(3).encode(CASES[name], None, network.text_tokenizer),
            np.arange(len(CASES[name].first)), CPU, torch.float32,
        )  # fmt: skip
        logits = network.logits(batch)
        logits.square().sum().backward()
        results.append((logits.detach(), gradients(network.model)))
    torch.testing.assert_close(results[1][0], results[0][0], rtol=1e-5, atol=1e-5)
    assert_all_close(results[1][1], results[0][1], 1e-5)


def reference_features(network: Network, case: Case, pooling: str) -> torch.Tensor:
    """What the head reads, text by text, the obvious way."""
    body = plain_twin(network).bert
    rows = []
    for i in range(len(case.first)):
        second = None if case.second is None else [case.second[i]]
        hidden = body(**padded(network, [case.first[i]], second, 128)).last_hidden_state[0]
        rows.append(
            {
                "cls": lambda h: h[0],
                "mean": lambda h: h.mean(dim=0),
                "max": lambda h: h.amax(dim=0),
                "pooler": lambda h: body.pooler(h[None])[0],
            }[pooling](hidden)
        )
    return torch.stack(rows)


@with_and_without
@pytest.mark.parametrize("pooling", ["cls", "mean", "max", "pooler"])
@pytest.mark.parametrize("name", ["mixed lengths", "pairs"])
def test_what_the_head_reads(tiny_model: Path, name: str, pooling: str) -> None:
    network = open_model(tiny_model, pooling=pooling)
    items = Labels().encode(CASES[name], None, network.text_tokenizer)
    batch = collate(items, np.arange(len(items)), CPU, torch.float32)
    with torch.no_grad():
        features = network.features(batch)
        want = reference_features(network, CASES[name], pooling)
        by_hand = network.output_layer(features)
        assert torch.equal(network.logits(batch), by_hand)
    torch.testing.assert_close(features, want, rtol=1e-5, atol=1e-5)


@with_and_without
def test_a_head_that_reads_tokens_is_given_them_in_order(tiny_model: Path) -> None:
    with seeded(0, CPU):
        head = Head("token classification", 4, reads="tokens")
        network = open_network(vet(tiny_model), head)
    case = CASES["mixed lengths"]
    items = Labels().encode(case, None, network.text_tokenizer)
    batch = collate(items, np.arange(len(items)), CPU, torch.float32)
    assert batch.token_order is not None
    with torch.no_grad():
        got = network.logits(batch)
        inputs = padded(network, *case, 128)
        network.is_packed, network.model.config._attn_implementation = False, "eager"
        want = network.model(**inputs).logits[inputs["attention_mask"].bool()]
    assert got.shape == (items.sizes.sum(), 4)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("name", ["mixed lengths", "rows of 64 and more", "long rows"])
def test_bfloat16_stays_near(minilm: Path, name: str) -> None:
    network = open_model(minilm)
    items = Labels().encode(CASES[name], None, network.text_tokenizer)
    batch = collate(items, np.arange(len(items)), CPU, torch.float32)
    with torch.no_grad():
        want = network.features(batch)
        with Precision("bfloat16", CPU).autocast():
            got = network.features(batch).float()
    assert not torch.equal(got, want)
    torch.testing.assert_close(got, want, rtol=0, atol=3e-2)  # out of a tanh: within -1 and 1


@with_and_without
@pytest.mark.parametrize("where", ["attention_probs", "hidden", "classifier"])
@pytest.mark.parametrize("lengths", [[5, 9, 5], [70, 66], [126, 120]])
def test_dropout_is_drawn_in_training_only(
    make_tiny_model: Callable[..., Path], lengths: list[int], where: str
) -> None:
    rates = {"attention_probs_dropout_prob": 0.0, "hidden_dropout_prob": 0.0}
    rates |= (
        {"classifier_dropout": 0.5} if where == "classifier" else {f"{where}_dropout_prob": 0.5}
    )
    network = open_model(make_tiny_model(**{"classifier_dropout": 0.0, **rates}))
    items = Labels().encode(Case(sentences(lengths)), None, network.text_tokenizer)
    batch = collate(items, np.arange(len(items)), CPU, torch.float32)

    def drawn(seed: int) -> torch.Tensor:
        with torch.no_grad(), seeded(seed, CPU):
            return network.logits(batch)

    assert torch.equal(drawn(0), drawn(1))
    network.model.train()
    assert torch.equal(drawn(0), drawn(0))
    assert not torch.equal(drawn(0), drawn(1))


# --- the attention function and the poolings by themselves ---------------------------------------


def attend_row_by_row(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    layout: Layout,
    scale: float,
    sees: Callable[[int, int], bool] = lambda i, j: True,
) -> torch.Tensor:
    rows = []
    for at, end in zip(layout.cu_seqlens.tolist(), layout.cu_seqlens.tolist()[1:], strict=False):
        scores = torch.einsum("hqd,hkd->hqk", q[0, :, at:end], k[0, :, at:end]) * scale
        hidden = [[not sees(i, j) for j in range(end - at)] for i in range(end - at)]
        scores = scores.masked_fill(torch.tensor(hidden), -math.inf)
        rows.append(torch.einsum("hqk,hkd->qhd", scores.softmax(-1), v[0, :, at:end]))
    return torch.cat(rows)[None]


@pytest.mark.parametrize("scaling", [None, 0.3])
@pytest.mark.parametrize("at_once", [1, 100, 1 << 21])
@given(
    lengths=st.lists(st.sampled_from([1, 2, 3, 7, 63, 64, 65, 127, 128]), min_size=1, max_size=6)
)
def test_a_row_attends_to_itself_only(
    lengths: list[int], at_once: int, scaling: float | None
) -> None:
    layout = layout_of(lengths)
    generator = torch.Generator().manual_seed(sum(lengths))
    q, k, v = torch.randn(3, 1, 2, sum(lengths), 4, generator=generator, dtype=torch.float64)
    with mock.patch.object(packed, "_MAX_SCORES", at_once):
        got, none = packed.attention(torch.nn.Module(), q, k, v, layout=layout, scaling=scaling)
    want = attend_row_by_row(q, k, v, layout, scaling or 1 / math.sqrt(4))
    assert none is None
    assert got.shape == (1, sum(lengths), 2, 4)
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)


def random_states(n_heads: int, n_tokens: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(n_tokens)
    return torch.randn(1, n_heads, n_tokens, 4, generator=generator, dtype=dtype)


def causal_module(is_causal: bool) -> torch.nn.Module:
    module = torch.nn.Module()
    module.is_causal = is_causal  # type: ignore[assignment]
    return module


def flash(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens: torch.Tensor, *_: Any,
    scale: float | None, window_size: tuple[int, int] = (-1, -1),
) -> torch.Tensor:  # fmt: skip
    """What torch documents of its function for rows of different lengths."""
    before, after = (math.inf if side < 0 else side for side in window_size)
    layout = layout_of(cu_seqlens.diff().tolist())
    states = (x.transpose(0, 1)[None] for x in (q, k, v))
    return attend_row_by_row(
        *states, layout, scale or 1 / math.sqrt(q.shape[-1]),
        lambda i, j: i - before <= j <= i + after,
    )[0]  # fmt: skip


@pytest.fixture(params=["grouped", "padded", "flash"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "_can_pad", lambda *_: request.param == "padded")
    if request.param == "flash":
        monkeypatch.setattr(packed, "_can_use_flash", lambda *_: True)
        monkeypatch.setattr(packed.varlen, "varlen_attn", flash)


@pytest.mark.parametrize(
    ("size", "dtype", "capability", "parameters", "can"),
    [
        (64, torch.bfloat16, (8, 0), ["q", "scale"], True),
        (256, torch.float16, (9, 0), ["q", "scale"], True),
        (26, torch.bfloat16, (8, 0), ["q", "scale"], False),
        (264, torch.bfloat16, (8, 0), ["q", "scale"], False),
        (64, torch.float32, (8, 0), ["q", "scale"], False),
        (64, torch.float16, (7, 5), ["q", "scale"], False),
        (64, torch.float16, (8, 0), ["q"], False),
    ],
)
def test_flash_attention_is_used_where_torch_has_it(
    size: int, dtype: torch.dtype, capability: tuple[int, int], parameters: list[str], can: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    function: Any = lambda: None  # noqa: E731 - with a signature of its own
    function.__signature__ = Signature(
        [Parameter(name, Parameter.KEYWORD_ONLY) for name in parameters]
    )
    monkeypatch.setattr(packed, "varlen", SimpleNamespace(varlen_attn=function))
    monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(packed, "_has_flash", packed._has_flash.__wrapped__)
    q = SimpleNamespace(dtype=dtype, shape=(5, 2, size), is_cuda=True, device=GPU)
    assert packed._can_use_flash(q, 0.0) is can
    assert not packed._can_use_flash(q, 0.1)


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("width", [1, 2, 5, 64, 65, 200, None])
@pytest.mark.parametrize("lengths", [[1, 4, 4, 9], [3, 63, 64, 65, 130, 130]])
def test_a_token_attends_within_its_window(
    lengths: list[int], width: int | None, is_causal: bool
) -> None:
    layout = layout_of(lengths)
    q, k, v = random_states(6, sum(lengths)).chunk(3, dim=1)
    got, _ = packed.attention(
        causal_module(is_causal), q, k, v, layout=layout, sliding_window=width
    )
    want = attend_row_by_row(
        q, k, v, layout, 0.5,
        lambda i, j: abs(i - j) < (width or 999) and not (is_causal and j > i),
    )  # fmt: skip
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("width", [3, None])
@pytest.mark.parametrize("is_causal", [False, True])
def test_long_rows_are_computed_in_blocks_of_queries(
    monkeypatch: pytest.MonkeyPatch, width: int | None, is_causal: bool
) -> None:
    monkeypatch.setattr(packed, "_can_use_sdpa", lambda *_: False)
    layout = layout_of([1, 9, 150, 150])
    q, k, v = (x.requires_grad_() for x in random_states(6, 310).chunk(3, dim=1))
    settings: Any = {"layout": layout, "sliding_window": width}
    module = causal_module(is_causal)
    whole = packed.attention(module, q, k, v, **settings)[0]
    slopes = torch.randn(whole.shape, generator=torch.Generator().manual_seed(0)).double()
    want = torch.autograd.grad((whole * slopes).sum(), (q, k, v))
    n_scores = []
    softmax = torch.softmax
    monkeypatch.setattr(packed, "_MAX_WHOLE_LENGTH", 40)
    monkeypatch.setattr(packed, "_MIN_LOCAL_QUERIES", 16)
    monkeypatch.setattr(packed, "_MAX_SCORES", 2 * 150 * 20)

    def counted(x: torch.Tensor, dim: int) -> torch.Tensor:
        n_scores.append(x.numel())
        return softmax(x, dim=dim)

    with mock.patch.object(torch, "softmax", counted):
        blocks = packed.attention(module, q, k, v, **settings)[0]
        n_computed = sum(n_scores)
        got = torch.autograd.grad((blocks * slopes).sum(), (q, k, v))
    assert max(n_scores) <= 2 * 150 * 20
    assert sum(n_scores) > 1.9 * n_computed  # the backward pass computes them again
    assert n_computed < (2 * 300 * 24 if width else 2 * 300 * 151)
    torch.testing.assert_close(blocks, whole, rtol=1e-10, atol=1e-10)
    for mine, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("width", [4, None])
def test_blocks_of_queries_drop_the_same_weights_on_the_way_back(
    monkeypatch: pytest.MonkeyPatch, width: int | None
) -> None:
    monkeypatch.setattr(packed, "_MAX_WHOLE_LENGTH", 8)
    monkeypatch.setattr(packed, "_MIN_LOCAL_QUERIES", 8)
    monkeypatch.setattr(packed, "_MAX_SCORES", 16)
    layout = layout_of([3, 20])

    def attend(q: torch.Tensor) -> Any:
        with seeded(0, CPU):
            return packed.attention(
                torch.nn.Module(), q, q, q, layout=layout, sliding_window=width, dropout=0.5
            )[0]

    assert torch.autograd.gradcheck(attend, (random_states(1, 23).requires_grad_(),))


def test_a_row_of_any_length_takes_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = random_states(3, 8192, torch.bfloat16).chunk(3, dim=1)
    largest = []
    weigh = packed._weigh
    monkeypatch.setattr(
        packed, "_weigh", lambda *args: largest.append(args[5].shape[2] * args[6].shape[2])
        or weigh(*args),
    )  # fmt: skip
    for settings in ({"sliding_window": 65}, {"dropout": 0.1}):
        with torch.no_grad():
            packed.attention(torch.nn.Module(), q, k, v, layout=layout_of([8192]), **settings)
    assert max(largest) <= packed._MAX_SCORES


@pytest.mark.usefixtures("kernel")
def test_heads_of_queries_may_share_those_of_keys_and_values() -> None:
    layout = layout_of([3, 5, 5, 70])
    q, k, v = random_states(6, 83), *random_states(4, 83).chunk(2, dim=1)
    got, _ = packed.attention(torch.nn.Module(), q, k, v, layout=layout)
    k, v = (x[:, [0, 0, 0, 1, 1, 1]] for x in (k, v))
    want = attend_row_by_row(q, k, v, layout, 0.5)
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)


def test_a_model_with_windows_packs_without_a_mask_and_pads_with_one() -> None:
    with seeded(0, CPU):
        config = ModernBertConfig(
            vocab_size=50, hidden_size=16, num_hidden_layers=3, num_attention_heads=2,
            intermediate_size=8, local_attention=8, pad_token_id=0,
        )  # fmt: skip
        model = ModernBertModel(config).double().eval()
    assert model.layers[1].attn.sliding_window == 5
    layout = layout_of([3, 9, 9, 20])
    ids = torch.randint(1, 50, (1, 41), generator=torch.Generator().manual_seed(0))
    rows = ids[0].split([3, 9, 9, 20])
    padded_ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    is_token = padded_ids != 0
    config._attn_implementation = "eager"
    with torch.no_grad():
        want = [model(row[None]).last_hidden_state[0] for row in rows]
    config._attn_implementation = packed.NAME
    places = torch.cat([torch.arange(len(row)) for row in rows])[None]
    embeds = model.get_input_embeddings()(ids)
    with torch.no_grad():
        by_row = [model(row[None]).last_hidden_state[0] for row in rows]
        in_pads = model(padded_ids, attention_mask=is_token).last_hidden_state[is_token]
        with mock.patch.dict(masking_utils.AttentionMaskInterface._global_mapping, {"sdpa": None}):
            together = model(
                inputs_embeds=embeds, position_ids=places, layout=layout
            ).last_hidden_state[0]
    for got in (torch.cat(by_row), in_pads, together):
        torch.testing.assert_close(got, torch.cat(want), rtol=1e-9, atol=1e-9)


# --- rows of different lengths in one call -------------------------------------------------------

MIXED = [1, 3, 3, 4, 63, 64, 70]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[torch.Size]:
    """The shapes of queries in each call of attention, as if on a GPU."""
    monkeypatch.setattr(packed, "_can_pad", lambda q, layout: len(layout.runs) > 1)
    seen: list[torch.Size] = []
    attend = torch.nn.functional.scaled_dot_product_attention

    def counted(q: torch.Tensor, *states: Any, **settings: Any) -> torch.Tensor:
        seen.append(q.shape)
        return attend(q, *states, **settings)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", counted)
    return seen


@pytest.mark.parametrize("width", [None, 3])
@pytest.mark.parametrize("is_causal", [False, True])
def test_one_call_gives_the_gradients_of_a_call_for_each_length(
    calls: list[torch.Size], is_causal: bool, width: int | None
) -> None:
    layout, module = layout_of(MIXED), causal_module(is_causal)
    states = random_states(6, sum(MIXED)).chunk(3, dim=1)
    slopes = random_states(2, sum(MIXED)).transpose(1, 2)
    results = []
    for pads in (True, False):
        leaves = [x.clone().requires_grad_() for x in states]
        with mock.patch.object(packed, "_can_pad", lambda *_, pads=pads: pads):
            out, _ = packed.attention(module, *leaves, layout=layout, sliding_window=width)
        results.append((out.detach(), *torch.autograd.grad((out * slopes).sum(), leaves)))
        if pads:
            assert calls == [(len(MIXED), 2, 70, 4)]
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)


def test_a_step_calls_attention_once_for_each_layer(
    make_tiny_model: Callable[..., Path], calls: list[torch.Size]
) -> None:
    network = open_model(make_tiny_model(num_hidden_layers=3), n_outputs=3)
    network.layer_runner.is_enabled = False  # modules run, as on a GPU
    network.model.train()
    items = Labels(3).encode(CASES["mixed lengths"], None, network.text_tokenizer)
    batch = collate(items, np.arange(len(items)), CPU, torch.float32)
    assert len(batch.layout.runs) > 4
    network.logits(batch).sum().backward()
    assert calls == [(8, 2, 16, 16)] * 3
    assert len(batch.layout.padding.masks) == 1
    network.logits(collate(items, np.array([1, 4]), CPU, torch.float32))
    assert calls[3:] == []  # rows of one length need no padding


def test_dropout_of_padded_rows_keeps_the_mean(calls: list[torch.Size]) -> None:
    layout = layout_of(MIXED)
    states = random_states(6, sum(MIXED), torch.float32).chunk(3, dim=1)
    want, _ = packed.attention(torch.nn.Module(), *states, layout=layout)
    with seeded(0, CPU):
        draws = [
            packed.attention(torch.nn.Module(), *states, layout=layout, dropout=0.25)[0]
            for _ in range(1000)
        ]
    assert len(calls) == 1001
    assert (draws[0] - draws[1]).abs().max() > 0.1
    torch.testing.assert_close(torch.stack(draws).mean(dim=0), want, rtol=0, atol=0.15)


@pytest.mark.parametrize("length", [5, 70, 130])
def test_dropout_keeps_the_mean_of_the_attention(length: int) -> None:
    layout = layout_of([length] * 40)
    q = k = torch.zeros(1, 2, 40 * length, 4)
    v = torch.ones(1, 2, 40 * length, 4)  # without dropout everything would be 1
    with seeded(0, CPU):
        out, _ = packed.attention(torch.nn.Module(), q, k, v, layout=layout, dropout=0.25)
    assert (out - 1).abs().max() > 0.1
    assert out.mean().item() == pytest.approx(1.0, abs=0.05)


@given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=6))
def test_poolings_and_their_gradients(lengths: list[int]) -> None:
    layout = layout_of(lengths)
    hidden = torch.randn(
        sum(lengths), 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    ).requires_grad_()
    rows = hidden.split(layout.lengths.tolist())
    wanted = {
        "cls": torch.stack([row[0] for row in rows]),
        "mean": torch.stack([row.mean(dim=0) for row in rows]),
        "max": torch.stack([row.max(dim=0).values for row in rows]),
    }
    for how, want in wanted.items():
        got = pool(hidden, layout, how)
        torch.testing.assert_close(got, want)
        slopes = torch.arange(got.numel(), dtype=torch.float64).view_as(got)
        (got_gradient,) = torch.autograd.grad((got * slopes).sum(), hidden, retain_graph=True)
        (want_gradient,) = torch.autograd.grad((want * slopes).sum(), hidden, retain_graph=True)
        torch.testing.assert_close(got_gradient, want_gradient)


# --- on a GPU ------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_a_gpu_agrees_with_transformers_there(tiny_model: Path, name: str) -> None:
    network = open_model(tiny_model, n_outputs=3)
    network.to(GPU, torch.float64)
    got, got_gradients, want, want_gradients = both_ways(network, CASES[name], "eager")
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)
    assert_all_close(got_gradients, want_gradients, 1e-10)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gpu_drops_weights_of_rows_of_different_lengths_in_one_call(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(3, 1, 2, sum(MIXED), 16, generator=generator)
    want, _ = packed.attention(torch.nn.Module(), *states, layout=layout_of(MIXED))
    leaves = [x.to(GPU, dtype).requires_grad_() for x in states]
    layout = layout_of(MIXED, GPU)

    def drawn() -> torch.Tensor:
        out, _ = packed.attention(torch.nn.Module(), *leaves, layout=layout, dropout=0.25)
        return out

    with seeded(0, GPU):
        drawn()
        with without_waiting():
            draws = torch.stack([drawn() for _ in range(500)]).float()
    draws.sum().backward()
    torch.testing.assert_close(draws.mean(dim=0).cpu(), want, rtol=0, atol=0.2)
    assert all(leaf.grad is not None and leaf.grad.isfinite().all() for leaf in leaves)


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_flash_attention_in_bfloat16_stays_near(minilm: Path, name: str) -> None:
    network = open_model(minilm)
    items = Labels().encode(CASES[name], None, network.text_tokenizer)

    def read(device: torch.device, precision: str) -> dict[str, torch.Tensor]:
        network.to(device, torch.float32)
        batch = collate(items, np.arange(len(items)), device, torch.float32)
        found = {}
        for network.pooling in ("pooler", "cls", "mean", "max"):
            with torch.no_grad(), Precision(precision, device).autocast():
                found[network.pooling] = network.features(batch).float().cpu()
        return found

    want, got = read(CPU, "float32"), read(GPU, "bfloat16")
    for pooling, features in want.items():
        scale = max(1.0, float(features.abs().max()))
        torch.testing.assert_close(got[pooling], features, rtol=0, atol=3e-2 * scale)
