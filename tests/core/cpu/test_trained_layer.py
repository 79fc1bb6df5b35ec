"""Layers of a training step in one call: as step by step, and only where kernels do it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from support.families import save_own
from support.networks import (
    CPU,
    Labels,
    chunk,
    open_model,
    record_kernels,
    sentences,
    with_relu,
)

from skbert._core.attention.pruned import prune
from skbert._core.attention.settings import AttentionSettings
from skbert._core.batches import collate
from skbert._core.cpu import postnorm
from skbert._core.cpu.bindings import module
from skbert._core.cpu.bindings.attention import PackedRows
from skbert._core.cpu.bindings.trained_layer import (
    LayerSettings,
    LayersGrads,
    LayersPass,
    SavedLayer,
    TrainedNorm,
    TrainedProduct,
    TrainedWeights,
    trained_layers_backward,
    trained_layers_forward,
)
from skbert._core.cpu.trained_layer import TrainedLayer
from skbert._core.cpu.training_linear import Bf16State
from skbert._core.families import FAMILIES
from skbert._core.runtime.device import Precision, seeded

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from skbert._core.models.network import Network

pytestmark = [
    pytest.mark.skipif(
        not module.has_bf16_products(), reason="needs a processor that multiplies bfloat16"
    ),
    pytest.mark.usefixtures("either_amx"),
]

FORWARD, BACKWARD = "trained_layers_forward", "trained_layers_backward"
LENGTHS = {"a word": [1], "one": [9], "some": [5, 3, 3, 70, 12, 1, 64], "many": [50, 9, 30] * 20}
# Heads of a size that has tiles; the word embeddings have their own memory.
SIZES = {"hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 96}


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the passes over layers that are called, one after another."""
    return record_kernels(monkeypatch, [FORWARD, BACKWARD])


def with_biases(network: Network) -> Network:
    """Biases as after learning."""
    generator = torch.Generator().manual_seed(0)
    for name, weight in network.model.named_parameters():
        if name.endswith("bias"):
            weight.data += 0.1 * torch.randn(weight.shape, generator=generator)
    return network


def take_gradients(
    network: Network, lengths: list[int], *, times: int = 1
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Logits of such texts in training, and the gradients of all weights."""
    low = dict[torch.Tensor, torch.Tensor]()
    network.model.zero_grad()
    network.layer_runner.reset(Bf16State(low, None))
    network.model.train()
    items = Labels().encode((sentences(lengths), None), None, network.text_tokenizer)
    batch = collate(items, np.arange(len(items)), CPU, network.dtype)
    with seeded(0, CPU), Precision("bfloat16", CPU).autocast():
        logits = network.logits(batch)
    for _ in range(times):
        logits.square().sum().backward(retain_graph=times > 1)
    found = {
        name: low.get(weight, weight.grad) for name, weight in network.model.named_parameters()
    }
    return logits.detach(), {name: grad for name, grad in found.items() if grad is not None}


def step_by_step(
    monkeypatch: pytest.MonkeyPatch, *arguments: Any, **options: int
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    with monkeypatch.context() as patch:
        patch.setattr(TrainedLayer, "can_train", lambda *_: False)
        return take_gradients(*arguments, **options)


def assert_equal(
    found: tuple[torch.Tensor, dict[str, torch.Tensor]],
    expected: tuple[torch.Tensor, dict[str, torch.Tensor]],
) -> None:
    assert torch.equal(found[0], expected[0])
    assert found[1].keys() == expected[1].keys()
    for name, gradient in expected[1].items():
        assert gradient.dtype == found[1][name].dtype, name
        assert torch.equal(found[1][name], gradient), name
        assert gradient.any() or name.endswith("key.bias"), name  # which moves no weight


def as_it_is(_network: Network) -> None: ...


def without_embeddings(network: Network) -> None:
    network.model.bert.embeddings.requires_grad_(False)


def lacking_heads(network: Network) -> None:
    prune(network.model, {0: [1]})


def without_some_biases(network: Network) -> None:
    for layer in network.model.bert.encoder.layer:
        attention = layer.attention.self
        for linear in (attention.query, attention.key, attention.value, layer.intermediate.dense):
            linear.bias = None


def without_dropout(network: Network) -> None:
    for part in network.model.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0


def reading_hidden_states(network: Network) -> None:
    network.layers = (0, 1, 3)


def dropping_by_layer(network: Network) -> None:
    for number, layer in enumerate(network.model.bert.encoder.layer):
        layer.output.dropout.p = 0.2 * number
        layer.attention.output.LayerNorm.eps = 0.1 * number


def dropping_less_in_attention(network: Network) -> None:
    network.model.bert.encoder.layer[1].attention.self.dropout.p = 0.0


def training_a_layer_in_part(network: Network) -> None:
    network.model.bert.encoder.layer[1].output.dense.bias.requires_grad_(False)


def computing_a_layer_again(network: Network) -> None:
    network.model.bert.encoder.layer[1].gradient_checkpointing = True


# What is changed in a model of three layers, and how many calls of each pass that takes.
CHANGES: dict[Callable[[Network], None], tuple[int, int]] = {
    as_it_is: (1, 1),
    without_embeddings: (1, 1),
    without_some_biases: (1, 1),
    without_dropout: (1, 1),
    dropping_by_layer: (1, 1),
    lacking_heads: (2, 2),  # the first layer has fewer
    reading_hidden_states: (2, 2),
    dropping_less_in_attention: (3, 3),
    training_a_layer_in_part: (2, 2),  # the first, and the last
    computing_a_layer_again: (4, 3),
}


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("change", CHANGES)
def test_it_is_as_step_by_step(
    make_tiny_model: Callable[..., Path],
    change: Callable[[Network], None],
    lengths: list[int],
    called: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network = with_biases(open_model(make_tiny_model(**SIZES, num_hidden_layers=3)))
    change(network)
    expected = step_by_step(monkeypatch, network, lengths)
    assert not called
    found = take_gradients(network, lengths)
    assert (called.count(FORWARD), called.count(BACKWARD)) == CHANGES[change]
    assert_equal(found, expected)


@pytest.mark.parametrize("name", ["albert", "electra"])
def test_states_that_are_projected_and_layers_that_share_weights(
    name: str, tmp_path: Path, called: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {**SIZES, "embedding_size": 32, "num_hidden_layers": 3, "hidden_act": "gelu"}
    folder = save_own(FAMILIES[name], tmp_path, "sequence classification", **sizes)
    network = open_model(folder, pooling="cls")
    expected = step_by_step(monkeypatch, network, LENGTHS["some"])
    assert not called
    found = take_gradients(network, LENGTHS["some"])
    assert called == [FORWARD, BACKWARD]
    assert_equal(found, expected)


@pytest.mark.parametrize(("n_bytes", "n_calls"), [(2, 5), (3, 5), (4, 3), (5, 3), (6, 2), (1, 5)])
def test_gradients_of_a_call_take_so_much_memory(
    make_tiny_model: Callable[..., Path],
    n_bytes: int,
    n_calls: int,
    called: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network = open_model(make_tiny_model(**SIZES, num_hidden_layers=5))
    expected = step_by_step(monkeypatch, network, LENGTHS["one"])
    (layer, *_) = network.model.bert.encoder.layer
    n_trained = sum(x.numel() for name, x in layer.named_parameters() if "Norm" not in name)
    monkeypatch.setattr(postnorm, "_MOST_BYTES", n_bytes * n_trained)
    found = take_gradients(network, LENGTHS["one"])
    assert called == [FORWARD] * n_calls + [BACKWARD] * n_calls
    assert_equal(found, expected)


@pytest.mark.parametrize("n_threads", [1, 2, 3])
def test_any_number_of_threads(
    make_tiny_model: Callable[..., Path], n_threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = open_model(make_tiny_model(**SIZES))
    before = torch.get_num_threads()
    torch.set_num_threads(n_threads)
    try:
        expected = step_by_step(monkeypatch, network, LENGTHS["many"])
        assert_equal(take_gradients(network, LENGTHS["many"]), expected)
    finally:
        torch.set_num_threads(before)


def test_a_second_backward_pass_adds_the_same(
    make_tiny_model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    network = open_model(make_tiny_model(**SIZES))
    expected = step_by_step(monkeypatch, network, LENGTHS["some"], times=2)
    assert_equal(take_gradients(network, LENGTHS["some"], times=2), expected)


def test_memory_that_is_short_computes_it_again(
    make_tiny_model: Callable[..., Path], called: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    network = open_model(make_tiny_model(**SIZES))
    expected = take_gradients(network, LENGTHS["some"])
    for layer in network.model.bert.encoder.layer:
        layer.gradient_checkpointing = True
    found = take_gradients(network, LENGTHS["some"])
    assert called == [FORWARD] + [BACKWARD] + [FORWARD] * 2 + [FORWARD, BACKWARD] * 2
    assert_equal(found, expected)


def fix_a_weight(network: Network) -> None:
    for layer in network.model.bert.encoder.layer:
        layer.output.dense.bias.requires_grad_(False)


@pytest.mark.parametrize("change", [fix_a_weight, chunk, with_relu])
def test_what_kernels_do_not_compute_runs_step_by_step(
    make_tiny_model: Callable[..., Path], change: Callable[[Network], None], called: list[str]
) -> None:
    network = open_model(make_tiny_model(**SIZES))
    change(network)
    _, found = take_gradients(network, LENGTHS["some"])
    assert not called
    assert found["bert.encoder.layer.0.attention.self.query.weight"].any()


def test_changed_weights_are_read(
    make_tiny_model: Callable[..., Path], called: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    network, low = open_model(make_tiny_model(**SIZES)), dict[torch.Tensor, torch.Tensor]()
    layer = network.model.bert.encoder.layer[1]
    dense, norm = layer.output.dense, layer.output.LayerNorm
    changes: list[Callable[[], object]] = [
        lambda: None,
        lambda: dense.weight.data.mul_(2),
        lambda: setattr(dense.weight, "data", dense.weight.data * 2),
        lambda: setattr(dense, "weight", torch.nn.Parameter(dense.weight.detach() * 2)),
        lambda: setattr(norm, "weight", torch.nn.Parameter(norm.weight.detach() * 2)),
        lambda: setattr(norm, "eps", 0.5),
    ]
    items = Labels().encode((sentences([9]), None), None, network.text_tokenizer)
    batch = collate(items, np.arange(1), CPU, network.dtype)
    network.layer_runner.reset(Bf16State(low, None))

    def logits() -> torch.Tensor:
        with Precision("bfloat16", CPU).autocast():
            return network.logits(batch).detach()

    before = logits() + 1
    for change in changes:
        change()
        found = logits()
        assert not torch.equal(found, before)
        with monkeypatch.context() as patch:
            patch.setattr(TrainedLayer, "can_train", lambda *_: False)
            assert torch.equal(found, logits())
        before = found
    assert len(called) == len(changes) + 1


# --- the call ------------------------------------------------------------------------------------

ROWS = PackedRows(torch.tensor([0, 3, 7], dtype=torch.int32))


def product(n: int, n_out: int, n_in: int) -> TrainedProduct:
    weights, biases = torch.randn(n, n_out, n_in), torch.randn(n, n_out)
    return TrainedProduct([*weights], [*biases])


def weights(size: int = 64, mlp_size: int = 96) -> TrainedWeights:
    shapes = (3, size, size), (1, size, size), (1, mlp_size, size), (1, size, mlp_size)
    norm = TrainedNorm(torch.rand(size) + 0.5, torch.randn(size))
    return TrainedWeights([product(*shape) for shape in shapes], [norm, norm])


NORMS = [(1e-5, 0.1, 3), (1e-5, 0.0, 0)]


def how(**changes: Any) -> LayersPass:
    arguments = {
        "weights": [weights(), weights()], "rows": ROWS,
        "settings": AttentionSettings(32, 0.2, False, 0.0),
        "own": [LayerSettings(0, NORMS), LayerSettings(0, NORMS)], "in_tiles": False,
    }  # fmt: skip
    return LayersPass(**{**arguments, **changes})


def forward(**changes: Any) -> list[SavedLayer]:
    arguments = {
        "how": how(), "states": torch.randn(7, 64), "x": torch.randn(7, 64).bfloat16(),
    }  # fmt: skip
    return trained_layers_forward(**{**arguments, **changes})[2]


def backward(**changes: Any) -> LayersGrads:
    layer_pass = how()
    arguments = {
        "how": layer_pass, "saved": forward(how=layer_pass), "grad_output": torch.randn(7, 64),
        "grad_rounded": None, "needs_grad": True,
    }  # fmt: skip
    changed = {name: change(arguments[name]) for name, change in changes.items()}
    return trained_layers_backward(**{**arguments, **changed})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"states": torch.zeros(7, 32)}, "as states"),
        ({"states": torch.zeros(7, 64).double()}, "as states"),
        ({"states": torch.zeros(8, 64)}, "as states"),
        ({"x": torch.zeros(7, 64)}, "as x"),
        ({"x": torch.zeros(64, 7).bfloat16().t()}, "as x"),
        ({"x": torch.zeros(7, 32).bfloat16()}, "as x"),
        ({"x": torch.zeros(8, 64).bfloat16()}, "as x"),
    ],
)
def test_wrong_tensors_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        forward(**changes)


def own(**changes: Any) -> dict[str, Any]:
    settings = LayerSettings(0, NORMS)
    return {"own": [settings, settings._replace(**changes)]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"settings": AttentionSettings(48, 0.2, False, 0.0)}, "heads of 48"),
        (own(norms=[(1e-5, 0.1, 3), (-1.0, 0.0, 0)]), "epsilon"),
        (own(norms=[(1e-5, 1.5, 3), (1e-5, 0.0, 0)]), "dropout"),
        (own(norms=[(1e-5, 0.1, 3), (1e-5, 0.0, -1)]), "seed"),
        (own(norms=[(1e-5, 0.1, 3)]), "two norms"),
        (own(seed=-1), "seed"),
        ({"own": [LayerSettings(0, NORMS)]}, "settings each"),
        ({"weights": [weights(), weights(mlp_size=64)]}, "one size"),
        ({"weights": [], "own": []}, "one or more"),
        ({"rows": PackedRows(torch.tensor([1, 7], dtype=torch.int32))}, "the first token of rows"),
        ({"rows": PackedRows(torch.tensor([0], dtype=torch.int32))}, "one token or more"),
    ],
)
def test_what_no_kernel_computes_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        how(**changes)


@pytest.mark.parametrize("kind", ["weights", "rows"])
def test_other_things_are_refused(kind: str) -> None:
    with pytest.raises(TypeError, match=kind):
        how(**{kind: [1, 1]})
    with pytest.raises(TypeError, match="how"):
        forward(how=1)
    with pytest.raises(TypeError, match="how"):
        backward(how=lambda _: 1)


def test_wrong_gradients_are_refused() -> None:
    assert backward().x is not None
    assert backward(grad_output=lambda _: None, needs_grad=lambda _: False).x is None
    for name in SavedLayer._fields:
        wrong_part = {name: torch.zeros(7, 5)}
        with pytest.raises(ValueError, match=f"as {name}"):
            backward(saved=lambda saved, part=wrong_part: [saved[0], saved[1]._replace(**part)])
    with pytest.raises(ValueError, match="shorter"):
        backward(saved=lambda saved: saved[:1])
    wrong: list[tuple[str, Callable[[Any], Any]]] = [
        ("grad_output", lambda grad: grad.double()),
        ("grad_output", lambda grad: grad[:, :32]),
        ("grad_rounded", lambda _: torch.zeros(7, 64)),
    ]
    for name, change in wrong:
        with pytest.raises(ValueError, match=f"as {name}"):
            backward(**{name: change})


def test_weights_that_do_not_belong_together_are_refused() -> None:
    made = weights()
    qkv, attention_out, mlp_in, mlp_out = made.products
    norm = made.norms[0]
    TrainedWeights(made.products, [norm, TrainedNorm(norm.weight, None)])
    for products in (
        made.products[:3],
        [qkv, attention_out, mlp_in, attention_out],
        [attention_out, attention_out, mlp_in, mlp_out],
        [TrainedProduct(qkv.weights, qkv.biases[:2]), attention_out, mlp_in, mlp_out],
        [TrainedProduct(qkv.weights, [torch.zeros(63)] * 3), attention_out, mlp_in, mlp_out],
        [TrainedProduct([x.double() for x in qkv.weights], []), attention_out, mlp_in, mlp_out],
    ):
        with pytest.raises(ValueError, match="a kernel"):
            TrainedWeights(products, made.norms)
    for norms in ([norm], [norm, TrainedNorm(torch.zeros(32), None)]):
        with pytest.raises(ValueError, match="a kernel"):
            TrainedWeights(made.products, norms)


def test_weights_moved_to_where_none_can_be_read_are_refused() -> None:
    made = weights()
    made.norms[0].weight.data = torch.zeros(64, dtype=torch.float64)
    with pytest.raises(ValueError, match="as weight"):
        forward(how=how(weights=[made, weights()]))


def test_layers_of_more_than_one_kind_take_their_own_way(
    make_tiny_model: Callable[..., Path], called: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    network = open_model(make_tiny_model(**SIZES))
    network.model.bert.encoder.layer[0].output.dense.bias.requires_grad_(False)
    expected = step_by_step(monkeypatch, network, LENGTHS["one"])
    found = take_gradients(network, LENGTHS["one"])
    assert called == [FORWARD, BACKWARD]
    assert_equal(found, expected)


def test_it_is_made_once(
    make_tiny_model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[object] = []
    make = TrainedLayer.made_of

    def record(*arguments: Any) -> TrainedLayer | None:
        made.append(arguments)
        return make(*arguments)

    monkeypatch.setattr(TrainedLayer, "made_of", record)
    network = open_model(make_tiny_model(**SIZES))
    network.layer_runner.reset()
    for _ in range(2):
        items = Labels().encode((sentences([9]), None), None, network.text_tokenizer)
        batch = collate(items, np.arange(1), CPU, network.dtype)
        with Precision("bfloat16", CPU).autocast():
            network.logits(batch).sum().backward()
    assert len(made) == 2  # a layer each
