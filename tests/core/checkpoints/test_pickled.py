"""Weights in .bin files: read where they are plain tensors, refused unopened where not."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import struct
import sys
import zipfile
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from support.hand_made import SHAPES, edit, make, put, to_hub_cache

from skbert._core.checkpoints import pickled, strict, vet, weights, zipped
from skbert._core.checkpoints.find import find
from skbert._core.items import Head
from skbert._core.models.opening import open_network
from skbert.exceptions import ModelError, SkbertWarning

if TYPE_CHECKING:
    from collections.abc import Callable

BIN = "pytorch_model.bin"
NAME, OTHER = SHAPES


class Numbers(NamedTuple):
    """A reference to numbers in a record, as a pickle makes it."""

    count: int = 8
    key: str = "0"
    kind: type = torch.FloatStorage
    tag: str = "storage"


class Claimed:
    """A tensor of which a pickle may claim anything."""

    def __init__(
        self, shape: Any = (2, 4), strides: Any = (4, 1), offset: Any = 0,
        numbers: Any = None, hooks: Any = None, rebuild: Any = None, more: Any = (),
    ) -> None:  # fmt: skip
        hooks = OrderedDict() if hooks is None else hooks
        numbers = Numbers() if numbers is None else numbers
        self.call = rebuild or torch._utils._rebuild_tensor_v2
        self.arguments = (numbers, offset, shape, strides, False, hooks, *more)

    def __reduce__(self) -> Any:
        return self.call, self.arguments


class Call:
    """What runs a function when it is unpickled."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


class _Pickler(pickle.Pickler):
    def persistent_id(self, value: Any) -> Any:
        if isinstance(value, Numbers):
            return value.tag, value.kind, value.key, "cpu", value.count
        return None


def pickle_of(content: Any) -> bytes:
    file = io.BytesIO()
    _Pickler(file, protocol=2).dump(content)
    return file.getvalue()


def records(content: Any, sizes: tuple[int, ...] = (32,)) -> dict[str, bytes]:
    data = content if isinstance(content, bytes) else pickle_of(content)
    numbers = {f"m/data/{row}": bytes(range(size)) for row, size in enumerate(sizes)}
    return {"m/data.pkl": data, **numbers, "m/version": b"3\n"}


def zip_of(entries: dict[str, bytes], **settings: Any) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", **settings) as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    return file.getvalue()


def saved(tensors: Any) -> bytes:
    file = io.BytesIO()
    torch.save(tensors, file)
    return file.getvalue()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A whole and honest checkpoint, its weights in a .bin file."""
    made = make(tmp_path / "model")
    (made / strict.SINGLE).unlink()
    put(made, BIN, saved({name: torch.ones(shape) for name, shape in SHAPES.items()}))
    return made


def refused(folder: Path, match: str) -> None:
    with pytest.raises(ModelError, match=match) as caught:
        vet.vet(folder)
    assert str(folder) in str(caught.value)
    assert "safetensors" in str(caught.value)  # what to do


def read(folder: Path) -> dict[str, torch.Tensor]:
    with pytest.warns(SkbertWarning, match=r"pickle.*Convert the model to safetensors once"):
        return weights.read_weights(vet.vet(folder))


# --- what is read --------------------------------------------------------------------------------


def _tied() -> dict[str, torch.Tensor]:
    table = torch.rand(8, 4)
    return {NAME: table, "cls.predictions.decoder.weight": table}


def _parameters() -> dict[str, torch.Tensor]:
    return dict(torch.nn.Linear(4, 4).named_parameters())


HONEST: dict[str, Callable[[], Any]] = {
    "a state dict": lambda: torch.nn.Sequential(torch.nn.Linear(4, 3)).state_dict(),
    "parameters": _parameters,
    "tied weights": _tied,
    "transposed": lambda: {NAME: torch.rand(4, 8).T, "x": torch.rand(2, 3, 4).permute(2, 0, 1)},
    "side by side in one storage": lambda: dict(zip("ab", torch.rand(4, 6).split(2), strict=True)),
    "types": lambda: {str(dtype): torch.rand(3).to(dtype) for dtype in weights._TYPES.values()},
    "sizes": lambda: {"0": torch.rand(()), "none": torch.empty(0, 3), "1": torch.rand(1, 5, 1)},
    "expanded by 1": lambda: {"position_ids": torch.arange(8).expand((1, -1))},
    "many": lambda: {f"{row}": torch.rand(2) for row in range(300)},
}


@pytest.mark.parametrize("make_tensors", HONEST.values(), ids=HONEST)
def test_what_torch_saves_is_read(folder: Path, make_tensors: Callable[[], Any]) -> None:
    tensors = make_tensors()
    put(folder, BIN, saved(tensors))
    got = read(folder)
    assert got.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(got[name], tensor)
        assert got[name].dtype == tensor.dtype
        assert got[name].is_contiguous()
        assert not got[name].requires_grad
    places = [tensor.data_ptr() for tensor in got.values() if tensor.numel()]
    assert len({*places}) == len(places)


def test_a_file_without_checksums_and_one_by_a_path_are_read(folder: Path) -> None:
    tensors = {name: torch.rand(shape) for name, shape in SHAPES.items()}
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(tensors, folder / BIN)
    finally:
        torch.serialization.set_crc32_options(before)
    assert torch.equal(read(folder)[NAME], tensors[NAME])


def test_a_file_that_other_zip_tools_wrote_is_read(folder: Path) -> None:
    put(folder, BIN, zip_of(records({"x": Claimed()})))
    want = torch.frombuffer(bytearray(range(32)), dtype=torch.float32).view(2, 4)
    assert torch.equal(read(folder)["x"], want)


def test_a_model_opens_as_from_safetensors(tiny_model: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_model, tmp_path / "model"))
    held = load_file(folder / strict.SINGLE)
    (folder / strict.SINGLE).unlink()
    old = {name.replace("LayerNorm.weight", "LayerNorm.gamma"): t for name, t in held.items()}
    old = {name.replace("LayerNorm.bias", "LayerNorm.beta"): t for name, t in old.items()}
    assert len(old.keys() - held.keys()) == 10
    head = Head("embedding", 0)
    want = open_network(vet.vet(tiny_model), head).model.state_dict()
    for tensors in (held, old):
        torch.save(tensors, folder / BIN)
        with pytest.warns(
            SkbertWarning, match=r"transformers\.BertModel\.from_pretrained"
        ) as told:
            got = open_network(vet.vet(folder), head).model.state_dict()
        assert len(told) == 1
        assert got.keys() == want.keys()
        assert all(torch.equal(got[name], want[name]) for name in want)


def shard(folder: Path, files: dict[str, object] | None = None) -> None:
    """Replace the one .bin file by two and an index."""
    (folder / BIN).unlink()
    for row, (name, shape) in enumerate(SHAPES.items()):
        put(folder, f"pytorch_model-{row}.bin", saved({name: torch.ones(shape)}))
    listed = {name: f"pytorch_model-{row}.bin" for row, name in enumerate(SHAPES)}
    put(folder, f"{BIN}.index.json", {"weight_map": {**listed, **(files or {})}})


def test_shards_are_read(folder: Path) -> None:
    shard(folder)
    assert [file.name for file in vet.vet(folder).weights] == [
        "pytorch_model-0.bin", "pytorch_model-1.bin",
    ]  # fmt: skip
    assert {name: tuple(tensor.shape) for name, tensor in read(folder).items()} == SHAPES


@pytest.mark.parametrize("name", ["../x.bin", "/tmp/x.bin", "sub/x.bin", "x.safetensors", 3, ""])
def test_shards_are_bin_files_in_the_folder(folder: Path, name: object) -> None:
    shard(folder, {OTHER: name})
    with pytest.raises(ModelError, match=r"bin\.index\.json puts the tensor .* should be a \.bin"):
        vet.vet(folder)


def test_safetensors_come_first(folder: Path) -> None:
    put(folder, BIN, b"hostile")
    whole = make(folder.parent / "whole") / strict.SINGLE
    shutil.copy(whole, folder)
    assert [file.name for file in vet.vet(folder).weights] == [strict.SINGLE]
    (folder / strict.SINGLE).rename(folder / "part.safetensors")
    put(folder, strict.INDEX, {"weight_map": dict.fromkeys(SHAPES, "part.safetensors")})
    assert [file.name for file in vet.vet(folder).weights] == ["part.safetensors"]


def test_a_cached_copy_with_bin_files_is_complete(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    shard(folder)
    snapshot = to_hub_cache(folder, tmp_path / "cache")
    assert find("o/m") == snapshot
    assert read(snapshot).keys() == SHAPES.keys()
    (snapshot / "pytorch_model-1.bin").unlink()
    with pytest.raises(ModelError, match=r"a copy without pytorch_model-1\.bin\)"):
        find("o/m")


def test_sizes_are_checked_as_those_of_safetensors(folder: Path) -> None:
    large = {"hidden_size": 16_384, "num_hidden_layers": 256, "intermediate_size": 131_072}
    edit(folder, "config.json", lambda config: config.update(large))
    with pytest.raises(ModelError, match=r"describes a model of \d{13} weights, but its files ho"):
        vet.vet(folder)


def test_tied_weights_count_once(folder: Path) -> None:
    put(folder, BIN, saved(_tied()))
    (file,) = vet.vet(folder).weights
    assert file.n_weights == 32


# --- what is not a state dict --------------------------------------------------------------------


def test_a_harmful_pickle_is_never_run(folder: Path, tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    for call in (
        Call(open, str(mark), "w"),
        Call(os.system, f"touch {mark}"),
        Call(eval, f"open({str(mark)!r}, 'w')"),
        Call(torch.load, str(mark)),
        Call(torch.hub.load, str(tmp_path), "x"),
    ):
        for content in (call, {"x": call}, {"x": Claimed(hooks=call)}, [call]):
            put(folder, BIN, zip_of(records(content)))
            refused(
                folder,
                r"(global \w+\.|EMPTY_LIST).*nothing of it was executed",
            )
            put(folder, BIN, pickle_of(content))
            refused(folder, r"as torch wrote it before version 1\.6")
    assert not mark.exists()
    pickle.loads(pickle_of(Call(open, str(mark), "w"))).close()
    assert mark.exists()  # these pickles do harm elsewhere


DENSE = {"x": Claimed()}
ODD: dict[str, tuple[Any, str]] = {
    "nothing": ({}, "holds no mapping"),
    "a tensor": (Claimed(), "holds no mapping"),
    "a tuple": ((Claimed(),), "holds no mapping"),
    "a list": ([Claimed()], "holds the instruction EMPTY_LIST"),
    "a number": ({"x": 1}, "holds 'x', which is no tensor"),
    "a text": ({"x": "y"}, "holds 'x', which is no tensor"),
    "a nested dict": ({"state_dict": DENSE}, "holds 'state_dict', which is no tensor"),
    "numbers for names": ({1: Claimed()}, "a dict with a key that is no str"),
    "tuples for names": ({(("x",),): 1}, "a dict with a key that is no str"),
    "another class": ({"x": complex(1)}, "the global __builtin__.complex"),
    "a class of torch": ({"x": torch.Size([1])}, "the global torch.Size"),
    "a device": ({"x": torch.device("cpu")}, "the global torch.device"),
    "an old way": (
        {"x": Claimed(rebuild=torch._utils._rebuild_tensor)},
        "the global torch._utils._rebuild_tensor"),
    "a sparse tensor": (
        {"x": Claimed(rebuild=torch._utils._rebuild_sparse_tensor)}, "_rebuild_sparse_tensor"),
    "bytes without a type": (
        {"x": Claimed(numbers=Numbers(kind=torch.UntypedStorage))}, "UntypedStorage"),
    "complex numbers": (
        {"x": Claimed(numbers=Numbers(kind=torch.ComplexFloatStorage))}, "ComplexFloatStorage"),
    "another reference": ({"x": Claimed(numbers=Numbers(tag="module"))}, "other than a storage"),
    "hooks": ({"x": Claimed(hooks={"y": 1})}, r"odd call of torch\._utils\._rebuild_tensor_v2"),
    "metadata": ({"x": Claimed(more=({"neg": True},))}, "odd call of"),
    "no storage": ({"x": Claimed(numbers=(1, 2))}, "odd call of"),
    "a shape of text": ({"x": Claimed(shape=("2",), strides=(1,))}, "odd call of"),
    "a shape of true": ({"x": Claimed(shape=(True,), strides=(1,))}, "odd call of"),
    "a negative shape": ({"x": Claimed(shape=(-2, -4))}, "odd call of"),
    "a negative stride": ({"x": Claimed(strides=(-4, 1))}, "odd call of"),
    "a negative offset": ({"x": Claimed(offset=-1)}, "odd call of"),
    "too few strides": ({"x": Claimed(strides=(1,))}, "odd call of"),
    "nine dimensions": ({"x": Claimed(shape=(1,) * 9, strides=(1,) * 9)}, "odd call of"),
    "a call of too few": ({"x": Call(torch._utils._rebuild_tensor_v2, Numbers())}, "odd call of"),
    "a filled dict": ({"x": Call(OrderedDict, (("x", 1),))}, "odd call of collections.OrderedD"),
    "a huge claim": (
        {"x": Claimed(shape=(2**40,), strides=(1,), numbers=Numbers(2**40))},
        "1099511627776 F32 numbers is put into .* record '0', which has 32 bytes"),
    "a claim of too few": ({"x": Claimed(numbers=Numbers(7))}, "which has 32 bytes"),
    "a claim below zero": ({"x": Claimed(numbers=Numbers(-8))}, "which has 32 bytes"),
    "another type": ({"x": Claimed(numbers=Numbers(8, kind=torch.HalfStorage))}, "has 32 bytes"),
    "no such record": ({"x": Claimed(numbers=Numbers(8, key="9"))}, "'9', which has 0 bytes"),
    "a path": ({"x": Claimed(numbers=Numbers(8, key="../m/data/0"))}, "which has 0 bytes"),
    "a view past the end": ({"x": Claimed(offset=1)}, "a tensor of 9 F32 numbers is put into 8"),
    "a stretched view": ({"x": Claimed(strides=(8, 1))}, "has strides of"),
    "a repeated number": ({"x": Claimed(shape=(10**9,), strides=(0,))}, "has strides of"),
    "rows on each other": ({"x": Claimed(shape=(2, 4), strides=(1, 1))}, "has strides of"),
    "an overlap": (
        {"x": Claimed((4,), (1,)), "y": Claimed((4,), (1,), 2)}, "two tensors overlap"),
    "two types of one record": (
        {"x": Claimed((4,), (1,)),
         "y": Claimed((4,), (1,), 4, Numbers(8, kind=torch.IntStorage))}, "two tensors overlap"),
    "many names for the same": ({f"{i}": Claimed() for i in range(9)}, "only 8 are different"),
    "a weight of integers": (
        {"x.weight": Claimed(numbers=Numbers(8, kind=torch.IntStorage))},
        r"holds the weight 'x\.weight' as I32\. Weights must be of one of the types F64"),
}  # fmt: skip


@pytest.mark.parametrize(("content", "message"), ODD.values(), ids=ODD)
def test_what_is_no_state_dict_is_refused(folder: Path, content: Any, message: str) -> None:
    put(folder, BIN, zip_of(records(content)))
    with pytest.raises(ModelError, match=message) as caught:
        vet.vet(folder)
    assert str(folder / BIN) in str(caught.value)


PICKLES = {
    "no bytes": (b"", "has a small data.pkl"),
    "no pickle": (b"hello", "its pickle is broken"),
    "no end": (b"\x80\x02}", "its pickle is broken"),
    "an empty stack": (b"\x80\x02.", "its pickle is broken"),
    "two values": (b"\x80\x02}}.", "its pickle is broken"),
    "a mark too few": (b"\x80\x02}u.", "its pickle is broken"),
    "an odd number of items": (b"\x80\x02}(X\x01\x00\x00\x00xu.", "its pickle is broken"),
    "a memo that nobody filled": (b"\x80\x02h\x07.", "its pickle is broken"),
    "items of a tuple": (b"\x80\x02)X\x01\x00\x00\x00xNs.", "items of something other than"),
    "a memo of 64 GB": (b"\x80\x02}r\xff\xff\xff\xff.", "holds no mapping"),
    "a text of 4 GB": (b"\x80\x02X\xff\xff\xff\xffx.", "its pickle is broken"),
    "a list of itself": (b"\x80\x02]q\x00h\x00a.", "the instruction EMPTY_LIST"),
    "a dict in itself": (b"\x80\x02}q\x00X\x01\x00\x00\x00xh\x00s.", "'x', which is no tensor"),
    "a name twice": (
        b"\x80\x02}(X\x01\x00\x00\x00xNX\x01\x00\x00\x00xNu.", "no str, or is there twice"),
    "a tuple of 2 ** 60": (
        b"\x80\x02})q\x00" + 60 * b"h\x00\x86q\x00" + b"Ns.", "a dict with a key that is no str"),
    "attributes": (b"\x80\x02}X\x01\x00\x00\x00xNb.", "an object with attributes"),
    "attributes of a global": (b"\x80\x02ctorch\nFloatStorage\n}b.", "an object with attributes"),
    "a call of a number": (b"\x80\x02K\x01)R.", "odd call of nothing"),
    "a call of a storage": (b"\x80\x02ctorch\nFloatStorage\n)R.", "odd call of torch.FloatSto"),
    "a class made": (b"\x80\x02ccollections\nOrderedDict\n)\x81.", "the instruction NEWOBJ"),
    "an instance": (b"\x80\x02(iposix\nsystem\n.", "the instruction INST"),
    "a registered extension": (b"\x80\x02\x82\x01.", "the instruction EXT1"),
    "a global from the stack": (b"\x80\x04X\x01\x00\x00\x00xX\x01\x00\x00\x00x\x93.", "STACK_GLO"),
}  # fmt: skip


@pytest.mark.parametrize(("data", "message"), PICKLES.values(), ids=PICKLES)
def test_odd_pickles_are_refused(folder: Path, data: bytes, message: str) -> None:
    put(folder, BIN, zip_of(records(data)))
    refused(folder, message)


def test_a_pickle_has_a_limit(folder: Path) -> None:
    put(folder, BIN, zip_of(records(bytes(pickled._PICKLE_LIMIT + 1))))
    refused(folder, "has a small data.pkl")


# --- the zip file --------------------------------------------------------------------------------

PLAIN = records(DENSE)
WHOLE = zip_of(PLAIN)


def _renamed(name: str) -> bytes:
    return zip_of({**PLAIN, name: b"x"})


def _at(offset: int, data: bytes, whole: bytes = WHOLE) -> bytes:
    offset %= len(whole)
    return whole[:offset] + data + whole[offset + len(data) :]


def _commented() -> bytes:
    file = io.BytesIO(WHOLE)
    with zipfile.ZipFile(file, "a") as archive:
        archive.comment = b"PK\x05\x06"
    return file.getvalue()


def _two_of_a_name() -> bytes:
    file = io.BytesIO(WHOLE)
    with pytest.warns(UserWarning, match="Duplicate name"), zipfile.ZipFile(file, "a") as archive:
        archive.writestr("m/data/0", bytes(32))
    return file.getvalue()


def _two_views_of_one_record() -> bytes:
    """A directory with one more entry, that points at the bytes of another."""
    begin, size = WHOLE.index(b"PK\x01\x02"), len(b"m/data.pkl") + 46
    entry = WHOLE[begin : begin + size].replace(b"m/data.pkl", b"m/data/001")
    end = WHOLE.index(b"PK\x05\x06")
    n_entries, length = struct.unpack("<HI", WHOLE[end + 10 : end + 16])
    tail = struct.pack("<HHI", n_entries + 1, n_entries + 1, length + size)
    return WHOLE[:end] + entry + WHOLE[end : end + 8] + tail + WHOLE[end + 16 :]


ZIPS = {
    "nothing": (b"", "0 bytes do not end as a zip file does"),
    "a text": (b"version https://git-lfs.github.com/spec/v1", "42 bytes do not end as a zip"),
    "a tar file": (bytes(10_240), "do not end as a zip file does"),
    "an empty zip": (zip_of({}), "not in one folder"),
    "bytes before": (b"x" + WHOLE, "its directory has .* bytes at"),
    "bytes behind": (WHOLE + b"x", "do not end as a zip file does"),
    "a comment": (_commented(), "do not end as a zip file does|its directory has"),
    "compressed": (zip_of(PLAIN, compression=zipfile.ZIP_DEFLATED), "'data.pkl' is compressed"),
    "a bomb": (
        zip_of({**PLAIN, "m/data/0": bytes(10**6)}, compression=zipfile.ZIP_LZMA),
        "is compressed"),
    "a record twice": (_two_of_a_name(), "is there twice"),
    "a record within another": (_two_views_of_one_record(), "is not where the directory says"),
    "two folders": (_renamed("n/data/9"), "not in one folder"),
    "no folder": (zip_of({"data.pkl": b"x"}), "a record is called 'data.pkl'"),
    "a folder above": (_renamed("m/data/../../x"), "a record is called"),
    "a dotted name": (_renamed("m/data/.."), "a record is called"),
    "an absolute path": (_renamed("/m/data/1"), "not in one folder"),
    "a path of Windows": (_renamed("m\\data\\1"), "not in one folder"),
    "an odd name": (_renamed("m/data/ü"), "a record is called"),
    "a module that runs": (_renamed("m/constants.pkl"), "no state dict, .* and no code"),
    "no pickle": (zip_of({"m/data/0": bytes(32)}), "no state dict"),
    "encrypted": (_at(WHOLE.index(b"PK\x01\x02") + 8, b"\x01"), "is compressed or encr"),
    "another name before the bytes": (_at(30, b"n"), "not where the directory says"),
    "a longer name before the bytes": (_at(26, b"\xff"), "not where the directory says"),
    "more before the bytes": (_at(28, b"\x40"), "not behind the one before|its pickle"),
    "an entry cut short": (_at(WHOLE.index(b"PK\x01\x02"), b"XX"), "directory cannot be read"),
    "another version": (_at(WHOLE.index(b"PK\x01\x02") + 6, b"\xff"), "directory cannot be read"),
    "a directory elsewhere": (_at(-6, b"\x01\x00"), "its directory has"),
}  # fmt: skip


@pytest.mark.parametrize(("data", "message"), ZIPS.values(), ids=ZIPS)
def test_odd_zip_files_are_refused(folder: Path, data: bytes, message: str) -> None:
    put(folder, BIN, data)
    refused(folder, rf"is damaged, cut short or no file of torch\.save: .*({message})")


def test_a_directory_has_a_limit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zipped, "_DIRECTORY_LIMIT", 100)
    refused(folder, "its directory has")


def test_every_truncation_is_found(folder: Path) -> None:
    data = (folder / BIN).read_bytes()
    for length in range(2, len(data), 3):
        put(folder, BIN, data[:length])
        with pytest.raises(ModelError, match=r"damaged, cut short or no file of torch\.save"):
            vet.vet(folder)


def test_files_of_old_versions_of_torch_are_refused_with_advice(folder: Path) -> None:
    tensors = {name: torch.rand(shape) for name, shape in SHAPES.items()}
    torch.save(tensors, folder / BIN, _use_new_zipfile_serialization=False)
    refused(folder, r"before version 1\.6.*convert it once: .*weights_only=True")


def test_a_member_swapped_with_another_is_found(folder: Path) -> None:
    rows = {"x": Claimed(), "y": Claimed(numbers=Numbers(key="1"))}
    entries = {**records(rows, (32, 32)), "m/data/1": bytes(32)}
    data = zip_of(entries)
    at = [data.index(f"m/data/{row}".encode()) + 8 for row in (0, 1)]
    one, two = (data[begin : begin + 32] for begin in at)
    assert one != two
    put(folder, BIN, _at(at[1], one, _at(at[0], two, data)))
    checkpoint = vet.vet(folder)
    with pytest.raises(ModelError, match="the checksum of its record 'data/0' is wrong"):
        weights.read_weights(checkpoint)
    swapped = {**entries, "m/data/0": bytes(16), "m/data/1": bytes(48)}
    put(folder, BIN, zip_of(swapped))
    refused(folder, "'0', which has 16 bytes")


@given(at=st.integers(0, 10**6), byte=st.integers(0, 255), whole=st.sampled_from((WHOLE, b"")))
def test_no_changed_byte_does_worse_than_an_error(
    folder_once: Path, at: int, byte: int, whole: bytes
) -> None:
    whole = whole or saved({name: torch.ones(shape) for name, shape in SHAPES.items()})
    put(folder_once, BIN, _at(at, bytes([byte]), whole))
    with suppress(ModelError, RuntimeError):  # of torch's own reader
        file = pickled.pickled_file(strict.Members(folder_once), BIN)
        with file.opened() as stream:
            held = torch.load(stream, weights_only=True)
        assert {name: tuple(tensor.shape) for name, tensor in held.items()} == {
            name: tensor.shape for name, tensor in file.tensors.items()
        }


@pytest.fixture(scope="module")
def folder_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For a test that writes its file each time."""
    return make(tmp_path_factory.mktemp("source") / "model")


# --- the file ------------------------------------------------------------------------------------


def test_links_that_leave_the_folder_and_pipes_are_refused(folder: Path) -> None:
    outside = folder.parent / "outside.bin"
    (folder / BIN).rename(outside)
    (folder / BIN).symlink_to(outside)
    with pytest.raises(ModelError, match=r"pytorch_model\.bin is a link that leaves its folder"):
        vet.vet(folder)
    (folder / BIN).unlink()
    os.mkfifo(folder / BIN)  # opening it would wait for ever
    with pytest.raises(ModelError, match=r"pytorch_model\.bin is no file that can be read"):
        vet.vet(folder)


def test_a_file_that_changes_after_it_was_vetted_is_not_opened(folder: Path) -> None:
    checkpoint = vet.vet(folder)
    put(folder, BIN, zip_of(records(Call(os.getcwd))))
    with pytest.raises(ModelError, match="was changed while it was opened"):
        weights.read_weights(checkpoint)


def test_tensors_that_the_pickle_does_not_describe_are_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = vet.vet(folder)
    held = {name: torch.ones(shape) for name, shape in SHAPES.items()}
    for other in ({}, {**held, OTHER: torch.ones(5)}, {**held, OTHER: torch.ones(4).half()}):
        monkeypatch.setattr(torch, "load", lambda *_, other=other, **__: other)
        with pytest.raises(ModelError, match="opens with other tensors than its pickle describes"):
            weights.read_weights(checkpoint)


def test_a_manifest_knows_the_hash(folder: Path) -> None:
    members = strict.Members(folder, {BIN: "0" * 64})
    file = pickled.pickled_file(members, BIN)
    with pytest.raises(ModelError, match="its SHA-256 is not the one"), file.opened():
        pass


def test_torch_stays_out_of_what_vets(folder: Path) -> None:
    import subprocess

    code = (
        "import sys; from skbert._core.checkpoints import vet; vet.vet(sys.argv[1]);"
        " assert not {'torch', 'transformers', 'tokenizers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(folder)], check=True)
    assert json.loads((folder / "config.json").read_text())
