"""
A search that reads each text once
==================================

A grid search fits many candidates on many folds. With ``memory`` the encoder reads every text once
for all of them.
"""

# %%
# The search
# ----------
#
# Eight candidates and two folds are 16 fits, and the best candidate is fitted again.

import tempfile

import pandas as pd
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.pipeline import Pipeline

from skbert import BertTransformer
from skbert.datasets import load_intents

X, y = load_intents(return_X_y=True)
folder = tempfile.TemporaryDirectory()  # in your work a folder that stays
pipeline = Pipeline(
    [
        ("bert", BertTransformer(memory=folder.name, normalize=True)),
        ("reduce", PCA(random_state=0)),
        ("linear", LogisticRegression(max_iter=300)),
    ]
)
grid = {
    "bert__pooling": ["mean", "max"],
    "reduce__n_components": [50, 150],
    "linear__C": [1, 10],
}
search = GridSearchCV(pipeline, grid, cv=StratifiedKFold(2, shuffle=True, random_state=0))

# %%
# Two poolings are two sets of vectors. All other fits find theirs in the folder, and so does the
# next search. The longer the texts and the larger the encoder, the more that saves.

search.fit(X, y)
print(f"accuracy {search.best_score_:.2f} with {search.best_params_}")

# %%
# What mattered
# -------------

results = pd.DataFrame(search.cv_results_)
scores = results.pivot_table(
    "mean_test_score", "param_linear__C", ["param_bert__pooling", "param_reduce__n_components"]
)
scores.round(3)

# %%
import matplotlib.pyplot as plt

_, ax = plt.subplots(figsize=(6, 3.5), layout="constrained")
scores.plot(marker="o", logx=True, ylabel="accuracy over 2 folds", ax=ax)
folder.cleanup()

# %%
# Where no setting of the encoder is searched, ``V = BertTransformer().fit_transform(X)`` and a
# search over ``V`` are faster still: no fit has to open the encoder. Searches over fine-tuning
# work alike: ``GridSearchCV(BertClassifier(), {"learning_rate": [5e-5, 1e-4]})``. There every
# candidate trains the encoder, so nothing can be kept.
