"""Fit a ranker that chooses how a sentence continues, and show its choices.

    python examples/choices.py

Needs two processor cores, and no network if the ``offline`` extra is installed.
"""

from __future__ import annotations

from sklearn.model_selection import train_test_split

from skbert import BertChoiceRanker
from skbert.datasets import load_choices
from skbert.metrics import mean_reciprocal_rank


def main() -> None:
    """Fit on three quarters of the sentences, and test on the rest."""
    X, y = load_choices(return_X_y=True)
    X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.25, random_state=0)
    print(f"{len(X_train)} training sentences, {len(X_test)} to test on")

    ranker = BertChoiceRanker(random_state=0, verbose=1).fit(X_train, y_train)
    guessing = (1 / X_test["choices"].map(len)).mean()
    accuracy = ranker.score(X_test, y_test)
    reciprocal = mean_reciprocal_rank(y_test, ranker.predict_proba(X_test))
    print(f"Accuracy {accuracy:.2f} (guessing {guessing:.2f}), reciprocal rank {reciprocal:.2f}")

    report = X_test[["prompt"]].assign(chosen=ranker.predict_text(X_test))
    report["right"] = ranker.predict(X_test) == y_test
    print(report.head(8).to_string(index=False))

    ranking = ranker.rank(X_test.iloc[[1]])
    print(f"\n{X_test['prompt'].iloc[1]!r} ...")
    print(ranking[["rank", "text", "probability"]].round(3).to_string(index=False))


if __name__ == "__main__":
    main()
