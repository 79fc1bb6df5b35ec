"""What another thread computes while the results before it are used. Depends on nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

__all__ = ["computed_ahead"]

Part = TypeVar("Part")
Result = TypeVar("Result")


def computed_ahead(function: Callable[[Part], Result], parts: Sequence[Part]) -> Iterator[Result]:
    """Yield what a function, which should not hold Python's lock for long, returns of each part.

    Of parts that are no longer asked for none is begun.
    """
    if len(parts) < 2:
        yield from map(function, parts)
        return
    with ThreadPoolExecutor(1) as pool:
        try:
            results = pool.map(function, parts)
        except RuntimeError:  # no new threads at the end of a process
            results = map(function, parts)
        yield from results
