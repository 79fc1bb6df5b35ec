"""Sets hold the truth as often as asked, on real data and over many splits of its rows."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import ROOT

BENCHMARKS = ROOT / "examples" / "benchmarks"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script of the documented figures, under a name that no package has."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    spec = importlib.util.spec_from_file_location("coverage_of_sets", BENCHMARKS / "coverage.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", ["intents", "emotions"])
def test_coverage_over_200_splits(name: str, script: Any, shared_data: Path, minilm: Path) -> None:
    task = script.tasks.TASKS[name]
    few = script.tasks.sample(script.tasks.load(task, shared_data, "train"), 2000, 0)
    pool = script.tasks.load(task, shared_data, "test")
    classifier = script.Remembering(minilm, freeze="all", epochs=1, random_state=0)
    classifier.fit(few.X, few.y).predict(pool.X)
    for coverage, shares in script.parted(classifier, pool, 500, 200).items():
        assert np.mean([share.covered for share in shares]) == pytest.approx(coverage, abs=0.01)
