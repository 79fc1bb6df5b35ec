"""Layers that normalise what they read, beside transformers' modules whose weights they read.

That outputs and gradients of every head are those of transformers is in `test_every_family`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
import transformers
from support.families import tiny_of
from support.networks import CPU, GPU, assert_all_close, gradients

from skbert._core.batches import collate
from skbert._core.cpu import prenorm
from skbert._core.cpu.bindings import module
from skbert._core.cpu.layers import can_compute
from skbert._core.families.modernbert import MODERNBERT
from skbert._core.items import Head, Items
from skbert._core.models.network import can_pack
from skbert._core.models.opening import network_of
from skbert._core.runtime.device import Precision, seeded
from skbert._core.text.tokens import Ragged, TokenTable

if TYPE_CHECKING:
    from skbert._core.models.network import Network
    from skbert._core.task import Batch

pytestmark = pytest.mark.usefixtures("any_way")

LENGTHS = np.array([5, 70, 3, 3, 12, 130])
# Heads of 32 and hidden states in multiples of 64 are what the kernels compute.
WIDE = {
    "hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 96,
    "local_attention": 16, "max_position_embeddings": 256,
}  # fmt: skip


def open_tiny(dtype: torch.dtype = torch.float32, **settings: Any) -> Network:
    model = tiny_of(MODERNBERT, "embedding", **WIDE | settings).to(dtype)
    names = enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    tokenizer = transformers.BertTokenizer(vocab={name: i for i, name in names})
    return network_of(model, tokenizer, Head("embedding", 0, reads="rows"), "mean")


def batch_for(network: Network, lengths: Any = LENGTHS) -> Batch:
    lengths = np.asarray(lengths)
    ids = np.random.default_rng(0).integers(5, 60, lengths.sum()).astype(np.int32)
    every = np.arange(len(lengths))
    table = TokenTable(Ragged.of(ids, lengths), lengths)
    items = Items(table, np.arange(len(lengths) + 1), every, np.ones(len(lengths)))
    return collate(items, every, network.device, network.dtype)


def by_modules(network: Network) -> Network:
    network.layer_runner.is_enabled = False
    return network


def trained(network: Network, batch: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    hidden = network.hidden(batch)
    slopes = torch.arange(hidden.numel()).sin().view_as(hidden).to(hidden.device)
    (hidden * slopes).sum().backward()  # type: ignore[no-untyped-call]
    return hidden.detach(), gradients(network.model)


SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "with biases": {"norm_bias": True, "attention_bias": True, "mlp_bias": True},
    "another activation": {"hidden_activation": "silu"},
    "whole layers only": {"layer_types": ["full_attention"] * 3},
    "local layers only": {"layer_types": ["sliding_attention"] * 3},
    "heads that no kernel turns": {"num_attention_heads": 4},
    "other angles": {
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 3.0, "rope_theta": 500.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 70.0},
        }
    },
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize(
    ("dtype", "near"), [(torch.float64, 1e-9), (torch.float32, 1e-5)], ids=["64", "32"]
)
def test_hidden_states_and_gradients_are_those_of_the_modules(
    settings: dict[str, Any], dtype: torch.dtype, near: float
) -> None:
    ours, theirs = open_tiny(dtype, **settings), by_modules(open_tiny(dtype, **settings))
    batch = batch_for(ours)
    hidden, own_gradients = trained(ours, batch)
    assert ours.layer_runner.products
    expected, right_gradients = trained(theirs, batch)
    assert not theirs.layer_runner.products
    torch.testing.assert_close(hidden, expected, rtol=near, atol=near * 4)
    assert_all_close(own_gradients, right_gradients, near * 4)
    with torch.no_grad():
        inferred = ours.hidden(batch)
    torch.testing.assert_close(inferred, expected, rtol=near, atol=near * 4)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_gpu_gives_the_same(precision: str) -> None:
    network = open_tiny()
    want, right_gradients = trained(network, batch_for(network))
    network.model.zero_grad()
    network.to(GPU, torch.float32)
    with Precision(precision, GPU).autocast():
        got, own_gradients = trained(network, batch_for(network))
        with torch.no_grad():
            inferred = network.hidden(batch_for(network))
    near = {"float32": 1e-3, "bfloat16": 5e-2}[precision]
    for hidden in (got, inferred):
        torch.testing.assert_close(hidden.cpu(), want, rtol=near, atol=near)
    for name, right in right_gradients.items():
        error = (own_gradients[name].cpu() - right).norm()
        assert error <= near * right.norm() + near, name


def test_layers_in_int8_are_near_those_in_float32() -> None:
    if not module.has_int8_products():
        pytest.skip("needs a processor that multiplies int8")
    network = open_tiny()
    batch = batch_for(network)
    with torch.inference_mode():
        exact = network.hidden(batch)
        with Precision("int8", CPU).autocast():
            found = network.hidden(batch)
    assert not torch.equal(found, exact)
    assert float((found - exact).norm() / exact.norm()) < 0.1


@pytest.mark.parametrize("read", [(0, 1), (1, 3), (2,), (0,)], ids=str)
def test_hidden_states_of_any_layer_are_those_of_the_modules(read: tuple[int, ...]) -> None:
    ours, theirs = open_tiny(torch.float64), by_modules(open_tiny(torch.float64))
    ours.layers = theirs.layers = read
    batch = batch_for(ours)
    torch.testing.assert_close(ours.hidden(batch), theirs.hidden(batch), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("settings", [SETTINGS["plain"], SETTINGS["with biases"]], ids=str)
def test_lower_precision_stays_near(settings: dict[str, Any]) -> None:
    ours, exact = open_tiny(**settings), by_modules(open_tiny(torch.float64, **settings))
    batch = batch_for(ours)
    with Precision("bfloat16", CPU).autocast():
        hidden, own_gradients = trained(ours, batch)
        with torch.inference_mode():
            inferred = ours.hidden(batch)
    expected, right_gradients = trained(exact, batch)
    assert hidden.dtype == inferred.dtype == torch.float32
    for found in (hidden, inferred):
        cosine = torch.cosine_similarity(found.double(), expected)
        assert cosine.min() > 0.995
        assert cosine.mean() > 0.9995
    assert own_gradients.keys() == right_gradients.keys()
    for name, want in right_gradients.items():
        assert (own_gradients[name] - want).norm() <= 0.06 * want.norm(), name


@pytest.mark.parametrize("where", ["attention_dropout", "mlp_dropout"])
def test_dropout_is_drawn_in_training_and_has_its_gradient(where: str) -> None:
    network = open_tiny(torch.float64, **{where: 0.5})
    network.model.train()
    batch = batch_for(network, [5, 20])
    weight = network.model.get_parameter("layers.0.mlp.Wi.weight")

    def loss(seed: int) -> torch.Tensor:
        with seeded(seed, CPU):
            return network.hidden(batch).square().sum()

    assert not torch.equal(loss(0), loss(1))
    assert torch.equal(loss(0), loss(0))
    loss(0).backward()  # type: ignore[no-untyped-call]
    assert weight.grad is not None
    direction = torch.randn(weight.shape, generator=torch.Generator().manual_seed(0)).double()
    slope = (weight.grad * direction).sum()
    start, ends = weight.detach().clone(), []
    for step in (2e-4, -2e-4):  # angles are turned in float32
        weight.data = start + step * direction
        ends.append(loss(0).detach())
    torch.testing.assert_close((ends[0] - ends[1]) / 4e-4, slope, rtol=1e-3, atol=2e-3)
    network.model.eval()
    assert torch.equal(loss(0), loss(1))


@pytest.mark.usefixtures("no_gpu_way")
def test_dropout_keeps_the_mean() -> None:
    network = open_tiny(attention_dropout=0.1, mlp_dropout=0.1)
    batch = batch_for(network, [9, 40])
    with torch.no_grad():
        right = network.hidden(batch)
        network.model.train()
        drawn = [network.hidden(batch) for _ in range(200)]
    mean = torch.stack(drawn).mean(0)
    assert not torch.equal(drawn[0], right)
    assert torch.cosine_similarity(mean, right).mean() > 0.97


def test_gradient_checkpointing_changes_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    found, n_run = [], []
    run_layer = prenorm._run_layer
    monkeypatch.setattr(
        prenorm, "_run_layer", lambda *args: n_run.append(1) or run_layer(*args)
    )  # fmt: skip
    for checkpointing in (False, True):
        network = open_tiny(torch.float64, mlp_dropout=0.3, attention_dropout=0.3)
        network.model.train()
        for layer in network.model.layers:
            layer.gradient_checkpointing = checkpointing
        n_run.clear()
        with seeded(0, CPU):
            found.append(trained(network, batch_for(network)))
        assert len(n_run) == (6 if checkpointing else 3)
    torch.testing.assert_close(found[1][0], found[0][0], rtol=1e-10, atol=1e-10)
    assert_all_close(found[1][1], found[0][1], 1e-10)


def test_frozen_layers_get_no_gradient() -> None:
    network, other = open_tiny(torch.float64), open_tiny(torch.float64)
    network.model.embeddings.requires_grad_(False)
    network.model.layers[0].requires_grad_(False)
    batch = batch_for(network)
    own, whole = trained(network, batch)[1], trained(other, batch)[1]
    assert not [name for name in own if name.startswith(("embeddings", "layers.0."))]
    assert_all_close(own, {name: whole[name] for name in own}, 1e-10)


def test_weights_whose_sizes_do_not_belong_together_are_not_computed() -> None:
    network = open_tiny()
    layers = network.model.layers
    assert can_pack(network)
    assert all(can_compute(MODERNBERT, layer) for layer in layers)
    layers[0].mlp.Wi.weight.data = layers[0].mlp.Wi.weight.data[:-1]
    layers[1].attn.Wqkv.bias = torch.nn.Parameter(torch.zeros(3))
    layers[2].attn_norm = torch.nn.Linear(64, 64)
    assert not any(can_compute(MODERNBERT, layer) for layer in layers)


def test_a_long_row_is_read_whole() -> None:
    network = open_tiny(max_position_embeddings=1024)
    batch = batch_for(network, [1000])
    hidden = network.hidden(batch).detach()
    expected = by_modules(open_tiny(max_position_embeddings=1024)).hidden(batch).detach()
    torch.testing.assert_close(hidden, expected, rtol=1e-4, atol=1e-4)
