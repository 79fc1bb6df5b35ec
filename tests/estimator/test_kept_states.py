"""What frozen layers give, kept in the folder of ``memory`` for other fits of the same rows."""

from __future__ import annotations

import copy
import shutil
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import joblib
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, KFold
from support.jobs import TRAINED

from skbert import BertClassifier, load
from skbert._core.cpu.layers import Layers
from skbert._core.training import frozen
from skbert._estimator import cache
from skbert.exceptions import InputError, SkbertWarning

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from conftest import Sentiment
    from support.job import Job

FREEZE = [1, "all"]  # of two layers
FINE_TUNED = {name: job for name, job in TRAINED.items() if name != "BertPretrainer"}


@pytest.fixture(params=FINE_TUNED.values(), ids=[*FINE_TUNED])
def job(request: pytest.FixtureRequest) -> Job:
    return request.param


@pytest.fixture
def layers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the layers that were run without gradients, one after another."""
    seen: list[int] = []
    run_layers = Layers.__call__

    def counting(runner: Layers, family: Any, model: Any, numbers: range, *given: Any) -> Any:
        if not torch.is_grad_enabled():
            seen.extend(numbers)
        return run_layers(runner, family, model, numbers, *given)

    monkeypatch.setattr(Layers, "__call__", counting)
    return seen


def files(folder: Path) -> list[Path]:
    return sorted((folder / "skbert").glob("*.sqlite"))


def weights(estimator: Any) -> Mapping[str, torch.Tensor]:
    found: Mapping[str, torch.Tensor] = estimator.model_.state_dict()
    return found


def flat(rows: Any) -> np.ndarray[Any, Any]:
    """Predictions as one array, though rows have several of them."""
    return np.concatenate([*map(np.ravel, rows)])


def assert_same_fit(one: Any, other: Any) -> None:
    found, want = weights(one), weights(other)
    assert [name for name in want if not torch.equal(found[name], want[name])] == []


def classifier(model: Path, **params: Any) -> BertClassifier:
    usual = {"epochs": 1, "freeze": 1, "device": "cpu", "precision": "float32", "random_state": 0}
    return BertClassifier(model, **{**usual, **params})


@pytest.mark.parametrize("freeze", FREEZE)
def test_fits_are_the_same_to_the_bit(
    job: Job, freeze: int | str, tiny_model: Path, tmp_path: Path, layers: list[int]
) -> None:
    """Without the folder, where states are written to it, and where they are read from it."""
    X, y, params = job.usual
    given = {**params, "freeze": freeze, "validation_fraction": 0.25}
    want = job.make(tiny_model, **given).fit(X, y)
    writes = job.make(tiny_model, **given, memory=tmp_path).fit(X, y)
    assert len(files(tmp_path)) == 2  # the rows to train on, and those held out
    layers.clear()
    reads = clone(writes).fit(X, y)
    assert 0 not in layers
    assert_same_fit(writes, want)
    assert_same_fit(reads, want)
    assert (
        reads.history_frame()
        .drop(columns="seconds")
        .equals(want.history_frame().drop(columns="seconds"))
    )
    found = writes.predict(X)
    layers.clear()
    again = reads.predict(X)
    assert 0 not in layers
    for other in (again, want.predict(X)):
        assert np.array_equal(flat(found), flat(other))


def test_probabilities_are_those_of_all_layers(
    tiny_model: Path, tmp_path: Path, sentiment: Sentiment
) -> None:
    for freeze in FREEZE:
        model = classifier(tiny_model, freeze=freeze).fit(*sentiment)
        want = model.predict_proba(sentiment.texts)
        model.set_params(memory=tmp_path)
        for _ in range(2):
            found = model.predict_proba(sentiment.texts)
            np.testing.assert_allclose(found, want, rtol=0, atol=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("n_jobs", [None, 2])
def test_a_search_computes_frozen_layers_once_for_all_candidates(
    n_jobs: int | None, tiny_model: Path, tmp_path: Path, sentiment: Sentiment, layers: list[int]
) -> None:
    X, y = sentiment.texts[:24], sentiment.labels[:24]

    def search(n_jobs: int | None = None, **params: Any) -> GridSearchCV:
        grid = {"learning_rate": [1e-4, 1e-2]}
        folds = KFold(2, shuffle=True, random_state=0)
        model = classifier(tiny_model, **params)
        return GridSearchCV(model, grid, cv=folds, refit=False, n_jobs=n_jobs).fit(X, y)

    alone = search()
    n_alone = layers.count(0)
    layers.clear()
    shared = search(n_jobs, memory=tmp_path)
    np.testing.assert_array_equal(
        shared.cv_results_["mean_test_score"], alone.cv_results_["mean_test_score"]
    )
    # Of each fold the rows to train on, which are the others of the other fold.
    assert len(files(tmp_path)) == 2
    if n_jobs is None:
        assert layers.count(0) * 4 == n_alone


def test_a_pooler_that_nothing_reads_is_no_part_of_what_is_kept(
    tiny_model: Path, tmp_path: Path, sentiment: Sentiment
) -> None:
    folder = shutil.copytree(tiny_model, tmp_path / "no_pooler")
    weights = load_file(folder / "model.safetensors")
    kept = {name: value for name, value in weights.items() if "pooler" not in name}
    assert len(kept) < len(weights)
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    for seed in (0, 1):  # from which a pooler is drawn
        settings = {"freeze": "all", "pooling": "mean", "random_state": seed}
        classifier(folder, memory=tmp_path, **settings).fit(*sentiment)
    assert len(files(tmp_path)) == 1


@pytest.mark.parametrize("freeze", FREEZE)
def test_a_score_after_each_pass_reads_what_is_kept(
    freeze: int | str, tiny_model: Path, tmp_path: Path, sentiment: Sentiment, layers: list[int]
) -> None:
    def fitted() -> BertClassifier:
        settings = {"validation_fraction": 0.25, "scoring": by_a_copy, "memory": tmp_path}
        return classifier(tiny_model, freeze=freeze, **settings).fit(*sentiment)

    copies: list[BertClassifier] = []

    def by_a_copy(estimator: BertClassifier, X: Any, y: Any) -> float:
        copies.append(copy.deepcopy(estimator))
        return float(estimator.score(X, y))

    first = fitted()
    layers.clear()
    assert fitted().history_[0]["validation_score"] == first.history_[0]["validation_score"]
    assert 0 not in layers
    other = copies[-1].set_params(memory=None, precision="float64")
    other.predict_proba(sentiment.texts)
    assert 0 in layers


def test_what_else_is_computed_again(
    tiny_model: Path, tmp_path: Path, sentiment: Sentiment, layers: list[int]
) -> None:
    """Other rows, another number of layers, another precision, and weights changed by hand."""
    X, y = sentiment

    def is_computed(model: Any, X: Any) -> bool:
        layers.clear()
        found = model.predict_proba(X)
        known = 0 not in layers
        memory = model.memory
        want = model.set_params(memory=None).predict_proba(X)
        model.set_params(memory=memory)
        np.testing.assert_allclose(found, want, rtol=0, atol=1e-6)
        return not known

    model = classifier(tiny_model, memory=tmp_path).fit(X, y)
    assert not is_computed(model, X)  # the rows of the fit
    assert is_computed(model, X[::-1])
    assert is_computed(model, X[1:])
    assert not is_computed(model, X[1:])
    assert is_computed(classifier(tiny_model, memory=tmp_path, freeze=2).fit(X, y), X[2:])
    assert is_computed(classifier(tiny_model, memory=tmp_path, freeze=1).fit(X, y), X[2:])
    assert is_computed(model.set_params(precision="float64"), X)
    model.set_params(precision="float32")
    with torch.no_grad():
        model.model_.bert.encoder.layer[1].output.dense.bias += 1.0  # is not frozen
    assert not is_computed(model, X)
    with torch.no_grad():
        model.model_.bert.encoder.layer[0].output.dense.bias += 1.0
    assert is_computed(model, X)
    n_files, n_hooked = len(files(tmp_path)), []
    model.model_.bert.encoder.layer[0].register_forward_hook(lambda *given: n_hooked.append(1))
    for times in (1, 2):
        model.predict_proba(X)
        assert len(n_hooked) == times
    assert len(files(tmp_path)) == n_files


@pytest.mark.parametrize("freeze", FREEZE)
def test_frozen_weights_are_hashed_once_until_somebody_has_the_model(
    tiny_model: Path, tmp_path: Path, sentiment: Sentiment, monkeypatch: pytest.MonkeyPatch,
    freeze: int | str,
) -> None:  # fmt: skip
    taken: list[object] = []
    hashed = cache._hash_of_frozen
    monkeypatch.setattr(
        cache, "_hash_of_frozen", lambda *given: taken.append(given) or hashed(*given)
    )
    model = classifier(tiny_model, freeze=freeze, memory=tmp_path).fit(*sentiment)
    before = model.predict_proba(sentiment.texts)
    assert len(taken) == 1
    with torch.no_grad():
        model.model_.bert.embeddings.word_embeddings.weight.mul_(-1)
    assert not np.allclose(model.predict_proba(sentiment.texts), before)
    assert len(taken) == 2
    model.fit(*sentiment)
    assert np.array_equal(model.predict_proba(sentiment.texts), before)
    assert len(taken) == 3


def test_nothing_is_kept_where_nothing_is_frozen(
    tiny_model: Path, tmp_path: Path, sentiment: Sentiment
) -> None:
    found = classifier(tiny_model, freeze=0, memory=tmp_path).fit(*sentiment)
    found.predict(sentiment.texts)
    assert files(tmp_path) == []
    assert_same_fit(found, classifier(tiny_model, freeze=0).fit(*sentiment))


def test_predictions_of_many_rows_are_not_kept(
    tiny_model: Path, tmp_path: Path, sentiment: Sentiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = classifier(tiny_model, memory=tmp_path).fit(*sentiment)
    n_files = len(files(tmp_path))
    monkeypatch.setattr("skbert._estimator.predicting._CHUNK_SIZE", len(sentiment.texts) - 2)
    model.predict(sentiment.texts[1:])
    assert len(files(tmp_path)) == n_files
    model.predict(sentiment.texts[2:])
    assert len(files(tmp_path)) == n_files + 1


def test_more_than_fits_is_not_kept(
    tiny_model: Path, tmp_path: Path, sentiment: Sentiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frozen, "_MOST_BYTES", 0)
    classifier(tiny_model, memory=tmp_path).fit(*sentiment)
    assert files(tmp_path) == []


@pytest.mark.parametrize("damage", [b"", b"\0" * 8192])
def test_damaged_files_are_made_again(
    damage: bytes, tiny_model: Path, tmp_path: Path, sentiment: Sentiment
) -> None:
    want = classifier(tiny_model, memory=tmp_path).fit(*sentiment)
    (path,) = files(tmp_path)
    path.write_bytes(damage)
    model = clone(want)
    if damage:
        with pytest.warns(SkbertWarning, match="is damaged"):
            model.fit(*sentiment)
    else:  # an empty file is a new one
        model.fit(*sentiment)
    assert_same_fit(model, want)
    assert [each.name for each in files(tmp_path)] == [path.name]


def test_states_that_are_not_whole_are_made_again(
    tiny_model: Path, tmp_path: Path, sentiment: Sentiment
) -> None:
    want = classifier(tiny_model, memory=tmp_path).fit(*sentiment)
    (path,) = files(tmp_path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE vectors SET vector = zeroblob(length(vector))")
    assert_same_fit(clone(want).fit(*sentiment), want)


def test_the_folder_is_a_joblib_memory_too_and_is_not_saved(
    tiny_model: Path, tmp_path: Path, sentiment: Sentiment
) -> None:
    model = classifier(tiny_model, memory=joblib.Memory(tmp_path / "kept", verbose=0))
    model.fit(*sentiment).save(tmp_path / "saved")
    assert len(files(tmp_path / "kept")) == 1
    opened = load(tmp_path / "saved")
    assert opened.memory is None
    assert_same_fit(opened, model)


def test_a_folder_that_cannot_be_made(
    tiny_model: Path, tmp_path: Path, sentiment: Sentiment
) -> None:
    (tmp_path / "file").write_text("taken")
    for memory, message in ((tmp_path / "file", "cannot be made"), ("", "is not a folder")):
        with pytest.raises(InputError, match=rf"memory=.*{message}"):
            classifier(tiny_model, memory=memory).fit(*sentiment)
