"""
Pairs of texts
==============

Does a sentence follow from another? Do two questions ask the same? Which of two reviews is better?
Such questions are about pairs, and BERT reads both texts of a pair at once.
"""

# %%
# The data
# --------
#
# Pairs of reviews with different ratings, and whether the first one is better. Reviews of the test
# pairs are not in the training pairs.

import numpy as np
import pandas as pd
from sklearn.model_selection import train_test_split

from skbert.datasets import load_ratings

frame = load_ratings().frame
rng = np.random.default_rng(0)


def pairs_of(part, n_pairs):
    """Pairs of rows, and whether the first has the higher rating."""
    one, other = (part.iloc[rng.integers(len(part), size=2 * n_pairs)] for _ in range(2))
    difference = one["rating"].to_numpy() - other["rating"].to_numpy()
    pairs = pd.DataFrame({"one": one["text"].to_numpy(), "other": other["text"].to_numpy()})
    rows = np.flatnonzero(difference)[:n_pairs]
    return pairs.iloc[rows], difference[rows] > 0


train, test = train_test_split(frame, test_size=0.3, random_state=0)
X_train, y_train = pairs_of(train, 600)
X_test, y_test = pairs_of(test, 300)
X_train.assign(better=y_train).head()

# %%
# Fit
# ---
#
# A frame with two columns is all it takes; a list of 2-tuples works, too. The head reads BERT's
# pooler for pairs, as in the paper, and learns what "better" means from the beginning. That takes
# more rows, or a higher learning rate, than sorting texts by their topic.

from skbert import BertClassifier

classifier = BertClassifier(learning_rate=3e-4, random_state=0).fit(X_train, y_train)
print(f"accuracy {classifier.score(X_test, y_test):.2f}, guessing {y_test.mean():.2f}")

# %%
# The order counts
# ----------------
#
# The two texts of a pair have different roles, and a model that has understood the question
# changes its mind when they are swapped: its points lie at the top left and the bottom right. In
# the other two corners are pairs of which it prefers the text at one place, whichever it is.

import matplotlib.pyplot as plt

swapped = X_test[["other", "one"]].rename(columns={"other": "one", "one": "other"})
better, worse = (classifier.predict_proba(pairs)[:, 1] for pairs in (X_test, swapped))
_, ax = plt.subplots(figsize=(4.5, 4), layout="constrained")
ax.scatter(better, worse, s=12, alpha=0.6, c=np.where(y_test, "#0072b2", "#e69f00"))
ax.set(xlabel="the first is better", ylabel="the same, after swapping", aspect="equal")
print(f"{((better > 0.5) != (worse > 0.5)).mean():.2f} of the answers change")

# %%
# The mean of both orders is a better answer than either.

together = (better + 1 - worse) / 2 > 0.5
print(f"accuracy with both orders {(together == y_test).mean():.2f}")
