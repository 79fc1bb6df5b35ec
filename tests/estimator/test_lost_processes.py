"""A process of several ends or hangs: the others end with an error, or torchrun restarts all."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
import torch

if TYPE_CHECKING:
    from pathlib import Path

OWN = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
pytestmark = pytest.mark.slow  # processes that import torch

# What each process does: it fits, and one sends itself a signal before a step.
SCRIPT = """
import datetime, os, signal, sys
import torch
from torch.distributed import distributed_c10d
from skbert import BertClassifier
from skbert._core.runtime import distributed
from skbert._core.training.stepper import Stepper

model, out, folder, rank, number = sys.argv[1:]
distributed.process_group()
distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=10))
whole, n_left = Stepper.step, 4

def step(*args):
    global n_left
    n_left -= 1
    is_first = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
    if n_left == 0 and is_first and os.environ["RANK"] == rank:
        os.kill(os.getpid(), int(number))
    whole(*args)

Stepper.step = step
texts = ["good book", "bad book", "nice room", "awful room", "good film", "bad film"]
own = {"checkpoint_dir": folder, "checkpoint_every": 1} if folder else {}
params = dict(epochs=4, batch_size=2, device="cpu", random_state=0, **own)
fitted = BertClassifier(model, **params).fit(texts, [1, 0, 1, 0, 1, 0])
torch.save(fitted.model_.state_dict(), f"{out}{os.environ['RANK']}")
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("localhost", 0))
        port: int = found.getsockname()[1]
        return port


def start(script: Path, size: int, *arguments: object) -> list[Any]:
    """Processes as torchrun starts them, without torchrun to end them."""
    common = {**OWN, "MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port())}
    common |= {"WORLD_SIZE": str(size), "TORCHELASTIC_RUN_ID": "run"}
    command = [sys.executable, str(script), *map(str, arguments)]
    return [
        subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True,
            env={**os.environ, **common, "RANK": str(rank), "LOCAL_RANK": str(rank),
                 "LOCAL_WORLD_SIZE": str(size)},
        )
        for rank in range(size)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("number", "within"), [(signal.SIGKILL, 30), (signal.SIGSTOP, 60)], ids=["ends", "hangs"]
)
def test_the_others_end_with_an_error_that_says_what_to_do(
    tiny_model: Path, script: Path, tmp_path: Path, number: int, within: float
) -> None:
    processes = start(script, 3, tiny_model, tmp_path / "out", "", 2, int(number))
    *others, lost = processes
    try:
        if number == signal.SIGKILL:
            assert lost.wait(240) == -signal.SIGKILL
        else:
            os.waitpid(lost.pid, os.WUNTRACED)
        began = time.monotonic()
        errors = [(each.wait(240), each.stderr.read())[1] for each in others]
        assert time.monotonic() - began < within
    finally:
        for each in processes:
            each.kill()
            each.communicate()
    assert [each.returncode for each in others] == [1, 1]
    for rank, error in enumerate(errors):
        said = rf"TrainingError: Process {rank} of 3, .* waits in vain .*--max-restarts=3"
        assert re.search(said, error), error


def test_restarts_of_torchrun_go_on(tiny_model: Path, script: Path, tmp_path: Path) -> None:
    def run(out: str, folder: Path | str, rank: int) -> str:
        launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        launch += ["--max-restarts=1", "--monitor-interval=0.1", str(script), str(tiny_model)]
        arguments = [str(tmp_path / out), str(folder), str(rank), str(int(signal.SIGKILL))]
        done = subprocess.run(
            [sys.executable, *launch, *arguments], capture_output=True, text=True, check=False,
            env={**os.environ, **OWN},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stderr

    run("whole", "", 2)  # nobody is killed
    assert "exitcode: -9" in run("restarted", tmp_path / "fits", 1)
    expected = torch.load(tmp_path / "whole0")
    for rank in (0, 1):
        weights = torch.load(tmp_path / f"restarted{rank}")
        assert all(torch.equal(weight, weights[name]) for name, weight in expected.items())
    assert not [*(tmp_path / "fits").iterdir()]
