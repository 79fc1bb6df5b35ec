"""
A learning rate
===============

The learning rate is the setting that matters most. Too low, and little is learned in the epochs
that you have; too high, and the encoder forgets what it knew. One short run suggests a value.
"""

# %%
# One run in which the rate rises
# -------------------------------
#
# The loss falls while the rate is useful and rises when it is too high (Smith 2017).
# :func:`skbert.inspection.suggest_learning_rate` leaves the estimator unfitted.

import matplotlib.pyplot as plt
from sklearn.model_selection import train_test_split

from skbert import BertRegressor
from skbert.datasets import load_ratings
from skbert.inspection import suggest_learning_rate

reviews, stars = load_ratings(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(reviews, stars, random_state=0)
regressor = BertRegressor(random_state=0)
suggestion = suggest_learning_rate(regressor, X_train, y_train)
_, ax = plt.subplots(figsize=(6, 3.5), layout="constrained")
display = suggestion.plot(ax=ax)

# %%
# Is it a good one?
# -----------------
#
# A suggestion is no more than a place to begin. Compare it with values around it.

import pandas as pd

rates = [suggestion.learning_rate / 10, suggestion.learning_rate, suggestion.learning_rate * 10]
scores = {
    f"{rate:.1e}": regressor.set_params(learning_rate=rate)
    .fit(X_train, y_train)
    .score(X_test, y_test)
    for rate in rates
}
pd.Series(scores, name="R²").rename_axis("learning rate").to_frame().round(2)
