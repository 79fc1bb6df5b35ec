"""
A first classifier
==================

Messages to a support desk are sorted into eight classes. This is all that most tasks need: texts,
labels, ``fit`` and ``predict``.
"""

# %%
# The data
# --------
#
# X is a column of texts and y a column of labels. Lists, arrays and frames of pandas, polars or
# pyarrow work as well.

from sklearn.model_selection import train_test_split

from skbert.datasets import load_intents

X, y = load_intents(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X, y, stratify=y, random_state=0)
X_train.to_frame().assign(label=y_train).head()

# %%
# Fit and predict
# ---------------
#
# :class:`skbert.BertClassifier` adds a layer for the classes to a pre-trained BERT, and trains
# both on the messages. With ``random_state`` the result is the same each time.

from skbert import BertClassifier

classifier = BertClassifier(random_state=0).fit(X_train, y_train)
print(f"{classifier.score(X_test, y_test):.2f} of the test messages are classified correctly")

# %%
# Probabilities come in the order of ``classes_``.

import pandas as pd

message = "The parcel was due on Monday and I still have nothing."
probabilities = classifier.predict_proba([message])[0]
ranked = pd.Series(probabilities, index=classifier.classes_).sort_values(ascending=False)
ranked.to_frame("probability").head(3).round(3)

# %%
# Where it is wrong
# -----------------
#
# scikit-learn's displays work with every estimator of skbert. Rows are the true classes, columns
# the predicted ones.

import matplotlib.pyplot as plt
from sklearn.metrics import ConfusionMatrixDisplay

_, ax = plt.subplots(figsize=(6, 5), layout="constrained")
display = ConfusionMatrixDisplay.from_estimator(
    classifier, X_test, y_test, xticks_rotation="vertical", cmap="Blues", colorbar=False, ax=ax
)
