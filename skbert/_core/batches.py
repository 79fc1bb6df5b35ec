"""Plans of which items share a batch, and the packed batches made from them.

Depends on numpy, torch tensors and items; knows no model. A packed batch holds the tokens of
all its rows one after another, ``(1, n_tokens)``, and not one token of padding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import torch

from skbert._arrays import Array, IntArray
from skbert._core.items import Items
from skbert._core.task import Batch, Layout
from skbert._core.text.tokens import Ragged

__all__ = ["by_budget", "by_length", "collate", "steps_of_a_pass"]

# Steps whose samples are sorted together before they are cut into steps. More would make the steps
# a little faster, but steps of one length each learn less.
_NEIGHBOURS = 4


def by_length(sizes: IntArray, budget: int) -> list[IntArray]:
    """Batches of similar sizes, each of at most ``budget`` tokens or of a single item."""
    order = np.argsort(sizes, kind="stable")
    return [order[part] for part in by_budget(sizes[order], budget)]


def by_budget(sizes: IntArray, budget: int) -> Iterator[slice]:
    """Cut a sequence of sizes, in its order, wherever the next one would exceed the budget."""
    ends = np.cumsum(sizes)
    begin, n = 0, len(sizes)
    while begin < n:
        spent = ends[begin - 1] if begin else 0
        end = max(int(np.searchsorted(ends, spent + budget, side="right")), begin + 1)
        yield slice(begin, end)
        begin = end


def steps_of_a_pass(
    items: Items, samples_per_step: int, rng: np.random.Generator
) -> list[IntArray]:
    """The items of each optimizer step of one pass, in a random order.

    Every step covers the same number of samples; what remains of the shuffled samples is the
    last step. The others are sorted by size within stretches of some steps, so that a step
    holds few distinct lengths, and the steps are shuffled again.
    """
    samples, owner = np.unique(items.units, return_inverse=True)
    size = np.zeros(len(samples), np.int64)
    np.maximum.at(size, owner, items.sizes)
    order = rng.permutation(len(samples))
    n_steps = len(order) // samples_per_step
    order, rest = np.split(order, [n_steps * samples_per_step])
    stretch = samples_per_step * _NEIGHBOURS
    steps: list[IntArray] = []
    for at in range(0, len(order), stretch):
        part = order[at : at + stretch]
        steps += list(part[np.argsort(size[part], kind="stable")].reshape(-1, samples_per_step))
    steps = [steps[i] for i in rng.permutation(n_steps)]
    steps += [rest] if len(rest) else []
    owned = Ragged.of(np.argsort(owner, kind="stable"), np.bincount(owner))
    return [owned.take(step).values for step in steps]


def collate(
    items: Items, item_indices: IntArray, device: torch.device, dtype: torch.dtype
) -> Batch:
    """Pack the items with these indices; floating targets and weights come in ``dtype``."""
    part = items.take(item_indices)
    order = back = np.arange(len(part.tokens))
    table = part.tokens
    in_order = bool((table.lengths[1:] >= table.lengths[:-1]).all())
    if not in_order:
        order = np.argsort(table.lengths, kind="stable")
        table, back = table.take(order), np.argsort(order, kind="stable")
    lengths, starts = table.lengths, table.ids.starts
    row_of_token = np.repeat(np.arange(len(table)), lengths)
    tokens = np.arange(len(row_of_token))
    positions = tokens - starts[row_of_token]
    send = partial(_send, device=device, dtype=dtype)
    known = partial(_send_known, device=device, dtype=dtype)
    targets = part.targets.values if isinstance(part.targets, Ragged) else part.targets
    selected = part.selected_tokens
    return Batch(
        input_ids=send(table.ids.values.astype(np.int64))[None],
        position_ids=send(positions)[None],
        token_type_ids=send((positions >= table.second[row_of_token]).astype(np.int64))[None],
        layout=Layout(
            lengths, tuple(_runs(lengths, starts)), send(starts.astype(np.int32)),
            send(row_of_token),
        ),
        row_order=None if in_order else send(back),
        token_order=None if in_order else send(Ragged(tokens, starts).take(back).values),
        rows_per_item=send(np.diff(part.rows)),
        tokens_per_item=send(part.sizes),
        weights=send(part.weights),
        selected_tokens=None if selected is None else send(
            np.repeat(starts[back], selected.lengths) + selected.values),
        selected_per_item=None if selected is None else send(np.diff(selected.starts[part.rows])),
        targets=known(targets),
        features=known(part.features),
        states=known(_states_of(part, order)),
        states_after=part.states_after,
    )  # fmt: skip


def _states_of(part: Items, order: IntArray) -> Array | None:
    """What is known of frozen layers: states of tokens in packed order, or those of the items."""
    if part.states is None:
        return None
    return (part.states if part.states_after is None else part.states.take(order)).values


def _send(values: Array, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """The values on a device, floating ones in ``dtype``."""
    tensor = torch.from_numpy(np.ascontiguousarray(values))
    if tensor.is_floating_point():
        tensor = tensor.to(dtype)
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor if device.type == "cpu" else tensor.to(device)


def _send_known(
    values: Array | None, device: torch.device, dtype: torch.dtype
) -> torch.Tensor | None:
    """The same, None for None."""
    return None if values is None else _send(values, device, dtype)


def _runs(lengths: IntArray, starts: IntArray) -> Iterator[tuple[int, int, int]]:
    edges = np.flatnonzero(np.diff(lengths)) + 1
    firsts: Sequence[int] = [0, *edges.tolist()]
    for first, end in zip(firsts, [*firsts[1:], len(lengths)], strict=True):
        yield int(starts[first]), end - first, int(lengths[first])
