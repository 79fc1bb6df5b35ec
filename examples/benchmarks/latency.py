"""How long one text takes, and how long an import does.

One message at a time through a fitted ``BertTransformer`` and ``BertClassifier``,
sentence-transformers and transformers' own pipeline for features, in turns; and
``import skbert``, ``import sentence_transformers`` in fresh processes.

    python examples/benchmarks/latency.py
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable

import machine
import numpy as np
import plain
from sentence_transformers import SentenceTransformer
from transformers import pipeline

from skbert import BertClassifier, BertTransformer

TEXT = "Where is the parcel that I ordered last week?"


def main() -> None:
    """Time and print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=200)
    options = parser.parse_args()
    plain.be_quiet()
    print(machine.headline(machine.describe()), flush=True)
    print("\n| one text | median ms | times sentence-transformers |\n|---|---|---|")
    _print(_one_text(options.repeats), "sentence-transformers")
    print("\n| import of | median ms | times sentence_transformers |\n|---|---|---|")
    names = ("skbert", "torch", "sentence_transformers")
    _print({name: [_import(name) for _ in range(5)] for name in names}, "sentence_transformers")


def _one_text(repeats: int) -> dict[str, list[float]]:
    folder = plain.model_folder()
    peer = SentenceTransformer(folder)
    features = pipeline("feature-extraction", folder, device="cpu")
    embedder = BertTransformer(folder).fit([TEXT])
    classifier = BertClassifier(folder, epochs=1).fit([TEXT, "Cancel it."] * 4, [0, 1] * 4)
    calls: dict[str, Callable[[], object]] = {
        "sentence-transformers": lambda: peer.encode([TEXT]),
        "transformers pipeline": lambda: features([TEXT]),
        "BertTransformer.transform": lambda: embedder.transform([TEXT]),
        "BertClassifier.predict": lambda: classifier.predict([TEXT]),
    }
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(repeats + 10):
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            if turn >= 10:  # the first calls warm up
                taken[name].append(time.perf_counter() - began)
    return taken


def _import(name: str) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", f"import {name}"], check=True)  # noqa: S603
    return time.perf_counter() - began


def _print(taken: dict[str, list[float]], peer: str) -> None:
    for name, own in taken.items():
        ratio = np.median(taken[peer]) / np.median(own)
        print(f"| {name} | {1000 * np.median(own):.1f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
