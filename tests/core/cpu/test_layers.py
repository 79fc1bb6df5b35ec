"""The layers of its own that skbert runs on a CPU: as transformers' modules, in fewer steps.

That outputs and gradients are those of transformers' own padded models is in `test_packed`; here
the layers stand beside the modules whose weights they read.
"""

from __future__ import annotations

import copy
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.networks import (
    CPU,
    Case,
    Labels,
    assert_all_close,
    gradients,
    layout_of,
    open_model,
    sentences,
)
from support.training import make_items
from torch.nn import functional as F

from skbert._core.attention.packed import within_rows
from skbert._core.attention.pruned import prune
from skbert._core.attention.settings import AttentionSettings
from skbert._core.batches import collate
from skbert._core.checkpoints.vet import vet
from skbert._core.cpu.attention import (
    _SPARE_SCORES,
    _group_rows,
    _GroupedAttention,
    dropout_mask,
)
from skbert._core.cpu.fused import max_packed_tokens
from skbert._core.cpu.linear import ProductCache
from skbert._core.cpu.training_linear import Bf16State
from skbert._core.families.bert import BERT
from skbert._core.gpu import operations
from skbert._core.items import Head
from skbert._core.models.network import inference_network
from skbert._core.models.opening import open_network
from skbert._core.runtime.device import Precision, seeded
from skbert._core.training.loop import TrainingLoop
from skbert._core.training.optim import adamw
from skbert._core.training.recipe import Recipe

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from skbert._core.models.network import Network
    from skbert._core.task import Batch

pytestmark = pytest.mark.usefixtures("any_way")

LENGTHS = [5, 3, 3, 70, 12, 1, 64]
WEIGHT = "bert.encoder.layer.0.intermediate.dense.weight"


def batch_for(network: Network, lengths: list[int] = LENGTHS) -> Batch:
    items = Labels().encode(Case(sentences(lengths)), None, network.text_tokenizer)
    return collate(items, np.arange(len(items)), CPU, network.dtype)


def by_modules(network: Network) -> Network:
    """The same network, its layers run by their modules."""
    network.layer_runner.is_enabled = False
    return network


def with_biases(network: Network) -> None:
    """Biases of the layers as after learning, in the precision that they have."""
    generator = torch.Generator().manual_seed(0)
    for name, weight in network.model.named_parameters():
        if "encoder" in name and name.endswith("bias"):
            noise = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
            weight.data += 0.1 * noise.to(weight.dtype)


def logits(network: Network, precision: str = "float64") -> torch.Tensor:
    with torch.inference_mode(), Precision(precision, CPU).autocast():
        return network.logits(batch_for(network))


# --- beside the modules --------------------------------------------------------------------------


def causal(folder: Path) -> Network:
    head = Head("causal language modelling", 0, "selected tokens", fresh=False)
    with seeded(0, CPU):
        return open_network(vet(folder), head, dtype=torch.float64)


def lacking_heads(folder: Path) -> Network:
    network = open_model(folder, dtype=torch.float64)
    prune(network.model, {0: [1], 1: [0, 2]})
    return network


def with_frozen_layer(folder: Path) -> Network:
    network = open_model(folder, dtype=torch.float64)
    network.model.bert.embeddings.requires_grad_(False)
    network.model.bert.encoder.layer[0].requires_grad_(False)
    return network


def reading_hidden_states(folder: Path) -> Network:
    network = open_model(folder, dtype=torch.float64)
    network.layers = (0, 1)
    return network


MODELS: dict[str, Callable[[Path], Network]] = {
    "plain": lambda folder: open_model(folder, dtype=torch.float64),
    "causal": causal,
    "lacking heads": lacking_heads,
    "with a frozen layer": with_frozen_layer,
    "reading hidden states": reading_hidden_states,
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_hidden_states_and_gradients_are_those_of_the_modules(
    make_tiny_model: Callable[..., Path], name: str, activation: str
) -> None:
    folder = make_tiny_model(hidden_act=activation, num_attention_heads=4)
    found = []
    for network in (MODELS[name](folder), by_modules(MODELS[name](folder))):
        with_biases(network)
        hidden = network.hidden(batch_for(network))
        hidden.square().sum().backward()
        with torch.no_grad():
            inferred = network.hidden(batch_for(network))
        found.append((hidden.detach(), inferred, gradients(network.model)))
    (ours, inferred, our_gradients), (theirs, _, their_gradients) = found
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(inferred, theirs, rtol=1e-10, atol=1e-10)
    assert_all_close(our_gradients, their_gradients, 1e-10)


@pytest.mark.parametrize("name", ["plain", "lacking heads", "with a frozen layer"])
@pytest.mark.parametrize("activation", ["gelu", "relu"])
@pytest.mark.parametrize("chunk_size", [0, 30])
def test_gradients_in_lower_precision_stay_near(
    make_tiny_model: Callable[..., Path], name: str, activation: str, chunk_size: int
) -> None:
    how = {"hidden_act": activation, "chunk_size_feed_forward": chunk_size}
    folder = make_tiny_model(num_attention_heads=4, **how)
    network, exact = MODELS[name](folder), by_modules(MODELS[name](folder))
    network.model.float()
    for own in (network, exact):
        with_biases(own)
        with torch.autocast("cpu", torch.bfloat16, enabled=own is network):
            hidden = own.hidden(batch_for(own))
        hidden.square().mul(torch.arange(hidden.shape[1])).sum().backward()
    found, expected = gradients(network.model), gradients(exact.model)
    assert found.keys() == expected.keys()
    floor = 1e-3 * max(want.norm() for want in expected.values())  # keys' biases have none
    for key, want in expected.items():
        assert (found[key] - want).norm() <= 0.02 * want.norm() + floor, key


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_in_lower_precision_they_stay_near(minilm: Path, precision: str) -> None:
    if precision == "bfloat16" and operations.is_on_gpu(torch.empty(0)):
        pytest.skip("Triton's interpreter has no products in bfloat16")
    network = open_model(minilm)
    with torch.inference_mode():
        want = network.hidden(batch_for(network))
        with Precision(precision, CPU).autocast():
            got = network.hidden(batch_for(network))
    assert got.dtype == torch.float32
    assert torch.equal(got, want) == (precision == "float32")
    cosine = torch.cosine_similarity(got, want)
    assert cosine.min() >= 0.9995
    assert (got - want).abs().max() < 3e-2


def test_without_onednn_they_compute_the_same(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_it = logits(open_model(tiny_model), "float32")
    monkeypatch.setattr("skbert._core.cpu.inference._can_use_onednn", lambda dtype: False)
    torch.testing.assert_close(logits(open_model(tiny_model), "float32"), with_it)


@pytest.mark.usefixtures("no_gpu_way")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_few_sizes_are_computed_without_gradients(
    dtype: torch.dtype, make_tiny_model: Callable[..., Path]
) -> None:
    network = open_model(make_tiny_model(hidden_act="relu"), dtype=dtype)
    sizes = set[int]()
    activation = network.model.bert.encoder.layer[0].intermediate.intermediate_act_fn
    activation.register_forward_hook(lambda module, args, out: sizes.add(len(out)))
    for n_tokens in range(90, 129):
        with torch.inference_mode():
            assert len(network.hidden(batch_for(network, [n_tokens - 68, 64]))) == n_tokens
    onednn = dtype == torch.float32 and not max_packed_tokens(32, 32, dtype)
    assert sizes == ({*range(92, 129, 4)} if onednn else {*range(90, 129)})


@pytest.mark.usefixtures("no_gpu_way")
def test_feed_forward_layers_may_be_computed_in_chunks(
    make_tiny_model: Callable[..., Path],
) -> None:
    sizes: list[int] = []
    found, on_the_way = [], []
    for chunk_size in (0, 30, 1):
        network = open_model(make_tiny_model(chunk_size_feed_forward=chunk_size))
        wide = network.model.bert.encoder.layer[0].intermediate.intermediate_act_fn
        wide.register_forward_hook(lambda module, args, out: sizes.append(len(out)))
        sizes.clear()
        hidden = network.hidden(batch_for(network))
        on_the_way.append([*sizes])
        hidden.square().sum().backward()
        found.append((hidden.detach(), gradients(network.model)))
        network.layer_runner.is_enabled = False  # whose chunks would all have to be full
        torch.testing.assert_close(network.hidden(batch_for(network)), hidden)
    n_tokens = len(found[0][0])
    n_computed = n_tokens + -n_tokens % 16
    whole = [len(part) for part in torch.zeros(n_computed).split(30)]
    assert on_the_way == [[n_computed], whole, [1] * n_computed]
    for hidden, own_gradients in found[1:]:
        torch.testing.assert_close(hidden, found[0][0], rtol=1e-5, atol=1e-5)
        assert_all_close(own_gradients, found[0][1], 1e-4)


def test_gradients_add_up_in_memory_that_is_used_again(tiny_model: Path) -> None:
    network = open_model(tiny_model)
    weight = network.model.get_parameter(WEIGHT)

    def gradient(times: int) -> torch.Tensor:
        network.model.zero_grad()
        for _ in range(times):
            network.logits(batch_for(network)).square().sum().backward()
        assert weight.grad is not None
        return weight.grad

    once = gradient(1)
    address, value = once.data_ptr(), once.clone()
    torch.testing.assert_close(gradient(2), 2 * value)
    torch.testing.assert_close(gradient(3), 3 * value)
    assert [gradient(times).data_ptr() for times in (1, 2, 3)] == [address] * 3


def test_gradients_may_stay_in_the_precision_of_products(tiny_model: Path) -> None:
    network, low = open_model(tiny_model), dict[torch.Tensor, torch.Tensor]()
    weight = network.model.get_parameter(WEIGHT)

    def gradient(times: int) -> torch.Tensor:
        weight.grad = None
        low.clear()
        for _ in range(times):
            with torch.autocast("cpu", torch.bfloat16):
                loss = network.logits(batch_for(network)).square().sum()
            loss.backward()
        return weight.grad if weight.grad is not None else low[weight]

    whole = gradient(1).clone()
    assert whole.dtype == torch.float32
    network.layer_runner.reset(Bf16State(low, {}))
    assert gradient(1) is low[weight]
    assert low[weight].dtype == torch.bfloat16
    assert torch.equal(low[weight].float(), whole)
    assert gradient(3).dtype == torch.float32  # sums are not rounded again
    assert torch.equal(gradient(3), 3 * whole)
    assert weight not in low
    network.layer_runner.reset()
    assert torch.equal(gradient(1), whole)


def test_gradients_in_the_precision_of_products_keep_no_memory(tiny_model: Path) -> None:
    network, low = open_model(tiny_model), dict[torch.Tensor, torch.Tensor]()
    network.layer_runner.reset(Bf16State(low, {}))
    with torch.autocast("cpu", torch.bfloat16):
        loss = network.logits(batch_for(network)).square().sum()
    loss.backward()
    whole = weakref.ref(low[network.model.get_parameter(WEIGHT)]._base)
    assert whole() is not None
    low.clear()
    if operations.is_on_gpu(loss):  # where graphs write to the same memory each time
        assert whole() is not None
        network.layer_runner.reset()
        del loss
    assert whole() is None


def test_steps_keep_copies_of_weights_up(tiny_model: Path) -> None:
    network, fresh = open_model(tiny_model), open_model(tiny_model)
    weight, other = (each.model.get_parameter(WEIGHT) for each in (network, fresh))
    optimizer = adamw([{"params": [*network.model.parameters()], "lr": 0.1}], weight.device)
    network.layer_runner.reset(optimizer.bf16_state)
    tolerance = 1e-2 if operations.is_on_gpu(weight) else 0  # the interpreter cuts digits off

    def loss_of(each: Network) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return each.logits(batch_for(each)).square().sum()

    for change in (lambda: None, lambda: in_place(weight)):
        optimizer.zero_grad()
        loss_of(network).backward()
        optimizer.step()
        change()
        fresh.model.load_state_dict(network.model.state_dict())
        fresh.layer_runner.reset()
        torch.testing.assert_close(loss_of(network), loss_of(fresh), rtol=tolerance, atol=0)
    assert torch.equal(weight, other)


# --- what is kept of the weights -----------------------------------------------------------------


def by_fused_optimizer(weight: torch.nn.Parameter) -> None:
    weight.grad = weight.detach().clone()
    torch.optim.AdamW([weight], lr=0.1, fused=True).step()


def in_place(weight: torch.nn.Parameter) -> None:
    with torch.no_grad():
        weight[-1] *= 3.0  # a sum would have no effect on what is normalised


def by_other_memory(weight: torch.nn.Parameter) -> None:
    weight.data = weight.data + 1.0


def of_few_rows(weight: torch.nn.Parameter) -> None:
    weight.grad = torch.zeros_like(weight)
    weight.grad[3] = 1.0
    torch.optim.AdamW([weight], lr=9.0, weight_decay=0.0, fused=True).step()


def by_data(weight: torch.nn.Parameter) -> None:
    weight.data[1, 1] += 1.0


CHANGES = [by_fused_optimizer, in_place, by_other_memory, of_few_rows, by_data]
COUNTED = [in_place, by_other_memory]  # by torch, or seen in where the weights are


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_changed_weight_is_read_again(
    tiny_model: Path, change: Callable[[torch.nn.Parameter], None], precision: str
) -> None:
    network = open_model(tiny_model)
    before = logits(network, precision)
    change(network.hand_out().get_parameter(WEIGHT))
    after = logits(inference_network(network), precision)
    assert not torch.equal(after, before)
    network.layer_runner.reset()
    assert torch.equal(logits(network, precision), after)


def test_weights_are_laid_out_once(tiny_model: Path) -> None:
    network = open_model(tiny_model)
    products = ProductCache(BERT.layer_parts(network.model.bert.encoder.layer[0]))
    first = products(torch.float32, training=False)
    assert products(torch.float32, training=False).qkv is first.qkv
    assert products(torch.bfloat16, training=False).qkv is not first.qkv


def test_training_reads_weights_of_its_precision_where_they_are(tiny_model: Path) -> None:
    network = open_model(tiny_model)
    layer = network.model.bert.encoder.layer[0]
    products = ProductCache(BERT.layer_parts(layer))(torch.float32, training=True)
    x = torch.randn(3, layer.attention.output.dense.in_features)
    before = products.attention_out(x)
    by_data(layer.attention.output.dense.weight)
    assert not torch.equal(products.attention_out(x), before)


@pytest.mark.parametrize("change", COUNTED)
def test_few_tokens_see_a_changed_weight(
    tiny_model: Path, change: Callable[[torch.nn.Parameter], None]
) -> None:
    network = open_model(tiny_model)
    products = ProductCache(BERT.layer_parts(network.model.bert.encoder.layer[0]))
    layer = network.model.bert.encoder.layer[0].attention.output.dense
    torch.manual_seed(0)
    x = torch.randn(3, layer.in_features).bfloat16()
    for _ in range(2):
        found = products(torch.bfloat16, training=False).attention_out(x)
        expected = F.linear(x, layer.weight.bfloat16(), layer.bias.bfloat16())
        torch.testing.assert_close(found, expected)
        change(layer.weight)


def test_nothing_is_kept_after_training_and_in_a_copy(tiny_model: Path) -> None:
    network = open_model(tiny_model)
    logits(network, "float32")
    assert network.layer_runner.products
    assert copy.deepcopy(network).layer_runner.products == {}
    recipe = Recipe(epochs=1)
    list(
        TrainingLoop(network, Labels(), make_items(network), recipe, Precision("float32", CPU), 0)
    )
    assert network.layer_runner.products == {}


# --- groups, attention and dropout by themselves -------------------------------------------------


@given(st.lists(st.integers(1, 90), min_size=1, max_size=12).map(sorted))
def test_every_row_is_in_one_group_which_wastes_little(lengths: list[int]) -> None:
    groups = _group_rows(np.array(lengths))
    tokens = [at for group in groups for at in range(group.tokens.start, group.tokens.stop)]
    assert sorted(tokens) == list(range(sum(lengths)))
    assert sum(group.n_rows for group in groups) == len(lengths)
    spent = sum(group.n_rows * group.max_seqlen**2 for group in groups)
    single = sum(group.max_seqlen**2 for group in groups if group.n_rows == 1)
    assert spent - single - sum(n**2 for n in lengths) <= _SPARE_SCORES * len(groups)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6).map(sorted))
def test_what_is_padded_is_picked_again(lengths: list[int]) -> None:
    (group,) = _group_rows(np.array(lengths))
    values = torch.arange(1.0, sum(lengths) + 1)[:, None]
    padded = group.pad(values)
    assert len(padded) == len(lengths) * -(-max(lengths) // 4) * 4
    assert padded.sum() == values.sum()
    assert torch.equal(group.unpad(padded), values)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lengths", [[1], [4], [4, 4], [1, 2, 5, 5], [3, 60, 70]], ids=str)
def test_attention_and_its_gradient_in_groups_are_those_in_runs(
    lengths: list[int], causal: bool
) -> None:
    n_heads, size = 3, 4
    generator = torch.Generator().manual_seed(len(lengths))
    shape = (sum(lengths), 3 * n_heads * size)
    qkv = torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)
    slopes = torch.randn(len(qkv), n_heads * size, generator=generator, dtype=torch.float64)
    got: Any = _GroupedAttention.apply(
        qkv, _group_rows(np.array(lengths)), AttentionSettings(size, 0.3, causal, 0.0)
    )
    q, k, v = qkv.view(len(qkv), 3, n_heads, size).unbind(1)
    module = torch.nn.Module()
    module.is_causal = causal  # type: ignore[assignment]
    want = within_rows(module, q, k, v, layout_of(lengths).runs, scaling=0.3).flatten(1)
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)
    (got_gradient,) = torch.autograd.grad((got * slopes).sum(), qkv)
    (want_gradient,) = torch.autograd.grad((want * slopes).sum(), qkv)
    torch.testing.assert_close(got_gradient, want_gradient, rtol=1e-10, atol=1e-10)


def test_attention_with_dropout_has_the_gradient_of_what_it_computed() -> None:
    groups = _group_rows(np.array([2, 3, 3]))
    qkv = torch.randn(
        8, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True
    )

    def attention(x: torch.Tensor) -> Any:
        with seeded(0, CPU):  # the same places are dropped at each call
            return _GroupedAttention.apply(x, groups, AttentionSettings(2, 0.7, False, 0.5))

    assert torch.autograd.gradcheck(attention, (qkv,))


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9, 1.0])
def test_dropout_keeps_its_share_and_the_mean(rate: float) -> None:
    with seeded(0, CPU):
        kept = dropout_mask(torch.empty(1000, 201), rate)
    values = kept.unique()
    assert len(values) == 2
    assert values[0] == 0.0
    if rate < 1.0:
        assert (kept == 0).float().mean().item() == pytest.approx(rate, abs=0.005)
        assert kept.mean().item() == pytest.approx(1.0, abs=0.02)
    else:
        assert (kept == 0).float().mean() > 0.999


def test_neighbours_are_dropped_independently() -> None:
    with seeded(0, CPU):
        dropped = (dropout_mask(torch.empty(400_000), 0.5) == 0).float()
    for lag in (1, 2, 3, 4, 5, 8):
        together = (dropped[lag:] * dropped[:-lag]).mean().item()
        assert together == pytest.approx(0.25, abs=0.005)
    lanes = dropped.view(-1, 4).mean(dim=0)  # of one draw of the generator
    torch.testing.assert_close(lanes, torch.full((4,), 0.5), rtol=0, atol=0.01)
