"""A writer of TensorFlow's V2 checkpoints for the tests, that can also write nonsense.

Written from the formats' descriptions, with a checksum bit by bit; shares no code with the reader.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

MAGIC = 0xDB4775248B80FB57.to_bytes(8, "little")
Rows = list[tuple[bytes, bytes]]


def slow_crc32c(data: bytes) -> int:
    state = 0xFFFFFFFF
    for byte in data:
        state ^= byte
        for _ in range(8):
            state = state >> 1 ^ (0x82F63B78 if state & 1 else 0)
    return state ^ 0xFFFFFFFF


def masked(data: bytes) -> bytes:
    plain = slow_crc32c(data)
    turned = (plain >> 15) | (plain << 17) & 0xFFFFFFFF
    return ((turned + 0xA282EAD8) % 2**32).to_bytes(4, "little")


def varint(number: int) -> bytes:
    """The number in groups of seven bits; a negative one as protobuf has it, in ten bytes."""
    number %= 2**64
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def field(number: int, value: int | bytes, *, fixed: bool = False) -> bytes:
    if isinstance(value, bytes):
        return varint(number << 3 | 2) + varint(len(value)) + value
    if fixed:
        return varint(number << 3 | 5) + value.to_bytes(4, "little")
    return varint(number << 3) + varint(value)


def header(shards: int = 1, endianness: int = 0) -> bytes:
    return field(1, shards) + field(2, endianness) + field(3, field(1, 1))


def entry(shape: Sequence[int], offset: int = 0, size: int | None = None, *, dtype: int = 1,
          shard: int = 0, checksum: bytes = bytes(4), more: bytes = b"") -> bytes:  # fmt: skip
    size = 4 * int(np.prod(shape)) if size is None else size
    axes = b"".join(field(2, field(1, axis)) for axis in shape)
    out = field(1, dtype) + field(2, axes) + field(3, shard) + field(4, offset) + field(5, size)
    return out + field(6, int.from_bytes(checksum, "little"), fixed=True) + more


def block(rows: Rows, *, restart: int = 16, kind: int = 0) -> bytes:
    out, starts, last = b"", [], b""
    for row, (key, value) in enumerate(rows):
        shared = 0
        if row % restart == 0:
            starts.append(len(out))
        else:
            while shared < min(len(key), len(last)) and key[shared] == last[shared]:
                shared += 1
        out += varint(shared) + varint(len(key) - shared) + varint(len(value))
        out += key[shared:] + value
        last = key
    for start in starts or [0]:
        out += start.to_bytes(4, "little")
    return sealed(out + len(starts or [0]).to_bytes(4, "little"), kind)


def sealed(contents: bytes, kind: int = 0) -> bytes:
    """A block with its trailer, whatever it holds."""
    return contents + bytes([kind]) + masked(contents + bytes([kind]))


def table(blocks: Sequence[Rows | bytes]) -> bytes:
    """An index file; a block that is given as bytes is taken as it is, trailer and all."""
    out, listing = b"", []
    for each in blocks:
        made = each if isinstance(each, bytes) else block(each)
        key = bytes([len(listing)]) if isinstance(each, bytes) else each[-1][0]
        listing.append((key, varint(len(out)) + varint(len(made) - 5)))
        out += made
    return closed(out, listing)


def closed(blocks: bytes, listing: Rows) -> bytes:
    """An index file of the blocks that a list says to lie in these bytes."""
    meta, index = block([]), block(listing, restart=1)
    places = varint(len(blocks)) + varint(len(meta) - 5)
    places += varint(len(blocks) + len(meta)) + varint(len(index) - 5)
    return blocks + meta + index + places.ljust(40, b"\0") + MAGIC


def write_bundle(
    folder: Path, tensors: Mapping[str, np.ndarray], *, per_block: int = 1000, shards: int = 1
) -> str:
    """Write a whole checkpoint; return its prefix."""
    prefix = folder / "bert_model.ckpt"
    data = [b"" for _ in range(shards)]
    rows = [(b"", header(shards))]
    for row, name in enumerate(sorted(tensors, key=str.encode)):
        shard, raw = row % shards, np.ascontiguousarray(tensors[name], "<f4").tobytes()
        where = {"offset": len(data[shard]), "shard": shard, "checksum": masked(raw)}
        rows.append((name.encode(), entry(tensors[name].shape, **where)))
        data[shard] += raw
    blocks = [rows[at : at + per_block] for at in range(0, len(rows), per_block)]
    (folder / "bert_model.ckpt.index").write_bytes(table(blocks))
    for shard, raw in enumerate(data):
        (folder / f"bert_model.ckpt.data-{shard:05d}-of-{shards:05d}").write_bytes(raw)
    return str(prefix)
