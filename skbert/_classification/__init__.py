"""Texts to one of several classes, or to several labels at once: `BertClassifier`."""
