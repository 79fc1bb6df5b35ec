"""The shipped estimators behind numbers, so that scikit-learn's own battery can drive them.

scikit-learn's checks fit matrices of numbers. `NumericClassifier`, `NumericRegressor` and
`NumericTransformer` turn each number into one word (column and binned value, ``f0m2 f1p7``) in
the one place that looks at X, and say in their tags that they take matrices. Everything else is
the shipped code: labels, weights, training loop, cloning, pickling. The words are whole pieces of
a tiny BERT's vocabulary, so that there is something to learn.

`NumericClassifier` and `NumericRegressor` keep the library's defaults but for ``model`` and
``learning_rate``, and the regressor's ``head_init``, which is what a BERT of one layer with random
weights needs to learn at all.
`ExactClassifier` and `ExactRegressor` take chance out: float64, one batch of all rows, no dropout.
`WideTransformer` reads all there is, in float64.
"""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils.validation import validate_data

from skbert import BertClassifier, BertRegressor, BertTransformer
from skbert._validation.columns import FitRecord
from skbert._validation.texts import Texts

# Defaults of a parameter, so they are known before the folders are made. One folder for each
# process: test runs side by side do not meet.
FOLDER = Path(tempfile.gettempdir()) / f"skbert_numeric_{os.getpid()}"
MODEL = str(FOLDER / "model")
MODEL_NO_DROPOUT = str(FOLDER / "model_no_dropout")

COLUMNS = 32  # columns with words of their own; the rest share them
LARGEST_BIN = 24
BINS_PER_UNIT = 4.0  # of the inverse hyperbolic sine: a quarter near zero, a ratio far from it


def word(column: int, number_bin: int) -> str:
    sign = "m" if number_bin < 0 else "p"
    return f"f{column % COLUMNS}{sign}{abs(number_bin)}"


def words_of(numbers: np.ndarray[Any, Any]) -> list[str]:
    """One text per row of a matrix, one word per number."""
    bins = np.rint(BINS_PER_UNIT * np.arcsinh(numbers.astype(np.float64)))
    bins = np.clip(bins, -LARGEST_BIN, LARGEST_BIN).astype(int)
    return [" ".join(word(column, b) for column, b in enumerate(row)) for row in bins.tolist()]


def make_models() -> None:
    """Save the models that the adapters open by default."""
    make_model(MODEL, dropout=0.1)
    make_model(MODEL_NO_DROPOUT, dropout=0.0)


def make_model(folder: str, dropout: float) -> None:
    """Save a tiny BERT whose vocabulary is the words, with mean pooling like the default model."""
    from transformers import BertConfig, BertModel, BertTokenizerFast

    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    bins = range(-LARGEST_BIN, LARGEST_BIN + 1)
    pieces += [word(column, number_bin) for column in range(COLUMNS) for number_bin in bins]
    config = BertConfig(
        vocab_size=len(pieces),
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        BertModel(config).save_pretrained(folder)
    vocabulary = {piece: row for row, piece in enumerate(pieces)}
    BertTokenizerFast(vocab=vocabulary, model_max_length=64).save_pretrained(folder)
    pooling = Path(folder) / "1_Pooling"
    pooling.mkdir()
    declared = {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True}
    (pooling / "config.json").write_text(json.dumps(declared), encoding="utf-8")


def validated(estimator: Any, X: Any, record: FitRecord | None) -> tuple[Any, dict[str, Any]]:
    """Validate a matrix as scikit-learn's own estimators do; it, and what that says of columns."""
    blank: Any = type(type(estimator).__name__, (BaseEstimator,), {})()
    if record is not None:
        assert record.names is not None
        blank.n_features_in_ = len(record.names)
        if any(record.names):
            blank.feature_names_in_ = np.array(record.names, object)
    numbers = validate_data(blank, X, reset=record is None)
    return numbers, vars(blank)


class ReadsNumbers:
    """Reads a matrix of numbers, and writes it in words."""

    def _rows(self, X: Any, record: FitRecord | None) -> Texts:
        numbers, columns = validated(self, X, record)
        names = tuple(columns.get("feature_names_in_", [""] * numbers.shape[1]))  # "": no names
        return Texts(first=words_of(numbers), second=None, names=names, n_columns=1)

    def _columns_of(self, X: Any, rows: Texts) -> dict[str, Any]:
        del rows
        return validated(self, X, None)[1]


def take_matrices(tags: Any) -> Any:
    """Turn the tags of texts into those of numbers."""
    tags.input_tags.two_d_array = True
    tags.input_tags.string = False
    return tags


@dataclass(eq=False, repr=False, kw_only=True)
class NumericClassifier(ReadsNumbers, BertClassifier):
    """`BertClassifier` on matrices of numbers."""

    model: str = field(default=MODEL, kw_only=False)
    learning_rate: float = 1e-3

    def __sklearn_tags__(self) -> Any:
        return take_matrices(super().__sklearn_tags__())


@dataclass(eq=False, repr=False, kw_only=True)
class NumericRegressor(ReadsNumbers, BertRegressor):
    """`BertRegressor` on matrices of numbers."""

    model: str = field(default=MODEL, kw_only=False)
    learning_rate: float = 1e-3
    head_init: str = "probe"

    def __sklearn_tags__(self) -> Any:
        return take_matrices(super().__sklearn_tags__())


@dataclass(eq=False, repr=False, kw_only=True)
class ExactClassifier(NumericClassifier):
    """`NumericClassifier` without chance: float64, all rows in one batch, no dropout."""

    model: str = field(default=MODEL_NO_DROPOUT, kw_only=False)
    epochs: int = 12
    batch_size: int = 1024
    precision: str = "float64"


@dataclass(eq=False, repr=False, kw_only=True)
class ExactRegressor(NumericRegressor):
    """`NumericRegressor` without chance: float64, all rows in one batch, no dropout."""

    model: str = field(default=MODEL_NO_DROPOUT, kw_only=False)
    epochs: int = 12
    batch_size: int = 1024
    precision: str = "float64"


@dataclass(eq=False, repr=False, kw_only=True)
class NumericTransformer(ReadsNumbers, BertTransformer):
    """`BertTransformer` on matrices of numbers."""

    model: str = field(default=MODEL, kw_only=False)

    def __sklearn_tags__(self) -> Any:
        return take_matrices(super().__sklearn_tags__())


@dataclass(eq=False, repr=False, kw_only=True)
class WideTransformer(NumericTransformer):
    """`NumericTransformer` in float64, with all that can be read side by side."""

    pooling: str = "mean_max"
    layers: tuple[int, ...] | None = (0, -1)
    layer_join: str = "concat"
    normalize: bool = True
    precision: str = "float64"
