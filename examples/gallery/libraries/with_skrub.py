"""
skrub: tables with texts
========================

`skrub <https://skrub-data.org>`_ prepares tables for learning: its ``TableVectorizer`` looks at
each column and chooses how to encode it. Long texts can go to BERT.
"""

# %%
# A table
# -------
#
# Reviews with a date, a category, a number and a text.

import numpy as np
import pandas as pd

from skbert.datasets import load_ratings

reviews, stars = load_ratings(return_X_y=True)
rng = np.random.default_rng(0)
table = pd.DataFrame(
    {
        "written": pd.Timestamp("2026-01-01")
        + pd.to_timedelta(rng.integers(0, 300, size=len(reviews)), unit="D"),
        "channel": rng.choice(["shop", "web", "app"], size=len(reviews)),
        "characters": reviews.str.len(),
        "review": reviews,
    }
)
table.head()

# %%
# One line for BERT
# -----------------
#
# ``high_cardinality`` is the encoder of columns with many different texts.

from skrub import TableVectorizer

from skbert import BertTransformer

vectorizer = TableVectorizer(high_cardinality=BertTransformer(n_components=30))
columns = vectorizer.fit_transform(table)
print(columns.shape)
columns.iloc[:3, [0, 1, 2, 3, -3, -2, -1]].round(2)

# %%
# Compared with the default
# -------------------------
#
# By default skrub encodes such columns by strings of characters.

from sklearn.linear_model import RidgeCV
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

scores = pd.DataFrame(
    {
        name: cross_val_score(
            make_pipeline(each, StandardScaler(), RidgeCV(np.logspace(0, 3, 7))), table, stars
        )
        for name, each in [("BERT", vectorizer), ("skrub's default", TableVectorizer())]
    }
)
scores.describe().loc[["mean", "std"]].round(2)

# %%
import matplotlib.pyplot as plt

_, ax = plt.subplots(figsize=(6, 2.2), layout="constrained")
scores.mean().plot.barh(xerr=scores.std(), color=["#0072b2", "#999999"], ax=ax)
ax.set(xlabel="R² over 5 folds")
ax.invert_yaxis()
