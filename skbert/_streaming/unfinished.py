"""The folder beside an output in which its parts wait until all of them are there.

For ``out.parquet`` it is ``out.parquet.parts``. A part is written under another name and renamed,
so one that is there is whole; the output is made of all parts and renamed into its place, before
which the facts of the run get another name. Depends on pyarrow and on the locks of
`_core.checkpoints`.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from skbert._core.checkpoints.leftovers import hold_lock
from skbert.exceptions import SaveError

__all__ = ["Unfinished", "check_absent", "unfinished"]

_FACTS, _JOINED = "run.json", "joined.json"


@contextmanager
def unfinished(
    target: Path, facts: Mapping[str, str], check: Callable[[], None]
) -> Iterator[Unfinished]:
    """Hold the folder of parts of an output, a new one or that of a run that was stopped.

    ``facts`` say what the run computes; those of a stopped run with parts must be equal. ``check``
    is called before a new run begins, and may refuse it. A run that fails before its first part
    leaves no folder.
    """
    folder = _folder_for(target)
    with hold_lock(folder) as is_locked:
        if is_locked is False:
            raise SaveError(
                f"Another process writes {target} at this moment. Wait for it, or give another "
                "path."
            )
        parts, known = Unfinished(target, folder), _facts_in(folder)
        if known is None or not parts.has_any:
            _begin(folder, facts, check)
        elif known != facts:
            both = {*known, *facts}
            differing = sorted(name for name in both if known.get(name) != facts.get(name))
            raise SaveError(
                f"{folder} holds parts of another run: {', '.join(differing)} differ. Give the "
                f"same as then to go on, or remove {folder}, or give another output path."
            )
        try:
            yield parts
        except BaseException:
            if not parts.has_any:
                shutil.rmtree(folder, ignore_errors=True)
            raise


def _folder_for(target: Path) -> Path:
    """The folder for the parts of an output, which must be new, or left to be put in its place."""
    folder = target.with_name(f"{target.name}.parts")
    if not (folder / _JOINED).exists():
        check_absent(target)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SaveError(
            f"{folder}, the folder for parts of the output, cannot be made: {error}. Give another "
            "output path."
        ) from error
    return folder


def check_absent(target: Path) -> None:
    """Refuse a path of an output where something is already."""
    if os.path.lexists(target):
        raise SaveError(f"{target} exists already. Remove it, or give another path.")


def _begin(folder: Path, facts: Mapping[str, str], check: Callable[[], None]) -> None:
    """Begin a run, or leave no folder."""
    try:
        check()
        _write(folder / _FACTS, lambda path: path.write_text(json.dumps(dict(facts))))
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _facts_in(folder: Path) -> dict[str, str] | None:
    """The facts of the run that was stopped; None if there was none."""
    path = folder / (_JOINED if (folder / _JOINED).exists() else _FACTS)
    try:
        facts: dict[str, str] = json.loads(path.read_text())
    except FileNotFoundError:
        if {each.name for each in folder.iterdir()} - {_new(path).name}:
            raise SaveError(
                f"{folder} holds other files than parts of an output. Remove it, or give another "
                "output path."
            ) from None
        return None
    except ValueError as error:
        raise SaveError(f"{path} is damaged: {error}. Remove {folder}.") from error
    return facts


class Unfinished:
    """The parts of an output that are there."""

    def __init__(self, target: Path, folder: Path) -> None:
        self.target, self.folder = target, folder

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:08}.parquet"

    @property
    def is_joined(self) -> bool:
        """Whether the output is made, and at most left to be put in its place."""
        return (self.folder / _JOINED).exists()

    @property
    def has_any(self) -> bool:
        """Whether anything is there that a run computed."""
        return self.is_joined or any(self.folder.glob("*.parquet"))

    def has(self, number: int) -> bool:
        """Whether a part is there, or was before the output was made."""
        return self.is_joined or self._path(number).exists()

    def add(self, number: int, table: pa.Table) -> None:
        """Write a part."""
        _write(self._path(number), lambda path: _write_table(table, path))

    def finish(self, n_parts: int) -> None:
        """Make the output of all parts, and remove them."""
        whole = self.folder / "whole.parquet"
        if not self.is_joined:
            self._join([self._path(number) for number in range(n_parts)], whole)
            (self.folder / _FACTS).replace(self.folder / _JOINED)
            _sync(self.folder)
        if whole.exists():
            check_absent(self.target)  # or another run has made it meanwhile
            whole.replace(self.target)
            _sync(self.target.parent)
        for path in sorted(self.folder.iterdir(), key=lambda path: path.name == _JOINED):
            path.unlink()
        self.folder.rmdir()

    def _join(self, paths: list[Path], whole: Path) -> None:
        schema = pa.unify_schemas([*map(_schema, paths)], promote_options="permissive")

        def write(path: Path) -> None:
            with parquet.ParquetWriter(path, schema, write_page_checksum=True) as writer:
                for part in paths:
                    writer.write_table(_read(part).cast(schema))

        _write(whole, write)


def _write_table(table: pa.Table, path: Path) -> None:
    parquet.write_table(table, path, write_page_checksum=True)


def _schema(path: Path) -> Any:
    with _naming(path):
        return parquet.read_schema(path)


def _read(path: Path) -> Any:
    with _naming(path):
        return parquet.read_table(path, page_checksum_verification=True, partitioning=None)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Raise an error that names a part that cannot be read."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise SaveError(
            f"{path}, a part of the output, is damaged: {error}. Remove it, and run the same "
            "command again, which computes it anew."
        ) from error


def _write(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file under another name, and rename it once it is on the disk."""
    new = _new(path)
    try:
        write(new)
        _sync(new)
    except OSError as error:
        raise SaveError(
            f"{path} could not be written: {error}. The parts before it are kept: make room on "
            "the disk, and run the same command again."
        ) from error
    new.replace(path)


def _new(path: Path) -> Path:
    """The name of a file while it is written."""
    return path.with_name(f"{path.name}.new")


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
