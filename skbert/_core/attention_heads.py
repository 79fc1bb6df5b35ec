"""What attention heads do: how much a loss depends on each, and which tokens each attends to.

Both are read by hooks on a forward pass, packed or padded, of a model that shares only its weights
with the one in question; always in the precision of these weights. Depends on the network, batches
and the Task protocol; knows no task by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from operator import attrgetter
from typing import Any

import numpy as np
import torch

from skbert._arrays import FloatArray, IntArray
from skbert._core.attention.packed import scores
from skbert._core.attention.pruned import remaining_heads
from skbert._core.batches import collate
from skbert._core.infer import INFERENCE_TOKENS, in_parts
from skbert._core.items import Items
from skbert._core.models.network import Network
from skbert._core.runtime.interrupts import deferred_interrupts
from skbert._core.runtime.modes import default_modes
from skbert._core.task import Batch, Layout, Task
from skbert._core.training.stepper import TRAINING_TOKENS

__all__ = ["attention_weights", "gate_gradients"]


@deferred_interrupts()
@default_modes()
def gate_gradients(network: Network, task: Task, items: Items) -> FloatArray:
    """Absolute gradient of each sample's loss by a gate of 1 on each head's output, averaged.

    ``(n_layers, n_heads)``, NaN for pruned heads. The loss of a sample is the sum over its
    items; the sum over samples is divided by the weight of all. The network gets hooks.
    """
    ends = np.cumsum([len(heads) for heads in remaining_heads(network.model.config)]).tolist()
    samples, owner = np.unique(items.samples, return_inverse=True)
    by_sample, total = np.zeros((len(samples), ends[-1])), 0.0

    def compute(item_indices: IntArray) -> tuple[FloatArray, float]:
        batch = collate(items, item_indices, network.device, network.dtype)
        with torch.enable_grad():
            gates = batch.weights.new_ones(len(item_indices), ends[-1]).requires_grad_()
            factors = torch.tensor_split(gates[_item_at(network, batch)], ends[:-1], dim=-1)
            with _gated(network, factors):
                loss, weight = task.loss(network.logits(batch), batch)
            (gradients,) = torch.autograd.grad(loss, gates)
        return gradients.cpu().numpy(), float(weight)

    budget = TRAINING_TOKENS[network.device.type]
    for item_indices, (gradients, weight) in in_parts(items.sizes, budget, compute):
        np.add.at(by_sample, owner[item_indices], gradients)
        total += weight
    means = np.abs(by_sample).sum(axis=0) / total
    return _with_nan_for_pruned(network, np.split(means, ends[:-1]))


@deferred_interrupts()
@default_modes()
def attention_weights(
    network: Network, items: Items, mask: FloatArray | None = None
) -> list[FloatArray]:
    """Attention weights of each row of tokens: ``(n_layers, n_heads, length, length)`` each.

    The weights of a token, the third axis, for all tokens, the fourth, add up to the entry of the
    mask ``(n_layers, n_heads)`` for the head, 1 without a mask; those of pruned heads are NaN. The
    network gets hooks.
    """
    config, rows = network.model.config, items.by_row()
    if mask is None:
        mask = np.ones((config.num_hidden_layers, config.num_attention_heads))
    mask = mask.astype(str(network.dtype).removeprefix("torch."))
    left = enumerate(remaining_heads(config))
    factors = [torch.from_numpy(mask[layer, heads]).to(network.device) for layer, heads in left]

    def compute(item_indices: IntArray) -> list[FloatArray]:
        with torch.inference_mode():
            batch = collate(rows, item_indices, network.device, network.dtype)
            with _gated(network, factors), _recorded(network, batch.layout) as seen:
                network.hidden(batch)
        order = range(len(item_indices)) if batch.row_order is None else batch.row_order.tolist()
        return [_with_nan_for_pruned(network, [layer[row] for layer in seen]) for row in order]

    budget = INFERENCE_TOKENS[network.device.type]
    by_row = {
        row: weights * mask[:, :, None, None]
        for item_indices, parts in in_parts(rows.sizes, budget, compute)
        for row, weights in zip(item_indices.tolist(), parts, strict=True)
    }
    return [by_row[row] for row in range(len(rows))]


def _with_nan_for_pruned(network: Network, parts: Sequence[FloatArray]) -> FloatArray:
    """Values of all heads of each layer, from those of the remaining ones; NaN for the pruned."""
    left, n_heads = remaining_heads(network.model.config), network.model.config.num_attention_heads
    whole = np.full((len(left), n_heads, *parts[0].shape[1:]), np.nan, parts[0].dtype)
    for layer, (heads, part) in enumerate(zip(left, parts, strict=True)):
        whole[layer, heads] = part
    return whole


def _item_at(network: Network, batch: Batch) -> torch.Tensor:
    """The item of each token in the hidden states, or of each row where these are padded."""
    numbers = torch.arange(len(batch.rows_per_item), device=network.device)
    items = torch.repeat_interleave(numbers, batch.rows_per_item)
    if batch.row_order is not None:
        items = torch.empty_like(items).index_copy(0, batch.row_order, items)
    return items[batch.layout.row_of_token][None] if network.is_packed else items[:, None]


@contextmanager
def _gated(network: Network, factors: Sequence[torch.Tensor]) -> Iterator[None]:
    """Multiply the outputs of each layer's heads by factors of shape ``(..., n_heads)``."""

    def gate(factor: torch.Tensor) -> Callable[..., Any]:
        def hook(module: Any, args: Any) -> Any:  # noqa: ARG001 - torch hands it the module
            by_head = args[0].unflatten(-1, (factor.shape[-1], -1))
            return ((by_head * factor[..., None]).flatten(-2),)

        return hook

    with ExitStack() as hooks:
        output_of = attrgetter(network.family.layer_paths.attention_out)
        layers = network.family.layers(network.model)
        for layer, factor in zip(layers, factors, strict=True):
            hooks.enter_context(output_of(layer).register_forward_pre_hook(gate(factor)))
        yield


@contextmanager
def _recorded(network: Network, layout: Layout) -> Iterator[list[list[FloatArray]]]:
    """Yield a list, to which each layer adds the attention weights of all rows as it runs."""
    seen: list[list[FloatArray]] = []
    starts = layout.cu_seqlens[layout.row_of_token]

    def look(query: Any, key: Any, module: Any, args: Any) -> None:
        states = args[0]
        if not network.is_packed:
            positions = torch.arange(len(starts), device=starts.device) - starts
            states = states[layout.row_of_token, positions][None]
        size = getattr(module, network.family.attention.head_size)
        q, k = (linear(states[0]).reshape(len(starts), -1, size) for linear in (query, key))
        seen.append(_weights(module, q, k, layout))

    with ExitStack() as hooks:
        paths = network.family.layer_paths
        for layer in network.family.layers(network.model):
            attention, *linears = attrgetter(paths.attention, paths.query, paths.key)(layer)
            hooks.enter_context(attention.register_forward_pre_hook(partial(look, *linears)))
        yield seen


def _weights(attention: Any, q: torch.Tensor, k: torch.Tensor, layout: Layout) -> list[FloatArray]:
    """Attention weights of each row, ``(n_heads, length, length)``.

    ``q`` and ``k`` are ``(n_tokens, n_heads, head_size)``.
    """
    weights: list[FloatArray] = []
    for begin, count, length in layout.runs:
        run = slice(begin, begin + count * length)
        run_q, run_k = (x[run].view(count, length, *x.shape[1:]).transpose(1, 2) for x in (q, k))
        weights += [*torch.softmax(scores(attention, run_q, run_k), dim=-1).cpu().numpy()]
    return weights
