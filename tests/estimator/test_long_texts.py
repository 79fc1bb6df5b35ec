"""Texts of 2,048 tokens, in a model with as many positions: read whole by every estimator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from support.networks import CPU, WORDS, watch
from transformers import AutoTokenizer

import skbert
from skbert import (
    BertChoiceRanker,
    BertClassifier,
    BertPretrainer,
    BertRegressor,
    BertSpanExtractor,
    BertTokenTagger,
    BertTransformer,
)
from skbert._core.infer import INFERENCE_TOKENS, infer
from skbert._core.runtime.device import Precision
from skbert._core.training.stepper import TRAINING_TOKENS
from skbert.exceptions import InputError, TruncationWarning

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LENGTH = 2048
ONCE: dict[str, Any] = {"epochs": 1, "batch_size": 2, "random_state": 0, "precision": "float32"}


@pytest.fixture(scope="module")
def long_model(make_tiny_model: Callable[..., Path]) -> Path:
    return make_tiny_model(max_position_embeddings=LENGTH)


@pytest.fixture(autouse=True)
def small_budgets(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row alone is more than is computed together."""
    monkeypatch.setitem(INFERENCE_TOKENS, "cpu", 600)
    monkeypatch.setitem(TRAINING_TOKENS, "cpu", 600)


def words(n: int, seed: int) -> list[str]:
    return np.random.default_rng(seed).choice(WORDS, n).tolist()


def text(n: int, seed: int) -> str:
    return " ".join(words(n, seed))


# With the first and the last special token each is as long as a row can be.
TEXTS = [text(LENGTH - 2, seed) for seed in range(3)] + [text(9, 3)]


def forward(fitted: Any, *texts: Any) -> Any:
    """What the model returns for one row by itself."""
    tokenized = fitted.tokenizer_(*texts, return_tensors="pt")
    with torch.no_grad():
        return tokenized, fitted.model_(**tokenized)


def test_a_classifier(long_model: Path, tmp_path: Path) -> None:
    classifier = BertClassifier(long_model, **ONCE).fit(TEXTS, [0, 1, 0, 1])
    assert classifier.n_truncated_ == 0
    got = classifier.predict_proba(TEXTS)
    for row, each in enumerate(TEXTS):
        tokenized, out = forward(classifier, each)
        assert tokenized.input_ids.shape[1] == (11 if row == 3 else LENGTH)
        np.testing.assert_allclose(got[row], out.logits.softmax(-1)[0], rtol=1e-4)
    classifier.save(tmp_path / "saved")
    assert AutoTokenizer.from_pretrained(tmp_path / "saved").model_max_length == LENGTH
    np.testing.assert_allclose(skbert.load(tmp_path / "saved").predict_proba(TEXTS), got)


def test_a_text_beyond_the_positions_is_cut_and_counted(long_model: Path) -> None:
    texts = [*TEXTS, TEXTS[0] + " good"]
    with pytest.warns(TruncationWarning, match="1 of 5"):
        regressor = BertRegressor(long_model, **ONCE).fit(texts, [0.0, 1.0, 2.0, 3.0, 0.0])
    assert regressor.n_truncated_ == 1
    with pytest.warns(TruncationWarning, match="1 of 5"):
        got = regressor.predict(texts)
    assert got[4] == got[0]


def test_windows_are_as_long_as_the_positions_allow(
    long_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    classifier = BertClassifier(long_model, long_text="windows", **ONCE)
    classifier.fit([text(5000, 0), text(9, 1)], [0, 1])
    lengths = watch(monkeypatch, "features", lambda batch: batch.layout.lengths.tolist())
    classifier.predict([text(5000, 0)])
    assert lengths == [[LENGTH]] * 3


def test_a_tagger(long_model: Path) -> None:
    rows = [words(LENGTH - 2, 0), words(LENGTH - 2, 1), words(5, 2)]
    tags = [["B-X" if word in {"good", "bad"} else "O" for word in row] for row in rows]
    tagger = BertTokenTagger(long_model, **ONCE).fit(rows, tags)
    got = tagger.predict_proba(rows[:1])[0]
    tokenized, out = forward(tagger, " ".join(rows[0]))
    assert tokenized.input_ids.shape[1] == LENGTH
    np.testing.assert_allclose(got, out.logits.softmax(-1)[0, 1:-1], rtol=1e-3, atol=1e-6)


def test_an_answer_at_the_end_of_a_long_context(long_model: Path) -> None:
    question, answer = "the movie is great", "awful phone"
    context = text(LENGTH - 3 - 4 - 2, 0) + " " + answer
    rows = [(question, context)] * 2
    answers = [(answer, len(context) - len(answer))] * 2
    short = BertSpanExtractor(long_model, **ONCE).fit(rows, answers)
    assert short._fitted.task.max_length == 384
    extractor = BertSpanExtractor(long_model, max_length=LENGTH, **ONCE).fit(rows, answers)
    tokenized, out = forward(extractor, question, context)
    assert tokenized.input_ids.shape[1] == LENGTH
    fitted = extractor._fitted
    read = extractor._rows(rows[:1], fitted.record)
    items = fitted.task.encode(read, None, fitted.network.text_tokenizer)
    got = infer(fitted.network, items, Precision("float32", CPU))
    logits = torch.stack([out.start_logits, out.end_logits], -1)[0]
    assert len(got) == 1
    np.testing.assert_allclose(got[0], logits, rtol=1e-3, atol=1e-5)


def test_options_and_vectors(long_model: Path) -> None:
    ranker = BertChoiceRanker(long_model, **ONCE).fit(
        [(TEXTS[3], [text(LENGTH - 12, 5), "no"])] * 2, [0, 1]
    )
    assert ranker.n_truncated_ == 0
    transformer = BertTransformer(long_model, pooling="mean", precision="float32")
    got = transformer.fit_transform(TEXTS)
    for row, each in enumerate(TEXTS):
        _, out = forward(transformer, each)
        np.testing.assert_allclose(
            got[row], out.last_hidden_state[0].mean(dim=0), rtol=1e-4, atol=1e-5
        )


def test_a_new_model_of_as_many_positions(tmp_path: Path) -> None:
    new = BertPretrainer(
        None, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=LENGTH, **ONCE,
    ).fit([*TEXTS, text(5000, 4)])  # fmt: skip
    assert new._fitted.task.max_length == LENGTH
    new.save_pretrained(tmp_path / "new")
    classifier = BertClassifier(tmp_path / "new", **ONCE).fit(TEXTS, [0, 1, 0, 1])
    assert classifier.n_truncated_ == 0


@pytest.mark.parametrize(
    ("estimator", "X", "y"),
    [
        (BertClassifier, ["a", "b"], [0, 1]),
        (BertRegressor, ["a", "b"], [0.0, 1.0]),
        (BertTokenTagger, [["a"], ["b"]], [["O"], ["O"]]),
        (BertSpanExtractor, [("a", "b c")], ["b"]),
        (BertChoiceRanker, [("a", ["b", "c"])], [0]),
        (BertTransformer, ["a", "b"], None),
        (BertPretrainer, ["a b", "b a"], None),
    ],
)
def test_more_than_the_positions_is_refused(
    long_model: Path, estimator: Any, X: Any, y: Any
) -> None:
    refused = estimator(long_model, max_length=LENGTH + 1)
    with pytest.raises(InputError, match="max_length=2049: this model reads between 4 and 2048"):
        refused.fit(X, y)
