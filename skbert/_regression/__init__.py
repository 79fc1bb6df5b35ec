"""Texts to one or more numbers: `BertRegressor`."""
