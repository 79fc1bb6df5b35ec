"""The outputs of a graph for items: rows of similar length, padded to one.

Depends on the items; needs no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from skbert._arrays import Array, IntArray
from skbert._core.items import Head, Items, gathered
from skbert._core.text.tokens import Ragged

__all__ = ["outputs_of", "padded_batches"]

Run = Callable[[Mapping[str, Array]], Array]  # from inputs by name, the outputs of a graph

_TOKENS = 4096  # of a padded batch
_NOT_FINITE = (
    "The exported model gives outputs that are NaN or infinite, first in the batch of row {row}."
    " Export an estimator that was trained with a smaller learning rate, or with"
    " precision='float32'."
)


def outputs_of(run: Run, items: Items, head: Head, *, equal_lengths: bool = False) -> Ragged:
    """The outputs of a graph for each item, one row of the result each.

    Rows of similar length are padded to one, or with ``equal_lengths`` only rows of one length are
    computed together. The order of the result is that of the items.

    Raises
    ------
    NonFiniteError
        If an output is NaN or infinite.
    """
    rows = items.by_row()

    def computed(inputs: Mapping[str, Array]) -> Array:
        values = run(inputs)
        return values if head.reads == "rows" else values[inputs["attention_mask"] == 1]

    planned = padded_batches(rows, equal_lengths=equal_lengths)
    batches = ((batch, computed(inputs)) for batch, inputs in planned)
    outputs = gathered(rows, head, batches, _NOT_FINITE)
    return Ragged(outputs.values, outputs.starts[items.rows])


def padded_batches(
    rows: Items, *, equal_lengths: bool = False
) -> Iterator[tuple[IntArray, dict[str, Array]]]:
    """Indices of items of one row each that are computed together, and the inputs of a graph."""
    for batch in _batches(rows.tokens.lengths, equal_lengths=equal_lengths):
        yield batch, _padded(rows.take(batch))


def _batches(lengths: IntArray, *, equal_lengths: bool = False) -> Iterator[IntArray]:
    """Rows of similar length, in batches of at most `_TOKENS` tokens with their padding."""
    order = np.argsort(lengths, kind="stable")
    parts = [order]
    if equal_lengths:
        parts = np.split(order, np.flatnonzero(np.diff(lengths[order])) + 1)
    for part in parts:
        begin = 0
        while begin < len(part):
            sizes = lengths[part[begin:]] * np.arange(1, len(part) - begin + 1)
            end = begin + max(1, int(np.searchsorted(sizes, _TOKENS, side="right")))
            yield part[begin:end]
            begin = end


def _padded(rows: Items) -> dict[str, Array]:
    """Rows as the graph takes them, one after another and padded to the longest."""
    table = rows.tokens
    at = np.arange(int(table.lengths.max()))
    is_token = at < table.lengths[:, None]
    ids = np.zeros(is_token.shape, np.int64)
    ids[is_token] = table.ids.values
    inputs: dict[str, Array] = {
        "input_ids": ids,
        "attention_mask": is_token.astype(np.int64),
        "token_type_ids": (is_token & (at >= table.second[:, None])).astype(np.int64),
    }
    if rows.features is not None:
        inputs["features"] = rows.features.astype(np.float32)
    return inputs
