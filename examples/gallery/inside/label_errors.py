"""
Worst errors and wrong labels
=============================

Look at the rows where a model is sure and wrong. Some of them teach you about the model, and some
about the labels.
"""

# %%
# Labels with known mistakes
# --------------------------
#
# 20 of 449 labels are replaced by others, so that we can see how many are found.

import numpy as np

from skbert.datasets import load_intents

X, y = load_intents(return_X_y=True)
rng = np.random.default_rng(0)
wrong = rng.choice(len(y), size=20, replace=False)
given = y.copy()
given.iloc[wrong] = [rng.choice(sorted(set(y) - {label})) for label in y.iloc[wrong]]

# %%
# The rows to look at
# -------------------
#
# :func:`skbert.inspection.label_issues` fits copies of a classifier, each without one fold of the
# rows, and lists rows that are confidently of another class than their label. A head on a frozen
# encoder is quick, and good enough for this.

from skbert import BertClassifier
from skbert.inspection import label_issues

quick = BertClassifier(epochs=2, freeze="all", random_state=0)
issues = label_issues(quick, X, given)
issues["mistake"] = issues["row"].isin(wrong)
issues.head(8).round(3)

# %%
# Mistakes stand at the top of the list.

import matplotlib.pyplot as plt

_, ax = plt.subplots(figsize=(6, 3), layout="constrained")
ax.step(range(1, len(issues) + 1), issues["mistake"].cumsum(), where="post", color="#0072b2")
ax.plot([0, 20], [0, 20], color="#999999", linestyle=":")
ax.set(xlabel="rows looked at", ylabel="mistakes found")

# %%
# The worst errors
# ----------------
#
# :func:`skbert.inspection.worst_errors` shows the rows with the highest loss, whatever the
# estimator predicts, in their texts.

from sklearn.model_selection import train_test_split

from skbert.inspection import worst_errors

X_train, X_test, y_train, y_test = train_test_split(X, given, stratify=given, random_state=0)
worst_errors(quick.fit(X_train, y_train), X_test, y_test, k=3)
