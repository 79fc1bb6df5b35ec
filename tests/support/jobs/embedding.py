"""Texts and pairs to make vectors of."""

from __future__ import annotations

from skbert import BertTransformer
from support.job import PAIRS, TEXTS, Form, Job

JOB = Job(
    BertTransformer,
    {"texts": Form(TEXTS, None), "pairs": Form(PAIRS, None)},
    {"fit", "fit_transform", "transform", "transform_tokens"},
    {"features": "accuracy"},
    quick={"n_components": 2},
)
