"""
Names in texts
==============

Find persons, places and dates in messages. A tagger gives every word a tag, and tags mark where a
name begins and ends.
"""

# %%
# The data
# --------
#
# A row is a list of words, and y has a tag for each: ``B-PER`` is the first word of a person,
# ``I-PER`` a later one, and ``O`` none at all.

from sklearn.model_selection import train_test_split

from skbert.datasets import load_entities

X, y = load_entities(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.25, random_state=0)
for word, tag in zip(X_train.iloc[0], y_train.iloc[0], strict=True):
    print(f"{word:12} {tag}")

# %%
# Fit
# ---
#
# ``score`` is the F1 of whole names: one counts only if its first word, its last word and its type
# are right.

from skbert import BertTokenTagger
from skbert.metrics import entity_report

tagger = BertTokenTagger(epochs=8, learning_rate=3e-4, random_state=0).fit(X_train, y_train)
entity_report(y_test, tagger.predict(X_test)).round(2)

# %%
# Names in a raw text
# -------------------
#
# A fitted tagger also reads texts that nobody has split into words. It gives the place of each
# name in characters, and the probability that exactly this name is there.

text = "Nora Okafor flies to Lisbon on 3 May; call Jonas Weber before Friday."
tagger.predict_spans([text]).round(3)

# %%
# Names in their texts, beside the truth
# --------------------------------------
#
# :func:`skbert.inspection.show` marks names in their texts. With the truth it marks what is wrong,
# too. ``save("page.html")`` of the result writes a page that opens in any browser.

from skbert.inspection import show

show(tagger, X_test[:6], y_test[:6])

# %%
# How far to trust it
# -------------------
#
# Names with a low probability can be looked at by a person. The figure shows how many names are
# found above each probability, and how many of these are right.

import matplotlib.pyplot as plt


def is_right(span):
    """Whether y has exactly this name; start and end count words here."""
    inside = y_test.iloc[span.row][span.start : span.end + 1]
    wanted = ["B-" + span.label] + ["I-" + span.label] * (span.end - span.start - 1)
    return inside[: len(wanted)] == wanted and inside[len(wanted) :] != ["I-" + span.label]


found = tagger.predict_spans(X_test).sort_values("score", ascending=False)
found["right"] = [is_right(span) for span in found.itertuples()]
_, ax = plt.subplots(figsize=(6, 3.5), layout="constrained")
ax.step(found["score"], range(1, len(found) + 1), label="found")
ax.step(found["score"], found["right"].cumsum(), label="right")
ax.set(xlabel="lowest probability", ylabel="names")
ax.invert_xaxis()
legend = ax.legend()
