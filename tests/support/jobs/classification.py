"""Texts and pairs with classes, and with several labels."""

from __future__ import annotations

from skbert import BertClassifier
from support.job import LABELS, PAIRS, TEXTS, Form, Job

JOB = Job(
    BertClassifier,
    {
        "classes": Form(TEXTS, LABELS),
        "labels": Form(TEXTS, [[row % 2, row % 3 % 2] for row in range(12)]),
        "pairs": Form(PAIRS, LABELS),
    },
    {
        "conformalize",
        "decision_function",
        "fit",
        "partial_fit",
        "predict",
        "predict_proba",
        "predict_set",
        "score",
    },
    {"classes": "accuracy", "labels": "f1_micro", "pairs": "accuracy"},
)
