"""
Numbers and categories beside the text
======================================

What is right for a text may depend on what stands beside it. ``feature_columns`` names columns of
numbers and categories, and the output layer reads them beside the vector of the text.
"""

# %%
# The data
# --------
#
# Messages to a support desk with the customer's plan and the number of days since the first order,
# both made up. Messages of business customers go to an account manager, whatever they are about,
# and those of customers of the first two weeks to a welcome team: the text does not say either.

import numpy as np
import pandas as pd

from skbert.datasets import load_intents

messages, topics = load_intents(return_X_y=True)
rng = np.random.default_rng(0)
n = len(messages)
table = pd.DataFrame({"message": messages, "plan": rng.choice(["free", "plus", "business"], n)})
table["days"] = rng.exponential(60, n).round()
team = topics.mask(table["days"] <= 14, "welcome team")
team = team.mask(table["plan"] == "business", "account manager")
table.loc[::20, "days"] = np.nan  # some are not known
table.head()

# %%
# With and without
# ----------------
#
# Numbers are standardised, and the median stands in for the missing ones. Categories become
# columns of 0 and 1. All of this is learned in ``fit``, from the training rows.

from sklearn.model_selection import train_test_split

from skbert import BertClassifier

train, test, y_train, y_test = train_test_split(table, team, test_size=0.25, random_state=0)
classifier = BertClassifier(text_columns="message", random_state=0)
for columns in (None, ["plan", "days"]):
    classifier.set_params(feature_columns=columns).fit(train, y_train)
    print(f"{columns!s:17} accuracy {classifier.score(test, y_test):.2f}")

# %%
# The output layer is linear, but the welcome team is a matter of a threshold. Where you know such
# a thing, make a column of it.

for part in (train, test):
    part["is_new"] = (part["days"] <= 14).map({True: "yes", False: "no"})
classifier.set_params(feature_columns=["plan", "is_new"]).fit(train, y_train)
print(f"accuracy {classifier.score(test, y_test):.2f}")

# %%
# The same message, from two customers:

same = pd.DataFrame({"message": ["I forgot my password"] * 2, "is_new": "no"})
print(classifier.predict(same.assign(plan=["plus", "business"])))

# %%
# What it refuses
# ---------------
#
# A column that holds neither, such as dates, is an error that says what to type. So is a column of
# str with more than half as many values as rows, which is an id or a text.

from skbert.exceptions import InputTypeError

dated = train.assign(day=pd.Timestamp("2026-01-31"))
try:
    classifier.set_params(feature_columns=["plan", "day"]).fit(dated, y_train)
except InputTypeError as error:
    print(error)
