"""Prune the attention heads that a classifier needs least: accuracy and speed at each step.

    python examples/benchmarks/pruning.py
    python examples/benchmarks/pruning.py --folder data/intents --rows 3000 --plot docs/pruning.png

Takes less than a minute on two processor cores with the bundled messages, and needs no network if
the ``offline`` extra is installed. Another folder must hold train.csv and test.csv with columns
text and label; ``--rows`` trains on that many of its rows, drawn at random.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import pandas as pd
from sklearn.model_selection import train_test_split

from skbert import BertClassifier
from skbert.datasets import load_intents
from skbert.inspection import attentions, head_importance, prune_heads

FRACTIONS = (0.0, 0.25, 0.5, 0.75)
ENOUGH = 2000  # rows to estimate importance on


def seconds_to_predict(estimators: list[BertClassifier], X: list[str]) -> list[float]:
    """Best of three times for each, in turns, so that a busy moment slows all alike."""
    best = [float("inf")] * len(estimators)
    for _ in range(3):
        for i, estimator in enumerate(estimators):
            began = time.perf_counter()
            estimator.predict(X)
            best[i] = min(best[i], time.perf_counter() - began)
    return best


def curve(classifier: BertClassifier, parts: list[Any]) -> pd.DataFrame:
    """Accuracy and speed on test messages for each fraction of pruned heads."""
    X_train, X_test, y_train, y_test = parts
    importance = head_importance(classifier, X_train[:ENOUGH], y_train[:ENOUGH])
    pruned = [
        prune_heads(classifier, fraction=fraction, importance=importance) for fraction in FRACTIONS
    ]
    again = [
        prune_heads(classifier, fraction=fraction, importance=importance)
        .set_params(warm_start=True, epochs=1)
        .fit(X_train, y_train)
        for fraction in FRACTIONS
    ]
    short = seconds_to_predict(pruned, X_test[:ENOUGH])
    long = seconds_to_predict(pruned, [" ".join(X_train[i : i + 25]) for i in range(8)])
    return pd.DataFrame(
        {
            "pruned": FRACTIONS,
            "million weights": [each.model_.num_parameters() / 1e6 for each in pruned],
            "accuracy": [each.score(X_test, y_test) for each in pruned],
            "after one more epoch": [each.score(X_test, y_test) for each in again],
            "messages/s": [len(X_test[:ENOUGH]) / each for each in short],
            "speed-up": [short[0] / each for each in short],
            "on long texts": [long[0] / each for each in long],
        }
    )


def parts_of(folder: Path | None, rows: int | None) -> list[Any]:
    """Training and test texts and labels, in the order of ``train_test_split``."""
    if folder is None:
        X, y = load_intents(return_X_y=True)
        return list(train_test_split(X, y, test_size=0.25, stratify=y, random_state=0))
    train, test = (pd.read_csv(folder / f"{part}.csv") for part in ("train", "test"))
    train = train.sample(rows or len(train), random_state=0)
    return [train["text"].tolist(), test["text"].tolist(), train["label"], test["label"]]


def draw(table: pd.DataFrame, path: Path) -> None:
    """Plot accuracy and speed against the fraction of pruned heads."""
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
    table.plot(x="pruned", y=["accuracy", "after one more epoch"], marker="o", ax=axes[0])
    table.plot(x="pruned", y=["speed-up", "on long texts"], marker="o", ax=axes[1])
    for axis, name in zip(axes, ("accuracy on test texts", "times faster"), strict=True):
        axis.set(xlabel="fraction of pruned heads", ylabel=name)
    figure.savefig(path, dpi=120)


def main() -> None:
    """Fit, prune more and more heads, and show the attention of the most important one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="folder of train.csv and test.csv")
    parser.add_argument("--rows", type=int, help="number of training rows; default: all")
    parser.add_argument("--plot", type=Path, help="draw the curves into this file")
    options = parser.parse_args()
    parts = parts_of(options.folder, options.rows)
    classifier = BertClassifier(random_state=0).fit(parts[0], parts[2])
    table = curve(classifier, parts)
    print(table.round(3).to_string(index=False))
    if options.plot is not None:
        draw(table, options.plot)

    importance = head_importance(classifier, parts[1][:ENOUGH], parts[3][:ENOUGH], normalize=False)
    layer, head = divmod(int(importance.argmax()), importance.shape[1])
    ((_, tokens, weights),) = attentions(classifier, parts[1][:1])
    looks = pd.DataFrame(weights[layer, head], index=tokens, columns=tokens)
    print(f"\nAttention of head {head} of layer {layer}, the most important one:")
    print(looks.round(2).to_string())


if __name__ == "__main__":
    main()
