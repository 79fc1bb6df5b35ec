r"""
Attention, step by step
=======================

A layer of BERT lets every token look at every other one and take from it what it needs. This page
computes one layer by hand, for one sentence, with nothing but matrix products. The result equals
that of the model.
"""

# %%
# The input of a layer is one vector for each token. We take the sentence from the embeddings up to
# layer 2, and compute layer 2 ourselves (layers are counted from 0).
import numpy as np
from matplotlib import pyplot as plt
from scipy.special import erf, softmax

from skbert import BertTransformer
from skbert.inspection import attentions

text = "The parcel was late because it went to Oslo."
encoder = BertTransformer().fit([text])
tokenizer, model = encoder.tokenizer_, encoder.model_
row = tokenizer(text, return_tensors="pt")
tokens = tokenizer.convert_ids_to_tokens(row["input_ids"][0])
states = [state.detach().numpy()[0] for state in model(**row, output_hidden_states=True)[2]]
at = 2
x, result = states[at], states[at + 1]
print(len(tokens), "tokens, each a vector of", x.shape[1], "numbers")

# %%
# Query, key and value
# --------------------
#
# Three matrices make three vectors of each token:
#
# - its *query*: what does this token look for?
# - its *key*: what can be found here?
# - its *value*: what does it hand over to those who look here?
#
# Each is a matrix product and a shift, :math:`q = x W^T + b`. All the weights are learned.
weights = {name: p.detach().numpy() for name, p in model.encoder.layer[at].named_parameters()}


def linear(vectors: np.ndarray, name: str) -> np.ndarray:
    """Multiply by a weight matrix of the layer, and add its bias."""
    return vectors @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


query, key, value = (linear(x, f"attention.self.{name}") for name in ("query", "key", "value"))

# %%
# Heads
# -----
#
# The 384 numbers are split into 12 *heads* of 32. Each head looks for something else, with its own
# part of the query, the key and the value.
shape = len(tokens), model.config.num_attention_heads, -1
query, key, value = (part.reshape(shape).swapaxes(0, 1) for part in (query, key, value))
print(query.shape, "= heads, tokens, numbers")

# %%
# Scores and softmax
# ------------------
#
# How much token :math:`i` looks at token :math:`j` depends on the product of the query of
# :math:`i` and the key of :math:`j`, divided by the root of their size :math:`d`. Softmax makes
# weights of the scores, positive and with the sum 1:
#
# .. math:: s_{ij} = \frac{q_i \cdot k_j}{\sqrt{d}}, \qquad
#           a_{ij} = \frac{e^{s_{ij}}}{\sum_m e^{s_{im}}}
scores = query @ key.swapaxes(1, 2) / np.sqrt(query.shape[2])
attention = softmax(scores, axis=2)
print(attention.shape, "= heads, tokens that look, tokens looked at")
np.testing.assert_allclose(attention.sum(axis=2), 1, rtol=1e-5)

# %%
# :func:`skbert.inspection.attentions` returns these weights for every layer and head of a fitted
# estimator. They are the same.
[(_, _, grid)] = attentions(encoder, [text])
np.testing.assert_allclose(attention, grid[at], atol=1e-5)

# %%
# Some heads are easy to read. Below are the two heads of the model in which tokens look most at
# the token before them and at the one after them. Most heads are a mixture of several things, so
# do not take a picture of attention for an explanation of a prediction.
before, after = (np.diagonal(grid, step, 2, 3).mean(axis=2) for step in (-1, 1))
figure, axes = plt.subplots(1, 2, figsize=(10, 4.6), layout="constrained")
for axis, strength, name in zip(axes, (before, after), ("before", "after"), strict=True):
    layer, head = np.unravel_index(strength.argmax(), strength.shape)
    axis.imshow(grid[layer, head], cmap="Blues", vmin=0, vmax=1)
    axis.set_xticks(range(len(tokens)), tokens, rotation=70)
    axis.set_yticks(range(len(tokens)), tokens)
    title = f"layer {layer}, head {head}: {strength.max():.0%} on the token {name}"
    axis.set(xlabel="looked at", ylabel="looks", title=title)

# %%
# The rest of the layer
# ---------------------
#
# Each token now takes the average of the values, weighted by its attention. The heads' results
# are joined again, mixed by one more matrix, and *added* to what the token was before. LayerNorm,
# as on the page before, keeps the numbers in range.
mixed = (attention @ value).swapaxes(0, 1).reshape(x.shape)


def normed(vectors: np.ndarray, name: str) -> np.ndarray:
    """LayerNorm with the learned scale and shift of this name."""
    centred = vectors - vectors.mean(axis=1, keepdims=True)
    scale = np.sqrt(vectors.var(axis=1, keepdims=True) + model.config.layer_norm_eps)
    return centred / scale * weights[f"{name}.weight"] + weights[f"{name}.bias"]


joined = normed(x + linear(mixed, "attention.output.dense"), "attention.output.LayerNorm")

# %%
# Attention has moved information between tokens. A small network now works on each token by
# itself: four times as wide, then GELU, which lets positive numbers pass and flattens negative
# ones, and back. Again the result is added and normalised. That is the whole layer.
wide = linear(joined, "intermediate.dense")
wide = wide * (1 + erf(wide / np.sqrt(2))) / 2
by_hand = normed(joined + linear(wide, "output.dense"), "output.LayerNorm")
print("largest difference to the model:", np.abs(by_hand - result).max())
np.testing.assert_allclose(by_hand, result, atol=1e-4)

# %%
# What it is good for
# -------------------
#
# Before the first layer "bank" has the same vector in every sentence, but for its position. With
# each layer it takes in more of the words around it. Measured by the cosine similarity of its
# vector in three sentences, the two banks with money stay close and the one at a river moves away.
sentences = ["The bank paid me.", "I got cash at the bank.", "We sat on the river bank."]
row = tokenizer(sentences, padding=True, return_tensors="pt")
hidden = model(**row, output_hidden_states=True)[2]
places = [tokenizer.tokenize(sentence).index("bank") + 1 for sentence in sentences]  # after [CLS]
vectors = np.stack([state.detach().numpy()[range(3), places] for state in hidden], axis=1)
vectors /= np.linalg.norm(vectors, axis=2, keepdims=True)
money, river = (vectors[0] * vectors[1]).sum(axis=1), (vectors[0] * vectors[2]).sum(axis=1)
assert money[-1] > river[-1]

figure, axis = plt.subplots(figsize=(6, 3.2), layout="constrained")
axis.plot(money, "o-", label="bank with money, twice")
axis.plot(river, "s--", label="bank with money, bank of a river")
axis.set(xlabel="layers", ylabel="cosine similarity", ylim=(0, 1.05))
axis.legend()
