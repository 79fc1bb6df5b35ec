"""Prompts with options."""

from __future__ import annotations

from skbert import BertChoiceRanker
from skbert.metrics import get_scorer
from support.job import TEXTS, Form, Job

RIGHT = [0, 1] * 6
WORDS = ["good", "bad", "poor", "nice"]
OPTIONS = [(text, WORDS[: 2 + row % 3]) for row, text in enumerate(TEXTS)]

JOB = Job(
    BertChoiceRanker,
    {
        "lists of options": Form(OPTIONS, RIGHT),
        "columns of options": Form([(text, "good", "bad") for text in TEXTS], RIGHT),
    },
    {
        "conformalize",
        "fit",
        "predict",
        "predict_proba",
        "predict_set",
        "predict_text",
        "rank",
        "score",
    },
    {"choices": get_scorer("mean_reciprocal_rank")},
)
