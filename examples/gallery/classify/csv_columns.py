"""
A CSV file with several columns
===============================

Tables from a database have ids, dates and several texts. ``text_columns`` says which to read.
"""

# %%
# The file
# --------
#
# The messages of the first example, with an id and a channel, and with their first words as a
# subject. Some messages are so short that nothing is left for their body.

import io

import pandas as pd

from skbert.datasets import load_intents

messages, labels = load_intents(return_X_y=True)
words = messages.str.split()
table = pd.DataFrame(
    {
        "id": range(1000, 1000 + len(messages)),
        "channel": ["mail", "chat"] * (len(messages) // 2) + ["mail"],
        "subject": words.str[:4].str.join(" "),
        "body": words.str[4:].str.join(" "),
        "label": labels,
    }
)
file = io.StringIO(table.to_csv(index=False))  # or the path of your own file

# %%
# pandas reads it. Let it read texts as texts: without ``dtype`` a column of codes such as "007"
# becomes a column of numbers.

table = pd.read_csv(file, dtype={"subject": str, "body": str})
table.head()

# %%
# Two columns of text
# -------------------
#
# With two columns every row is a pair, which BERT reads together, with a mark between them. All
# other columns are left alone. ``pooling="mean"`` lets the fit begin with a linear model on the
# vectors of the pairs, which helps where rows are few.

from sklearn.model_selection import train_test_split

from skbert import BertClassifier
from skbert.exceptions import InputError

train, test = train_test_split(table, test_size=0.25, stratify=table["label"], random_state=0)
classifier = BertClassifier(text_columns=["subject", "body"], pooling="mean", random_state=0)
try:
    classifier.fit(train, train["label"])
except InputError as error:
    print(error)

# %%
# The error names the row. Drop it, fill it, or say that a missing text is an empty one.

classifier.set_params(missing="empty").fit(train, train["label"])
print(f"accuracy: {classifier.score(test, test['label']):.2f}")

# %%
# The result as a table
# ---------------------
#
# Predictions are in the order of the rows, so they can be written next to them.

result = test[["id", "channel", "subject"]].copy()
result["predicted"] = classifier.predict(test)
result["probability"] = classifier.predict_proba(test).max(axis=1).round(3)
result.head()

# %%
# What did people write about?

import matplotlib.pyplot as plt

_, ax = plt.subplots(figsize=(6, 3), layout="constrained")
counts = result.groupby(["predicted", "channel"]).size().unstack()
counts.plot.barh(stacked=True, color=["#0072b2", "#e69f00"], xlabel="messages", ylabel="", ax=ax)
