"""
Few labels
==========

How many labelled texts does it take? Here are learning curves of fine-tuning, with and without
texts that say what the labels mean, of a linear model on vectors, and of word counts, for the same
few rows.
"""

# %%
# The data
# --------
#
# Eight classes, and 2 to 16 labelled messages for each. The other messages test what was learned.

import pandas as pd
from sklearn.model_selection import train_test_split

from skbert.datasets import load_intents

frame = load_intents().frame
pool, test = train_test_split(frame, test_size=200, stratify=frame["label"], random_state=0)


def few(n_rows):
    """That many rows of each class."""
    return pool.groupby("label").head(n_rows)


few(2).sort_values("label").head(6)

# %%
# No rows
# -------
#
# What a label means can be said in words, and the encoder reads them. ``from_label_texts`` needs
# no labelled text at all.

from skbert import BertClassifier, BertTransformer

meanings = {
    "bug_report": "the app crashes or does not work",
    "cancel_subscription": "I want to end my subscription",
    "delivery": "where is my parcel",
    "feedback": "praise, or an idea for you",
    "login": "I cannot sign in to my account",
    "payment": "a problem with my card or invoice",
    "product_question": "a question about the product",
    "refund": "I want my money back",
}
without_rows = BertClassifier.from_label_texts(meanings, random_state=0)
print(f"without rows: {without_rows.score(test['text'], test['label']):.2f}")

# %%
# Few rows
# --------
#
# With ``label_texts`` the same texts are rows to train on beside the others, which helps most
# where these are fewest. With 16 rows of each class the texts no longer help.
#
# A fit begins with a linear model on the frozen encoder and goes on from there. With two rows of
# each class both do about as well; with more, fine-tuning is ahead.

from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

ways = {
    "fine-tuned": BertClassifier(random_state=0),
    "with label texts": BertClassifier(label_texts=meanings, random_state=0),
    "vectors": make_pipeline(BertTransformer(normalize=True), LogisticRegression(C=10)),
    "word counts": make_pipeline(TfidfVectorizer(), LogisticRegression(C=10)),
}
curves = pd.DataFrame(
    {
        name: {
            n_rows: way.fit(few(n_rows)["text"], few(n_rows)["label"]).score(
                test["text"], test["label"]
            )
            for n_rows in (2, 4, 8, 16)
        }
        for name, way in ways.items()
    }
)
curves.rename_axis("rows of each class").round(2)

# %%
import matplotlib.pyplot as plt

_, ax = plt.subplots(figsize=(6, 4), layout="constrained")
curves.plot(marker="o", ax=ax, color=["#0072b2", "#009e73", "#e69f00", "#999999"])
ax.set(xlabel="labelled texts of each class", ylabel="accuracy", ylim=(0, 1), xticks=curves.index)
