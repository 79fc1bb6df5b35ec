"""What products in int8 change: vectors of texts after each layer, and the scores of tasks.

The mean states of texts after every layer of MiniLM are compared with those in float32 by their
cosine, for short texts and for documents. Then an estimator is fitted for each task and predicts
the same test rows in float32, bfloat16 and int8, for each of several seeds. The scores are means,
and the last column is the difference between int8 and float32, with its standard error.

    python examples/benchmarks/int8_errors.py
    python examples/benchmarks/int8_errors.py --texts --rows 4000 --seeds 5
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
TEXTS = ("short", "documents")
N_LAYERS = 6  # of MiniLM


def main() -> None:
    """Print a table of layers and one of tasks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=tasks.DATA)
    parser.add_argument("--rows", type=int, default=2000, help="texts, and rows to fit on")
    parser.add_argument("--test-rows", type=int, default=2000)
    parser.add_argument("--texts", nargs="*", default=TEXTS, choices=TEXTS, help="for the layers")
    parser.add_argument("--tasks", nargs="*", default=TASKS, choices=tasks.TASKS)
    parser.add_argument("--seeds", type=int, default=1, help="fits for each task")
    options = parser.parse_args()
    plain.be_quiet()
    rows = tasks.sample(
        tasks.load(tasks.TASKS["intents"], options.data, "test"), options.test_rows, seed=0
    )
    if options.texts:
        print("| layer | texts | mean cosine in bfloat16, int8 | least |\n|---|---|---|---|")
    for texts in options.texts:
        for line in layers(list(workloads.texts_of(rows, texts).first), texts):
            print(line, flush=True)
    columns = ("task", "metric", *PRECISIONS, "int8 - float32")
    print(f"\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
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
    """Fit an estimator with each seed, and write the mean scores on the test rows: a table row."""
    task = tasks.TASKS[name]
    train, test = (
        tasks.sample(tasks.load(task, options.data, part), n, seed=0)
        for part, n in (("train", options.rows), ("test", options.test_rows))
    )
    scores = np.array([scores_of(task, train, test, seed) for seed in range(options.seeds)])
    difference = scores[:, PRECISIONS.index("int8")] - scores[:, PRECISIONS.index("float32")]
    shown = [f"{score:.4f}" for score in scores.mean(0)] + [f"{difference.mean():+.4f}"]
    if options.seeds > 1:
        shown[-1] += f" ± {difference.std(ddof=1) / np.sqrt(options.seeds):.4f}"
    return f"| {name} | {task.metric} | {' | '.join(shown)} |"


def scores_of(task: tasks.Task, train: tasks.Rows, test: tasks.Rows, seed: int) -> list[float]:
    """Fit one estimator, and return its scores on the test rows in each precision."""
    estimator = contender.build(task.kind, seed, max_length=task.recipe.max_length)
    estimator.fit(train.X, train.y)
    scores = []
    for precision in PRECISIONS:
        predicted = estimator.set_params(precision=precision).predict(test.X)
        scores.append(tasks.score(task, test.y, np.asarray(predicted, dtype=test.y.dtype)))
    return scores


if __name__ == "__main__":
    main()
