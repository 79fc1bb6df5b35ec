"""Fit a tagger that finds persons, places and dates in messages, and print a report.

    python examples/entities.py

Needs two processor cores, and no network if the ``offline`` extra is installed.
"""

from __future__ import annotations

from sklearn.model_selection import train_test_split

from skbert import BertTokenTagger
from skbert.datasets import load_entities
from skbert.metrics import entity_report


def main() -> None:
    """Fit on three quarters of the messages, test on the rest, and tag a raw text."""
    X, y = load_entities(return_X_y=True)
    X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.25, random_state=0)
    print(f"{len(X_train)} training messages, {len(X_test)} to test on")

    tagger = BertTokenTagger(epochs=8, learning_rate=3e-4, random_state=0, verbose=1)
    tagger.fit(X_train, y_train)
    print(entity_report(y_test, tagger.predict(X_test)).round(3).to_string())

    text = "Nora Okafor flies to Lisbon on 3 May; call Jonas Weber before Friday."
    print(f"\n{text}")
    print(tagger.predict_spans([text]).round(3).to_string(index=False))


if __name__ == "__main__":
    main()
