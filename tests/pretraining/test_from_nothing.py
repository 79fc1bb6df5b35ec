"""A ModernBERT made from nothing: it learns words, and all other estimators learn on top of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pytest

from skbert import (
    BertChoiceRanker,
    BertClassifier,
    BertPretrainer,
    BertRegressor,
    BertSpanExtractor,
    BertTokenTagger,
    BertTransformer,
)

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.long

LIMIT = 8192  # tokens in a row


@pytest.fixture(scope="module")
def texts(shared_data: Path) -> pd.DataFrame:
    return pd.read_csv(shared_data / "intents" / "train.csv").sample(3000, random_state=0)


@pytest.fixture(scope="module")
def pretrainer(texts: pd.DataFrame) -> BertPretrainer:
    return BertPretrainer(
        None, family="modernbert", vocab_size=1000, hidden_size=96, num_hidden_layers=2,
        num_attention_heads=3, intermediate_size=144, max_position_embeddings=LIMIT, epochs=8,
        mask_fraction=0.25, learning_rate=1e-3, device="cpu", random_state=0,
    ).fit(texts["text"])  # fmt: skip


@pytest.fixture(scope="module")
def folder(pretrainer: BertPretrainer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("modernbert") / "model"
    pretrainer.save_pretrained(folder)
    return folder


def unigram_loss(pretrainer: BertPretrainer, train: list[str], test: list[str]) -> float:
    """Cross-entropy of the pieces of some texts, by how often each is in others."""
    parts = [
        np.array([i for row in pretrainer.tokenizer_(rows).input_ids for i in row[1:-1]])
        for rows in (train, test)
    ]
    counts = 1.0 + np.bincount(parts[0], minlength=len(pretrainer.tokenizer_))
    return float(-np.log(counts / counts.sum())[parts[1]].mean())


def test_it_learns_masked_words_far_above_the_unigram_baseline(
    pretrainer: BertPretrainer, texts: pd.DataFrame, shared_data: Path
) -> None:
    others = [*pd.read_csv(shared_data / "intents" / "test.csv")["text"]]
    baseline = unigram_loss(pretrainer, [*texts["text"]], others)
    assert -pretrainer.score(others) < baseline - 1.0


def test_every_estimator_learns_on_top_of_it(folder: Path, texts: pd.DataFrame) -> None:
    settings = {"epochs": 1, "device": "cpu", "random_state": 0}
    some = texts[texts["label"].isin(sorted(texts["label"].unique())[:8])].head(160)
    X, y = [*some["text"]], [*some["label"]]
    assert BertClassifier(folder, **settings).fit(X, y).score(X, y) > 0.5
    lengths = np.array([len(text) for text in X], float)
    regressor = BertRegressor(folder, head_init="probe", **settings)
    assert regressor.fit(X, lengths).score(X, lengths) > 0.0
    words = [text.split() for text in X]
    tags = [["LONG" if len(word) > 4 else "SHORT" for word in row] for row in words]
    assert BertTokenTagger(folder, **settings).fit(words, tags).score(words, tags) > 0.7
    assert BertTransformer(folder, device="cpu").fit_transform(X).shape == (len(X), 96)
    pairs = [(f"what is word {1 + i % 2}", text) for i, text in enumerate(X)]
    answers = [row[i % 2 if len(row) > 1 else 0] for i, row in enumerate(words)]
    extractor = BertSpanExtractor(folder, on_ambiguous="first", **settings).fit(pairs, answers)
    found = extractor.predict(pairs)
    assert all(answer in text for answer, (_, text) in zip(found, pairs, strict=True))
    options = [(text, [text, other]) for text, other in zip(X, X[::-1], strict=True)]
    ranker = BertChoiceRanker(folder, **settings).fit(options, [0] * len(options))
    assert ranker.predict(options).shape == (len(options),)


def test_texts_of_all_its_positions(folder: Path, texts: pd.DataFrame) -> None:
    """The last words of such a text count."""
    settings = {"epochs": 1, "device": "cpu", "random_state": 0, "max_length": LIMIT}
    long = " ".join(texts["text"])[:26_000]
    rows = [f"{long} {word}" for word in ("yes", "no")] * 2
    classifier = BertClassifier(folder, **settings).fit(rows, [1, 0] * 2)
    exact = classifier.set_params(precision="float32")  # in bfloat16 two may round to one number
    probabilities = exact.predict_proba(rows)[:, 1]
    assert probabilities[0] != probabilities[1]
    words = long.split()[:5000]
    tags = [["O"] * (len(words) - 1) + ["LAST"]]
    tagger = BertTokenTagger(folder, **settings).fit([words], tags)
    assert len(tagger.predict([words])[0]) == len(words)
    context = f"{long} the answer is forty two"
    extractor = BertSpanExtractor(folder, **settings).fit(
        [("what is the answer", context)], ["forty two"]
    )
    assert extractor.predict([("what is the answer", context)])[0] in context
