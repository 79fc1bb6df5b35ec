"""All layers in one call: the same as layer by layer, and only where kernels do all of it."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from support.networks import (
    CPU,
    Labels,
    chunk,
    open_model,
    record_kernels,
    sentences,
    with_relu,
)
from torch.nn import functional as F

from skbert._core.attention.settings import AttentionSettings
from skbert._core.batches import collate
from skbert._core.cpu import fused, whole
from skbert._core.cpu.bindings import module
from skbert._core.cpu.bindings.attention import PackedRows
from skbert._core.cpu.bindings.encoder import (
    EncoderLayer,
    EncoderNorm,
    EncoderWeights,
    encoder_forward,
)
from skbert._core.cpu.bindings.gemm_bf16 import PackedWeights
from skbert._core.cpu.bindings.gemm_float32 import Float32Weights
from skbert._core.cpu.bindings.gemm_int8 import Int8Weights
from skbert._core.runtime.device import Precision

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from skbert._core.models.network import Network

pytestmark = [
    pytest.mark.skipif(module.kernels is None, reason="built without a compiler"),
    pytest.mark.usefixtures("either_amx"),
]
needs_bf16 = pytest.mark.skipif(
    not module.has_bf16_products(), reason="needs a processor that multiplies bfloat16"
)
needs_int8 = pytest.mark.skipif(
    not module.has_int8_products(), reason="needs a processor that multiplies int8"
)

PRODUCTS = {"float32": "linear_float32", "bfloat16": "linear_forward", "int8": "int8_linears"}
ONE = [9]
SOME = [5, 3, 3, 12, 1, 40]
MANY = [50, 9, 1, 64, 30] * 20  # of which threads take groups
LONG = [380, 500]  # one for each of two threads


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the kernels that are called, one after another."""
    names = (*PRODUCTS.values(), "encoder_forward", "layernorm_forward")
    return record_kernels(monkeypatch, names)


def states(network: Network, lengths: list[int], precision: str) -> torch.Tensor:
    """Hidden states after all layers, side by side."""
    items = Labels().encode((sentences(lengths), None), None, network.text_tokenizer)
    batch = collate(items, np.arange(len(items)), CPU, network.dtype)
    network.layers = tuple(range(1, network.model.config.num_hidden_layers + 1))
    network.layer_join = "concat"
    with torch.inference_mode(), Precision(precision, CPU).autocast():
        return network.hidden(batch)


def one_by_one(monkeypatch: pytest.MonkeyPatch, *arguments: Any) -> torch.Tensor:
    with monkeypatch.context() as patch:
        patch.setattr(whole.WholeEncoder, "repeat", lambda *_: None)
        patch.setattr(whole.WholeEncoder, "__call__", lambda *_: None)
        return states(*arguments)


PRECISIONS = pytest.mark.parametrize(
    "precision",
    [
        "float32",
        pytest.param("bfloat16", marks=needs_bf16),
        pytest.param("int8", marks=needs_int8),
    ],
)


@PRECISIONS
@pytest.mark.parametrize(
    "lengths", [ONE, [1], SOME, MANY, LONG, [900]],
    ids=["one", "a word", "some", "many", "two long", "one long"],
)  # fmt: skip
@pytest.mark.parametrize("changes", [{}, {"num_attention_heads": 1, "hidden_size": 64}], ids=str)
def test_they_are_as_layer_by_layer(
    make_tiny_model: Callable[..., Path],
    changes: dict[str, int],
    lengths: list[int],
    precision: str,
    called: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network = open_model(make_tiny_model(max_position_embeddings=1024, **changes))
    for layer in network.model.bert.encoder.layer:
        for norm in (layer.attention.output.LayerNorm, layer.output.LayerNorm):
            norm.weight.data[3] = 40  # so that there are outliers
    expected = one_by_one(monkeypatch, network, lengths, precision)
    assert "encoder_forward" not in called
    n_calls = len(called)
    assert torch.equal(states(network, lengths, precision), expected)
    assert called[n_calls:].count("encoder_forward") == 1
    # Of the layers; embeddings are normalised before them.
    assert set(called[n_calls:]) <= {"encoder_forward", "layernorm_forward"}


@PRECISIONS
def test_changed_weights_are_read(
    tiny_model: Path, precision: str, called: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    network = open_model(tiny_model)
    before = states(network, ONE, precision)
    layer = network.model.bert.encoder.layer[1]
    changes: list[Callable[[], Any]] = [
        lambda: layer.output.dense.weight.data.copy_(layer.output.dense.weight * 2),
        lambda: layer.output.LayerNorm.bias.data.add_(1),
        lambda: setattr(layer.attention.output.LayerNorm, "eps", 0.5),
        lambda: setattr(layer.output.LayerNorm, "weight", torch.nn.Parameter(torch.rand(32))),
    ]
    for change in changes:
        change()
        with torch.no_grad():
            layer.output.dense.weight.add_(0)  # as an optimizer's step, which torch counts
        found = states(network, ONE, precision)
        assert not torch.equal(found, before)
        assert torch.equal(found, one_by_one(monkeypatch, network, ONE, precision))
        before = found
    assert called.count("encoder_forward") == len(changes) + 1


@PRECISIONS
def test_what_c_reads_is_kept_until_a_weight_changes(
    tiny_model: Path, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, made = open_model(tiny_model), []

    def make(layers: list[EncoderLayer]) -> EncoderWeights:
        made.append(len(layers))
        return EncoderWeights(layers)

    monkeypatch.setattr(whole, "EncoderWeights", make)
    dense = network.model.bert.encoder.layer[1].output.dense
    changes: list[Callable[[], object]] = [
        lambda: None,
        lambda: dense.bias.requires_grad_(False).add_(1),
        lambda: None,
        lambda: setattr(dense, "weight", torch.nn.Parameter(dense.weight.detach().clone())),
    ]
    counts = []
    for change in changes:
        change()
        states(network, ONE, precision)
        states(network, SOME, precision)
        counts.append(len(made))
    assert counts == [1, 2, 2, 3]


def drop(network: Network) -> None:
    """Let one module drop, as somebody who wants several predictions of a text does."""
    network.model.bert.encoder.layer[0].output.dropout.train()


@PRECISIONS
@pytest.mark.parametrize("change", [drop, chunk, with_relu])
def test_what_kernels_do_not_compute_runs_layer_by_layer(
    tiny_model: Path, change: Callable[[Network], None], precision: str, called: list[str]
) -> None:
    network = open_model(tiny_model)
    change(network)
    states(network, ONE, precision)
    assert "encoder_forward" not in called
    assert PRODUCTS[precision] in called


@PRECISIONS
def test_long_batches_of_layers_that_run_one_by_one(
    tiny_model: Path, precision: str, called: list[str]
) -> None:
    network = open_model(tiny_model)
    with_relu(network)
    states(network, [50] * 11, precision)
    assert "encoder_forward" not in called
    by_onednn = precision == "bfloat16" and fused.has_instructions("amx_bf16")
    assert (PRODUCTS[precision] in called) is not by_onednn


# --- the call ------------------------------------------------------------------------------------


def packed(kind: type, n_out: int, n_in: int, *, gelu: bool = False) -> Any:
    weight, bias = torch.randn(n_out, n_in) / n_in**0.5, torch.randn(n_out)
    if kind is PackedWeights:
        return PackedWeights(weight=weight.bfloat16(), bias=bias)
    if kind is Float32Weights:
        return Float32Weights(weight=weight, bias=bias)
    return Int8Weights(weight=weight, bias=bias, gelu=gelu, outliers=n_out > n_in)


def layer_of(kind: type, size: int = 64, mlp_size: int = 96) -> EncoderLayer:
    norm = EncoderNorm(torch.rand(size) + 0.5, torch.randn(size), 1e-5)
    shapes = (3 * size, size), (size, size), (mlp_size, size), (size, mlp_size)
    products = [packed(kind, *shape, gelu=number == 2) for number, shape in enumerate(shapes)]
    return EncoderLayer(products, [norm, norm])


def run(weights: EncoderWeights, **changes: Any) -> list[torch.Tensor]:
    arguments: dict[str, Any] = {
        "states": torch.linspace(-1, 1, 7 * 64).view(7, 64),
        "rows": PackedRows(torch.tensor([0, 3, 7], dtype=torch.int32)),
        "settings": AttentionSettings(32, 0.2, False, 0.0),
        "dtype": torch.float32 if weights.kind is Float32Weights else torch.bfloat16,
    }
    return encoder_forward(weights=weights, **{**arguments, **changes})


KINDS = pytest.mark.parametrize(
    "kind",
    [
        Float32Weights,
        pytest.param(PackedWeights, marks=needs_bf16),
        pytest.param(Int8Weights, marks=needs_int8),
    ],
)


@KINDS
@pytest.mark.parametrize("n_tokens", [1, 7, 1400])
def test_states_that_nobody_reads_are_left_out(kind: type, n_tokens: int) -> None:
    torch.manual_seed(0)
    weights = EncoderWeights([layer_of(kind) for _ in range(3)])
    begins = torch.arange(0, n_tokens + 1, 7 if n_tokens > 1 else 1, dtype=torch.int32)
    given = {"states": torch.randn(n_tokens, 64), "rows": PackedRows(begins)}
    every = run(weights, **given)
    for wanted in ([], [0], [2], [0, 2], [0, 1, 2]):
        found = run(weights, **given, wanted=wanted)
        assert [len(each) > 0 for each in found] == [number in wanted for number in range(3)]
        assert all(torch.equal(found[number], every[number]) for number in wanted)


@KINDS
def test_a_layer_is_as_torch_computes_it(kind: type) -> None:
    torch.manual_seed(0)
    layer = layer_of(kind)
    found = run(EncoderWeights([layer]))
    assert [each.shape for each in found] == [(7, 64)]
    norm = layer.norms[0]
    exact = F.layer_norm(torch.zeros(7, 64), (64,), norm.weight, norm.bias, norm.epsilon)
    assert not torch.equal(found[0], exact)
    for n_threads in (1, 2, 3):
        before = torch.get_num_threads()
        torch.set_num_threads(n_threads)
        assert torch.equal(run(EncoderWeights([layer]))[0], found[0])
        torch.set_num_threads(before)


@KINDS
def test_each_group_of_rows_is_as_alone(kind: type) -> None:
    torch.manual_seed(0)
    weights = EncoderWeights([layer_of(kind), layer_of(kind)])
    lengths = [*torch.randint(0, 90, (50,)).tolist(), 600, 0, 1, 0]
    starts = np.cumsum([0, *lengths])
    states = torch.randn(starts[-1], 64)

    def rows_from(bounds: Any) -> PackedRows:
        return PackedRows(torch.tensor(bounds, dtype=torch.int32))

    alone = [
        run(weights, states=states[begin:end], rows=rows_from([0, end - begin]))
        for begin, end in pairwise(starts)
        if begin < end
    ]
    expected = [torch.cat(layer) for layer in zip(*alone, strict=True)]
    before = torch.get_num_threads()
    for n_threads in (1, 2, 3):
        torch.set_num_threads(n_threads)
        found = run(weights, states=states, rows=rows_from(starts))
        torch.set_num_threads(before)
        assert all(map(torch.equal, found, expected))


@needs_bf16
@needs_int8
def test_int8_layers_read_and_write_float32() -> None:
    torch.manual_seed(0)
    weights = EncoderWeights([layer_of(Int8Weights), layer_of(Int8Weights)])
    exact, found = run(weights, dtype=torch.float32)[-1], run(weights)[-1]
    assert exact.dtype == found.dtype == torch.float32
    assert 0 < float((exact - found).norm() / exact.norm()) < 0.02


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"states": torch.zeros(7, 32)}, "as states"),
        ({"states": torch.zeros(7, 64).double()}, "as states"),
        ({"states": torch.zeros(64, 7).t()}, "as states"),
        ({"states": torch.zeros(8, 64)}, "a number of tokens"),
        ({"states": torch.zeros(6, 64)}, "6 tokens, and rows of 7"),
        ({"states": torch.zeros(0, 64)}, "a number of tokens"),
        ({"rows": PackedRows(torch.tensor([1, 7], dtype=torch.int32))}, "the first token of rows"),
        ({"settings": AttentionSettings(48, 0.2, False, 0.0)}, "heads of 48"),
        ({"settings": AttentionSettings(32, 0.2, False, 0.1)}, "dropout"),
        ({"dtype": torch.bfloat16}, r"no such layers in torch\.bfloat16"),
        ({"dtype": torch.float16}, r"no such layers in torch\.float16"),
    ],
)
def test_wrong_arguments_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(EncoderWeights([layer_of(Float32Weights)]), **changes)


@needs_bf16
def test_layers_in_bfloat16_compute_nothing_else() -> None:
    with pytest.raises(ValueError, match=r"no such layers in torch\.float32"):
        run(EncoderWeights([layer_of(PackedWeights)]), dtype=torch.float32)


def test_weights_that_do_not_belong_together_are_refused() -> None:
    layer = layer_of(Float32Weights)
    qkv, attention_out, mlp_in, mlp_out = layer.products
    norm = layer.norms[0]
    for layers in (
        [],
        [layer, layer_of(Int8Weights)],
        [layer, layer_of(Float32Weights, 32)],
        [layer, layer_of(Float32Weights, 64, 128)],
    ):
        with pytest.raises(ValueError, match="of one size and of one type"):
            EncoderWeights(layers)
    for products in (
        [attention_out, qkv, mlp_in, mlp_out],
        [qkv, attention_out, attention_out, mlp_out],
    ):
        with pytest.raises(ValueError, match="each reads what the one before gives"):
            EncoderWeights([EncoderLayer(products, layer.norms)])
    qkv, attention_out, mlp_in, mlp_out = layer_of(Int8Weights, 64, 64).products
    with pytest.raises(ValueError, match="GELU follows mlp_in"):
        EncoderWeights([EncoderLayer([qkv, mlp_in, attention_out, mlp_out], layer.norms)])
    for wrong in (
        norm._replace(weight=torch.ones(32)),
        norm._replace(bias=torch.ones(64).double()),
        norm._replace(epsilon=-1.0),
    ):
        with pytest.raises(ValueError, match="kernel"):
            EncoderWeights([EncoderLayer(layer.products, [norm, wrong])])
