"""What further columns of a frame add to a text: accuracy by which columns a classifier reads.

Two frames are built of real data. ``pairs`` has only columns of its own: one sentence is the text,
the other a second field, and how related people find them is a number; y is the entailment.
``tickets`` are messages of ``intents`` with planted columns: an earlier message of the same
intent; one of ten teams, the right one in 80 % of the rows; and a number of days, whose mean
depends on the intent.

    python examples/benchmarks/frame.py
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import machine
import numpy as np
import pandas as pd
import record
import tasks
from plain import model_folder

from skbert import BertClassifier

N_TEAMS = 10
N_MEANS = 5  # different means of the days, one standard deviation apart


class Frame(NamedTuple):
    """A frame, its labels, and which of its columns are what."""

    X: pd.DataFrame
    y: np.ndarray
    text: str
    fields: list[str]
    features: list[str]

    def ways(self) -> dict[str, dict[str, Any]]:
        """The parameters that say what is read, by the name of the way."""
        fields = {name: name for name in self.fields}  # a list of two would be a pair
        beside = {"feature_columns": self.features}
        return {
            "text alone": {"text_columns": self.text},
            "with fields": {"text_columns": fields},
            "with feature columns": {"text_columns": self.text, **beside},
            "with both": {"text_columns": fields, **beside},
        }


def pairs(data: Path) -> Frame:
    """Pairs of sentences with how related they are; all columns are real."""
    rows = tasks.load(tasks.TASKS["pairs-class"], data, "train")
    related = tasks.load(tasks.TASKS["pairs-score"], data, "train").y
    X = pd.DataFrame({"premise": rows.first, "sentence": rows.second, "relatedness": related})
    return Frame(X, rows.y, "sentence", ["premise", "sentence"], ["relatedness"])


def tickets(data: Path) -> Frame:
    """Messages with an earlier message, a team and a number of days, which are planted."""
    rows = tasks.load(tasks.TASKS["intents"], data, "train")
    rng = np.random.default_rng(0)
    order = rng.permutation(len(rows))
    order = order[np.argsort(rows.y[order], kind="stable")]
    message, earlier = rows.take(order[::2]), rows.take(order[1::2])  # as many rows of each intent
    code = np.unique(message.y, return_inverse=True)[1]
    team = np.where(rng.random(len(message)) < 0.8, code, rng.integers(N_TEAMS, size=len(message)))
    X = pd.DataFrame({
        "earlier": earlier.first,
        "message": message.first,
        "team": [f"team {number % N_TEAMS}" for number in team],
        "days": code // N_TEAMS % N_MEANS + rng.normal(size=len(message)),
    })  # fmt: skip
    return Frame(X, message.y, "message", ["earlier", "message"], ["team", "days"])


def compare(frame: Frame, options: argparse.Namespace) -> Iterator[dict[str, object]]:
    """Yield one record for each seed and way."""
    for seed in options.seeds:
        order = np.random.default_rng(seed).permutation(len(frame.X))
        train, test = np.split(order[: options.rows + options.test_rows], [options.rows])
        for way, columns in frame.ways().items():
            classifier = BertClassifier(model_folder(), random_state=seed, **columns)
            classifier.fit(frame.X.iloc[train], frame.y[train])
            accuracy = classifier.score(frame.X.iloc[test], frame.y[test])
            yield {"columns": way, "seed": seed, "accuracy": accuracy}


def main() -> None:
    """Print a table for each frame."""
    options = _options()
    print(machine.headline(machine.describe()), flush=True)
    found: dict[str, list[dict[str, object]]] = {}
    for build in (pairs, tickets):
        name = build.__name__
        found[name] = [*compare(build(options.data), options)]
        by_way = pd.DataFrame(found[name]).groupby("columns", sort=False)["accuracy"]
        print(f"\n| {name} | accuracy | lowest to highest |\n|---|---|---|")
        for way, (mean, low, high) in by_way.agg(["mean", "min", "max"]).iterrows():
            print(f"| {way} | {mean:.3f} | {low:.3f} to {high:.3f} |", flush=True)
    record.write(options.out, found)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=tasks.DATA, help="folder of the data sets")
    parser.add_argument("--rows", type=int, default=1000, help="rows of a fit")
    parser.add_argument("--test-rows", type=int, default=1000, help="rows to test on")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--out", type=Path, help="write the result to this JSON file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
