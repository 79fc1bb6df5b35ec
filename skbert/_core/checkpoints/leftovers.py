"""Locks of processes that save to one folder, and the removal of what killed saves left beside it.

A save to ``name`` writes ``.name.0123abcd.part``, renames ``name`` to ``.name.0123abcd.old``,
renames its part to ``name``, and removes the old folder. It holds a lock on its part, and one on
the parent folder while it renames; locks end with their process. Knows paths, and of skbert the
errors.
"""

from __future__ import annotations

import glob
import os
import secrets
import shutil
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from skbert.exceptions import SaveError

if sys.platform != "win32":  # which has no such locks: nothing is removed there
    import fcntl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Result = TypeVar("Result")

__all__ = [
    "hold_lock",
    "locked_part",
    "moved_aside",
    "read_consistently",
    "remove_leftovers",
    "resolve_folder",
]

_PATIENCE, _PAUSE = 1.0, 0.01  # seconds to wait for a lock, and between two attempts
_ATTEMPTS = 50  # to read what other processes replace


@contextmanager
def locked_part(target: Path) -> Iterator[Path]:
    """Make a part and hold its lock; remove it at the end, unless it was renamed."""
    while True:
        part = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
        part.mkdir(parents=True)
        with hold_lock(part):
            if part.is_dir():  # else another process removed it before it was locked
                try:
                    yield part
                finally:
                    shutil.rmtree(part, ignore_errors=True)
                return


@contextmanager
def hold_lock(folder: Path, patience: float = _PATIENCE) -> Iterator[bool | None]:
    """Hold the lock on a folder inside the ``with``; yield whether it could be taken.

    None where there are no locks, on some file systems.
    """
    handle = _open(folder)
    try:
        yield None if handle is None else _lock(handle, patience)
    finally:
        if handle is not None and sys.platform != "win32":
            with suppress(OSError):  # a forked child may hold the handle, too
                fcntl.flock(handle, fcntl.LOCK_UN)
            os.close(handle)


def _open(folder: Path) -> int | None:
    if sys.platform == "win32":
        return None
    try:
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None


def _lock(handle: int, patience: float) -> bool | None:
    end = time.monotonic() + patience
    while sys.platform != "win32":
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end:
                return False
            time.sleep(_PAUSE)
        except OSError:  # not on this file system
            return None
        else:
            return True
    return None


def moved_aside(target: Path) -> list[Path]:
    """Earlier versions of a folder that saves have renamed and not yet removed."""
    return _beside(target, "old")


def _beside(target: Path, kind: str) -> list[Path]:
    """The folders of one kind, ``part`` or ``old``, that saves to this very path left."""
    token = "[0-9a-f]" * 8
    paths = target.parent.glob(f".{glob.escape(target.name)}.{token}.{kind}")
    return sorted(path for path in paths if path.is_dir() and not path.is_symlink())


def remove_leftovers(target: Path) -> None:
    """Remove the parts that no process owns, and earlier versions if there is a newer one."""
    with suppress(OSError):
        for part in _beside(target, "part"):
            with hold_lock(part, 0.0) as is_unowned:
                if is_unowned:
                    shutil.rmtree(part, ignore_errors=True)
        if moved_aside(target):
            with hold_lock(target.parent) as is_locked:  # so no save is between two renames
                if is_locked and target.is_dir():
                    for old in moved_aside(target):
                        shutil.rmtree(old, ignore_errors=True)


def resolve_folder(folder: str | os.PathLike[str]) -> Path:
    """The absolute path of a folder, with ``~`` and links resolved; never a root."""
    try:
        path = Path(os.path.realpath(Path(folder).expanduser()))
        path.exists()  # raises where a name is too long
    except (OSError, RuntimeError, ValueError) as exc:
        raise SaveError(
            f"{os.fspath(folder)!r} cannot be the path of a folder: {exc}. Give a path such as"
            " 'models/first'."
        ) from exc
    if not path.name:
        raise SaveError(f"{path} is the root of all folders: give the path of one, such as"
                        " 'models/first'.")  # fmt: skip
    return path


def read_consistently(folder: Path, reader: Callable[[Path], Result]) -> Result:
    """The result of a reader of a folder; read again if a save replaced the folder meanwhile."""
    for attempt in range(_ATTEMPTS):
        root = resolve_folder(folder)
        before = _identity(root)
        try:
            result = reader(root)
        except SaveError:
            if attempt == _ATTEMPTS - 1 or not _is_being_replaced(resolve_folder(folder), before):
                raise
            time.sleep(_PAUSE)
        else:
            remove_leftovers(root)
            break
    return result


def _identity(root: Path) -> tuple[int, int] | None:
    """What tells a folder from any that replaces it; None where there is no folder."""
    try:
        status = root.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def _is_being_replaced(root: Path, before: tuple[int, int] | None) -> bool:
    """Whether a save has replaced the folder since ``before``, or is about to."""
    now = _identity(root)
    return now != before or (now is None and bool(moved_aside(root)))
