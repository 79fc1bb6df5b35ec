"""The records of a zip file that torch.save wrote, found without unpacking it.

Knows the zip format only. What is compressed, encrypted, hidden between two records or called by a
path is refused, so that no reader sees other records, or more bytes, than those found here.
"""

from __future__ import annotations

import re
import struct
import zipfile
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, NoReturn

from skbert.exceptions import ModelError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Record", "damaged", "find_records"]

_DIRECTORY_LIMIT = 4_000_000  # bytes; that of a model with 1,000 tensors has some 80,000
_LOCAL = struct.Struct("<4s5H3I2H")  # the header before a record
_END, _LOCATOR, _END_64 = b"PK\x05\x06", b"PK\x06\x07", b"PK\x06\x06"
_END_SIZE, _END_64_SIZE, _TAIL = 22, 56, 98
_DESCRIPTOR_SIZE = 24  # bytes that may follow a record: its checksum and sizes
_FLAGS = 0x808  # a descriptor follows; names are UTF-8
_NAME = re.compile(r"[A-Za-z0-9_][\w.-]{0,119}/((\.?data/)?[\w.-]{1,119})", re.ASCII)


class Record(NamedTuple):
    """Where the bytes of a record are."""

    begin: int
    size: int
    crc: int  # checksum; 0 where torch.save was told to compute none


def damaged(path: Path, fault: str) -> NoReturn:
    """Raise for a file that is not what torch.save writes."""
    raise ModelError(
        f"{path} is damaged, cut short or no file of torch.save: {fault}. Copy or download it"
        " again, or use a model whose weights are in safetensors."
    )


def find_records(path: Path, file: BinaryIO, size: int) -> dict[str, Record]:
    """The records of an open zip file by their names in its one folder; together, all of it."""
    end = _check_directory(path, file, size)
    try:
        with zipfile.ZipFile(file) as archive:
            entries = sorted(archive.infolist(), key=lambda entry: entry.header_offset)
    except (zipfile.BadZipFile, struct.error, ValueError, NotImplementedError) as exc:
        damaged(path, f"its directory cannot be read, {exc}")
    if len({entry.filename.partition("/")[0] for entry in entries}) != 1:
        damaged(path, "its records are not in one folder")
    records: dict[str, Record] = {}
    at = 0
    for entry in entries:
        name, record = _record(path, file, entry)
        gap = _DESCRIPTOR_SIZE if records else 0
        if name in records or not at <= entry.header_offset <= at + gap:
            damaged(path, f"the record {name!r} is there twice, or not behind the one before")
        records[name] = record
        at = record.begin + record.size
    if not at <= end <= at + _DESCRIPTOR_SIZE:
        damaged(path, f"its records end at byte {at}, and its directory begins at {end}")
    return records


def _check_directory(path: Path, file: BinaryIO, size: int) -> int:
    """Where the directory of a zip file begins; it must end where the file does."""
    file.seek(max(size - _TAIL, 0))
    tail = file.read(_TAIL).rjust(_TAIL)
    end_64, locator, last = tail[:_END_64_SIZE], tail[_END_64_SIZE:-_END_SIZE], tail[-_END_SIZE:]
    if not last.startswith(_END):
        damaged(path, f"its {size} bytes do not end as a zip file does")
    length, begin, comment = struct.unpack("<IIH", last[12:])
    end = size - _END_SIZE
    if locator.startswith(_LOCATOR):  # sizes of 64 bits
        end = size - _TAIL
        length, begin = struct.unpack("<QQ", end_64[40:])
        if not end_64.startswith(_END_64) or struct.unpack("<Q", locator[8:16]) != (end,):
            damaged(path, "the end of its directory is not where it should be")
    if comment or begin + length != end or length > _DIRECTORY_LIMIT:
        damaged(path, f"its directory has {length} bytes at {begin}, and should end at {end}")
    return int(begin)


def _record(path: Path, file: BinaryIO, entry: zipfile.ZipInfo) -> tuple[str, Record]:
    """Name and place of a record; the header before its bytes must agree with the directory."""
    name = _NAME.fullmatch(entry.filename)
    if name is None or ".." in entry.filename:
        damaged(path, f"a record is called {entry.filename[:80]!r}")
    file.seek(entry.header_offset)
    head = file.read(_LOCAL.size).ljust(_LOCAL.size)
    sign, _, flags, method, _, _, _, _, _, n_name, n_extra = _LOCAL.unpack(head)
    if (sign, file.read(n_name)) != (b"PK\x03\x04", entry.filename.encode()):
        damaged(path, f"the record {name[1]!r} is not where the directory says")
    packed = method, entry.compress_type, (flags | entry.flag_bits) & ~_FLAGS
    if any(packed) or entry.compress_size != entry.file_size:
        damaged(path, f"the record {name[1]!r} is compressed or encrypted")
    begin = entry.header_offset + _LOCAL.size + n_name + n_extra
    return name[1], Record(begin, entry.file_size, entry.CRC)
