"""How often conformal sets hold the truth, beside how often they should.

A classifier whose encoder is frozen is fitted once on some rows of ``intents`` (150 classes), and
one on rows of ``emotions`` (28 labels, of which a row has any number). Their validation and test
rows are then parted at random, many times: ``conformalize`` measures on one part, and
``predict_set`` predicts the other. A few fits of their own show the same with rows that ``fit``
holds out, on which it chose its weights and its temperature, too; they predict other training
rows, since those of the test file may be of another kind. These rows are held out class by class,
or row by row, as ``groups`` of one row each.

    python examples/benchmarks/coverage.py
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

import machine
import numpy as np
import record
import tasks
from tasks import Rows

from skbert import BertClassifier

COVERAGES = (0.8, 0.9, 0.95)
DATA = ("intents", "emotions")


class Share(NamedTuple):
    """Sets of one coverage: how many hold the truth, and how many labels they have."""

    covered: float
    size: float


class Remembering(BertClassifier):
    """A classifier that computes the outputs of a text once."""

    def _outputs(self, fitted, rows):
        known = vars(self).setdefault("known", {})
        if rows.first[0] not in known:
            outputs = super()._outputs(fitted, rows)
            known.update(zip(rows.first, outputs, strict=True))
        return np.stack([known[text] for text in rows.first])


def parted(
    classifier: BertClassifier, pool: Rows, n_measured: int, n_splits: int
) -> dict[float, list[Share]]:
    """Measure on some rows of a pool and predict the others, many times.

    Parameters
    ----------
    classifier : BertClassifier
        Fitted on other rows. Its scores are those of the last split afterwards.
    pool : Rows
        Rows with their labels.
    n_measured : int
        Number of rows to measure on.
    n_splits : int
        Number of times.

    Returns
    -------
    dict of float to list of Share
        By coverage, one share per split.
    """
    shares: dict[float, list[Share]] = {coverage: [] for coverage in COVERAGES}
    for seed in range(n_splits):
        order = np.random.default_rng(seed).permutation(len(pool))
        measured, rest = pool.take(order[:n_measured]), pool.take(order[n_measured:])
        classifier.conformalize(measured.X, measured.y)
        for coverage, found in shares.items():
            found.append(share_of(classifier.predict_set(rest.X, coverage), rest.y))
    return shares


def share_of(sets: np.ndarray, y: np.ndarray) -> Share:
    """The share of rows whose set holds the label, or all labels, and the mean size of sets."""
    if y.ndim == 1:
        covered = [label in labels for label, labels in zip(y.tolist(), sets, strict=True)]
    else:
        rows = zip(y, sets, strict=True)
        covered = [{*np.flatnonzero(row).tolist()} <= {*labels} for row, labels in rows]
    return Share(float(np.mean(covered)), float(np.mean([len(labels) for labels in sets])))


def main() -> None:
    """Print a table for each data set."""
    options = _options()
    print(machine.headline(machine.describe()), flush=True)
    found = {name: _measure(name, options) for name in DATA}
    record.write(options.out, found)


def _measure(name: str, options: argparse.Namespace) -> dict[str, dict[float, list[Share]]]:
    """The shares of one data set, printed."""
    parts = [tasks.load(tasks.TASKS[name], options.data, part)
             for part in ("train", "validation", "test")]  # fmt: skip
    train, others = parts[0], parts[1:]
    pool = Rows([text for part in others for text in part.first], None,
                np.concatenate([part.y for part in others]))  # fmt: skip
    settings = {"freeze": "all", "epochs": 1}
    few = tasks.sample(train, options.rows, 0)
    found: dict[str, dict[float, list[Share]]] = {}
    if options.splits:
        classifier = Remembering(random_state=0, **settings).fit(few.X, few.y)
        classifier.predict(pool.X)
        found["parted"] = parted(classifier, pool, options.measured, options.splits)
        print(_table(name, "parted", found["parted"]), flush=True)
    kinds = {"held out": None, "held out row by row": range(options.rows)}
    for kind, groups in kinds.items():
        if groups is None or train.y.ndim == 1:  # several labels are never held out by class
            found[kind] = _fits(train, options, settings, groups)
            print(_table(name, kind, found[kind]), flush=True)
    return found


def _fits(
    train: Rows, options: argparse.Namespace, settings: dict[str, object], groups: range | None
) -> dict[float, list[Share]]:
    """The shares of fits that hold out rows themselves, in other rows of the same file."""
    fits: dict[float, list[Share]] = {coverage: [] for coverage in COVERAGES}
    for seed in range(options.fits):
        order = np.random.default_rng(seed).permutation(len(train))
        few, rest = (train.take(order[at * options.rows :][: options.rows]) for at in (0, 1))
        fitted = Remembering(
            random_state=seed, validation_fraction=0.25, calibrate=True, **settings
        ).fit(few.X, few.y, groups=groups)
        for coverage, shares in fits.items():
            shares.append(share_of(fitted.predict_set(rest.X, coverage), rest.y))
    return fits


def _table(name: str, kind: str, shares: dict[float, list[Share]]) -> str:
    lines = [f"\n| {name}, {kind} | held | lowest to highest | mean size |", "|---|---|---|---|"]
    for coverage, each in shares.items():
        held, sizes = np.array(each).T
        lines.append(f"| {coverage} | {held.mean():.4f} | {held.min():.3f} to "
                     f"{held.max():.3f} | {sizes.mean():.2f} |")  # fmt: skip
    return "\n".join(lines)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=tasks.DATA, help="folder of the data sets")
    parser.add_argument("--rows", type=int, default=2000, help="rows of a fit")
    parser.add_argument("--measured", type=int, default=500, help="rows to measure on")
    parser.add_argument("--splits", type=int, default=200)
    parser.add_argument("--fits", type=int, default=10, help="fits that hold rows out themselves")
    parser.add_argument("--out", type=Path, help="write the result to this JSON file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
