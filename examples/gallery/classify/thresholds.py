"""
Rare labels and thresholds
==========================

One message in fifteen says that a customer is leaving. Accuracy says little here: who always
answers "no" is right in 93 of 100 cases. What counts is how many leavers are found, and how many
others are taken for one.
"""

# %%
# The data
# --------
#
# All messages of seven classes, and one in two of those who cancel.

import numpy as np
from sklearn.model_selection import train_test_split

from skbert.datasets import load_intents

X, y = load_intents(return_X_y=True)
leaves = (y == "cancel_subscription").to_numpy()
keep = ~leaves | (np.cumsum(leaves) % 2 == 0)
X, leaves = X[keep], leaves[keep]
X_train, X_test, y_train, y_test = train_test_split(
    X, leaves, test_size=0.4, stratify=leaves, random_state=0
)
print(f"{leaves.sum()} of {len(leaves)} messages cancel")

# %%
# Weights
# -------
#
# ``class_weight="balanced"`` gives both classes the same total weight.

from skbert import BertClassifier

classifier = BertClassifier(class_weight="balanced", random_state=0)
classifier.fit(X_train, y_train)

# %%
# Precision and recall
# --------------------
#
# Each threshold on the probability finds a share of the leavers (recall), and a share of what it
# finds is right (precision). The curve shows what you can choose from.

import matplotlib.pyplot as plt
from sklearn.metrics import PrecisionRecallDisplay

_, ax = plt.subplots(figsize=(6, 4), layout="constrained")
curve = PrecisionRecallDisplay.from_estimator(
    classifier, X_test, y_test, plot_chance_level=True, ax=ax
)

# %%
# A threshold from cross-validation
# ---------------------------------
#
# scikit-learn's ``TunedThresholdClassifierCV`` chooses the threshold on held-out rows of the
# training data. Here a leaver who is missed costs as much as ten calls for nothing.

from sklearn.metrics import confusion_matrix, make_scorer
from sklearn.model_selection import TunedThresholdClassifierCV


def gain(y_true, y_pred):
    """What a decision saves, in calls."""
    counts = confusion_matrix(y_true, y_pred, labels=[False, True])
    return -counts[0, 1] - 10 * counts[1, 0]


tuned = TunedThresholdClassifierCV(classifier, scoring=make_scorer(gain), cv=3, refit=True)
tuned.fit(X_train, y_train)
print(f"threshold {tuned.best_threshold_:.3f}")
for name, each in [("0.5", classifier), ("tuned", tuned)]:
    print(f"threshold {name}: {gain(y_test, each.predict(X_test))} calls")
