"""A reader for TensorFlow's checkpoints in the V2 "bundle" format, without TensorFlow.

It reads bytes, and knows no variable by name. Depends on numpy, `crc32c`, the members of a folder
and ``skbert.exceptions``. ``<prefix>.index`` is a sorted table as in LevelDB: blocks of entries
whose keys leave out the prefix that they share with the key before, each block with a checksum,
then a block that lists these blocks, and a footer. Its values are small protobuf messages that say
where a tensor is in ``<prefix>.data-00000-of-00001``. Neither file is trusted until every length,
place and checksum has been checked. One tensor at a time is in memory.
"""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from skbert._arrays import FloatArray, IntArray
from skbert._conversion.crc32c import crc32c
from skbert._core.checkpoints.strict import Members
from skbert.exceptions import ModelError, ModelNotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Bundle", "Entry"]

_MAGIC = 0xDB4775248B80FB57.to_bytes(8, "little")
_FOOTER = 48  # bytes: two places, zeros, the magic number
_TRAILER = 5  # bytes after a block: how it is compressed, its checksum
_MOST_BYTES = 1 << 22  # of an index; BERT's largest needs some 100 kB
_MOST_ENTRIES = 100_000
_LONGEST_KEY = 1 << 10  # bytes
_LONGEST_VALUE = 1 << 16
_MOST_SHARDS = 99_999  # that a file name counts
_MOST_AXES = 8
_FLOAT = 1  # TensorFlow's number for float32
# Kinds of protobuf fields.
_VARINT, _FIXED64, _NESTED, _FIXED32 = 0, 1, 2, 5


@dataclass(frozen=True)
class Entry:
    """Where a tensor is, according to the index."""

    dtype: int  # TensorFlow's number
    shape: tuple[int, ...]
    shard: int
    offset: int  # bytes
    size: int  # bytes
    checksum: int  # masked CRC-32C
    at: int  # byte of this entry in the index


class Bundle:
    """A checkpoint whose index has been read and fits its data files.

    Parameters
    ----------
    prefix : str
        What the names of its files begin with, such as ``uncased/bert_model.ckpt``.

    Attributes
    ----------
    index : Path
        The index file.
    entries : dict of str to Entry
        The tensors, in the order of their names.

    Raises
    ------
    ModelNotFoundError
        If there is no such checkpoint.
    ModelError
        If it has the V1 format, or a file is damaged, cut short or of a kind that is not read.
    """

    def __init__(self, prefix: str) -> None:
        self.index = _find_index(prefix)
        self.members = Members(self.index.parent)
        self._prefix = prefix
        self.entries: dict[str, Entry] = {}
        rows = _table(self.index, self._contents())
        self._n_shards = _n_shards(self.index, rows)
        for key, value in rows:
            self.entries[_name(key, value)] = _entry(key, value)
            if len(self.entries) > _MOST_ENTRIES:
                value.fail(f"more than {_MOST_ENTRIES} tensors")
        self._check_places()

    def read(self, name: str) -> FloatArray:
        """Return a float32 tensor after comparing its checksum."""
        entry = self.entries[name]
        if entry.dtype != _FLOAT or not entry.size:
            raise ModelError(
                f"{self.index} gives {name!r} the type number {entry.dtype} and {entry.size}"
                f" bytes, where float32 numbers (type {_FLOAT}) are expected. Save the checkpoint"
                " with float32 variables."
            )
        path = self._shard(entry.shard)
        with self.members.open(path.name) as file:
            file.seek(entry.offset)
            raw = file.read(entry.size)
        if len(raw) != entry.size or _masked(raw) != entry.checksum:
            _damaged(path, entry.offset, f"{name!r} has another checksum")
        return np.frombuffer(raw, "<f4").reshape(entry.shape)

    def _contents(self) -> bytes:
        with self.members.open(self.index.name) as file:
            size = self.members.size(self.index.name)
            if size > _MOST_BYTES:
                problem = f"{size} bytes, where an index has at most {_MOST_BYTES}"
                _damaged(self.index, 0, problem)
            return file.read(size)

    def _shard(self, number: int) -> Path:
        return Path(f"{self._prefix}.data-{number:05d}-of-{self._n_shards:05d}")

    def _check_places(self) -> None:
        """Raise unless every tensor lies inside its file and none overlap."""
        shard, end, size = -1, 0, 0
        for name, entry in sorted(
            self.entries.items(), key=lambda item: (item[1].shard, item[1].offset, item[1].size)
        ):
            if entry.shard != shard:
                shard, end = entry.shard, 0
                size = self._shard_size(entry)
            if entry.offset < end or entry.offset + entry.size > size:
                problem = (
                    f"tensor {name!r} is at {entry.offset} to {entry.offset + entry.size} of"
                    f" {self._shard(shard).name}, where {end} to {size} is free"
                )
                _damaged(self.index, entry.at, problem)
            end = entry.offset + entry.size

    def _shard_size(self, entry: Entry) -> int:
        if entry.shard >= self._n_shards:
            problem = f"a tensor in data file {entry.shard} of {self._n_shards}"
            _damaged(self.index, entry.at, problem)
        path = self._shard(entry.shard)
        if not os.path.isfile(path):  # noqa: PTH113 - never raises
            raise ModelNotFoundError(
                f"{path} is missing, but {self.index} says that it holds tensors. Put all files of"
                " the checkpoint into one folder under their own names."
            )
        with self.members.open(path.name):
            return self.members.size(path.name)


# --- finding -----------------------------------------------------------------------------------


def _find_index(prefix: str) -> Path:
    index, path = Path(f"{prefix}.index"), Path(prefix)
    if os.path.isfile(index):  # noqa: PTH113 - never raises
        return index
    if os.path.isfile(path):  # noqa: PTH113 - never raises
        raise _no_prefix(path)
    folders = [folder for folder in (path, path.parent) if os.path.isdir(folder)]  # noqa: PTH112
    near = sorted(index for folder in folders[:1] for index in folder.glob("*.index"))
    give = f" Give {str(near[0].with_suffix(''))!r}." if near else (
        " Give the path up to, and without, '.index', such as 'uncased/bert_model.ckpt'."
    )  # fmt: skip
    raise ModelNotFoundError(f"there is no checkpoint {prefix!r}: {index} is not a file.{give}")


def _no_prefix(path: Path) -> ModelError:
    """Return the error for a file where a prefix is expected."""
    part = re.fullmatch(r"(.+)\.(index|meta|data-\d{5}-of-\d{5})", str(path))
    if part:
        return ModelError(f"{path} is one file of a checkpoint: give its prefix {part[1]!r}.")
    try:
        with path.open("rb") as file:
            file.seek(-min(8, path.stat().st_size), 2)
            if file.read() != _MAGIC:
                return ModelError(
                    f"{path} is a file, but not a TensorFlow checkpoint. Give the path up to, and"
                    " without, '.index', such as 'uncased/bert_model.ckpt'."
                )
    except OSError as exc:
        return _unreadable(path, exc)
    return ModelError(
        f"{path} is a checkpoint in TensorFlow's old V1 format, one file without an index; the V2"
        " format is read here. Where TensorFlow is installed, restore it and save it with"
        " tf.compat.v1.train.Saver(write_version=tf.compat.v1.train.SaverDef.V2)."
    )


# --- the table ---------------------------------------------------------------------------------


class _Cursor:
    """A part of the index, read from left to right, never beyond its end."""

    def __init__(self, path: Path, data: bytes, at: int, end: int) -> None:
        self.path, self.data, self.at, self.end = path, data, at, end

    def fail(self, problem: str, at: int | None = None) -> NoReturn:
        _damaged(self.path, self.at if at is None else at, problem)

    def part(self, size: int) -> _Cursor:
        """Return the next bytes as a cursor of their own."""
        if size > self.end - self.at:
            self.fail(f"{size} bytes are announced, {self.end - self.at} are left")
        self.at += size
        return _Cursor(self.path, self.data, self.at - size, self.at)

    def take(self, size: int) -> bytes:
        part = self.part(size)
        return self.data[part.at : part.end]

    def varint(self) -> int:
        """Return a number stored with seven bits a byte, of at most 63 bits; none is negative."""
        start, value = self.at, 0
        for shift in range(0, 70, 7):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
        if byte >= 0x80 or value >= 1 << 63 or byte == 0 < shift:
            self.fail("a number that is negative, too long or not written the short way", start)
        return value


def _table(path: Path, data: bytes) -> Iterator[tuple[bytes, _Cursor]]:
    """Yield the keys and values of all blocks, with keys in ascending order."""
    *blocks, meta, _ = _blocks(path, data)
    last = None
    for begin, size in blocks:
        for key, value in _block(path, data, begin, size):
            if last is not None and key <= last:
                value.fail("a key is not larger than the one before")
            last = key
            yield key, value
    for _ in _block(path, data, *meta):  # holds nothing, but its bytes are checked too
        pass


def _blocks(path: Path, data: bytes) -> list[tuple[int, int]]:
    """Return begin and size of each block, the list of blocks last; they fill the file."""
    footer = len(data) - _FOOTER
    if footer < 0 or data[-8:] != _MAGIC:
        _damaged(path, max(footer, 0), "there is no footer of an index")
    places = _Cursor(path, data, footer, len(data) - 8)
    meta, listing = _place(places), _place(places)
    if any(places.take(places.end - places.at)):
        places.fail("the footer is not filled up with zeros")
    blocks = [_place(value) for _, value in _block(path, data, *listing)]
    blocks += [meta, listing]
    at = 0
    for begin, size in (*blocks, (footer, 0)):
        if begin != at:
            _damaged(path, at, f"the next block is said to begin at {begin}")
        at = begin + size + _TRAILER
    return blocks


def _place(cursor: _Cursor) -> tuple[int, int]:
    """Return begin and size of a block."""
    return cursor.varint(), cursor.varint()


def _block(path: Path, data: bytes, begin: int, size: int) -> Iterator[tuple[bytes, _Cursor]]:
    """Yield the keys and values of one block, after comparing its checksum."""
    whole = _Cursor(path, data, begin, len(data) - _FOOTER)
    whole.part(size + _TRAILER)
    end = begin + size
    stored = int.from_bytes(data[end + 1 : end + _TRAILER], "little")
    if _masked(data[begin : end + 1]) != stored:
        whole.fail("the block has another checksum", begin)
    if data[end]:
        raise ModelError(
            f"{path} is compressed, at byte {begin}, which is not read here. Where TensorFlow is"
            " installed, restore the checkpoint and save it again: newer versions do not compress."
        )
    n_restarts = int.from_bytes(data[max(begin, end - 4) : end], "little")
    rest = size - 4 * (n_restarts + 1)  # positions of keys stored in full; not needed here
    if rest < 0:
        whole.fail(f"{n_restarts} restarts do not fit {size} bytes", begin)
    cursor, key = _Cursor(path, data, begin, begin + rest), b""
    while cursor.at < cursor.end:
        start = cursor.at
        shared, length, value = cursor.varint(), cursor.varint(), cursor.varint()
        if shared > len(key) or shared + length > _LONGEST_KEY or value > _LONGEST_VALUE:
            sizes = f"{shared} + {length} bytes after one of {len(key)}, a value of {value}"
            cursor.fail(f"a key of {sizes}", start)
        key = key[:shared] + cursor.take(length)
        yield key, cursor.part(value)


def _masked(data: bytes | IntArray) -> int:
    """Return the checksum as it is stored, rotated and with a constant added."""
    plain = crc32c(data)
    return ((plain >> 15 | plain << 17) + 0xA282EAD8) & 0xFFFFFFFF


# --- its values --------------------------------------------------------------------------------


def _fields(message: _Cursor, known: dict[int, int]) -> dict[int, list[Any]]:
    """Return the values of the known fields of a message, checking their kinds; skip others."""
    fields: dict[int, list[Any]] = {number: [] for number in known}
    while message.at < message.end:
        start = message.at
        number, kind = divmod(message.varint(), 8)
        match kind:
            case _ if kind != known.get(number, kind):
                message.fail(f"field {number} of kind {kind}", start)
            case 0:
                value: Any = message.varint()
            case 1 | 5:
                value = int.from_bytes(message.take(8 if kind == _FIXED64 else 4), "little")
            case 2:
                value = message.part(message.varint())
            case _:
                message.fail(f"field {number} of kind {kind}", start)
        fields.get(number, []).append(value)
    return fields


def _n_shards(path: Path, rows: Iterator[tuple[bytes, _Cursor]]) -> int:
    """Return the number of data files, from the header, the entry under the empty key."""
    key, value = next(rows, (None, None))
    if key != b"" or value is None:
        _damaged(path, 0, "the first entry is no header")
    at = value.at
    fields = _fields(value, {1: _VARINT, 2: _VARINT, 3: _NESTED})
    number = max(fields[1], default=0)
    if not 1 <= number <= _MOST_SHARDS:
        value.fail(f"{number} data files, where 1 to {_MOST_SHARDS} are possible", at)
    if any(fields[2]):
        raise ModelError(
            f"{path} was written on a big-endian machine, which is not read here. Restore it with"
            " TensorFlow on a usual one and save it again."
        )
    return number


def _entry(key: bytes, value: _Cursor) -> Entry:
    at = value.at
    fields = _fields(
        value,
        {1: _VARINT, 2: _NESTED, 3: _VARINT, 4: _VARINT, 5: _VARINT, 6: _FIXED32, 7: _NESTED},
    )
    if fields[7] or key.startswith(b"\0"):  # the variable, or one of its parts
        raise ModelError(
            f"{value.path} holds, at byte {at}, a variable that was saved in parts, which is not"
            " read here. Save it again without a partitioner."
        )
    shape = _shape(fields[2][-1]) if fields[2] else ()
    dtype, shard, offset, size, checksum = (max(fields[n], default=0) for n in (1, 3, 4, 5, 6))
    if dtype == _FLOAT and size != 4 * math.prod(shape):
        value.fail(f"{size} bytes for float32 numbers of the shape {shape}", at)
    return Entry(dtype, shape, shard, offset, size, checksum, at)


def _shape(message: _Cursor) -> tuple[int, ...]:
    at = message.at
    axes = _fields(message, {2: _NESTED})[2]
    if len(axes) > _MOST_AXES:
        message.fail(f"a shape of {len(axes)} axes", at)
    return tuple(max(_fields(axis, {1: _VARINT})[1], default=0) for axis in axes)


def _name(key: bytes, value: _Cursor) -> str:
    try:
        return key.decode()
    except UnicodeDecodeError:
        value.fail(f"the name {key[:80]!r} is not UTF-8")


def _damaged(path: Path, offset: int, problem: str) -> NoReturn:
    raise ModelError(
        f"{path} is damaged or cut short, at byte {offset}: {problem}. It should be a complete"
        " file of a TensorFlow checkpoint: copy or download all its files again."
    )


def _unreadable(path: Path, exc: Exception) -> ModelError:
    return ModelError(
        f"{path} cannot be read: {exc}. Check that it exists and that you may read it."
    )
