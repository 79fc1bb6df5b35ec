"""Write the saved folders of this folder, and what they predict; the tests only read them.

They were written by version 0.1.0 at commit 8276473, and every later version must open them. Run
it with that version, from the root of the checkout::

    python tests/data/saved_0_1/make_saved.py
"""

from __future__ import annotations

import json
import os
import shutil
import string
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from transformers import BertConfig, BertModel, BertTokenizerFast

import skbert

HERE = Path(__file__).resolve().parent
USUAL = {"epochs": 2, "device": "cpu", "precision": "float32", "random_state": 0,
         "learning_rate": 1e-2}  # fmt: skip
TEXTS = ["the film is good", "the food is bad", "good food and a good room", "a bad, bad room",
         "the staff is good", "the room is bad"]  # fmt: skip
LABELS = ["good", "bad"] * 3
WORDS = [text.replace(",", " ,").split() for text in TEXTS]
TAGS = [["B-THING" if word in {"film", "food", "room", "staff"} else "O" for word in row]
        for row in WORDS]  # fmt: skip
PAIRS = [["how is it?", text] for text in TEXTS]
OPTIONS = [["how is it?", ["good", "bad", "a room"]] for _ in TEXTS]


def write_model(folder: str) -> None:
    """Write a BERT of one layer with large random weights, so that texts differ."""
    words = "the is a and good bad film food room staff how it".split()
    letters = string.ascii_lowercase
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, ",", "?",
              *(f"##{letter}" for letter in letters)]  # fmt: skip
    pieces += [word for word in words if word not in pieces]
    config = BertConfig(
        vocab_size=len(pieces), hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=12, max_position_embeddings=32, initializer_range=0.5,
    )  # fmt: skip
    torch.manual_seed(0)
    BertModel(config).save_pretrained(folder)
    vocabulary = {piece: row for row, piece in enumerate(pieces)}
    BertTokenizerFast(vocab=vocabulary, model_max_length=32).save_pretrained(folder)


def estimators() -> dict[str, tuple[Any, Any, list[str]]]:
    """A fitted estimator under each name, what it predicts from, and by which methods."""
    both = np.array([[1, 0, 1], [0, 1, 1]] * 3)
    frame = pd.DataFrame({"subject": TEXTS, "body": TEXTS})
    numbers = [len(text) / 3 for text in TEXTS]
    scores = ["predict", "predict_proba", "decision_function"]
    held = {**USUAL, "validation_fraction": 0.34}
    return {
        "classifier": (
            skbert.BertClassifier("tiny", calibrate=True, **held).fit(TEXTS, LABELS),
            TEXTS, scores,
        ),
        "classifier_of_pairs": (
            skbert.BertClassifier("tiny", pooling="mean", **USUAL).fit(frame, [3, 10, 7] * 2),
            PAIRS, scores,
        ),
        "classifier_of_labels": (
            skbert.BertClassifier("tiny", **held).fit(TEXTS, both), TEXTS, scores,
        ),
        "regressor": (
            skbert.BertRegressor("tiny", **USUAL).fit(TEXTS, numbers), TEXTS, ["predict"],
        ),
        "regressor_of_many": (
            skbert.BertRegressor("tiny", **{**USUAL, "precision": "float64"}).fit(
                TEXTS, np.column_stack([numbers, np.arange(6)])
            ),
            TEXTS, ["predict"],
        ),
        "tagger": (
            skbert.BertTokenTagger("tiny", **USUAL).fit(WORDS, TAGS),
            WORDS, ["predict", "predict_proba"],
        ),
        "extractor": (
            skbert.BertSpanExtractor("tiny", **held).fit(PAIRS, ["good", "bad", "", "", "is", ""]),
            PAIRS, ["predict", "predict_answers"],
        ),
        "ranker": (
            skbert.BertChoiceRanker("tiny", **USUAL).fit(OPTIONS, [0, 1] * 3),
            OPTIONS, ["predict", "predict_proba"],
        ),
        "pretrainer": (
            skbert.BertPretrainer("tiny", **USUAL).fit(TEXTS),
            [text.replace("good", "[MASK]") for text in TEXTS], ["predict_masked", "score"],
        ),
        "transformer": (
            skbert.BertTransformer(
                "tiny", n_components=3, memory="kept", device="cpu", precision="float32"
            ).fit(TEXTS),
            TEXTS, ["transform"],
        ),
        "transformer_of_layers": (
            skbert.BertTransformer(
                "tiny", layers=[0, 1], layer_join="concat", pooling="mean_max", normalize=True,
                device="cpu", precision="float32",
            ).fit(TEXTS),
            TEXTS, ["transform"],
        ),
    }  # fmt: skip


def plain(value: Any) -> Any:
    """Lists of what JSON knows, all the way down."""
    if isinstance(value, pd.DataFrame):
        value = value.to_numpy()
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    return [plain(part) for part in value] if isinstance(value, list | tuple) else value


def main() -> None:
    """Fit, save, and write down what each predicts."""
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)  # so that no folder of this machine is among the parameters
        write_model("tiny")
        expected = {}
        for name, (fitted, X, methods) in estimators().items():
            shutil.rmtree(HERE / name, ignore_errors=True)
            fitted.save(HERE / name)
            outputs = {method: plain(getattr(fitted, method)(X)) for method in methods}
            expected[name] = {"class": type(fitted).__name__, "X": X, "outputs": outputs}
        os.chdir(HERE)
    text = json.dumps(expected, indent=0)
    (HERE / "expected.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
