"""
cleanlab: labels that look wrong
================================

People make mistakes when they label. `cleanlab <https://docs.cleanlab.ai>`_ finds rows whose label
contradicts what a model predicts for them when it has not seen them.
"""

# %%
# Labels with known mistakes
# --------------------------
#
# 20 of 449 labels are replaced by others, so that we can see how many are found.

import numpy as np

from skbert.datasets import load_intents

X, y = load_intents(return_X_y=True)
classes, codes = np.unique(y, return_inverse=True)
rng = np.random.default_rng(0)
wrong = rng.choice(len(y), size=20, replace=False)
given = codes.copy()
given[wrong] = (given[wrong] + rng.integers(1, len(classes), size=20)) % len(classes)

# %%
# Probabilities for rows not seen
# -------------------------------
#
# Each row is predicted by a model that was fitted on the other folds. A linear model on vectors is
# quick and good enough; a ``BertClassifier`` works in the same place.

from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict
from sklearn.pipeline import make_pipeline

from skbert import BertTransformer

model = make_pipeline(BertTransformer(normalize=True), LogisticRegression(C=10))
probabilities = cross_val_predict(model, X, given, cv=5, method="predict_proba")

# %%
# The rows to look at
# -------------------

import pandas as pd
from cleanlab.filter import find_label_issues

issues = find_label_issues(given, probabilities, return_indices_ranked_by="self_confidence")
found = np.isin(issues, wrong)
print(f"{len(issues)} rows to look at, {found.sum()} of the 20 mistakes among them")
table = pd.DataFrame(
    {
        "text": X.iloc[issues].to_numpy(),
        "label": classes[given[issues]],
        "predicted": classes[probabilities[issues].argmax(axis=1)],
        "mistake": found,
    }
)
table.head(8)

# %%
# Mistakes stand at the top of the list.

import matplotlib.pyplot as plt

_, ax = plt.subplots(figsize=(6, 3), layout="constrained")
ax.step(range(1, len(issues) + 1), found.cumsum(), where="post", color="#0072b2")
ax.plot([0, 20], [0, 20], color="#999999", linestyle=":")
ax.set(xlabel="rows looked at", ylabel="mistakes found")
