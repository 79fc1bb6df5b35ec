"""Training in several processes that torchrun starts: one model comes out, as from one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from skbert import BertChoiceRanker, BertClassifier, BertPretrainer, BertTokenTagger
from skbert._core.batches import collate
from skbert._core.runtime.distributed import ProcessGroup, local_rank, process_group
from skbert._core.training import stepper
from skbert.exceptions import TrainingError
from skbert.testing._samples import sample_of

EXACT = {"epochs": 2, "batch_size": 8, "device": "cpu", "precision": "float64", "random_state": 0}
CASES: dict[str, tuple[type, str, dict[str, Any]]] = {
    "classes": (BertClassifier, "classes", {"validation_fraction": 0.25}),
    "a step of one row": (BertClassifier, "classes", {"batch_size": 1, "epochs": 1}),
    "accumulated": (BertClassifier, "pairs", {"accumulate": 3, "batch_size": 2}),
    "weights": (BertClassifier, "labels", {"class_weight": "balanced"}),
    "tags": (BertTokenTagger, "tags", {"max_length": 16}),
    "choices": (BertChoiceRanker, "choices", {"batch_size": 3}),
    "words": (BertPretrainer, "classes", {}),
}
# Steps in which one process sums gradients of two micro-batches, and the other has one.
LOW = "low precision"
UNEVEN = {"precision": "bfloat16", "accumulate": 5, "batch_size": 1}  # steps of 3 + 2 and 2 + 1
CASES[LOW] = BertClassifier, "classes", UNEVEN


def fit(folder: str, name: str) -> tuple[Any, np.ndarray]:
    """A fit of that case, and all weights that came out."""
    kind, sample, params = CASES[name]
    rows = sample_of(sample, None, None)
    y = None if kind is BertPretrainer else rows.y
    fitted = kind(folder, **{**EXACT, **params}).fit(rows.X, y)
    return fitted, torch.cat([p.detach().flatten() for p in fitted.model_.parameters()]).numpy()


def run_as_one_of_many(still: str, lively: str, out: str) -> None:
    """What each process of torchrun does: all cases, then a fit with dropout and no seed."""
    group = process_group()
    assert group.size == 2
    for name in CASES:
        fitted, weights = fit(still, name)
        np.save(Path(out) / f"{name} {group.rank}.npy", weights)
        history = json.dumps(fitted.history_)
        (Path(out) / f"{name} {group.rank}.json").write_text(history)
    rows = sample_of("classes", None, None)
    seeds: list[int] = []

    def noted(*args: Any) -> Any:
        seeds.append(torch.initial_seed())
        return collate(*args)

    stepper.collate = noted
    free = BertClassifier(lively, **{**EXACT, "random_state": None}).fit(rows.X, rows.y)
    found = {"proba": free.predict_proba(rows.X).tolist(), "loss": free.history_[-1]["loss"]}
    (Path(out) / f"free {group.rank}.json").write_text(json.dumps({**found, "seeds": seeds}))


@pytest.fixture(scope="module")
def still(make_tiny_model: Any) -> Path:
    folder: Path = make_tiny_model(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    return folder


@pytest.fixture(scope="module")
def of_two(still: Path, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes wrote."""
    out = tmp_path_factory.mktemp("two")
    script = out / "script.py"
    script.write_text(
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "import test_distributed\n"
        f"test_distributed.run_as_one_of_many({str(still)!r}, {str(tiny_model)!r}, {str(out)!r})\n"
    )
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    done = subprocess.run(
        [sys.executable, *launch], capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return out


@pytest.mark.long  # torchrun
def test_processes_agree_in_low_precision(still: Path, of_two: Path) -> None:
    first, second = (np.load(of_two / f"{LOW} {rank}.npy") for rank in (0, 1))
    np.testing.assert_array_equal(first, second)
    np.testing.assert_allclose(first, fit(str(still), LOW)[1], atol=2e-3)


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in CASES if name != LOW])
def test_two_processes_learn_what_one_does(name: str, still: Path, of_two: Path) -> None:
    alone, weights = fit(str(still), name)
    first, second = (np.load(of_two / f"{name} {rank}.npy") for rank in (0, 1))
    np.testing.assert_array_equal(first, second)
    np.testing.assert_allclose(first, weights, atol=1e-9)
    history = json.loads((of_two / f"{name} 1.json").read_text())
    for theirs, own in zip(history, alone.history_, strict=True):
        shared = own.keys() - {"seconds"}
        assert {key: theirs[key] for key in shared} == pytest.approx(
            {key: own[key] for key in shared}
        )


@pytest.mark.long
def test_processes_agree_without_a_seed_and_with_dropout(of_two: Path) -> None:
    first, second = (json.loads((of_two / f"free {rank}.json").read_text()) for rank in (0, 1))
    assert first["proba"] == second["proba"]
    assert first["loss"] == second["loss"]
    assert not {*first["seeds"]} & {*second["seeds"]}  # other masks of dropout in each


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 16])
def test_shares_add_up_to_a_step(size: int, n: int) -> None:
    counted = np.zeros(n)
    for rank in range(size):
        mine, factor = ProcessGroup(rank, size).share(np.arange(n))
        assert len(mine) in (n // size, n // size + 1, 1)
        counted[mine] += factor
    np.testing.assert_allclose(counted, 1.0)


def test_a_group_of_gpus_alone_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skbert._core.runtime.distributed._is_launched", lambda: True)
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_backend", lambda: "nccl")
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 0)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 1)
    assert process_group() == ProcessGroup(0, 1)  # which sends nothing
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 2)
    with pytest.raises(TrainingError, match="cpu:gloo"):
        process_group()


def test_alone_unless_torchrun_started_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert process_group() == ProcessGroup(0, 1)
    monkeypatch.setenv("RANK", "1")  # some other launcher
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert process_group() == ProcessGroup(0, 1)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "some-run")
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert local_rank() == 3
    monkeypatch.setattr("multiprocessing.current_process", lambda: type("P", (), {"name": "Loky"}))
    assert process_group() == ProcessGroup(0, 1)  # a worker of one of torchrun's processes
