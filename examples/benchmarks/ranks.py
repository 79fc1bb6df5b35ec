"""What several processes send in a step of training, and how long they wait for it.

torchrun starts 1 to 8 processes with a thread each on this machine, and each fits the same
``BertClassifier`` of random weights; nothing but gloo's loopback connects them. Of each kind of
gradients the table says how many bytes a process hands over in a step, the time of a step, and how
much of it passes between the end of the backward pass and the last sum. That time includes waiting
for processes that are slower, which on a machine with few cores is most of it.

    python examples/benchmarks/ranks.py

takes four minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import machine
import numpy as np
import plain
import record
import torch
import transformers

from skbert import BertClassifier
from skbert._core.training.reducing import GradientReducer
from skbert._core.training.stepper import Stepper

MODELS = {"small": (4, 256), "MiniLM": (6, 384), "base": (12, 768)}  # layers, hidden size
VOCABULARY, WORDS_USED, WORDS_PER_ROW = 30_000, 3_000, 30
KINDS = [("float32", False), ("float32", True), ("bfloat16", False), ("bfloat16", True)]
BATCH, STEPS, WARM = 32, 8, 2  # rows of a step, steps of a fit, and those not counted


def main() -> None:
    """Start groups of processes one after another, and print the table."""
    options = _options()
    if options.worker is not None:
        work(Path(options.worker))
        return
    print(machine.headline(machine.describe()), flush=True)
    print("\n| model | processes | gradients | overlap | MB a step | ms a step | ms exposed |")
    print("|---|---|---|---|---|---|---|")
    found = []
    for model in options.models:
        with tempfile.TemporaryDirectory() as folder:
            save_model(Path(folder), *MODELS[model])
            for size in options.sizes:
                for row in launched(Path(folder), size):
                    found.append({"model": model, "processes": size, **row})
                    print(
                        f"| {model} | {size} | {row['precision']} | {row['overlap']} |"
                        f" {row['bytes'] / 1e6:.1f} | {1e3 * row['step']:.0f} |"
                        f" {1e3 * row['exposed']:.0f} |",
                        flush=True,
                    )
    record.write(options.out, {"rows": found})


def save_model(folder: Path, n_layers: int, hidden_size: int) -> None:
    """Save a BERT of random weights with a tokenizer of made-up words."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = {word: i for i, word in enumerate(special + words(VOCABULARY))}
    config = transformers.BertConfig(
        vocab_size=len(vocabulary), hidden_size=hidden_size, num_hidden_layers=n_layers,
        num_attention_heads=hidden_size // 64, intermediate_size=4 * hidden_size,
    )  # fmt: skip
    torch.manual_seed(0)
    transformers.BertModel(config).save_pretrained(folder)
    transformers.BertTokenizer(vocab=vocabulary).save_pretrained(folder)


def words(n: int) -> list[str]:
    """So many words."""
    return [f"word{i}" for i in range(n)]


def launched(folder: Path, size: int) -> list[dict[str, Any]]:
    """What the first of so many processes found."""
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={size}"]
    subprocess.run(  # noqa: S603 - this script itself
        [sys.executable, *launch, __file__, "--worker", str(folder)],
        check=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    found: list[dict[str, Any]] = json.loads((folder / "found.json").read_text())
    return found


def work(folder: Path) -> None:
    """Fit with each kind of gradients; the first process writes down what it found."""
    plain.be_quiet()
    rng, known = np.random.default_rng(0), np.array(words(WORDS_USED))
    X = [" ".join(rng.choice(known, WORDS_PER_ROW)) for _ in range(BATCH * STEPS)]
    y = [0, 1] * (len(X) // 2)
    found: list[dict[str, Any]] = []
    for precision, overlap in KINDS:
        with timed(overlap=overlap) as times:
            BertClassifier(
                str(folder), epochs=1, batch_size=BATCH, precision=precision, device="cpu",
                head_init="random", random_state=0,
            ).fit(X, y)  # fmt: skip
        medians = {name: float(np.median(each[WARM:])) for name, each in times.items() if each}
        kind = {"precision": precision, "overlap": "yes" if overlap else "no"}
        found.append({"bytes": 0, "exposed": 0.0, **medians, **kind})
    if os.environ["RANK"] == "0":
        (folder / "found.json").write_text(json.dumps(found))


@contextmanager
def timed(*, overlap: bool) -> Iterator[dict[str, list[float]]]:
    """Note the time of each step, and of what is done after its backward pass."""
    step, finish = Stepper.step, GradientReducer.finish
    times: dict[str, list[float]] = {"bytes": [], "step": [], "exposed": []}

    def timed_step(stepper: Stepper, indices: Any) -> None:
        began = time.perf_counter()
        step(stepper, indices)
        times["step"].append(time.perf_counter() - began)

    def timed_finish(reducer: GradientReducer, sums: torch.Tensor) -> None:
        began = time.perf_counter()
        finish(reducer, sums)
        times["exposed"].append(time.perf_counter() - began)
        times["bytes"].append(reducer.n_bytes)

    changes: list[tuple[Any, str, Any]] = [
        (Stepper, "step", timed_step), (GradientReducer, "finish", timed_finish),
        (GradientReducer, "overlaps", overlap),
    ]  # fmt: skip
    before = [getattr(owner, name) for owner, name, _ in changes]
    for owner, name, value in changes:
        setattr(owner, name, value)
    try:
        yield times
    finally:
        for (owner, name, _), value in zip(changes, before, strict=True):
            setattr(owner, name, value)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--models", nargs="+", default=["small", "MiniLM"], choices=MODELS)
    parser.add_argument("--sizes", nargs="+", type=int, default=[1, 2, 4, 8])
    parser.add_argument("--out", type=Path, help="file for the figures, as JSON")
    parser.add_argument("--worker", help="used by the script itself")
    return parser.parse_args()


if __name__ == "__main__":
    main()
