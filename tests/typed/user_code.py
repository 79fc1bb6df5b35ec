"""What users do with estimators of any kind: save, search, and make mistakes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, assert_type

import numpy as np
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import Pipeline, make_pipeline

import skbert
from skbert import BertClassifier, BertTransformer

Array = np.ndarray[Any, Any]

TEXTS = ["good film", "bad film", "nice food", "poor food"] * 2
LABELS = ["good", "bad", "good", "bad"] * 2


def reopen(classifier: BertClassifier, folder: Path) -> BertClassifier:
    """Save and load."""
    classifier.save(folder)
    opened = BertClassifier.from_pretrained(folder, max_length=16)
    assert_type(opened.predict(TEXTS), Any)
    assert_type(BertClassifier.load(folder), BertClassifier)
    skbert.load(folder).predict_proba(TEXTS)
    return BertClassifier.load(str(folder))


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
