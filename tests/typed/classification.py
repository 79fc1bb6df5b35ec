"""Code that classifies texts, as users write it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, assert_type

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from skbert import BertClassifier

Array = np.ndarray[Any, Any]

TEXTS = ["good film", "bad film", "nice food", "poor food"] * 2
LABELS = ["good", "bad", "good", "bad"] * 2


def construct() -> list[object]:
    """Make it with nothing, with a model, and with keywords."""
    return [
        BertClassifier(),
        BertClassifier("model", epochs=2, class_weight={"good": 2.0}, random_state=0),
        BertClassifier(Path("model"), text_columns=["title", "text"], freeze="all"),
        BertClassifier(label_texts={"good": "it is good", "bad": ["awful", "poor"]}),
        BertClassifier(label_texts=True),
        BertClassifier(text_columns=["title", "text", "tags"]),
        BertClassifier(text_columns={"title": "subject", "text": "body"}),
        BertClassifier(text_columns={0: "subject", 2: "body"}),
    ]


def learn(model: Path) -> BertClassifier:
    """Fit, predict, and look at what was learned."""
    classifier = BertClassifier(model, epochs=1, random_state=0, validation_fraction=0.25)
    assert_type(classifier.fit(TEXTS, LABELS), BertClassifier)
    assert_type(classifier.partial_fit(TEXTS, LABELS, classes=["good", "bad"]), BertClassifier)
    assert_type(classifier.set_params(epochs=2), BertClassifier)
    assert_type(BertClassifier.from_label_texts({"good": "it is good"}), BertClassifier)
    assert_type(classifier.fit(TEXTS, LABELS).predict(TEXTS), Any)
    assert_type(classifier.predict_proba(TEXTS), Any)
    assert_type(classifier.score(TEXTS, LABELS), float)
    assert_type(classifier.classes_, Any)
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
