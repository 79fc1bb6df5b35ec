"""
Several processes
=================

``n_jobs`` of scikit-learn fits candidates and folds side by side. Each process takes seconds to
start and then computes with fewer threads. So it pays on many cores and for long searches, and not
for a short one on two cores, as here.
"""

# %%
# A search with one and with two processes
# ----------------------------------------

import time

import joblib
from sklearn.model_selection import GridSearchCV

from skbert import BertClassifier
from skbert.datasets import load_intents

X, y = load_intents(return_X_y=True)
classifier = BertClassifier(epochs=1, random_state=0)
grid = {"learning_rate": [5e-5, 2e-4]}
print(f"{joblib.cpu_count()} cores")
searches, seconds = {}, {}
for n_jobs in (1, 2):
    searches[n_jobs] = GridSearchCV(classifier, grid, cv=2, n_jobs=n_jobs)
    began = time.perf_counter()
    searches[n_jobs].fit(X[:200], y[:200])
    seconds[n_jobs] = time.perf_counter() - began

# %%
import matplotlib.pyplot as plt

_, ax = plt.subplots(figsize=(6, 1.8), layout="constrained")
ax.barh([f"n_jobs={n_jobs}" for n_jobs in seconds], seconds.values(), color="#0072b2")
ax.set(xlabel="seconds, with the best candidate fitted again")
ax.invert_yaxis()

# %%
# The results are the same up to the order in which numbers are added.

import pandas as pd

pd.DataFrame(
    {f"n_jobs={n}": search.cv_results_["mean_test_score"] for n, search in searches.items()},
    index=pd.Index(grid["learning_rate"], name="learning rate"),
).round(3)

# %%
# Predictions in parts
# --------------------
#
# A fitted estimator can be sent to other processes, too. It is read once by each of them.


def predicted(part):
    """The labels of a part of the texts."""
    return searches[1].best_estimator_.predict(part)


parts = [X[:200], X[200:]]
one = predicted(X)
two = joblib.Parallel(n_jobs=2)(joblib.delayed(predicted)(part) for part in parts)
print("same labels:", (one == [label for part in two for label in part]).all())

# %%
# What to choose
# --------------
#
# One fit uses all cores by itself. Leave ``n_jobs`` at 1 while you fit single models, and set it
# for searches on machines with many cores. On a GPU use ``n_jobs=1``: processes would share its
# memory. :doc:`/faq` says how several GPUs train one model.
