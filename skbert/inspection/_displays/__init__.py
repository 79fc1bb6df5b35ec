"""Displays: pictures of fits, predictions, heads and vectors, as scikit-learn's displays draw.

Depends on scikit-learn, on `skbert._validation` and on the other modules of `skbert.inspection`;
matplotlib is imported when something is drawn.
"""
