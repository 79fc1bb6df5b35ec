"""
Other encoders
==============

``model=`` takes the name or the folder of an encoder of 22 families, among them RoBERTa,
DistilBERT, DeBERTa and ModernBERT. Nothing else in your code changes.
"""

# %%
# Small models of five families
# -----------------------------
#
# On your machine you would type a name, such as ``BertClassifier("answerdotai/ModernBERT-base")``.
# This page is made without a network, so it makes small models itself: it trains each a little on
# the bundled texts, as :doc:`/gallery/models/pretraining` does, and saves it in a folder.

import tempfile
from pathlib import Path

import pandas as pd

from skbert import BertPretrainer
from skbert.datasets import load_intents, load_ratings

messages, labels = load_intents(return_X_y=True)
texts = [*messages, *load_ratings().data]
scratch = tempfile.TemporaryDirectory()
rows = []
for family in ("bert", "roberta", "distilbert", "deberta-v2", "modernbert"):
    pretrainer = BertPretrainer(
        None,
        family=family,
        hidden_size=64,
        num_hidden_layers=2,
        vocab_size=800,
        learning_rate=2e-3,
        epochs=3,
        random_state=0,
    ).fit(texts)
    pretrainer.save(Path(scratch.name) / family)
    pieces = " ".join(pretrainer.tokenizer_.tokenize("Déjà vu: my parcel"))
    rows.append({"family": family, "model": type(pretrainer.model_).__name__, "pieces": pieces})
pd.DataFrame(rows).set_index("family")

# %%
# Each family splits texts in its own way, and has its own layers.
#
# The same code for each
# ----------------------

from sklearn.model_selection import train_test_split

from skbert import BertClassifier

X_train, X_test, y_train, y_test = train_test_split(
    messages, labels, stratify=labels, random_state=0
)
scores = {}
for row in rows:
    classifier = BertClassifier(Path(scratch.name) / row["family"], epochs=5, learning_rate=5e-4)
    classifier.set_params(random_state=0).fit(X_train, y_train)
    scores[row["family"]] = classifier.score(X_test, y_test)
scores["all-MiniLM-L6-v2"] = (
    BertClassifier(random_state=0).fit(X_train, y_train).score(X_test, y_test)
)
scratch.cleanup()

# %%
# The last bar is the default model, which has read a billion pairs of sentences: what a model has
# read matters far more than its family.

import matplotlib.pyplot as plt

_, ax = plt.subplots(figsize=(6, 3), layout="constrained")
pd.Series(scores).plot.barh(color=["#999999"] * 5 + ["#0072b2"], xlabel="accuracy", ax=ax)
ax.invert_yaxis()

# %%
# A search over models
# --------------------
#
# The model is a parameter like any other: ``GridSearchCV(BertClassifier(), {"model": [one,
# another]})``. The README has the table of all families and what each can do.
