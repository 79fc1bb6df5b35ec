"""
The best of several options
===========================

How does a sentence go on? Which answer is right? :class:`skbert.BertChoiceRanker` reads every
option together with its prompt, and ranks them.
"""

# %%
# The data
# --------
#
# A row has a prompt and a list of options, as many as you like. y is the place of the right one,
# counted from 0, or its text.

from sklearn.model_selection import train_test_split

from skbert.datasets import load_choices

X, y = load_choices(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.25, random_state=0)
X_train.assign(answer=y_train).head(4)

# %%
# Fit
# ---
#
# Guessing is right in less than half of the rows, as they have two options or more.

from skbert import BertChoiceRanker

ranker = BertChoiceRanker(random_state=0).fit(X_train, y_train)
guessing = (1 / X_test["choices"].map(len)).mean()
print(f"guessing {guessing:.2f}")
print(f"accuracy {ranker.score(X_test, y_test):.2f}")

# %%
# Rank the options
# ----------------
#
# ``predict_text`` gives the best option of each row, ``rank`` all of them in order.

prompt, options = (
    "She had forgotten her umbrella, so she",
    [
        "came home wet",
        "baked a cake",
        "sold the piano",
        "waited under a tree until the rain stopped",
    ],
)
ranking = ranker.rank([(prompt, options)])
ranking[["rank", "text", "probability"]].round(3)

# %%
# Where it is wrong
# -----------------
#
# :func:`skbert.inspection.show` shows predictions beside the truth.

from skbert.inspection import show

show(ranker, X_test[:4], y_test[:4])

# %%
import matplotlib.pyplot as plt

_, ax = plt.subplots(figsize=(7, 2.2), layout="constrained")
ax.barh(ranking["text"], ranking["probability"], color="#0072b2")
ax.set(xlabel="probability", xlim=(0, 1), title=f"{prompt} …")
ax.invert_yaxis()
