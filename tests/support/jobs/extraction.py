"""Questions with their answers in a text."""

from __future__ import annotations

from skbert import BertSpanExtractor
from skbert.metrics import get_scorer
from support.job import PAIRS, WORDS, Form, Job

JOB = Job(
    BertSpanExtractor,
    {"answers": Form(PAIRS, [words[2] for words in WORDS])},
    {"conformalize", "fit", "predict", "predict_answers", "predict_set", "score"},
    {"spans": get_scorer("squad_f1")},
)
