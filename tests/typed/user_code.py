"""Code as users write it, for type checkers: ``make types`` runs mypy and pyright over it.

Nothing here may need a cast or an ignored error, but for the mistakes at the end, which a checker
must find. ``tests/house/test_typing.py`` runs it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, assert_type

import numpy as np
import pandas as pd
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import Pipeline, make_pipeline
from transformers import PreTrainedModel, PreTrainedTokenizerBase

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

Array = np.ndarray[Any, Any]

TEXTS = ["good film", "bad film", "nice food", "poor food"] * 2
LABELS = ["good", "bad", "good", "bad"] * 2


def constructors() -> list[object]:
    """Make every estimator, with nothing, with a model, and with keywords."""
    return [
        BertChoiceRanker(),
        BertChoiceRanker("model", pooling="mean"),
        BertClassifier(),
        BertClassifier("model", epochs=2, class_weight={"good": 2.0}, random_state=0),
        BertClassifier(Path("model"), text_columns=["title", "text"], freeze="all"),
        BertPretrainer(),
        BertPretrainer(None, hidden_size=32, num_attention_heads=2),
        BertRegressor(),
        BertRegressor("model", max_length=64, validation_fraction=0.1, patience=1),
        BertSpanExtractor(),
        BertSpanExtractor("model", no_answer_threshold=0.5),
        BertTokenTagger(),
        BertTokenTagger("model", scheme=None, decoding="argmax"),
        BertTransformer(),
        BertTransformer("model", layers=[-2, -1], n_components=8, memory="cache"),
        BertTransformer(BertClassifier()),
    ]


def classify(model: Path) -> BertClassifier:
    """Fit, predict, and look at what was learned."""
    classifier = BertClassifier(model, epochs=1, random_state=0, validation_fraction=0.25)
    assert_type(classifier.fit(TEXTS, LABELS), BertClassifier)
    assert_type(classifier.partial_fit(TEXTS, LABELS, classes=["good", "bad"]), BertClassifier)
    assert_type(classifier.set_params(epochs=2), BertClassifier)
    assert_type(classifier.fit(TEXTS, LABELS).predict(TEXTS), Array)
    assert_type(classifier.predict_proba(TEXTS), Array)
    assert_type(classifier.score(TEXTS, LABELS), float)
    assert_type(classifier.classes_, Array)
    assert_type(classifier.temperature_, float)
    assert_type(classifier.history_, list[dict[str, float]])
    assert_type(classifier.history_[0]["loss"], float)
    assert_type(classifier.probe_score_, float)
    assert_type(classifier.n_iter_, int)
    assert_type(classifier.n_truncated_, int)
    assert_type(classifier.pooling_, str)
    assert_type(classifier.model_, PreTrainedModel)
    assert_type(classifier.tokenizer_, PreTrainedTokenizerBase)
    return classifier


def reopen(classifier: BertClassifier, folder: Path) -> BertClassifier:
    """Save and load."""
    classifier.save(folder)
    opened = BertClassifier.from_pretrained(folder, max_length=16)
    assert_type(opened.predict(TEXTS), Array)
    assert_type(BertClassifier.load(folder), BertClassifier)
    skbert.load(folder).predict_proba(TEXTS)
    return BertClassifier.load(str(folder))


def other_estimators(model: Path) -> list[object]:
    """Chain ``fit`` with what comes after it."""
    numbers = np.arange(len(TEXTS), dtype=float)
    regressor = BertRegressor(model, epochs=1, random_state=0).fit(TEXTS, numbers)
    assert_type(regressor, BertRegressor)
    assert_type(regressor.predict(TEXTS), Array)
    assert_type(regressor.mean_, Array)
    assert_type(regressor.n_outputs_, int)

    words, tags = [["good", "film"], ["bad", "film"]], [["B-X", "O"], ["O", "B-X"]]
    tagger = BertTokenTagger(model, epochs=1, random_state=0).fit(words, tags)
    assert_type(tagger, BertTokenTagger)
    assert_type(tagger.predict_spans(words), pd.DataFrame)
    assert_type(tagger.scheme_, str | None)

    questions = [("Who sings?", "Ann sings."), ("Who eats?", "Bob eats.")]
    extractor = BertSpanExtractor(model, epochs=1, random_state=0).fit(questions, ["Ann", "Bob"])
    assert_type(extractor, BertSpanExtractor)
    assert_type(extractor.predict_answers(questions, n_best=2), pd.DataFrame)
    assert_type(extractor.no_answer_threshold_, float)

    choices = [("the film is", ["good", "bad"]), ("the food is", ["bad", "good"])]
    ranker = BertChoiceRanker(model, epochs=1, random_state=0).fit(choices, [0, 1])
    assert_type(ranker, BertChoiceRanker)
    assert_type(ranker.rank(choices), pd.DataFrame)

    pretrainer = BertPretrainer(model, epochs=1, random_state=0).fit(TEXTS)
    assert_type(pretrainer, BertPretrainer)
    assert_type(pretrainer.perplexity(TEXTS), float)
    return [regressor, tagger, extractor, ranker, pretrainer]


def embed(model: Path) -> BertTransformer:
    """Turn texts into vectors."""
    transformer = BertTransformer(model, n_components=2)
    assert_type(transformer.fit(TEXTS), BertTransformer)
    assert_type(transformer.fit(TEXTS).transform(TEXTS), Array)
    assert_type(transformer.fit_transform(TEXTS), Array)
    assert_type(transformer.components_, Array)
    assert_type(transformer.explained_variance_ratio_, Array)
    return transformer


def search(model: Path) -> list[object]:
    """Use estimators in scikit-learn's own."""
    pipeline = Pipeline([("classifier", BertClassifier(model, epochs=1, random_state=0))])
    pipeline.fit(TEXTS, LABELS).predict(TEXTS)
    searched = GridSearchCV(pipeline, {"classifier__freeze": [0, 1]}, cv=2).fit(TEXTS, LABELS)
    scores = cross_val_score(BertClassifier(model, epochs=1), TEXTS, LABELS, cv=2)
    vectors = make_pipeline(BertTransformer(model)).fit_transform(TEXTS)
    return [searched, scores, vectors]


def mistakes(model: Path) -> tuple[object, ...]:
    """Make mistakes that checkers find: each comment that excuses one must be needed.

    mypy allows any keyword where a base class has no types, as scikit-learn's have none.
    """
    return (
        BertClassifier(model, epoch=3),  # pyright: ignore[reportCallIssue]
        BertClassifier(model, epochs="3"),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        BertClassifier(model).fit(TEXTS),  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
        BertClassifier(model).history_.loss,  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    )
