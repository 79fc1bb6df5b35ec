"""
Knowing when not to answer
==========================

A classifier always names a label, even if two are as likely as each other. Three tools say more:
probabilities that are right as often as they say, sets of labels that hold the right one as often
as you ask, and a limit below which a person reads the message.
"""

# %%
# The data
# --------
#
# Messages to a support desk, of eight classes. A part of them is held out in ``fit``: there the
# classifier measures how sure it may be.

from sklearn.model_selection import train_test_split

from skbert.datasets import load_intents

X, y = load_intents(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(
    X, y, test_size=0.3, stratify=y, random_state=0
)

# %%
# Probabilities
# -------------
#
# ``calibrate=True`` divides the logits by a temperature that suits the rows held out. Labels of
# texts that are read whole stay the same but for ties, and probabilities come closer to the share
# of predictions that are right. The expected calibration error is the mean distance of the two.

import matplotlib.pyplot as plt

from skbert import BertClassifier
from skbert.inspection import ReliabilityDisplay
from skbert.metrics import calibration_error

settings = {"epochs": 4, "validation_fraction": 0.35, "random_state": 0}
_, axes = plt.subplots(1, 2, figsize=(11, 5.5))
for calibrate, ax in zip([False, True], axes, strict=True):
    classifier = BertClassifier(calibrate=calibrate, **settings).fit(X_train, y_train)
    chances = classifier.predict_proba(X_test)
    error = calibration_error(y_test, chances, classifier.classes_, n_bins=5)
    score = classifier.score(X_test, y_test)
    print(f"temperature {classifier.temperature_:.2f}: accuracy {score:.2f}, error {error:.3f}")
    ReliabilityDisplay.from_predictions(y_test, chances, classifier.classes_, n_bins=5, ax=ax)

# %%
# Sets
# ----
#
# ``predict_set`` gives each row the labels whose probability is high enough, measured on the rows
# held out: in 95 of 100 messages the right label is among them, whatever the model is worth. A
# message that is clear has a set of one label, one that could be two things a set of two.

import numpy as np

for coverage in [0.8, 0.9, 0.95]:
    sets = classifier.predict_set(X_test, coverage)
    held = np.mean([label in labels for label, labels in zip(y_test, sets, strict=True)])
    size = np.mean([len(labels) for labels in sets])
    print(f"asked {coverage}: {held:.2f} hold the right label, {size:.2f} labels on average")

# %%
# What is asked for holds on average, over new rows and over rows held out. With few rows of each a
# single share can be some points off.

for text, labels in zip(X_test, classifier.predict_set(X_test), strict=True):
    if len(labels) > 3:
        print(f"{labels} {text}")

# %%
# Rejection
# ---------
#
# With ``reject_below`` a row whose best label is less probable gets None. ``reject_threshold``
# finds such a limit: at most one error in five answers here, with a confidence of 80 %. More rows
# held out would prove more.

limit = classifier.reject_threshold(max_error=0.2, confidence=0.8)
answers = classifier.predict(X_test, reject_below=limit)
answered = np.array([answer is not None for answer in answers])
print(f"limit {limit:.2f}: {answered.mean():.0%} of the messages are answered")
print(f"right among these: {(answers == y_test)[answered].mean():.2f}")
print(f"right among all: {classifier.score(X_test, y_test):.2f}")

# %%
# A message about something else
# ------------------------------
#
# All of this is about messages like those held out. A text of another kind can look clear, and
# none of these tools promises to notice.

other = ["The weather in Lisbon is lovely in May."]
print(classifier.predict_set(other), classifier.predict(other, reject_below=limit))
