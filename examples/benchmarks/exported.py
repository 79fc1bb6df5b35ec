"""Exported folders beside their estimators: agreement, speed, and the start of a process.

    python examples/benchmarks/exported.py
    python examples/benchmarks/exported.py --rows 600 --test-rows 300 --tasks intents vectors

An estimator is fitted for each task and exported in every format; ``vectors`` are those of a
transformer of the texts of ``intents``. Each predicts the test rows in turns, on one thread, timed
by the processor time that it takes. Predictions are compared with those of the estimator in
float32: labels by the share that is equal, numbers by R², vectors by their mean cosine; and the
scores behind them by their largest difference. With ``--start``, fresh processes open the
classifier and predict one text: seconds by the clock, and memory at its peak.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import contender
import machine
import numpy as np
import plain
import tasks
import torch

import skbert.runtime
from skbert import BertTransformer
from skbert.exceptions import ModelError

STARTS = 5
# In KB; the rusage of a process counts what its parent had.
PEAK = "print(open('/proc/self/status').read().partition('VmHWM:')[2].split()[0])"
FORMATS = tuple(product(("onnx", "openvino"), ("float32", "int8")))
# By kind of target: the method that predicts, and the one whose scores are compared.
METHODS = {
    "vectors": ("transform", "transform"),
    "regression": ("predict", "predict"),
    "question_answering": ("predict", "predict_answers"),
}
SCORES = {"predict_answers": "score"}  # the column of a frame

Predict = Callable[[str, list[Any]], Any]  # from the name of a method and rows


def main() -> None:
    """Print a table with a line for each task and candidate."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=tasks.DATA)
    parser.add_argument("--tasks", nargs="*", default=(*tasks.TASKS, "vectors"))
    parser.add_argument("--rows", type=int, help="rows to fit on; all by default")
    parser.add_argument("--test-rows", type=int, help="rows to predict; all by default")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--start", action="store_true", help="also time fresh processes")
    options = parser.parse_args()
    plain.be_quiet()
    torch.set_num_threads(1)
    print(machine.headline(machine.describe()))
    print("| task | test rows | | agreement | largest difference | rows/s |")
    print("|---|---|---|---|---|---|", flush=True)
    for name in options.tasks:
        with tempfile.TemporaryDirectory() as scratch:
            _compare(name, options, Path(scratch))


def _compare(name: str, options: argparse.Namespace, scratch: Path) -> None:
    """Print the lines of a task."""
    task = tasks.TASKS["intents" if name == "vectors" else name]
    kind = "vectors" if name == "vectors" else task.kind
    train, test = (
        tasks.sample(tasks.load(task, options.data, part), n, seed=0)
        for part, n in (("train", options.rows), ("test", options.test_rows))
    )
    estimator = _fitted(kind, task, train)
    candidates: dict[str, Predict] = {
        f"estimator, {precision}": _of_estimator(estimator, precision)
        for precision in ("float32", "bfloat16")
    }
    some = train.take(np.arange(0, len(train), max(1, len(train) // 500))).X
    for engine, precision in FORMATS:
        folder = scratch / f"{engine} {precision}"
        estimator.set_params(precision="float32")
        try:
            estimator.export(folder, format=engine, precision=precision, X=some)
        except ModelError as error:
            print(f"| {name} | | {engine}, {precision} | {error} | | |", flush=True)
            continue
        candidates[f"{engine}, {precision}"] = _of(skbert.runtime.load(folder, threads=1))
    _print_lines(name, kind, test.X, candidates, options.turns)
    if options.start and name == "intents":
        _start(estimator, scratch)


def _fitted(kind: str, task: tasks.Task, train: tasks.Rows) -> Any:
    if kind == "vectors":
        return BertTransformer(plain.model_folder(), normalize=True).fit(train.X[:1])
    estimator, _ = contender.fit(train, task.kind, 0, max_length=task.recipe.max_length)
    return estimator


def _of(model: Any) -> Predict:
    return lambda method, X: getattr(model, method)(X)


def _of_estimator(estimator: Any, precision: str) -> Predict:
    return lambda method, X: getattr(estimator.set_params(precision=precision), method)(X)


def _print_lines(
    name: str, kind: str, X: list[Any], candidates: dict[str, Predict], turns: int
) -> None:
    method, scores = METHODS.get(kind, ("predict", "predict_proba"))
    seconds, results = dict.fromkeys(candidates, np.inf), {}
    for _, (candidate, predict) in product(range(turns), candidates.items()):
        begin = time.process_time()
        results[candidate] = predict(method, X)
        seconds[candidate] = min(seconds[candidate], time.process_time() - begin)
    found = {
        candidate: results[candidate] if scores == method else predict(scores, X)
        for candidate, predict in candidates.items()
    }
    own = next(iter(candidates))
    for candidate in candidates:
        agreement = _agreement(kind, results[own], results[candidate])
        apart = _apart(_numbers(found[own], scores), _numbers(found[candidate], scores))
        speed = len(X) / seconds[candidate]
        line = f"{agreement} | {apart:.1e} | {speed:,.0f}"
        print(f"| {name} | {len(X)} | {candidate} | {line} |", flush=True)


def _agreement(kind: str, own: Any, theirs: Any) -> str:
    """How far predictions agree, by the measure of the kind."""
    if kind == "vectors":
        return f"cosine {(own * theirs).sum(axis=1).mean():.4f}"
    if kind == "regression":
        return f"R² {1 - ((own - theirs) ** 2).mean() / own.var():.4f}"
    pairs = zip(own, theirs, strict=True)
    equal = [np.ravel(np.asarray(a, object) == np.asarray(b, object)) for a, b in pairs]
    same = np.concatenate(equal)
    return f"{same.mean():.4f}, {(~same).sum()} of {len(same)} differ"


def _numbers(scores: Any, method: str) -> np.ndarray:
    """The scores of each row, of an answer its best one, one after another."""
    if method in SCORES:
        best = scores[scores["rank"] == 1]
        return best[SCORES[method]].to_numpy()
    return np.concatenate([np.ravel(row) for row in scores])


def _apart(own: np.ndarray, theirs: np.ndarray) -> float:
    return float(np.nanmax(np.abs(own - theirs)))


def _start(classifier: Any, scratch: Path) -> None:
    """Print the seconds to the first prediction of a fresh process, and its memory."""
    classifier.save(scratch / "estimator")
    names = [name for name in ("estimator", *map(" ".join, FORMATS)) if (scratch / name).exists()]
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


if __name__ == "__main__":
    main()
