"""What attention computes, apart from its input. Imports nothing of the package."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["AttentionSettings"]


class AttentionSettings(NamedTuple):
    """What attention computes, apart from its input."""

    head_size: int
    scaling: float  # of the scores; kernels for a CPU take none below 0
    is_causal: bool  # whether a token attends only to itself and those before it
    dropout: float
    sliding_window: int | None = None  # a token attends to those fewer tokens away; None: to all
