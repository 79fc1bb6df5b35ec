"""What texts of labels are worth with few rows: accuracy by the number of rows of each class.

Four ways get the same rows of ``intents``, for each seed and number of rows: a linear model on
frozen vectors, the same with the names of the labels as further rows, ``BertClassifier`` with its
defaults, and ``BertClassifier(label_texts=True)``, or without any rows ``from_label_texts``. With
``--without N`` the first rows of N classes are left out, and a second figure is the accuracy on
test rows of these classes.

    python examples/benchmarks/label_texts.py
    python examples/benchmarks/label_texts.py --rows-per-class 2 8 --without 50
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import contender
import machine
import numpy as np
import pandas as pd
import tasks
from plain import model_folder
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from tasks import Rows

from skbert import BertClassifier, BertTransformer


def main() -> None:
    """Run the comparison and print its table."""
    options = _options()
    # scikit-learn takes y of few rows and many classes for numbers.
    warnings.filterwarnings("ignore", message="The number of unique classes is greater than 50%")
    where = machine.describe()
    print(machine.headline(where), flush=True)
    records = []
    for record in compare(options):
        contender.append_line(options.out, record | {"machine": where})
        records.append(record)
    print(table(pd.DataFrame(records)))


def compare(options: argparse.Namespace) -> Iterator[dict[str, object]]:
    """Yield one record for every seed, number of rows and way."""
    task = tasks.TASKS["intents"]
    pool = tasks.load(task, options.data, "train")
    test = tasks.sample(tasks.load(task, options.data, "test"), options.test_rows, seed=0)
    labels = np.unique(pool.y).tolist()
    for seed in options.seeds:
        missing = np.random.default_rng(seed).permutation(labels)[: options.without]
        for n_rows in options.rows_per_class:
            train = tasks.sample_per_class(pool, n_rows, seed)
            train = train.take(np.flatnonzero(~np.isin(train.y, missing)))
            for name, predicted in predictions(train, test, labels, seed):
                right = predicted == test.y
                yield {
                    "way": name,
                    "rows of each class": n_rows,
                    "seed": seed,
                    "accuracy": right.mean(),
                    "without rows": right[np.isin(test.y, missing)].mean()
                    if len(missing)
                    else None,
                }


def predictions(
    train: Rows, test: Rows, labels: list[str], seed: int
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the name of each way and what it predicts."""
    words = [label.replace("_", " ") for label in labels]
    with_names = Rows([*train.first, *words], None, np.concatenate([train.y, labels]))
    linear = make_pipeline(
        BertTransformer(model_folder(), normalize=True), LogisticRegression(C=10, max_iter=1000)
    )
    settings = {"model": model_folder(), "random_state": seed}
    tuned = BertClassifier(**settings)
    fits = {
        "linear model": partial(linear.fit, train.first, train.y),
        "linear model, names as rows": partial(linear.fit, with_names.first, with_names.y),
        "fine-tuned": partial(tuned.fit, train.first, train.y),
        "fine-tuned with label_texts": partial(
            BertClassifier(label_texts=labels, **settings).fit, train.first, train.y
        ),
    }
    if not len(train):
        del fits["linear model"], fits["fine-tuned"]
        fits["fine-tuned with label_texts"] = partial(
            BertClassifier.from_label_texts, labels, **settings
        )
    for name, fit in fits.items():
        yield name, fit().predict(test.first)


def table(records: pd.DataFrame) -> str:
    """Write the records as a markdown table, one line a way.

    Parameters
    ----------
    records : DataFrame
        One row for every seed, number of rows and way.

    Returns
    -------
    str
        The mean accuracy over seeds for each number of rows, and where classes had no rows the
        mean accuracy on these.
    """
    ways, rows = records["way"].unique(), "rows of each class"
    columns = (
        ["accuracy", "without rows"] if records["without rows"].notna().any() else ["accuracy"]
    )
    means = records.groupby(["way", rows])[columns].mean()
    cells = means.map("{:.3f}".format).agg(" / ".join, axis=1).unstack(rows).fillna("")
    lines = [
        f"| {' / '.join(columns)}, by rows of each class | {' | '.join(map(str, cells))} |",
        "|---" * (cells.shape[1] + 1) + "|",
        *(f"| {way} | {' | '.join(cells.loc[way])} |" for way in ways),
    ]
    return "\n".join(lines)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=tasks.DATA, help="folder of the data sets")
    parser.add_argument("--rows-per-class", nargs="+", type=int, default=[0, 1, 2, 4, 8, 16])
    parser.add_argument("--without", type=int, default=0, help="classes whose rows are left out")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--test-rows", type=int, default=1500, help="rows to test on, of 4,500")
    parser.add_argument("--out", type=Path, help="append each result to this file as a JSON line")
    return parser.parse_args()


if __name__ == "__main__":
    main()
