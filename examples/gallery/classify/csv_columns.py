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
# Columns that make one text
# --------------------------
#
# Three columns or more in ``text_columns`` are fields of one text. The model reads them one after
# another, each after the name of its column: ``channel: mail subject: … body: …``. All other
# columns are left alone.

from sklearn.model_selection import train_test_split

from skbert import BertClassifier
from skbert.exceptions import InputError

train, test = train_test_split(table, test_size=0.25, stratify=table["label"], random_state=0)
fields = ["channel", "subject", "body"]
classifier = BertClassifier(text_columns=fields, random_state=0)
try:
    classifier.fit(train, train["label"])
except InputError as error:
    print(error)

# %%
# The error names the row. Drop it, fill it, or say that a missing text is an empty one: a field
# without a text is left out, and so is its name.

classifier.set_params(missing="empty").fit(train, train["label"])
print(f"accuracy: {classifier.score(test, test['label']):.2f}")

# %%
# Long columns and short ones
# ---------------------------
#
# Where a row is too long, all fields have the same share of ``max_length``, and what a short field
# does not need is shared by the others. So a long body takes nothing from a short subject, and no
# column is lost because it is the last. These words are left of one row in 24 tokens.

from skbert.inspection import attributions

long = test.head(1).assign(body="It was fine last week, " * 20 + "and now it is not.")
short = BertClassifier(
    text_columns=fields, max_length=24, missing="empty", epochs=1, freeze="all"
).fit(train, train["label"])
print(" ".join(attributions(short, long)[0].words))

# %%
# Other names, and pairs
# ----------------------
#
# A dict gives the fields names of its own, which says more than ``col_7``. Two columns in a list
# are a pair: the model reads both texts with a mark between them and compares them, which is right
# for a question and an answer; see :doc:`pairs`. For two parts of one text use a dict.

renamed = {"subject": "subject", "body": "message"}
two = BertClassifier(text_columns=renamed, missing="empty", random_state=0)
pair = BertClassifier(text_columns=["subject", "body"], missing="empty", random_state=0)
for name, each in {"fields": two, "pair": pair}.items():
    each.fit(train, train["label"])
    print(f"{name}: accuracy {each.score(test, test['label']):.2f}")

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
