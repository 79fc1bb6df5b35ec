"""Do soft labels of larger teachers help a small student? Accuracy on intents, by what it learns.

The teachers are fits of all-MiniLM-L6-v2, which has six layers, on 16 labelled rows of each class.
The student has the first two of these layers. It learns from the same rows with their labels or
with what one teacher or the mean of all says of them, and from other rows, whose labels are not
read, with the best label of the teachers or with their probabilities. All students of a seed see
as many rows in all: with fewer rows they make more passes. With its defaults it takes some ten
minutes of a processor.

    python examples/benchmarks/soft_labels.py
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import machine
import numpy as np
import pandas as pd
import tasks
from tasks import Rows

from skbert import BertClassifier


def small_encoder(n_layers: int, folder: Path) -> Path:
    """Write the default encoder with its first layers only."""
    smallest = BertClassifier(epochs=1, freeze="all", head_init="random", random_state=0)
    fitted = smallest.fit(["yes", "no"], ["yes", "no"])
    model = fitted.model_
    model.bert.encoder.layer = model.bert.encoder.layer[:n_layers]
    model.config.num_hidden_layers = n_layers
    model.save_pretrained(folder)
    fitted.tokenizer_.save_pretrained(folder)
    return folder


def teach(
    labelled: Rows, texts: list[str], seed: int, n_teachers: int
) -> tuple[list[np.ndarray], np.ndarray]:
    """The probabilities of each teacher for some texts, and the classes of their columns."""
    teachers = [
        BertClassifier(random_state=seed * n_teachers + turn).fit(labelled.first, labelled.y)
        for turn in range(n_teachers)
    ]
    return [each.predict_proba(texts) for each in teachers], teachers[0].classes_


def lessons(
    labelled: Rows, others: Rows, test: Rows, seed: int, n_teachers: int
) -> Iterator[tuple[str, list[str], Any, dict[str, Any]]]:
    """What students learn from: a name, texts, y and what else ``fit`` is called with."""
    texts, n = [*labelled.first, *others.first], len(labelled)
    opinions, classes = teach(labelled, [*texts, *test.first], seed, n_teachers)
    mean = np.mean(opinions, axis=0)
    for name, scores in (("one teacher", opinions[0]), ("mean of teachers", mean)):
        right = (classes[scores[len(texts) :].argmax(axis=1)] == test.y).mean()
        print(f"  seed {seed}: {name} {right:.4f}", flush=True)
    soft = {"classes": classes}
    best = classes[mean[n : len(texts)].argmax(axis=1)]
    yield "labels", labelled.first, labelled.y, {}
    yield "soft labels of one teacher", labelled.first, opinions[0][:n], soft
    yield "soft labels of all teachers", labelled.first, mean[:n], soft
    yield "labels, and best labels of other rows", texts, [*labelled.y, *best], {}
    yield "soft labels of all rows", texts, mean[: len(texts)], soft


def compare(options: argparse.Namespace, encoder: Path, seed: int) -> Iterator[dict[str, object]]:
    """One record for each lesson of a seed."""
    task = tasks.TASKS["intents"]
    everything = tasks.load(task, options.data, "train")
    test = tasks.load(task, options.data, "test")
    labelled = tasks.sample_per_class(everything, options.rows_per_class, seed)
    taken = {*labelled.first}
    rest = [row for row, text in enumerate(everything.first) if text not in taken]
    drawn = np.random.default_rng(seed).permutation(rest)[: options.others]
    others = everything.take(drawn)
    longest = len(labelled) + len(others)
    for name, texts, y, named in lessons(labelled, others, test, seed, options.teachers):
        epochs = round(options.passes * longest / len(texts))
        student = BertClassifier(encoder, pooling="mean", epochs=epochs, random_state=seed)
        accuracy = student.fit(texts, y, **named).score(test.first, test.y)
        print(f"  seed {seed}: {name} {accuracy:.4f}", flush=True)
        yield {"learned from": name, "rows": len(texts), "passes": epochs, "seed": seed,
               "accuracy": accuracy}  # fmt: skip


def main() -> None:
    """Fit teachers and students for each seed, and print the mean accuracies."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=tasks.DATA, help="folder of the data sets")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--rows-per-class", type=int, default=16, help="rows with labels")
    parser.add_argument("--others", type=int, default=3000, help="rows without labels")
    parser.add_argument("--teachers", type=int, default=3)
    parser.add_argument("--passes", type=int, default=3, help="over all rows")
    parser.add_argument("--layers", type=int, default=2, help="of the student")
    options = parser.parse_args()
    print(machine.headline(machine.describe()), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        encoder = small_encoder(options.layers, Path(folder))
        records = [record for seed in options.seeds for record in compare(options, encoder, seed)]
    table = pd.DataFrame(records).groupby(["learned from", "rows", "passes"], sort=False)
    print(table["accuracy"].agg(["mean", "min", "max"]).round(4).to_string())


if __name__ == "__main__":
    main()
