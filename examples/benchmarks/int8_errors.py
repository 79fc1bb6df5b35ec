"""What products in int8 change: vectors of texts after each layer, and the scores of tasks.

The mean states of texts after every layer of MiniLM are compared with those in float32 by their
cosine, for short texts and for documents. Then one estimator is fitted for each task and predicts
the same test rows in float32, bfloat16 and int8.

    python examples/benchmarks/int8_errors.py
    python examples/benchmarks/int8_errors.py --rows 200 --tasks entities
"""

from __future__ import annotations

import argparse
from pathlib import Path

import contender
import numpy as np
import plain
import tasks
import workloads

from skbert import BertTransformer

PRECISIONS = ("float32", "bfloat16", "int8")
TASKS = ("intents", "entities", "spans")
N_LAYERS = 6  # of MiniLM


def main() -> None:
    """Print a table of layers and one of tasks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=tasks.DATA)
    parser.add_argument("--rows", type=int, default=2000, help="texts, and rows to fit on")
    parser.add_argument("--test-rows", type=int, default=2000)
    parser.add_argument("--tasks", nargs="*", default=TASKS, choices=tasks.TASKS)
    options = parser.parse_args()
    plain.be_quiet()
    rows = tasks.sample(
        tasks.load(tasks.TASKS["intents"], options.data, "test"), options.test_rows, seed=0
    )
    print("| layer | texts | mean cosine in bfloat16, int8 | least |\n|---|---|---|---|")
    for texts in ("short", "documents"):
        for line in layers(list(workloads.texts_of(rows, texts).first), texts):
            print(line, flush=True)
    print(f"\n| task | metric | {' | '.join(PRECISIONS)} |\n|---|---|{'---|' * len(PRECISIONS)}")
    for name in options.tasks:
        print(task_line(name, options), flush=True)


def layers(texts: list[str], kind: str) -> list[str]:
    """Write how near the mean states of texts are to float32's, after each layer: table rows."""
    lines = []
    for layer in range(1, N_LAYERS + 1):
        vectors = {}
        for precision in PRECISIONS:
            encoder = BertTransformer(
                plain.model_folder(),
                pooling="mean",
                layers=[layer],
                normalize=True,
                precision=precision,
            )
            vectors[precision] = encoder.fit(texts[:1]).transform(texts)
        cosines = [(vectors[name] * vectors["float32"]).sum(1) for name in PRECISIONS[1:]]
        means = ", ".join(f"{each.mean():.5f}" for each in cosines)
        least = ", ".join(f"{each.min():.5f}" for each in cosines)
        lines.append(f"| {layer} | {kind} | {means} | {least} |")
    return lines


def task_line(name: str, options: argparse.Namespace) -> str:
    """Fit one estimator, and write its scores on the test rows: a table row."""
    task = tasks.TASKS[name]
    train, test = (
        tasks.sample(tasks.load(task, options.data, part), n, seed=0)
        for part, n in (("train", options.rows), ("test", options.test_rows))
    )
    estimator = contender.build(task.kind, 0, max_length=task.recipe.max_length)
    estimator.fit(train.X, train.y)
    scores = []
    for precision in PRECISIONS:
        predicted = estimator.set_params(precision=precision).predict(test.X)
        scores.append(tasks.score(task, test.y, np.asarray(predicted, dtype=test.y.dtype)))
    return f"| {name} | {task.metric} | {' | '.join(f'{x:.4f}' for x in scores)} |"


if __name__ == "__main__":
    main()
