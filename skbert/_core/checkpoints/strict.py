"""Strict readers for files that may be hostile: members of a folder, JSON, tensor headers.

Knows file formats only: no torch, no transformers, no tokenizer; of skbert it imports only
``skbert.exceptions``. Everything is checked by looking, nothing is loaded or run.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import stat
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn

from skbert.exceptions import ModelError, SkbertError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["INDEX", "ITEM_BYTES", "PICKLED", "PICKLED_INDEX", "SINGLE", "WEIGHT_TYPES", "Members",
           "TensorFile", "check_type", "is_plain", "load_json", "open_plain", "parse_json",
           "shards", "tensor_file", "weight_files"]  # fmt: skip

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"  # weights: a file, or shards
PICKLED, PICKLED_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"

_JSON_LIMIT = 100_000_000  # bytes; the limit that safetensors sets to its header
_LARGE = ("tokenizer.json", "vocab.txt", "vocab.json", "merges.txt", INDEX, PICKLED_INDEX)
_LIMITS = dict.fromkeys(_LARGE, 32_000_000)
_LIMIT = 8_000_000  # bytes of any other member
_PIECE = 1 << 20  # bytes of a file that are hashed at once
_MOST_PARTS = 1_000_000  # objects and lists in a JSON file: each takes 64 bytes or more
ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1,
               "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1, "C64": 8}  # fmt: skip
WEIGHT_TYPES = ("F64", "F32", "F16", "BF16")
_WEIGHTS = (".weight", ".bias", ".gamma", ".beta")  # what is learned; position_ids are not
# What comes after a link is checked, no link is followed afterwards, and no pipe waited for.
_OPEN_FLAGS = os.O_RDONLY
for _flag in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"):
    _OPEN_FLAGS |= getattr(os, _flag, 0)  # not every system has every one


# --- members of a folder -----------------------------------------------------------------------


class Members:
    """The files of a model's folder, each read once: the bytes that are checked are those used.

    A file that changes between two looks at it, or is replaced, is refused.

    Parameters
    ----------
    folder : Path
        The folder.
    hashes : mapping of str to str, default=None
        SHA-256 of each member, from a manifest; files that it does not list count as absent.
    """

    def __init__(self, folder: Path, hashes: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.hashes = hashes
        self._states: dict[str, tuple[int, ...]] = {}  # of the files that were opened

    def has(self, name: str) -> bool:
        """Whether the folder has something of that name."""
        return (self.hashes is None or name in self.hashes) and os.path.lexists(self.folder / name)

    def read(self, name: str) -> bytes | None:
        """Bytes of a member, None if it is absent."""
        if not self.has(name):
            return None
        limit = _LIMITS.get(name, _LIMIT)
        with self.open(name) as file:
            size = self.size(name)
            if size > limit:
                raise ModelError(
                    f"{self.folder / name} is {size} bytes long, and no such file of a model has"
                    f" more than {limit}. Restore it from a whole copy."
                )
            data = file.read(size)
        self.check_hash(name, [data])
        return data

    def size(self, name: str) -> int:
        """Bytes of a member that was opened."""
        return self._states[name][0]

    def open(self, name: str) -> BinaryIO:
        """Open a member that is there; links may lead to the hub's blobs only."""
        path = self.folder / name
        try:
            file = open_plain(_real(self.folder, path))
        except (OSError, RuntimeError) as exc:  # RuntimeError: links in a circle
            raise ModelError(
                f"{path} is no file that can be read: {exc}. Put a copy of the file there."
            ) from exc
        state = _state(os.fstat(file.fileno()))
        # Looked at again after it was opened, in case a folder on the way became a link.
        if not state == self._states.setdefault(name, state) == self._state_now(name):
            file.close()
            raise self.changed(name)
        return file

    def check_unchanged(self) -> None:
        """Refuse a folder of which a file that was opened has changed since, or was replaced."""
        for name, state in self._states.items():
            if self._state_now(name) != state:
                raise self.changed(name)

    @property
    def states(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """The files that were opened, each with what changes where it is written to."""
        return (*sorted(self._states.items()),)

    def digest(self) -> str:
        """A hash of all files that were opened, with their names."""
        digest = hashlib.sha256()
        for name in sorted(self._states):
            digest.update(f"{name} {self.size(name)} ".encode())
            with self.open(name) as file:
                while piece := file.read(_PIECE):
                    digest.update(piece)
        return digest.hexdigest()

    def _state_now(self, name: str) -> tuple[int, ...]:
        try:
            return _state(_real(self.folder, self.folder / name).stat())
        except (OSError, RuntimeError):
            return ()

    def changed(self, name: str) -> ModelError:
        """What to raise for a file that is not what it was."""
        return ModelError(
            f"{self.folder / name} was changed while it was opened. Open the model again when"
            " nobody writes to its folder."
        )

    def check_hash(self, name: str, data: Iterable[bytes | memoryview]) -> None:
        """Check the SHA-256 of a member, whose bytes come in pieces, where a hash is known."""
        if self.hashes is None:
            return
        digest = hashlib.sha256()
        for piece in data:
            digest.update(piece)
        if digest.hexdigest() != self.hashes[name]:
            raise ModelError(
                f"{self.folder / name} is damaged, or was changed after it was saved: its SHA-256"
                " is not the one in MANIFEST.json. Restore the folder from a whole copy, or remove"
                " MANIFEST.json if you changed the model yourself."
            )

    def load_object(self, name: str) -> dict[str, Any]:
        """Contents of a JSON file that holds one object; empty if it is absent."""
        table = self.load_json(name)
        if table is None:
            return {}
        if not isinstance(table, dict):
            raise ModelError(
                f"{self.folder / name} should hold a JSON object, not a {type(table).__name__}."
                " Restore the file from a whole copy."
            )
        return table

    def load_json(self, name: str) -> Any:
        """Contents of a JSON file; None if it is absent."""
        data = self.read(name)
        return None if data is None else parse_json(data, self.folder / name, ModelError)


def is_plain(name: object) -> bool:
    """Whether ``name`` is a file name that means the same in every folder: no path, no dots."""
    return isinstance(name, str) and bool(
        re.fullmatch(r"[A-Za-z0-9_][\w.-]{0,119}", name, re.ASCII)
    )


def _real(folder: Path, path: Path) -> Path:
    """Where a member is; links may lead to the hub's blobs only."""
    root, real = folder.resolve(), path.resolve()
    homes = [root]
    if root.parent.name == "snapshots":  # cache/models--owner--name/snapshots/commit
        repository = root.parent.parent
        homes += [repository / "blobs", repository.parent / "blobs"]
    if not any(real.is_relative_to(home) for home in homes):
        raise ModelError(
            f"{path} is a link that leaves its folder, to {real}. A model is one folder: put a"
            " copy of the file in the place of the link."
        )
    return real


def open_plain(path: Path) -> BinaryIO:
    """Open a file; OSError for a link, a pipe, a device or a folder in its place."""
    file = os.fdopen(os.open(path, _OPEN_FLAGS), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "It is no plain file")
    return file


def _state(status: os.stat_result) -> tuple[int, ...]:
    """What changes where a file is written to or replaced; its size comes first."""
    return (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev)


# --- JSON --------------------------------------------------------------------------------------


def load_json(path: Path, error: type[SkbertError]) -> Any:
    """Parse a JSON file; a key that stands twice, NaN and infinity are errors."""
    try:
        with open_plain(path) as file:
            size = os.fstat(file.fileno()).st_size
            data = file.read(_JSON_LIMIT) if size <= _JSON_LIMIT else b""
    except OSError as exc:
        raise error(f"{path} cannot be read: {exc}. Check that it is there and yours.") from exc
    if size > _JSON_LIMIT:
        raise error(
            f"{path} is {size} bytes long; a JSON file of a model has at most {_JSON_LIMIT}."
            " Restore the file from a whole copy."
        )
    return parse_json(data, path, error)


def weight_files(members: Members) -> dict[str, list[str]]:
    """The files of weights, safetensors if there are any, and what an index says is in each."""
    for single, index in ((SINGLE, INDEX), (PICKLED, PICKLED_INDEX)):
        if members.has(single):
            return {single: []}
        if members.has(index):
            return shards(members, index)
    return {}


def shards(members: Members, index: str) -> dict[str, list[str]]:
    """Tensors of each file that an index lists, in its order."""
    ending = Path(index.removesuffix(".index.json")).suffix
    files: dict[str, list[str]] = {}
    listed = members.load_object(index).get("weight_map")
    for tensor, name in listed.items() if isinstance(listed, dict) else ():
        if not is_plain(name) or not name.endswith(ending):
            raise ModelError(
                f"{members.folder / index} puts the tensor {tensor!r} into {name!r}. It should be"
                f" a {ending} file in the same folder: do not use this model."
            )
        files.setdefault(name, []).append(tensor)
    if not files:
        raise ModelError(f"{members.folder / index} lists no files: restore it from a whole copy.")
    return files


def parse_json(data: bytes, origin: Path, error: type[SkbertError]) -> Any:
    """The value that JSON describes; repeated keys, NaN and too many parts are errors."""
    try:
        if data.count(b"{") + data.count(b"[") > _MOST_PARTS:
            raise ValueError(f"it holds more than {_MOST_PARTS} objects and lists")  # noqa: TRY301
        return json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_unique,
            parse_constant=_finite,
            parse_float=_finite,
        )
    except (ValueError, RecursionError) as exc:
        raise error(
            f"{origin} is not valid JSON: {exc}. Restore the file from a whole copy."
        ) from exc


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise ValueError(f"the key {twice!r} stands twice in one object")
    return table


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is not a finite number")
    return value


# --- tensor headers ----------------------------------------------------------------------------


@dataclass(frozen=True)
class TensorFile:
    """A safetensors file whose header has been checked; its data are read when a model opens."""

    members: Members
    name: str
    header: bytes  # everything before the data
    tensors: dict[str, tuple[str, tuple[int, ...], int, int]]  # type, shape, first byte, bytes

    @property
    def path(self) -> Path:
        """Where the file is."""
        return self.members.folder / self.name

    @property
    def n_weights(self) -> int:
        """Numbers in all tensors."""
        return sum(math.prod(shape) for _, shape, _, _ in self.tensors.values())

    def read_into(self, buffers: Mapping[str, memoryview]) -> None:
        """Read each tensor into its buffer; ModelError if the file was changed since the check."""
        pieces = [buffers[name] for name in sorted(buffers, key=lambda n: self.tensors[n][2])]
        with self.members.open(self.name) as file:
            same = file.read(len(self.header)) == self.header
            for piece in pieces:
                same = same and file.readinto(piece) == len(piece)  # type: ignore[attr-defined]
        if not same:
            raise self.members.changed(self.name)
        self.members.check_hash(self.name, [self.header, *pieces])


def tensor_file(members: Members, name: str) -> TensorFile:
    """Check the header of a safetensors file, and that the file is whole.

    A weight must be made of floating-point numbers.
    """
    path = members.folder / name
    with members.open(name) as file:
        size, first = members.size(name), file.read(8)
        length = int.from_bytes(first, "little")
        start = 8 + length  # where the data begins
        if start > size or length > _JSON_LIMIT:
            _damaged(path, 0, f"a header of {length} bytes does not fit {size} bytes")
        header = file.read(length)
    entries = parse_json(header, path, ModelError)
    if not isinstance(entries, dict) or not _are_strings(entries.pop("__metadata__", {})):
        _damaged(path, 8, "the header is no object, or its __metadata__ is none of strings")
    _check_places(path, entries, start, size)
    tensors = {
        tensor: (entry["dtype"], tuple(entry["shape"]), begin, end - begin)
        for tensor, entry in entries.items()
        for begin, end in [entry["data_offsets"]]
    }
    return TensorFile(members, name, first + header, tensors)


def _check_places(path: Path, entries: dict[str, Any], start: int, size: int) -> None:
    """Every tensor must lie right behind the one before, up to the end of the file."""
    at = 0
    for begin, end, n_bytes, name in sorted(_tensor(path, *entry) for entry in entries.items()):
        if (begin, end) != (at, at + n_bytes) or start + end > size:
            where = f"is put at {begin} to {end} of {size - start} bytes of data"
            _damaged(path, start + at, f"tensor {name!r} has {n_bytes} bytes, and {where}")
        at = end
    if start + at != size:
        _damaged(path, start + at, f"{size - start - at} bytes belong to no tensor")


def _are_strings(table: object) -> bool:
    return isinstance(table, dict) and all(isinstance(value, str) for value in table.values())


def _tensor(path: Path, name: str, entry: object) -> tuple[int, int, int, str]:
    """Begin, end, expected bytes and name of one tensor of the header."""
    match entry:
        case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [begin, end]} if (
            dtype in ITEM_BYTES
            and len(shape) <= 8
            and all(type(n) is int and n >= 0 for n in (*shape, begin, end))
        ):
            check_type(path, name, dtype)
            return begin, end, math.prod(shape) * ITEM_BYTES[dtype], name
    return _damaged(path, 8, f"tensor {name!r} is described by {str(entry)[:120]}")


def check_type(path: Path, name: str, dtype: str) -> None:
    """Refuse a weight that is not made of floating-point numbers."""
    if dtype not in WEIGHT_TYPES and name.endswith(_WEIGHTS):
        raise ModelError(
            f"{path} holds the weight {name!r} as {dtype}. Weights must be of one of the"
            f" types {', '.join(WEIGHT_TYPES)}: use the model in its original precision."
        )


def _damaged(path: Path, offset: int, fault: str) -> NoReturn:
    raise ModelError(
        f"{path} is damaged or cut short, at byte {offset}: {fault}. It should be a whole"
        " safetensors file: copy or download it again."
    )
