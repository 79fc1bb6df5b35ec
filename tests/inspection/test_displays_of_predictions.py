"""Displays of predictions: their numbers against scikit-learn's and against sums by hand."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import NotFittedError
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.metrics import confusion_matrix, f1_score, precision_score, recall_score
from sklearn.pipeline import make_pipeline
from sklearn.svm import LinearSVC

from skbert.exceptions import InputError, InputTypeError
from skbert.inspection import (
    ConfusionDisplay,
    CountsDisplay,
    ReliabilityDisplay,
    ThresholdDisplay,
)

if TYPE_CHECKING:
    from conftest import Sentiment

TRUE = ["b", "a", "a", "c", "c", "c", "b", "d"]
GUESS = ["b", "c", "c", "c", "a", "c", "d", "d"]
TEXTS = [f"text {row}" for row in range(8)]


@pytest.fixture(scope="module")
def pipeline(sentiment: Sentiment) -> Any:
    """A classifier of texts that is not ours."""
    return make_pipeline(CountVectorizer(), LogisticRegression()).fit(*sentiment)


# --- confusions ----------------------------------------------------------------------------------


def test_the_matrix_is_that_of_scikit_learn_in_another_order() -> None:
    display = ConfusionDisplay.from_predictions(TRUE, GUESS, TEXTS)
    labels = display.display_labels
    assert sorted(labels) == ["a", "b", "c", "d"]
    expected = confusion_matrix(TRUE, GUESS, labels=labels)
    np.testing.assert_array_equal(display.confusion_matrix, expected)
    place = {label: i for i, label in enumerate(labels)}
    assert abs(place["a"] - place["c"]) == abs(place["b"] - place["d"]) == 1


def test_the_worst_confusions_come_first_with_their_texts() -> None:
    worst = ConfusionDisplay.from_predictions(TRUE, GUESS, TEXTS).worst
    assert worst is not None
    assert worst.to_dict("records") == [
        {"true": "a", "predicted": "c", "count": 2, "share": 1.0, "examples": TEXTS[1:3]},
        {"true": "b", "predicted": "d", "count": 1, "share": 0.5, "examples": ["text 6"]},
        {"true": "c", "predicted": "a", "count": 1, "share": 1 / 3, "examples": ["text 4"]},
    ]


def test_a_confusion_has_three_examples_and_none_without_texts() -> None:
    pairs = [(f"first {row}", f"second {row}") for row in range(5)]
    [examples] = ConfusionDisplay.from_predictions([0] * 5, [1] * 5, pairs).worst["examples"]
    assert examples == [f"first {row} | second {row}" for row in range(3)]
    frame = pd.DataFrame(pairs, columns=["a", "b"])
    assert ConfusionDisplay.from_predictions([0] * 5, [1] * 5, frame).worst["examples"][0] == (
        examples
    )
    assert ConfusionDisplay.from_predictions([0], [1]).worst["examples"].tolist() == [[]]


def test_only_confusions_are_coloured() -> None:
    display = ConfusionDisplay.from_predictions(TRUE, GUESS)
    drawn = np.ma.filled(display.im_.get_array().astype(float), np.nan)
    counts = display.confusion_matrix
    assert np.isnan(np.diag(drawn)).all()
    off = ~np.eye(4, dtype=bool)
    np.testing.assert_allclose(drawn[off], (counts / counts.sum(axis=1, keepdims=True))[off])
    written = [text.get_text() for text in display.ax_.texts]
    assert written == [str(count or "") for count in counts.ravel()]
    assert [each.get_text() for each in display.ax_.get_xticklabels()] == [*display.display_labels]


def test_of_many_classes_those_with_most_confusions_are_drawn() -> None:
    true = np.repeat(np.arange(150), 3)
    guess = true.copy()
    guess[[0, 30, 31, 60]] = 7, 8, 9, 10
    display = ConfusionDisplay.from_predictions(true, guess, max_classes=6)
    assert display.confusion_matrix.shape == (150, 150)
    named = {each.get_text() for each in display.ax_.get_yticklabels()}
    assert named == {"0", "7", "10", "8", "9", "20"}
    assert "The 6 of 150 classes" in display.ax_.get_title()
    display.max_classes = 2
    assert "The 2 of 150 classes" in display.plot().ax_.get_title()


def test_all_right_is_drawn_in_sorted_order() -> None:
    display = ConfusionDisplay.from_predictions(["b", "a", "c"], ["b", "a", "c"])
    assert [*display.display_labels] == ["a", "b", "c"]
    assert len(display.worst) == 0


def test_names_are_drawn_letter_by_letter() -> None:
    names = ["$x$ and $y$", "a\u202eb\ud800", "_hidden", "w" * 50]
    display = ConfusionDisplay.from_predictions(names, [*reversed(names)], names)
    assert {*display.worst["true"]} == {text for [text] in display.worst["examples"]} == {*names}
    display.figure_.canvas.draw()
    shown = {each.get_text() for each in display.ax_.get_yticklabels()}
    assert shown == {r"\$x\$ and \$y\$", "a⟨U+202E⟩b⟨U+D800⟩", "_hidden", "w" * 27 + "…"}
    counts = CountsDisplay.from_predictions([[(0, 1, name)] for name in names], [[]] * 4)
    counts.figure_.canvas.draw()
    assert [*counts.counts.index] == sorted(names)


def test_confusions_of_an_estimator(pipeline: Any, sentiment: Sentiment) -> None:
    X, y = sentiment
    swapped = ["good" if label == "bad" else "bad" for label in y[:4]] + y[4:]
    display = ConfusionDisplay.from_estimator(pipeline, X, swapped)
    assert display.worst["count"].tolist() == [2, 2]
    assert display.worst["examples"][0][0] in X[:4]


@pytest.mark.parametrize(
    ("y_true", "y_pred", "X", "message"),
    [
        (["a", "b"], ["a"], None, "y_pred has 1"),
        (["a", "b"], ["a", "b"], ["one"], "y_true has 2"),
        ([], [], None, "no rows"),
        ([[0, 1], [1, 1]], [[0, 1], [1, 1]], None, "several labels per row.*ThresholdDisplay"),
        (["a", None], ["a", "b"], None, "missing"),
    ],
)
def test_predictions_that_cannot_be_compared(
    y_true: Any, y_pred: Any, X: Any, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        ConfusionDisplay.from_predictions(y_true, y_pred, X)


def test_labels_of_two_kinds_cannot_be_compared() -> None:
    with pytest.raises(InputTypeError, match="'a' and y_pred such as 1"):
        ConfusionDisplay.from_predictions(["a", "b"], [1, 2])


def test_a_matrix_needs_a_name_for_each_class() -> None:
    with pytest.raises(InputError, match=r"shape \(2, 2\), and there are 3"):
        ConfusionDisplay(np.eye(2), ["a", "b", "c"])


def test_confusions_need_a_classifier() -> None:
    with pytest.raises(InputTypeError, match="LinearRegression is not a classifier"):
        ConfusionDisplay.from_estimator(LinearRegression(), ["a"], ["a"])


# --- reliability ---------------------------------------------------------------------------------


def test_the_calibration_error_is_the_one_of_guo_et_al() -> None:
    rng = np.random.default_rng(0)
    chances = rng.dirichlet(np.ones(5), 400)
    true = np.array([rng.choice(5, p=row**2 / (row**2).sum()) for row in chances])
    display = ReliabilityDisplay.from_predictions(true, chances, range(5), n_bins=15)
    confidence, right = chances.max(axis=1), chances.argmax(axis=1) == true
    error = 0.0
    for low in np.arange(15) / 15:
        inside = (confidence > low) & (confidence <= low + 1 / 15)
        if inside.any():
            error += inside.mean() * abs(right[inside].mean() - confidence[inside].mean())
    assert display.expected_calibration_error == pytest.approx(error, rel=1e-12)


def test_bins_of_a_worked_example() -> None:
    y_proba = [[0.5, 0.3, 0.2], [0.1, 0.9, 0.0], [0.0, 0.2, 0.8], [0.1, 0.1, 0.8]]
    display = ReliabilityDisplay.from_predictions(
        ["a", "b", "a", "c"], y_proba, ["a", "b", "c"], n_bins=2
    )
    assert display.bins["count"].tolist() == [1, 3]  # 0.5 belongs to the lower one
    assert display.bins["accuracy"].tolist() == [1.0, 2 / 3]
    assert display.bins["confidence"].tolist() == pytest.approx([0.5, 2.5 / 3])
    expected = (0.5 + 3 * abs(2 / 3 - 2.5 / 3)) / 4
    assert display.expected_calibration_error == pytest.approx(expected)


def test_reliability_is_drawn_with_counts_and_without_empty_bins() -> None:
    display = ReliabilityDisplay.from_predictions(
        ["a", "b", "b"], [[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]], ["a", "b"], n_bins=10
    )
    top, bottom = display.axes_["accuracy"], display.axes_["count"]
    line = top.lines[-1]
    np.testing.assert_allclose(line.get_xdata(), [0.7, 0.8, 0.9])
    np.testing.assert_allclose(line.get_ydata(), [0, 1, 1])
    assert sum(bar.get_height() for bar in bottom.patches) == 3
    assert f"{display.expected_calibration_error:.3f}" in display.ax_.get_title()
    assert top.get_children()
    assert bottom.get_xlabel() == "probability of the predicted class"


def test_a_label_that_is_no_class_counts_as_an_error() -> None:
    display = ReliabilityDisplay.from_predictions(["a", "z"], [[1, 0], [1, 0]], ["a", "b"])
    assert display.bins["accuracy"].iloc[-1] == 0.5


def test_reliability_of_an_estimator(pipeline: Any, sentiment: Sentiment) -> None:
    display = ReliabilityDisplay.from_estimator(pipeline, *sentiment)
    assert display.bins["count"].sum() == 40


@pytest.mark.parametrize(
    ("y_true", "y_proba", "changes", "message"),
    [
        (["a"], [[0.5, 0.5], [0.5, 0.5]], {}, r"shape \(2, 2\)"),
        (["a"], [[0.5, 0.6]], {}, "sums to 1.100"),
        (["a", "b"], [[0.5, 0.5], [1.2, -0.2]], {}, "Row 1 of y_proba"),
        (["a"], [[0.5, np.nan]], {}, "Row 0 of y_proba"),
        ([[0, 1]], [[0.5, 0.5]], {}, "one label at a time"),
    ],
)
def test_probabilities_that_cannot_be_used(
    y_true: Any, y_proba: Any, changes: Any, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        ReliabilityDisplay.from_predictions(y_true, y_proba, ["a", "b"], **changes)


def test_probabilities_are_numbers() -> None:
    with pytest.raises(InputTypeError, match="does not hold numbers"):
        ReliabilityDisplay.from_predictions(["a"], [["x", "y"]], ["a", "b"])


@pytest.mark.parametrize("display", [ReliabilityDisplay, ThresholdDisplay])
def test_a_classifier_with_probabilities_is_needed(display: Any, sentiment: Sentiment) -> None:
    X, y = sentiment
    with pytest.raises(NotFittedError):
        display.from_estimator(LogisticRegression(), X, y)
    without = make_pipeline(CountVectorizer(), LinearSVC()).fit(X, y)
    with pytest.raises(InputTypeError, match=r"Pipeline has no predict_proba"):
        display.from_estimator(without, X, y)


# --- thresholds ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def labelled() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    chances = rng.random((60, 4)).round(2)
    present = (chances + rng.normal(0, 0.3, chances.shape) > 0.6).astype(int)
    present[:, 3] = 0
    return present, chances


def test_curves_are_the_scores_of_scikit_learn(labelled: Any) -> None:
    present, chances = labelled
    display = ThresholdDisplay.from_predictions(present, chances, list("abcd"))
    assert display.labels == list("abcd")
    for column, label in enumerate("abc"):
        curve, true = display.curves[label], present[:, column]
        for _, row in curve.iterrows():
            predicted = chances[:, column] >= row["threshold"]
            assert row["precision"] == pytest.approx(precision_score(true, predicted))
            assert row["recall"] == pytest.approx(recall_score(true, predicted))
            assert row["f1"] == pytest.approx(f1_score(true, predicted))
        best = chances[:, column] >= display.thresholds_[column]
        assert f1_score(true, best) == pytest.approx(display.f1_[column])
        assert display.f1_[column] == curve["f1"].max()


def test_a_label_that_no_row_has_keeps_one_half(labelled: Any) -> None:
    display = ThresholdDisplay.from_predictions(*labelled, list("abcd"))
    assert (display.thresholds_[3], display.f1_[3]) == (0.5, 0.0)


def test_several_labels_are_a_map_with_the_best_ones_marked(labelled: Any) -> None:
    display = ThresholdDisplay.from_predictions(*labelled, list("abcd"))
    [image], [stars] = display.ax_.images, display.ax_.lines
    order = np.argsort(-display.f1_, kind="stable")
    np.testing.assert_allclose(stars.get_xdata(), display.thresholds_[order])
    values = np.asarray(image.get_array())
    assert values.shape == (4, 100)
    present, chances = labelled
    column = order[0]
    expected = [
        f1_score(present[:, column], chances[:, column] >= at, zero_division=0)
        for at in np.linspace(0.005, 0.995, 100)
    ]
    np.testing.assert_allclose(values[0], expected)


def test_one_label_is_three_curves_with_the_best_one_marked(labelled: Any) -> None:
    display = ThresholdDisplay.from_predictions(*labelled, list("abcd"), label="b")
    *curves, star = display.ax_.lines
    assert [line.get_label() for line in curves] == ["precision", "recall", "F1"]
    np.testing.assert_allclose(curves[2].get_ydata(), display.curves["b"]["f1"])
    assert [*star.get_xdata(), *star.get_ydata()] == [*display.thresholds_, *display.f1_]
    assert display.ax_.get_title() == "Label b"


def test_each_class_is_set_against_the_others() -> None:
    true = ["a", "b", "c", "a"]
    chances = [[0.8, 0.1, 0.1], [0.2, 0.5, 0.3], [0.3, 0.3, 0.4], [0.4, 0.5, 0.1]]
    display = ThresholdDisplay.from_predictions(true, chances, ["a", "b", "c"])
    np.testing.assert_allclose(display.thresholds_, [0.4, 0.5, 0.4])
    np.testing.assert_allclose(display.f1_, [1, 2 / 3, 1])


def test_of_two_classes_the_second_one_is_drawn(pipeline: Any, sentiment: Sentiment) -> None:
    assert ThresholdDisplay.from_estimator(pipeline, *sentiment).labels == ["good"]
    assert ThresholdDisplay.from_estimator(pipeline, *sentiment, label="bad").labels == ["bad"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"label": "z"}, "no label 'z'"),
        ({"classes": list("abc")}, "y_proba has the shape"),
        ({"y_true": [[0, 1, 1]] * 60}, "y_true's columns has 3"),
        ({"y_true": [[0, 1, 1, 0]] * 3}, "y_proba has the shape"),
    ],
)
def test_thresholds_that_cannot_be_drawn(labelled: Any, changes: Any, message: str) -> None:
    present, chances = labelled
    values = {"y_true": present, "y_proba": chances, "classes": list("abcd"), **changes}
    with pytest.raises(InputError, match=message):
        ThresholdDisplay.from_predictions(**values)


@pytest.mark.parametrize("display", [ReliabilityDisplay, ThresholdDisplay])
def test_labels_of_another_kind_than_the_classes(display: Any) -> None:
    with pytest.raises(InputTypeError, match="such as 1 and classes such as 'a'"):
        display.from_predictions([1, 0], [[0.9, 0.1], [0.2, 0.8]], ["a", "b"])


def test_one_label_per_row_where_several_are_predicted(labelled: Any) -> None:
    present, chances = labelled
    with pytest.raises(InputError, match=r"sums to .*Give y_true as an indicator matrix"):
        ThresholdDisplay.from_predictions(present[:, 0], chances, [0, 1, 2, 3])


# --- counts --------------------------------------------------------------------------------------

ENTITIES = [[(0, 2, "PER"), (3, 4, "LOC")], [], [(1, 2, "LOC")]]
GUESSED = [[(0, 2, "PER"), (3, 5, "LOC")], [(0, 1, "ORG")], [(1, 2, "LOC")]]


def test_entities_are_counted_by_type() -> None:
    display = CountsDisplay.from_predictions(ENTITIES, GUESSED)
    expected = {"true": [2, 0, 1], "predicted": [2, 1, 1], "correct": [1, 0, 1]}
    assert display.counts.to_dict("list") == expected
    assert display.counts.index.tolist() == ["LOC", "ORG", "PER"]
    widths = [bar.get_width() for bar in display.ax_.patches]
    assert widths == [*expected["true"], *expected["predicted"], *expected["correct"]]
    assert display.ax_.get_xlabel() == "number of entities"


def test_answers_are_counted_by_length() -> None:
    right = ["one", ("two words", 3), ["", "it is three"], "", []]
    guessed = ["One!", "", "it is three", "four words are here", ""]
    counts = CountsDisplay.from_predictions(right, guessed).counts
    assert counts["true"].tolist() == [3, 1, 1, 0, 0]
    assert counts["predicted"].tolist() == [2, 1, 1, 1, 0]
    assert counts["correct"].tolist() == [1, 1, 1, 0, 0]


def test_the_most_frequent_of_many_types_are_drawn() -> None:
    rows = [[(0, 1, f"type {i}")] * 1 for i in range(50) for _ in range(1 + (i < 30))]
    display = CountsDisplay.from_predictions(rows, rows)
    assert len(display.counts) == 50
    assert len(display.ax_.patches) == 90
    assert "the 30 most frequent of 50" in display.ax_.get_title()


@pytest.mark.parametrize(
    ("y_true", "y_pred", "error", "message"),
    [
        (ENTITIES, GUESSED[:2], InputError, "inconsistent"),
        ([["O", "B-PER"]], [["O"]], InputError, "Row 0 has 2 tags"),
        ([1], [["O"]], InputTypeError, "row 0 of y_true"),
        (["a", 3], ["a", "b"], InputTypeError, "row 1 of y_true"),
        (["a"], ["a", "b"], InputError, "inconsistent"),
    ],
)
def test_what_cannot_be_counted(y_true: Any, y_pred: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        CountsDisplay.from_predictions(y_true, y_pred)


def test_counts_need_predictions(sentiment: Sentiment) -> None:
    fitted = CountVectorizer().fit(sentiment.texts)
    with pytest.raises(InputTypeError, match="CountVectorizer predicts no tags, entities or ans"):
        CountsDisplay.from_estimator(fitted, sentiment.texts, sentiment.labels)


def test_classes_are_no_answers(pipeline: Any, sentiment: Sentiment) -> None:
    with pytest.raises(InputTypeError, match=r"Pipeline predicts no tags.*use ConfusionDisplay"):
        CountsDisplay.from_estimator(pipeline, *sentiment)


# --- all of them ---------------------------------------------------------------------------------

DRAWN: dict[str, Any] = {
    "confusions": lambda: ConfusionDisplay.from_predictions(TRUE, GUESS),
    "reliability": lambda: ReliabilityDisplay.from_predictions(
        ["a", "b"], [[0.9, 0.1], [0.2, 0.8]], ["a", "b"]
    ),
    "thresholds": lambda: ThresholdDisplay.from_predictions(
        ["a", "b"], [[0.9, 0.1], [0.2, 0.8]], ["a", "b"]
    ),
    "counts": lambda: CountsDisplay.from_predictions(ENTITIES, GUESSED),
}


@pytest.mark.parametrize("name", DRAWN)
def test_matplotlib_is_asked_for_where_it_is_missing(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r'pip install "skbert\[plot\]"'):
        DRAWN[name]()
