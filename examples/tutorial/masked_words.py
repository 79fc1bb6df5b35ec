r"""
Masked words and next sentences
===============================

Where do the weights come from? BERT was trained on raw text, without labels, with two tasks that
make their own: guess the words that were covered, and tell whether one sentence follows another.
On this page a new, tiny BERT learns both, in a world small enough to check what it has understood.
"""

# %%
# The world has eight people and six cities, and in each city they speak another language. Nobody
# tells the model that. It reads 150 short documents of two sentences each; 42 others are kept to
# test it. Their combinations of a name, a verb and a city are new to it.
from itertools import pairwise, product

import numpy as np
import pandas as pd
from matplotlib import pyplot as plt
from scipy.special import softmax

from skbert import BertPretrainer

people = ["anna", "ben", "clara", "david", "emma", "finn", "greta", "hugo"]
cities = ["oslo", "paris", "rome", "madrid", "berlin", "tokyo"]
spoken = ["norwegian", "french", "italian", "spanish", "german", "japanese"]
documents = [
    (f"{name} {verb} in {cities[i]}.", f"{name} speaks {spoken[i]}.")
    for name, verb, i in product(people, ("lives", "works", "studies", "stays"), range(6))
]
rng = np.random.default_rng(0)
train, test = np.split(rng.permutation(documents), [150])
texts = [" ".join(document) for document in train]
print(texts[0])

# %%
# Masked words
# ------------
#
# In each pass over the texts, 15 % of the pieces are *selected*, at random. They have to be
# predicted. Of the selected pieces
#
# - 80 % are replaced by ``[MASK]``,
# - 10 % by a random piece of the vocabulary,
# - 10 % stay as they are.
#
# Without the last two, a model would learn to think about ``[MASK]`` only, and that never occurs
# in the texts that it reads later. So it has to expect that any word may be wrong. This is the
# rule in a few lines, on a row of words long enough to count.
row = np.array(" ".join(texts * 50).split(), dtype=object)
selected = rng.permutation(np.flatnonzero(rng.random(len(row)) < 0.15))
n = len(selected)
mask, swap, keep = np.split(selected, [n * 8 // 10, n * 9 // 10])
masked = row.copy()
masked[mask] = "[MASK]"
masked[swap] = rng.choice(row, len(swap))
print(" ".join(masked[:24]))
print({"selected": n, "mask": len(mask), "random": len(swap), "same": len(keep)})

# %%
# :class:`~skbert.BertPretrainer` draws such masks anew in each epoch. With ``model=None`` it
# learns a vocabulary from the texts and trains a new model of the size we ask for. The loss is the
# cross-entropy of the selected pieces: minus the logarithm of the probability that the model gives
# to the right one. As our texts are few, we let it select 20 %.
size = {"hidden_size": 128, "num_hidden_layers": 2, "intermediate_size": 256}
settings = {**size, "learning_rate": 1e-3, "mask_fraction": 0.2, "random_state": 0}
words = BertPretrainer(None, epochs=80, **settings).fit(texts)
losses = pd.DataFrame(words.history_).set_index("epoch")["loss"]
print(losses.iloc[[0, 9, 29, 79]].round(2).to_dict())

# %%
# To predict a masked word, the head compares the vector at the mask with the vector of every piece
# in the vocabulary, and softmax makes probabilities of that. ``predict_masked`` does the same.
question = "anna lives in oslo. anna speaks [MASK]."
ids = words.tokenizer_(question, return_tensors="pt")
at = ids["input_ids"][0].tolist().index(words.tokenizer_.mask_token_id)
probabilities = softmax(words.model_(**ids).logits[0, at].detach().numpy())
best = words.predict_masked([question], top_k=3)
codes = words.tokenizer_.convert_tokens_to_ids(list(best["token"]))
np.testing.assert_allclose(best["probability"], probabilities[codes], atol=1e-3)
best.round(3)

# %%
# Has it learned which language belongs to which city, or only which words are frequent? The test
# documents tell. The word that decides stands five words before the mask, so only attention can
# bring it there. The loss (left) first falls fast, while the model learns what kind of word stands
# where, and then slowly, while it learns what depends on what.
truth = [second.split()[-1].rstrip(".") for first, second in test]
asked = [" ".join(pair).replace(word, "[MASK]") for pair, word in zip(test, truth, strict=True)]
share = (words.predict_masked(asked, top_k=1)["token"] == truth).mean()
print(f"right on {share:.0%} of {len(test)} new documents")
assert share > 0.9

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
left.plot(losses)
left.set(xlabel="epoch", ylabel="loss", ylim=(0, None))
asked = [f"emma works in {city}. emma speaks [MASK]." for city in cities]
found = words.predict_masked(asked, top_k=len(words.tokenizer_))
table = found.pivot(index="row", columns="token", values="probability")[spoken]
right.imshow(table, cmap="Blues", vmin=0, vmax=1)
right.set_xticks(range(6), spoken, rotation=60)
right.set_yticks(range(6), cities)
_ = right.set(title="probability of the masked word")

# %%
# Next sentences
# --------------
#
# For the second task a row is a pair of texts. In half of the rows the second is the one that
# follows, in the others one from another document. BERT's pooler and a head with two outputs
# tell them apart. Of the random ones some follow as well, by chance; so no model can be certain.
pairs = BertPretrainer(None, objective="mlm+nsp", epochs=80, **settings).fit(train.tolist())
follows = [tuple(document) for document in test]
others = [(a, d) for (a, b), (c, d) in pairwise(test) if b.split()[-1] != d.split()[-1]]
yes, no = pairs.next_sentence_proba(follows), pairs.next_sentence_proba(others)
print(*follows[0], f"{yes[0]:.2f}", *others[0], f"{no[0]:.2f}")
print(f"right on {(yes > 0.5).mean():.0%} of those that follow, {(no < 0.5).mean():.0%} of others")

# %%
# Real pre-training is the same with more of everything: BERT read 3.3 billion words. It pays to
# start from such a model and to continue on your own texts, which is what a ``BertPretrainer``
# with another ``model`` does; see :doc:`/pretraining`.
