"""Fit an extractor that answers questions with a part of a text, or with none.

    python examples/questions.py

Needs two processor cores, and no network if the ``offline`` extra is installed.
"""

from __future__ import annotations

import pandas as pd
from sklearn.model_selection import GroupShuffleSplit

from skbert import BertSpanExtractor
from skbert.datasets import load_questions
from skbert.metrics import squad_em


def main() -> None:
    """Fit on the questions about most paragraphs, and test on those about the rest."""
    X, y = load_questions(return_X_y=True)
    parts = GroupShuffleSplit(1, test_size=0.2, random_state=0)
    train, test = next(parts.split(X, groups=X["context"]))
    X_train, X_test, y_train, y_test = X.iloc[train], X.iloc[test], y.iloc[train], y.iloc[test]
    print(f"{len(X_train)} training questions, {len(X_test)} about other texts to test on")

    extractor = BertSpanExtractor(epochs=8, learning_rate=3e-4, random_state=0, verbose=1)
    extractor.fit(X_train, y_train)
    answers = extractor.predict(X_test)
    print(f"F1 {extractor.score(X_test, y_test):.2f}, exact {squad_em(y_test, answers):.2f}")

    right = [answer[0] if answer else "" for answer in y_test]
    table = pd.DataFrame({"question": X_test["question"], "right": right, "predicted": answers})
    print(table.head(8).to_string(index=False))

    best = extractor.predict_answers(X_test.iloc[1:2], n_best=3)
    print(f"\nThe three best answers to {X_test['question'].iloc[1]!r}:")
    print(best.drop(columns="row").round(3).to_string(index=False))


if __name__ == "__main__":
    main()
