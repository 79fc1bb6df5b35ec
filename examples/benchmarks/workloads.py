"""The texts and models of the timings: short or long texts or documents; MiniLM or BERT-base."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import plain
import torch
from tasks import Rows
from transformers import AutoTokenizer, BertConfig, BertModel

TEXTS = ("short", "documents", "long")
MODELS = ("minilm", "base")
# Tokens of a document: log-normal, median 60, mean about 75; of a long text: uniform.
MEDIAN, SPREAD, LEAST, MOST = 60, 0.67, 20, 256
LONG = 256, 512
TOKENS_PER_TEXT = 9  # of the short texts that documents are joined from


def texts_of(rows: Rows, texts: str, seed: int = 0) -> Rows:
    """Return the rows as they are, or joined into longer ones.

    Parameters
    ----------
    rows : Rows
        Short single texts with their classes.
    texts : {"short", "documents", "long"}
        What to make of them. A document or a long text is a row's text followed by those of rows
        drawn at random, until it has as many tokens, about, as a log-normal or uniform draw says.
    seed : int, default=0
        Seed of the draws.

    Returns
    -------
    Rows
        As many rows, with the same targets.
    """
    if texts == "short":
        return rows
    rng = np.random.default_rng(seed)
    if texts == "long":
        lengths = rng.uniform(*LONG, len(rows))
    else:
        lengths = np.clip(rng.lognormal(np.log(MEDIAN), SPREAD, len(rows)), LEAST, MOST)
    joined = []
    for text, length in zip(rows.first, lengths, strict=True):
        others = rng.integers(len(rows), size=max(0, round(length / TOKENS_PER_TEXT) - 1))
        joined.append(" ".join([text, *(rows.first[i] for i in others)]))
    return Rows(joined, None, rows.y)


@contextmanager
def model_of(model: str) -> Iterator[str]:
    """Yield the folder of MiniLM, or of a BERT of the usual size with random weights.

    Parameters
    ----------
    model : {"minilm", "base"}
        Which model. ``base`` has 12 layers of 768 and MiniLM's tokenizer, whose vocabulary is
        BERT's; it is written to a temporary folder, and serves to measure speed and memory only.
    """
    if model == "minilm":
        yield plain.model_folder()
        return
    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(0)
        BertModel(BertConfig()).save_pretrained(folder)
        AutoTokenizer.from_pretrained(plain.model_folder()).save_pretrained(Path(folder))
        yield folder
