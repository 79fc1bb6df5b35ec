"""Faults of the disk, the clock and other processes while a fit writes checkpoints."""

from __future__ import annotations

import itertools
import os
import shutil
import time
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.children import child, in_a_child, make_read_only, needs_mount, small_disk
from support.jobs import TRAINED

from skbert._core.training.stepper import Stepper
from skbert.exceptions import SaveError, SkbertWarning

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.long  # processes

JOB = TRAINED["BertClassifier"]
N_STEPS = 9


class StoppedError(Exception):
    """What ends a fit in the middle."""


def fit(model: Path, folder: Path | None) -> Any:
    X, y, params = JOB.usual
    kept = {"checkpoint_dir": folder, "checkpoint_every": 1} if folder else {}
    settings = {**params, "epochs": 3, "batch_size": 4, "precision": "float32", **kept}
    return JOB.make(model, **settings).fit(X, y)


def weights(fitted: Any) -> dict[str, np.ndarray[Any, Any]]:
    return {name: w.numpy().copy() for name, w in fitted.model_.state_dict().items()}


def assert_equal(found: dict[str, Any], want: dict[str, Any]) -> None:
    assert [name for name in want if not np.array_equal(found[name], want[name])] == []


def numbers_in(folder: Path) -> list[int]:
    """The steps of the checkpoints that are there, whole or not."""
    return sorted(int(path.name[5:]) for path in folder.glob("fit-*/step-*"))


def before_step(
    what: Callable[[int], object], monkeypatch: pytest.MonkeyPatch | None = None
) -> None:
    """Have something happen before each step of training, numbered from 1 on."""
    whole, count = Stepper.step, itertools.count(1)

    def step(stepper: Any, chosen: Any) -> None:
        what(next(count))
        whole(stepper, chosen)

    if monkeypatch is None:  # in a process of its own
        Stepper.step = step  # type: ignore[method-assign]
    else:
        monkeypatch.setattr(Stepper, "step", step)


# --- disks ---------------------------------------------------------------------------------------


def goes_on_while_the_disk_is_full(model: Path, disk: Path, folder: Path) -> dict[str, Any]:
    """The disk is full from the fourth step to the seventh."""
    small_disk(disk, "4m")
    other, seen = disk / "other", []

    def fill(number: int) -> None:
        if number == 4:
            seen.append(numbers_in(folder))
            with pytest.raises(OSError, match="No space left"):
                other.write_bytes(bytes(5_000_000))
        if number == 7:
            seen.append(numbers_in(folder))
            other.unlink()

    before_step(fill)
    with pytest.warns(SkbertWarning, match="No space left on device.*") as caught:
        fitted = fit(model, folder)
    assert len(caught) == 1
    assert seen == [[2, 3], [2, 3]]
    assert not list(folder.iterdir())
    return weights(fitted)


@needs_mount
def test_a_disk_that_is_full_for_a_while(tiny_model: Path, tmp_path: Path) -> None:
    found = in_a_child(goes_on_while_the_disk_is_full, tiny_model, tmp_path, tmp_path / "here")
    assert_equal(found, weights(fit(tiny_model, None)))


def is_stopped_while_the_disk_is_full(model: Path, disk: Path, folder: Path) -> dict[str, Any]:
    small_disk(disk, "4m")
    taken: list[int] = []

    def fill(number: int) -> None:
        taken.append(number)
        if number == 4:
            with pytest.raises(OSError, match="No space left"):
                (disk / "other").write_bytes(bytes(5_000_000))
        if number == 6:
            raise StoppedError

    before_step(fill)
    with pytest.warns(SkbertWarning, match="the fit goes on"), pytest.raises(StoppedError):
        fit(model, folder)
    assert numbers_in(folder) == [2, 3]
    (disk / "other").unlink()
    taken.clear()
    found = weights(fit(model, folder))
    assert len(taken) == N_STEPS - 3
    return found


@needs_mount
def test_what_was_written_before_the_disk_was_full_is_used(
    tiny_model: Path, tmp_path: Path
) -> None:
    found = in_a_child(is_stopped_while_the_disk_is_full, tiny_model, tmp_path, tmp_path / "here")
    assert_equal(found, weights(fit(tiny_model, None)))


def works_on_a_read_only_disk(model: Path, disk: Path) -> dict[str, Any]:
    small_disk(disk, "4m")
    before_step(lambda number: make_read_only(disk) if number == 3 else None)
    with pytest.warns(SkbertWarning, match="Read-only file system.*") as caught:
        fitted = fit(model, disk / "here")
    assert len(caught) == 1
    with pytest.raises(SaveError, match=r"Read-only file system.*may write to"):
        fit(model, disk / "new")
    return weights(fitted)


@needs_mount
def test_a_disk_that_becomes_read_only(tiny_model: Path, tmp_path: Path) -> None:
    found = in_a_child(works_on_a_read_only_disk, tiny_model, tmp_path)
    assert_equal(found, weights(fit(tiny_model, None)))


@pytest.mark.parametrize("what", ["all", "fit", "checkpoints"])
def test_a_folder_that_is_removed_in_mid_fit(
    what: str, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a word or without, the fit goes on; it makes no folder that nothing removes."""
    want, folder = weights(fit(tiny_model, None)), tmp_path / "here"

    def remove(number: int) -> None:
        pattern = {"all": "here", "fit": "here/fit-*", "checkpoints": "here/fit-*/step-*"}[what]
        for path in tmp_path.glob(pattern) if number == 5 else ():
            shutil.rmtree(path)

    with monkeypatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore", SkbertWarning)
        before_step(remove, patch)
        assert_equal(weights(fit(tiny_model, folder)), want)
    assert not [path for path in tmp_path.rglob("*") if path != folder]


# --- clocks --------------------------------------------------------------------------------------


def test_a_clock_that_is_set_back_in_mid_fit(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the newest checkpoint is does not depend on times, and neither does what is kept."""
    want, seen = weights(fit(tiny_model, None)), []

    def set_back(number: int) -> None:
        seen.append(numbers_in(tmp_path))
        for path in tmp_path.rglob("*"):
            os.utime(path, (10**9 - number * 3600,) * 2)
        if number == 6 and len(seen) == 6:
            raise StoppedError

    before_step(set_back, monkeypatch)
    now = itertools.count(1e9, -3600)
    monkeypatch.setattr(time, "time", lambda: float(next(now)))
    with pytest.raises(StoppedError):
        fit(tiny_model, tmp_path)
    assert seen == [[], [1], [1, 2], [2, 3], [3, 4], [4, 5]]
    seen.clear()
    before_step(lambda number: seen.append(numbers_in(tmp_path)), monkeypatch)
    assert_equal(weights(fit(tiny_model, tmp_path)), want)
    assert seen[0] == [4, 5]


# --- other processes -----------------------------------------------------------------------------


def fits_slowly(model: Path, folder: Path) -> None:
    before_step(lambda number: time.sleep(0.1))
    fit(model, folder)


def test_a_second_process_with_the_same_fit_leaves_the_folder_to_the_first(
    tiny_model: Path, tmp_path: Path
) -> None:
    want = weights(fit(tiny_model, None))
    with child(fits_slowly, tiny_model, tmp_path) as process:
        end = time.monotonic() + 60
        while not numbers_in(tmp_path) and time.monotonic() < end:
            time.sleep(0.005)
        with pytest.warns(SkbertWarning, match="Another process trains the same fit"):
            assert_equal(weights(fit(tiny_model, tmp_path)), want)
        process.join(60)
        assert process.exitcode == 0
    assert not list(tmp_path.iterdir())
