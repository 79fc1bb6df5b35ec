r"""
Pooling and heads
=================

The encoder returns one vector for each token. A task needs something else: a class for the text, a
tag for each word, the place of an answer. The small last part of a model that makes one of the
other is called the *head*. Heads are the simplest part of a model, and we compute three of them
by hand.
"""

# %%
# Pooling: one vector for a text
# ------------------------------
#
# To classify a text we need one vector for all of it. There are three simple ways to pool the
# vectors of its tokens: take the first one, that of ``[CLS]``; the mean; or the maximum of each
# component. The fourth, BERT's *pooler*, is one more layer on top of the first token,
# :math:`\tanh(W x_1 + b)`, which was trained to tell whether two sentences follow each other. On
# this page skbert computes in float32, as we do; by default it may use bfloat16, which is faster
# and has fewer digits.
import numpy as np
import pandas as pd
from matplotlib import pyplot as plt
from scipy.special import log_softmax, softmax

from skbert import BertClassifier, BertSpanExtractor, BertTokenTagger, BertTransformer
from skbert.datasets import load_entities, load_intents, load_questions

text = "Where is my parcel?"
encoder = BertTransformer().fit([text])
row = encoder.tokenizer_(text, return_tensors="pt")
tokens = encoder.model_(**row)[0][0].detach().numpy()
W, b = (weights.detach().numpy() for weights in encoder.model_.pooler.dense.parameters())
by_hand = {"cls": tokens[0], "mean": tokens.mean(axis=0), "max": tokens.max(axis=0)}
by_hand["pooler"] = np.tanh(W @ tokens[0] + b)
for pooling, vector in by_hand.items():
    of_skbert = BertTransformer(pooling=pooling, precision="float32").fit_transform([text])[0]
    np.testing.assert_allclose(vector, of_skbert, atol=1e-5)
print(tokens.shape, "->", vector.shape)

# %%
# Which one is best? The one that the model was trained with. Our encoder was trained to give
# sentences with the same meaning similar means, and its folder says so; ``pooling="auto"`` reads
# that. The picture compares the poolings on messages to a support desk: for how many is the
# nearest other message, by cosine similarity, one with the same label?
X, y = load_intents(return_X_y=True)
shares = {}
for pooling in by_hand:
    vectors = BertTransformer(pooling=pooling, normalize=True).fit_transform(X)
    similarity = vectors @ vectors.T
    np.fill_diagonal(similarity, -1)
    shares[pooling] = np.mean(y.to_numpy() == y.to_numpy()[similarity.argmax(axis=1)])
assert encoder.pooling_ == "mean" == max(shares, key=shares.get)
figure, axis = plt.subplots(figsize=(6, 2.4), layout="constrained")
axis.bar_label(axis.barh(list(shares), list(shares.values())), fmt="{:.0%}", padding=3)
_ = axis.set(xlabel="nearest message has the same label", xlim=(0, 1))

# %%
# The head of a classifier
# ------------------------
#
# It is one matrix product: a row of weights for each class, multiplied by the pooled vector. The
# results are called *logits*, and softmax makes probabilities of them.
classifier = BertClassifier(epochs=1, precision="float32", random_state=0).fit(X, y)
model = classifier.model_
hidden = model.bert(**row)[0][0].detach().numpy()
W, b = (weights.detach().numpy() for weights in model.classifier.parameters())
logits = W @ hidden.mean(axis=0) + b
np.testing.assert_allclose(softmax(logits), classifier.predict_proba([text])[0], atol=1e-4)
print(f"{W.size + b.size:,} weights in the head, {model.num_parameters():,} in all")
pd.DataFrame({"logit": logits, "probability": softmax(logits)}, index=classifier.classes_).round(2)

# %%
# Training makes the logarithm of the true class's probability large. Its negative is the *loss*,
# cross-entropy. It is near 0 where the model is right and sure, and grows without limit where it
# is sure and wrong.
for label in ("delivery", "refund"):
    loss = -log_softmax(logits)[classifier.classes_ == label].item()
    print(f"loss if the true label is {label}: {loss:.2f}")

# %%
# The head of a tagger
# --------------------
#
# It is the same product, but for each token instead of the pooled vector. A word's tag is read at
# its first piece; the tags of the other pieces are not used.
tagger = BertTokenTagger(epochs=2, random_state=0).fit(*load_entities(return_X_y=True))
words = ["Anna", "Szymborska", "lives", "in", "Oslo"]
row = tagger.tokenizer_(words, is_split_into_words=True, return_tensors="pt")
logits = tagger.model_(**row).logits[0].detach().numpy()
firsts = [row.word_ids().index(i) for i in range(len(words))]
print(tagger.tokenizer_.convert_ids_to_tokens(row["input_ids"][0]), firsts)
tags = tagger.classes_[logits[firsts].argmax(axis=1)]
assert list(tags) == list(tagger.predict([words])[0])
print(dict(zip(words, tags, strict=True)))

# %%
# The head of a span extractor
# ----------------------------
#
# Question and text are read together, as one row. The head gives each token two numbers: how well
# the answer could start here, and how well it could end here. The answer is the pair of places in
# the text with the largest sum, the end not before the start.
extractor = BertSpanExtractor(epochs=2, random_state=0).fit(*load_questions(return_X_y=True))
question, context = "How tall is it?", "The old tower is 42 metres tall. It was built in 1874."
row = extractor.tokenizer_(question, context, return_offsets_mapping=True, return_tensors="pt")
offsets = row.pop("offset_mapping")[0]
start, end = (part[0].detach().numpy() for part in extractor.model_(**row).to_tuple())
pairs = np.add.outer(start, end)
is_context = np.array([part == 1 for part in row.sequence_ids()])
allowed = np.triu(np.outer(is_context, is_context))
first, last = np.unravel_index(np.where(allowed, pairs, -np.inf).argmax(), pairs.shape)
answer = context[offsets[first][0] : offsets[last][1]]
assert answer == extractor.predict([(question, context)])[0]
print(question, answer)

# %%
# All three heads were new, and were learned together with the encoder: that is what fine-tuning
# is. skbert starts them from a linear model on the features of the encoder as it is
# (``head_init``), so that they do not pull the encoder about with random errors at first.
