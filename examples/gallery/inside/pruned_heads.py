"""
Attention heads that are not needed
===================================

An encoder has many attention heads, and a task needs few of them. The importance of each can be
measured, and those that matter least can be removed.
"""

# %%
# A fitted classifier
# -------------------

from sklearn.model_selection import train_test_split

from skbert import BertClassifier
from skbert.datasets import load_intents

X, y = load_intents(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X, y, stratify=y, random_state=0)
classifier = BertClassifier(random_state=0).fit(X_train, y_train)

# %%
# How much each head matters
# --------------------------
#
# :func:`skbert.inspection.head_importance` asks how much the loss would change if a head were
# switched off a little (Michel et al. 2019). It needs one pass over the data.

import matplotlib.pyplot as plt

from skbert.inspection import head_importance

importance = head_importance(classifier, X_train, y_train)
_, ax = plt.subplots(figsize=(6, 3.5), layout="constrained")
image = ax.imshow(importance, cmap="Blues")
ax.set(xlabel="head", ylabel="layer", xticks=range(12), yticks=range(6))
bar = plt.colorbar(image, ax=ax, label="importance")

# %%
# Prune
# -----
#
# :func:`skbert.inspection.prune_heads` gives a new estimator without the least important heads.
# One more epoch lets the others take over what was lost.

import pandas as pd

from skbert.inspection import prune_heads

rows = []
for fraction in (0.0, 0.25, 0.5, 0.75):
    pruned = prune_heads(classifier, fraction=fraction, importance=importance)
    row = {
        "pruned": fraction,
        "million weights": round(pruned.model_.num_parameters() / 1e6, 1),
        "accuracy": pruned.score(X_test, y_test),
    }
    again = pruned.set_params(warm_start=True, epochs=1).fit(X_train, y_train)
    rows.append(row | {"after one more epoch": again.score(X_test, y_test)})
table = pd.DataFrame(rows).set_index("pruned")
table.round(2)

# %%
_, ax = plt.subplots(figsize=(6, 3.5), layout="constrained")
table[["accuracy", "after one more epoch"]].plot(marker="o", ylim=(0, 1), ax=ax)
ax.set(xlabel="share of pruned heads", ylabel="accuracy")

# %%
# The gain in speed is small for short texts and grows with their length; :doc:`/inspection` has
# measurements on real data.
