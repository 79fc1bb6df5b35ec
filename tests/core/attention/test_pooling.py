"""Poolings of packed rows, with and without gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from skbert._core.attention.pooling import pool
from skbert._core.batches import collate
from skbert._core.items import Items
from skbert._core.task import Layout
from skbert._core.text.tokens import EncodedTexts, Ragged, TokenTable
from skbert._core.text.windows import Windows

CPU = torch.device("cpu")
LENGTHS = [[1], [12], [3, 3, 3], [1, 2, 2, 9, 40], [300, 7, 7, 1, 300, 64]]


def layout_of(lengths: list[int]) -> Layout:
    sizes = np.array(lengths)
    ids = Ragged.of(np.zeros(sizes.sum(), np.int32), sizes)
    encoded = EncodedTexts(TokenTable(ids, sizes), Windows.whole(sizes), 0)
    items = Items.one_row_each(encoded, None)
    return collate(items, np.arange(len(sizes)), CPU, torch.float32).layout


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("size", [2, 33, 384])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_means_are_the_same_without_gradients(lengths: list[int], size: int, dtype: Any) -> None:
    torch.manual_seed(0)
    layout = layout_of(lengths)
    hidden = torch.randn(sum(lengths), size, dtype=dtype)
    with torch.enable_grad():
        expected = pool(hidden, layout, "mean")
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            found = pool(hidden, layout, "mean")
        assert found.dtype == dtype
        assert torch.equal(found, expected)
    rows = hidden.split(sorted(lengths))
    torch.testing.assert_close(expected, torch.stack([row.mean(dim=0) for row in rows]))
