"""
A fit and its predictions in pictures
=====================================

Four displays say whether a fit went well, which classes are confused, whether probabilities can be
trusted, and which texts the encoder takes for similar.
"""

# %%
# A fitted classifier
# -------------------
#
# With ``validation_fraction`` some rows are held out, and the losses of both parts are known after
# each epoch.

import matplotlib.pyplot as plt
from sklearn.model_selection import train_test_split

from skbert import BertClassifier
from skbert.datasets import load_intents
from skbert.inspection import (
    ConfusionDisplay,
    EmbeddingMapDisplay,
    FitDisplay,
    ReliabilityDisplay,
)

X, y = load_intents(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(
    X, y, test_size=0.4, stratify=y, random_state=0
)
classifier = BertClassifier(epochs=5, validation_fraction=0.2, random_state=0)
classifier.fit(X_train, y_train)

# %%
# The fit
# -------
#
# The weights of the best epoch are kept. If the validation loss still falls at the end, train
# longer; if it rises from the beginning, learn more slowly.

_, ax = plt.subplots(figsize=(7, 4), layout="compressed")
fit = FitDisplay.from_estimator(classifier, ax=ax)

# %%
# Confusions
# ----------
#
# Classes that are confused stand side by side, and what is right is grey. ``worst`` has the
# confusions with example texts.

_, ax = plt.subplots(figsize=(7, 6), layout="compressed")
confusions = ConfusionDisplay.from_estimator(classifier, X_test, y_test, ax=ax)
print(confusions.worst["examples"].iloc[0])

# %%
# Probabilities
# -------------
#
# Of all predictions with a probability of 0.8, are 80 % right? On the diagonal they are.

_, ax = plt.subplots(figsize=(6, 4.5), layout="compressed")
reliability = ReliabilityDisplay.from_estimator(classifier, X_test, y_test, ax=ax)

# %%
# Which texts are similar
# -----------------------
#
# Each point is a text, at the place that its vector has among the others.

_, ax = plt.subplots(figsize=(7, 5), layout="compressed")
similar = EmbeddingMapDisplay.from_estimator(classifier, X_test, y_test, ax=ax)
