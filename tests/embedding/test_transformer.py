"""Texts to vectors: what they equal, how they are read, and how the transformer is used."""

from __future__ import annotations

import copy
import json
import pickle
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import joblib
import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import FeatureUnion, make_pipeline, make_union
from sklearn.preprocessing import StandardScaler
from sklearn.utils.validation import check_is_fitted
from transformers import AutoTokenizer, BertModel

from skbert import (
    BertChoiceRanker,
    BertClassifier,
    BertPretrainer,
    BertRegressor,
    BertSpanExtractor,
    BertTokenTagger,
    BertTransformer,
)
from skbert._embedding.task import Features, TokenFeatures
from skbert._validation.texts import Texts
from skbert.datasets import load_intents
from skbert.exceptions import (
    InputError,
    InputTypeError,
    ModelError,
    SaveError,
    SkbertWarning,
    TruncationWarning,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Sentiment

TEXTS = [
    "the food was great, i love it", "", "staff", "the staff is awful and so slow!",
    "nice room and good service", "poor phone, it works no more", "x", "staff",
    "best book of all, and the film is better than the book but not so very good",
]  # fmt: skip
PAIRS = list(zip(TEXTS, TEXTS[::-1], strict=True))
LONG = ["good " * 300, "bad film", "the staff is awful and so slow " * 50, "a"]


def plain(model: Any, **params: Any) -> BertTransformer:
    return BertTransformer(model, **{"device": "cpu", "precision": "float32", **params})


def by_hand(
    folder: Path, X: Any, dtype: torch.dtype = torch.float32
) -> tuple[Any, np.ndarray, np.ndarray]:
    """transformers' own outputs for a padded batch, its mask, and which tokens are pieces."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    columns = [list(column) for column in zip(*X, strict=True)] if X is PAIRS else [list(X)]
    batch = tokenizer(
        *columns, padding=True, truncation=True, return_tensors="pt",
        return_special_tokens_mask=True,
    )  # fmt: skip
    special = batch.pop("special_tokens_mask").numpy().astype(bool)
    model = BertModel.from_pretrained(folder, dtype=dtype).eval()
    with torch.no_grad():
        return model(**batch, output_hidden_states=True), batch["attention_mask"].numpy(), ~special


def pooled(states: torch.Tensor, mask: np.ndarray, how: str) -> np.ndarray:
    states, there = states.numpy(), mask[..., None].astype(bool)
    if how == "cls":
        return states[:, 0]
    if how == "max":
        return np.where(there, states, -np.inf).max(axis=1)
    return np.where(there, states, 0).sum(axis=1) / there.sum(axis=1)


def assert_close(found: Any, expected: Any, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)


# --- the vectors ---------------------------------------------------------------------------------


@pytest.mark.parametrize("X", [TEXTS, PAIRS], ids=["texts", "pairs"])
@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("pooling", ["cls", "mean", "max", "mean_max", "pooler"])
def test_equals_a_padded_model(tiny_model: Path, pooling: str, precision: str, X: Any) -> None:
    out, mask, _ = by_hand(tiny_model, X, getattr(torch, precision))
    if pooling == "pooler":
        expected = out.pooler_output.numpy()
    else:
        states = out.last_hidden_state
        expected = np.hstack([pooled(states, mask, way) for way in pooling.split("_")])
    transformer = plain(tiny_model, pooling=pooling, precision=precision).fit(X)
    found = transformer.transform(X)
    assert found.dtype == precision
    assert_close(found, expected, 1e-5 if precision == "float32" else 1e-12)
    assert transformer.pooling_ == pooling
    assert_close(transformer.fit_transform(X), found, 0)


@pytest.mark.parametrize("layer", [-3, -2, -1, 0, 1, 2])
def test_one_layer_equals_that_hidden_state(tiny_model: Path, layer: int) -> None:
    out, mask, _ = by_hand(tiny_model, TEXTS)
    for layers in (layer, [layer]):
        found = plain(tiny_model, pooling="mean", layers=layers).fit_transform(TEXTS)
        assert_close(found, pooled(out.hidden_states[layer], mask, "mean"))


@pytest.mark.parametrize("pooling", ["cls", "max", "mean_max"])
def test_several_layers(tiny_model: Path, pooling: str) -> None:
    out, mask, _ = by_hand(tiny_model, TEXTS)
    chosen = [out.hidden_states[layer] for layer in (2, 0)]
    ways = pooling.split("_")
    for join, states in (("concat", torch.cat(chosen, -1)), ("mean", sum(chosen) / 2)):
        expected = np.hstack([pooled(states, mask, way) for way in ways])
        transformer = plain(tiny_model, pooling=pooling, layers=[-1, 0], layer_join=join)
        assert_close(transformer.fit_transform(TEXTS), expected)
        assert len(transformer.get_feature_names_out()) == expected.shape[1]
        assert plain(tiny_model, layers=np.array([2, 0])).fit(TEXTS).pooling_ == "mean"


def test_layers_that_nobody_reads_are_not_computed(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transformer = plain(tiny_model, layers=1).fit(TEXTS)
    last = transformer._fitted.network.model.encoder.layer[1]
    monkeypatch.setattr(
        last.output.LayerNorm, "forward", lambda *args, **kwargs: pytest.fail("computed")
    )
    assert transformer.transform(TEXTS).shape == (len(TEXTS), 32)


@pytest.mark.parametrize("layers", [None, [0, 2]])
def test_the_padded_way_gives_the_same(tiny_model: Path, layers: Any) -> None:
    transformer = plain(tiny_model, pooling="mean", layers=layers).fit(TEXTS)
    expected, tokens = transformer.transform(TEXTS), transformer.transform_tokens(TEXTS)
    transformer._fitted.network.is_packed = False
    transformer.model_.config._attn_implementation = "sdpa"
    assert_close(transformer.transform(TEXTS), expected)
    assert len(tokens) == len(TEXTS)


@pytest.mark.parametrize("pooling", ["mean_max", "pooler"])
def test_every_device_gives_the_same(tiny_model: Path, device: str, pooling: str) -> None:
    expected = plain(tiny_model, pooling=pooling).fit(TEXTS)
    transformer = plain(tiny_model, pooling=pooling, device=device).fit(TEXTS)
    assert_close(transformer.transform(TEXTS), expected.transform(TEXTS))
    tokens = zip(
        transformer.transform_tokens(TEXTS), expected.transform_tokens(TEXTS), strict=True
    )
    for found, right in tokens:
        assert_close(found, right)
    again = plain(transformer, device="cpu").fit(TEXTS)  # copied from that device
    assert_close(again.transform(TEXTS), expected.transform(TEXTS))


def test_the_real_encoder_equals_sentence_vectors_by_hand(minilm: Path) -> None:
    texts = [*TEXTS, "Where is my parcel, it should have come on Monday?", "返金してください 🙂"]
    out, mask, pieces = by_hand(minilm, texts)
    mean = pooled(out.last_hidden_state, mask, "mean")
    expected = mean / np.linalg.norm(mean, axis=1, keepdims=True)
    transformer = plain(minilm, normalize=True).fit(texts)
    assert transformer.pooling_ == "mean"  # as its folder declares
    assert_close(transformer.transform(texts), expected)
    tokens = transformer.transform_tokens(texts)
    for row, found in enumerate(tokens):
        assert_close(found, out.last_hidden_state[row][torch.from_numpy(pieces[row])])


def test_the_real_encoder_equals_sentence_transformers(minilm: Path) -> None:
    package = pytest.importorskip("sentence_transformers")
    texts = list(load_intents().data[:40])
    expected = package.SentenceTransformer(str(minilm), device="cpu").encode(
        texts, normalize_embeddings=True, show_progress_bar=False
    )
    assert_close(plain(minilm, normalize=True).fit_transform(texts), expected)
    rough = plain(minilm, normalize=True, precision="bfloat16").fit_transform(texts)
    assert_close(rough, expected, 1e-2)


# --- what a vector depends on --------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*empty or whitespace")
@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 1e-5), ("float64", 0)])
def test_a_vector_depends_on_its_text_alone(
    minilm: Path, precision: str, tolerance: float
) -> None:
    texts = [*load_intents().data[:24], "word " * 200, ""]
    transformer = plain(minilm, precision=precision).fit(texts)
    expected = transformer.transform(texts).astype(np.float32)
    order = np.random.default_rng(0).permutation(len(texts))
    shuffled = transformer.transform([texts[i] for i in order])
    assert_close(shuffled.astype(np.float32), expected[order], tolerance)
    for row in (0, 24, 25):
        alone = transformer.transform([texts[row]])
        assert_close(alone.astype(np.float32), expected[[row]], tolerance)
    tokens = transformer.transform_tokens(texts)
    alone = transformer.transform_tokens(texts[3:5])
    for row in (3, 4):
        assert_close(alone[row - 3].astype(np.float32), tokens[row].astype(np.float32), tolerance)


@pytest.mark.filterwarnings("ignore:.*empty or whitespace")
def test_threads(tiny_model: Path) -> None:
    parts = [TEXTS[i % 5 : i % 5 + 1 + i % 4] for i in range(48)]
    for layers in (None, [1, 2]):
        transformer = plain(tiny_model, pooling="mean", layers=layers, precision="float64")
        transformer.fit(TEXTS)
        expected = [transformer.transform(part) for part in parts]
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(transformer.transform, parts))
            tokens = list(pool.map(transformer.transform_tokens, parts))
        for part, values, words, right in zip(parts, found, tokens, expected, strict=True):
            assert_close(values, right, 1e-12)
            assert len(words) == len(part)


def test_the_same_text_is_encoded_once(tiny_model: Path, rows_read: list[int]) -> None:
    transformer = plain(tiny_model).fit(TEXTS)
    assert rows_read == []  # a fit without a PCA reads nothing
    many = transformer.transform(TEXTS * 5)
    assert sum(rows_read) == len(set(TEXTS))
    np.testing.assert_array_equal(many[: len(TEXTS)], many[-len(TEXTS) :])
    np.testing.assert_array_equal(many[2], many[7])
    rows_read.clear()
    tokens = transformer.transform_tokens(TEXTS * 2)
    assert sum(rows_read) == len(set(TEXTS))
    assert tokens.shape == (2 * len(TEXTS),)
    pairs = [("a", "b c"), ("a b", "c"), ("a", "b c")]
    swapped = plain(tiny_model, pooling="mean").fit_transform(pairs)
    assert np.abs(swapped[0] - swapped[1]).max() > 1e-4
    np.testing.assert_array_equal(swapped[0], swapped[2])


# --- PCA and length ------------------------------------------------------------------------------


def test_pca_of_the_different_texts(tiny_model: Path, rows_read: list[int]) -> None:
    transformer = plain(tiny_model, n_components=3, pooling="mean")
    found = transformer.fit_transform(TEXTS)
    assert sum(rows_read) == len(set(TEXTS))
    whole = plain(tiny_model, pooling="mean").fit_transform(TEXTS).astype(float)
    different = whole[[i for i, text in enumerate(TEXTS) if TEXTS.index(text) == i]]
    pca = PCA(3, svd_solver="full").fit(different)
    assert found.dtype == np.float32
    assert_close(np.abs(found), np.abs(pca.transform(whole)))
    assert_close(transformer.explained_variance_ratio_, pca.explained_variance_ratio_)
    assert (transformer.components_.shape, transformer.mean_.shape) == ((3, 32), (32,))
    np.testing.assert_array_equal(transformer.fit(TEXTS).transform(TEXTS), found)
    assert list(transformer.get_feature_names_out()) == [f"berttransformer{i}" for i in range(3)]
    unit = transformer.set_params(normalize=True).fit_transform(TEXTS)
    assert_close(np.linalg.norm(unit, axis=1), 1)
    transformer.set_params(n_components=None).fit(TEXTS)
    assert not hasattr(transformer, "components_")
    assert transformer.transform(TEXTS).shape == (len(TEXTS), 32)


def test_pca_of_equal_vectors(tiny_model: Path, tmp_path: Path) -> None:
    transformer = plain(tiny_model, n_components=1)
    found = transformer.fit_transform(["a b", "A B", "a  b"])
    assert_close(found, np.zeros((3, 1)))
    assert transformer.explained_variance_ratio_.tolist() == [0.0]
    transformer.save(tmp_path / "saved")


def test_pca_wants_enough_texts(tiny_model: Path) -> None:
    for X, most in (([*TEXTS[:3], *TEXTS[:3]], 2), (["a"], 0)):
        transformer = plain(tiny_model, n_components=3)
        with pytest.raises(InputError, match=f"n_components=3 is more than {most},"):
            transformer.fit(X)
        with pytest.raises(NotFittedError):
            check_is_fitted(transformer)


# --- long texts and tokens -----------------------------------------------------------------------


@pytest.mark.parametrize("long_text", ["truncate", "head_tail", "windows"])
def test_long_texts(tiny_model: Path, long_text: str) -> None:
    transformer = plain(tiny_model, long_text=long_text, max_length=20, pooling="mean").fit(LONG)
    if long_text == "windows":
        found, tokens = transformer.transform(LONG), transformer.transform_tokens(LONG)
    else:
        with pytest.warns(TruncationWarning, match="2 of 4 different rows"):
            found = transformer.transform(LONG)
        with pytest.warns(TruncationWarning, match="2 of 4 different rows"):
            tokens = transformer.transform_tokens(LONG)
    assert found.shape == (4, 32)
    sizes = {"windows": [300, 2, 350, 1]}.get(long_text, [18, 2, 18, 1])
    assert [len(row) for row in tokens] == sizes
    short = plain(tiny_model, pooling="mean").fit_transform(LONG[1::2])
    assert_close(found[1::2], short)


def test_windows_are_averaged(tiny_model: Path) -> None:
    words = [f"{sign} good" for sign in "abcdefgh"]  # 16 pieces: windows of 8, 6 apart
    text = " ".join(words)
    pieces = text.split()
    windows = [" ".join(pieces[at : at + 8]) for at in (0, 6, 8)]
    transformer = plain(tiny_model, long_text="windows", max_length=10, pooling="mean")
    parts = transformer.fit_transform(windows)
    assert_close(transformer.transform([text])[0], parts.mean(axis=0))
    of_parts = transformer.transform_tokens(windows)
    total, counts = np.zeros((16, 32)), np.zeros((16, 1))
    for at, part in zip((0, 6, 8), of_parts, strict=True):
        total[at : at + 8] += part
        counts[at : at + 8] += 1
    assert_close(transformer.transform_tokens([text])[0], total / counts)


@pytest.mark.parametrize("max_length", [4, 5, 9, 15, 40])
@pytest.mark.parametrize("pair", [False, True])
def test_every_window_knows_its_pieces(tiny_model: Path, max_length: int, pair: bool) -> None:
    """Each token is the piece of its text that it is said to be, and no piece is left out."""
    firsts = ["a b c d e", "", " ".join("abcdefghijklmnopqrstuvw"), "good"]
    seconds = [" ".join("zyxwvutsrqponm"), "b", "a", ""]
    tokenizer = plain(tiny_model).fit(TEXTS)._fitted.network.text_tokenizer
    texts = Texts(firsts, seconds if pair else None, None, 1 + pair)
    items = TokenFeatures(max_length, "windows").encode(texts, None, tokenizer)
    whole, others = tokenizer.pieces(firsts), tokenizer.pieces(seconds)
    seen, counts = [set() for _ in firsts], [0] * len(firsts)
    for row, sample in enumerate(items.samples):
        places, ids = items.places[row], items.tokens.ids[row]
        pieces = whole[sample]
        if pair:
            kept = items.tokens.second[row] - 2  # of the first text, between [CLS] and [SEP]
            pieces = np.concatenate([pieces[:kept], others[sample]])
        np.testing.assert_array_equal(ids[places >= 0], pieces[places[places >= 0]])
        assert set(ids[places < 0]) <= {2, 3}  # [CLS] and [SEP]
        seen[sample] |= set(places[places >= 0].tolist())
        assert max(seen[sample], default=-1) < len(pieces)
        counts[sample] = len(pieces)
    assert [len(places) for places in seen] == counts


@pytest.mark.filterwarnings("ignore:.*empty or whitespace")
def test_tokens_are_word_pieces(tiny_model: Path) -> None:
    out, _, pieces = by_hand(tiny_model, PAIRS)
    found = plain(tiny_model).fit(PAIRS).transform_tokens(PAIRS)
    assert (found.dtype, found.shape) == (object, (len(PAIRS),))
    for row, values in enumerate(found):
        assert_close(values, out.last_hidden_state[row][torch.from_numpy(pieces[row])])
    transformer = plain(tiny_model, layers=[0, 1], layer_join="concat", n_components=2)
    (one, none) = transformer.fit(TEXTS).transform_tokens(["staff", ""])
    assert (one.shape, none.shape) == ((1, 64), (0, 64))
    (none,) = transformer.transform_tokens([" "])
    assert none.shape == (0, 64)


# --- what the model is ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def classifier(tiny_model: Path, sentiment: Sentiment) -> BertClassifier:
    return BertClassifier(
        tiny_model, pooling="mean", epochs=1, learning_rate=1e-3, device="cpu",
        precision="float32", random_state=0,
    ).fit(*sentiment)  # fmt: skip


def encoder_of(estimator: Any, X: list[str]) -> np.ndarray:
    """The mean of the hidden states of an estimator's own model."""
    tokens = estimator.tokenizer_(X, padding=True, return_tensors="pt")
    body = copy.deepcopy(estimator.model_.base_model)
    body.config._attn_implementation = "sdpa"
    with torch.no_grad():
        return pooled(body(**tokens).last_hidden_state, tokens["attention_mask"].numpy(), "mean")


def test_a_fitted_estimator_as_model(classifier: BertClassifier, tiny_model: Path) -> None:
    transformer = plain(classifier).fit(TEXTS)
    found = transformer.transform(TEXTS)
    assert_close(found, encoder_of(classifier, TEXTS))
    assert transformer.pooling_ == "mean"  # as its head reads
    assert type(transformer.model_) is BertModel
    assert np.abs(found - plain(tiny_model, pooling="mean").fit_transform(TEXTS)).max() > 1e-3
    again = plain(transformer, pooling="max").fit(TEXTS)  # a transformer is an estimator too
    assert again.pooling_ == "max"
    assert_close(plain(transformer).fit_transform(TEXTS), found)


@pytest.mark.parametrize("declared", ["cls", "max"])
@pytest.mark.parametrize("kind", [BertTokenTagger, BertPretrainer])
def test_an_estimator_and_its_folder_are_pooled_alike(
    kind: Any, declared: str, tiny_model: Path, tmp_path: Path
) -> None:
    plain(tiny_model, pooling=declared).fit(TEXTS).save_pretrained(tmp_path / "encoder")
    model = kind(tmp_path / "encoder", epochs=1, device="cpu", precision="float32", random_state=0)
    if kind is BertTokenTagger:
        model.fit([["good", "film"], ["bad"]], [["A", "B"], ["A"]])
    else:
        model.fit(TEXTS)
    model.save(tmp_path / "saved")
    found = plain(model).fit(TEXTS)
    assert found.pooling_ == plain(tmp_path / "saved").fit(TEXTS).pooling_ == declared
    np.testing.assert_array_equal(
        found.transform(TEXTS), plain(tmp_path / "saved").fit_transform(TEXTS)
    )


def test_a_fitted_decoder_is_read_both_ways(tiny_model: Path, tmp_path: Path) -> None:
    decoder = BertPretrainer(
        tiny_model, objective="clm", epochs=1, device="cpu", precision="float32", random_state=0
    ).fit(TEXTS)
    decoder.save(tmp_path / "saved")
    vectors = []
    for model in (decoder, tmp_path / "saved"):
        with pytest.warns(SkbertWarning, match="is a decoder: it has learned to read from left"):
            vectors.append(plain(model).fit_transform(TEXTS))
    np.testing.assert_array_equal(*vectors)
    before = decoder.generate(["the film"], max_new_tokens=3).tolist()
    assert before == decoder.generate(["the film"], max_new_tokens=3).tolist()
    assert decoder.model_.config.is_decoder


def test_later_training_changes_nothing(classifier: BertClassifier, sentiment: Sentiment) -> None:
    classifier = copy.deepcopy(classifier)
    transformer = plain(classifier).fit(TEXTS)
    before = transformer.transform(TEXTS)
    classifier.set_params(learning_rate=1e-2).partial_fit(*sentiment)
    np.testing.assert_array_equal(transformer.transform(TEXTS), before)
    assert np.abs(plain(classifier).fit_transform(TEXTS) - before).max() > 1e-3


def test_an_estimator_that_is_not_fitted(tiny_model: Path) -> None:
    with pytest.raises(InputError, match="model is a BertClassifier that is not fitted"):
        plain(BertClassifier(tiny_model)).fit(TEXTS)


def test_clone_keeps_a_fitted_model(classifier: BertClassifier) -> None:
    transformer = plain(classifier, normalize=True).set_output(transform="pandas").fit(TEXTS)
    fresh = clone(transformer)
    assert fresh.model is classifier
    assert not hasattr(fresh, "_fitted")
    assert fresh.get_params() == transformer.get_params()
    pd.testing.assert_frame_equal(fresh.fit_transform(TEXTS), transformer.transform(TEXTS))
    assert not [name for name in transformer.get_params(deep=True) if "__" in name]
    pipeline = clone(make_pipeline(transformer, LogisticRegression()))
    assert pipeline[0].model is classifier
    assert "BertClassifier" in repr(transformer)
    assert "BertClassifier" in pipeline._repr_html_()


@pytest.mark.long
def test_a_search_over_models(
    classifier: BertClassifier, tiny_model: Path, sentiment: Sentiment
) -> None:
    models = [tiny_model, FrozenEstimator(classifier)]  # a search clones its candidates
    pipeline = make_pipeline(plain(tiny_model, pooling="mean"), LogisticRegression())
    search = GridSearchCV(pipeline, {"berttransformer__model": models}, cv=2)
    search.fit(*sentiment)
    for row, model in enumerate(models):
        pipeline.set_params(berttransformer__model=model)
        scores = cross_val_score(pipeline, *sentiment, cv=2)
        assert search.cv_results_["mean_test_score"][row] == pytest.approx(scores.mean())


TAUGHT = {
    "tagger": (BertTokenTagger, [["good", "film"], ["bad", "room"]], [["O", "B-X"]] * 2),
    "extractor": (
        BertSpanExtractor,
        [("what?", "the film"), ("who?", "a book")],
        ["film", "book"],
    ),
    "ranker": (BertChoiceRanker, [("the film", ["good", "bad"]), ("a book", ["x", "y"])], [0, 1]),
}


@pytest.mark.parametrize("name", TAUGHT)
def test_encoders_of_other_jobs(tiny_model: Path, tmp_path: Path, name: str) -> None:
    """As estimators and as folders they give the same vectors."""
    kind, X, y = TAUGHT[name]
    taught = kind(tiny_model, epochs=1, device="cpu", precision="float32", random_state=0)
    taught.fit(X, y)
    expected = plain(taught).fit(TEXTS)
    assert expected.pooling_ == ("pooler" if name == "ranker" else "mean")
    vectors = expected.transform(TEXTS)
    if name != "ranker":
        assert_close(vectors, encoder_of(taught, TEXTS))
    taught.save(tmp_path / "saved")
    from_folder = plain(tmp_path / "saved").fit(TEXTS)
    assert from_folder.pooling_ == expected.pooling_
    np.testing.assert_array_equal(from_folder.transform(TEXTS), vectors)


def test_every_saved_folder_is_a_model(classifier: BertClassifier, tmp_path: Path) -> None:
    expected = plain(classifier).fit_transform(TEXTS)
    classifier.save(tmp_path / "classifier")
    from_folder = plain(tmp_path / "classifier").fit(TEXTS)
    assert from_folder.pooling_ == "mean"
    np.testing.assert_array_equal(from_folder.transform(TEXTS), expected)
    from_folder.save(tmp_path / "transformer")
    np.testing.assert_array_equal(plain(tmp_path / "transformer").fit_transform(TEXTS), expected)
    taught = BertClassifier(tmp_path / "transformer", epochs=1, freeze="all", device="cpu")
    taught.fit(TEXTS, np.arange(len(TEXTS)) % 2)
    assert_close(plain(taught, pooling="mean").fit_transform(TEXTS), expected)


def test_from_pretrained(tiny_model: Path, minilm: Path) -> None:
    opened = BertTransformer.from_pretrained(tiny_model, device="cpu", precision="float32")
    np.testing.assert_array_equal(opened.transform(TEXTS), plain(tiny_model).fit_transform(TEXTS))
    assert BertTransformer.from_pretrained(minilm).pooling_ == "mean"
    with pytest.raises(InputError, match="n_components=2 needs texts"):
        BertTransformer.from_pretrained(tiny_model, n_components=2)
    with pytest.raises(ModelError):
        BertTransformer.from_pretrained("no/such-model")
    with pytest.raises(ValueError, match="pooling"):
        BertTransformer.from_pretrained(tiny_model, pooling="sum")


def test_auto_pooling(tiny_model: Path, minilm: Path) -> None:
    assert plain(tiny_model).fit(TEXTS).pooling_ == "pooler"
    assert plain(tiny_model, layers=-1).fit(TEXTS).pooling_ == "mean"
    assert plain(minilm).fit(TEXTS).pooling_ == "mean"
    assert plain(minilm).fit(PAIRS).pooling_ == "pooler"


def test_a_missing_pooler(make_tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    folder = make_tiny_model()
    bare = tmp_path / "bare"
    BertModel.from_pretrained(folder, add_pooling_layer=False).save_pretrained(bare)
    AutoTokenizer.from_pretrained(folder).save_pretrained(bare)
    transformer = plain(bare).fit(TEXTS)
    assert transformer.pooling_ == "mean"
    assert transformer.model_.pooler is None
    transformer.save(tmp_path / "saved")
    state = torch.get_rng_state()
    for again in (BertTransformer.load(tmp_path / "saved"), plain(transformer).fit(TEXTS)):
        assert again.pooling_ == "mean"
        np.testing.assert_array_equal(again.transform(TEXTS), transformer.transform(TEXTS))
    assert torch.equal(torch.get_rng_state(), state)
    for model in (bare, transformer, BertTransformer.load(tmp_path / "saved")):
        with pytest.raises(ModelError, match="has no pooler"):
            plain(model, pooling="pooler").fit(TEXTS)


# --- keeping it ----------------------------------------------------------------------------------

CASES = {
    "plain": {},
    "pca": {"n_components": 2, "normalize": True, "memory": True},
    "no place": {"memory": joblib.Memory(None, verbose=0)},
    "wide": {"pooling": "mean_max", "layers": (0, -1), "layer_join": "concat"},
    "windows": {"long_text": "windows", "max_length": 12, "layers": 1, "precision": "float64"},
}


@pytest.mark.parametrize("name", CASES)
def test_save_and_load(tiny_model: Path, tmp_path: Path, name: str) -> None:
    params = dict(CASES[name])
    if params.get("memory") is True:
        params["memory"] = joblib.Memory(tmp_path / "cache", verbose=0)
    frame = pd.DataFrame({"text": TEXTS})
    transformer = plain(tiny_model, **params).fit(frame)
    transformer.save(tmp_path / "saved")
    loaded = BertTransformer.load(tmp_path / "saved")
    expected = transformer.transform(frame)
    np.testing.assert_array_equal(loaded.transform(frame), expected)
    np.testing.assert_array_equal(loaded.get_feature_names_out(),
                                  transformer.get_feature_names_out())  # fmt: skip
    ours, theirs = (each._fitted.attributes.keys() for each in (transformer, loaded))
    assert ours == theirs
    assert loaded.model == str(tiny_model)
    assert loaded.pooling_ == transformer.pooling_
    for copied in (pickle.loads(pickle.dumps(transformer)), copy.deepcopy(transformer)):
        np.testing.assert_array_equal(copied.transform(frame), expected)
    np.testing.assert_array_equal(clone(loaded).fit_transform(frame), expected)


def test_saving_the_encoder_of_an_estimator(classifier: BertClassifier, tmp_path: Path) -> None:
    transformer = plain(classifier).fit(TEXTS)
    expected = transformer.transform(TEXTS)
    transformer.save(tmp_path / "saved")
    assert transformer.model is classifier
    loaded = BertTransformer.load(tmp_path / "saved")
    assert loaded.model == str(tmp_path / "saved")
    np.testing.assert_array_equal(loaded.transform(TEXTS), expected)
    np.testing.assert_array_equal(clone(loaded).fit_transform(TEXTS), expected)
    for copied in (pickle.loads(pickle.dumps(transformer)), copy.deepcopy(transformer)):
        np.testing.assert_array_equal(copied.transform(TEXTS), expected)
        np.testing.assert_array_equal(clone(copied).fit_transform(TEXTS), expected)
    moved = shutil.move(tmp_path / "saved", tmp_path / "moved")
    assert BertTransformer.load(moved).model == str(moved)
    with pytest.raises(SaveError, match=r"BertTransformer\.load"):
        BertClassifier.load(moved)


def test_save_pretrained(tiny_model: Path, tmp_path: Path) -> None:
    plain(tiny_model, pooling="mean").fit(TEXTS).save_pretrained(tmp_path / "folder")
    ours, theirs = (by_hand(folder, TEXTS)[0] for folder in (tmp_path / "folder", tiny_model))
    assert torch.equal(ours.last_hidden_state, theirs.last_hidden_state)


# --- in scikit-learn's hands ---------------------------------------------------------------------


@pytest.fixture
def table() -> pd.DataFrame:
    index = [f"row {i}" for i in range(len(TEXTS))]
    return pd.DataFrame(
        {"title": TEXTS, "body": TEXTS[::-1], "price": np.arange(len(TEXTS)) / 2.0}, index=index
    )


@pytest.mark.parametrize("output", ["default", "pandas", "polars"])
def test_column_transformer(tiny_model: Path, table: pd.DataFrame, output: str) -> None:
    bert = plain(tiny_model, pooling="mean")
    columns = ColumnTransformer(
        [
            ("title", bert, "title"),
            ("body", clone(bert), ["body"]),
            ("both", clone(bert).set_params(n_components=2), ["title", "body"]),
            ("number", StandardScaler(), ["price"]),
        ]
    ).set_output(transform=output)
    given = pl.from_pandas(table) if output == "polars" else table
    found = columns.fit_transform(given)
    assert found.shape == (len(TEXTS), 32 + 32 + 2 + 1)
    values = np.asarray(found)
    assert_close(values[:, :32], bert.fit_transform(TEXTS))
    assert_close(values[:, 32:64], bert.fit_transform(TEXTS[::-1]))
    assert_close(np.asarray(columns.transform(given)), values)
    names = list(columns.get_feature_names_out())
    assert (names[0], names[32], names[65]) == (
        "title__title_0", "body__body_0", "both__title_body_1",
    )  # fmt: skip
    if output != "default":
        assert list(found.columns) == names
        assert type(found).__module__.startswith(output)
    if output == "pandas":
        assert list(found.index) == list(table.index)


def test_union_and_pipeline(tiny_model: Path, sentiment: Sentiment) -> None:
    X, y = sentiment
    first, second = plain(tiny_model, pooling="mean"), plain(tiny_model, pooling="cls", layers=1)
    union = make_union(first, second)
    assert isinstance(union, FeatureUnion)
    expected = np.hstack([first.fit_transform(X), second.fit_transform(X)])
    np.testing.assert_array_equal(union.fit_transform(X), expected)
    pipeline = make_pipeline(union, LogisticRegression(max_iter=1000)).fit(X, y)
    assert pipeline.score(X, y) > 0.9
    assert set(pipeline.predict(X)) == {"good", "bad"}


@pytest.mark.parametrize("output", ["pandas", "polars"])
def test_set_output(tiny_model: Path, table: pd.DataFrame, output: str) -> None:
    transformer = plain(tiny_model).set_output(transform=output)
    found = transformer.fit_transform(table["title"])
    assert list(found.columns) == [f"berttransformer{i}" for i in range(32)]
    assert set(map(str, found.dtypes)) <= {"float32", "Float32"}
    assert_close(np.asarray(found), plain(tiny_model).fit_transform(TEXTS), 0)
    assert isinstance(transformer.transform_tokens(TEXTS), np.ndarray)


def test_names_and_columns_of_x(tiny_model: Path, table: pd.DataFrame) -> None:
    transformer = plain(tiny_model, text_columns="body")
    with pytest.raises(NotFittedError):
        transformer.get_feature_names_out()
    transformer.fit(table)
    assert list(transformer.feature_names_in_) == ["title", "body", "price"]
    assert transformer.n_features_in_ == 3
    assert_close(transformer.transform(table[["body"]]), plain(tiny_model).fit_transform(
        TEXTS[::-1]))  # fmt: skip
    transformer.fit(TEXTS)
    assert not hasattr(transformer, "feature_names_in_")
    assert not hasattr(transformer, "n_features_in_")


def test_names_start_with_the_text_column(tiny_model: Path, table: pd.DataFrame) -> None:
    transformer = plain(tiny_model, text_columns="body", n_components=2)
    assert transformer.fit(table).get_feature_names_out().tolist() == ["body_0", "body_1"]
    assert transformer.get_feature_names_out(["title", "body", "price"])[0] == "body_0"
    both = transformer.set_params(text_columns=["title", "body"]).fit(table)
    assert both.get_feature_names_out()[1] == "title_body_1"
    listed = plain(tiny_model, n_components=2).fit(TEXTS)
    assert listed.get_feature_names_out().tolist() == ["berttransformer0", "berttransformer1"]
    assert listed.get_feature_names_out(["review"]).tolist() == ["review_0", "review_1"]
    placed = plain(tiny_model, n_components=2, text_columns=1).fit(table.to_numpy())
    assert placed.n_features_in_ == 3
    assert placed.get_feature_names_out(["title", "body", "price"])[0] == "body_0"
    with pytest.raises(InputError, match="equal to number of features"):
        placed.get_feature_names_out(["body"])
    named = plain(tiny_model).set_output(transform="pandas").fit_transform(table[["body"]])
    assert named.columns[0] == "body_0"
    for odd in (["a", "b"], [], [None], [["a"]], "abc", 3, {"a": 1}):
        with pytest.raises((InputError, InputTypeError), match="input_features"):
            listed.get_feature_names_out(odd)
    with pytest.raises(InputError, match="not equal to feature_names_in_"):
        transformer.get_feature_names_out(["title"])


# --- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"pooling": "pooler", "layers": -1}, r"pooling='pooler' reads the last layer only"),
        ({"layers": 3}, r"layers=3 does not name .* from 0, .* to 2, .* to -3"),
        ({"layers": -4}, "layers=-4 does not name"),
        ({"layers": []}, r"layers=\[\] does not name"),
        ({"layers": [0.5]}, r"layers=\[0.5\] does not name"),
        ({"layers": [True]}, r"layers=\[True\] does not name"),
        ({"layers": ["last"]}, "does not name"),
        ({"layers": [[0, 1]]}, "does not name"),
        ({"layers": [2, -1]}, "names a layer twice"),
        ({"layers": "last"}, "'layers' parameter"),
        ({"layer_join": "sum"}, "'layer_join' parameter"),
        ({"pooling": "sum"}, "'pooling' parameter"),
        ({"n_components": 0}, "'n_components' parameter"),
        ({"n_components": 0.9}, "'n_components' parameter"),
        ({"memory": 3}, "'memory' parameter"),
        ({"normalize": "l2"}, "'normalize' parameter"),
        ({"model": 3}, "'model' parameter"),
        ({"model": LogisticRegression()}, "'model' parameter"),
        ({"max_length": 1000}, "max_length=1000: this model reads between 4 and 128"),
        ({"device": "gpu"}, "device='gpu'"),
        ({"precision": "int4"}, "'precision' parameter"),
    ],
)
def test_bad_parameters(tiny_model: Path, params: dict[str, Any], words: str) -> None:
    transformer = plain(tiny_model).set_params(**params)
    with pytest.raises(ValueError, match=words):
        transformer.fit(TEXTS)
    with pytest.raises(NotFittedError):
        transformer.transform(TEXTS)


@pytest.mark.parametrize(
    ("X", "error", "words"),
    [
        ("a text", InputError, "Iterable over raw text documents expected"),
        ([], InputError, r"Found array with 0 sample\(s\)"),
        (["a", None], InputError, "1 missing text.* row 1"),
        (["a", 3], InputTypeError, "row 1 holds 3, of type int"),
        ([("a", "b"), ("c",)], InputError, "row 1"),
        ({"text": TEXTS}, InputTypeError, "type dict"),
        (pd.DataFrame({"a": ["x"], "b": ["y"], "c": ["z"]}), InputError, "X has 3 "),
    ],
)
def test_bad_texts(tiny_model: Path, X: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        plain(tiny_model).fit(X)
    fitted = plain(tiny_model).fit(TEXTS)
    for method in (fitted.transform, fitted.transform_tokens):
        with pytest.raises(error, match=words):
            method(X)


@pytest.mark.filterwarnings("ignore:.*empty or whitespace")
def test_missing_texts_can_be_empty(tiny_model: Path) -> None:
    found = plain(tiny_model, missing="empty").fit_transform(["good", None, ""])
    np.testing.assert_array_equal(found[1], found[2])
    assert np.isfinite(found).all()


def test_features_have_no_loss() -> None:
    with pytest.raises(TypeError, match="nothing to learn"):
        Features(8).loss(torch.zeros(1), None)


def test_x_of_pairs_stays_pairs(tiny_model: Path, sentiment: Sentiment) -> None:
    transformer = plain(tiny_model).fit(PAIRS)
    with pytest.raises(InputError, match="is expecting 2 features"):
        transformer.transform(TEXTS)
    regressor = BertRegressor(tiny_model, epochs=1, device="cpu", random_state=0)
    regressor.fit(sentiment.texts, np.arange(40.0))
    assert plain(regressor).fit(PAIRS).pooling_ == "pooler"


def test_a_dense_layer_of_a_sentence_encoder_is_refused_where_it_would_count(
    tiny_model: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(tiny_model, tmp_path / "model"))
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Dense": "Dense"}
    chain = [{"path": path, "type": f"sentence_transformers.models.{kind}"}
             for path, kind in kinds.items()]  # fmt: skip
    (folder / "modules.json").write_text(json.dumps(chain))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode": "max"}')
    X, y = ["a good day", "bad", "a book"], [0, 1, 1]
    message = r"with the module Dense, which is not computed here\. Set pooling='max'"
    for estimator in (BertTransformer(model=folder), BertClassifier(model=folder)):
        with pytest.raises(ModelError, match=message):
            estimator.fit(X, y)
    want = BertTransformer(model=tiny_model, pooling="max").fit_transform(X)
    vectors = BertTransformer(model=folder, pooling="max").fit_transform(X)
    assert np.array_equal(vectors, want)
    pairs = [("a good day", "bad"), ("bad", "a book")]  # for which no encoder declares a pooling
    assert BertTransformer(model=folder).fit(pairs).pooling_ == "pooler"
    assert BertClassifier(model=folder, epochs=1).fit(pairs, [0, 1]).pooling_ == "pooler"
    tags = [["X"] * len(text.split()) for text in X]
    BertTokenTagger(model=folder, epochs=1).fit([text.split() for text in X], tags)


def test_two_poolings_are_kept_where_the_model_is_replaced(
    tiny_model: Path, tmp_path: Path
) -> None:
    transformer = plain(tiny_model, pooling="mean_max").fit(TEXTS)
    expected = transformer.transform(TEXTS)
    transformer.model_ = copy.deepcopy(transformer.model_)
    np.testing.assert_array_equal(transformer.transform(TEXTS), expected)
    transformer.save(tmp_path / "saved")
    again = BertTransformer.load(tmp_path / "saved")
    np.testing.assert_array_equal(again.transform(TEXTS), expected)
