"""The texts and models of the timings: short or long texts or documents; models by their names."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import plain
import torch
from tasks import Rows
from transformers import AutoConfig, AutoModel, AutoTokenizer

TEXTS = ("short", "documents", "long")
# Settings of models with random weights: a BERT of the usual size, and other families with as many
# weights as MiniLM.
_SMALL = {"num_hidden_layers": 6, "hidden_size": 384, "num_attention_heads": 12}
_RANDOM: dict[str, dict[str, Any]] = {
    "base": {"model_type": "bert"},
    "tiny": {
        "model_type": "bert", "num_hidden_layers": 2, "hidden_size": 64,
        "num_attention_heads": 2, "intermediate_size": 128,
    },
    "roberta": {
        **_SMALL, "model_type": "roberta", "intermediate_size": 1536, "type_vocab_size": 1,
        "max_position_embeddings": 513, "bos_token_id": 101, "eos_token_id": 102,
    },
    "distilbert": {
        "model_type": "distilbert", "n_layers": 6, "dim": 384, "n_heads": 12, "hidden_dim": 1536,
    },
    "modernbert": {
        **_SMALL, "model_type": "modernbert", "intermediate_size": 1024, "bos_token_id": 101,
        "eos_token_id": 102, "cls_token_id": 101, "sep_token_id": 102,
    },
}  # fmt: skip
MODELS = ("minilm", *_RANDOM)
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
    """Yield the folder of MiniLM, or of a model with random weights, which serves speed only.

    Parameters
    ----------
    model : {"minilm", "base", "tiny", "roberta", "distilbert", "modernbert"}
        Which model. ``base`` has 12 layers of 768, ``tiny`` 2 of 64, the others 6 of 384 as MiniLM
        has. They have MiniLM's tokenizer, whose vocabulary is BERT's, and are written to a
        temporary folder.
    """
    if model == "minilm":
        yield plain.model_folder()
        return
    tokenizer = AutoTokenizer.from_pretrained(plain.model_folder())
    settings = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(0)
        AutoModel.from_config(AutoConfig.for_model(**settings, **_RANDOM[model])).save_pretrained(
            folder
        )
        tokenizer.save_pretrained(Path(folder))
        yield folder
