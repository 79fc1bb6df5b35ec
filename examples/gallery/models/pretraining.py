"""
Pre-training on your texts
==========================

Texts without labels are usually plentiful. A model that has read yours knows their words before it
sees the first label. Here a small model is trained from nothing, on 100 kB.
"""

# %%
# The texts
# ---------
#
# All texts of the bundled data sets, without their labels. A tenth is kept to test on.

from skbert.datasets import (
    load_choices,
    load_entities,
    load_intents,
    load_questions,
    load_ratings,
)

choices = load_choices().data.explode("choices")
texts = {
    *load_intents().data,
    *load_ratings().data,
    *load_questions().data["context"],
    *load_entities().data.str.join(" "),
    *(choices["prompt"] + " " + choices["choices"]),
}
texts = sorted(texts)
new, seen = texts[::10], [text for i, text in enumerate(texts) if i % 10]
print(f"{len(seen)} texts to learn from, {len(new)} to test on")

# %%
# Learn a vocabulary and a model
# ------------------------------
#
# ``model=None`` learns which pieces the texts are made of, and trains a BERT of the sizes that you
# name to guess masked words.

from skbert import BertPretrainer

pretrainer = BertPretrainer(
    None,
    vocab_size=1000,
    hidden_size=128,
    num_hidden_layers=1,
    intermediate_size=256,
    mask_fraction=0.3,
    epochs=20,
    learning_rate=2e-3,
    validation_fraction=0.1,
    random_state=0,
).fit(seen)
print(pretrainer.tokenizer_.tokenize("I would like to cancel my subscription."))

# %%
import matplotlib.pyplot as plt
import pandas as pd

history = pd.DataFrame(pretrainer.history_)
_, ax = plt.subplots(figsize=(6, 3), layout="constrained")
history[["loss", "validation_loss"]].plot(ax=ax, xlabel="epoch", ylabel="loss")

# %%
# What it has learned
# -------------------
#
# Perplexity is the number of words between which the model hesitates: the lower, the better.

print(f"perplexity on new texts: {pretrainer.perplexity(new):.0f} of 1000 pieces")
pretrainer.predict_masked(["I would like to [MASK] my order."]).round(3)

# %%
# Use it
# ------
#
# The saved folder is a model for every other estimator. To go on from a model that has read much
# more, name it instead of ``None``: ``BertPretrainer("bert-base-uncased").fit(texts)``.

import tempfile

from sklearn.model_selection import cross_val_score

from skbert import BertClassifier

X, y = load_intents(return_X_y=True)
with tempfile.TemporaryDirectory() as folder:
    pretrainer.save(folder)
    classifier = BertClassifier(folder, epochs=10, learning_rate=5e-4, random_state=0)
    print(f"accuracy {cross_val_score(classifier, X, y, cv=3).mean():.2f}")
