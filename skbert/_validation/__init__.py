"""Checks of X, y and weights; knows neither torch nor an estimator."""
