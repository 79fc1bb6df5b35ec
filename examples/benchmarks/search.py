"""A grid search of 12 fits: the plain script in a loop, and GridSearchCV over skbert.

600 rows of ``intents`` with their 20 most frequent classes, 4 learning rates, 3 folds, one pass
each; with one and with two workers. Every side predicts the held-out fold of each fit. The
contenders take turns.

    python examples/benchmarks/search.py --repeats 3
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import contender
import machine
import numpy as np
import plain
import record
import tasks
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from tasks import Rows
from turns import table, take_turns

KIND = tasks.TASKS["intents"].kind
RATES = (3e-5, 5e-5, 1e-4, 2e-4)
FOLDS = StratifiedKFold(3, shuffle=True, random_state=0)
N_CLASSES, ROWS_PER_CLASS = 20, 30
CONTENDERS = ("plain", "skbert, 1 worker", "skbert, 2 workers")


def main() -> None:
    """Time the contenders in turns, and print the table."""
    options = _options()
    plain.be_quiet()
    print(machine.headline(machine.describe()), flush=True)
    rows = _few_classes(tasks.load(tasks.TASKS["intents"], options.data, "train"))
    best: dict[str, float] = {}

    def run(name: str) -> None:
        best[name] = _plain(rows) if name == "plain" else _skbert(rows, int(name.split()[1]))

    seconds = take_turns({name: partial(run, name) for name in CONTENDERS}, options.repeats)
    print(table("12 fits of 400 rows", seconds))
    record.write(options.out, {"seconds": seconds, "best": best})
    print("best mean accuracy:", ", ".join(f"{name} {score:.3f}" for name, score in best.items()))


def _few_classes(rows: Rows) -> Rows:
    known = np.unique(rows.y)[:N_CLASSES]
    rows = rows.take(np.flatnonzero(np.isin(rows.y, known)))
    return tasks.sample_per_class(rows, ROWS_PER_CLASS, seed=0)


def _plain(rows: Rows) -> float:
    """Mean accuracy of the best learning rate."""
    scores = []
    for rate in RATES:
        accuracies = []
        for train, test in FOLDS.split(rows.first, rows.y):
            predicted, _ = plain.fit_predict(
                rows.take(train), rows.take(test), KIND, passes=1, learning_rate=rate
            )
            accuracies.append(np.mean(predicted == rows.y[test]))
        scores.append(np.mean(accuracies))
    return float(max(scores))


def _skbert(rows: Rows, n_jobs: int) -> float:
    """The same with scikit-learn's grid search."""
    search = GridSearchCV(
        contender.build(KIND, 0, epochs=1),
        {"learning_rate": list(RATES)},
        cv=FOLDS,
        n_jobs=n_jobs,
        refit=False,
    )
    return float(search.fit(rows.X, rows.y).best_score_)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=tasks.DATA, help="folder of the data sets")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, help="write the result to this JSON file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
