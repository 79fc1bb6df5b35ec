"""The rows with the highest loss: losses against their definitions and transformers' own loss."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.exceptions import NotFittedError
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from support.jobs import FORMS, TRAINED

from skbert import BertClassifier, BertRegressor, BertTokenTagger
from skbert._core.infer import mean_loss, sample_losses
from skbert._core.runtime.device import Precision
from skbert._estimator.base import encode
from skbert.exceptions import InputError, InputTypeError
from skbert.inspection import ThresholdDisplay, attributions, report, show, worst_errors

if TYPE_CHECKING:
    from pathlib import Path

PREDICTING = [key for key in FORMS if key[0] in TRAINED and key[0] != "BertPretrainer"]
EXACT = {"precision": "float64", "epochs": 1, "random_state": 0}
CPU = Precision("float64", torch.device("cpu"))


def fitted(tiny_model: Path, name: str, form: str, **params: Any) -> tuple[Any, Any, Any]:
    job, rows = FORMS[name, form]
    estimator = job.make(tiny_model, **{**EXACT, **rows.params, **params})
    return estimator.fit(rows.X, rows.y), rows.X, rows.y


@pytest.mark.parametrize(("name", "form"), PREDICTING, ids=map("-".join, PREDICTING))
def test_rows_are_sorted_and_shown(tiny_model: Path, name: str, form: str) -> None:
    estimator, X, y = fitted(tiny_model, name, form)
    view = worst_errors(estimator, X, y, k=20)
    assert sorted(view.frame["row"]) == [*range(12)]
    assert view.frame["loss"].is_monotonic_decreasing
    assert (view.frame["loss"] >= 0).all()
    assert ("probability" in view.frame) == (name != "BertRegressor")
    best = worst_errors(estimator, X, y, k=2)
    pd.testing.assert_frame_equal(best.frame, view.frame.head(2))
    shown = [block.split()[1] for block in repr(best).split("\n\n") if block.startswith("Row")]
    assert shown == [str(row) for row in best.frame["row"]]
    assert f"loss {best.frame['loss'].iloc[0]:.2f}" in best._repr_html_()


def test_loss_of_classes(tiny_model: Path) -> None:
    classifier, X, y = fitted(tiny_model, "BertClassifier", "classes")
    frame = worst_errors(classifier, X, y, k=12).frame
    expected = log_loss(y, classifier.predict_proba(X), labels=classifier.classes_)
    assert frame["loss"].mean() == pytest.approx(expected)
    np.testing.assert_allclose(np.exp(-frame["loss"]), frame["probability"])
    assert frame["truth"].tolist() == [y[row] for row in frame["row"]]
    assert frame["prediction"].tolist() == classifier.predict(X)[frame["row"]].tolist()
    assert frame["text"].tolist() == [X[row] for row in frame["row"]]
    unseen = worst_errors(classifier, X, ["maybe", *y[1:]]).frame.iloc[0]
    assert (unseen["row"], unseen["probability"], unseen["loss"]) == (0, 0, np.inf)


def test_loss_of_labels(tiny_model: Path) -> None:
    classifier, X, y = fitted(tiny_model, "BertClassifier", "labels")
    frame = worst_errors(classifier, X, np.array(y), k=12).frame.sort_values("row")
    chances = classifier.predict_proba(X)
    own = np.where(np.array(y) == 1, chances, 1 - chances).prod(axis=1)
    np.testing.assert_allclose(frame["probability"], own)
    assert frame["truth"].tolist() == [[i for i in (0, 1) if row[i]] for row in y]


@pytest.mark.parametrize("form", ["numbers", "several numbers"])
def test_loss_of_numbers(tiny_model: Path, form: str) -> None:
    regressor, X, y = fitted(tiny_model, "BertRegressor", form)
    frame = worst_errors(regressor, X, y, k=12).frame
    r2 = regressor.score(X, y)
    assert frame["loss"].mean() == pytest.approx(1 - r2)


def test_loss_of_options(tiny_model: Path) -> None:
    ranker, X, y = fitted(tiny_model, "BertChoiceRanker", "lists of options")
    frame = worst_errors(ranker, X, y, k=12).frame.sort_values("row")
    chances = ranker.predict_proba(X)[np.arange(12), y]
    np.testing.assert_allclose(frame["probability"], chances)
    np.testing.assert_allclose(frame["loss"], -np.log(chances))


@pytest.mark.parametrize("max_length", [None, 6])
def test_loss_of_tags(tiny_model: Path, max_length: int | None) -> None:
    tagger, X, y = fitted(tiny_model, "BertTokenTagger", "words", max_length=max_length)
    X, y = [*X[:11], []], [*y[:11], []]
    frame = worst_errors(tagger, X, y, k=12).frame.sort_values("row")
    codes = {tag: code for code, tag in enumerate(tagger.classes_)}
    chances = [
        np.prod([word[codes[tag]] for word, tag in zip(words, tags, strict=True)])
        for words, tags in zip(tagger.predict_proba(X), y, strict=True)
    ]
    np.testing.assert_allclose(frame["probability"], chances)
    np.testing.assert_allclose(np.exp(-frame["loss"]), chances)


def test_loss_of_spans_in_texts_is_that_of_their_tags(tiny_model: Path) -> None:
    X, y = FORMS["BertTokenTagger", "words"][1].X, [["B-A", "I-A", "O", "O", "O"]] * 12
    tagger = BertTokenTagger(tiny_model, **EXACT).fit(X, y)
    in_words = worst_errors(tagger, X, y, k=12).frame
    texts, spans = (
        [" ".join(words) for words in X],
        [[(0, len(" ".join(words[:2])), "A")] for words in X],
    )
    in_texts = worst_errors(tagger, texts, spans, k=12).frame
    np.testing.assert_allclose(in_texts["loss"], in_words["loss"], rtol=1e-6)


def test_loss_of_answers_is_that_of_transformers(tiny_model: Path) -> None:
    extractor, X, y = fitted(tiny_model, "BertSpanExtractor", "answers")
    frame = worst_errors(extractor, X, y, k=12).frame.sort_values("row")
    model, tokenizer = extractor.model_.eval(), extractor.tokenizer_
    for (question, context), answer, loss in zip(X, y, frame["loss"], strict=True):
        encoded = tokenizer(question, context, return_tensors="pt", return_token_type_ids=True)
        start = context.index(answer)
        first = encoded.char_to_token(0, start, 1)
        last = encoded.char_to_token(0, start + len(answer) - 1, 1)
        places = {"start_positions": torch.tensor([first]), "end_positions": torch.tensor([last])}
        assert loss == pytest.approx(model(**encoded, **places).loss.item(), rel=1e-6)


def test_probability_of_answers_is_that_of_the_right_ones(tiny_model: Path) -> None:
    extractor, X, y = fitted(tiny_model, "BertSpanExtractor", "answers")
    table = extractor.predict_answers(X, 20)
    frame = worst_errors(extractor, X, ["", *y[1:]], k=12).frame.sort_values("row")
    assert frame["probability"].iloc[0] == table["no_answer_score"].iloc[0]
    right = table[(table["row"] == 1) & (table["answer"] == y[1])]["score"].sum()
    assert frame["probability"].iloc[1] == pytest.approx(right)


def test_losses_of_samples_are_those_of_one_at_a_time(tiny_model: Path) -> None:
    long = {"max_length": 20, "long_text": "windows", "label_smoothing": 0.1}
    classifier = BertClassifier(tiny_model, **EXACT, **long)
    X, y = ["good food " * n for n in (1, 9, 30, 2)], [0, 1, 0, 1]
    state = classifier.fit(X, y)._state()
    rows = classifier._rows(X, state.record)
    items = encode(state.task, rows, np.array(y), state.network)
    losses = sample_losses(state.network, state.task, items, CPU, 4)
    alone = [
        mean_loss(state.network, state.task, items.of_samples(np.array([row])), CPU)
        for row in range(4)
    ]
    np.testing.assert_allclose(losses, alone)


def test_searches_and_pipelines(tiny_model: Path) -> None:
    X, y = FORMS["BertTokenTagger", "words"][1][:2]
    tagger = BertTokenTagger(tiny_model, **EXACT)
    search = GridSearchCV(tagger, {"epochs": [1]}, cv=2).fit(X, y)
    alone = worst_errors(tagger.fit(X, y), X, y).frame
    pd.testing.assert_frame_equal(worst_errors(search, X, y).frame, alone)
    X, y = FORMS["BertClassifier", "classes"][1][:2]
    pipeline = make_pipeline(CountVectorizer(), LogisticRegression()).fit(X, y)
    assert len(worst_errors(pipeline, X, y, 3).frame) == 3


def test_pairs_are_two_lines(tiny_model: Path) -> None:
    classifier, X, y = fitted(tiny_model, "BertClassifier", "pairs")
    frame = worst_errors(classifier, X, y, k=1).frame
    assert frame["text"][0] == "\n".join(X[frame["row"][0]])


EXPLAINED = [key for key in PREDICTING if key[1] != "several numbers"]


@pytest.mark.parametrize(("name", "form"), EXPLAINED, ids=map("-".join, EXPLAINED))
def test_predictions_are_explained(tiny_model: Path, name: str, form: str) -> None:
    estimator, X, y = fitted(tiny_model, name, form)
    view = worst_errors(estimator, X, y, k=2, explain=True)
    assert view._repr_html_().count('<div class="heat">') == 2
    rows = view.frame["row"].tolist()
    for each in attributions(estimator, [X[row] for row in rows]):
        assert f"output {each.output:.4g}" in repr(view)
    pd.testing.assert_frame_equal(view.frame, worst_errors(estimator, X, y, k=2).frame)


# --- what cannot be judged -----------------------------------------------------------------------


def test_bad_input(tiny_model: Path) -> None:
    classifier, X, y = fitted(tiny_model, "BertClassifier", "classes")
    with pytest.raises(InputError, match="y is None, so nothing is known to be wrong"):
        worst_errors(classifier, X, None)
    with pytest.raises(InputError, match="X has 12 rows and y has 11"):
        worst_errors(classifier, X, y[1:])
    with pytest.raises(NotFittedError):
        worst_errors(BertClassifier(), X, y)
    pipeline = make_pipeline(CountVectorizer(), LogisticRegression()).fit(X, y)
    with pytest.raises(InputTypeError, match="explain=True needs an estimator of skbert"):
        worst_errors(pipeline, X, y, explain=True)


def test_a_tag_that_fit_has_not_seen(tiny_model: Path) -> None:
    tagger, X, y = fitted(tiny_model, "BertTokenTagger", "words")
    frame = worst_errors(tagger, X, [["B-NEW"] * len(X[0]), *y[1:]]).frame
    assert frame["loss"].tolist()[:1] == [np.inf]
    assert np.isfinite(frame["loss"][1:]).all()


def test_a_type_that_fit_has_seen_in_single_words_only(tiny_model: Path) -> None:
    X, y = [["Anna", "sings"], ["it", "rains"]] * 4, [["B-PER", "O"], ["O", "O"]] * 4
    tagger = BertTokenTagger(tiny_model, **EXACT).fit(X, y)
    (of_words,) = worst_errors(tagger, X[:1], y[:1]).frame["loss"]
    texts = ["Anna sings", "Anna Berg"]
    of_texts = worst_errors(tagger, texts, [[(0, 4, "PER")], [(0, 9, "PER")]]).frame
    assert of_texts.set_index("row")["loss"].tolist() == [np.inf, pytest.approx(of_words)]
    assert of_texts["row"].tolist() == [1, 0]


@pytest.mark.parametrize("kind", [BertClassifier, BertRegressor])
def test_columns_of_y_are_those_of_fit(kind: Any, tiny_model: Path) -> None:
    X = ["good", "bad", "fine", "poor"] * 2
    y = pd.DataFrame({"a": [1, 0, 1, 0] * 2, "b": [1, 1, 0, 0] * 2})
    learned = kind(tiny_model, **EXACT).fit(X, y)
    swapped = y[["b", "a"]]
    for estimator in (learned, make_pipeline(learned)):
        for call in (worst_errors, show, report):
            call(estimator, X, y)
            with pytest.raises(InputError, match="in fit they were"):
                call(estimator, X, swapped)
    if kind is BertClassifier:
        with pytest.raises(InputError, match="in fit they were"):
            report(learned, X, y, y_train=swapped)
        with pytest.raises(InputError, match="in fit they were"):
            ThresholdDisplay.from_estimator(learned, X, swapped)


def test_a_tagger_inside_a_pipeline(tiny_model: Path) -> None:
    X, y = FORMS["BertTokenTagger", "words"][1][:2]
    pipeline = make_pipeline(BertTokenTagger(tiny_model, **EXACT)).fit(X, y)
    with pytest.raises(InputTypeError, match="of a Pipeline, such a step"):
        worst_errors(pipeline, X, y)


def test_several_numbers_are_explained_one_by_one(tiny_model: Path) -> None:
    regressor, X, y = fitted(tiny_model, "BertRegressor", "several numbers")
    with pytest.raises(InputError, match=r"predicts 2. Type explain=False.*target=0"):
        worst_errors(regressor, X, y, explain=True)


def test_rows_without_words_have_nothing_to_explain(tiny_model: Path) -> None:
    X, y = [["Ann", "sings"], [], ["Oslo"]], [["B-PER", "O"], [], ["B-LOC"]]
    tagger = BertTokenTagger(tiny_model, **EXACT).fit(X, y)
    view = worst_errors(tagger, X, y, explain=True)
    assert str(view).count("What each word contributes") == 2
