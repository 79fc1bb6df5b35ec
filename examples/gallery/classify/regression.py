"""
Numbers from texts
==================

How many stars does a review give? :class:`skbert.BertRegressor` predicts numbers, one or several
for each text.
"""

# %%
# The data
# --------

from sklearn.model_selection import train_test_split

from skbert.datasets import load_ratings

reviews, stars = load_ratings(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(reviews, stars, random_state=0)
X_train.to_frame("review").assign(stars=y_train).head()

# %%
# Fit
# ---
#
# ``score`` is R², as for all regressors: 1 is perfect, and 0 is as good as predicting the mean.

from sklearn.metrics import mean_absolute_error

from skbert import BertRegressor

regressor = BertRegressor(random_state=0).fit(X_train, y_train)
predicted = regressor.predict(X_test)
print(f"R² {regressor.score(X_test, y_test):.2f}")
print(f"{mean_absolute_error(y_test, predicted):.2f} stars off on average")

# %%
# True and predicted
# ------------------

import matplotlib.pyplot as plt
from sklearn.metrics import PredictionErrorDisplay

_, ax = plt.subplots(figsize=(5, 4.5), layout="constrained")
display = PredictionErrorDisplay.from_predictions(
    y_test, predicted, kind="actual_vs_predicted", scatter_kwargs={"alpha": 0.6}, ax=ax
)

# %%
# The largest errors
# ------------------
#
# Look at them before you tune anything: irony, comparisons and mixed reviews are hard, and some
# ratings are odd.

table = X_test.to_frame("review").assign(stars=y_test, predicted=predicted.round(1))
table["error"] = (table["predicted"] - table["stars"]).abs()
table.sort_values("error", ascending=False).head(5)
