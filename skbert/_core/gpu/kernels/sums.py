"""Sums over tokens. Depends on Triton."""

from __future__ import annotations

import triton
import triton.language as tl

from skbert._core.gpu.kernels.tiles import tile

__all__ = ["sum_tokens"]


@triton.jit(do_not_specialize=["n_tokens"])
def sum_tokens(x, sums, n_tokens, size, TOKENS: tl.constexpr, COLUMNS: tl.constexpr):
    total = tl.zeros((COLUMNS,), tl.float32)
    for first in range(tl.program_id(0) * TOKENS, n_tokens, tl.num_programs(0) * TOKENS):
        tokens, columns, is_here = tile(first, n_tokens, size, TOKENS, COLUMNS)
        total += tl.sum(tl.load(x + tokens * size + columns, is_here, 0.0).to(tl.float32), 0)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    tl.store(sums + tl.program_id(0).to(tl.int64) * size + columns, total, columns < size)
