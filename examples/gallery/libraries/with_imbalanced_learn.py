"""
imbalanced-learn: fewer rows of the common class
================================================

`imbalanced-learn <https://imbalanced-learn.org>`_ draws rows so that classes are equally frequent.
Its samplers that draw existing rows work on texts, those that invent rows work on vectors.
"""

# %%
# Rare cancellations
# ------------------

import numpy as np
from sklearn.model_selection import train_test_split

from skbert.datasets import load_intents

X, y = load_intents(return_X_y=True)
rare = (y == "cancel_subscription").to_numpy()
keep = ~rare | (np.cumsum(rare) % 3 == 0)
frame, rare = X[keep].to_frame(), rare[keep]
X_train, X_test, y_train, y_test = train_test_split(frame, rare, stratify=rare, random_state=0)
print(f"{y_train.sum()} of {len(y_train)} training rows are rare")

# %%
# Three pipelines
# ---------------
#
# ``RandomUnderSampler`` leaves out rows of the common class before BERT is trained. ``SMOTE``
# invents rows between neighbours, so it comes after the vectors.

from imblearn.over_sampling import SMOTE
from imblearn.pipeline import make_pipeline
from imblearn.under_sampling import RandomUnderSampler
from sklearn.linear_model import LogisticRegression

from skbert import BertClassifier, BertTransformer

ways = {
    "as it is": BertClassifier(random_state=0),
    "fewer common rows": make_pipeline(
        RandomUnderSampler(sampling_strategy=0.25, random_state=0), BertClassifier(random_state=0)
    ),
    "SMOTE on vectors": make_pipeline(
        BertTransformer(normalize=True), SMOTE(random_state=0), LogisticRegression()
    ),
}

# %%
# Scores
# ------

import pandas as pd
from sklearn.metrics import average_precision_score, balanced_accuracy_score

rows = {}
for name, way in ways.items():
    way.fit(X_train, y_train)
    rows[name] = {
        "balanced accuracy": balanced_accuracy_score(y_test, way.predict(X_test)),
        "average precision": average_precision_score(y_test, way.predict_proba(X_test)[:, 1]),
    }
scores = pd.DataFrame(rows).T
scores.round(2)

# %%
import matplotlib.pyplot as plt

_, ax = plt.subplots(figsize=(6, 3), layout="constrained")
scores.plot.barh(ax=ax, color=["#0072b2", "#e69f00"], xlim=(0, 1))
ax.invert_yaxis()

# %%
# ``class_weight="balanced"`` of ``BertClassifier`` often does as well and throws nothing away: see
# :doc:`/gallery/classify/thresholds`.
