"""
Texts beside other columns
==========================

Real tables have texts, numbers and categories. :class:`skbert.BertTransformer` makes columns of
numbers of a text, so that any model of scikit-learn can read all of them.
"""

# %%
# The data
# --------
#
# Reviews with their length, their exclamation marks, and the day of the week they were written on.

import numpy as np
import pandas as pd

from skbert.datasets import load_ratings

reviews, ratings = load_ratings(return_X_y=True)
rng = np.random.default_rng(0)
table = pd.DataFrame(
    {
        "review": reviews,
        "characters": reviews.str.len(),
        "exclamations": reviews.str.count("!"),
        "day": rng.choice(["Mon", "Tue", "Wed", "Thu", "Fri"], size=len(reviews)),
    }
)
table.head()

# %%
# One pipeline
# ------------
#
# Each column goes to the transformer that understands it. ``normalize`` makes vectors of length 1,
# which suit linear models.

from sklearn.compose import ColumnTransformer
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from skbert import BertTransformer

columns = ColumnTransformer(
    [
        ("text", BertTransformer(normalize=True), "review"),
        ("numbers", StandardScaler(), ["characters", "exclamations"]),
        ("day", OneHotEncoder(sparse_output=False), ["day"]),
    ]
)
pipeline = make_pipeline(columns, Ridge(alpha=0.3))
pipeline

# %%
# What it is worth
# ----------------
#
# The same pipeline with word counts, and without the text, over five folds.

from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.model_selection import cross_val_score

rows = {}
for name, text in [
    ("BERT", columns.transformers[0][1]),
    ("words", TfidfVectorizer()),
    ("no text", "drop"),
]:
    pipeline.set_params(columntransformer__text=text)
    rows[name] = cross_val_score(pipeline, table, ratings, cv=5)
scores = pd.DataFrame(rows)
scores.describe().loc[["mean", "std"]].round(2)

# %%
import matplotlib.pyplot as plt

_, ax = plt.subplots(figsize=(6, 3), layout="constrained")
scores.mean().plot.barh(xerr=scores.std(), color=["#0072b2", "#e69f00", "#999999"], ax=ax)
ax.set(xlabel="R² over 5 folds")
ax.invert_yaxis()

# %%
# Names of the columns
# --------------------

pipeline.set_params(columntransformer__text=BertTransformer(n_components=3))
pipeline[:-1].set_output(transform="pandas").fit_transform(table, ratings).head(3).round(2)
