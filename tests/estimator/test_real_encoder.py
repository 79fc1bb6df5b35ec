"""The real encoder: what is said of a text depends on that text alone, in every precision.

Random weights of a tiny model hide what matters here, so this runs on MiniLM. It is fitted once.
"""

from __future__ import annotations

import copy
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skbert import BertClassifier, BertRegressor
from skbert.datasets import load_intents

if TYPE_CHECKING:
    from pathlib import Path

# Of all kinds and lengths; the last ones are longer than the 512 tokens that the model reads.
POOL = [
    "Which cards do you take?", "I forgot my password", "", "  ", "?", "refund", "REFUND!!!",
    "Where is my parcel, it should have come on Monday and nobody can tell me anything?",
    "The app closes by itself as soon as I open the camera.", "Grüße aus Köln, wo ist mein Paket?",
    "返金してください", "🙂🙂🙂", "[SEP] [CLS] [MASK]", "a b c d e f g h i j k l m n o p",
    "cancel my subscription " * 20, "the parcel is late and " * 40, "word " * 600, "x" * 3000,
]  # fmt: skip
# Largest difference of a probability; float64 must be equal once rounded to float32.
TOLERANCE = {"float32": 1e-5, "bfloat16": 3e-2, "float64": 0.0}

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
pytestmark = pytest.mark.filterwarnings("ignore::skbert.exceptions.SkbertWarning")


@pytest.fixture(scope="module")
def classifier(minilm: Path) -> BertClassifier:
    X, y = load_intents(return_X_y=True)
    chosen = slice(0, 96)
    return BertClassifier(
        minilm, epochs=1, freeze="all", device="cpu", precision="float32", random_state=0
    ).fit(X[chosen], y[chosen])


@pytest.fixture(scope="module", params=TOLERANCE)
def reader(request: pytest.FixtureRequest, classifier: BertClassifier) -> Any:
    """Give the fitted classifier in one precision, and what it says of all texts at once."""
    reader = copy.deepcopy(classifier).set_params(precision=request.param)
    return reader, reader.predict_proba(POOL), TOLERANCE[request.param]


def assert_close(found: np.ndarray, expected: np.ndarray, tolerance: float) -> None:
    if tolerance == 0:
        assert found.dtype == np.float64
        np.testing.assert_array_equal(found.astype(np.float32), expected.astype(np.float32))
    else:
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)
    best, second = np.sort(expected, axis=1)[:, ::-1][:, :2].T
    clear = best - second > 2 * tolerance
    np.testing.assert_array_equal(
        found.argmax(axis=1)[clear], expected.argmax(axis=1)[clear], err_msg="labels differ"
    )


def test_learns(classifier: BertClassifier) -> None:
    X, y = load_intents(return_X_y=True)
    assert classifier.pooling_ == "mean"
    assert classifier.score(X[96:196], y[96:196]) > 0.6  # one in eight by chance
    assert set(classifier.predict(X[:50])) <= set(y)


@settings(max_examples=12)
@given(rows=st.lists(st.integers(0, len(POOL) - 1), min_size=1, max_size=6))
def test_composition_and_order_of_a_batch(reader: Any, rows: list[int]) -> None:
    model, alone, tolerance = reader
    assert_close(model.predict_proba([POOL[row] for row in rows]), alone[rows], tolerance)


@settings(max_examples=12)
@given(neighbours=st.lists(texts, min_size=1, max_size=6), place=st.integers(0, 6))
def test_neighbours(reader: Any, neighbours: list[str], place: int) -> None:
    model, alone, tolerance = reader
    batch = [*neighbours[:place], *POOL[:5], *neighbours[place:]]
    begin = min(place, len(neighbours))
    found = model.predict_proba(batch)
    assert_close(found[begin : begin + 5], alone[:5], tolerance)
    labels = model.predict(batch)
    assert labels.tolist() == model.classes_[found.argmax(axis=1)].tolist()


def test_permutations_of_everything(reader: Any) -> None:
    model, alone, tolerance = reader
    order = np.random.default_rng(0).permutation(len(POOL))
    assert_close(model.predict_proba([POOL[row] for row in order]), alone[order], tolerance)
    assert_close(model.predict_proba(POOL[::-1] * 2)[: len(POOL)], alone[::-1], tolerance)


def test_one_text_at_a_time(reader: Any) -> None:
    model, alone, tolerance = reader
    singles = np.concatenate([model.predict_proba([text]) for text in POOL[:12]])
    assert_close(singles, alone[:12], tolerance)


def test_copies_say_the_same(classifier: BertClassifier, tmp_path: Path) -> None:
    classifier.save(tmp_path / "saved")
    expected = classifier.predict_proba(POOL)
    for name, other in {
        "saved": BertClassifier.load(tmp_path / "saved"),
        "pickled": pickle.loads(pickle.dumps(classifier)),
        "copied": copy.deepcopy(classifier),
    }.items():
        np.testing.assert_array_equal(other.predict_proba(POOL), expected, err_msg=name)


def test_same_seed_same_bits(minilm: Path) -> None:
    X, y = POOL[:12], np.arange(12.0)
    first, second = (
        BertRegressor(minilm, epochs=1, batch_size=4, freeze=4, random_state=0, device="cpu")
        for _ in range(2)
    )
    np.testing.assert_array_equal(first.fit(X, y).predict(X), second.fit(X, y).predict(X))
    weights, others = first.model_.state_dict(), second.model_.state_dict()
    assert all(bool((weights[name] == others[name]).all()) for name in weights)
