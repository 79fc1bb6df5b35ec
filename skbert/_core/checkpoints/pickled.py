"""Tensors of a .bin file of torch.save, described by its pickle, which is read and never run.

Knows the format of torch.save only: no torch. A state dict needs few of a pickle's instructions,
and names few globals; here they build a description, and any other is refused. So what torch is
given to open later can be nothing but names and plain tensors within the bytes of the file.
"""

from __future__ import annotations

import math
import pickletools
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, NoReturn

from skbert._core.checkpoints.strict import ITEM_BYTES, Members, check_type
from skbert._core.checkpoints.zipped import Record, damaged, find_records
from skbert.exceptions import ModelError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["PickledFile", "PickledTensor", "pickled_file"]

_PICKLE_LIMIT = 8_000_000  # bytes; a model with 1,000 tensors has some 200,000
_COPIES = 4  # tied weights stand under two names or three
_CHUNK = 1 << 22
_STORAGES = {"torch DoubleStorage": "F64", "torch FloatStorage": "F32", "torch HalfStorage": "F16",
             "torch BFloat16Storage": "BF16", "torch LongStorage": "I64",
             "torch IntStorage": "I32", "torch ShortStorage": "I16", "torch CharStorage": "I8",
             "torch ByteStorage": "U8", "torch BoolStorage": "BOOL"}  # fmt: skip


class _Global(NamedTuple):
    """A name that the pickle imports."""

    name: str


class _Storage(NamedTuple):
    """The numbers in one record."""

    record: str
    dtype: str
    n_numbers: int


class PickledTensor(NamedTuple):
    """A tensor that lies within a storage."""

    storage: _Storage
    offset: int  # of its first number in the storage
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def end(self) -> int:
        """The number in the storage after its last one."""
        return self.offset + math.prod(self.shape)


@dataclass(frozen=True)
class PickledFile:
    """A .bin file whose pickle has been checked; its data are read when a model opens."""

    members: Members
    name: str
    tensors: dict[str, PickledTensor]
    records: dict[str, Record]

    @property
    def path(self) -> Path:
        """Where the file is."""
        return self.members.folder / self.name

    @property
    def n_weights(self) -> int:
        """Numbers in all tensors, those with two names counted once."""
        return sum(math.prod(tensor.shape) for tensor in {*self.tensors.values()})

    @contextmanager
    def opened(self) -> Iterator[BinaryIO]:
        """Open the file again, if it was not changed since and its checksums are right."""
        with self.members.open(self.name) as file:
            for name, record in self.records.items():
                if record.crc not in (0, _checksum(file, record)):
                    damaged(self.path, f"the checksum of its record {name!r} is wrong")
            self.members.check_hash(self.name, _pieces(file, 0, self.members.size(self.name)))
            file.seek(0)
            yield file


def _pieces(file: BinaryIO, begin: int, size: int) -> Iterator[bytes]:
    file.seek(begin)
    for at in range(0, size, _CHUNK):
        yield file.read(min(_CHUNK, size - at))


def _checksum(file: BinaryIO, record: Record) -> int:
    crc = 0
    for piece in _pieces(file, record.begin, record.size):
        crc = zlib.crc32(piece, crc)
    return crc


def pickled_file(members: Members, name: str) -> PickledFile:
    """Check a .bin file by its records and its pickle, without running the latter."""
    path = members.folder / name
    with members.open(name) as file:
        if file.read(2) == b"\x80\x02":
            raise ModelError(
                f"{path} is a pickle without a zip file around it, as torch wrote it before"
                " version 1.6, and is not read. If you trust it, convert it once:"
                " torch.save(torch.load(path, weights_only=True), path). Else use a model with"
                " safetensors."
            )
        records = find_records(path, file, members.size(name))
        pickle = records.get("data.pkl", Record(0, 0, 0))
        if not 0 < pickle.size <= _PICKLE_LIMIT or "constants.pkl" in records:
            damaged(path, "it is no state dict, which has a small data.pkl and no code")
        data = b"".join(_pieces(file, pickle.begin, pickle.size))
    tensors = _check_result(path, _Description(path).read(data))
    _check_storages(path, tensors, records)
    return PickledFile(members, name, tensors, records)


# --- the pickle ----------------------------------------------------------------------------------


class _Description:
    """A machine for the instructions of a pickle that builds tables, tuples and descriptions."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []  # the stack under each mark
        self.memo: dict[int, Any] = {}

    def read(self, data: bytes) -> Any:
        """What the pickle describes."""
        try:
            for instruction, argument, _ in pickletools.genops(data):
                step = _STEPS.get(instruction.name)
                if step is None:
                    self.refuse(f"the instruction {instruction.name}")
                step(self, argument)
            (result,) = self.stack
        except ModelError:
            raise
        except (LookupError, TypeError, ValueError) as exc:
            damaged(self.path, f"its pickle is broken, {str(exc)[:200]}")
        return result

    def refuse(self, what: str) -> NoReturn:
        """Raise for what is in no state dict."""
        raise ModelError(
            f"The pickle in {self.path} holds {what}, where a flat mapping of names to tensors is"
            " expected; nothing of it was executed. Use a copy of the model with safetensors, from"
            " somebody you trust."
        )

    def pop_mark(self) -> list[Any]:
        """The values above the last mark, which are removed with it."""
        values, self.stack = self.stack, self.below.pop()
        return values

    def fill(self, values: list[Any]) -> None:
        """Put keys and values in turn into the table on top of the stack."""
        table = self.stack[-1]
        if type(table) is not dict:
            self.refuse("items of something other than a dict")
        for key, value in zip(values[::2], values[1::2], strict=True):
            if type(key) is not str or key in table:
                self.refuse("a dict with a key that is no str, or is there twice")
            table[key] = value


def _push(machine: _Description, value: object) -> None:
    machine.stack.append(value)


def _mark(machine: _Description, _: None) -> None:
    machine.below.append(machine.stack)
    machine.stack = []


def _import(machine: _Description, name: str) -> None:
    if name not in _STORAGES and name not in _CALLS:
        machine.refuse(f"the global {name.replace(' ', '.')[:120]}")
    machine.stack.append(_Global(name))


def _store(machine: _Description, place: int) -> None:
    machine.memo[place] = machine.stack[-1]


def _fetch(machine: _Description, place: int) -> None:
    machine.stack.append(machine.memo[place])


def _tuple_of(n_values: int, machine: _Description, _: None) -> None:
    machine.stack[-n_values:] = [tuple(machine.stack[-n_values:])]


def _tuple_of_marked(machine: _Description, _: None) -> None:
    values = tuple(machine.pop_mark())
    machine.stack.append(values)


def _set_item(machine: _Description, _: None) -> None:
    value, key = machine.stack.pop(), machine.stack.pop()
    machine.fill([key, value])


def _set_items(machine: _Description, _: None) -> None:
    values = machine.pop_mark()
    machine.fill(values)


def _call(machine: _Description, _: None) -> None:
    arguments, function = machine.stack.pop(), machine.stack.pop()
    name = function.name if isinstance(function, _Global) else "nothing"
    try:
        machine.stack.append(_CALLS[name](*arguments))
    except (LookupError, TypeError, ValueError):
        machine.refuse(f"an odd call of {name.replace(' ', '.', 1)}")


def _build(machine: _Description, _: None) -> None:
    state, target = machine.stack.pop(), machine.stack[-1]
    if type(target) is not dict or type(state) is not dict or {*state} != {"_metadata"}:
        machine.refuse("an object with attributes")


def _storage(machine: _Description, _: None) -> None:
    match machine.stack.pop():
        case ("storage", _Global(name), str(key), str(), int(count)) if name in _STORAGES:
            machine.stack.append(_Storage(key, _STORAGES[name], count))
        case _:
            machine.refuse("a reference to something other than a storage of numbers")


def _table() -> dict[str, object]:
    return {}


def _tensor(
    storage: _Storage, offset: int, shape: tuple[int, ...], strides: tuple[int, ...],
    _requires_grad: bool, hooks: dict[str, object], *more: object,
) -> PickledTensor:  # fmt: skip
    numbers = (offset, *shape, *strides)
    if not isinstance(storage, _Storage) or hooks != {} or any(more) or len(shape) > 8:
        raise TypeError("not a plain tensor")
    if len(shape) != len(strides) or not all(type(n) is int and n >= 0 for n in numbers):
        raise ValueError("no shape")
    return PickledTensor(storage, offset, tuple(shape), tuple(strides))


def _parameter(tensor: PickledTensor, _requires_grad: bool, hooks: dict[str, object]) -> object:
    if not isinstance(tensor, PickledTensor) or hooks != {}:
        raise TypeError("not a plain parameter")
    return tensor


_CALLS: Mapping[str, Callable[..., object]] = {
    "collections OrderedDict": _table,
    "torch._utils _rebuild_tensor_v2": _tensor,
    "torch._utils _rebuild_parameter": _parameter,
}
_STEPS: Mapping[str, Callable[[_Description, Any], None]] = {
    **dict.fromkeys(("BINUNICODE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"), _push),
    "NONE": lambda machine, _: _push(machine, None),
    "NEWTRUE": lambda machine, _: _push(machine, True),
    "NEWFALSE": lambda machine, _: _push(machine, False),
    "EMPTY_TUPLE": lambda machine, _: _push(machine, ()),
    "EMPTY_DICT": lambda machine, _: _push(machine, {}),
    "PROTO": lambda *_: None, "STOP": lambda *_: None, "MARK": _mark, "GLOBAL": _import,
    "BINPUT": _store, "LONG_BINPUT": _store, "BINGET": _fetch, "LONG_BINGET": _fetch,
    "TUPLE": _tuple_of_marked, "TUPLE1": partial(_tuple_of, 1), "TUPLE2": partial(_tuple_of, 2),
    "TUPLE3": partial(_tuple_of, 3), "SETITEM": _set_item, "SETITEMS": _set_items,
    "REDUCE": _call, "BUILD": _build, "BINPERSID": _storage,
}  # fmt: skip


# --- the tensors ---------------------------------------------------------------------------------


def _check_result(path: Path, result: object) -> dict[str, PickledTensor]:
    """The tensors by name, each of a type that a weight may have, and none of odd shape."""
    table = result if type(result) is dict else {}
    odd = [name for name, value in table.items() if not isinstance(value, PickledTensor)]
    if odd or not table:
        what = f"{odd[0][:80]!r}, which is no tensor" if odd else "no mapping"
        _Description(path).refuse(what)
    for name, tensor in table.items():
        check_type(path, name, tensor.storage.dtype)
        if not _is_dense(tensor):
            damaged(path, f"the tensor {name[:80]!r} has strides of {tensor.strides}"[:200])
    return table


def _is_dense(tensor: PickledTensor) -> bool:
    """Whether each number has a place of its own, side by side in some order of dimensions."""
    step, dense = 1, True
    for stride, size in sorted(zip(tensor.strides, tensor.shape, strict=True)):
        dense = dense and (size < 2 or stride == step)
        step *= size
    return dense or not step


def _check_storages(
    path: Path, tensors: Mapping[str, PickledTensor], records: Mapping[str, Record]
) -> None:
    """Every tensor must lie in a record of the very size of its storage, beside all others."""
    distinct = sorted({*tensors.values()})
    for tensor, after in zip(distinct, [*distinct[1:], None], strict=True):
        storage = tensor.storage
        size = records.get(f"data/{storage.record}", Record(0, 0, 0)).size
        if size != storage.n_numbers * ITEM_BYTES[storage.dtype] or tensor.end > storage.n_numbers:
            damaged(
                path,
                f"a tensor of {tensor.end} {storage.dtype} numbers is put into {storage.n_numbers}"
                f" of the record {storage.record[:80]!r}, which has {size} bytes",
            )
        if after is not None and _overlap(tensor, after):
            damaged(path, f"two tensors overlap in the record {storage.record[:80]!r}")
    named = sum(math.prod(tensor.shape) for tensor in tensors.values())
    held = sum(math.prod(tensor.shape) for tensor in distinct)
    if named > _COPIES * held:
        damaged(path, f"its tensors have {named} numbers, of which only {held} are different")


def _overlap(tensor: PickledTensor, after: PickledTensor) -> bool:
    """Whether two tensors have numbers in common, or see those of a record as different types."""
    same = tensor.storage.record == after.storage.record
    return same and (tensor.storage != after.storage or after.offset < tensor.end)
