"""A grid search of 12 fits: the plain script in a loop, and GridSearchCV over skbert.

600 rows of ``intents`` of 20 of their classes, 4 learning rates, 3 folds, one pass
each; with one and with two workers, and with frozen layers. What these give is the same in all
candidates; with `memory` it is computed once. Every side predicts the held-out fold of each fit.
The contenders take turns.

    python examples/benchmarks/search.py --repeats 3

Beside the frozen encoder there is a logistic regression on the vectors of `BertTransformer`, with
as many values of C, where each fit encodes its texts, and where they are encoded once for all.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import contender
import machine
import numpy as np
import plain
import record
import tasks
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.pipeline import make_pipeline
from tasks import Rows
from turns import table, take_turns

KIND = tasks.TASKS["intents"].kind
RATES = (3e-5, 5e-5, 1e-4, 2e-4)
FOLDS = StratifiedKFold(3, shuffle=True, random_state=0)
N_CLASSES, ROWS_PER_CLASS = 20, 30


def main() -> None:
    """Time the contenders in turns, and print the table."""
    options = _options()
    plain.be_quiet()
    print(machine.headline(machine.describe()), flush=True)
    rows = _few_classes(tasks.load(tasks.TASKS["intents"], options.data, "train"))
    best: dict[str, float] = {}
    contenders = _contenders(rows, options.rates)

    def run(name: str) -> None:
        best[name] = contenders[name]()

    chosen = options.contenders or contenders
    seconds = take_turns({name: partial(run, name) for name in chosen}, options.repeats)
    n_fits = len(options.rates) * FOLDS.get_n_splits()
    print(table(f"{n_fits} fits of 400 rows", seconds))
    record.write(options.out, {"seconds": seconds, "best": best})
    print("best mean accuracy:", ", ".join(f"{name} {score:.3f}" for name, score in best.items()))


def _contenders(rows: Rows, rates: list[float]) -> dict[str, Callable[[], float]]:
    """What each does, which gives the mean accuracy of its best candidate."""
    skbert = partial(_skbert, rows, rates)
    return {
        "plain": partial(_plain, rows, rates),
        "plain, freeze=4": partial(_plain, rows, rates, freeze=4),
        "skbert, 1 worker": skbert,
        "skbert, 2 workers": partial(skbert, n_jobs=2),
        "skbert, freeze=4": partial(skbert, freeze=4),
        "skbert, freeze=4, memory": partial(skbert, freeze=4, kept=True),
        "skbert, freeze='all'": partial(skbert, freeze="all"),
        "skbert, freeze='all', memory": partial(skbert, freeze="all", kept=True),
        "logistic regression": partial(_logistic, rows, len(rates), once=False),
        "logistic regression, encoded once": partial(_logistic, rows, len(rates), once=True),
    }


def _few_classes(rows: Rows) -> Rows:
    known = np.unique(rows.y)[:N_CLASSES]
    rows = rows.take(np.flatnonzero(np.isin(rows.y, known)))
    return tasks.sample_per_class(rows, ROWS_PER_CLASS, seed=0)


def _plain(rows: Rows, rates: list[float], freeze: int = 0) -> float:
    """Mean accuracy of the best learning rate."""
    scores = []
    for rate in rates:
        accuracies = []
        for train, test in FOLDS.split(rows.first, rows.y):
            predicted, _ = plain.fit_predict(
                rows.take(train), rows.take(test), KIND,
                passes=1, learning_rate=rate, freeze=freeze,
            )  # fmt: skip
            accuracies.append(np.mean(predicted == rows.y[test]))
        scores.append(np.mean(accuracies))
    return float(max(scores))


def _skbert(
    rows: Rows,
    rates: list[float],
    freeze: int | str = 0,
    n_jobs: int | None = None,
    *,
    kept: bool = False,
) -> float:
    """The same with scikit-learn's grid search; states are kept in a folder that is new."""
    with tempfile.TemporaryDirectory() as folder:
        memory = folder if kept else None
        classifier = contender.build(KIND, 0, epochs=1, freeze=freeze, memory=memory)
        grid = {"learning_rate": rates}
        search = GridSearchCV(classifier, grid, cv=FOLDS, n_jobs=n_jobs, refit=False)
        return float(search.fit(rows.X, rows.y).best_score_)


def _logistic(rows: Rows, n_candidates: int, *, once: bool) -> float:
    """The same with a logistic regression on vectors, for which no encoder is trained."""
    # Imported here, so that the plain script does not load it.
    from skbert import BertTransformer

    encoder = BertTransformer(plain.model_folder())
    X, steps = (encoder.fit_transform(rows.X), []) if once else (rows.X, [encoder])
    pipeline = make_pipeline(*steps, LogisticRegression(max_iter=1000))
    grid = {"logisticregression__C": np.geomspace(1, 30, n_candidates)}
    search = GridSearchCV(pipeline, grid, cv=FOLDS, refit=False)
    return float(search.fit(X, rows.y).best_score_)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=tasks.DATA, help="folder of the data sets")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rates", type=float, nargs="+", default=[*RATES], help="candidates")
    parser.add_argument("--contenders", nargs="+", help="names of those to time; all else")
    parser.add_argument("--out", type=Path, help="write the result to this JSON file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
