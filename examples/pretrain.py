"""Pre-train a small BERT from scratch, and use it in every other estimator.

    python examples/pretrain.py

The texts come with the package and have about 100 kB: enough to see how it works, too little for a
good model. It takes about a minute on two processor cores, and needs no network.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from skbert import (
    BertChoiceRanker,
    BertClassifier,
    BertPretrainer,
    BertRegressor,
    BertSpanExtractor,
    BertTokenTagger,
    BertTransformer,
)
from skbert.datasets import (
    load_choices,
    load_entities,
    load_intents,
    load_questions,
    load_ratings,
)


def texts_of_all() -> list[str]:
    """Every text of the bundled data sets, without labels."""
    texts = [*load_intents().data, *load_ratings().data, *load_questions().data["context"]]
    texts += [" ".join(words) for words in load_entities().data]
    choices = load_choices().data
    for prompt, options in zip(choices["prompt"], choices["choices"], strict=True):
        texts += [f"{prompt} {option}" for option in options]
    return sorted(set(texts))


def perplexity_of_counts(tokenizer: Any, seen: list[str], new: list[str]) -> float:
    """Perplexity of predicting each word piece from its frequency alone, without context."""
    old, ids = (
        [piece for row in tokenizer(texts, add_special_tokens=False).input_ids for piece in row]
        for texts in (seen, new)
    )
    counts = Counter(old)
    losses = [-np.log((counts[piece] + 1) / (len(old) + len(tokenizer))) for piece in ids]
    return float(np.exp(np.mean(losses)))


def main() -> None:
    """Pre-train on nine tenths of the texts, test on the rest, and use the model elsewhere."""
    texts = texts_of_all()
    new = texts[::10]
    seen = sorted(set(texts) - set(new))
    pretrainer = BertPretrainer(
        None,
        vocab_size=1000,
        hidden_size=128,
        num_hidden_layers=1,
        intermediate_size=256,
        mask_fraction=0.3,
        epochs=20,
        learning_rate=2e-3,
        random_state=0,
        verbose=1,
    ).fit(seen)
    by_counts = perplexity_of_counts(pretrainer.tokenizer_, seen, new)
    print(f"perplexity on {len(new)} texts not seen: {pretrainer.perplexity(new):.0f}")
    print(f"by word piece frequencies alone:      {by_counts:.0f}")
    text = "I would like to [MASK] my order."
    print(f"\n{text}\n{pretrainer.predict_masked([text]).round(3).to_string(index=False)}\n")

    jobs: list[tuple[type, Any]] = [
        (BertClassifier, load_intents),
        (BertRegressor, load_ratings),
        (BertTokenTagger, load_entities),
        (BertSpanExtractor, load_questions),
        (BertChoiceRanker, load_choices),
    ]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "model"
        pretrainer.save(folder)
        for kind, load in jobs:
            X, y = load(return_X_y=True)
            score = kind(folder, epochs=1, random_state=0).fit(X, y).score(X, y)
            print(f"{kind.__name__} after one epoch, on its training rows: {score:.2f}")
        print(f"BertTransformer: {BertTransformer(folder).fit_transform(new).shape}")


if __name__ == "__main__":
    main()
