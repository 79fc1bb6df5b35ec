"""
A report on one page
====================

Before you trust a model, look at the data it was tested on and at where it fails. A report puts
both on one page, for any estimator that predicts.
"""

# %%
# Data with flaws
# ---------------
#
# Tests often have rows that spoil a score without anybody noticing. Here three rows of the
# training data are in the test data too, one text is empty, and one label does not occur in
# training.

import pandas as pd
from sklearn.model_selection import train_test_split

from skbert import BertClassifier
from skbert.datasets import load_intents
from skbert.inspection import report

X, y = load_intents(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X, y, stratify=y, random_state=0)
X_test = pd.concat([X_test, X_train[:3], pd.Series(["", "Please call me back."])])
y_test = pd.concat([y_test, y_train[:3], pd.Series(["refund", "callback"])])
classifier = BertClassifier(epochs=4, freeze="all", random_state=0).fit(X_train, y_train)

# %%
# The page
# --------
#
# :func:`skbert.inspection.report` finds all of these flaws and names the rows. Each score has a
# 95 % interval, and the worst errors stand at the end with their texts. In a notebook the page
# looks as it does here; ``view.save("report.html")`` writes it to a file, and ``print(view)``
# prints it in 80 columns.

view = report(
    classifier, X_test, y_test, X_train=X_train, y_train=y_train, n_errors=3, random_state=0
)
view

# %%
# Probabilities
# -------------
#
# :class:`skbert.inspection.ReliabilityDisplay` draws the table of the section on calibration.
# Where probabilities are far from the share that comes true, ``BertClassifier(calibrate=True,
# validation_fraction=0.1)`` corrects them.

import matplotlib.pyplot as plt

from skbert.inspection import ReliabilityDisplay

_, ax = plt.subplots(figsize=(6, 4), layout="constrained")
display = ReliabilityDisplay.from_estimator(classifier, X_test, y_test, ax=ax)
