"""Check whether two checkouts of skbert give bit-identical weights and predictions.

Each estimator is fitted on bundled data with a fixed seed, in one thread, once with this checkout
and once with the other one; the hashes of weights and predictions are printed side by side. Both
checkouts need their kernels built, or neither.

    python examples/benchmarks/same_results.py --other ../skbert-before
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import plain
import torch

import skbert
from skbert import datasets, inspection

ROWS = 32
METHODS = ("predict_proba", "predict", "transform", "score")
SETTINGS: dict[str, Any] = {"epochs": 1, "batch_size": 8, "random_state": 0, "device": "cpu"}


def main() -> None:
    """Print the table, and exit with 1 where results differ; ``--alone`` prints this side's."""
    parser = argparse.ArgumentParser(description=__doc__)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--other", type=Path, help="the other checkout")
    which.add_argument("--alone", action="store_true", help="hashes of this checkout only")
    options = parser.parse_args()
    if options.alone:
        plain.be_quiet()
        torch.set_num_threads(1)
        for name, weights, outputs in hashes():
            print(name, weights, outputs, flush=True)
        return
    here = Path(__file__).resolve().parents[2]
    ours, theirs = lines_of(here), lines_of(options.other.resolve())
    for line, other in zip(ours, theirs, strict=True):
        print(line, "same" if line == other else f"differs from {other}")
    sys.exit(ours != theirs)


def lines_of(checkout: Path) -> list[str]:
    """The lines that this script prints with the package of a checkout."""
    run = subprocess.run(  # noqa: S603 - this file, by this Python
        [sys.executable, __file__, "--alone"],
        env={**os.environ, "PYTHONPATH": str(checkout)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return run.stdout.splitlines()


def hashes() -> Iterator[tuple[str, str, str]]:
    """Name of a case, hash of the weights that were learned, hash of the predictions."""
    for name, fitted, outputs in results():
        weights = fitted.model_.state_dict()
        yield (
            name,
            digest(weights[key].numpy().tobytes() for key in sorted(weights)),
            digest(repr(np.asarray(row).tolist()).encode() for row in outputs.ravel()),
        )


def results() -> Iterator[tuple[str, Any, Any]]:
    """Name of a case, fitted estimator, and an array of its outputs."""
    for name, fitted, X in cases():
        method = next(m for m in METHODS if hasattr(fitted, m))
        yield name, fitted, np.asarray(getattr(fitted, method)(X), dtype=object)
    X, y = (part[:ROWS] for part in datasets.load_intents(return_X_y=True))
    fitted = skbert.BertClassifier(plain.model_folder(), warm_start=True, **SETTINGS).fit(X, y)
    yield "warm_start", fitted, fitted.fit(X[::-1], y[::-1]).predict_proba(X)
    yield "partial_fit", fitted, fitted.partial_fit(X, ["new", *y[1:]]).predict_proba(X)
    importance = inspection.head_importance(fitted, X, y)
    yield "head_importance", fitted, importance
    weights = [row.weights.tolist() for row in inspection.attentions(fitted, X)]
    yield "attentions", fitted, np.array([weights], dtype=object)
    pruned = inspection.prune_heads(fitted, fraction=0.5, importance=importance)
    yield "prune_heads", pruned, pruned.predict_proba(X)


def digest(parts: Iterable[bytes]) -> str:
    """Short hash of some parts of bytes, one after another."""
    whole = hashlib.sha256()
    for part in parts:
        whole.update(part)
    return whole.hexdigest()[:16]


def cases() -> Iterator[tuple[str, Any, Any]]:
    """Name, fitted estimator and X of everything that is compared."""
    intents, labels = datasets.load_intents(return_X_y=True)
    several = pd.get_dummies(labels).assign(question=intents.str.contains("?", regex=False))
    pairs = pd.DataFrame({"first": intents, "second": intents[::-1].to_numpy()})
    plan: list[tuple[str, dict[str, Any], Any, Any]] = [
        ("BertClassifier", {}, intents, labels),
        ("BertClassifier", {"validation_fraction": 0.4, "calibrate": True}, intents, labels),
        ("BertClassifier", {"freeze": 1, "accumulate": 2}, pairs, labels),
        (
            "BertClassifier",
            {"long_text": "windows", "max_length": 12},
            intents,
            several.astype(int),
        ),
        ("BertRegressor", {}, *datasets.load_ratings(return_X_y=True)),
        ("BertTokenTagger", {}, *datasets.load_entities(return_X_y=True)),
        ("BertSpanExtractor", {}, *datasets.load_questions(return_X_y=True)),
        ("BertChoiceRanker", {}, *datasets.load_choices(return_X_y=True)),
        ("BertTransformer", {}, intents, None),
        ("BertPretrainer", {}, intents, None),
    ]
    planned = {name for name, *_ in plan}
    for name in skbert.__all__:
        if name.startswith("Bert") and name not in planned:
            sys.exit(f"Nothing is compared of {name}: add a row to the plan.")
    for name, parameters, X, y in plan:
        for precision in ("float32", "bfloat16"):
            settings = {"model": plain.model_folder(), "precision": precision, **parameters}
            if name != "BertTransformer":
                settings |= SETTINGS
            rows = X[:ROWS]
            fitted = getattr(skbert, name)(**settings).fit(rows, None if y is None else y[:ROWS])
            yield "-".join([name, *parameters, precision]), fitted, rows


if __name__ == "__main__":
    main()
