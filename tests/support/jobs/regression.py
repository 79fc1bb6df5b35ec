"""Texts and pairs with numbers."""

from __future__ import annotations

from skbert import BertRegressor
from support.job import NUMBERS, PAIRS, TEXTS, Form, Job

JOB = Job(
    BertRegressor,
    {
        "numbers": Form(TEXTS, NUMBERS),
        "several numbers": Form(TEXTS, [[number, -number] for number in NUMBERS]),
        "pairs": Form(PAIRS, NUMBERS),
    },
    {"conformalize", "fit", "partial_fit", "predict", "predict_set", "score"},
    {"numbers": "neg_mean_absolute_error"},
)
