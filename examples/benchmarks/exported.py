"""Exported folders beside their estimators: speed, agreement, and the start of a process.

    python examples/benchmarks/exported.py [--data ../shared/data] [--rows 1500]

A classifier and a transformer of the default model read the rows of ``intents``. All are timed in
turns, on one thread, by the processor time that they take. Then fresh processes open the
classifier and predict one text: seconds from their start, by the clock, and memory at its peak.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

import skbert.runtime
from skbert import BertClassifier, BertTransformer

TURNS, STARTS = 4, 5
# In KB; the rusage of a process counts what its parent had.
PEAK = "print(open('/proc/self/status').read().partition('VmHWM:')[2].split()[0])"
FORMATS = tuple(product(("onnx", "openvino"), ("float32", "int8")))

Predict = Callable[[list[str]], Any]


def main() -> None:
    """Print a table for each of the two estimators."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--rows", type=int, default=1500)
    options = parser.parse_args()
    torch.set_num_threads(1)
    X, y = _read(options.data / "intents" / "train.csv")
    texts, _ = _read(options.data / "intents" / "test.csv")
    texts = texts[:: max(1, len(texts) // options.rows)]
    classifier = BertClassifier(epochs=1, random_state=0).fit(X, y)
    transformer = BertTransformer(normalize=True).fit(X[:1])
    for estimator, method in ((classifier, "predict"), (transformer, "transform")):
        print(f"\n{type(estimator).__name__}.{method}, {len(texts)} rows, one thread")
        with tempfile.TemporaryDirectory() as scratch:
            _compare(estimator, method, X[::30], texts, Path(scratch))
            if estimator is classifier:
                _start(classifier, Path(scratch))


def _read(path: Path) -> tuple[list[str], list[str]]:
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return [row["text"] for row in rows], [row["label"] for row in rows]


def _compare(estimator: Any, method: str, X: list[str], texts: list[str], scratch: Path) -> None:
    """Print rows per second and the agreement of each with the estimator in float32."""
    candidates: dict[str, Predict] = {}
    for precision in ("float32", "auto"):
        candidates[f"estimator {precision}"] = _of_estimator(estimator, method, precision)
    for engine, precision in FORMATS:
        folder = scratch / f"{engine} {precision}"
        estimator.export(folder, format=engine, precision=precision, X=X)
        candidates[folder.name] = getattr(skbert.runtime.load(folder, threads=1), method)
    seconds = dict.fromkeys(candidates, np.inf)
    results = {}
    for _, (name, predict) in product(range(TURNS), candidates.items()):
        begin = time.process_time()
        results[name] = predict(texts)
        seconds[name] = min(seconds[name], time.process_time() - begin)
    own = results["estimator float32"]
    for name, theirs in results.items():
        same = np.mean(own == theirs) if own.ndim == 1 else (own * theirs).sum(axis=1).mean()
        print(f"{name:20} {len(texts) / seconds[name]:8.0f} rows/s   {same:.4f}")


def _start(classifier: Any, scratch: Path) -> None:
    """Print the seconds to the first prediction of a fresh process, and its memory."""
    classifier.save(scratch / "estimator")
    names = ["estimator", *(" ".join(each) for each in FORMATS)]
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for _, name in product(range(STARTS), names):
        module = "skbert" if name == "estimator" else "skbert.runtime"
        folder = str(scratch / name)
        code = f"import {module}; {module}.load({folder!r}).predict(['Where is it?']); {PEAK}"
        begin = time.perf_counter()
        done = subprocess.run(  # noqa: S603 - starts this Python
            [sys.executable, "-c", code], check=True, capture_output=True, text=True
        )
        found[name].append((time.perf_counter() - begin, float(done.stdout) / 1024))
    print("\nfrom the start of a process to its first prediction")
    for name, each in found.items():
        seconds, megabytes = np.median(each, axis=0)
        print(f"{name:20} {seconds:8.2f} s {megabytes:8.0f} MB")


def _of_estimator(estimator: Any, method: str, precision: str) -> Predict:
    def predict(texts: list[str]) -> Any:
        return getattr(estimator.set_params(precision=precision), method)(texts)

    return predict


if __name__ == "__main__":
    main()
