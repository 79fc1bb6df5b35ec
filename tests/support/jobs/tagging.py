"""Words with tags, and texts with spans."""

from __future__ import annotations

from skbert import BertTokenTagger
from skbert.metrics import get_scorer
from support.job import TEXTS, WORDS, Form, Job

JOB = Job(
    BertTokenTagger,
    {
        "words": Form(WORDS, [["O", "B-A", "O", "O", "B-B"]] * 12),
        "texts": Form(TEXTS, [[(0, 3, "A")]] * 12),
    },
    {
        "conformalize",
        "fit",
        "partial_fit",
        "predict",
        "predict_proba",
        "predict_set",
        "predict_spans",
        "score",
    },
    {"tags": get_scorer("entity_f1")},
)
