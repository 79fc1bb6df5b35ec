"""Query and key turned by the position of their token. Depends on Triton."""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["rotate"]


@triton.jit(do_not_specialize=["n_tokens"])
def rotate(
    source, target, cosines, sines, positions, sign, n_tokens, n_heads,
    HALF: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    tokens = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    is_token = tokens < n_tokens
    columns = tl.arange(0, HALF)
    head = tl.program_id(1)
    places = tokens.to(tl.int64)[:, None] * (6 * n_heads * HALF) + head * (2 * HALF) + columns
    is_here = is_token[:, None] & (columns < HALF)
    x = tl.load(source + places, is_here, 0.0).to(tl.float32)
    y = tl.load(source + places + HALF, is_here, 0.0).to(tl.float32)
    if head < 2 * n_heads:  # a value is only copied
        row = tl.load(positions + tokens, is_token, 0)[:, None] * HALF + columns
        cosine = tl.load(cosines + row, is_here, 0.0)
        sine = tl.load(sines + row, is_here, 0.0) * sign
        turned = x * cosine - y * sine
        y = y * cosine + x * sine
        x = turned
    tl.store(target + places, x, is_here)
    tl.store(target + places + HALF, y, is_here)
