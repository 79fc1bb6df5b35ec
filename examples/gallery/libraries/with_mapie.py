"""
MAPIE: sets that hold the right class
=====================================

A classifier names one class even where two are likely. `MAPIE <https://mapie.readthedocs.io>`_
gives a set of classes instead. The sets are as large as they must be to hold the right class for a
share of the rows that you choose.
"""

# %%
# Three parts of the data
# -----------------------
#
# The classifier is fitted on the first part. On the second, MAPIE learns how large the sets must
# be, and the third shows whether they are.

from sklearn.model_selection import train_test_split

from skbert.datasets import load_intents

X, y = load_intents(return_X_y=True)
X_train, X_rest, y_train, y_rest = train_test_split(
    X, y, test_size=0.6, stratify=y, random_state=0
)
X_conf, X_test, y_conf, y_test = train_test_split(
    X_rest, y_rest, test_size=0.5, stratify=y_rest, random_state=0
)

# %%
# A classifier, and sets around it
# --------------------------------
#
# ``prefit=True`` takes the fitted classifier as it is. MAPIE asks for the number of columns of X,
# which a list does not have: give it texts as a Series or an array.

from mapie.classification import SplitConformalClassifier

from skbert import BertClassifier

classifier = BertClassifier(epochs=1, random_state=0).fit(X_train, y_train)
shares = [0.8, 0.9, 0.95, 0.99]
conformal = SplitConformalClassifier(classifier, confidence_level=shares, prefit=True)
conformal.conformalize(X_conf, y_conf)
labels, sets = conformal.predict_set(X_test)
sets.shape  # rows, classes and shares

# %%
# Whether they hold the right class
# ---------------------------------
#
# Where the mean is below one, some sets are empty: no class is likely enough.

import numpy as np
import pandas as pd

right = np.searchsorted(classifier.classes_, y_test)
table = pd.DataFrame(
    {
        "asked for": shares,
        "rows whose set holds the right class": sets[range(len(y_test)), right].mean(axis=0),
        "classes in a set": sets.sum(axis=1).mean(axis=0),
    }
)
table.round(3)

# %%
# Rows where the classifier is not sure have larger sets. Here are some of those at 95 %: a person
# can decide among two or three classes, and rows with one class need nobody.

sizes = sets[:, :, 2].sum(axis=1)
unsure = np.argsort(-sizes, kind="stable")[:6]
pd.DataFrame(
    {
        "text": X_test.iloc[unsure].to_numpy(),
        "classes": [", ".join(classifier.classes_[row]) for row in sets[unsure, :, 2]],
        "right": y_test.iloc[unsure].to_numpy(),
    }
)

# %%
# How many rows have sets of each size:

import matplotlib.pyplot as plt

_, ax = plt.subplots(figsize=(6, 3), layout="constrained")
n_of_size = pd.Series(sizes).value_counts().sort_index()
ax.bar(n_of_size.index.astype(str), n_of_size, color="#0072b2")
ax.set(xlabel="classes in a set, at 95 %", ylabel="rows")
