"""Layers recorded as graphs train as they do without: here what a graph does is computed anew."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest
import torch
from conftest import tiny_vocabulary
from support.families import save_tiny
from support.interpreter import with_large_programs
from support.jobs import JOBS
from support.networks import (
    CPU,
    GPU,
    Labels,
    assert_all_close,
    layout_of,
    open_model,
    sentences,
    watch,
)
from support.training import GENTLE, make_items, run, weights_of
from torch.autograd.graph import saved_tensors_hooks

import skbert
from skbert._core.batches import collate
from skbert._core.cpu import prenorm
from skbert._core.cpu.bindings import module
from skbert._core.families.modernbert import MODERNBERT
from skbert._core.gpu import graphs, operations
from skbert._core.gpu.graphs import LayerGraphs
from skbert._core.infer import infer
from skbert._core.runtime.autograd import add_gradient
from skbert._core.training import optim, stepper
from skbert.exceptions import SkbertWarning

pytest.importorskip("triton", reason="kernels for GPUs are written in Triton: it is missing")

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

# Steps of a few sizes, so that graphs are recorded and repeated.
LONG = replace(GENTLE, epochs=3)


class Repeating:
    """Stands for what records graphs: repeats a function, into the memory of the first time."""

    def __init__(self) -> None:
        self.n_recorded = self.n_repeated = 0

    def aside(self) -> Any:
        return nullcontext()

    def record(self, function: Any) -> Callable[[], None]:
        with np.errstate(all="ignore"):  # no rows are there yet
            function()
        graph = function.__self__
        self.n_recorded += 1

        def repeat() -> None:
            self.n_repeated += 1
            kept = [weight.grad for weight in graph.weights]
            rounded = dict(graph.rounded_grads or {})
            for weight in graph.weights:
                weight.grad = None
            if graph.rounded_grads is not None:
                graph.rounded_grads.clear()
            with saved_tensors_hooks(lambda x: x, lambda x: x):  # no other sees what is saved
                function()
            if function.__name__ == "_backward":
                for own, new in zip(graph.grads, graph._take_grads(), strict=True):
                    assert (own is None) == (new is None)
                    if own is not None:
                        own.copy_(new)
            for weight, grad in zip(graph.weights, kept, strict=True):
                weight.grad = grad
            if graph.rounded_grads is not None:
                graph.rounded_grads |= rounded

        return repeat


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute on the CPU in the way of a GPU, attention in float32, too."""
    kernel = operations.kernels("attention")
    with_large_programs(monkeypatch)
    monkeypatch.setattr(operations, "is_on_gpu", lambda _: True)
    monkeypatch.setattr(module, "kernels", None)
    monkeypatch.setattr(stepper, "adamw", lambda groups, _: optim.ConvertingAdamW(groups))
    monkeypatch.setattr(
        operations, "can_fuse_attention", lambda qkv, *_: kernel and qkv.dtype == torch.float32
    )


@pytest.fixture(scope="module", params=["bert", "modernbert"])
def any_model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory,
    tiny_model: Path,
) -> Path:  # fmt: skip
    """Folder of a tiny model of either kind: norms come after layers, or before them."""
    if request.param == "bert":
        return tiny_model
    folder = tmp_path_factory.mktemp("modernbert")
    return save_tiny(
        MODERNBERT,
        folder,
        tiny_vocabulary(),
        hidden_size=32,
        attention_dropout=0.1,
        num_hidden_layers=2,
    )


@pytest.fixture
def recorder(as_on_a_gpu: None, monkeypatch: pytest.MonkeyPatch) -> Repeating:
    """Steps are recorded and repeated from now on."""
    repeating = Repeating()

    make: Any = LayerGraphs
    monkeypatch.setattr(stepper, "graphs_on", lambda _, __, rounded: make(repeating, rounded))
    return repeating


def without_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs draw their seeds as those with graphs do, and none is recorded."""
    monkeypatch.setattr(graphs, "_MOST", 0)


def test_training_is_the_same(
    any_model: Path, recorder: Repeating, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is dropped is the same, too; several rows fill up a batch."""
    monkeypatch.setattr(graphs, "SHORT", 16)
    got, passes = run(any_model, LONG, precision="float32", pooling="mean")
    assert recorder.n_recorded >= 2
    assert recorder.n_repeated > 4
    assert recorder.n_repeated % 2 == 0  # as often backward as forward
    without_graphs(monkeypatch)
    want, others = run(any_model, LONG, precision="float32", pooling="mean")
    assert_all_close(got, want, 1e-5)
    assert [each.loss for each in passes] == pytest.approx([each.loss for each in others])


def test_some_layers_are_frozen(tiny_model: Path, recorder: Repeating) -> None:
    before = dict(open_model(tiny_model, dtype=torch.float32).model.named_parameters())
    got, _ = run(tiny_model, replace(LONG, freeze=1), precision="float32")
    assert recorder.n_repeated > 4
    is_same = {name: torch.equal(got[name], x) for name, x in before.items() if "layer." in name}
    assert {name for name, same in is_same.items() if same} == {
        name for name in is_same if "layer.0." in name
    }


def test_gradients_are_accumulated(
    tiny_model: Path, recorder: Repeating, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = replace(LONG, accumulate=2)
    got, _ = run(tiny_model, recipe, precision="float32")
    assert recorder.n_repeated > 4
    without_graphs(monkeypatch)
    want, _ = run(tiny_model, recipe, precision="float32")
    assert_all_close(got, want, 1e-5)


def test_an_item_in_parts_is_computed_without(
    tiny_model: Path, recorder: Repeating, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch computes the parts twice, and has to see all that they save both times."""
    X, y, _ = JOBS["BertChoiceRanker"].usual
    monkeypatch.setitem(stepper.TRAINING_TOKENS, "cpu", 10)
    sizes = watch(monkeypatch, "logits", lambda batch: batch.input_ids.shape[1])
    ranker = skbert.BertChoiceRanker(tiny_model, epochs=1, batch_size=1, precision="float32")
    ranker.fit(X[:2], y[:2])
    assert len(sizes) > 2 * 3  # there, and back
    assert recorder.n_recorded == 0


def test_where_a_step_runs_out_of_memory_graphs_go_first(
    tiny_model: Path, recorder: Repeating, monkeypatch: pytest.MonkeyPatch
) -> None:
    taking, step = stepping(tiny_model)
    network = taking._network
    for _ in range(3):
        step()
    graphs_of_steps, tokens = network.layer_runner.graphs, taking._budget.tokens
    compute = Labels.loss

    def fail(task: Any, logits: torch.Tensor, batch: Any) -> Any:
        if network.layer_runner.graphs is graphs_of_steps:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return compute(task, logits, batch)

    monkeypatch.setattr(Labels, "loss", fail)
    step()
    assert network.layer_runner.graphs is None
    assert taking._budget.tokens == tokens  # as many together as before


def test_what_is_recorded_is_on_the_device_of_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which need not be the current one."""
    asked: list[Any] = []

    class Stream:
        def __init__(self, device: Any) -> None:
            self.device = device

        def wait_stream(self, other: Any) -> None:
            asked.append(other.device)

    def current(device: Any = None) -> Any:
        asked.append(device)
        return Stream(device)

    for name, answer in {
        "Stream": Stream, "current_stream": current, "stream": lambda _: nullcontext(),
        "graph_pool_handle": lambda: (0, 0), "empty_cache": lambda: None,
        "mem_get_info": lambda device=None: asked.append(device) or (0, 0),
        "memory_reserved": lambda device=None: asked.append(device) or 1,
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, answer)
    device = torch.device("cuda:1")
    with graphs.Recorder(device).aside():
        assert asked
    assert set(asked) == {device}
    assert len(asked) == 5
    del asked[:]
    with pytest.raises(KeyError), graphs.Recorder(device).aside():
        raise KeyError
    assert len(asked) == 5  # waits for what was begun


def test_the_first_kernel_is_compiled_for_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    devices: list[torch.device] = []

    def noted(x: torch.Tensor) -> Any:
        devices.append(x.device)
        return nullcontext()

    monkeypatch.setattr(operations, "on_device_of", noted)
    operations._can_run.cache_clear()
    assert operations._can_run(CPU)
    assert devices == [CPU]


def test_angles_that_follow_the_longest_row_are_not_recorded() -> None:
    class Rotary:
        rope_type: ClassVar = {"full_attention": "default", "sliding_attention": "dynamic"}

    assert prenorm.reads_lengths(Rotary())
    Rotary.rope_type["sliding_attention"] = "linear"
    assert not prenorm.reads_lengths(Rotary())


def test_two_runs_before_a_backward_pass(
    tiny_model: Path, recorder: Repeating, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory of one is not written by the other."""
    losses: list[float] = []

    class Twice(Labels):
        def loss(self, logits: torch.Tensor, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
            again = self.network.logits(batch) if logits.requires_grad else logits
            loss, weight = super().loss(logits + again, batch)
            losses.append(float(loss.detach()))
            return loss, weight

    task = Twice()
    opened = stepper.Stepper.__init__

    def noted(own: Any, network: Any, *rest: Any) -> None:
        task.network = network
        opened(own, network, *rest)

    monkeypatch.setattr(stepper.Stepper, "__init__", noted)
    got, _ = run(tiny_model, LONG, precision="float32", task=task)
    assert recorder.n_repeated > 4
    first = losses.copy()
    without_graphs(monkeypatch)
    want, _ = run(tiny_model, LONG, precision="float32", task=task)
    assert_all_close(got, want, 1e-5)
    assert losses == pytest.approx(first * 2)


def stepping(folder: Path) -> Any:
    """A stepper, and a function that lets it take a step on the same rows and returns the loss."""
    network = open_model(folder, dtype=torch.float32)
    taking = stepper.Stepper(network, Labels(), LONG, stepper.Precision("float32", CPU), 100)
    taking.set_items(make_items(network))
    rows = torch.arange(8).numpy()

    def step() -> float:
        taking.step(rows)
        ((loss, _),) = taking.results(wait=True)
        return loss

    return taking, step


def test_whoever_holds_the_model_may_change_it(tiny_model: Path, recorder: Repeating) -> None:
    taking, step = stepping(tiny_model)
    network = taking._network
    for _ in range(4):
        step()
    assert recorder.n_repeated == 2 * 3  # the first step compiles the kernels
    network.hand_out()
    step()
    assert recorder.n_repeated == 2 * 3


def test_weights_that_others_write_are_read_anew(tiny_model: Path, recorder: Repeating) -> None:
    """Such as those of the best pass, or of a checkpoint."""
    taking, step = stepping(tiny_model)
    network = taking._network
    before = {name: x.clone() for name, x in network.model.state_dict().items()}
    *_, last = [step() for _ in range(4)]
    network.model.load_state_dict({name: 3 * x for name, x in before.items()})
    assert abs(step() - last) > 0.05
    assert recorder.n_repeated == 2 * 4


def test_what_cannot_be_recorded_is_computed_without(
    tiny_model: Path, recorder: Repeating, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(function: Any) -> None:
        Repeating().record(function)
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(recorder, "record", fail)
    taking, step = stepping(tiny_model)
    network = taking._network
    losses = [step()]
    with pytest.warns(SkbertWarning, match=r"without graphs of the GPU.*not permitted when strea"):
        losses.append(step())
    losses += [step() for _ in range(2)]  # warns once
    without_graphs(monkeypatch)
    other, step = stepping(tiny_model)
    assert losses == pytest.approx([step() for _ in range(4)])
    assert_all_close(weights_of(network), weights_of(other._network), 1e-6)


def test_where_memory_is_short_no_graph_is_kept(
    tiny_model: Path, recorder: Repeating, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(function: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(recorder, "record", fail)
    taking, step = stepping(tiny_model)
    network = taking._network
    losses = [step() for _ in range(4)]  # without a warning
    assert losses[-1] < losses[0]
    assert not network.layer_runner.graphs.is_enabled


def recording_of(size: int) -> tuple[LayerGraphs, Callable[[int, object], None]]:
    """Graphs of a layer, and a function that computes so many tokens for a purpose."""
    recording = LayerGraphs(Repeating(), None)  # type: ignore[arg-type]
    weight = torch.ones(size, requires_grad=True)

    def compute(n_tokens: int, made_for: object) -> None:
        states, layout = torch.rand(n_tokens, size), layout_of([1] * n_tokens)
        (output,) = recording(made_for, lambda x, _: [x * weight], [weight], states, layout)
        output.sum().backward()
        torch.testing.assert_close(output, states)
        torch.testing.assert_close(weight.grad, states.sum(0))
        weight.grad = None

    return recording, compute


def sizes_recorded_for(n_tokens: Sequence[int], size: int = 1) -> list[int]:
    """The sizes of the graphs there are after so many tokens were computed, in their order."""
    recording, compute = recording_of(size)
    for n in n_tokens:
        compute(n, "a layer")
    (kept,) = recording.graphs.values()
    return [len(graph.states) for graph in kept]


def test_layers_run_once_before_they_are_recorded() -> None:
    """Forward and backward, so that all kernels are compiled."""
    assert sizes_recorded_for([9]) == []
    assert sizes_recorded_for([9, 9]) == [64]
    recording = LayerGraphs(Repeating(), None)  # type: ignore[arg-type]
    weight, layout = torch.ones(4, requires_grad=True), layout_of([1] * 4)
    for _ in range(2):  # none of whose gradients is computed
        recording("a layer", lambda x, _: [x * weight], [weight], torch.rand(4, 4), layout)
    assert not recording.graphs


def test_a_graph_computes_smaller_batches_with_any_number_of_rows() -> None:
    assert sizes_recorded_for([1, 1, 64, 65, 128, 300, 200, 190, 500, 1100, 513, 9]) == [
        64, 128, 320, 512, 1152,
    ]  # fmt: skip


def test_what_is_filled_up_again_and_again_gets_a_graph_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(graphs, "_WORTH_A_GRAPH", 4 * 900)
    assert sizes_recorded_for([1, 1000, *[700] * 2], size=4) == [1024]
    assert sizes_recorded_for([1, 1000, *[700] * 9], size=4) == [1024, 704]
    assert sizes_recorded_for([1, 1000, *[700, 600, 1024] * 2], size=4) == [1024]
    assert sizes_recorded_for([1, 1000, *[700, 600, 1024] * 9], size=4) == [1024, 704, 640]
    assert sizes_recorded_for([1, 1000, 700, 700, 650], size=4) == [1024, 704]


@pytest.mark.parametrize("keeps_rounded", [True, False])
@pytest.mark.parametrize("n_before", [1, 2, 3])
def test_gradients_of_both_types_are_added_up(n_before: int, keeps_rounded: bool) -> None:
    """Whatever the graphs, and however many runs come before their backward passes."""
    rounded_grads: Any = {} if keeps_rounded else None
    recording = LayerGraphs(Repeating(), rounded_grads)  # type: ignore[arg-type]
    weight, bias = (torch.ones(4, requires_grad=True) for _ in range(2))

    class Product(torch.autograd.Function):
        """Adds to the gradient of the weight itself, in bfloat16."""

        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x * weight.detach()

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
            (x,) = ctx.saved_tensors
            add_gradient(weight, (gradients[0] * x).sum(0).bfloat16(), rounded_grads)
            return gradients[0] * weight.detach(), None

    def compute(x: torch.Tensor, _: Any) -> list[torch.Tensor]:
        return [Product.apply(x, weight) + bias]  # type: ignore[no-untyped-call]

    for number in range(4):
        sizes = [40 + 64 * (number % 2)] * n_before
        every = [torch.randint(4, (n, 4)).float().requires_grad_() for n in sizes]
        outputs = [
            recording("a layer", compute, [weight, bias], x, layout_of([1] * len(x)))[0]
            for x in every
        ]
        for output in outputs[:: 1 if number < 2 else -1]:
            output.sum().backward()
        got = (rounded_grads or {}).pop(weight, weight.grad)
        assert (got.dtype == torch.bfloat16) is (keeps_rounded and n_before == 1)
        want = torch.cat(every).sum(0)
        torch.testing.assert_close(got.float(), want.detach(), rtol=2**-7, atol=0)
        torch.testing.assert_close(bias.grad, torch.full((4,), float(sum(sizes))))
        for x in every:
            torch.testing.assert_close(x.grad, torch.ones_like(x))
        weight.grad = bias.grad = None
    assert len(recording.graphs) == 1


def test_no_more_than_so_many_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "_MOST", 2)
    recording, compute = recording_of(4)
    for number, n_graphs in enumerate([1, 2, 2, 2]):
        compute(9, number)
        compute(9, number)
        assert sum(map(len, recording.graphs.values())) == n_graphs


def test_rows_without_a_kernel_are_computed_without_graphs(
    tiny_model: Path, recorder: Repeating, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "can_fuse_attention", lambda *_: False)
    run(tiny_model, LONG, precision="float32")
    assert recorder.n_recorded == 0


def test_where_graphs_are_not_used(
    tiny_model: Path, recorder: Repeating, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "Recorder", lambda device: recorder)
    assert graphs.graphs_on(GPU, 1, None) is not None
    assert graphs.graphs_on(GPU, 2, None) is None
    assert graphs.graphs_on(CPU, 1, None) is None
    run(tiny_model, replace(LONG, gradient_checkpointing=True), precision="float32")
    assert recorder.n_recorded == 0


def test_a_step_by_a_graph_leaves_nothing_that_was_made_for_predictions(tiny_model: Path) -> None:
    """A step changes weights without torch's knowledge, and a graph asks for no products."""
    network = open_model(tiny_model)
    items = make_items(network)
    precision = stepper.Precision("float32", CPU)
    infer(network, items, precision)
    caches = [*network.layer_runner.products.values()]
    assert all(cache.for_inference is not None for cache in caches)
    runner: Any = network.layer_runner
    runner.graphs = lambda _made_for, _compute, _weights, states, _layout: [states]
    network.logits(collate(items, np.arange(len(items)), CPU, torch.float32))
    assert caches == [*network.layer_runner.products.values()]
    assert all(cache.for_inference is None for cache in caches)


class _Noting(torch.autograd.Function):
    """Multiplies, and notes whether the backward pass is computed in lower precision."""

    seen: ClassVar[list[bool]] = []

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, weight = ctx.saved_tensors
        _Noting.seen.append(torch.is_autocast_enabled("cpu"))
        return gradients[0] * weight, (gradients[0] * x).sum(0)


def test_the_backward_pass_is_recorded_without_autocast_as_a_step_has_it() -> None:
    recorder, weight = Repeating(), torch.ones(8, requires_grad=True)
    made, layout = LayerGraphs(recorder, None), layout_of([3, 4])
    for _ in range(2):
        weight.grad = None
        with torch.autocast("cpu", dtype=torch.bfloat16):
            (output,) = made(
                "layers", lambda states, _: [_Noting.apply(states, weight)], [weight],
                torch.ones(7, 8), layout,
            )  # fmt: skip
        output.sum().backward()
    assert recorder.n_recorded == 2
    assert _Noting.seen
    assert not any(_Noting.seen)


@pytest.mark.parametrize("first", [[8] * 3, [8, 8, 40]])
def test_a_graph_computes_longer_and_shorter_rows_than_it_was_recorded_for(
    any_model: Path, recorder: Repeating, monkeypatch: pytest.MonkeyPatch, first: list[int]
) -> None:
    monkeypatch.setattr(operations, "SHORT", 20)
    texts = sentences([*first, 22, *[4] * 6])

    def losses() -> list[float]:
        network = open_model(any_model, dtype=torch.float32, pooling="mean")
        taking = stepper.Stepper(network, Labels(), LONG, stepper.Precision("float32", CPU), 100)
        taking.set_items(
            Labels().encode((texts, None), torch.arange(10).numpy() % 2, network.text_tokenizer)
        )
        for rows in [range(3)] * 2 + [range(3, 10)] * 2:
            taking.step(torch.tensor(rows).numpy())
        return [loss for loss, _ in taking.results(wait=True)]

    got = losses()
    assert recorder.n_repeated == 2 * 3
    without_graphs(monkeypatch)
    assert losses() == pytest.approx(got)


# --- on a GPU ------------------------------------------------------------------------------------


@pytest.mark.gpu
def test_a_gpu_trains_by_graphs_as_without(
    any_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replayed: list[int] = []
    backward = graphs._Graph.backward

    def noted(graph: Any, n_tokens: int, *rest: Any) -> Any:
        replayed.append(n_tokens)
        return backward(graph, n_tokens, *rest)

    monkeypatch.setattr(graphs._Graph, "backward", noted)
    for recipe in (LONG, replace(LONG, accumulate=2)):
        replayed.clear()
        got, passes = run(any_model, recipe, precision="bfloat16", device=GPU, pooling="mean")
        assert len(replayed) > 2
        with pytest.MonkeyPatch.context() as patch:
            without_graphs(patch)
            n_before = len(replayed)
            want, others = run(any_model, recipe, precision="bfloat16", device=GPU, pooling="mean")
            assert len(replayed) == n_before
        assert_all_close(got, want, 1e-3)
        assert [each.loss for each in passes] == pytest.approx(
            [each.loss for each in others], rel=1e-2
        )
