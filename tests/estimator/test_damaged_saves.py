"""Saved estimators of every kind: each flipped bit, missing, foreign or older part is found."""

from __future__ import annotations

import json
import os
import shutil
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from support import DATA
from support.damage.containers import seal_manifest

import skbert
from skbert._core.checkpoints import archive
from skbert.exceptions import SaveError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SAVED = sorted(path for path in (DATA / "saved_0_1").iterdir() if path.is_dir())
MANIFEST = "MANIFEST.json"
MEMBERS = ("config.json", "model.safetensors", "state.json", "tokenizer.json",
           "tokenizer_config.json")  # fmt: skip
N_FLIPS = 1_000
of_each = pytest.mark.parametrize("source", SAVED, ids=[path.name for path in SAVED])


@pytest.fixture
def folder(source: Path, tmp_path: Path) -> Path:
    """A saved estimator, to be spoiled."""
    return shutil.copytree(source, tmp_path / "saved")


def refused(folder: Path, message: str) -> None:
    with pytest.raises(SaveError, match=message):
        skbert.load(folder)


def change_manifest(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    manifest = json.loads((folder / MANIFEST).read_bytes())
    change(manifest)
    (folder / MANIFEST).write_text(json.dumps(manifest))


@pytest.mark.long  # a thousand loads
def test_each_of_a_thousand_flipped_bits_is_found(tmp_path: Path) -> None:
    """In any file of any saved estimator, the manifest included."""
    random = Random(0)
    files = [path for source in SAVED for path in sorted(source.iterdir())]
    assert {path.name for path in files} >= {MANIFEST, *MEMBERS}
    shutil.copytree(DATA / "saved_0_1", tmp_path / "all")
    for _ in range(N_FLIPS):
        source = random.choice(files)
        path = tmp_path / "all" / source.parent.name / source.name
        whole = path.read_bytes()
        at, bit = random.randrange(len(whole)), random.randrange(8)
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :])
        refused(path.parent, path.name)
        path.write_bytes(whole)
    for source in SAVED:
        skbert.load(tmp_path / "all" / source.name)


@of_each
@pytest.mark.parametrize("name", [MANIFEST, *MEMBERS])
def test_a_missing_file_is_found(folder: Path, name: str) -> None:
    (folder / name).unlink()
    refused(folder, name)


@of_each
@pytest.mark.parametrize("name", MEMBERS[:3])  # all have the same tokenizer
def test_a_file_of_another_estimator_is_found(source: Path, folder: Path, name: str) -> None:
    others = (path / name for path in SAVED)
    foreign = next(path for path in others if path.read_bytes() != (source / name).read_bytes())
    shutil.copy(foreign, folder / name)
    refused(folder, rf"{name} (is damaged|has \d+ bytes where MANIFEST.json says)")


@of_each
def test_a_member_that_does_not_belong_is_found(folder: Path) -> None:
    (folder / "evil.json").write_text("{}")
    change_manifest(folder, lambda manifest: manifest["members"].update({"evil.json": {}}))
    seal_manifest(folder)
    refused(folder, r"lists 'evil\.json', which does not belong to such a folder")


@of_each
@pytest.mark.parametrize("name", ["vocab.txt", "special_tokens_map.json"])
def test_an_optional_file_that_is_not_listed_is_found(folder: Path, name: str) -> None:
    (folder / name).write_text("{}")
    refused(folder, rf"does not list '{name}', which is there")


def without_digest(manifest: dict[str, Any]) -> None:
    del manifest["digest"]


DOWNGRADES: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "no digest": (without_digest, "its digest differs"),
    "an empty digest": (lambda m: m.update(digest=""), "its digest differs"),
    "no digest at all": (lambda m: m.update(digest=None), "its digest differs"),
    "a list of digests": (lambda m: m.update(digest=[m["digest"]]), "its digest differs"),
    "the digest of another method": (lambda m: m.update(digest="0" * 32), "its digest differs"),
}
OLDER: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "format 0": (lambda m: m.update(format=0), "has no format that skbert knows"),
    "a format below": (lambda m: m.update(format=-1), "has no format that skbert knows"),
    "a format in words": (lambda m: m.update(format="1"), "has no format that skbert knows"),
    "no format": (lambda m: m.pop("format"), "has no format that skbert knows"),
    "no sizes": (lambda m: [each.pop("size") for each in m["members"].values()], "no known way"),
    "no hashes": (
        lambda m: [each.pop("sha256") for each in m["members"].values()], "in no known way"),
    "members without either": (
        lambda m: m.update(members=sorted(m["members"])), "in no known way"),
}  # fmt: skip


@pytest.mark.parametrize("source", SAVED[:1])
@pytest.mark.parametrize(("change", "message"), DOWNGRADES.values(), ids=DOWNGRADES)
def test_a_manifest_without_its_digest_is_refused(
    folder: Path, change: Callable[[dict[str, Any]], Any], message: str
) -> None:
    change_manifest(folder, change)
    refused(folder, message)


@pytest.mark.parametrize("source", SAVED[:1])
@pytest.mark.parametrize(("change", "message"), OLDER.values(), ids=OLDER)
def test_a_manifest_that_promises_less_is_refused_though_its_digest_is_right(
    folder: Path, change: Callable[[dict[str, Any]], Any], message: str
) -> None:
    change_manifest(folder, change)
    change_manifest(folder, without_digest)
    change_manifest(folder, lambda manifest: manifest.update(digest=archive._digest(manifest)))
    refused(folder, message)


@of_each
def test_what_is_not_listed_is_not_read(folder: Path) -> None:
    (folder / "README.md").write_text("mine")
    (folder / "evil.py").symlink_to("/dev/zero")
    os.mkfifo(folder / "pytorch_model.bin")
    skbert.load(folder)
