"""Fits, saves and searches that are killed at random moments: nothing is lost.

``examples/benchmarks/faults.py`` kills them; here it does so less often.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import pytest
from sklearn.model_selection import GridSearchCV, KFold
from support import ROOT
from support.jobs import TRAINED

from skbert._core.training.stepper import Stepper

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.job import Job


@pytest.fixture
def faults() -> Iterator[Any]:
    """The script, as a module; it counts the steps of training."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "examples" / "benchmarks")
        patch.setattr(Stepper, "step", Stepper.step)
        module = importlib.import_module("faults")
        module.count_steps()
        yield module


def assert_nothing_is_lost(tallies: dict[str, Any], n_kills: int) -> None:
    for kind, tally in tallies.items():
        assert tally.lost == tally.refused == 0, kind
        assert tally.identical == tally.runs, kind
    assert sum(tally.kills for tally in tallies.values()) >= n_kills


@pytest.mark.long  # a process for each kill
@pytest.mark.parametrize(("kind", "n_kills"), [("fits", 5), ("saves", 4), ("searches", 2)])
def test_a_few_kills_lose_nothing(faults: Any, kind: str, n_kills: int) -> None:
    assert_nothing_is_lost(faults.kill(n_kills, [kind], seed=1), n_kills)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", ["fits", "saves", "searches", "workers"])
def test_many_kills_lose_nothing(faults: Any, kind: str) -> None:
    n_kills = 2 if kind == "workers" else 60
    assert_nothing_is_lost(faults.kill(n_kills, [kind], seed=2), n_kills)


def test_what_is_lost_is_counted(faults: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fit whose weights depend on the process does not count as identical."""
    whole = faults.fingerprint
    monkeypatch.setattr(
        faults, "fingerprint", lambda *given: {**whole(*given), "weights": f"{faults.os.getpid()}"}
    )
    tallies = faults.kill(1, ["fits"], seed=0)
    assert sum(tally.lost for tally in tallies.values()) >= 1


# --- searches ------------------------------------------------------------------------------------


class StoppedError(Exception):
    """What ends a search in the middle."""


@pytest.mark.long
@pytest.mark.parametrize("job", TRAINED.values(), ids=TRAINED)
def test_a_search_that_was_stopped_trains_no_fit_twice(
    job: Job, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y, params = job.usual
    taken, stops = 0, [0]
    whole = Stepper.step

    def step(stepper: Any, chosen: Any) -> None:
        nonlocal taken
        if taken == stops[0]:
            stops.pop(0)
            raise StoppedError
        whole(stepper, chosen)
        taken += 1

    def search(folder: Path | None) -> tuple[Any, Any]:
        kept = {"checkpoint_dir": folder, "checkpoint_every": 1} if folder else {}
        estimator = job.make(tiny_model, **params, **kept)
        grid = {"learning_rate": [1e-4, 1e-3]}
        found = GridSearchCV(estimator, grid, cv=KFold(3), error_score="raise").fit(X, y)
        scores = [found.cv_results_[f"split{split}_test_score"].tolist() for split in range(3)]
        weights = found.best_estimator_.model_.state_dict()
        return scores, {name: weight.tolist() for name, weight in weights.items()}

    monkeypatch.setattr(Stepper, "step", step)
    stops[0] = -1
    want = search(None)
    n_steps, taken = taken, 0
    stops[:] = [0, 1, n_steps // 3, n_steps // 2, n_steps - 1, -1]
    for _ in range(5):
        with pytest.raises(StoppedError):
            search(tmp_path)
    assert search(tmp_path) == want
    assert taken == n_steps
    assert search(tmp_path) == want  # and a finished one is only read
    assert taken == n_steps
