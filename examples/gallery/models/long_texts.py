"""
Long texts
==========

A model reads a limited number of tokens at once. ``long_text`` says what happens to a text that
has more: its end is cut off, its middle is left out, or all of it is read in windows.
"""

# %%
# The data
# --------
#
# Letters that come to the point late: after sentences about other things stands one
# message to the support desk.

import numpy as np
from sklearn.model_selection import train_test_split

from skbert.datasets import load_choices, load_intents

X, y = load_intents(return_X_y=True)
choices = load_choices().frame
small_talk = [f"{row.prompt} {row.choices[row.answer]}." for row in choices.itertuples()]
rng = np.random.default_rng(0)


def letter(message):
    """The message after four sentences that have nothing to do with it."""
    return " ".join([*rng.choice(small_talk, size=4, replace=False), message])


X, y = X[:320], y[:320]
letters = X.map(letter)
X_train, X_test, y_train, y_test = train_test_split(letters, y, stratify=y, random_state=0)
print(letters[0])

# %%
# Three ways to read them
# -----------------------
#
# The model reads 48 tokens here, so that the letters are long for it. A warning says how many rows
# are cut, and so does ``n_truncated_``.

import warnings

import pandas as pd

from skbert import BertClassifier
from skbert.exceptions import TruncationWarning

scores = {}
for long_text in ("truncate", "head_tail", "windows"):
    classifier = BertClassifier(max_length=48, long_text=long_text, epochs=2, random_state=0)
    with warnings.catch_warnings(action="ignore", category=TruncationWarning):
        classifier.fit(X_train, y_train)
        scores[long_text] = classifier.score(X_test, y_test)
    print(f"{long_text:10} {classifier.n_truncated_} of {len(X_train)} rows cut")

# %%
# ``"head_tail"`` keeps a quarter from the beginning and the rest from the end, and so sees the
# message. Windows see it wherever it stands, and take the time of the whole letter. Where the
# beginning of a text says enough, as in news, cutting off the end is quicker and loses nothing.

import matplotlib.pyplot as plt

_, ax = plt.subplots(figsize=(6, 2.2), layout="constrained")
pd.Series(scores).plot.barh(color="#0072b2", xlabel="accuracy", xlim=(0, 1), ax=ax)
ax.invert_yaxis()

# %%
# How long are your texts?
# ------------------------
#
# The tokenizer of a fitted model counts.

lengths = [len(ids) for ids in classifier.tokenizer_(list(letters)).input_ids]
_, ax = plt.subplots(figsize=(6, 2.5), layout="constrained")
ax.hist(lengths, bins=30, color="#999999")
ax.axvline(48, color="#d55e00")
ax.set(xlabel="tokens", ylabel="letters")
