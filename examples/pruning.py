"""Prune the attention heads that a classifier needs least: accuracy and speed at each step.

    python examples/pruning.py

Runs on two processor cores without a network, given the ``offline`` extra, in less than a minute.
"""

from __future__ import annotations

import time
from typing import Any

import pandas as pd
from sklearn.model_selection import train_test_split

from skbert import BertClassifier
from skbert.datasets import load_intents
from skbert.inspection import attentions, head_importance, prune_heads

FRACTIONS = (0.0, 0.25, 0.5, 0.75)


def seconds_to_predict(estimators: list[BertClassifier], X: list[str]) -> list[float]:
    """Best of three for each, in turns, so that a busy moment of the machine hurts all alike."""
    best = [float("inf")] * len(estimators)
    for _ in range(3):
        for i, estimator in enumerate(estimators):
            began = time.perf_counter()
            estimator.predict(X)
            best[i] = min(best[i], time.perf_counter() - began)
    return best


def curve(classifier: BertClassifier, parts: list[Any]) -> pd.DataFrame:
    """Accuracy on new messages and time, for each fraction of the heads that is pruned."""
    X_train, X_test, y_train, y_test = parts
    importance = head_importance(classifier, X_train, y_train)
    pruned = [
        prune_heads(classifier, fraction=fraction, importance=importance) for fraction in FRACTIONS
    ]
    again = [
        prune_heads(classifier, fraction=fraction, importance=importance)
        .set_params(warm_start=True, epochs=1)
        .fit(X_train, y_train)
        for fraction in FRACTIONS
    ]
    short = seconds_to_predict(pruned, X_test * 2)
    long = seconds_to_predict(pruned, [" ".join(X_train[i : i + 25]) for i in range(8)])
    return pd.DataFrame(
        {
            "pruned": FRACTIONS,
            "million weights": [each.model_.num_parameters() / 1e6 for each in pruned],
            "accuracy": [each.score(X_test, y_test) for each in pruned],
            "after one more pass": [each.score(X_test, y_test) for each in again],
            "messages/s": [2 * len(X_test) / each for each in short],
            "speed-up": [short[0] / each for each in short],
            "on long texts": [long[0] / each for each in long],
        }
    )


def main() -> None:
    """Fit, prune more and more, and look at the head that matters most."""
    X, y = load_intents(return_X_y=True)
    parts = train_test_split(X, y, test_size=0.25, stratify=y, random_state=0)
    classifier = BertClassifier(random_state=0).fit(parts[0], parts[2])
    print(curve(classifier, parts).round(3).to_string(index=False))

    importance = head_importance(classifier, parts[1], parts[3], normalize=False)
    layer, head = divmod(int(importance.argmax()), importance.shape[1])
    ((_, tokens, weights),) = attentions(classifier, parts[1][:1])
    table = pd.DataFrame(weights[layer, head], index=tokens, columns=tokens)
    print(f"\nWhere head {head} of layer {layer} looks, the one whose gate moves the loss most:")
    print(table.round(2).to_string())


if __name__ == "__main__":
    main()
