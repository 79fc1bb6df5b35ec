"""The compiled map of characters of a Unigram tokenizer, which may be hostile.

The library follows the map without looking at its bounds, so that a broken one ends the process
while a text is read. Depends on numpy only.
"""

from __future__ import annotations

import base64
import binascii

import numpy as np

from skbert._arrays import BoolArray, IntArray

__all__ = ["is_charsmap"]

_LARGEST = 4_000_000  # characters of the encoded map; those that are published have 320,000
_LONGEST = 100  # bytes that one character may become
_BLOCK = 256  # children of a node lie in one block


def is_charsmap(encoded: object) -> bool:
    """Whether a map is whole: no text leads out of it, and no character becomes a long text."""
    if not isinstance(encoded, str) or len(encoded) > _LARGEST:
        return False
    try:
        data = base64.b64decode(encoded, validate=True)
        size = int.from_bytes(data[:4], "little")
        units = np.frombuffer(data, "<u4", size // 4, 4).astype(np.int64)
        contents = data[4 + size :].decode()
    except (ValueError, binascii.Error):
        return False
    if size % 4 or not size or max(map(len, contents.encode().split(b"\0"))) > _LONGEST:
        return False
    return _stays_inside(units, _begins(contents))


def _begins(contents: str) -> BoolArray:
    """Whether a character begins at each byte, the end included."""
    data = np.frombuffer(contents.encode(), np.uint8)
    return np.append((data & 0xC0) != 0x80, True)


def _stays_inside(units: IntArray, begins: BoolArray) -> bool:
    """Whether each unit that a text can lead to has all its children, and values, in bounds."""
    places = np.arange(len(units))
    wide = (units >> 9) & 1
    bases = places ^ (units >> 10 << 8 * wide)
    labels = units & 0x8000_00FF
    nodes = np.flatnonzero((labels > 0) & (labels < _BLOCK))
    parents = nodes ^ labels[nodes]  # the base of the only unit that may lead there
    order = np.argsort(parents, kind="stable")
    nodes, parents = nodes[order], parents[order]
    seen = np.zeros(len(units), bool)
    here = places[:1]
    while len(here):
        seen[here] = True
        below = bases[here]
        if (below | (_BLOCK - 1)).max() >= len(units):
            return False
        values = units[below[(units[here] >> 8) & 1 == 1]] & 0x7FFF_FFFF
        if len(values) and (values.max() >= len(begins) or not begins[values].all()):
            return False
        below = np.unique(below)
        first, last = (np.searchsorted(parents, below, side) for side in ("left", "right"))
        counts = last - first
        at = np.repeat(first - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
        here = nodes[at]
        here = here[~seen[here]]
    return True
