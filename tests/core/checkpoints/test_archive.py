"""Saved folders: what is written is read back, and nothing else is."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import math
import os
import pickle
import resource
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import ROOT

from skbert._core.checkpoints import archive, leftovers, strict
from skbert.exceptions import SaveError

if TYPE_CHECKING:
    from collections.abc import Callable

MEMBERS = {"config.json": b'{"hidden_size": 8}', "state.json": b'{"classes": ["a", "b"]}'}
HEADER = {"class": "BertClassifier", "params": {"epochs": 3, "learning_rate": 5e-5}}
TENSORS = {
    "weight": torch.arange(12, dtype=torch.float32).reshape(3, 4),
    "half": torch.tensor([1.0, -2.5, 3e38], dtype=torch.bfloat16),
}


def save(folder: Path, **header: Any) -> Path:
    archive.write(folder, MEMBERS, {**HEADER, **header}, TENSORS)
    return folder


def tree(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return save(tmp_path / "model")


@pytest.fixture(scope="module")
def saved_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For tests that put back what they change."""
    return save(tmp_path_factory.mktemp("archive") / "model")


def read(folder: Path) -> tuple[dict[str, Any], dict[str, bytes], dict[str, torch.Tensor]]:
    return archive.read(folder, MEMBERS)


def forge(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the manifest as somebody would who knows how its digest is made."""
    path = folder / "MANIFEST.json"
    manifest = json.loads(path.read_text())
    manifest.pop("digest")
    change(manifest)
    manifest["digest"] = archive._digest(manifest)
    path.write_text(json.dumps(manifest))


def forge_member(folder: Path, name: str, data: bytes) -> None:
    (folder / name).write_bytes(data)
    entry = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    forge(folder, lambda manifest: manifest["members"].update({name: entry}))


# --- round trips ---------------------------------------------------------------------------------


def test_round_trip(saved: Path) -> None:
    header, members, tensors = read(saved)
    assert header.pop("versions").keys() >= {"python", "torch", "safetensors", "numpy"}
    assert header == HEADER
    assert members == MEMBERS
    assert tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert tensors[name].dtype == tensor.dtype
        assert torch.equal(tensors[name], tensor)


def test_a_folder_without_tensors(tmp_path: Path) -> None:
    archive.write(tmp_path / "graph", {"model.onnx": b"graph"}, {"engine": "onnx"}, None)
    header, members = archive.read_members(tmp_path / "graph", ["model.onnx"])
    assert (header["engine"], members) == ("onnx", {"model.onnx": b"graph"})
    assert not (tmp_path / "graph" / archive.TENSORS).exists()
    with pytest.raises(SaveError, match=r"does not list 'model\.safetensors', which it must"):
        archive.read(tmp_path / "graph", ["model.onnx"])
    (tmp_path / "graph" / "model.onnx").write_bytes(b"grape")
    with pytest.raises(SaveError, match="is damaged"):
        archive.read_members(tmp_path / "graph", ["model.onnx"])


def test_the_folder_is_what_the_manifest_says(saved: Path) -> None:
    """Checked without the code under test: sizes and hashes are those of the files."""
    files = tree(saved)
    manifest = json.loads(files.pop("MANIFEST.json"))
    assert manifest["format"] == 1
    assert manifest["params"] == HEADER["params"]
    assert manifest["versions"]["torch"] == torch.__version__
    assert manifest["members"] == {
        name: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for name, data in files.items()
    }
    opened = safetensors.torch.load_file(saved / "model.safetensors")
    assert torch.equal(opened["weight"], TENSORS["weight"])


DTYPES = (
    "float64 float32 float16 bfloat16 int64 int32 int16 int8 uint8 bool uint16 uint32 complex64"
)


@pytest.mark.parametrize("name", DTYPES.split())
def test_every_type_of_tensor_comes_back(tmp_path: Path, name: str) -> None:
    tensor = torch.tensor([0, 1, 100]).to(getattr(torch, name))
    archive.write(tmp_path / "m", {}, {}, {"x": tensor})
    got = archive.read(tmp_path / "m", [])[2]["x"]
    assert got.dtype == tensor.dtype
    assert torch.equal(got, tensor)


def test_odd_tensors_come_back(tmp_path: Path) -> None:
    base = torch.arange(6.0).reshape(2, 3)
    frozen = np.arange(4, dtype=np.int16)
    frozen.flags.writeable = False
    tensors = {
        "scalar": torch.tensor(3.0),
        "empty": torch.zeros(0, 5),
        "transposed": base.T,
        "tied": base,
        "tied again": base,
        "slice": base[1],
        "with a gradient": torch.nn.Parameter(base.clone()),
        "not finite": torch.tensor([math.nan, math.inf, -math.inf]),
        "from numpy": frozen,
        "numpy scalar": np.array(2.5),
    }
    archive.write(tmp_path / "m", {}, {}, tensors)
    got = archive.read(tmp_path / "m", [])[2]
    assert got.keys() == tensors.keys()
    for name, tensor in tensors.items():
        want = tensor.detach() if torch.is_tensor(tensor) else torch.tensor(tensor)
        assert got[name].dtype == want.dtype
        assert torch.equal(torch.nan_to_num(got[name]), torch.nan_to_num(want))


def test_what_is_read_does_not_follow_the_files(saved: Path) -> None:
    _, _, tensors = read(saved)
    shutil.rmtree(saved)
    tensors["weight"] += 1
    assert torch.equal(tensors["weight"], TENSORS["weight"] + 1)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
@given(value=json_values, data=st.binary(max_size=200))
def test_any_header_and_member_come_back(tmp_path: Path, value: Any, data: bytes) -> None:
    archive.write(tmp_path / "m", {"a.json": data}, {"value": value}, {})
    header, members, tensors = archive.read(tmp_path / "m", ["a.json"])
    assert header["value"] == value
    assert json.dumps(header["value"]) == json.dumps(value)  # also -0.0, 1 and 1.0
    assert members == {"a.json": data}
    assert tensors == {}


def test_optional_members_may_be_absent_but_not_hidden(saved: Path) -> None:
    _, members, _ = archive.read(saved, MEMBERS, optional=["notes.json"])
    assert members == MEMBERS
    (saved / "notes.json").write_bytes(b"{}")
    with pytest.raises(SaveError, match=r"does not list 'notes\.json', which is there"):
        archive.read(saved, MEMBERS, optional=["notes.json"])


def test_files_that_nobody_asks_for_are_not_looked_at(saved: Path) -> None:
    (saved / "README.md").write_text("mine")
    assert read(saved)[1] == MEMBERS


def test_all_files_have_the_same_rights(saved: Path) -> None:
    assert len({stat.S_IMODE(path.stat().st_mode) for path in saved.iterdir()}) == 1


# --- damage --------------------------------------------------------------------------------------

FILES = ("MANIFEST.json", "model.safetensors", *MEMBERS)


@contextlib.contextmanager
def changed(path: Path, data: bytes) -> Any:
    before = path.read_bytes()
    path.write_bytes(data)
    try:
        yield
    finally:
        path.write_bytes(before)


@pytest.mark.parametrize("name", ["model.safetensors", *MEMBERS])
def test_every_flipped_byte_of_a_member_is_found(saved_once: Path, name: str) -> None:
    data = (saved_once / name).read_bytes()
    for at in range(len(data)):
        flipped = data[:at] + bytes([data[at] ^ (1 << at % 8)]) + data[at + 1 :]
        with (
            changed(saved_once / name, flipped),
            pytest.raises(SaveError, match=rf"{name} is damaged: its SHA-256"),
        ):
            read(saved_once)
    assert read(saved_once)[1] == MEMBERS


def test_every_flipped_byte_of_the_manifest_is_found_or_means_nothing(saved_once: Path) -> None:
    path = saved_once / "MANIFEST.json"
    data, meaning = path.read_bytes(), json.loads(path.read_text())
    harmless = 0
    for at in range(len(data)):
        flipped = data[:at] + bytes([data[at] ^ (1 << at % 8)]) + data[at + 1 :]
        with changed(path, flipped):
            try:
                read(saved_once)
            except SaveError:
                continue
        assert json.loads(flipped) == meaning  # white space
        harmless += 1
    assert harmless < 0.05 * len(data)


@given(name=st.sampled_from(FILES), draw=st.data())
def test_a_cut_or_longer_file_is_found(saved_once: Path, name: str, draw: st.DataObject) -> None:
    data = (saved_once / name).read_bytes()
    cut = data[: draw.draw(st.integers(0, len(data) - 2))]  # the manifest ends with a new line
    longer = data + draw.draw(st.binary(min_size=1, max_size=9).filter(bytes.strip))
    for other in (cut, longer):
        with changed(saved_once / name, other), pytest.raises(SaveError, match=name):
            read(saved_once)


@given(key=st.sampled_from(["format", "versions", "members", "class", "params", "new"]),
       value=json_values)  # fmt: skip
def test_a_manifest_changed_by_hand_is_found(saved_once: Path, key: str, value: Any) -> None:
    path = saved_once / "MANIFEST.json"
    manifest = json.loads(path.read_text())
    if manifest.get(key, None) == value and key in manifest:
        return
    manifest[key] = value
    with changed(path, json.dumps(manifest).encode()), pytest.raises(SaveError):
        read(saved_once)


@given(entry=json_values)
def test_no_entry_of_a_forged_manifest_does_worse_than_an_error(
    saved_once: Path, entry: Any
) -> None:
    with changed(saved_once / "MANIFEST.json", (saved_once / "MANIFEST.json").read_bytes()):
        forge(saved_once, lambda manifest: manifest["members"].update({"state.json": entry}))
        with pytest.raises(SaveError):
            read(saved_once)


def test_a_missing_file_is_named(saved: Path) -> None:
    (saved / "state.json").unlink()
    with pytest.raises(SaveError, match=r"state\.json is missing.*Restore the folder"):
        read(saved)


# --- hostile folders -----------------------------------------------------------------------------

GOOD = {"size": 2, "sha256": hashlib.sha256(b"{}").hexdigest()}
STRANGE_NAMES = (
    "../outside.json", "/etc/passwd", "a/b.json", "a\\b.json", "..", ".", "", ".hidden",
    "C:evil.json", "nul\0.json", "café.json", "x" * 200, "other.json", "MANIFEST.json",
)  # fmt: skip


@pytest.mark.parametrize("name", STRANGE_NAMES)
def test_names_that_do_not_belong_are_refused(saved: Path, name: str) -> None:
    (saved.parent / "outside.json").write_bytes(b"{}")
    (saved / "other.json").write_bytes(b"{}")
    forge(saved, lambda manifest: manifest["members"].update({name: GOOD}))
    with pytest.raises(SaveError, match=r"MANIFEST\.json lists .*does not belong"):
        read(saved)
    if name not in (
        "other.json",
        "MANIFEST.json",
    ):  # even a caller who allows anything gets plain names only
        with pytest.raises(SaveError, match=r"does not belong"):
            archive.read(saved, [*MEMBERS, name])


@pytest.mark.parametrize("name", ["state.json", "model.safetensors"])
def test_a_member_taken_out_of_the_manifest_is_missed(saved: Path, name: str) -> None:
    forge(saved, lambda manifest: manifest["members"].pop(name))
    with pytest.raises(SaveError, match=rf"does not list '{name}', which it must"):
        read(saved)


@pytest.mark.parametrize("name", FILES)
def test_links_are_refused(saved: Path, name: str) -> None:
    outside = saved.parent / "outside"
    (saved / name).rename(outside)
    (saved / name).symlink_to(outside)
    with pytest.raises(SaveError, match=rf"{name} is a link or no plain file"):
        read(saved)


def test_a_folder_or_a_pipe_is_no_member(saved: Path) -> None:
    (saved / "state.json").unlink()
    (saved / "state.json").mkdir()
    with pytest.raises(SaveError, match=r"state\.json is a link or no plain file"):
        read(saved)
    (saved / "state.json").rmdir()
    os.mkfifo(saved / "state.json")
    with pytest.raises(SaveError, match=r"state\.json is a link or no plain file"):
        read(saved)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", ["link", "pipe", "device", "longer"])
def test_what_takes_the_place_of_a_file_after_it_was_looked_at_is_refused(
    saved: Path, name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_size = archive._check_size

    def check_then_replace(path: Path, size: int | None) -> None:
        check_size(path, size)
        if path.name != name:
            return
        data = path.read_bytes()
        path.unlink()
        match kind:
            case "link":
                path.with_name("copy").write_bytes(data)
                path.symlink_to("copy")
            case "pipe":
                os.mkfifo(path)
            case "device":
                path.symlink_to("/dev/zero")
            case "longer":
                path.write_bytes(data + b"x")

    monkeypatch.setattr(archive, "_check_size", check_then_replace)
    with pytest.raises(SaveError, match=name):
        read(saved)


ENTRIES = {
    "no hash": {"size": 2},
    "no size": {"sha256": GOOD["sha256"]},
    "more than both": {**GOOD, "path": "../x"},
    "a size that is true": {**GOOD, "size": True},
    "a negative size": {**GOOD, "size": -1},
    "a size in words": {**GOOD, "size": "2"},
    "a hash in capitals": {**GOOD, "sha256": "A" * 64},
    "a short hash": {**GOOD, "sha256": "a" * 63},
    "nothing": None,
}


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES)
def test_broken_entries_are_refused(saved: Path, entry: Any) -> None:
    forge(saved, lambda manifest: manifest["members"].update({"state.json": entry}))
    with pytest.raises(SaveError, match=r"lists its members in no known way"):
        read(saved)


@pytest.mark.parametrize("members", [None, [], "state.json", 3])
def test_members_must_be_a_table(saved: Path, members: Any) -> None:
    forge(saved, lambda manifest: manifest.update(members=members))
    with pytest.raises(SaveError, match=r"lists its members in no known way"):
        read(saved)


@pytest.mark.parametrize("version", [2, 10**9])
def test_a_newer_format_says_to_upgrade(saved: Path, version: int) -> None:
    forge(saved, lambda manifest: manifest.update(format=version, members="of another kind"))
    with pytest.raises(SaveError, match=rf"format {version}; this version .* up to 1\. Upgrade"):
        read(saved)


@pytest.mark.parametrize("version", [0, -1, "1", 1.0, True, None, [1]])
def test_an_unknown_format_is_refused(saved: Path, version: Any) -> None:
    forge(saved, lambda manifest: manifest.update(format=version))
    with pytest.raises(SaveError, match=r"has no format that skbert knows"):
        read(saved)


TEXTS = {
    "a key that stands twice": (b'{"format": 1, "format": 1}', "'format' stands twice"),
    "a key that stands twice deep down": (b'{"a": [{"b": 1, "b": 2}]}', "'b' stands twice"),
    "NaN": (b'{"format": NaN}', "NaN is not a finite number"),
    "infinity": (b'{"format": -Infinity}', "-Infinity is not a finite number"),
    "a number out of range": (b'{"format": 1e999}', "1e999 is not a finite number"),
    "deep nesting": (b"[" * 100_000, "not valid JSON"),
    "an endless number": (b"9" * 10_000, "not valid JSON"),
    "other bytes": (b"\xff\xfe{}", "not valid JSON"),
    "a byte order mark": (b"\xef\xbb\xbf{}", "not valid JSON"),
    "nothing": (b"", "not valid JSON"),
    "a list": (b"[]", "has no format"),
    "an empty object": (b"{}", "has no format"),
}


@pytest.mark.parametrize(("text", "message"), TEXTS.values(), ids=TEXTS)
def test_a_manifest_that_is_no_manifest(saved: Path, text: bytes, message: str) -> None:
    (saved / "MANIFEST.json").write_bytes(text)
    with pytest.raises(SaveError, match=rf"MANIFEST\.json.*{message}"):
        read(saved)


@pytest.mark.parametrize("depth", [300, 600, 900, 950, 980, 1000])
def test_no_depth_of_nesting_escapes(saved: Path, depth: int) -> None:
    nested = "[" * depth + "]" * depth
    (saved / "MANIFEST.json").write_text(f'{{"format": 1, "digest": "", "x": {nested}}}')
    with pytest.raises(SaveError):
        read(saved)


def test_a_huge_manifest_is_not_read(saved: Path) -> None:
    with (saved / "MANIFEST.json").open("r+b") as file:
        file.truncate(200_000_000)  # a sparse file
    with pytest.raises(SaveError, match=r"200000000 bytes long; .* at most 100000000"):
        read(saved)


class Bomb:
    """Tell when somebody unpickles."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.putenv, ("UNPICKLED", "1"))


def test_nothing_is_unpickled(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*args: object, **kwargs: object) -> None:
        pytest.fail("something was unpickled")

    data = pickle.dumps(Bomb())
    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, never)
    monkeypatch.setattr(torch, "load", never)
    forge_member(saved, "model.safetensors", data)
    with pytest.raises(SaveError, match=r"right hash, but is no safetensors file"):
        read(saved)


def test_broken_tensors_under_a_forged_hash_are_refused(saved: Path) -> None:
    head = json.dumps({"x": {"dtype": "Q7", "shape": [1], "data_offsets": [0, 4]}}).encode()
    forge_member(saved, "model.safetensors", len(head).to_bytes(8, "little") + head + b"0000")
    with pytest.raises(SaveError, match=r"right hash, but is no safetensors file"):
        read(saved)


def test_a_folder_of_another_kind(tmp_path: Path) -> None:
    with pytest.raises(SaveError, match=r"there is no folder .*nowhere: give the path"):
        read(tmp_path / "nowhere")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(SaveError, match=r"holds no MANIFEST\.json.*from_pretrained"):
        read(tmp_path)
    with pytest.raises(SaveError, match=r"there is no folder .*config\.json"):
        read(tmp_path / "config.json")


def test_a_file_without_rights(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(strict, "open_plain", denied)
    with pytest.raises(SaveError, match=r"MANIFEST\.json cannot be read.*Permission denied"):
        read(saved)


# --- what may be written, and where --------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["MANIFEST.json", "manifest.json", "model.safetensors", "Model.Safetensors",
             *STRANGE_NAMES[:12]]
)  # fmt: skip
def test_member_names_are_plain(tmp_path: Path, name: str) -> None:
    with pytest.raises(SaveError, match=r"a member cannot be named .*rename it"):
        archive.write(tmp_path / "m", {name: b""}, {}, {})
    assert not list(tmp_path.iterdir())


def test_member_names_differ_in_more_than_case(tmp_path: Path) -> None:
    with pytest.raises(SaveError, match=r"'State\.json'.*differ in more than case"):
        archive.write(tmp_path / "m", {"state.json": b"", "State.json": b""}, {}, {})


@pytest.mark.parametrize("key", ["format", "versions", "members", "digest"])
def test_header_keys_of_the_manifest_are_reserved(tmp_path: Path, key: str) -> None:
    with pytest.raises(SaveError, match=rf"header key '{key}' belongs to the manifest"):
        archive.write(tmp_path / "m", {}, {key: 1}, {})


@pytest.mark.parametrize(
    ("header", "tensors"),
    [
        ({"x": math.nan}, {}),
        ({"x": object()}, {}),
        ({"x": {1, 2}}, {}),
        ({}, {"x": np.array(["text"])}),
        ({}, {"x": np.array([None])}),
        ({}, {"x": torch.eye(2).to_sparse()}),
    ],
    ids=["NaN", "object", "set", "text", "objects", "sparse"],
)
def test_what_cannot_be_saved_leaves_nothing(
    tmp_path: Path, header: dict[str, Any], tensors: dict[str, Any]
) -> None:
    with pytest.raises(SaveError, match=r"could not be saved"):
        archive.write(tmp_path / "m", MEMBERS, header, tensors)
    assert not list(tmp_path.iterdir())


def test_parents_are_made_and_an_empty_folder_is_used(tmp_path: Path) -> None:
    save(tmp_path / "a" / "b" / "model")
    (tmp_path / "empty").mkdir()
    save(tmp_path / "empty")
    assert read(tmp_path / "empty")[1] == read(tmp_path / "a" / "b" / "model")[1] == MEMBERS
    assert names(tmp_path) == ["a", "empty"]


def test_an_earlier_save_is_replaced_whole(saved: Path) -> None:
    archive.write(saved, {"other.json": b"[]"}, {"class": "BertRegressor"}, {})
    header, members, tensors = archive.read(saved, ["other.json"])
    assert header["class"] == "BertRegressor"
    assert members == {"other.json": b"[]"}
    assert tensors == {}
    assert names(saved) == ["MANIFEST.json", "model.safetensors", "other.json"]
    assert names(saved.parent) == ["model"]


def test_a_link_to_an_earlier_save_is_followed(saved: Path) -> None:
    latest = saved.parent / "latest"
    latest.symlink_to(saved, target_is_directory=True)
    save(latest, epochs=7)
    assert latest.is_symlink()
    assert read(saved)[0]["epochs"] == read(latest)[0]["epochs"] == 7


def test_a_folder_of_something_else_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(SaveError, match=r"not empty and is no earlier save.*remove that one"):
        save(tmp_path)
    assert tree(tmp_path) == {"thesis.txt": b"years of work"}


def test_an_earlier_save_with_somebodys_notes_is_not_replaced(saved: Path) -> None:
    (saved / "notes.txt").write_text("mine")
    before = tree(saved)
    with pytest.raises(SaveError, match=r"also holds 'notes\.txt'.*Move that away"):
        save(saved)
    assert tree(saved) == before


def test_a_foreign_or_damaged_manifest_makes_no_earlier_save(saved: Path) -> None:
    (saved / "MANIFEST.json").write_text('{"format": 1, "members": {}}')
    before = tree(saved)
    with pytest.raises(SaveError, match=r"is no earlier save, so it is not replaced"):
        save(saved)
    assert tree(saved) == before


def test_a_file_or_the_working_folder_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SaveError, match=r"is a file, not a folder"):
        save(tmp_path / "file")
    (tmp_path / "here" / "deeper").mkdir(parents=True)
    with monkeypatch.context() as patch:
        patch.chdir(tmp_path / "here")
        with pytest.raises(SaveError, match=r"is the folder you work in"):
            save(Path())
        save(Path("model"))
    assert read(tmp_path / "here" / "model")[1] == MEMBERS


def test_it_saves_where_the_working_directory_was_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "here").rmdir()
    for _ in range(2):
        save(tmp_path / "model")
        assert read(tmp_path / "model")[1] == MEMBERS
    with pytest.raises(SaveError, match="cannot be the path of a folder"):
        save(Path("model"))


def test_a_million_empty_tensors_are_refused_before_they_are_made(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(data: bytes) -> None:
        pytest.fail("the tensors were made")

    entry = '"%d":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
    for n_tensors in (30_000, 1_000_000):
        header = "{" + ",".join(entry % number for number in range(n_tensors)) + "}"
        data = len(header).to_bytes(8, "little") + header.encode()
        forge_member(saved, archive.TENSORS, data)
        with monkeypatch.context() as patch:
            patch.setattr(safetensors.torch, "load", never)
            with pytest.raises(SaveError, match="more than 20000 tensors"):
                read(saved)


# --- all or nothing ------------------------------------------------------------------------------

STAGES = {
    "the first member": (Path, "write_bytes"),
    "the tensors": (safetensors.torch, "save_file"),
    "the manifest": (Path, "write_text"),
    "waiting for the disk": (os, "fsync"),
    "the last rename": (Path, "rename"),
}


def fail_at(
    patch: pytest.MonkeyPatch, stage: str, call: int, error: BaseException
) -> Callable[[], int]:
    """Let the given call of a function of the writer raise; return how often it was called."""
    owner, name = STAGES[stage]
    original, calls = getattr(owner, name), 0

    def stand_in(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            raise error
        return original(*args, **kwargs)

    patch.setattr(owner, name, stand_in)
    return lambda: calls


FAULTS = [
    *((stage, 1) for stage in STAGES),
    ("the first member", 2),
    *(("waiting for the disk", call) for call in range(2, 7)),
    ("the last rename", 2),
]


@pytest.mark.parametrize("earlier", [True, False], ids=["replacing", "new"])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize(("stage", "call"), FAULTS)
def test_a_failure_at_any_step_leaves_the_earlier_folder(
    tmp_path: Path, stage: str, call: int, error: BaseException, earlier: bool
) -> None:
    folder = tmp_path / "model"
    before = tree(save(folder)) if earlier else None
    with pytest.MonkeyPatch.context() as patch:
        calls = fail_at(patch, stage, call, error)
        if isinstance(error, OSError):
            with contextlib.suppress(SaveError):
                save(folder, epochs=9)
        else:
            with contextlib.suppress(KeyboardInterrupt):
                save(folder, epochs=9)
        reached = calls() >= call
    if not reached or (stage == "waiting for the disk" and folder.exists()):
        # The step does not occur, or it is the folder itself, which not every disk can wait for.
        assert read(folder)[0].get("epochs") in (None, 9)
    elif earlier:
        assert tree(folder) == before
    else:
        assert not folder.exists()
    assert names(tmp_path) in ([], ["model"])


@pytest.mark.parametrize("call", range(1, 5))
def test_a_folder_replaced_while_it_is_read_gives_one_save_whole(saved: Path, call: int) -> None:
    calls, original = 0, strict.open_plain

    def open_after_another_save(path: Path) -> BinaryIO:
        nonlocal calls
        calls += 1
        if calls == call:
            archive.write(saved, dict.fromkeys(MEMBERS, b"{}"), {"n": 2}, {})
        return original(path)

    with pytest.MonkeyPatch.context() as patch:
        for module in (strict, archive):  # the manifest and the members
            patch.setattr(module, "open_plain", open_after_another_save)
        header, members, tensors = read(saved)
    assert calls > 4  # it was read again
    assert header["n"] == 2
    assert set(members.values()) == {b"{}"}
    assert tensors == {}


def test_a_save_between_its_two_renames_is_waited_for(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = saved.parent / ".model.0123abcd.old"
    saved.rename(old)
    monkeypatch.setattr(leftovers.time, "sleep", lambda seconds: old.rename(saved))
    assert read(saved)[1] == MEMBERS


def test_the_message_of_a_full_disk(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_at(monkeypatch, "the tensors", 1, OSError(28, "No space left on device"))
    with pytest.raises(SaveError, match=r"No space left.*before is untouched.*with free space"):
        save(saved)


def test_a_disk_that_is_really_full(saved: Path) -> None:
    before = tree(saved)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        for members, tensors in (
            ({"big.json": bytes(200_000)}, {}),
            ({}, {"big": torch.zeros(200_000)}),
        ):
            with pytest.raises(SaveError, match=r"could not be saved: .*File too large"):
                archive.write(saved, members, {}, tensors)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert tree(saved) == before
    assert names(saved.parent) == ["model"]


def test_a_save_killed_between_the_two_renames_says_where_the_old_one_is(saved: Path) -> None:
    saved.rename(saved.parent / ".model.0123abcd.old")
    with pytest.raises(SaveError, match=r"\.model\.0123abcd\.old is an earlier version: rename"):
        read(saved)
    assert names(saved.parent) == [".model.0123abcd.old"]
    save(saved)
    assert names(saved.parent) == ["model"]


@pytest.mark.parametrize("damage", ["gone", "cut", "changed", "empty"])
@pytest.mark.long
def test_half_of_an_earlier_version_is_not_offered(saved: Path, damage: str) -> None:
    old = saved.parent / ".model.0123abcd.old"
    saved.rename(old)
    data = (old / archive.TENSORS).read_bytes()
    (old / archive.TENSORS).unlink()
    if damage != "gone":
        half = {"cut": data[:-8], "changed": data[:-8] + bytes(8), "empty": b""}
        (old / archive.TENSORS).write_bytes(half[damage])
    with pytest.raises(SaveError, match=r"there is no folder [^(]*: give the path"):
        read(saved)


# --- leftovers -----------------------------------------------------------------------------------


def leave(folder: Path, *kinds: str) -> None:
    """Leave beside a folder what killed saves leave, in whatever state."""
    for kind in kinds:
        left = folder.with_name(f".{folder.name}.0123abcd.{kind}")
        left.mkdir()
        (left / "half").write_bytes(b"x")


@pytest.mark.parametrize("use", [save, read], ids=["save", "read"])
def test_what_killed_saves_left_is_removed(saved: Path, use: Callable[[Path], Any]) -> None:
    leave(saved, "part", "old")
    use(saved)
    assert names(saved.parent) == ["model"]


def test_a_save_that_fails_for_want_of_room_has_made_room_before(saved: Path) -> None:
    leave(saved, "part", "old")
    with pytest.MonkeyPatch.context() as patch:
        fail_at(patch, "the tensors", 1, OSError(28, "No space left on device"))
        with pytest.raises(SaveError, match="No space left"):
            save(saved)
    assert names(saved.parent) == ["model"]


def test_what_belongs_to_other_folders_stays(saved: Path) -> None:
    others = [saved.with_name(name) for name in ("model.v2", "a", "mode", "model.0123abcd")]
    for other in others:
        leave(other, "part", "old")
    (saved.parent / ".model.notahash.part").mkdir()
    (saved.parent / ".model.0123abcd.parts").mkdir()
    (saved.parent / ".model.01234567.old").write_bytes(b"a file")
    (saved.parent / ".model.76543210.old").symlink_to(saved)
    before = names(saved.parent)
    save(saved)
    read(saved)
    assert names(saved.parent) == before


def test_a_part_that_a_process_works_on_stays_until_the_process_ends(saved: Path) -> None:
    code = """
        import sys, time
        from pathlib import Path
        from skbert._core.checkpoints.leftovers import locked_part
        with locked_part(Path(sys.argv[1])) as part:
            print(part.name, flush=True)
            time.sleep(600)
    """
    process = start(code, saved)
    try:
        assert process.stdout is not None
        part = process.stdout.readline().decode().strip()
        save(saved)
        read(saved)
        assert names(saved.parent) == [part, "model"]
    finally:
        process.kill()
        process.communicate()
    assert names(saved.parent) == [part, "model"]
    read(saved)
    assert names(saved.parent) == ["model"]


def test_a_part_that_is_removed_before_it_is_locked_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, made, mkdir = tmp_path / "model", [], Path.mkdir

    def mkdir_then_lose_the_first(path: Path, **named: Any) -> None:
        mkdir(path, **named)
        made.append(path)
        if len(made) == 1:
            leftovers.remove_leftovers(target)

    monkeypatch.setattr(Path, "mkdir", mkdir_then_lose_the_first)
    save(target)
    assert len(made) == 2
    assert names(tmp_path) == ["model"]


def test_without_locks_nothing_is_removed(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(handle: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    leave(saved, "part", "old")
    monkeypatch.setattr(fcntl, "flock", refuse)
    save(saved, epochs=7)
    assert read(saved)[0]["epochs"] == 7
    assert names(saved.parent) == [".model.0123abcd.old", ".model.0123abcd.part", "model"]


def test_a_folder_that_may_not_be_written_is_read(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: Any, **named: Any) -> None:
        raise PermissionError(13, "Permission denied")

    leave(saved, "part", "old")
    monkeypatch.setattr(os, "rmdir", refuse)
    assert read(saved)[1] == MEMBERS


# --- killed --------------------------------------------------------------------------------------


def start(code: str, folder: Path) -> subprocess.Popen[bytes]:
    """Start Python code that is given the folder."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), str(folder)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


@pytest.mark.long  # three processes
def test_kill_at_any_moment_leaves_a_whole_folder(tmp_path: Path) -> None:
    folder, rounds = tmp_path / "model", 3
    code = """
        import sys, torch
        from skbert._core.checkpoints import archive, leftovers
        for n in range(10**9):
            tensors = {str(i): torch.full((500,), n) for i in range(20)}
            archive.write(sys.argv[1], {"state.json": b"x" * 5000}, {"n": n}, tensors)
            if n == 0: print("ready", flush=True)
    """
    for attempt in range(rounds):
        process = start(code, folder)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        time.sleep(0.02 + 0.025 * attempt)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        if not folder.exists():  # killed between the two renames
            (old,) = tmp_path.glob(".model.*.old")
            old.rename(folder)
        header, members, tensors = archive.read(folder, ["state.json"])
        assert members == {"state.json": b"x" * 5000}
        assert all(bool((tensor == header["n"]).all()) for tensor in tensors.values())
        assert names(tmp_path) == ["model"]


# --- places --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("/", "is the root of all folders: give the path of one"),
        ("a\0b", "cannot be the path of a folder: embedded null byte"),
        ("~nobody-of-that-name/model", "cannot be the path of a folder: Could not determine home"),
        ("~", "is not empty and is no earlier save"),
    ],
)
def test_places_that_cannot_be_saved_to(
    place: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "mine").write_bytes(b"")
    with pytest.raises(SaveError, match=message):
        save(Path(place))
    with pytest.raises(SaveError):
        read(Path(place))
    assert names(tmp_path) == ["mine"]
