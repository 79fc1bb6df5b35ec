"""
Validation sets
===============

Early stopping, and the choice of the weights that are kept, need rows that are not trained on.
``validation_fraction`` holds some out. Here are three ways to say more about them: rows of your
own, a score of your own, and groups of rows that belong together.
"""

# %%
# Rows of your own, and a score of your own
# -----------------------------------------
#
# ``X_val`` and ``y_val`` take the place of rows held out. ``scoring`` names the score that decides
# which epoch is the best one; any scorer of scikit-learn will do, and so will a function
# ``(estimator, X, y)``. Training ends after two epochs that are no better.

from sklearn.model_selection import train_test_split

from skbert import BertClassifier
from skbert.datasets import load_intents

X, y = load_intents(return_X_y=True)
X_train, X_val, y_train, y_val = train_test_split(X, y, stratify=y, random_state=0)
classifier = BertClassifier(epochs=8, scoring="f1_macro", patience=2, random_state=0)
classifier.fit(X_train, y_train, X_val=X_val, y_val=y_val)
columns = ["loss", "validation_loss", "validation_score"]
classifier.history_frame()[columns].round(3)

# %%
# The score and the loss need not agree on the best epoch. A star marks the one whose weights were
# kept.

from skbert.inspection import FitDisplay

display = FitDisplay.from_estimator(classifier)

# %%
# Groups
# ------
#
# Rows are often not alone: paragraphs of one document, messages of one customer, a text and its
# copies. If some of them are trained on and others held out, the validation score is too good.
# Here each message comes a second time, in other letters, which the encoder reads as the same.

X_twice = [*X, *(text.upper() for text in X)]
y_twice = [*y, *y]
message = [*range(len(X)), *range(len(X))]
probe = BertClassifier(epochs=1, freeze="all", validation_fraction=0.25, random_state=0)
leaking = probe.fit(X_twice, y_twice).history_[-1]["validation_score"]
honest = probe.fit(X_twice, y_twice, groups=message).history_[-1]["validation_score"]
print(f"accuracy on the validation set: {leaking:.2f}, with groups {honest:.2f}")

# %%
# With groups, all rows of a message are on one side. In a pipeline or a search, metadata routing
# brings the groups to the estimator, and to the splitter as well.

import sklearn
from sklearn.model_selection import GroupKFold, cross_validate

with sklearn.config_context(enable_metadata_routing=True):
    asking = probe.set_fit_request(groups=True)
    result = cross_validate(asking, X_twice, y_twice, cv=GroupKFold(3), params={"groups": message})
print(result["test_score"].round(2))
