"""The checksum CRC-32C (Castagnoli) of many bytes at once, in numpy.

Depends on numpy only. A checksum is linear: n words of zeros turn it into a sum over its bits of
what they turn each bit into. So the first half of the data, moved on by the length of the second
half, can be added to the second half without changing the checksum, until one word is left.
"""

from __future__ import annotations

import functools

import numpy as np

from skbert._arrays import IntArray

__all__ = ["crc32c"]

_POLYNOMIAL = 0x82F63B78  # bits in reversed order
_CHUNK = 1 << 20  # bytes, which stay in the processor's cache


def crc32c(data: bytes | IntArray) -> int:
    """Checksum of bytes, or of a flat array of them."""
    raw = np.frombuffer(data, np.uint8)
    whole = len(raw) - len(raw) % 4
    state = 0xFFFFFFFF
    for start in range(0, whole, _CHUNK):
        words = raw[start : min(start + _CHUNK, whole)].view("<u4").copy()
        words[0] ^= state
        while len(words) > 1:
            first, words = np.split(words, [len(words) // 2])
            words[len(words) - len(first) :] ^= _moved(first, len(words))
        state = int(_moved(words, 1)[0])
    for byte in raw[whole:].tolist():
        state = _past(state ^ byte, 8)
    return state ^ 0xFFFFFFFF


def _past(value: int, bits: int) -> int:
    """What one checksum becomes after that many bits of zeros."""
    for _ in range(bits):
        value = value >> 1 ^ _POLYNOMIAL * (value & 1)
    return value


def _moved(words: IntArray, n: int) -> IntArray:
    """What checksums become after ``n`` words of zeros."""
    tables = _tables(n)
    octets = words.view(np.uint8).reshape(-1, 4)
    moved: IntArray = tables[0][octets[:, 0]]
    for place in (1, 2, 3):
        moved ^= tables[place][octets[:, place]]
    return moved


@functools.lru_cache(maxsize=256)
def _tables(n: int) -> IntArray:
    """For each of the four bytes of a word what its values become, ``(4, 256)``."""
    bits = np.left_shift(1, np.arange(32)).astype("<u4")
    if n > 1:
        images = _moved(_moved(bits, n // 2), n - n // 2)
    else:
        images = np.array([_past(bit, 32) for bit in bits.tolist()], "<u4")
    tables = np.zeros((4, 256), "<u4")
    for bit, image in enumerate(images):
        place, weight = bit // 8, 1 << bit % 8
        tables[place, weight : 2 * weight] = tables[place, :weight] ^ image
    return tables
