"""FitFolder: the checkpoints of one fit in a folder, and the fits beside it.

Each fit has a folder of its own, named by a hash of what is fitted. In it are the last two
checkpoints, each an archive. Depends on `archive` and `leftovers`; knows no estimator.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch

from skbert._core.checkpoints import archive
from skbert._core.checkpoints.leftovers import hold_lock, resolve_folder
from skbert.exceptions import SaveError, warn

__all__ = ["FINISHED", "FitFolder", "SavedFit"]

FINISHED = 10**9 - 1  # stands for a number of steps that no fit takes

_KIND, _STATE, _LOCK, _PREFIX = "training checkpoint", "state.json", "lock", "step-"
_PATIENCE = 0.1  # seconds to wait for another process that looks whether a folder is in use
_DIGITS = len(str(FINISHED))


class SavedFit(NamedTuple):
    """What a checkpoint holds."""

    number: int  # of steps before it; `FINISHED` where training is over
    seed: int
    state: bytes
    tensors: Mapping[str, torch.Tensor]


class FitFolder:
    """The checkpoints of one fit.

    Parameters
    ----------
    parent : Path
        The folder of all fits.
    facts : dict of str to str
        What is fitted: the value of each parameter, and hashes of the data, by name.

    Attributes
    ----------
    path : Path
        The folder of this fit.
    """

    def __init__(self, parent: Path, facts: Mapping[str, str]) -> None:
        text = json.dumps(facts, sort_keys=True)
        name = f"fit-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
        self._parent = resolve_folder(parent)
        self.path, self._facts = self._parent / name, dict(facts)

    @contextmanager
    def owned(self) -> Iterator[bool]:
        """Make the folder; yield whether no other process trains the same fit meanwhile."""
        try:
            (self.path / _LOCK).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SaveError(
                f"checkpoint_dir={str(self._parent)!r}: the folder cannot be made: {error}. Give a"
                " folder that you may write to, or checkpoint_dir=None."
            ) from error
        for removed in self._parent.glob(".fit-*.old"):  # of a process that was killed
            shutil.rmtree(removed, ignore_errors=True)
        with hold_lock(self.path / _LOCK, _PATIENCE) as is_locked:
            yield is_locked is not False

    def newest(self, check: Callable[[SavedFit], object]) -> SavedFit | None:
        """The newest checkpoint that is whole; None if there is none.

        ``check`` raises for one that cannot be used. Such checkpoints are set aside, with a
        warning.
        """
        for path in reversed(_checkpoints_in(self.path)):
            try:
                saved = self.read(int(path.name.removeprefix(_PREFIX)))
                check(saved)
            except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError,
                    ValueError) as error:  # fmt: skip
                self._set_aside(path, error)
            else:
                return saved
        return None

    def read(self, number: int) -> SavedFit:
        """The checkpoint with this number; SaveError if it is not whole."""
        path = self._path_of(number)
        header, members, tensors = archive.read(path, [_STATE])
        seed = header.get("seed")
        if _facts(header) != self._facts or not isinstance(seed, int):
            raise SaveError(f"{path} belongs to another fit.")
        return SavedFit(number, seed, members[_STATE], tensors)

    def write(self, saved: SavedFit) -> None:
        """Write a checkpoint, and keep it and the one before; once training is over, it alone."""
        path = self._path_of(saved.number)
        header = {"kind": _KIND, "fit": self._facts, "seed": saved.seed}
        archive.write(path, {_STATE: saved.state}, header, saved.tensors)
        n_kept = 1 if saved.number == FINISHED else 2
        kept = {_LOCK, *(path.name for path in _checkpoints_in(self.path)[-n_kept:])}
        for other in self.path.iterdir():  # also what a process that was killed had begun
            if other.name not in kept and other.suffix != ".damaged":
                shutil.rmtree(other, ignore_errors=True)

    def remove(self) -> None:
        """Remove the folder of this fit."""
        removed = self._parent / f".{self.path.name}.{secrets.token_hex(4)}.old"
        with suppress(OSError):
            self.path.rename(removed)
        shutil.rmtree(removed, ignore_errors=True)

    def others(self) -> list[tuple[Path, dict[str, str]]]:
        """Folder and facts of each other fit that was stopped."""
        found = []
        for folder in sorted(self.path.parent.glob("fit-*")):
            last = _checkpoints_in(folder)[-1:]
            is_done = last == [folder / _name_of(FINISHED)]
            if folder != self.path and last and not is_done and not _is_in_use(folder):
                with suppress(SaveError):
                    found.append((folder, _facts(archive.header(last[0]))))
        return found

    def _path_of(self, number: int) -> Path:
        return self.path / _name_of(number)

    def _set_aside(self, path: Path, error: Exception) -> None:
        """Rename a checkpoint that cannot be used, and say so."""
        aside = path.with_name(f"{path.name}.{secrets.token_hex(4)}.damaged")
        with suppress(OSError):
            path.rename(aside)
        warn(
            f"The checkpoint {path} cannot be used: {error} It was renamed to {aside.name}. The "
            "fit goes on from the one before, or from the beginning if there is none."
        )


def _name_of(number: int) -> str:
    return f"{_PREFIX}{number:0{_DIGITS}}"


def _checkpoints_in(folder: Path) -> list[Path]:
    """The checkpoints in the folder of a fit, the newest last."""
    digits = "[0-9]" * _DIGITS
    return sorted(path for path in folder.glob(_PREFIX + digits) if path.is_dir())


def _is_in_use(folder: Path) -> bool:
    """Whether a fit goes on in a folder now."""
    with hold_lock(folder / _LOCK, 0.0) as is_locked:
        return is_locked is False


def _facts(header: Mapping[str, Any]) -> dict[str, str]:
    """What was fitted, as the header of a checkpoint says."""
    facts = header.get("fit")
    if header.get("kind") != _KIND or not isinstance(facts, dict):
        raise SaveError("it is no checkpoint of a fit.")
    return {str(name): str(value) for name, value in facts.items()}
