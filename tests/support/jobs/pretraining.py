"""Texts and documents without labels."""

from __future__ import annotations

from skbert import BertPretrainer
from support.job import TEXTS, Form, Job

DOCUMENTS = [["good book", "bad film", "nice room"]] * 12

JOB = Job(
    BertPretrainer,
    {
        "texts": Form(TEXTS, None),
        "documents": Form(DOCUMENTS, None),
        "next sentences": Form(DOCUMENTS, None, {"objective": "mlm+nsp"}),
    },
    {"fit", "score", "perplexity", "predict_masked"},
    {},  # it predicts nothing for a row
)
