r"""
Relative positions
==================

Attention by itself does not know where a token stands. BERT adds a vector for each position to the
embeddings. This page shows another way: to tell attention how far apart two tokens are. On a task
that depends on distances, a tiny model learns with the one what it does not learn with the other.
"""

# %%
# What attention does not see
# ---------------------------
#
# A score of attention is the product of a query and a key, and these are made of a token alone.
# Without positions, all orders of the same words would give the same scores. With *absolute*
# positions (Devlin et al. 2019) each token carries the vector of its place. To find the word in
# front, a head has to learn for place 7 that it is 6, for place 8 that it is 7, and so on.
#
# With *relative* positions (Shaw et al. 2018) there is a vector :math:`a_{i-j}` for each distance,
# and attention adds its product with the query to the score. In the second kind (Huang et al.
# 2020) the key counts, too:
#
# .. math:: s_{ij} = \frac{q_i \cdot k_j + q_i \cdot a_{i-j}\;
#           [\,+\; k_j \cdot a_{i-j}]}{\sqrt{d}}
#
# A distance is the same everywhere in the text, so what is learned at one place holds at all.
#
# A task about distances
# ----------------------
#
# Rows of 30 words, in which "red blue" or "blue red" stands somewhere among other words. Which is
# it? In training the two words stand in the first third of the row. Then we test on rows in which
# they stand in the last third.
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
from matplotlib import pyplot as plt
from scipy.special import softmax

from skbert import BertClassifier, BertPretrainer
from skbert.inspection import attentions

rng = np.random.default_rng(0)


def rows_of(n: int, first: int) -> tuple[list[str], list[str]]:
    """Rows with the pair at one of ten places from the first, and which word is in front."""
    words = rng.choice(["alpha", "beta", "gamma", "delta", "omega"], (n, 30))
    places = rng.integers(first, first + 9, n)
    for row, at in zip(words, places, strict=True):
        row[at : at + 2] = rng.permutation(["red", "blue"])
    return [" ".join(row) for row in words], words[range(n), places].tolist()


X, y = rows_of(600, 0)
tests = {"in front, as in training": rows_of(200, 0), "at the end": rows_of(200, 20)}
print(y[0], "first:", X[0])

# %%
# :class:`~skbert.BertPretrainer` makes new models of both kinds, and any estimator can train them
# further.
size = {"hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128, "random_state": 0}
settings = {"epochs": 14, "learning_rate": 1e-3, "pooling": "mean", "head_init": "random"}
settings |= {"precision": "float32", "random_state": 0}
classifiers = {}
for kind in ("absolute", "relative_key", "relative_key_query"):
    new = BertPretrainer(None, position_embedding_type=kind, epochs=1, **size).fit(X)
    with TemporaryDirectory() as folder:
        new.save(f"{folder}/model")
        classifiers[kind] = BertClassifier(f"{folder}/model", **settings).fit(X, y)
accuracy = pd.DataFrame(
    {kind: [each.score(*rows) for rows in tests.values()] for kind, each in classifiers.items()},
    index=list(tests),
).T
print(accuracy)
assert accuracy.loc["relative_key"].min() > 0.95 > accuracy.loc["absolute"].max()

# %%
# With relative positions the model has learned the rule, and applies it where it has never seen
# the pair. With absolute ones it has learned little of it. That is an extreme case, made for
# this page: with enough texts, absolute positions learn neighbours as well, as the page about
# attention has shown in the default encoder. The picture on the right shows how it is done here:
# "blue" looks at the words right before and after it, and so sees whether "red" is in front.
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
accuracy.plot.bar(ax=left, rot=0, ylim=(0, 1.3), ylabel="accuracy")
text = "alpha beta red blue gamma delta"
[(_, tokens, weights)] = attentions(classifiers["relative_key"], [text])
right.imshow(weights[0].mean(axis=0), cmap="Blues", vmin=0)
right.set_xticks(range(len(tokens)), tokens, rotation=60)
right.set_yticks(range(len(tokens)), tokens)
_ = right.set(title="relative_key: attention in layer 0, mean of heads")

# %%
# By hand
# -------
#
# The scores of the first layer for one row, from the weights of the model. The table
# ``distance_embedding`` has a row for each distance that is possible, the most negative one first.
model, tokenizer = classifiers["relative_key"].model_.bert, classifiers["relative_key"].tokenizer_
x = model.embeddings(tokenizer(text, return_tensors="pt")["input_ids"])[0].detach().numpy()
layer = model.encoder.layer[0].attention.self
heads = (len(x), layer.num_attention_heads, -1)
W = {name: p.detach().numpy() for name, p in layer.named_parameters()}
query, key = (
    (x @ W[f"{part}.weight"].T + W[f"{part}.bias"]).reshape(heads).swapaxes(0, 1)
    for part in ("query", "key")
)
distance = np.subtract.outer(np.arange(len(x)), np.arange(len(x)))
a = W["distance_embedding.weight"][distance + len(W["distance_embedding.weight"]) // 2]
relative = np.einsum("hid,ijd->hij", query, a)
scores = (query @ key.swapaxes(1, 2) + relative) / np.sqrt(query.shape[2])
np.testing.assert_allclose(softmax(scores, axis=2), weights[0], atol=1e-5)

# %%
# These models open in skbert only, for transformers 5 has dropped this kind of positions. Newer
# encoders turn query and key by an angle that grows with the position (*rotary* positions, Su et
# al. 2021). Turned by 7 and by 5 steps or by 102 and 100, the product is the same, because only
# the difference of the angles counts: another relative kind. skbert opens such models, as
# ModernBERT, and ``BertPretrainer(None, family="modernbert")`` makes new ones.


def turned(vector: np.ndarray, position: int) -> np.ndarray:
    """Turn pairs of numbers, written as complex ones, by an angle for each."""
    return vector * np.exp(1j * position * 10000 ** -np.linspace(0, 1, len(vector)))


q, k = rng.normal(size=(2, 16, 2)) @ [1, 1j]
near, far = (np.vdot(turned(k, at), turned(q, at + 2)).real for at in (5, 100))
print(near, far)
np.testing.assert_allclose(near, far)
