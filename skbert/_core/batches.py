"""Plans of which items share a batch, and the packed batches made from them.

Depends on numpy, torch tensors and items; knows no model. A packed batch holds the tokens of
all its rows one after another, ``(1, n_tokens)``, and not one token of padding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from skbert._arrays import Array, IntArray, differences
from skbert._core.items import Items
from skbert._core.task import Batch, Layout
from skbert._core.text.tokens import Ragged

__all__ = ["by_budget", "by_length", "collate", "in_one_copy", "steps_of_a_pass"]

# Steps whose samples are sorted together before they are cut into steps. More would make the steps
# a little faster, but steps of one length each learn less.
_NEIGHBOURS = 4
_ALIGNMENT = 16  # of tensors that share memory, in bytes


def by_length(sizes: IntArray, budget: int) -> list[IntArray]:
    """Batches of similar sizes, each of at most ``budget`` tokens or of a single item."""
    order = sizes.argsort(kind="stable")
    return [order[part] for part in by_budget(sizes[order], budget)]


def by_budget(sizes: IntArray, budget: int) -> Iterator[slice]:
    """Cut a sequence of sizes, in its order, wherever the next one would exceed the budget."""
    ends = sizes.cumsum()
    begin, n = 0, len(sizes)
    while begin < n:
        spent = ends[begin - 1] if begin else 0
        end = max(int(ends.searchsorted(spent + budget, side="right")), begin + 1)
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
    owned = items.of_units
    size = np.maximum.reduceat(items.sizes[owned.values], owned.starts[:-1])
    order = rng.permutation(len(owned))
    n_steps = len(order) // samples_per_step
    order, rest = np.split(order, [n_steps * samples_per_step])
    stretch = samples_per_step * _NEIGHBOURS
    steps: list[IntArray] = []
    for at in range(0, len(order), stretch):
        part = order[at : at + stretch]
        steps += list(part[np.argsort(size[part], kind="stable")].reshape(-1, samples_per_step))
    steps = [steps[i] for i in rng.permutation(n_steps)]
    steps += [rest] if len(rest) else []
    return [owned.take(step).values for step in steps]


def collate(
    items: Items, item_indices: IntArray, device: torch.device, dtype: torch.dtype
) -> Batch:
    """Pack the items with these indices; floating targets and weights come in ``dtype``."""
    part = items.take(item_indices)
    table, lengths = part.tokens, part.tokens.lengths
    order = back = rows = np.arange(len(lengths))
    in_order = bool((lengths[1:] >= lengths[:-1]).all())
    if not in_order:
        order = np.argsort(lengths, kind="stable")
        table, back = table.take(order), np.argsort(order, kind="stable")
        lengths = table.lengths
    starts = table.ids.starts
    row_of_token = rows.repeat(lengths)
    tokens = np.arange(len(row_of_token))
    positions = tokens - starts[row_of_token]
    targets = part.targets.values if isinstance(part.targets, Ragged) else part.targets
    selected = part.selected_tokens
    arrays = {
        "input_ids": table.ids.values.astype(np.int64)[None],
        "position_ids": positions[None],
        "token_type_ids": (positions >= table.second[row_of_token]).astype(np.int64)[None],
        "cu_seqlens": starts.astype(np.int32),
        "row_of_token": row_of_token,
        "row_order": None if in_order else back,
        "token_order": None if in_order else Ragged(tokens, starts).take(back).values,
        "rows_per_item": differences(part.rows),
        "tokens_per_item": part.sizes,
        "weights": part.weights,
        "selected_tokens": None if selected is None else (
            np.repeat(starts[back], selected.lengths) + selected.values),
        "selected_per_item": None if selected is None else np.diff(selected.starts[part.rows]),
        "targets": targets,
        "features": part.features,
        "states": _states_of(part, order),
    }  # fmt: skip
    here = {name: _tensor_of(x, dtype) for name, x in arrays.items() if x is not None}
    known = {"states_after": part.states_after, "most_rows": part.most_rows}
    fields: dict[str, Any] = dict.fromkeys(arrays) | _sent(here, device) | known
    places = fields.pop("cu_seqlens"), fields.pop("row_of_token")
    return Batch(layout=Layout(lengths, tuple(_runs(lengths, starts)), *places), **fields)


def _states_of(part: Items, order: IntArray) -> Array | None:
    """What is known of frozen layers: states of tokens in packed order, or those of the items."""
    if part.states is None:
        return None
    return (part.states if part.states_after is None else part.states.take(order)).values


def _tensor_of(values: Array, dtype: torch.dtype) -> torch.Tensor:
    """The values as a tensor, floating ones in ``dtype``."""
    tensor = torch.from_numpy(np.ascontiguousarray(values))
    return tensor.to(dtype) if values.dtype.kind == "f" else tensor


def _sent(tensors: dict[str, torch.Tensor], device: torch.device) -> dict[str, torch.Tensor]:
    """The tensors, which are on the CPU, on a device."""
    if device.type == "cpu":
        return tensors
    if device.type == "cuda":
        return in_one_copy(tensors, device)
    return {name: x.to(device) for name, x in tensors.items()}


def in_one_copy(tensors: dict[str, torch.Tensor], device: torch.device) -> dict[str, torch.Tensor]:
    """The tensors on a device, side by side in memory: one copy, which is not waited for.

    numpy puts them there, as torch's threads would take longer to wake up.
    """
    sizes = [x.nbytes + -x.nbytes % _ALIGNMENT for x in tensors.values()]
    memory = torch.empty(sum(sizes), dtype=torch.uint8, pin_memory=device.type == "cuda")
    for part, x in zip(torch.split(memory, sizes), tensors.values(), strict=True):
        part[: x.nbytes].numpy()[:] = x.flatten().view(torch.uint8).numpy()
    parts = torch.split(memory.to(device, non_blocking=True), sizes)
    return {
        name: part[: x.nbytes].view(x.dtype).view(x.shape)
        for part, (name, x) in zip(parts, tensors.items(), strict=True)
    }


def _runs(lengths: IntArray, starts: IntArray) -> Iterator[tuple[int, int, int]]:
    firsts: Sequence[int] = [0, *(differences(lengths).nonzero()[0] + 1).tolist()]
    for first, end in zip(firsts, [*firsts[1:], len(lengths)], strict=True):
        yield int(starts[first]), end - first, int(lengths[first])
