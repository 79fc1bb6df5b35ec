"""Items of known tokens."""

from __future__ import annotations

from typing import Any

import numpy as np

from skbert._core.items import Items
from skbert._core.text.tokens import Ragged, TokenTable


def make_items(
    lengths: list[int],
    *,
    samples: list[int] | None = None,
    rows: list[int] | None = None,
    targets: Any = None,
) -> Items:
    """Items whose tokens are numbered through: 1000 * row + place in the row.

    ``rows`` is how many rows each item owns, one each by default; ``samples`` is the sample of
    each item, one item each by default. The second segment of a row begins at its middle.
    """
    counts = [1] * len(lengths) if rows is None else rows
    assert sum(counts) == len(lengths)
    ids = np.array([1000 * row + at for row, n in enumerate(lengths) for at in range(n)], np.int32)
    table = TokenTable(Ragged.of(ids, np.array(lengths)), np.array(lengths) // 2)
    owners = np.arange(len(counts)) if samples is None else np.array(samples)
    weights = 1.0 + np.arange(len(counts))
    return Items(table, np.concatenate([[0], np.cumsum(counts)]), owners, weights, targets)
