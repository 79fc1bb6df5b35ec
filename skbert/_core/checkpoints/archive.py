"""A folder of plain files, with a manifest of their hashes by which damage is noticed.

Knows bytes, JSON values and tensors, and not what they mean; of skbert it imports only
``skbert.exceptions``, `leftovers`, `strict` and `tensors`. Nothing is ever unpickled.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import os
import platform
import re
import shutil
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skbert._arrays import Array
from skbert._core.checkpoints.leftovers import (
    hold_lock,
    locked_part,
    moved_aside,
    read_consistently,
    remove_leftovers,
    resolve_folder,
)
from skbert._core.checkpoints.strict import is_plain, load_json, open_plain
from skbert._core.checkpoints.tensors import read_tensors, write_tensors
from skbert.exceptions import SaveError, SkbertError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    import torch

__all__ = [
    "FORMAT",
    "MANIFEST",
    "TENSORS",
    "check_target",
    "hashes",
    "header",
    "read",
    "read_members",
    "resolve_folder",
    "save_error",
    "versions",
    "write",
]

FORMAT = 1
MANIFEST = "MANIFEST.json"
TENSORS = "model.safetensors"

_RESERVED = ("format", "versions", "members", "beside", "digest")
_PACKAGES = ("skbert", "torch", "transformers", "tokenizers", "safetensors", "numpy",
             "scikit-learn")  # fmt: skip


# --- writing -----------------------------------------------------------------------------------


def write(
    folder: Path,
    members: Mapping[str, bytes],
    header: Mapping[str, Any],
    tensors: Mapping[str, torch.Tensor | Array] | None,
    beside: Mapping[str, bytes] | None = None,
) -> None:
    """Write a folder that `read` reads: all of it, or nothing, and then an earlier one stays.

    ``header`` (JSON values) goes into the manifest. With None for ``tensors`` there is no file of
    them, and `read_members` reads the folder. One that is there is replaced only if it holds an
    earlier save and nothing else. Files ``beside`` the members are not read back, so anybody may
    change or remove them; one that was changed is not replaced.
    """
    target = resolve_folder(folder)
    try:
        _check_members([*members, *(beside or ())], header)
        with hold_lock(target.parent):  # so that nobody replaces the folder now
            check_target(target)
        remove_leftovers(target)  # which may fill the disk
        with locked_part(target) as part:
            _fill(part, members, header, tensors, beside or {})
            _move(part, target)
    except SkbertError:
        raise
    except Exception as exc:
        raise save_error(target, exc) from exc
    remove_leftovers(target)


def save_error(target: Path, exc: Exception) -> SaveError:
    """The error to raise where the disk is full or writing is not allowed."""
    return SaveError(
        f"{target} could not be saved: {exc}. Nothing of it was kept, and what was there"
        " before is untouched. Save again to a writable folder on a disk with free space."
    )


def _check_members(members: Collection[str], header: Mapping[str, Any]) -> None:
    seen = {MANIFEST.casefold(), TENSORS.casefold()}
    for name in members:
        if not is_plain(name) or name.casefold() in seen:
            raise SaveError(
                f"a member cannot be named {name!r}. Names are plain (letters, digits, '_', '-',"
                f" '.'), differ in more than case, and are not {MANIFEST} or {TENSORS}: rename it."
            )
        seen.add(name.casefold())
    for key in _RESERVED:
        if key in header:
            raise SaveError(f"the header key {key!r} belongs to the manifest: rename it.")


def check_target(target: Path) -> None:
    """Refuse what `write` would not replace: a file, or a folder that holds anything else."""
    if not os.path.lexists(target):
        return
    if not target.is_dir():
        raise SaveError(f"{target} is a file, not a folder: give another path, or remove it.")
    with contextlib.suppress(FileNotFoundError):  # where the working directory was deleted
        if Path.cwd().is_relative_to(target):
            raise SaveError(f"{target} is the folder you work in: give the path of a new folder.")
    names = {path.name for path in target.iterdir()}
    if not names:
        return
    try:
        manifest = _manifest(target)
    except SaveError as exc:
        raise SaveError(
            f"{target} is not empty and is no earlier save, so it is not replaced: {exc}"
            " Give the path of a new folder, or remove that one yourself."
        ) from exc
    strange = names - {MANIFEST, *manifest["members"], *_unchanged(target, manifest)}
    if strange:
        raise SaveError(
            f"{target} is an earlier save, but also holds {min(strange)!r}, which replacing it"
            " would delete. Move that away, or give the path of a new folder."
        )


def _unchanged(target: Path, manifest: Mapping[str, Any]) -> set[str]:
    """The files beside the members that are as they were written."""
    return {
        name
        for name, digest in manifest.get("beside", {}).items()
        if (target / name).is_file() and _sha256((target / name).read_bytes()) == digest
    }


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _fill(
    part: Path,
    members: Mapping[str, bytes],
    header: Mapping[str, Any],
    tensors: Mapping[str, torch.Tensor | Array] | None,
    beside: Mapping[str, bytes],
) -> None:
    listed: dict[str, dict[str, Any]] = {}
    for name, data in members.items():
        (part / name).write_bytes(data)
        listed[name] = {"size": len(data), "sha256": _sha256(data)}
    if tensors is not None:
        listed[TENSORS] = write_tensors(part / TENSORS, tensors)
    for name, data in beside.items():
        (part / name).write_bytes(data)
    body = {"format": FORMAT, "versions": versions(), **header, "members": listed}
    if beside:
        body["beside"] = {name: _sha256(data) for name, data in beside.items()}
    body = {**body, "digest": _digest(json.loads(_canonical(body)))}
    text = json.dumps(body, indent=1, allow_nan=False) + "\n"
    (part / MANIFEST).write_text(text, encoding="utf-8")
    if tensors is not None:  # safetensors lets only the owner read it; the others follow the umask
        (part / TENSORS).chmod(stat.S_IMODE((part / MANIFEST).stat().st_mode))
    for path in (*part.iterdir(), part):
        _sync(path)


def versions() -> dict[str, str]:
    """The versions of Python and of the libraries that a saved model depends on."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def _canonical(body: Mapping[str, Any]) -> str:
    return json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(_canonical(body).encode("ascii")).hexdigest()


def _sync(path: Path) -> None:
    """Wait until ``path`` is on the disk. Some systems cannot do that for a folder."""
    with contextlib.suppress(OSError) if path.is_dir() else contextlib.nullcontext():
        handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _move(part: Path, target: Path) -> None:
    """Replace ``target`` by ``part``; the old folder is removed only when that is done."""
    old = part.with_suffix(".old")
    with hold_lock(target.parent):
        if target.exists():
            target.rename(old)
        try:
            part.rename(target)
        except BaseException:
            if old.exists() and not target.exists():  # else an interrupt came after the renaming
                old.rename(target)
            raise
    try:
        _sync(target.parent)
    finally:
        shutil.rmtree(old, ignore_errors=True)


# --- reading -----------------------------------------------------------------------------------


def read(
    folder: Path, allowed: Collection[str], optional: Collection[str] = ()
) -> tuple[dict[str, Any], dict[str, bytes], dict[str, torch.Tensor]]:
    """Header, members and tensors of a folder that `write` made, all of them checked.

    They come from one save, however often other processes save to the same path meanwhile.

    The members must be exactly ``allowed``; those in ``optional`` may be absent. The header
    comes with ``versions``, those of the libraries that wrote it.
    """
    header, members = read_members(folder, {*allowed, TENSORS}, optional)
    return header, members, read_tensors(folder / TENSORS, members.pop(TENSORS))


def read_members(
    folder: Path, allowed: Collection[str], optional: Collection[str] = ()
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Header and members as in `read`, of a folder that was written without tensors."""
    return read_consistently(folder, lambda root: _read(root, allowed, optional))


def header(folder: Path) -> dict[str, Any]:
    """The header of a saved folder; its members are not read."""
    return read_consistently(folder, _manifest)


def _read(
    root: Path, allowed: Collection[str], optional: Collection[str]
) -> tuple[dict[str, Any], dict[str, bytes]]:
    header = _manifest(root)
    listed = header.pop("members")
    _check_listed(root, listed, {*allowed, *optional}, {*allowed} - {*optional})
    for name, entry in listed.items():
        _check_size(root / name, entry["size"])
    members = {name: _read_checked(root / name, entry) for name, entry in listed.items()}
    return {key: header[key] for key in header if key != "format"}, members


def hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of each member that the manifest of a saved folder lists."""
    return {name: entry["sha256"] for name, entry in _manifest(folder)["members"].items()}


def _manifest(root: Path) -> dict[str, Any]:
    """The manifest of a saved folder, checked, without its digest."""
    path = root / MANIFEST
    if not root.is_dir():
        raise SaveError(f"there is no folder {root}{_rescue(root)}: give the path of a saved one.")
    if not os.path.lexists(path):
        raise SaveError(
            f"{root} holds no {MANIFEST}, so skbert did not save it. Give the folder that save"
            " wrote; a transformers folder opens with from_pretrained."
        )
    _check_size(path, None)
    manifest = load_json(path, SaveError)
    manifest = manifest if isinstance(manifest, dict) else {}
    _check_format(path, manifest.get("format"))
    if manifest.pop("digest", None) != _digest(manifest):
        raise SaveError(
            f"{path} was changed after it was saved: its digest differs. Restore it from a whole"
            " copy, or save again."
        )
    members = manifest.get("members")
    if not isinstance(members, dict) or not all(map(_is_well_formed, members.values())):
        raise SaveError(f"{path} lists its members in no known way: restore it from a whole copy.")
    return manifest


def _check_format(path: Path, version: object) -> None:
    if type(version) is not int or version < 1:
        raise SaveError(f"{path} has no format that skbert knows: restore it from a whole copy.")
    if version > FORMAT:
        raise SaveError(
            f"{path} has format {version}; this version of skbert reads up to {FORMAT}."
            " Upgrade skbert to the version that wrote it, or to a later one."
        )


def _rescue(root: Path) -> str:
    """A hint at the earlier version that a save left behind when it was killed; "" for none."""
    whole = [old for old in moved_aside(root) if _is_complete(old)]
    return f" (but {whole[0]} is an earlier version: rename it to {root.name})" if whole else ""


def _is_complete(root: Path) -> bool:
    try:
        for name, entry in _manifest(root)["members"].items():
            _check_size(root / name, entry["size"])
            _read_checked(root / name, entry)
    except SaveError:
        return False
    return True


def _is_well_formed(entry: object) -> bool:
    match entry:
        case {"size": int(size), "sha256": str(digest), **rest}:
            hexadecimal = re.fullmatch(r"[0-9a-f]{64}", digest)
            return not rest and hexadecimal is not None and type(size) is int and size >= 0
    return False


def _check_listed(
    root: Path, listed: Collection[str], allowed: set[str], required: set[str]
) -> None:
    for name in listed:
        if not is_plain(name) or name not in allowed:
            raise SaveError(
                f"{root / MANIFEST} lists {name!r}, which does not belong to such a folder."
                f" Expected: {', '.join(sorted(allowed))}. It was not written by skbert."
            )
    for name in sorted(allowed - set(listed)):
        if name in required or os.path.lexists(root / name):
            raise SaveError(
                f"{root / MANIFEST} does not list {name!r}, which"
                f" {'it must' if name in required else 'is there'}."
                " Restore the folder from a whole copy."
            )


def _check_size(path: Path, size: int | None) -> None:
    """Refuse what is not a file of this folder itself, or has another size."""
    try:
        status = path.lstat()
    except OSError as exc:
        raise SaveError(
            f"{path} is missing: {exc}. Restore the folder from a whole copy."
        ) from exc
    if not stat.S_ISREG(status.st_mode):
        raise SaveError(f"{path} is a link or no plain file: put a copy of the file there.")
    if size is not None and status.st_size != size:
        raise SaveError(
            f"{path} has {status.st_size} bytes where {MANIFEST} says {size}."
            " Restore the folder from a whole copy."
        )


def _read_checked(path: Path, entry: Mapping[str, Any]) -> bytes:
    """The bytes of a member, after a check of their hash."""
    try:
        with open_plain(path) as file:
            data = file.read(entry["size"] + 1)
    except OSError as exc:
        raise SaveError(f"{path} cannot be read: {exc}. Check that it is yours.") from exc
    if hashlib.sha256(data).hexdigest() != entry["sha256"]:
        raise SaveError(
            f"{path} is damaged: its SHA-256 is not the one in {MANIFEST}."
            " Restore the folder from a whole copy."
        )
    return data
