"""Timing in turns, so that other work of the machine slows all contenders alike.

Imports nothing of the other scripts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import numpy as np

HEADER = "median seconds | fastest to slowest | times faster"


def take_turns(
    contenders: Mapping[str, Callable[[], object]],
    repeats: int,
    *,
    warm_up: int = 0,
    pause: float = 0,
) -> dict[str, list[float]]:
    """Time every contender, in turns that each start with another of them.

    Parameters
    ----------
    contenders : mapping of str to callable
        What to time, by name.
    repeats : int
        How many turns.
    warm_up : int, default=0
        How many untimed turns to take first.
    pause : float, default=0
        Seconds before each contender, until threads of the one before wait no longer for work.

    Returns
    -------
    dict of str to list of float
        Seconds by name. Those of a second or more are printed as they come.
    """
    names = list(contenders)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(-warm_up, repeats):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            time.sleep(pause)
            began = time.perf_counter()
            contenders[name]()
            took = time.perf_counter() - began
            if turn >= 0:
                seconds[name].append(took)
                if took >= 1:
                    print(f"turn {turn + 1}: {name} {took:.1f} s", flush=True)
    return seconds


def times_faster(seconds: Mapping[str, list[float]]) -> dict[str, float]:
    """Median over the turns of the first contender's seconds divided by each one's."""
    peer = np.array(next(iter(seconds.values())))
    return {name: float(np.median(peer / np.array(own))) for name, own in seconds.items()}


def table(what: str, seconds: Mapping[str, list[float]]) -> str:
    """Write a markdown table: one line per contender, ``what`` above their names."""
    lines = [f"\n| {what} | {HEADER} |", "|---|---|---|---|"]
    return "\n".join([*lines, *(f"| {name} | {own} |" for name, own in cells(seconds).items())])


def cells(seconds: Mapping[str, list[float]]) -> dict[str, str]:
    """The cells of a markdown table under ``HEADER``, by contender."""
    faster = times_faster(seconds)
    return {
        name: f"{np.median(own):.3g} | {min(own):.3g} to {max(own):.3g} | {faster[name]:.2f}"
        for name, own in seconds.items()
    }
