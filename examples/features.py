"""Texts and numbers in one pipeline: BERT vectors of reviews, compared with word counts.

    python examples/features.py

Needs two processor cores, and no network if the ``offline`` extra is installed.
"""

from __future__ import annotations

import tempfile
import time

import pandas as pd
from sklearn.compose import ColumnTransformer
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler

from skbert import BertTransformer
from skbert.datasets import load_ratings


def main() -> None:
    """Search for the best features and regularisation, and print the scores."""
    reviews, ratings = load_ratings(return_X_y=True)
    table = pd.DataFrame(
        {
            "review": reviews,
            "characters": reviews.str.len(),
            "exclamations": reviews.str.count("!"),
        }
    )
    print(table.head(3).to_string(), end="\n\n")

    with tempfile.TemporaryDirectory() as folder:
        bert = BertTransformer(memory=folder, normalize=True)
        numbers = ("numbers", StandardScaler(), ["characters", "exclamations"])
        columns = ColumnTransformer([("text", bert, "review"), numbers])
        search = GridSearchCV(
            Pipeline([("columns", columns), ("ridge", Ridge())]),
            {"columns__text": [bert, TfidfVectorizer()], "ridge__alpha": [0.1, 0.3, 1.0, 3.0]},
            cv=KFold(5, shuffle=True, random_state=0),
        )
        start = time.perf_counter()
        search.fit(table, ratings)
        seconds = time.perf_counter() - start

    results = pd.DataFrame(search.cv_results_)
    results["text"] = [type(text).__name__ for text in results["param_columns__text"]]
    scores = results.pivot_table("mean_test_score", "param_ridge__alpha", "text")
    print(f"R2 over 5 folds\n{scores.round(3).to_string()}")
    names = search.best_estimator_["columns"].get_feature_names_out()
    print(f"\nthe best pipeline has {len(names)} columns, from {names[0]} to {names[-1]}")
    print(f"{len(results)} candidates in {seconds:.0f} s; the encoder read each review once")


if __name__ == "__main__":
    main()
