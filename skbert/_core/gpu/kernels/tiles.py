"""What kernels share that compute some tokens and columns. Depends on Triton."""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["tile"]


@triton.jit
def tile(first, n_tokens, size, TOKENS: tl.constexpr, COLUMNS: tl.constexpr):
    """Some tokens and columns of a program, and which of the numbers there are.

    No number has a place in the mask but by its token and column, whose bounds are known to be
    even: then many numbers are read at once.
    """
    tokens = first + tl.arange(0, TOKENS)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    return tokens.to(tl.int64)[:, None], columns, (tokens < n_tokens)[:, None] & (columns < size)
