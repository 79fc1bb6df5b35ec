"""The classifier: what comes back for every kind of label, weight, long text and later batch.

What all estimators promise of a fit is in ``test_regressor.py``, saving in ``test_save.py``.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from scipy.special import expit, logit, softmax
from sklearn.metrics import accuracy_score, f1_score
from sklearn.utils.class_weight import compute_sample_weight
from support.items import make_items
from torch.nn import functional as F

from skbert import BertClassifier, BertRegressor, load
from skbert._classification.targets import IndicatorTargets
from skbert._classification.task import MultiLabel
from skbert._core.batches import collate
from skbert.exceptions import InputError, InputTypeError, SkbertError, TruncationWarning

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Sentiment

# Learns the sentiment fixture from nothing in a quarter of a second.
LEARNS = {"pooling": "mean", "epochs": 5, "learning_rate": 3e-3, "head_learning_rate": 1e-2}
STILL = {"learning_rate": 1e-12, "head_learning_rate": 1e-12}  # a fit that moves no weight
KINDS = {"good": 0, "bad": 1}


def classifier(model: Path, **params: Any) -> BertClassifier:
    plain = {"epochs": 1, "device": "cpu", "precision": "float32", "random_state": 0}
    return BertClassifier(model, **{**plain, **params})


def indicator(labels: list[str]) -> np.ndarray:
    """One column per label, and one for rows that alternate."""
    columns = [[label == kind for label in labels] for kind in KINDS]
    return np.array([*columns, [row % 4 < 2 for row in range(len(labels))]], dtype=int).T


# --- labels --------------------------------------------------------------------------------------

# name: what to make of the codes 0 and 1 -> y, and the type of each prediction
LABELS: dict[str, tuple[Callable[[np.ndarray], Any], type]] = {
    "list of str": (lambda c: np.array(["no", "yes"])[c].tolist(), np.str_),
    "long double": (lambda c: c.astype(np.longdouble), np.float64),
    "object array of str": (lambda c: np.array(["no", "yes"], dtype=object)[c], str),
    "Series of str, odd index": (
        lambda c: pd.Series(np.array(["no", "yes"])[c], index=-np.arange(len(c))), str),
    "categorical": (
        lambda c: pd.Categorical.from_codes(c * 2, ["zero", "unused", "two"]), str),
    "polars": (lambda c: pl.Series(np.array(["no", "yes"])[c].tolist()), str),
    "int": (lambda c: (c * 7 - 3).tolist(), np.int64),
    "int8": (lambda c: c.astype(np.int8), np.int8),
    "object of int": (lambda c: np.array([10, 20], dtype=object)[c], np.int64),
    "bool": (lambda c: c.astype(bool), np.bool_),
    "whole floats": (lambda c: c * 2.0 - 1.0, np.float64),
}  # fmt: skip


@pytest.mark.parametrize("kind", LABELS)
def test_labels_come_back_as_they_were(kind: str, tiny_model: Path, sentiment: Sentiment) -> None:
    make, cell = LABELS[kind]
    codes = np.array([KINDS[label] for label in sentiment.labels])
    y = make(codes)
    fitted = classifier(tiny_model, **LEARNS).fit(sentiment.texts, y)
    predicted = fitted.predict(sentiment.texts)
    assert {type(label) for label in predicted} == {cell}
    assert predicted.dtype == fitted.classes_.dtype
    assert predicted.tolist() == list(y)
    assert fitted.classes_.tolist() == sorted(set(y))


CONTAINERS: tuple[Callable[[list[str]], Any], ...] = (
    tuple, np.array, lambda X: np.array(X, dtype=object), pd.Index, pl.Series,
    lambda X: pd.Series(X, index=range(100, 100 - len(X), -1)),
    lambda X: pd.Series(X, dtype="category"), lambda X: pd.DataFrame({"text": X}),
    lambda X: np.array(X)[:, None], lambda X: pl.DataFrame({"text": X}),
)  # fmt: skip


def test_containers_of_texts_do_not_matter(tiny_model: Path, sentiment: Sentiment) -> None:
    X, y = sentiment
    expected = classifier(tiny_model).fit(X, y).predict_proba(X)
    for hold in CONTAINERS:
        found = classifier(tiny_model).fit(hold(X), pd.Series(y)).predict_proba(hold(X))
        np.testing.assert_array_equal(found, expected, err_msg=str(type(hold(X))))


def test_pairs(tiny_model: Path, sentiment: Sentiment) -> None:
    X, y = sentiment
    pairs = [("is it good?", text) for text in X]
    fitted = classifier(tiny_model, **LEARNS).fit(pairs, y)
    assert fitted.score(pairs, y) == 1.0
    expected = fitted.predict_proba(pairs)
    frame = pd.DataFrame(pairs, columns=["question", "answer"])
    np.testing.assert_array_equal(fitted.predict_proba(frame), expected)
    np.testing.assert_array_equal(fitted.predict_proba(np.array(pairs)), expected)
    swapped = fitted.predict_proba([pair[::-1] for pair in pairs])
    assert np.abs(swapped - expected).max() > 1e-3
    with pytest.raises(InputError, match="2 features"):
        fitted.predict(X)


def test_learns_on_every_device(device: str, tiny_model: Path, sentiment: Sentiment) -> None:
    X, y = sentiment
    fitted = classifier(tiny_model, device=device, **LEARNS).fit(X, y)
    assert fitted.score(X, y) == 1.0
    assert fitted.model_.device.type == device


# --- scores --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("precision", "dtype"), [("float32", "f4"), ("float64", "f8")])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_scores_agree(
    n_classes: int, precision: str, dtype: str, tiny_model: Path, sentiment: Sentiment
) -> None:
    X = sentiment.texts
    y = [f"label {row % n_classes}" for row in range(len(X))]
    fitted = classifier(tiny_model, precision=precision, **LEARNS).fit(X, y)
    proba, scores = fitted.predict_proba(X), fitted.decision_function(X)
    assert proba.dtype == scores.dtype == np.dtype(dtype)
    assert proba.shape == (len(X), n_classes)
    np.testing.assert_allclose(proba.sum(axis=1), 1, rtol=1e-6)
    np.testing.assert_array_equal(fitted.predict(X), fitted.classes_[proba.argmax(axis=1)])
    if n_classes == 2:
        assert scores.shape == (len(X),)
        np.testing.assert_allclose(expit(scores), proba[:, 1], rtol=1e-5)
        np.testing.assert_array_equal(fitted.predict(X), fitted.classes_[(scores > 0).astype(int)])
    else:
        assert scores.shape == (len(X), n_classes)
        np.testing.assert_allclose(softmax(scores, axis=1), proba, rtol=1e-5)
    assert fitted.score(X, y) == accuracy_score(y, fitted.predict(X))


def test_multi_label(tiny_model: Path, sentiment: Sentiment) -> None:
    X, Y = sentiment.texts, indicator(sentiment.labels)
    fitted = classifier(tiny_model, **LEARNS).fit(X, Y)
    predicted, proba = fitted.predict(X), fitted.predict_proba(X)
    assert (predicted.shape, predicted.dtype) == (Y.shape, np.int64)
    np.testing.assert_array_equal(predicted[:, :2], Y[:, :2])
    np.testing.assert_array_equal(predicted, proba >= 0.5)
    np.testing.assert_allclose(expit(fitted.decision_function(X)), proba, rtol=1e-6)
    assert np.abs(proba.sum(axis=1) - 1).max() > 0.1
    assert fitted.classes_.tolist() == [0, 1, 2]
    assert fitted.score(X, Y) == (predicted == Y).all(axis=1).mean()
    again = classifier(tiny_model, **LEARNS).fit(X, pd.DataFrame(Y, columns=["a", "b", "c"]))
    np.testing.assert_array_equal(again.predict_proba(X), proba)
    again.fit(X, sentiment.labels)
    assert not hasattr(again, "thresholds_")


def test_one_class(tiny_model: Path, sentiment: Sentiment) -> None:
    X = sentiment.texts
    fitted = classifier(tiny_model).fit(X, ["only"] * len(X))
    assert set(fitted.predict(X)) == {"only"}
    np.testing.assert_array_equal(fitted.predict_proba(X), np.ones((len(X), 1)))
    assert fitted.score(X, ["only", "new"] * (len(X) // 2)) == 0.5


@pytest.mark.parametrize("pooling", ["mean", "pooler"])
def test_one_class_outlives_saving(
    pooling: str, tiny_model: Path, sentiment: Sentiment, tmp_path: Path
) -> None:
    X = sentiment.texts
    fitted = classifier(tiny_model, pooling=pooling).fit(X, ["only"] * len(X))
    fitted.save(tmp_path / "saved")
    fitted.save_pretrained(tmp_path / "folder")
    loaded = load(tmp_path / "saved")
    np.testing.assert_array_equal(loaded.decision_function(X), fitted.decision_function(X))
    opened = BertClassifier.from_pretrained(tmp_path / "folder", device="cpu")
    for again in (loaded, opened):
        assert again.classes_.tolist() == ["only"]
        assert set(again.predict(X)) == {"only"}
    more = classifier(tmp_path / "folder", pooling=pooling).fit(*sentiment)  # and is a model
    more.save_pretrained(tmp_path / "more")
    assert "skbert_targets" not in (tmp_path / "more" / "config.json").read_text()


# --- weights and smoothing -----------------------------------------------------------------------


@pytest.mark.parametrize("given", [{"good": 3.0}, {"good": 0, "bad": 2}, "balanced"], ids=str)
def test_class_weight_is_a_sample_weight(
    given: Any, tiny_model: Path, sentiment: Sentiment
) -> None:
    X, y = sentiment.texts[:30], np.array(sentiment.labels)[:30]
    y[:14] = "good"
    own = np.ones(len(X)) if given == "balanced" else np.linspace(0.5, 2, len(X))
    factors = compute_sample_weight(given, y)
    weighted = classifier(tiny_model, **LEARNS).fit(X, y, sample_weight=factors * own)
    by_class = classifier(tiny_model, class_weight=given, **LEARNS).fit(X, y, sample_weight=own)
    expected = weighted.predict_proba(X)
    np.testing.assert_allclose(by_class.predict_proba(X), expected, atol=1e-6)
    plain = classifier(tiny_model, **LEARNS).fit(X, y).predict_proba(X)
    assert np.abs(plain - expected).max() > 1e-4


def test_class_weight_of_multi_label_columns(tiny_model: Path, sentiment: Sentiment) -> None:
    X, Y = sentiment.texts, indicator(sentiment.labels)
    plain = classifier(tiny_model).fit(X, Y).predict_proba(X).mean(axis=0)
    heavy = classifier(tiny_model, class_weight={2: 9.0}).fit(X, Y).predict_proba(X).mean(axis=0)
    assert heavy[2] > plain[2] + 0.2
    np.testing.assert_allclose(heavy[:2], plain[:2], atol=0.05)


def test_a_factor_on_a_label_leaves_rows_without_it_as_they_are() -> None:
    """Also where labels are smoothed, and rows without the label have a share of it."""
    targets, logits = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[0.5, -1.0]] * 2)
    items, cpu = make_items([3, 3], targets=targets.numpy()), torch.device("cpu")
    factors = torch.tensor([[40.0, 1.0], [1.0, 3.0]])
    weighted = items.weighted(factors.mean(dim=1).numpy())  # as a plan does
    batch = collate(weighted, np.arange(2), cpu, torch.float32)
    loss, weight = MultiLabel(2, 16, "truncate", 0.2, (40.0, 3.0)).loss(logits, batch)
    each = F.binary_cross_entropy_with_logits(logits, targets * 0.8 + 0.1, reduction="none")
    factors *= torch.from_numpy(items.weights).float()[:, None]
    expected = (each * factors).sum()
    assert float(weight) == pytest.approx(float(factors.sum()))
    assert float(loss) == pytest.approx(float(expected), rel=1e-6)


def test_balanced_labels_weigh_the_same_whatever_the_unit_of_weights() -> None:
    truth, weights = np.array([[1, 0], [1, 1], [1, 0], [0, 0]]), np.array([1.0, 2.0, 3.0, 4.0])
    factors = [IndicatorTargets(truth)._factors("balanced", weights * x) for x in (1, 1e-12, 1e12)]
    np.testing.assert_allclose(factors[1:], [factors[0]] * 2)


@pytest.mark.parametrize("labels", [["good"] * 4, [["good", "x"]] * 4], ids=["one", "several"])
def test_rows_whose_classes_all_weigh_nothing_are_refused(labels: Any, tiny_model: Path) -> None:
    X, y = ["good book", "nice film"] * 2, np.array(labels)
    own: Any = {"good": 0.0} if y.ndim == 1 else [{"good": 0.0}, {"x": 0.0}]
    first, more = (["bad", "good"] if y.ndim == 1 else [["bad", "z"], ["good", "x"]]), X[:2]
    weights = own if y.ndim == 1 else {0: own[0], 1: own[1]}
    fitted = classifier(tiny_model, class_weight=weights).partial_fit(more, np.array(first))
    with pytest.raises(InputError, match="All rows have a weight of 0"):
        fitted.partial_fit(X, y)
    assert len(fitted.history_) == 1


@pytest.mark.parametrize("kind", ["single label", "multi-label"])
def test_weight_of_two_is_the_row_twice(
    kind: str, tiny_model_no_dropout: Path, sentiment: Sentiment
) -> None:
    X, y = np.array(sentiment.texts), np.array(sentiment.labels)
    y = y if kind == "single label" else indicator(sentiment.labels)
    times = np.arange(len(X)) % 3  # 0, 1 or 2
    exact = {"precision": "float64", "batch_size": 200, "epochs": 4, "learning_rate": 1e-3}
    first, second, plain = (classifier(tiny_model_no_dropout, **exact) for _ in range(3))
    proba = first.fit(X, y, sample_weight=times).predict_proba(X)
    twice = second.fit(np.repeat(X, times), np.repeat(y, times, axis=0)).predict_proba(X)
    np.testing.assert_allclose(proba, twice, rtol=1e-7)
    assert np.abs(plain.fit(X, y).predict_proba(X) - proba).max() > 1e-4
    assert first.history_[-1]["loss"] == pytest.approx(second.history_[-1]["loss"], rel=1e-9)


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_loss_is_smoothed_cross_entropy(
    smoothing: float, tiny_model_no_dropout: Path, sentiment: Sentiment
) -> None:
    X, y = sentiment
    given = {"precision": "float64", "label_smoothing": smoothing, "head_init": "random", **STILL}
    fitted = classifier(tiny_model_no_dropout, **given).fit(X, y)
    target = (fitted.classes_ == np.array(y)[:, None]) * (1 - smoothing) + smoothing / 2
    expected = -(target * np.log(fitted.predict_proba(X))).sum(axis=1).mean()
    assert fitted.history_[0]["loss"] == pytest.approx(expected, rel=1e-7)
    Y = indicator(y)
    fitted = classifier(tiny_model_no_dropout, **given).fit(X, Y)
    target, proba = Y * (1 - smoothing) + smoothing / 2, fitted.predict_proba(X)
    expected = -(target * np.log(proba) + (1 - target) * np.log(1 - proba)).mean()
    assert fitted.history_[0]["loss"] == pytest.approx(expected, rel=1e-7)


def test_label_smoothing_lowers_confidence(tiny_model: Path, sentiment: Sentiment) -> None:
    X, y = sentiment
    sure = classifier(tiny_model, **LEARNS).fit(X, y).predict_proba(X).max(axis=1)
    smooth = classifier(tiny_model, label_smoothing=0.4, **LEARNS).fit(X, y)
    assert smooth.score(X, y) == 1.0
    assert smooth.predict_proba(X).max(axis=1).mean() < sure.mean() - 0.05


# --- long texts ----------------------------------------------------------------------------------

WORDS = "good bad love hate great awful nice poor best worst happy sad fast slow".split()
ROOM = 10  # words of one piece that fit beside [CLS] and [SEP] in 12 tokens


def test_windows_are_not_recommended_to_who_has_them(
    tiny_model: Path, sentiment: Sentiment
) -> None:
    pairs = [(" ".join(WORDS), text) for text in sentiment.texts]
    with pytest.warns(TruncationWarning, match="were cut: a larger max_length"):
        classifier(tiny_model, max_length=12, long_text="windows").fit(pairs, sentiment.labels)


@pytest.mark.parametrize("unit", ["ns", "us", "D"])
@pytest.mark.parametrize("kind", ["datetime64", "timedelta64"])
def test_times_are_no_labels(kind: str, unit: str, tiny_model: Path, sentiment: Sentiment) -> None:
    times = np.resize(np.array([1, 2], f"{kind}[{unit}]"), len(sentiment.texts))
    with pytest.raises(InputError, match="Unknown label type"):
        classifier(tiny_model).fit(sentiment.texts, times)
    with pytest.raises(InputTypeError, match="y must hold real numbers"):
        BertRegressor(tiny_model).fit(sentiment.texts, times)


def test_truncate_and_head_tail(tiny_model: Path, sentiment: Sentiment) -> None:
    X, y = [*sentiment.texts[:8], " ".join(WORDS)], ["a", "b", "c"] * 3
    kept = {"truncate": WORDS[:ROOM], "head_tail": WORDS[:2] + WORDS[-8:]}
    for long_text, words in kept.items():
        unfitted = classifier(tiny_model, max_length=ROOM + 2, long_text=long_text)
        with pytest.warns(TruncationWarning, match="1 of 9 rows") as caught:
            fitted = unfitted.fit(X, y)
        assert len(caught) == 1
        assert fitted.n_truncated_ == 1
        with pytest.warns(TruncationWarning, match="1 of 2 rows") as caught:
            proba = fitted.predict_proba([" ".join(WORDS), "good"])
        assert len(caught) == 1
        expected = fitted.predict_proba([" ".join(words), "good"])
        np.testing.assert_allclose(proba, expected, rtol=1e-6)


@pytest.mark.parametrize("kind", ["single label", "multi-label"])
def test_windows_average_probabilities(kind: str, tiny_model: Path, sentiment: Sentiment) -> None:
    X, y = sentiment.texts[:9], np.array(["a", "b", "c"] * 3)
    y = y if kind == "single label" else np.array([[0, 1], [1, 1], [1, 0]] * 3)
    fitted = classifier(tiny_model, max_length=ROOM + 2, long_text="windows", **LEARNS)
    fitted.fit([*X[:8], " ".join(WORDS * 3)], y)
    assert fitted.n_truncated_ == 0
    words = WORDS * 2  # 28 words: windows begin every 8, the last one ends with the text
    windows = [" ".join(words[begin : begin + ROOM]) for begin in (0, 8, 16, 18)]
    mixed = [*X, " ".join(words)]
    proba = fitted.predict_proba(mixed)
    expected = fitted.predict_proba(windows).mean(axis=0)
    np.testing.assert_allclose(proba[-1], expected, rtol=1e-5)
    turn = logit if kind == "multi-label" else np.log
    scores = fitted.decision_function(mixed)
    np.testing.assert_allclose(scores[-1], turn(proba[-1]), rtol=1e-4, atol=1e-5)
    # A neighbour with windows changes nothing for a row without.
    np.testing.assert_allclose(scores[:-1], fitted.decision_function(X), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(proba[:-1], fitted.predict_proba(X), rtol=1e-5)


# --- one batch after another ---------------------------------------------------------------------


def test_partial_fit_from_scratch_learns(
    tiny_model_no_dropout: Path, sentiment: Sentiment
) -> None:
    X, y = sentiment
    online = classifier(tiny_model_no_dropout, pooling="mean", epochs=99, learning_rate=5e-4)
    losses = []
    for _ in range(8):
        online.partial_fit(X[:12], y[:12], classes=["good", "bad"])  # less than one batch
        losses.append(online.history_[-1]["loss"])
        assert online.n_iter_ == 1
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.85 * losses[0]
    assert online.score(X[:12], y[:12]) == 1.0


def test_classes_make_room(tiny_model: Path, sentiment: Sentiment) -> None:
    X, y = sentiment
    online = classifier(tiny_model)
    online.partial_fit(X, y, classes=["a longer name", "bad", "good"])
    assert online.classes_.tolist() == ["a longer name", "bad", "good"]
    assert online.predict_proba(X).shape == (len(X), 3)
    online.partial_fit(X, y, classes=["another name"])
    assert online.classes_.tolist() == ["a longer name", "another name", "bad", "good"]
    assert online.model_.config.num_labels == 4
    with pytest.raises(SkbertError, match="mix"):
        classifier(tiny_model).partial_fit(X, y, classes=[1, 2])


@pytest.mark.parametrize(
    ("classes", "error", "words"),
    [
        ((name for name in ("bad", "good")), InputTypeError, r"generator.*sorted\(classes\)"),
        (3, InputTypeError, "type int.*a list of labels"),
        ({"bad", "good"}, InputTypeError, r"type set.*sorted\(classes\)"),
        ("good", InputTypeError, "type str.*a list of labels"),
        ({"good": 1}, InputTypeError, "type dict"),
        (np.array("good"), InputError, "dim 0"),
        (np.array([["good"], ["bad"]]), InputError, r"shape \(2, 1\)"),
        ([["good"], ["bad"]], InputError, r"row 0 of classes holds \['good'\]"),
        ([dt.date(2020, 1, 1)], InputError, "row 0 of classes.*type date"),
        (["good", None], InputError, "1 missing.*position 1"),
        ([b"good"], InputTypeError, "bytes"),
        (["good", 3], InputTypeError, "classes mixes str and numbers.*row 1 is 3"),
        ([3, 4], InputTypeError, "mixes str and numbers.*'good'.*3"),
    ],
)
def test_classes_that_are_no_labels(
    classes: Any, error: type[Exception], words: str, tiny_model: Path, sentiment: Sentiment
) -> None:
    with pytest.raises(error, match=words):
        classifier(tiny_model).partial_fit(*sentiment, classes=classes)


@pytest.mark.parametrize(
    ("classes", "words"),
    [
        ([0, 1, np.nan], "1 missing.*position 2"),
        (np.array([0, 1, np.nan]), "1 missing.*position 2"),
        ([0, 1, np.inf], "classes contains infinity.*row 2"),
        ([0, 0.5], "Unknown label type"),
        ([0, 2.0**70], "row 1 of classes is 1.18.*64 bits"),
        ([0, 2**70], "Unknown label type"),
        ([0, 1j], "Complex"),
    ],
)
def test_classes_that_are_no_whole_numbers(
    classes: Any, words: str, tiny_model: Path, sentiment: Sentiment
) -> None:
    y = [KINDS[label] for label in sentiment.labels]
    with pytest.raises(InputError, match=words):
        classifier(tiny_model).partial_fit(sentiment.texts, y, classes=classes)


WIDE = [2**53, 2**53 + 1]


@pytest.mark.parametrize(
    ("first", "then", "classes"),
    [
        (np.array(WIDE), np.array(WIDE, dtype=np.uint64), WIDE),
        (np.array(WIDE), np.array([2**63 + 1, 2], dtype=np.uint64), [2, *WIDE, 2**63 + 1]),
        (np.array([2**63 + 1, 2], dtype=np.uint64), np.array(WIDE), [2, *WIDE, 2**63 + 1]),
        (np.array(WIDE), np.array([0.0, 1.0]), [0, 1, *WIDE]),
        (np.array([0.0, 1.0]), np.array(WIDE), [0, 1, *WIDE]),
        (np.array([0, 1]), np.array([1.0, 2.0]), [0, 1, 2]),
        (np.array([False, True]), np.array([0, 1, 2]), [0, 1, 2]),
        (np.array(["a", "bbb"]), np.array(["bbb\0", "cc"], dtype=object),
         ["a", "bbb", "bbb\0", "cc"]),
    ],
)  # fmt: skip
def test_labels_of_two_types_stay_apart(
    first: Any, then: Any, classes: list[Any], tiny_model: Path
) -> None:
    online = classifier(tiny_model, **STILL).fit(["a", "b"], first)
    online.partial_fit([*"abc"[: len(then)]], then)
    assert online.classes_.tolist() == classes
    assert sorted(online.score(["a"], [label]) for label in classes)[-2:] == [0, 1]
    again = classifier(tiny_model).partial_fit(["a", "b"], first, classes=then)
    assert again.classes_.tolist() == classes


def test_labels_that_no_type_of_numbers_holds_together(tiny_model: Path) -> None:
    online = classifier(tiny_model).fit(["a", "b"], [-1, 1])
    before = online.predict_proba(["a"])
    with pytest.raises(InputError, match=r"No type of numbers.*9223372036854775809.*-1 to 1"):
        online.partial_fit(["a"], np.array([2**63 + 1], dtype=np.uint64))
    np.testing.assert_array_equal(online.predict_proba(["a"]), before)


def test_unseen_labels_leave_the_old_ones_alone(tiny_model: Path, sentiment: Sentiment) -> None:
    X, y = sentiment
    online = classifier(tiny_model, **LEARNS).fit(X, y)
    before = online.predict_proba(X)
    online.set_params(**STILL).partial_fit(X[:6], ["fair", "bad"] * 3)
    assert online.classes_.tolist() == ["bad", "fair", "good"]
    old = online.predict_proba(X)[:, [0, 2]]
    np.testing.assert_allclose(old / old.sum(axis=1, keepdims=True), before, rtol=1e-4)
    online.set_params(**{**LEARNS, "learning_rate": 1e-3})
    for _ in range(15):
        online.partial_fit([*X[:20], *["it is ok"] * 5], [*y[:20], *["fair"] * 5])
    assert online.predict(["it is ok", *X[:20]]).tolist() == ["fair", *y[:20]]


def test_a_refused_batch_leaves_the_fit(tiny_model: Path, sentiment: Sentiment) -> None:
    X, y = sentiment
    online = classifier(tiny_model).fit(X, y)
    before = online.predict_proba(X)
    with pytest.raises(ValueError, match="bda"):
        online.set_params(class_weight={"bda": 2.0}).partial_fit(X[:2], ["fair", "bad"])
    np.testing.assert_array_equal(online.predict_proba(X), before)


def test_a_matrix_with_classes_is_no_indicator(tiny_model: Path, sentiment: Sentiment) -> None:
    X, Y = sentiment.texts, indicator(sentiment.labels)
    with pytest.raises(InputError, match=r"soft labels.*row 0 sums to 2.*leave classes out"):
        classifier(tiny_model).partial_fit(X, Y, classes=range(Y.shape[1]))
    online = classifier(tiny_model).partial_fit(X, Y)
    assert online.classes_.tolist() == list(range(Y.shape[1]))


@pytest.mark.parametrize(
    ("learned", "scored", "error", "words"),
    [
        ("labels", [0, 1], InputTypeError, "mixes str and numbers: row 0 is 0.*'bad'"),
        ("codes", ["good", "bad"], InputTypeError, "mixes str and numbers: row 0 is 'good'.*0"),
        ("labels", [[1, 1], [0, 1]], InputError, "y holds an indicator.*predicts one label"),
        ("columns", ["good", "bad"], InputError, "y holds one label.*matrix of 3 columns"),
        ("columns", [[1, 0], [0, 1]], InputError, "matrix of 2 columns.*matrix of 3 columns"),
    ],
)
def test_score_of_labels_of_another_type(
    learned: str, scored: Any, error: type[Exception], words: str,
    tiny_model: Path, sentiment: Sentiment,
) -> None:  # fmt: skip
    X, labels = sentiment
    y = {"labels": labels, "codes": [KINDS[label] for label in labels],
         "columns": indicator(labels)}[learned]  # fmt: skip
    fitted = classifier(tiny_model).fit(X, y)
    with pytest.raises(error, match=words):
        fitted.score(X[:2], scored)


@pytest.mark.parametrize("of_columns", [False, True])
def test_score_is_scikit_learns_accuracy(
    of_columns: bool, tiny_model: Path, sentiment: Sentiment
) -> None:
    X, y = sentiment.texts, indicator(sentiment.labels) if of_columns else sentiment.labels
    fitted = classifier(tiny_model).fit(X, y)
    weight = np.arange(len(X)) / 7
    for weights in (None, weight, weight * 2.0**1000, weight * 2.0**-1000):
        expected = accuracy_score(y, fitted.predict(X), sample_weight=weight if weights is not None
                                  else None)  # fmt: skip
        assert fitted.score(X, y, sample_weight=weights) == expected
    assert fitted.score(X, y, sample_weight=2.0) == fitted.score(X, y)


@pytest.mark.parametrize("missing", [None, float("nan"), pd.NA])
def test_score_names_the_row_without_a_label(
    tiny_model: Path, sentiment: Sentiment, missing: Any
) -> None:
    fitted = classifier(tiny_model).fit(sentiment.texts, sentiment.labels)
    labels = [*sentiment.labels[:5], missing, *sentiment.labels[6:]]
    with pytest.raises(InputError, match="row 5"):
        fitted.score(sentiment.texts, labels)


def test_labels_of_another_kind_are_refused(tiny_model: Path, sentiment: Sentiment) -> None:
    X, Y = sentiment.texts, indicator(sentiment.labels)
    for first, then in (
        (sentiment.labels, [1, 2] * 20), (Y[:, 0], sentiment.labels),
        (Y, Y[:, :2]), (Y, sentiment.labels), (Y, Y[:, 0]), (sentiment.labels, Y), (Y[:, 0], Y),
    ):  # fmt: skip
        for again in ("fit", "partial_fit"):
            fitted = classifier(tiny_model, warm_start=True).fit(X, first)
            with pytest.raises(SkbertError, match="y "):
                getattr(fitted, again)(X, then)


def test_warm_start_goes_on(tiny_model: Path, sentiment: Sentiment) -> None:
    X, y = sentiment
    warm = classifier(tiny_model, warm_start=True, head_init="random", **LEARNS).fit(X, y)
    first = [record["loss"] for record in warm.history_]
    second = [record["loss"] for record in warm.fit(X, y).history_]
    assert second[0] < first[0]
    assert second[-1] < first[-1]
    proba = warm.predict_proba(X)
    still = warm.set_params(**STILL).fit(X, y).predict_proba(X)
    np.testing.assert_allclose(still, proba, atol=1e-5)
    cold = warm.set_params(warm_start=False).fit(X, y)
    assert np.abs(cold.predict_proba(X) - proba).max() > 0.1


def test_warm_start_goes_on_in_another_precision(tiny_model: Path, sentiment: Sentiment) -> None:
    X, y = sentiment
    warm = classifier(tiny_model, warm_start=True).fit(X, y)
    for precision in ("float64", "bfloat16", "float32", "float64"):
        warm.set_params(precision=precision).fit(X, y)
        assert np.isfinite(warm.predict_proba(X)).all()
    model = warm.model_.bfloat16()  # an ordinary one
    sum(p.sum() for p in model.parameters()).backward()
    assert all(p.grad is None or p.grad.dtype == torch.bfloat16 for p in model.parameters())


# --- what held-out rows are good for -------------------------------------------------------------


def test_temperature_fits_the_held_out_rows(tiny_model: Path) -> None:
    # All texts are alike, and 7 of the 10 held-out labels are "a": the best probability is 0.7.
    X, y = ["good film"] * 20, (["a"] * 7 + ["b"] * 3) * 2
    given = {"validation_fraction": 0.5, "label_smoothing": 0.5, **LEARNS, "epochs": 12}
    plain = classifier(tiny_model, **given).fit(X, y)
    cooled = classifier(tiny_model, **given, calibrate=True).fit(X, y)
    assert plain.temperature_ == 1.0
    assert abs(plain.predict_proba(X)[0, 0] - 0.7) > 0.02
    assert cooled.predict_proba(X)[0, 0] == pytest.approx(0.7, abs=1e-3)
    scores = cooled.decision_function(X) * cooled.temperature_
    np.testing.assert_allclose(scores, plain.decision_function(X), rtol=1e-5)


def test_thresholds_have_the_best_f1(tiny_model: Path) -> None:
    # Label 0 is on 3 of 10 good films: rarer than not there, and worth predicting.
    X = ["good film"] * 50 + ["awful slow service"] * 50
    Y = np.zeros((100, 2), dtype=int)
    Y[:50:10, 0] = Y[1:50:10, 0] = Y[2:50:10, 0] = 1
    Y[50:, 1] = 1
    given = {"validation_fraction": 0.4, **LEARNS}
    for seed in range(3):
        plain = classifier(tiny_model, **given).set_params(random_state=seed).fit(X, Y)
        assert plain.thresholds_.tolist() == [0.5, 0.5]
        tuned = classifier(tiny_model, **given, tune_thresholds=True)
        tuned.set_params(random_state=seed).fit(X, Y)
        predicted, proba = tuned.predict(X), tuned.predict_proba(X)
        np.testing.assert_array_equal(predicted, proba >= tuned.thresholds_)
        np.testing.assert_allclose(proba, plain.predict_proba(X), rtol=1e-6)
        assert predicted.tolist() == [[1, 0]] * 50 + [[0, 1]] * 50
        score = f1_score(Y, predicted, average="macro")
        assert score > f1_score(Y, plain.predict(X), average="macro", zero_division=0) + 0.2


def test_training_goes_on_with_the_thresholds_that_there_are(
    tiny_model: Path, sentiment: Sentiment
) -> None:
    X, Y = sentiment.texts, indicator(sentiment.labels)
    fitted = classifier(tiny_model).fit(X, Y)
    fitted.thresholds_ = np.array([0.1, 0.2, 0.3])
    assert fitted.partial_fit(X, Y).thresholds_.tolist() == [0.1, 0.2, 0.3]
    assert fitted.set_params(warm_start=True).fit(X, Y).thresholds_.tolist() == [0.1, 0.2, 0.3]
    assert fitted.set_params(warm_start=False).fit(X, Y).thresholds_.tolist() == [0.5] * 3


@pytest.mark.parametrize("freeze", [0, "all"])
def test_a_rare_class_is_as_probable_as_its_weight_says(
    freeze: int | str, tiny_model: Path
) -> None:
    # Of equal rows nothing but how often a class is there can be learned, and steps have 16 rows.
    X, y = ["the film is good"] * 500, ["rare"] * 5 + ["usual"] * 495
    fitted = classifier(tiny_model, class_weight="balanced", epochs=5, freeze=freeze).fit(X, y)
    assert 0.35 < fitted.predict_proba(X[:1])[0, 0] < 0.65
    plain = classifier(tiny_model, epochs=5, freeze=freeze).fit(X, y)
    assert plain.predict_proba(X[:1])[0, 0] < 0.1


@pytest.mark.parametrize("form", ["indicator", "columns"])
def test_a_rare_label_of_several_is_far_more_probable_where_it_weighs(
    form: str, tiny_model: Path
) -> None:
    X, y = ["the film is good"] * 500, np.zeros((500, 2), int)
    y[:5, 0] = y[:250, 1] = 1
    target = y if form == "indicator" else np.array(["other", "rare"])[y]
    balanced = classifier(tiny_model, class_weight="balanced", epochs=3).fit(X, target)
    found = balanced.predict_proba(X[:1])
    rare, even = found[0] if form == "indicator" else (column[0, 1] for column in found)
    assert rare > 0.25
    assert 0.4 < even < 0.6


def test_tuning_needs_held_out_rows(tiny_model: Path, sentiment: Sentiment) -> None:
    X, y = sentiment
    for name, labels in (("calibrate", y), ("tune_thresholds", indicator(y))):
        with pytest.raises(InputError, match=f"{name}=True.*validation_fraction.*{name}=False"):
            classifier(tiny_model, **{name: True}).fit(X, labels)
    with pytest.raises(InputError, match="multi-label"):
        classifier(tiny_model, tune_thresholds=True, validation_fraction=0.2).fit(X, y)


def test_scores_stay_finite(tiny_model: Path) -> None:
    # Far apart on purpose: probabilities round to 0 and 1.
    X, Y = ["good " * 30, "bad " * 30] * 5, np.array([[0, 1], [1, 0]] * 5)
    for y in (Y, ["a", "b"] * 5):
        fitted = classifier(tiny_model, max_length=ROOM + 2, long_text="windows", **LEARNS)
        fitted.fit(X, y)
        fitted.model_.classifier.weight.data *= 300
        assert np.isfinite(fitted.decision_function(X)).all()
        np.testing.assert_array_equal(fitted.predict(X), y)
