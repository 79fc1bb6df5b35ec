"""Layers computed as on a GPU, by its kernels: here by Triton's interpreter, on the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from support.networks import CPU, GPU, assert_all_close, layout_of, open_model
from support.training import GENTLE, RECIPE, both, make_items, run

from skbert._core.attention.settings import AttentionSettings
from skbert._core.cpu.bindings import module
from skbert._core.gpu import operations
from skbert._core.infer import infer
from skbert._core.models.network import Network, runs_layers
from skbert._core.runtime.device import Precision
from skbert._core.training import optim, stepper
from skbert.exceptions import SkbertWarning

pytest.importorskip("triton", reason="kernels for GPUs are written in Triton: it is missing")

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Compute on the CPU in the way of a GPU; the kernels that are called are noted."""
    operations._can_run(CPU)  # tries a kernel
    called: list[str] = []
    kernels = operations.kernels

    def noted(name: str) -> Any:
        called.append(name)
        return kernels(name)

    monkeypatch.setattr(operations, "kernels", noted)
    monkeypatch.setattr(operations, "is_on_gpu", lambda _: True)
    monkeypatch.setattr(module, "kernels", None)
    monkeypatch.setattr(stepper, "adamw", lambda groups, _: optim.adamw(groups, GPU))
    return called


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "kernels", None)


@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 1e-5), ("float16", 1e-2)])
def test_states_are_those_of_the_modules(
    lively_model: Path, as_on_a_gpu: list[str], precision: str, tolerance: float
) -> None:
    network = open_model(lively_model)
    items = make_items(network)
    network.layer_runner.is_enabled = False
    want = infer(network, items, Precision("float32", CPU), forward=Network.features).values
    assert not as_on_a_gpu
    network.layer_runner.is_enabled = True
    got = infer(network, items, Precision(precision, CPU), forward=Network.features).values
    assert torch.from_numpy(got - want).abs().max() < tolerance
    own = {"float32": set(), "float16": {"attention"}}[precision]  # in float32 it is torch's
    assert set(as_on_a_gpu) == {"layernorm", *own}


def test_without_triton_torch_computes(
    lively_model: Path, as_on_a_gpu: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    network = open_model(lively_model)
    items, single = make_items(network), Precision("float32", CPU)
    want = infer(network, items, single, forward=Network.features).values
    monkeypatch.setattr(operations, "kernels", lambda name: None)
    got = infer(network, items, single, forward=Network.features).values
    assert as_on_a_gpu
    assert torch.from_numpy(got - want).abs().max() < 1e-5


def test_where_nothing_can_be_compiled_torch_computes(
    lively_model: Path, as_on_a_gpu: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    network = open_model(lively_model)
    items, single = make_items(network), Precision("float32", CPU)
    want = infer(network, items, single, forward=Network.features).values

    def fail(**_: Any) -> None:
        raise RuntimeError("Failed to find C compiler")

    monkeypatch.setattr(operations.kernels("gelu"), "gelu_backward", fail)
    operations._can_run.cache_clear()
    try:
        with pytest.warns(SkbertWarning, match=r"for cpu \(RuntimeError: Failed to find C compi"):
            got = infer(network, items, single, forward=Network.features).values
        infer(network, items, single, forward=Network.features)  # warns once
    finally:
        operations._can_run.cache_clear()
    assert torch.from_numpy(got - want).abs().max() < 1e-5


@pytest.mark.parametrize("trains", [False, True])
def test_attention_is_computed_by_torch_where_its_kernels_cannot_run(
    trains: bool, as_on_a_gpu: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**_: Any) -> None:
        raise RuntimeError("out of resource: shared memory")

    kernel = "attention_backward" if trains else "attention_forward"
    monkeypatch.setattr(operations.kernels("attention"), kernel, fail)
    monkeypatch.setattr(operations, "_can_attend", operations._can_attend.__wrapped__)
    qkv, layout = torch.zeros(9, 96, dtype=torch.float16), layout_of([4, 5])
    settings = AttentionSettings(32, 0.5, False, 0.1)
    with (
        torch.set_grad_enabled(trains),
        pytest.warns(SkbertWarning, match=r"for cpu \(RuntimeError: out of resource"),
    ):
        assert not operations.can_fuse_attention(qkv, layout, settings)
    if trains:
        with torch.no_grad():
            assert operations.can_fuse_attention(qkv, layout, settings)


@both
def test_training_is_the_same(
    tiny_model_no_dropout: Path, plain: None, precision: str, recipe: Any, tolerance: float,
    request: pytest.FixtureRequest,
) -> None:  # fmt: skip
    want, others = run(tiny_model_no_dropout, recipe, precision=precision)
    called = request.getfixturevalue("as_on_a_gpu")
    got, passes = run(tiny_model_no_dropout, recipe, precision=precision)
    assert ({*called} == {"adamw", "layernorm", "gelu", "sums"}) == (precision == "float32")
    assert_all_close(got, want, tolerance)
    assert [each.loss for each in passes] == pytest.approx([each.loss for each in others])


@pytest.mark.parametrize("by_torch", [False, True], ids=["by a kernel", "by torch"])
def test_gradients_in_lower_precision_are_used(
    tiny_model_no_dropout: Path, plain: None, by_torch: bool, monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:  # fmt: skip
    """As the interpreter has no products in bfloat16, attention is torch's."""
    want, others = run(tiny_model_no_dropout, GENTLE, precision="float32")
    request.getfixturevalue("as_on_a_gpu")
    monkeypatch.setattr(operations, "can_fuse_attention", lambda *_: False)
    if by_torch:
        monkeypatch.setattr(operations, "can_fuse_adamw", lambda _: False)
    seen: list[tuple[int, set[torch.dtype]]] = []
    kind = optim.ConvertingAdamW if by_torch else optim.GpuAdamW
    of_optimizer = kind.gradients

    def gradients(optimizer: Any) -> list[torch.Tensor]:
        rounded = [*optimizer.bf16_state.grads.values()]
        assert {gradient.dtype for gradient in rounded} == {torch.bfloat16}
        found = of_optimizer(optimizer)
        seen.append((len(rounded), {gradient.dtype for gradient in found}))
        return found

    monkeypatch.setattr(kind, "gradients", gradients)
    got, passes = run(tiny_model_no_dropout, GENTLE, precision="bfloat16")
    # Weights of six linear layers in each of two; gradients of biases are sums in float32.
    used = {torch.float32} if by_torch else {torch.float32, torch.bfloat16}
    assert seen == [(2 * 6, used)] * 6
    assert_all_close(got, want, 1e-3)
    assert [each.loss for each in passes] == pytest.approx(
        [each.loss for each in others], rel=2e-2
    )


def test_where_torch_takes_steps_it_converts_gradients_and_weights() -> None:
    weight = torch.nn.Parameter(torch.randn(4, 4))
    optimizer = optim.ConvertingAdamW([{"params": [weight], "lr": 0.1, "weight_decay": 0.0}])
    state = optimizer.bf16_state
    assert state.weights is not None
    state.weights[weight] = weight.detach().bfloat16()
    before = weight.detach().clone()
    state.grads[weight] = torch.ones(4, 4, dtype=torch.bfloat16)
    assert optimizer.gradient(weight).dtype == torch.bfloat16
    (gradient,) = optimizer.gradients()
    assert gradient.dtype == torch.float32
    optimizer.step()
    assert not torch.equal(weight, before)
    assert torch.equal(state.weights[weight], weight.detach().bfloat16())
    optimizer.zero_grad()
    assert optimizer.gradients() == []


def test_dropout_is_drawn_by_the_kernels(tiny_model: Path, as_on_a_gpu: list[str]) -> None:
    _, first = run(tiny_model, RECIPE, precision="float32")
    _, again = run(tiny_model, RECIPE, precision="float32")
    _, other = run(tiny_model, RECIPE, precision="float32", seed=1)
    assert "layernorm" in as_on_a_gpu
    assert [each.loss for each in first] == [each.loss for each in again]
    assert first[0].loss != other[0].loss


# --- on a GPU ------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 1e-4), ("bfloat16", 3e-2)])
def test_a_gpu_computes_layers_by_its_kernels(
    lively_model: Path, precision: str, tolerance: float
) -> None:
    network = open_model(lively_model)
    items = make_items(network)
    want = infer(network, items, Precision("float32", CPU), forward=Network.features).values
    network.to(GPU, torch.float32)
    assert runs_layers(network)
    got = infer(network, items, Precision(precision, GPU), forward=Network.features).values
    assert torch.from_numpy(got - want).abs().max() < tolerance


@pytest.mark.gpu
def test_a_gpu_trains_as_a_cpu_does(tiny_model_no_dropout: Path) -> None:
    want, others = run(tiny_model_no_dropout, GENTLE, precision="float32")
    for precision, tolerance in (("float32", 1e-4), ("bfloat16", 1e-3)):
        got, passes = run(tiny_model_no_dropout, GENTLE, precision=precision, device=GPU)
        assert_all_close({name: x.cpu() for name, x in got.items()}, want, tolerance)
        assert passes[-1].loss == pytest.approx(others[-1].loss, rel=2e-2)


@pytest.mark.gpu
def test_dropout_on_a_gpu_follows_the_seed(tiny_model: Path) -> None:
    losses = [
        run(tiny_model, RECIPE, precision="bfloat16", device=GPU, seed=seed)[1][0].loss
        for seed in (0, 0, 1)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert losses[0] != losses[2]
