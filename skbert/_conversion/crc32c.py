"""The checksum CRC-32C (Castagnoli) of many bytes at once, in numpy.

Depends on numpy only. A checksum is linear in its bits, and so is the effect of n following words
of zeros on it. So the first half of the data, shifted by the length of the second half, can be
added to the second half without changing the checksum, until one word is left.
"""

from __future__ import annotations

import functools

import numpy as np

from skbert._arrays import IntArray

__all__ = ["crc32c"]

_POLYNOMIAL = 0x82F63B78  # bits in reversed order
_CHUNK = 1 << 20  # bytes, which stay in the processor's cache


def crc32c(data: bytes | IntArray) -> int:
    """Return the checksum of bytes, or of a flat array of them."""
    raw = np.frombuffer(data, np.uint8)
    whole = len(raw) - len(raw) % 4
    state = 0xFFFFFFFF
    for start in range(0, whole, _CHUNK):
        words = raw[start : min(start + _CHUNK, whole)].view("<u4").copy()
        words[0] ^= state
        while len(words) > 1:
            first, words = np.split(words, [len(words) // 2])
            words[len(words) - len(first) :] ^= _shifted(first, len(words))
        state = int(_shifted(words, 1)[0])
    for byte in raw[whole:].tolist():
        state = _past(state ^ byte, 8)
    return state ^ 0xFFFFFFFF


def _past(value: int, bits: int) -> int:
    """Return a checksum after that many more zero bits."""
    for _ in range(bits):
        value = value >> 1 ^ _POLYNOMIAL * (value & 1)
    return value


def _shifted(words: IntArray, n: int) -> IntArray:
    """Return checksums after ``n`` more words of zeros."""
    tables = _tables(n)
    octets = words.view(np.uint8).reshape(-1, 4)
    shifted: IntArray = tables[0][octets[:, 0]]
    for place in (1, 2, 3):
        shifted ^= tables[place][octets[:, place]]
    return shifted


@functools.lru_cache(maxsize=256)
def _tables(n: int) -> IntArray:
    """Return the shifted checksum of each value of each byte of a word, ``(4, 256)``."""
    bits = np.left_shift(1, np.arange(32)).astype("<u4")
    if n > 1:
        images = _shifted(_shifted(bits, n // 2), n - n // 2)
    else:
        images = np.array([_past(bit, 32) for bit in bits.tolist()], "<u4")
    tables = np.zeros((4, 256), "<u4")
    for bit, image in enumerate(images):
        place, weight = bit // 8, 1 << bit % 8
        tables[place, weight : 2 * weight] = tables[place, :weight] ^ image
    return tables
