"""Layers in training as graphs: what they start on a GPU is recorded once, and then repeated.

The layers of a step start some hundred kernels, which takes Python longer than it takes a GPU to
compute those of a small step; a graph starts them in one call. It is recorded for a number of
tokens, which takes about as long as a step without one. Batches with fewer tokens are filled up
with more rows, which nothing reads, until as much was computed for nothing as to record a graph
for their own number would have cost.
Depends on torch, seeds and a batch's layout.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial

import numpy as np
import torch

from skbert._core.gpu.operations import SHORT
from skbert._core.runtime.autograd import (
    Context,
    RoundedGrads,
    add_gradient,
    pop_gradient,
    seed_of_a_run,
    seeds_of_a_run,
)
from skbert._core.runtime.device import is_out_of_memory
from skbert._core.task import Layout
from skbert.exceptions import warn

__all__ = ["LayerGraphs", "Recorder", "graphs_on"]

_MOST = 24  # graphs, which all keep their inputs and outputs
_FINEST = 64  # tokens that sizes differ by at least
# Numbers in the states of tokens that a fast GPU computes, forward and backward, while a graph of
# the same layers is recorded.
_WORTH_A_GRAPH = 8 << 20

Compute = Callable[[torch.Tensor, Layout], list[torch.Tensor]]


@cache
def _stream_of(device: torch.device) -> torch.cuda.Stream:
    """The stream that is recorded: the same for each fit, as torch keeps memory for every one."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


class Recorder:
    """Records what a function starts on a GPU."""

    def __init__(self, device: torch.device) -> None:
        self.stream = _stream_of(device)
        self.pool = torch.cuda.graph_pool_handle()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Inside the ``with``, work is put into the stream that is recorded."""
        device = self.stream.device
        current = torch.cuda.current_stream(device)
        free, _ = torch.cuda.mem_get_info(device)
        if free < torch.cuda.memory_reserved(device):  # while it records, torch frees no memory
            torch.cuda.empty_cache()
        self.stream.wait_stream(current)
        try:
            with torch.cuda.stream(self.stream):
                yield
        finally:
            current.wait_stream(self.stream)

    def record(self, function: Callable[[], None]) -> Callable[[], None]:
        """Record a function without computing it; what is returned computes the same."""
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(self.pool, "thread_local")
        try:
            function()
        except BaseException:
            with suppress(RuntimeError):  # which says again that there was an error
                graph.capture_end()
            raise
        graph.capture_end()
        return graph.replay


class LayerGraphs:
    """The graphs of layers in a training, by what they are made for and their size.

    Parameters
    ----------
    recorder : Recorder
        What records them.
    rounded_grads : dict of Tensor to Tensor, or None
        Where gradients in lower precision are put, by weight.
    """

    def __init__(self, recorder: Recorder, rounded_grads: RoundedGrads) -> None:
        self.recorder, self.rounded_grads = recorder, rounded_grads
        self.is_enabled = True
        # None is recorded for layers before a backward pass has reached them, as all kernels have
        # to be compiled.
        self.graphs: dict[Hashable, list[_Graph]] = {}
        self.wasted: Counter[tuple[Hashable, int]] = Counter()  # numbers, by the size to be saved
        # The run whose backward pass is yet to come: all graphs share the memory between.
        self.open_run: Callable[[], object] = lambda: None

    def __call__(
        self,
        made_for: Hashable,
        compute: Compute,
        weights: Sequence[torch.Tensor],
        states: torch.Tensor,
        layout: Layout,
    ) -> list[torch.Tensor]:
        """What ``compute`` returns of states and layout, by a graph where there is one."""
        shift = seed_of_a_run()
        key = made_for, states.requires_grad
        can_run = self._can_run(weights)
        if can_run and key in self.graphs:
            graph = self._graph_for(key, compute, weights, states)
            if graph is not None:
                return self._run(graph, states, layout, shift)
        with seeds_of_a_run(torch.full((1,), shift, dtype=torch.int32, device=states.device)):
            outputs = compute(states, layout)
        if can_run and key not in self.graphs:
            outputs[-1].register_hook(partial(self._note_backward, key))  # type: ignore[no-untyped-call]
        return outputs

    def _note_backward(self, key: Hashable, _: torch.Tensor) -> None:
        """From now on such layers can be recorded."""
        self.graphs.setdefault(key, [])

    def _graph_for(
        self,
        key: Hashable,
        compute: Compute,
        weights: Sequence[torch.Tensor],
        states: torch.Tensor,
    ) -> _Graph | None:
        """The graph that fills a batch up least, or a new one that is worth it."""
        n_tokens, width = states.shape
        graphs, size = self.graphs[key], _size_of(n_tokens)
        fitting = [graph for graph in graphs if len(graph.states) >= n_tokens]
        best = min(fitting, key=lambda graph: len(graph.states), default=None)
        if best is not None:
            wasted = len(best.states) - size
            self.wasted[key, size] += wasted * width
            if not wasted or self.wasted[key, size] < _WORTH_A_GRAPH:
                return best
        if sum(map(len, self.graphs.values())) >= _MOST:
            return best
        graph = self._record(compute, weights, states, size)
        if graph is not None:
            graphs.append(graph)
        return graph

    def _can_run(self, weights: Sequence[torch.Tensor]) -> bool:
        """Whether a run may write the gradients, and the memory between forward and backward."""
        if not self.is_enabled or not weights or self.open_run() is not None:
            return False
        return weights[0].grad is None and not self.rounded_grads

    def _record(
        self,
        compute: Compute,
        weights: Sequence[torch.Tensor],
        like: torch.Tensor,
        size: int,
    ) -> _Graph | None:
        try:
            return _Graph(self, compute, weights, like, size)
        except Exception as error:  # noqa: BLE001 - CUDA's, Triton's or a compiler's
            self.is_enabled, self.graphs = False, {}
            for weight in weights:
                pop_gradient(weight, self.rounded_grads)
            if not is_out_of_memory(error):
                warn(
                    "Steps of training are computed without graphs of the GPU, more slowly: it"
                    f" could not record one ({type(error).__name__}: {error!s:.200})."
                )
            return None

    def _run(
        self, graph: _Graph, states: torch.Tensor, layout: Layout, shift: int
    ) -> list[torch.Tensor]:
        run = _Run(graph, len(states))
        self.open_run = weakref.ref(run)  # the run lives until its backward pass
        graph.read(states, layout, shift)
        outputs: tuple[torch.Tensor, ...] = _Replayed.apply(run, states, graph.weights[0])  # type: ignore[no-untyped-call]
        return [*outputs]


def graphs_on(
    device: torch.device, n_processes: int, rounded_grads: RoundedGrads
) -> LayerGraphs | None:
    """Graphs for a training on a GPU, whose gradients no other process waits for."""
    is_fit = device.type == "cuda" and n_processes == 1
    return LayerGraphs(Recorder(device), rounded_grads) if is_fit else None


def _size_of(n_tokens: int) -> int:
    """How many tokens a graph gets that is recorded for so many: up to eight sizes per octave."""
    octave = 1 << (n_tokens.bit_length() - 1)
    return n_tokens + -n_tokens % max(_FINEST, octave // 8)


class _Graph:
    """Layers recorded forward and backward, with the memory that they read and write."""

    def __init__(
        self,
        owner: LayerGraphs,
        compute: Compute,
        weights: Sequence[torch.Tensor],
        like: torch.Tensor,
        n_tokens: int,
    ) -> None:
        device = like.device
        self.compute, self.weights, self.needs_grad = compute, weights, like.requires_grad
        self.rounded_grads = owner.rounded_grads
        self.outputs: list[torch.Tensor] = []
        self.states = like.new_zeros(n_tokens, like.shape[1], requires_grad=self.needs_grad)
        self.shift = torch.zeros(1, dtype=torch.int32, device=device)
        self.layout = Layout(  # as many rows as there are tokens, of which the last are empty
            np.array([SHORT]),
            (),
            torch.zeros(n_tokens + 1, dtype=torch.int32, device=device),
            torch.zeros(n_tokens, dtype=torch.int64, device=device),
            longest=n_tokens,
        )
        places = torch.arange(n_tokens, device=device)
        self.spare_rows, self.spare_ends = places // SHORT, (places.int() + 1) * SHORT
        with owner.recorder.aside():
            self.run_forward = owner.recorder.record(self._forward)
            self.grad_outputs = [torch.zeros_like(output) for output in self.outputs]
            self.run_backward = owner.recorder.record(self._backward)
            self.grads = self._take_grads()
        pairs = zip(self.weights, self.grads, strict=True)
        given = {weight: grad for weight, grad in pairs if grad is not None}
        keeps_rounded = self.rounded_grads is not None
        self.rounded = {
            weight: grad for weight, grad in given.items()
            if keeps_rounded and grad.dtype != weight.dtype
        }  # fmt: skip
        self.others = [pair for pair in given.items() if pair[0] not in self.rounded]
        self.outputs = [output.detach() for output in self.outputs]

    def _forward(self) -> None:
        with torch.enable_grad(), seeds_of_a_run(self.shift):
            self.outputs = self.compute(self.states, self.layout)

    def _backward(self) -> None:
        inputs = [*self.weights, *[self.states] * self.needs_grad]
        with torch.autocast(self.states.device.type, enabled=False):  # as a step has it
            self.found = torch.autograd.grad(
                self.outputs, inputs, self.grad_outputs, allow_unused=True
            )

    def _take_grads(self) -> list[torch.Tensor | None]:
        """The gradients of the weights, wherever the backward pass has put them."""
        put = [pop_gradient(weight, self.rounded_grads) for weight in self.weights]
        return [x if found is None else found for x, found in zip(put, self.found, strict=False)]

    def read(self, states: torch.Tensor, layout: Layout, shift: int) -> None:
        """Put a batch where the graph reads it."""
        n_tokens, n_rows, size = len(states), len(layout.cu_seqlens) - 1, len(self.states)
        ends, rows = self.layout.cu_seqlens, self.layout.row_of_token
        self.states.detach()[:n_tokens].copy_(states.detach())
        ends[: n_rows + 1].copy_(layout.cu_seqlens)
        spare_ends = self.spare_ends[: size - n_rows] + n_tokens
        torch.clamp(spare_ends, max=size, out=ends[n_rows + 1 :])
        rows[:n_tokens].copy_(layout.row_of_token)
        torch.add(self.spare_rows[: size - n_tokens], n_rows, out=rows[n_tokens:])
        self.shift.fill_(shift)

    def backward(self, n_tokens: int, grad_outputs: Sequence[torch.Tensor]) -> torch.Tensor | None:
        """Add to the gradients of the weights; the gradient of the states, if it is needed."""
        given = [*self.rounded.items()]
        if self.rounded_grads or self.weights[0].grad is not None:
            self._move_gradients()
        elif self.rounded_grads is not None:
            given = []
            self.rounded_grads.update(self.rounded)  # all at once, which is faster
        for own, grad in zip(self.grad_outputs, grad_outputs, strict=True):
            own[:n_tokens].copy_(grad)
            own[n_tokens:].zero_()
        self.run_backward()
        for weight, own_grad in (*given, *self.others):
            add_gradient(weight, own_grad, self.rounded_grads)
        return self.found[-1][:n_tokens] if self.needs_grad else None

    def _move_gradients(self) -> None:
        """Copy gradients of another run, which may be where the graph writes."""
        for weight in self.weights:
            earlier = pop_gradient(weight, self.rounded_grads)
            weight.grad = None if earlier is None else earlier.to(weight.dtype, copy=True)


class _Run:
    """A batch that a graph computes."""

    def __init__(self, graph: _Graph, n_tokens: int) -> None:
        self.graph, self.n_tokens = graph, n_tokens


class _Replayed(torch.autograd.Function):
    """The states that a graph computes of what it has read."""

    @staticmethod
    def forward(ctx: Context, run: _Run, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        del tensors  # what needs a gradient
        run.graph.run_forward()
        ctx.settings = run
        return tuple(output.detach()[: run.n_tokens] for output in run.graph.outputs)

    @staticmethod
    def backward(ctx: Context, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        run: _Run = ctx.settings
        grad_states = run.graph.backward(run.n_tokens, gradients)
        ctx.settings = None  # another run may begin
        return None, grad_states, None
