"""The report: planted facts, intervals by hand, every kind of estimator, bad inputs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import NotFittedError
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score, log_loss, mean_absolute_error, r2_score
from sklearn.model_selection import FixedThresholdClassifier
from sklearn.pipeline import make_pipeline

from skbert import (
    BertChoiceRanker,
    BertClassifier,
    BertRegressor,
    BertSpanExtractor,
    BertTokenTagger,
    BertTransformer,
)
from skbert.exceptions import InputError, InputTypeError, SkbertWarning
from skbert.inspection import report, worst_errors
from skbert.metrics import entity_f1, squad_em
from skbert.testing._samples import sample_of

if TYPE_CHECKING:
    from pathlib import Path

USUAL = {"epochs": 1, "device": "cpu", "precision": "float32", "random_state": 0}
TEXTS = ["good movie", "bad movie", "great film", "awful film", "good plot", "bad plot"] * 2
LABELS = ["yes", "no"] * 6
NEW = ["a good film", "a bad film", "", "good movie", "a good film", "great " * 30]
TRUE = ["yes", "no", "no", "yes", "no", "maybe"]
CASES: dict[str, tuple[type, str, dict[str, Any], list[str]]] = {
    "classes": (BertClassifier, "classes", {}, ["macro F1", "mean loss", "Calibration"]),
    "pairs": (BertClassifier, "pairs", {"pooling": "mean"}, ["accuracy", "Lengths"]),
    "labels": (BertClassifier, "labels", {}, ["rows all right", "precision", "Calibration"]),
    "windows": (
        BertClassifier, "classes", {"max_length": 6, "long_text": "windows"}, ["in windows"]
    ),
    "numbers": (BertRegressor, "numbers", {}, ["R²", "mean absolute error", "Numbers"]),
    "tags": (
        BertTokenTagger, "tags", {"max_length": 16},
        ["precision", "recall", "mean loss", "Calibration"],
    ),
    "spans": (
        BertSpanExtractor, "spans", {"max_length": 32, "on_ambiguous": "first"},
        ["F1 of words", "exact match", "Answers", "Calibration"],
    ),
    "choices": (BertChoiceRanker, "choices", {}, ["accuracy", "by position", "Calibration"]),
}  # fmt: skip


@pytest.fixture(scope="module")
def classifier(tiny_model: Path) -> BertClassifier:
    return BertClassifier(tiny_model, max_length=16, **USUAL).fit(TEXTS, LABELS)


def line_of(text: str, start: str) -> list[str]:
    """The cells of the line of a table that begins with these words."""
    line = next(each for each in text.splitlines() if each.startswith(start))
    return re.split(r"\s{2,}", line)


@pytest.mark.filterwarnings("ignore:.*too long for max_length")
@pytest.mark.parametrize("name", CASES)
def test_every_estimator_has_a_report(name: str, tiny_model: Path) -> None:
    kind, sample, params, expected = CASES[name]
    rows = sample_of(sample, None, None)
    view = report(kind(tiny_model, **USUAL, **params).fit(rows.X, rows.y), rows.X, rows.y,
                  random_state=0)  # fmt: skip
    text, html = str(view), view._repr_html_()
    for words in ("Rows", "Lengths", "Scores", "Worst errors", *expected):
        assert words in " ".join(text.split())
        assert words.replace("'", "&#x27;") in html
    assert max(map(len, text.splitlines())) <= 80
    assert text.splitlines()[0] == f"Report on {kind.__name__}"


@pytest.mark.filterwarnings("ignore:.*too long for max_length")
def test_facts_of_planted_rows(classifier: BertClassifier) -> None:
    text = str(report(classifier, NEW, TRUE, X_train=TEXTS, y_train=LABELS, random_state=0))
    assert line_of(text, "rows") == ["rows", "6"]
    assert line_of(text, "empty") == ["empty", "1", "16.7 %"]
    assert line_of(text, "the same as") == ["the same as an earlier row", "1", "16.7 %"]
    assert line_of(text, "also in X_train") == ["also in X_train", "1", "16.7 %"]
    assert "! Row 2 is empty" in text
    assert "! Row 4 is the same as an earlier row" in text
    assert "! Row 3 is also in X_train" in text
    assert "1 of 6 rows (16.7 %) are longer than max_length; 1 is cut." in " ".join(text.split())
    assert "Labels unseen in fit: maybe" in text
    assert "1 row has an infinite loss" in text
    assert line_of(text, "no")[:3] == ["no", "3", "6"]
    assert line_of(text, "yes")[:3] == ["yes", "2", "6"]
    assert line_of(text, "maybe")[:3] == ["maybe", "1", "0"]
    assert "mean loss" not in text  # infinite, for a label that fit has not seen


def test_clean_rows_have_no_warnings(classifier: BertClassifier) -> None:
    text = str(report(classifier, NEW[:2], TRUE[:2], random_state=0))
    assert "!" not in text
    assert "X_train" not in text


def test_lengths_are_those_of_the_tokenizer(classifier: BertClassifier) -> None:
    texts = [" ".join(["movie"] * n) for n in range(1, 15)]
    text = str(report(classifier, texts, ["yes"] * 14, random_state=0))
    assert "The median row has 10 tokens and the longest 16" in text  # with [CLS] and [SEP]
    counted = re.findall(r"^(\d+)–(\d+) +(\d+)", text, re.MULTILINE)
    assert sum(int(n) for _, _, n in counted) == 14
    for low, high, n in counted:
        assert int(n) == sum(int(low) <= words + 2 <= int(high) for words in range(1, 15))


def interval_by_hand(score: Any, n: int, seed: int) -> tuple[float, float]:
    """The percentiles of a score over resamples of n rows, one resample at a time."""
    rng = np.random.RandomState(seed)
    values = [score(rng.randint(n, size=n)) for _ in range(1000)]
    return np.percentile(values, 2.5), np.percentile(values, 97.5)


def check_line(text: str, name: str, value: float, bounds: tuple[float, float]) -> None:
    assert line_of(text, name) == [name, f"{value:.3f}", f"{bounds[0]:.3f} to {bounds[1]:.3f}"]


def test_scores_and_intervals_of_classes_by_hand(classifier: BertClassifier) -> None:
    X, y = [f"{text} a" for text in TEXTS], np.array(["yes"] * 5 + ["no"] * 7)
    predicted, chances = classifier.predict(X), classifier.predict_proba(X)
    text = str(report(classifier, X, y, random_state=7))
    right = predicted == y
    check_line(text, "accuracy", right.mean(), interval_by_hand(lambda i: right[i].mean(), 12, 7))

    def macro(i: Any) -> float:
        return f1_score(y[i], predicted[i], average="macro", zero_division=0)

    every = np.arange(12)
    check_line(text, "macro F1", macro(every), interval_by_hand(macro, 12, 7))

    def loss(i: Any) -> float:
        return log_loss(y[i], chances[i], labels=classifier.classes_)

    check_line(text, "mean loss", loss(every), interval_by_hand(loss, 12, 7))
    error = error_by_hand(chances.max(axis=1), right)
    assert f"Expected calibration error: {error:.3f}" in text


def test_spans_stand_for_the_words_that_they_touch(tiny_model: Path) -> None:
    texts, spans = ["the phone works", "my phone broke", "a phone"] * 3, []
    for text in texts:
        start = text.index("phone")
        spans.append([(start, start + 5, "THING")])
    inside = [[(start, end - 1, label) for start, end, label in row] for row in spans]
    learned = {**USUAL, "epochs": 6, "learning_rate": 3e-3, "head_learning_rate": 1e-2}
    fitted = BertTokenTagger(tiny_model, **learned).fit(texts, spans)
    assert fitted.score(texts, inside) == 1.0
    want = str(report(fitted, texts, spans, random_state=0))
    assert line_of(want, "F1")[1] == "1.000"
    with pytest.warns(SkbertWarning, match="span"):
        assert str(report(fitted, texts, inside, random_state=0)) == want


def test_calibration_of_predictions_that_are_not_most_probable(classifier: BertClassifier) -> None:
    strict = FixedThresholdClassifier(FrozenEstimator(classifier), threshold=0.9, pos_label="yes")
    X, y = TEXTS, LABELS
    predicted, chances = strict.fit(X, y).predict(X), strict.predict_proba(X)
    assert (predicted != strict.classes_[chances.argmax(axis=1)]).any()
    own = chances[range(len(X)), [[*strict.classes_].index(label) for label in predicted]]
    text = str(report(strict, X, y, random_state=0))
    error = error_by_hand(own, predicted == np.array(y))
    assert calibration_error(text) == pytest.approx(error, abs=6e-4)


@pytest.mark.filterwarnings("ignore:.*too long for max_length")
def test_rows_with_other_numbers_are_others(tiny_model: Path) -> None:
    X = pd.DataFrame({"text": ["a film", "a movie"] * 4, "age": range(8)})
    y = ["no", "yes"] * 4
    model = BertClassifier(tiny_model, **USUAL, text_columns="text", feature_columns=["age"])
    text = str(report(model.fit(X, y), X, y, X_train=X.assign(age=9), y_train=y, random_state=0))
    assert line_of(text, "the same as") == ["the same as an earlier row", "0", "0.0 %"]
    assert line_of(text, "also in X_train") == ["also in X_train", "0", "0.0 %"]


def test_scores_and_intervals_of_numbers_by_hand(tiny_model: Path) -> None:
    y = np.random.default_rng(0).normal(100, 3, (12, 2))
    model = BertRegressor(tiny_model, **USUAL).fit(TEXTS, y)
    predicted, text = model.predict(TEXTS), str(report(model, TEXTS, y, random_state=3))

    def r2(i: Any) -> float:
        return r2_score(y[i], predicted[i])

    every = np.arange(12)
    check_line(text, "R²", r2(every), interval_by_hand(r2, 12, 3))

    def error(i: Any) -> float:
        return mean_absolute_error(y[i], predicted[i])

    check_line(text, "mean absolute error", error(every), interval_by_hand(error, 12, 3))


def test_scores_of_entities_are_those_of_the_metric(tiny_model: Path) -> None:
    rows = sample_of("tags", None, None)
    tagger = BertTokenTagger(tiny_model, **{**USUAL, "epochs": 20, "learning_rate": 1e-2})
    tagger.fit(rows.X, rows.y)
    y = [*rows.y[1:], rows.y[0]] if len({*map(len, rows.y)}) == 1 else rows.y
    predicted, text = tagger.predict(rows.X), str(report(tagger, rows.X, y, random_state=1))

    def f1(i: Any) -> float:
        return entity_f1([y[row] for row in i], [predicted[row] for row in i])

    n = len(y)
    check_line(text, "F1", f1(range(n)), interval_by_hand(f1, n, 1))


def calibration_error(text: str) -> float:
    return float(re.findall(r"Expected calibration error: (\d\.\d+)", text)[0])


def error_by_hand(chances: Any, rights: Any) -> float:
    """The expected calibration error in ten bins."""
    chances, rights = np.array(chances, float), np.array(rights, bool)
    bins = np.ceil(chances * 10)
    gaps = [
        (bins == each).mean() * abs(chances[bins == each].mean() - rights[bins == each].mean())
        for each in np.unique(bins)
    ]
    return sum(gaps)


def test_calibration_of_entities_by_hand(tiny_model: Path) -> None:
    rows = sample_of("tags", None, None)
    tagger = BertTokenTagger(tiny_model, **{**USUAL, "epochs": 20, "learning_rate": 1e-2})
    table = tagger.fit(rows.X, rows.y).predict_spans(rows.X)
    found = table[["row", "start", "end", "label"]].itertuples(index=False)
    rights = [
        rows.y[row][start:end] == [f"B-{label}", *[f"I-{label}"] * (end - start - 1)]
        and rows.y[row][end : end + 1] != [f"I-{label}"]
        for row, start, end, label in found
    ]
    text = str(report(tagger, rows.X, rows.y, random_state=0))
    assert "come true, for the predicted entities" in " ".join(text.split())
    assert calibration_error(text) == pytest.approx(
        error_by_hand(table["score"], rights), abs=6e-4
    )


def test_calibration_of_answers_by_hand(tiny_model: Path) -> None:
    rows = sample_of("spans", None, None)
    extractor = BertSpanExtractor(tiny_model, max_length=32, on_ambiguous="first", **USUAL)
    best = extractor.fit(rows.X, rows.y).predict_answers(rows.X, 1)
    predicted = extractor.predict(rows.X)
    chances = [
        score if answer else none
        for answer, score, none in zip(
            predicted, best["score"], best["no_answer_score"], strict=True
        )
    ]
    rights = [squad_em([true], [answer]) for true, answer in zip(rows.y, predicted, strict=True)]
    text = str(report(extractor, rows.X, rows.y, random_state=0))
    assert calibration_error(text) == pytest.approx(error_by_hand(chances, rights), abs=6e-4)


WORDS = [["Ann", "sings"], ["Bob", "Lee", "eats"], ["Oslo", "is", "nice"]]
TAGS = [["B-PER", "O"], ["B-PER", "I-PER", "O"], ["B-LOC", "O", "O"]]
SENTENCES = [" ".join(words) for words in WORDS]
SPANS = [[(0, 3, "PER")], [(0, 7, "PER")], [(0, 4, "LOC")]]


@pytest.mark.parametrize(
    ("X", "y", "new", "label"),
    [
        (WORDS, TAGS, ["B-ORG", "O"], "ORG"),
        (WORDS, TAGS, ["B-LOC", "I-LOC"], ""),
        (SENTENCES, SPANS, [(0, 3, "ORG")], "ORG"),
    ],
    ids=["a label of words", "a tag of words", "a label of texts"],
)
def test_labels_of_words_that_fit_has_not_seen(
    tiny_model: Path, X: Any, y: Any, new: Any, label: str
) -> None:
    tagger = BertTokenTagger(tiny_model, **USUAL).fit(X * 2, y * 2)
    text = str(report(tagger, X, [new, *y[1:]], random_state=0))
    assert (f"Labels unseen in fit: {label}" in text) == bool(label)
    assert "1 row has an infinite loss" in text
    worst = worst_errors(tagger, X, [new, *y[1:]]).frame
    known = worst_errors(tagger, X, y).frame.set_index("row")["loss"]
    assert worst["row"].tolist()[0] == 0
    assert worst["loss"].tolist()[0] == np.inf
    assert worst["probability"].tolist()[0] == 0
    for row, loss in worst[["row", "loss"]].to_numpy()[1:]:
        assert loss == pytest.approx(known[row], rel=1e-5)


def test_the_same_seed_gives_the_same_page(classifier: BertClassifier) -> None:
    pages = [str(report(classifier, TEXTS, LABELS, random_state=5)) for _ in range(2)]
    assert pages[0] == pages[1]
    state = np.random.get_state()[1].tolist()  # noqa: NPY002 - must not move
    report(classifier, TEXTS, LABELS)
    assert np.random.get_state()[1].tolist() == state  # noqa: NPY002


def test_a_pipeline_has_a_report_without_lengths() -> None:
    pipeline = make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(TEXTS, LABELS)
    text = str(report(pipeline, NEW[:3], TRUE[:3], random_state=0))
    assert text.startswith("Report on Pipeline")
    assert "Lengths" not in text
    assert "! Row 2 is empty" in text


def test_texts_and_labels_are_inert(tiny_model: Path, tmp_path: Path) -> None:
    hostile = "<script>alert(1)</script>\u202e"
    model = BertClassifier(tiny_model, **USUAL).fit(TEXTS, [hostile, '"no"'] * 6)
    view = report(model, [hostile, "good"], [hostile, '"no"'], random_state=0)
    html = view._repr_html_()
    assert "<script" not in html
    assert "\u202e" not in html + str(view)
    view.save(tmp_path / "report.html")
    assert "default-src 'none'" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_as_many_errors_as_asked_for(classifier: BertClassifier) -> None:
    assert "Worst errors" not in str(report(classifier, TEXTS, LABELS, n_errors=0))
    text = str(report(classifier, TEXTS, LABELS, n_errors=2, random_state=0))
    losses = [float(each) for each in re.findall(r"loss (\d+\.\d+)$", text, re.MULTILINE)]
    assert len(losses) == 2
    assert losses == sorted(losses, reverse=True)


@pytest.mark.parametrize("n_rows", [1, 12])
def test_equal_numbers_have_no_r2(tiny_model: Path, n_rows: int) -> None:
    regressor = BertRegressor(tiny_model, **USUAL).fit(TEXTS, [*range(12)])
    text = str(report(regressor, TEXTS[:n_rows], [0.1] * n_rows, random_state=0))
    assert "mean absolute error" in text
    assert "R²" not in text


def test_resamples_of_equal_numbers_are_left_out(tiny_model: Path) -> None:
    regressor = BertRegressor(tiny_model, **USUAL).fit(TEXTS, [*range(12)])
    text = str(report(regressor, TEXTS[:3], [0.1, 0.2, 0.3], random_state=0))
    low, high = line_of(text, "R²")[2].split(" to ")
    assert -1e6 < float(low) <= float(high) <= 1


@pytest.mark.parametrize(
    "y_train", [[0, 1], [[0, 1], [1, 0]], [[0, 1, 1], [1, 0, 0]]], ids=["numbers", "two", "three"]
)
def test_training_labels_in_another_form(
    classifier: BertClassifier, tiny_model: Path, y_train: Any
) -> None:
    with pytest.raises(InputError, match=r"y_train has the shape .* Give y_train as in fit"):
        report(classifier, TEXTS, LABELS, y_train=y_train)
    if len(np.shape(y_train)) == 1 or len(y_train[0]) == 3:
        several = [[1, 0], [0, 1]] * 6
        multi_label = BertClassifier(tiny_model, **USUAL).fit(TEXTS, several)
        with pytest.raises(InputError, match=r"y_train has the shape .* Give y_train as in fit"):
            report(multi_label, TEXTS, several, y_train=y_train)


def test_bad_inputs(classifier: BertClassifier, tiny_model: Path) -> None:
    with pytest.raises(InputError, match="y is None"):
        report(classifier, TEXTS, None)
    with pytest.raises(InputError):
        report(classifier, TEXTS, LABELS[:3])
    with pytest.raises(NotFittedError):
        report(BertClassifier(), TEXTS, LABELS)
    with pytest.raises(InputTypeError, match="does not predict"):
        report(BertTransformer(tiny_model).fit(TEXTS), TEXTS, LABELS)
    with pytest.raises(InputError, match="row"):
        report(classifier, TEXTS, LABELS, X_train=["good", None])
    with pytest.raises(InputError, match="X has 12 rows and y_train has 3"):
        report(classifier, TEXTS, LABELS, X_train=TEXTS, y_train=LABELS[:3])
    regressor = BertRegressor(tiny_model, **USUAL).fit(TEXTS, [*range(12)])
    with pytest.raises(InputError, match="y_train is compared with y for classes and labels only"):
        report(regressor, TEXTS, [*range(12)], y_train=[*range(12)])
    with pytest.raises(ValueError, match="seed"):
        report(classifier, TEXTS, LABELS, random_state="zero")
