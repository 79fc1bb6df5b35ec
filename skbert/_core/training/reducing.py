"""Gradients summed over processes, in buckets, while the backward pass still computes others.

All processes have the same buckets and send them in the same order, each as soon as its gradients
are complete in the last micro-batch of a step. Depends on torch, ``distributed`` and ``optim``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from skbert._core.runtime.distributed import ProcessGroup
from skbert._core.training.optim import AdamW

__all__ = ["BUCKET_SIZE", "GradientReducer"]

BUCKET_SIZE = 2**21  # numbers that are sent together at least, but for the last


class _Bucket:
    """Gradients that are sent as one message."""

    def __init__(self, weights: Sequence[torch.Tensor], dtype: torch.dtype) -> None:
        self.weights = weights
        sizes = [weight.numel() for weight in weights]
        self.flat = torch.empty(sum(sizes), dtype=dtype, device=weights[0].device)
        parts = torch.split(self.flat, sizes)
        self.views = [part.view_as(x) for part, x in zip(parts, weights, strict=True)]

    def fill(self, optimizer: AdamW) -> None:
        """Copy the gradients of this process; zeros where there is none."""
        for weight, view in zip(self.weights, self.views, strict=True):
            gradient = optimizer.gradient(weight)
            view.zero_() if gradient is None else view.copy_(gradient)


class GradientReducer:
    """Sums the gradients of an optimizer over the processes of a group.

    Parameters
    ----------
    group : ProcessGroup
        The processes.
    optimizer : AdamW
        Whose gradients are summed, in place.
    weights : sequence of Tensor
        All weights of the model, in the order of the forward pass. Others come before them.
    dtype : torch.dtype
        The type in which gradients are sent.

    Attributes
    ----------
    is_last : bool
        Whether the backward pass that follows completes the gradients of the step.
    """

    overlaps = True  # for comparison only: whether buckets are sent during the backward pass

    def __init__(
        self,
        group: ProcessGroup,
        optimizer: AdamW,
        weights: Sequence[torch.Tensor],
        dtype: torch.dtype,
    ) -> None:
        self._group, self._optimizer, self._dtype = group, optimizer, dtype
        self._places = {id(weight): place for place, weight in enumerate(weights)}
        self._weights: list[torch.Tensor] = []  # that are trained, in the order of sending
        self._hooks: list[tuple[object, torch.utils.hooks.RemovableHandle]] = []
        self._buckets: list[_Bucket] = []
        self._waits: list[Callable[[], None]] = []  # for each bucket that was sent
        self._ready: set[torch.Tensor] = set()
        self.is_last = False

    @property
    def n_bytes(self) -> int:
        """Sent by this process in a step, apart from a few numbers."""
        return sum(bucket.flat.nbytes for bucket in self._buckets)

    def begin(self) -> None:
        """Begin a step; nothing of it was sent."""
        self._waits, self.is_last = [], False
        if self._group.size == 1:
            return
        trained = self._optimizer.weights()
        trained.sort(key=lambda weight: self._places.get(id(weight), -1), reverse=True)
        if [*map(id, trained)] != [*map(id, self._weights)]:
            self.close()
            self._weights, self._buckets = trained, []
            self._hooks = [self._hook(weight) for weight in trained]

    def begin_micro_batch(self, *, is_last: bool) -> None:
        """Begin a micro-batch, perhaps again; what was sent of the step stays as it is."""
        self._ready.clear()
        self.is_last = is_last and self.overlaps

    def finish(self, sums: torch.Tensor) -> None:
        """Replace the gradients of all weights, and ``sums``, by their sums over the processes.

        A weight has a gradient afterwards if it had one in any process.
        """
        self.is_last = False
        self._send(len(self._buckets))
        self._group.all_reduce([sums])
        optimizer, weights = self._optimizer, self._weights
        found = [optimizer.gradient(weight) is not None for weight in weights]
        n_found = torch.tensor(found, dtype=torch.int32, device="cpu")
        self._group.all_reduce([n_found])
        trained = {x for x, n in zip(weights, n_found.tolist(), strict=True) if n}
        self._add_buckets(trained)
        self._send(len(self._buckets))
        for bucket, wait in zip(self._buckets, self._waits, strict=True):
            wait()
            for weight, view in zip(bucket.weights, bucket.views, strict=True):
                if weight in trained:
                    optimizer.set_gradient(weight, view)

    def close(self) -> None:
        """Watch no weight any longer."""
        for _, hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _hook(self, weight: torch.Tensor) -> tuple[object, torch.utils.hooks.RemovableHandle]:
        """Note when a backward pass is done with a weight, also where it adds to ``grad`` itself.

        The node is one that torch keeps only as long as somebody else does.
        """
        with torch.enable_grad():
            view = weight.expand_as(weight)
        node = view.grad_fn.next_functions[0][0] if view.grad_fn else None
        assert node is not None
        return node, node.register_hook(lambda *_: self._note_ready(weight))

    def _note_ready(self, weight: torch.Tensor) -> None:
        """Send the buckets that are complete with this weight, in their order."""
        if not self.is_last:
            return
        self._ready.add(weight)
        n_complete = len(self._waits)
        while n_complete < len(self._buckets) and self._ready.issuperset(
            self._buckets[n_complete].weights
        ):
            n_complete += 1
        self._send(n_complete)

    def _send(self, n_buckets: int) -> None:
        """Send so many buckets in all, those that were sent included."""
        for bucket in self._buckets[len(self._waits) : n_buckets]:
            bucket.fill(self._optimizer)
            self._waits.append(self._group.begin_all_reduce(bucket.flat))

    def _add_buckets(self, trained: set[torch.Tensor]) -> None:
        """Add buckets for weights that had no gradient in any earlier step."""
        known = {weight for bucket in self._buckets for weight in bucket.weights}
        new = [weight for weight in self._weights if weight in trained - known]
        first = 0
        for end in range(1, len(new) + 1):
            size = sum(weight.numel() for weight in new[first:end])
            if size >= BUCKET_SIZE or end == len(new):
                self._buckets.append(_Bucket(new[first:end], self._dtype))
                first = end
