"""Heads that were fitted to frozen features before, in the same process."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sklearn.model_selection import GridSearchCV, KFold
from support.children import in_a_child
from support.job import LABELS, TEXTS, Job
from support.jobs import JOBS

from skbert import BertClassifier
from skbert._core.training import kept_heads, probe
from skbert._core.training.kept_heads import KEPT_HEADS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PROBED = {name: job for name, job in JOBS.items() if hasattr(job.estimator, "head_init")}
PARAMS = {"head_init": "probe", "precision": "float32"}


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of items that output layers are fitted to, one for each fit of a layer."""
    seen: list[int] = []

    def counted(*given: Any, **named: Any) -> None:
        seen.append(len(given[2]))
        fit(*given, **named)

    fit = probe._fit
    monkeypatch.setattr(probe, "_fit", counted)
    return seen


def classifier(model: Path, **params: Any) -> BertClassifier:
    usual = {**PARAMS, "epochs": 1, "random_state": 0, "device": "cpu"}
    return BertClassifier(model, **{**usual, **params})


def weights_of(fitted: Any) -> dict[str, np.ndarray[Any, Any]]:
    return {name: weight.numpy() for name, weight in fitted.model_.state_dict().items()}


def assert_equal(one: Any, other: Any) -> None:
    found, wanted = weights_of(one), weights_of(other)
    for name in wanted:
        np.testing.assert_array_equal(found[name], wanted[name], name)


@pytest.mark.parametrize("job", PROBED.values(), ids=PROBED)
def test_the_same_fit_takes_the_head_of_the_one_before(
    job: Job, fits: list[int], tiny_model: Path
) -> None:
    rows = job.usual
    first = job.make(tiny_model, **PARAMS, **rows.params).fit(rows.X, rows.y)
    again = job.make(tiny_model, **PARAMS, **rows.params).fit(rows.X, rows.y)
    assert len(fits) == 1
    assert_equal(again, first)
    KEPT_HEADS.forget()
    assert_equal(job.make(tiny_model, **PARAMS, **rows.params).fit(rows.X, rows.y), first)
    assert len(fits) == 2


def test_a_search_fits_a_head_for_each_fold(fits: list[int], tiny_model: Path) -> None:
    grid = {"learning_rate": [1e-5, 1e-3, 3e-3], "weight_decay": [0.0, 0.1]}
    folds = KFold(3, shuffle=True, random_state=0)
    search = GridSearchCV(classifier(tiny_model), grid, cv=folds, refit=False)
    found = search.fit(TEXTS, LABELS).cv_results_
    assert fits == [8, 8, 8]
    for at, params in enumerate(found["params"]):
        KEPT_HEADS.forget()
        one = classifier(tiny_model, **params)
        train, test = next(iter(folds.split(TEXTS)))
        X, y = np.array(TEXTS), np.array(LABELS)
        score = one.fit(X[train], y[train]).score(X[test], y[test])
        assert score == found["split0_test_score"][at]


@pytest.mark.parametrize(
    "changes",
    [
        {"random_state": 1},
        {"pooling": "cls"},
        {"precision": "float64"},
        {"class_weight": {"yes": 2.0, "no": 1.0}},
        {"label_smoothing": 0.1},
        {"label_texts": {"yes": "good", "no": "bad"}},
    ],
    ids=str,
)
def test_other_parameters_need_another_head(
    changes: dict[str, Any], fits: list[int], tiny_model: Path
) -> None:
    classifier(tiny_model).fit(TEXTS, LABELS)
    found = classifier(tiny_model, **changes).fit(TEXTS, LABELS)
    assert len(fits) == 2
    KEPT_HEADS.forget()
    assert_equal(classifier(tiny_model, **changes).fit(TEXTS, LABELS), found)


def test_other_rows_need_another_head(fits: list[int], tiny_model: Path) -> None:
    classifier(tiny_model).fit(TEXTS, LABELS)
    classifier(tiny_model).fit(TEXTS[::-1], LABELS)
    classifier(tiny_model).fit(TEXTS, LABELS[::-1])
    classifier(tiny_model).fit(TEXTS, LABELS, sample_weight=np.arange(1, 13))
    assert len(fits) == 4


def test_other_weights_in_the_same_file_need_another_head(
    fits: list[int], tiny_model: Path, tmp_path: Path
) -> None:
    """Also where their size and the time that programs may set are as before."""
    folder = shutil.copytree(tiny_model, tmp_path / "model")
    file = folder / "model.safetensors"
    first = classifier(folder).fit(TEXTS, LABELS)
    before = file.stat()
    weights = {name: weight.flip(0) for name, weight in load_file(file).items()}
    save_file(weights, file, {"format": "pt"})
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file.stat().st_size == before.st_size
    other = classifier(folder).fit(TEXTS, LABELS)
    assert len(fits) == 2
    KEPT_HEADS.forget()
    assert_equal(classifier(folder).fit(TEXTS, LABELS), other)
    assert (first.predict_proba(TEXTS) != other.predict_proba(TEXTS)).any()


def test_nothing_is_kept_of_a_fit_that_goes_on(fits: list[int], tiny_model: Path) -> None:
    fitted = classifier(tiny_model, warm_start=True).fit(TEXTS, LABELS)
    fitted.fit(TEXTS, LABELS)
    assert len(fits) == 1
    head = fitted.model_.classifier
    assert not any(torch.equal(value, head.weight) for value, _ in [*KEPT_HEADS._heads.values()])


def test_large_heads_are_not_kept(
    fits: list[int], tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_heads, "_MAX_NUMBERS", 2)
    first, again = (classifier(tiny_model).fit(TEXTS, LABELS) for _ in range(2))
    assert len(fits) == 2
    assert_equal(again, first)


def test_the_oldest_head_goes_first(
    fits: list[int], tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_heads, "_MAX_HEADS", 2)
    for seed in (0, 1, 2, 2, 1, 0):
        classifier(tiny_model, random_state=seed).fit(TEXTS, LABELS)
    assert len(fits) == 4
    assert len(KEPT_HEADS._heads) == 2


def heads_in_a_child(fit: Callable[[], Any]) -> int:
    fit()
    return len(KEPT_HEADS._heads)


def test_a_forked_process_keeps_heads_of_its_own(tiny_model: Path) -> None:
    classifier(tiny_model).fit(TEXTS, LABELS)
    with KEPT_HEADS._lock.lock:  # held by another thread in real life
        found = in_a_child(
            heads_in_a_child, lambda: classifier(tiny_model, random_state=1).fit(TEXTS, LABELS)
        )
    assert (found, len(KEPT_HEADS._heads)) == (2, 1)
