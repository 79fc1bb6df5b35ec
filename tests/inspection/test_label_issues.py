"""Labels that are wrong on purpose are found, as cleanlab finds them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest
from cleanlab.filter import find_label_issues
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import (
    GroupKFold,
    KFold,
    RepeatedKFold,
    ShuffleSplit,
    TimeSeriesSplit,
    cross_val_predict,
)
from sklearn.pipeline import make_pipeline
from sklearn.svm import LinearSVC

from skbert import BertClassifier, BertRegressor, BertTokenTagger
from skbert.datasets import load_intents
from skbert.exceptions import InputError, InputTypeError
from skbert.inspection import label_issues
from skbert.inspection._label_issues import _confidently_other

if TYPE_CHECKING:
    from pathlib import Path

N_CLASSES = 4
TOPICS = ["parcel late van", "login password code", "refund money back", "colour size stock"]


def noisy(n_rows: int, rate: float, seed: int = 0) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Texts on topics, labels of which a share is wrong, and which labels are."""
    rng = np.random.default_rng(seed)
    true = rng.integers(N_CLASSES, size=n_rows)
    texts = [
        " ".join(rng.choice(TOPICS[topic].split(), 4)) + f" number {row}"
        for row, topic in enumerate(true)
    ]
    is_wrong = rng.random(n_rows) < rate
    labels = np.where(is_wrong, (true + rng.integers(1, N_CLASSES, size=n_rows)) % N_CLASSES, true)
    return texts, labels, is_wrong


def plain() -> Any:
    return make_pipeline(TfidfVectorizer(), LogisticRegression())


def test_wrong_labels_are_found() -> None:
    X, y, is_wrong = noisy(300, 0.1)
    issues = label_issues(plain(), X, y)
    assert is_wrong[issues["row"]].all()
    assert len(issues) >= 0.9 * is_wrong.sum()
    assert issues["self_confidence"].is_monotonic_increasing
    assert issues["text"].tolist() == [X[row] for row in issues["row"]]
    assert issues["label"].tolist() == y[issues["row"]].tolist()
    topics = [int(np.argmax([text[:3] in topic for topic in TOPICS])) for text in issues["text"]]
    assert issues["suggested_label"].tolist() == topics
    chances = cross_val_predict(plain(), X, y, cv=5, method="predict_proba")
    np.testing.assert_allclose(issues["self_confidence"], chances[issues["row"], y[issues["row"]]])


@pytest.mark.parametrize("seed", range(20))
def test_the_rows_are_those_of_cleanlab(seed: int) -> None:
    rng = np.random.default_rng(seed)
    codes = np.concatenate([np.arange(N_CLASSES), rng.integers(N_CLASSES, size=400)])
    logits = rng.normal(size=(len(codes), N_CLASSES)) * 0.5
    logits[np.arange(len(codes)), np.where(rng.random(len(codes)) < 0.2, 0, codes)] += 4
    chances = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    rows, _ = _confidently_other(codes, chances)
    theirs = np.flatnonzero(find_label_issues(codes, chances, filter_by="confident_learning"))
    assert len(rows) > 20
    assert rows.tolist() == theirs.tolist()


def test_the_worked_example() -> None:
    codes = np.array([0, 0, 0, 1, 1, 1])
    of_second = np.array([0.1, 0.2, 0.9, 0.8, 0.9, 0.3])  # thresholds: 0.6 and 0.67
    rows, suggested = _confidently_other(codes, np.stack([1 - of_second, of_second], axis=1))
    assert (rows.tolist(), suggested.tolist()) == ([2, 5], [1, 0])


def test_nothing_is_found_where_nothing_is_wrong() -> None:
    X, y, _ = noisy(200, 0)
    issues = label_issues(plain(), X, y)
    assert issues.empty
    assert issues.columns.tolist() == [
        "row", "text", "label", "suggested_label", "self_confidence",
    ]  # fmt: skip


def test_containers_folds_and_pairs(tiny_model: Path) -> None:
    X, y, _ = noisy(60, 0.1)
    names = np.array(["delivery", "login", "refund", "product"])[y]
    cv = KFold(3, shuffle=True, random_state=0)
    expected = label_issues(plain(), X, names, cv)
    pd.testing.assert_frame_equal(
        label_issues(plain(), pd.Series(X), pd.Series(names), cv), expected
    )
    pairs = BertClassifier(tiny_model, epochs=1, random_state=0, device="cpu")
    frame = pd.DataFrame({"a": X, "b": X})
    issues = label_issues(pairs, frame, names, 2)
    assert all(text.count("\n") == 1 for text in issues["text"])
    assert not hasattr(pairs, "classes_")


def test_a_fitted_estimator_stays_as_it_is(tiny_model: Path) -> None:
    X, y, _ = noisy(24, 0)
    y[:8] = np.arange(8) % N_CLASSES
    classifier = BertClassifier(tiny_model, epochs=1, random_state=0, device="cpu").fit(X, y)
    before = classifier.predict_proba(X)
    label_issues(classifier, X, y, 2)
    np.testing.assert_array_equal(classifier.predict_proba(X), before)


def test_copies_learn_from_the_labels_as_they_are(tiny_model: Path) -> None:
    """Parameters that name classes name those of y."""
    X, y, _ = noisy(60, 0.1)
    names = np.array(["delivery", "login", "refund", "product"])[y]
    cv, how = KFold(3), {"epochs": 1, "random_state": 0, "device": "cpu"}
    assert len(label_issues(BertClassifier(tiny_model, label_texts=True, **how), X, names, cv))
    for labels, heavy in ((names, "refund"), (y + 1, 3)):
        model = BertClassifier(tiny_model, class_weight={heavy: 1000.0}, **how)
        issues = label_issues(model, X, labels, cv)
        others = issues["suggested_label"][issues["label"] != heavy]
        assert others.value_counts().idxmax() == heavy


@pytest.mark.long
def test_wrong_labels_of_real_texts_are_found(minilm: Path) -> None:
    X, y = load_intents(return_X_y=True)
    rng = np.random.default_rng(0)
    wrong = rng.choice(len(y), 45, replace=False)
    noisy_y = np.array(y, object)
    for row in wrong:
        noisy_y[row] = rng.choice([label for label in np.unique(y) if label != y[row]])
    classifier = BertClassifier(minilm, epochs=1, freeze="all", random_state=0)
    issues = label_issues(classifier, X, noisy_y)
    is_found = np.isin(issues["row"], wrong)
    assert is_found.mean() >= 0.45  # precision; one label in ten is wrong
    assert is_found.sum() / len(wrong) >= 0.65  # recall
    assert is_found[:20].mean() >= 0.9
    right = [y[row] for row in issues["row"][is_found]]
    assert np.mean(issues["suggested_label"][is_found] == right) >= 0.8


# --- what cannot be judged -----------------------------------------------------------------------


@pytest.mark.parametrize("estimator", [BertRegressor(), BertTokenTagger(), LinearSVC()])
def test_estimators_without_probabilities_of_classes(estimator: Any) -> None:
    with pytest.raises(InputTypeError, match=r"Give one with predict_proba, such as BertClass"):
        label_issues(estimator, ["a", "b"], [0, 1])


def test_folds_from_a_generator() -> None:
    X, y, _ = noisy(60, 0.1)
    cv = KFold(3)
    pd.testing.assert_frame_equal(
        label_issues(plain(), X, y, (fold for fold in cv.split(X))),
        label_issues(plain(), X, y, cv),
    )


@pytest.mark.parametrize(
    ("cv", "message"),
    [
        (1, r"^cv=1 gives no folds: k-fold .* n_splits=1. Type cv=5, or give"),
        (True, r"^cv=True gives no folds: "),
        (2.5, r"^cv=2.5 gives no folds: "),
        ("all", r"^cv='all' gives no folds: "),
        (9, r"^cv=9 gives no folds: .*n_splits=9 greater than the number of samples"),
        (iter([]), r"gives no folds: .* Type cv=5"),
        (GroupKFold(2), r"^cv=GroupKFold.* gives no folds: The 'groups' parameter"),
        (ShuffleSplit(1, test_size=2, random_state=0), r"tests row \d 0 times, but each of the 8"),
        (RepeatedKFold(n_splits=2, n_repeats=2), r"tests row 0 2 times"),
        (TimeSeriesSplit(2), "tests row 0 0 times"),
        ([([0, 1], [2, 3, 4, 5, 6, 7, 8, 0, 1])], "tests row 8 1 times"),
        ([([0, 1, 7], [2, 3, 4, 5, 6, 7]), ([2, 3], [0, 1])], "tests row 7 on a copy that has le"),
        ([(0, 1)], "gives no folds"),
    ],
)
def test_folds_that_do_not_judge_each_row_once(cv: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        label_issues(plain(), list("abcdefgh"), [0, 1] * 4, cv)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (None, "requires y to be passed"),
        (["a", "b", "a"], "X has 4 rows and y has 3"),
        (["a", "b", "a", None], "y contains NaN"),
        (["a", "a", "a", "a"], "All labels of y are 'a', so none could be another one"),
        (["a", "b", "a", "a"], "The label 'b' is only in row 1 of y"),
        ([[0, 1], [1, 0], [1, 1], [0, 0]], "several labels per row, but only one can be judged"),
        ([0.5, 1.5, 0.5, 1.5], "Unknown label type: continuous"),
    ],
)
def test_bad_labels(y: Any, message: str) -> None:
    with pytest.raises((InputError, ValueError), match=message):
        label_issues(plain(), ["a", "b", "c", "d"], y)


def test_a_fold_may_repeat_rows() -> None:
    X, y, _ = noisy(40, 0.1)
    halves = np.arange(20), np.arange(20, 40)
    folds = [(np.tile(train, 2), test) for train, test in (halves, halves[::-1])]
    twice = label_issues(plain(), X, y, cv=folds)
    chances = [plain().fit([X[row] for row in train], y[train]).predict_proba(X)
               for train, _ in folds]  # fmt: skip
    of_rows = np.where(np.arange(40)[:, None] < 20, chances[1], chances[0])
    expected = of_rows[twice["row"], y[twice["row"]]]
    np.testing.assert_allclose(twice["self_confidence"], expected)


def test_a_frozen_estimator_learns_nothing() -> None:
    X, y, _ = noisy(40, 0.1)
    with pytest.raises(InputTypeError, match="Give what it holds"):
        label_issues(FrozenEstimator(plain().fit(X, y)), X, y)
