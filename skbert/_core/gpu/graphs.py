"""Layers in training as graphs: what they start on a GPU is recorded once, and then repeated.

The layers of a step start some hundred kernels, which takes Python longer than it takes a GPU to
compute those of a small step; a graph starts them in one call. It is recorded for a number of
tokens and of rows. Batches with fewer tokens are filled up with more rows, which nothing reads.
Depends on torch, seeds and a batch's layout.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

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

_SEEN = 2  # batches of a size before its graph is recorded, which takes about three steps
_MOST = 24  # graphs, which all keep their inputs and outputs
_FINEST, _COARSEST = 64, SHORT  # tokens that sizes differ by
# Sizes differ by a quarter up to so many multiplications of a token's states with a square matrix:
# a GPU computes what is filled up in the time that Python would take.
_FEW = 1 << 32

Compute = Callable[[torch.Tensor, Layout], list[torch.Tensor]]


class Recorder:
    """Records what a function starts on a GPU."""

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
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


class _Size(NamedTuple):
    """What graphs differ by, for the same layers."""

    n_tokens: int
    n_rows: int
    n_spare: int  # rows that fill up
    is_short: bool
    needs_grad: bool  # whether what is below the layers is trained


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
        self.n_seen: Counter[Hashable] = Counter()
        self.graphs: dict[Hashable, _Graph] = {}
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
        size = _size_of(states, layout)
        key = made_for, size
        self.n_seen[key] += 1
        if self._can_run(weights):
            if key not in self.graphs and self.n_seen[key] > _SEEN and len(self.graphs) < _MOST:
                self._record(key, compute, weights, (states, layout))
            if key in self.graphs:
                return self._run(self.graphs[key], states, layout, shift)
        with seeds_of_a_run(shift):
            return compute(states, layout)

    def _can_run(self, weights: Sequence[torch.Tensor]) -> bool:
        """Whether a run may write the gradients, and the memory between forward and backward."""
        if not self.is_enabled or not weights or self.open_run() is not None:
            return False
        return weights[0].grad is None and not self.rounded_grads

    def _record(
        self,
        key: tuple[Hashable, _Size],
        compute: Compute,
        weights: Sequence[torch.Tensor],
        batch: tuple[torch.Tensor, Layout],
    ) -> None:
        try:
            self.graphs[key] = _Graph(self, compute, weights, batch, key[1])
        except Exception as error:  # noqa: BLE001 - CUDA's, Triton's or a compiler's
            self.is_enabled, self.graphs = False, {}
            for weight in weights:
                pop_gradient(weight, self.rounded_grads)
            if not is_out_of_memory(error):
                warn(
                    "Steps of training are computed without graphs of the GPU, more slowly: it"
                    f" could not record one ({type(error).__name__}: {error!s:.200})."
                )

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


def _size_of(states: torch.Tensor, layout: Layout) -> _Size:
    n_tokens = len(states)
    is_small = n_tokens * states.shape[1] ** 2 < _FEW
    step = max(_FINEST, 1 << max(0, n_tokens.bit_length() - 3)) if is_small else _COARSEST
    return _Size(
        n_tokens + -n_tokens % step, len(layout.lengths), -(-step // SHORT),
        layout.max_seqlen <= SHORT, states.requires_grad,
    )  # fmt: skip


class _Graph:
    """Layers recorded forward and backward, with the memory that they read and write."""

    def __init__(
        self,
        owner: LayerGraphs,
        compute: Compute,
        weights: Sequence[torch.Tensor],
        batch: tuple[torch.Tensor, Layout],
        size: _Size,
    ) -> None:
        like, layout = batch
        self.compute, self.weights, self.size = compute, weights, size
        self.rounded_grads = owner.rounded_grads
        self.outputs: list[torch.Tensor] = []
        self.states = like.new_zeros(size.n_tokens, like.shape[1], requires_grad=size.needs_grad)
        self.shift = torch.zeros(1, dtype=torch.int32, device=like.device)
        self.layout = Layout(
            np.array([SHORT if size.is_short else size.n_tokens]),
            (),
            torch.empty(size.n_rows + size.n_spare + 1, dtype=torch.int32, device=like.device),
            torch.empty(size.n_tokens, dtype=torch.int64, device=like.device),
        )
        places = torch.arange(size.n_spare * SHORT, device=like.device)
        self.spare_rows = places // SHORT + size.n_rows
        self.spare_ends = places[::SHORT].int() + SHORT
        self.read(like, layout, 0)
        with owner.recorder.aside():
            self._forward()  # once before, so that all kernels are compiled
            self.grad_outputs = [torch.zeros_like(output) for output in self.outputs]
            self._backward()
            self._take_grads()
            self.run_forward = owner.recorder.record(self._forward)
            self.run_backward = owner.recorder.record(self._backward)
            self.grads = self._take_grads()
        self.outputs = [output.detach() for output in self.outputs]

    def _forward(self) -> None:
        with torch.enable_grad(), seeds_of_a_run(self.shift):
            self.outputs = self.compute(self.states, self.layout)

    def _backward(self) -> None:
        inputs = [*self.weights, *[self.states] * self.size.needs_grad]
        self.found = torch.autograd.grad(
            self.outputs, inputs, self.grad_outputs, allow_unused=True
        )

    def _take_grads(self) -> list[torch.Tensor | None]:
        """The gradients of the weights, wherever the backward pass has put them."""
        put = [pop_gradient(weight, self.rounded_grads) for weight in self.weights]
        return [x if found is None else found for x, found in zip(put, self.found, strict=False)]

    def read(self, states: torch.Tensor, layout: Layout, shift: int) -> None:
        """Put a batch where the graph reads it."""
        n_tokens, own = len(states), self.layout
        self.states.detach()[:n_tokens].copy_(states.detach())
        sizes = [self.size.n_rows + 1, self.size.n_spare]
        row_ends, spare_ends = torch.split(own.cu_seqlens, sizes)
        row_ends.copy_(layout.cu_seqlens)
        torch.clamp(self.spare_ends + n_tokens, max=self.size.n_tokens, out=spare_ends)
        rows, spare_rows = own.row_of_token[:n_tokens], own.row_of_token[n_tokens:]
        rows.copy_(layout.row_of_token)
        spare_rows.copy_(self.spare_rows[: len(spare_rows)])
        self.shift.fill_(shift)

    def backward(self, n_tokens: int, grad_outputs: Sequence[torch.Tensor]) -> torch.Tensor | None:
        """Add to the gradients of the weights; the gradient of the states, if it is needed."""
        if self.rounded_grads or self.weights[0].grad is not None:
            self._move_gradients()
        for own, grad in zip(self.grad_outputs, grad_outputs, strict=True):
            own[:n_tokens].copy_(grad)
            own[n_tokens:].zero_()
        self.run_backward()
        for weight, own_grad in zip(self.weights, self.grads, strict=True):
            if own_grad is not None:
                add_gradient(weight, own_grad, self.rounded_grads)
        return self.found[-1][:n_tokens] if self.size.needs_grad else None

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
