"""Fit a classifier on messages to a support desk, and print a report.

    python examples/demo.py

Needs two processor cores, and no network if the ``offline`` extra is installed.
"""

from __future__ import annotations

import pandas as pd
from sklearn.metrics import classification_report
from sklearn.model_selection import train_test_split

from skbert import BertClassifier
from skbert.datasets import load_intents


def main() -> None:
    """Fit on three quarters of the messages, and test on the rest."""
    X, y = load_intents(return_X_y=True)
    X_train, X_test, y_train, y_test = train_test_split(
        X, y, test_size=0.25, stratify=y, random_state=0
    )
    print(f"{len(X_train)} training messages, {len(X_test)} to test on")

    classifier = BertClassifier(random_state=0, verbose=1).fit(X_train, y_train)
    print(classification_report(y_test, classifier.predict(X_test), zero_division=0))

    message = "The parcel was due on Monday and I still have nothing."
    probabilities = pd.Series(classifier.predict_proba([message])[0], index=classifier.classes_)
    print(f"{message!r} is {classifier.predict([message])[0]!r}:")
    print(probabilities.sort_values(ascending=False).head(3).round(3).to_string())


if __name__ == "__main__":
    main()
