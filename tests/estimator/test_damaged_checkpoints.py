"""Checkpoints of a fit that were damaged: each is found, and the one before it is used."""

from __future__ import annotations

import random
import re
import shutil
from typing import TYPE_CHECKING, Any

import pytest
import torch
from support.job import TEXTS, Job
from support.jobs import TRAINED

from skbert._core.training.stepper import Stepper
from skbert.exceptions import SkbertWarning

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.long  # a fit for each damage

ALL = pytest.mark.parametrize("job", TRAINED.values(), ids=TRAINED)
N_STEPS, EVERY, STOP = 9, 2, 7  # the seventh of nine steps fails, after checkpoints at 4 and 6
MEMBERS = ("MANIFEST.json", "model.safetensors", "state.json")


class StoppedError(Exception):
    """What ends the fit whose checkpoints are damaged."""


class Steps:
    """Counts the steps of training, and fails in one of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.taken, self.stop_at, whole = 0, 0, Stepper.step

        def step(stepper: Any, chosen: Any) -> None:
            if self.taken + 1 == self.stop_at:
                raise StoppedError
            whole(stepper, chosen)
            self.taken += 1

        monkeypatch.setattr(Stepper, "step", step)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    return Steps(monkeypatch)


def make(job: Job, model: Path, **params: Any) -> Any:
    _, _, usual = job.usual
    return job.make(model, **{**usual, "epochs": 3, "batch_size": 4, **params})


def fit(job: Job, model: Path, folder: Path) -> Any:
    X, y, _ = job.usual
    return make(job, model, checkpoint_dir=folder, checkpoint_every=EVERY).fit(X, y)


def stop(job: Job, model: Path, folder: Path, steps: Steps) -> list[Path]:
    """Leave the checkpoints of a fit that was stopped; the older and the newest of them."""
    steps.taken, steps.stop_at = 0, STOP
    with pytest.raises(StoppedError):
        fit(job, model, folder)
    steps.taken = steps.stop_at = 0
    older, newest = sorted(folder.glob("fit-*/step-*"))
    assert (int(older.name[5:]), int(newest.name[5:])) == (4, 6)
    return [older, newest]


def assert_same(found: Any, whole: Any) -> None:
    want = whole.model_.state_dict()
    for name, weight in found.model_.state_dict().items():
        assert torch.equal(weight, want[name]), name
    histories = [[{**row, "seconds": 0} for row in each.history_] for each in (found, whole)]
    assert histories[0] == histories[1]


# --- damages -------------------------------------------------------------------------------------


def cut(path: Path, other: Path, rng: random.Random) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: rng.randrange(len(data) - 1)])


def flip(path: Path, other: Path, rng: random.Random) -> None:
    data = bytearray(path.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def lengthen(path: Path, other: Path, rng: random.Random) -> None:
    path.write_bytes(path.read_bytes() + b"x")


def empty(path: Path, other: Path, rng: random.Random) -> None:
    path.write_bytes(b"")


def remove(path: Path, other: Path, rng: random.Random) -> None:
    path.unlink()


def put_in_a_foreign_file(path: Path, other: Path, rng: random.Random) -> None:
    path.write_text('{"format": 1}', encoding="utf-8")


def put_in_that_of_the_one_before(path: Path, other: Path, rng: random.Random) -> None:
    shutil.copy(other / path.name, path)


def put_in_a_link(path: Path, other: Path, rng: random.Random) -> None:
    path.rename(path.with_suffix(".real"))
    path.symlink_to(path.with_suffix(".real"))


def put_in_a_folder(path: Path, other: Path, rng: random.Random) -> None:
    path.unlink()
    path.mkdir()


DAMAGES: list[tuple[Callable[[Path, Path, random.Random], None], str]] = [
    (damage, name)
    for damage in (
        cut, cut, flip, flip, flip, lengthen, empty, remove, put_in_a_foreign_file,
        put_in_that_of_the_one_before, put_in_a_link, put_in_a_folder,
    )
    for name in MEMBERS
]  # fmt: skip


@ALL
def test_a_damaged_checkpoint_is_found_and_the_one_before_is_used(
    job: Job, tiny_model: Path, tmp_path: Path, steps: Steps
) -> None:
    X, y, _ = job.usual
    whole = make(job, tiny_model).fit(X, y)
    stop(job, tiny_model, tmp_path / "stopped", steps)
    at = list(TRAINED.values()).index(job)
    damages = DAMAGES[at % 2 :: 2]  # every estimator half of them
    for number, (damage, name) in enumerate(damages):
        folder = tmp_path / f"{number}"
        shutil.copytree(tmp_path / "stopped", folder)
        older, newest = sorted(folder.glob("fit-*/step-*"))
        damage(newest / name, older, random.Random(number))
        steps.taken = 0
        with pytest.warns(SkbertWarning) as caught:
            found = fit(job, tiny_model, folder)
        said = [str(warning.message) for warning in caught]
        assert len(said) == 1, (damage, name, said)
        assert re.search(rf"{newest} cannot be used: .*renamed.*the one before", said[0]), said
        assert steps.taken == N_STEPS - 4, (damage, name)
        assert_same(found, whole)


def test_more_than_fifty_checkpoints_are_damaged() -> None:
    assert len(DAMAGES) // 2 * len(TRAINED) >= 50


@ALL
def test_a_whole_checkpoint_is_used_without_a_word(
    job: Job, tiny_model: Path, tmp_path: Path, steps: Steps
) -> None:
    X, y, _ = job.usual
    stop(job, tiny_model, tmp_path, steps)
    found = fit(job, tiny_model, tmp_path)
    assert steps.taken == N_STEPS - 6
    assert_same(found, make(job, tiny_model).fit(X, y))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("damage", [cut, flip, remove])
def test_where_every_checkpoint_is_damaged_the_fit_begins_anew(
    damage: Any, tiny_model: Path, tmp_path: Path, steps: Steps
) -> None:
    job = TRAINED["BertClassifier"]
    for path in stop(job, tiny_model, tmp_path, steps):
        damage(path / "model.safetensors", path, random.Random(0))
    with pytest.warns(SkbertWarning, match="cannot be used") as caught:
        found = fit(job, tiny_model, tmp_path)
    assert len(caught) == 2
    assert steps.taken == N_STEPS
    X, y, _ = job.usual
    assert_same(found, make(job, tiny_model).fit(X, y))


def test_the_checkpoint_of_another_fit_is_not_used(
    tiny_model: Path, tmp_path: Path, steps: Steps
) -> None:
    """Whole as it is: its manifest names other data."""
    job = TRAINED["BertClassifier"]
    _, newest = stop(job, tiny_model, tmp_path / "one", steps)
    other = job.make(tiny_model, epochs=3, batch_size=4, checkpoint_dir=tmp_path / "other",
                     checkpoint_every=EVERY)  # fmt: skip
    steps.stop_at = STOP
    with pytest.raises(StoppedError):
        other.fit(TEXTS, ["a", "b", "c"] * 4)
    (there,) = (tmp_path / "other").glob(f"fit-*/{newest.name}")
    shutil.rmtree(newest)
    shutil.copytree(there, newest)
    steps.taken = steps.stop_at = 0
    with pytest.warns(SkbertWarning, match="belongs to another fit") as caught:
        found = fit(job, tiny_model, tmp_path / "one")
    assert len(caught) == 1
    assert steps.taken == N_STEPS - 4
    X, y, _ = job.usual
    assert_same(found, make(job, tiny_model).fit(X, y))
