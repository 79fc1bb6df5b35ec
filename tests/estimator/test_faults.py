"""What happens around a fit: processes killed, disks full, folders gone, clocks set back.

Each test makes the real fault, in a process of its own where it would harm the others.
"""

from __future__ import annotations

import itertools
import os
import random
import resource
import shutil
import sqlite3
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import closing
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from support.caches import CacheOfTexts
from support.children import child, in_a_child, make_read_only, needs_mount, small_disk
from support.job import LABELS, TEXTS, Job
from support.jobs import JOBS, TRAINED

from skbert import BertClassifier, BertTransformer
from skbert._core.models.network import Network
from skbert._core.models.opening import _read_tokenizer
from skbert._core.training.stepper import Stepper
from skbert._estimator import cache as embeddings
from skbert._validation.texts import Texts
from skbert.exceptions import InputError, ModelError, SaveError, SkbertWarning

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.long  # processes

ALL = pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
TRAINS = pytest.mark.parametrize("job", TRAINED.values(), ids=TRAINED)
MANY = [f"{text} {number}" for number in range(25) for text in TEXTS]


def fit(job: Job, model: Path, **params: Any) -> Any:
    X, y, changes = job.usual
    return job.make(model, **{**changes, "precision": "float32", **params}).fit(X, y)


def weights(estimator: Any) -> dict[str, np.ndarray[Any, Any]]:
    return {name: w.numpy().copy() for name, w in estimator.model_.state_dict().items()}


def fitted_weights(job: Job, model: Path) -> dict[str, np.ndarray[Any, Any]]:
    return weights(fit(job, model))


def assert_equal(found: dict[str, Any], want: dict[str, Any]) -> None:
    assert found.keys() == want.keys()
    assert [name for name in want if not np.array_equal(found[name], want[name])] == []


def vectors(model: Path, memory: Path | None, X: list[str] = MANY) -> np.ndarray[Any, Any]:
    """Vectors of texts, a few of them written to the cache at a time."""
    transformer = BertTransformer(model, device="cpu", precision="float32", memory=memory)
    found: np.ndarray[Any, Any] = transformer.fit(X).transform(X)
    return found


# --- kill -9 -------------------------------------------------------------------------------------


def filled_with(number: int, model: Path) -> BertClassifier:
    """A classifier whose weights are all one number."""
    fitted = BertClassifier(model, device="cpu", epochs=1).fit(TEXTS, LABELS)
    for weight in fitted.model_.parameters():
        weight.detach().fill_(number)
    return fitted


def save_for_ever(both: list[BertClassifier], folder: Path) -> None:
    while True:
        for each in both:
            each.save(folder)


def test_a_save_that_is_killed_leaves_the_old_one_or_the_new(
    tiny_model: Path, tmp_path: Path
) -> None:
    both = [filled_with(number, tiny_model) for number in (0, 1)]
    folder, moments = tmp_path / "model", random.Random(0)
    both[0].save(folder)
    found = []
    for attempt in range(60):  # each a little longer, as a busy machine saves slowly
        if attempt >= 12 and {1.0} in found:
            break
        with child(save_for_ever, both, folder):
            time.sleep(moments.uniform(0.02, 0.3) * (1 + attempt / 12))
        for old in tmp_path.glob(".model.*.old"):
            if not folder.exists():  # killed between two renames: the error says what to do
                with pytest.raises(SaveError, match=f"{old.name} is an earlier version: rename"):
                    BertClassifier.load(folder)
                old.rename(folder)
        loaded = weights(BertClassifier.load(folder))
        values = {number for each in loaded.values() for number in np.unique(each).tolist()}
        found.append(values)
        assert values in ({0.0}, {1.0})
        assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert {1.0} in found


def texts(n: int) -> Texts:
    return Texts([f"text {number}" for number in range(n)], None, None, 1)


def lengths(rows: Texts) -> np.ndarray[Any, Any]:
    return np.array([[len(text), int(text.split()[1])] for text in rows.first], np.float32)


def refuse(rows: Texts) -> np.ndarray[Any, Any]:
    raise AssertionError(f"{len(rows)} vectors are computed again")


def test_a_cache_that_is_killed_while_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No vector is wrong, no file is damaged, and what was written is not computed again."""
    monkeypatch.setattr(embeddings, "_CHUNK_SIZE", 7)
    monkeypatch.setattr(embeddings, "_BEAT", 0.001)
    cache = CacheOfTexts(tmp_path, {}, 2, np.dtype(np.float32))
    cache.vectors(texts(7), lengths)
    moments, counts, many = random.Random(0), [7], texts(5000)
    for _ in range(25):
        with child(cache.vectors, many, lengths):
            time.sleep(moments.uniform(0.01, 0.15))
        with closing(sqlite3.connect(cache.path)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            ((n_kept,),) = connection.execute("SELECT COUNT(*) FROM vectors").fetchall()
        assert n_kept >= counts[-1]
        assert n_kept % 7 == 0 or n_kept == 5000  # a part is there whole, or not at all
        np.testing.assert_array_equal(cache.vectors(texts(n_kept), refuse), lengths(texts(n_kept)))
        counts.append(n_kept)
    assert len(set(counts)) > 5


# --- disks ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model_of_a_megabyte(make_tiny_model: Callable[..., Path]) -> Path:
    return make_tiny_model(hidden_size=128, intermediate_size=512)


def saves_on_a_full_disk(fitted: Any, folder: Path) -> None:
    small_disk(folder, "4m")
    fitted.save(folder / "model")
    want = weights(type(fitted).load(folder / "model"))
    (folder / "other").write_bytes(bytes(1_500_000))
    for _ in range(2):
        with pytest.raises(SaveError, match=r"No space left on device.*with free space"):
            fitted.save(folder / "model")
        with pytest.raises(SaveError, match=r"No space left on device.*with free space"):
            fitted.save(folder / "new")
    assert_equal(weights(type(fitted).load(folder / "model")), want)
    assert sorted(path.name for path in folder.iterdir()) == ["model", "other"]
    (folder / "other").unlink()
    fitted.save(folder / "model")


@needs_mount
@ALL
def test_a_save_on_a_disk_that_is_full(
    job: Job, model_of_a_megabyte: Path, tmp_path: Path
) -> None:
    in_a_child(saves_on_a_full_disk, fit(job, model_of_a_megabyte), tmp_path)


def works_on_a_read_only_disk(fitted: Any, model: Path, folder: Path) -> None:
    small_disk(folder, "20m")
    fitted.save(folder / "model")
    want = vectors(model, folder, TEXTS)
    make_read_only(folder)
    with pytest.raises(SaveError, match="Read-only file system"):
        fitted.save(folder / "model")
    assert_equal(weights(BertClassifier.load(folder / "model")), weights(fitted))
    np.testing.assert_array_equal(vectors(model, folder, TEXTS), want)  # what is there is used
    with pytest.warns(SkbertWarning, match="cannot be used.*encoded without it") as caught:
        found = vectors(model, folder, MANY[:40])
    assert len(caught) == 1
    np.testing.assert_array_equal(found, vectors(model, None, MANY[:40]))
    with pytest.raises(InputError, match=r"Read-only file system.*may write to"):
        vectors(model, folder / "new", TEXTS)


@needs_mount
def test_a_disk_that_is_read_only(tiny_model: Path, tmp_path: Path) -> None:
    fitted = fit(JOBS["BertClassifier"], tiny_model)
    in_a_child(works_on_a_read_only_disk, fitted, tiny_model, tmp_path)


def keeps_vectors_on_a_full_disk(model: Path, folder: Path) -> None:
    small_disk(folder, "200k")
    with pytest.warns(SkbertWarning, match="cannot be used.*the disk is not full") as caught:
        found = vectors(model, folder, X := [f"text {number}" for number in range(2000)])
    assert len(caught) == 1
    np.testing.assert_array_equal(found, vectors(model, None, X))
    vectors(model, folder, X[:5])


@needs_mount
def test_a_cache_on_a_disk_that_is_full(tiny_model: Path, tmp_path: Path) -> None:
    in_a_child(keeps_vectors_on_a_full_disk, tiny_model, tmp_path)


def fits_without_temporary_space(job: Job, model: Path, folder: Path) -> None:
    _read_tokenizer.cache_clear()  # one that was opened before needs no space
    small_disk(folder, "8k")
    (folder / "other").write_bytes(bytes(8192))
    tempfile.tempdir = str(folder)
    with pytest.raises(ModelError, match=r"No space left on device.*Set TMPDIR to"):
        fit(job, model)
    make_read_only(folder)
    with pytest.raises(ModelError, match=r"Read-only file system.*Set TMPDIR to"):
        fit(job, model)
    tempfile.tempdir = str(folder / "gone")
    with pytest.raises(ModelError, match=r"No such file or directory.*Set TMPDIR to"):
        fit(job, model)


@needs_mount
def test_a_fit_without_temporary_space(tiny_model: Path, tmp_path: Path) -> None:
    in_a_child(fits_without_temporary_space, JOBS["BertClassifier"], tiny_model, tmp_path)


# --- folders that are gone -----------------------------------------------------------------------


@pytest.fixture
def at_first_step(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Give a function: what happens in the first step of any training in another process."""
    whole, here = Stepper.step, os.getpid()

    def happen(what: Callable[[], object]) -> None:
        steps: list[int] = []

        def step(stepper: Any, chosen: Any) -> None:
            if os.getpid() != here and not steps:
                what()
            steps.append(1)
            whole(stepper, chosen)

        monkeypatch.setattr(Stepper, "step", step)

    return happen


@TRAINS
def test_a_model_folder_that_is_removed_or_changed_in_mid_fit(
    job: Job, tiny_model: Path, tmp_path: Path, at_first_step: Callable[..., None]
) -> None:
    want = fitted_weights(job, tiny_model)
    for number, what in enumerate((shutil.rmtree, empty_files)):
        copied = shutil.copytree(tiny_model, tmp_path / f"{number}")
        at_first_step(lambda what=what, copied=copied: what(copied))
        fitted = in_a_child(fitted_weights, job, copied)
        assert_equal(fitted, want)


def empty_files(folder: Path) -> None:
    for path in folder.iterdir():
        os.truncate(path, 0)  # a bus error to whoever maps the file into memory


def fits_without_folders(job: Job, model: Path, folder: Path) -> dict[str, Any]:
    os.chdir(folder)
    tempfile.tempdir = str(folder)
    return fitted_weights(job, model)


@TRAINS
def test_working_and_temporary_folders_that_are_removed_in_mid_fit(
    job: Job, tiny_model: Path, tmp_path: Path, at_first_step: Callable[..., None]
) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    at_first_step(lambda: shutil.rmtree(folder))
    found = in_a_child(fits_without_folders, job, tiny_model, folder)
    assert not folder.exists()
    assert_equal(found, fitted_weights(job, tiny_model))


def test_a_cache_folder_that_is_removed_while_vectors_are_computed(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, folder = Network.hidden, tmp_path / "vectors"

    def hidden(network: Network, batch: Any) -> torch.Tensor:
        shutil.rmtree(folder, ignore_errors=True)
        return whole(network, batch)

    want = vectors(tiny_model, None)
    monkeypatch.setattr(Network, "hidden", hidden)
    with pytest.warns(SkbertWarning, match="cannot be used"):
        found = vectors(tiny_model, folder)
    np.testing.assert_array_equal(found, want)
    monkeypatch.undo()
    np.testing.assert_array_equal(vectors(tiny_model, folder), want)


# --- clocks --------------------------------------------------------------------------------------


@pytest.fixture
def clocks_run_backwards(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("time", "monotonic", "perf_counter"):
        now = itertools.count(1e9, -3600)
        monkeypatch.setattr(time, name, lambda now=now: float(next(now)))


@ALL
def test_clocks_that_run_backwards(
    job: Job, tiny_model: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    want = fitted_weights(job, tiny_model)
    request.getfixturevalue("clocks_run_backwards")
    assert time.time() > time.time() + 3599
    fitted = fit(job, tiny_model, verbose=1)
    assert_equal(weights(fitted), want)
    for _ in range(2):
        fitted.save(tmp_path / "model")
    assert_equal(weights(type(fitted).load(tmp_path / "model")), want)


def test_a_cache_under_clocks_that_run_backwards(
    tiny_model: Path, tmp_path: Path, clocks_run_backwards: None
) -> None:
    want = vectors(tiny_model, tmp_path)
    np.testing.assert_array_equal(vectors(tiny_model, tmp_path), want)


# --- other processes -----------------------------------------------------------------------------


def test_spawned_processes_fit_and_predict_the_same(tiny_model: Path) -> None:
    fitted = fit(JOBS["BertClassifier"], tiny_model)
    spawn, threads = get_context("spawn"), (torch.get_num_threads(),)
    with ProcessPoolExecutor(2, spawn, torch.set_num_threads, threads) as pool:
        proba = pool.submit(fitted.predict_proba, TEXTS)
        again = pool.submit(clone(fitted).fit, TEXTS, LABELS)
        np.testing.assert_array_equal(proba.result(), fitted.predict_proba(TEXTS))
        assert_equal(weights(again.result()), weights(fitted))


@TRAINS
def test_two_fits_side_by_side_are_those_of_one_alone(job: Job, tiny_model: Path) -> None:
    alone = [weights(fit(job, tiny_model, random_state=seed)) for seed in (0, 1)]
    with ThreadPoolExecutor(2) as pool:
        beside = pool.map(lambda seed: fit(job, tiny_model, random_state=seed), (0, 1))
        for found, want in zip(beside, alone, strict=True):
            assert_equal(weights(found), want)


# --- what is written -----------------------------------------------------------------------------


def writes_of_a_fit(job: Job, model: Path, folder: Path) -> list[str]:
    """The files that a fit and a prediction open for writing outside of a temporary folder."""
    written: list[str] = []
    flags = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

    def note(event: str, given: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(given[2], int) and given[2] & flags:
            written.append(str(given[0]))

    tempfile.tempdir = str(folder)
    sys.addaudithook(note)
    fitted = fit(job, model)
    X, y, _ = job.usual
    (fitted.score if "score" in job.methods else fitted.transform)(X, *([y] if y else []))
    return [path for path in written if not Path(path).is_relative_to(folder)]


@ALL
def test_a_fit_opens_no_file_for_writing(
    job: Job, tiny_model: Path, tmp_path: Path, at_first_step: Callable[..., None]
) -> None:
    """Except copies of the tokenizer's files, which are gone before the first step.

    From then on the system refuses every byte to any file, also from compiled code.
    """
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]

    def look() -> None:
        assert not list(tmp_path.iterdir())
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))

    at_first_step(look)
    assert in_a_child(writes_of_a_fit, job, tiny_model, tmp_path) == []
    assert not list(tmp_path.iterdir())
