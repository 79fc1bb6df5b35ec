r"""
Tokens and embeddings
=====================

A model computes with numbers. This page follows one message from its characters to the first
matrix of numbers inside BERT: text, words, word pieces, ids, vectors. Each step is done by hand in
a few lines, and compared with what the model does.
"""

# %%
# A :class:`~skbert.BertTransformer` opens the default encoder. It trains nothing; ``fit`` only
# reads the model. ``tokenizer_`` and ``model_`` are ordinary objects of the transformers library,
# so we can look inside.
import numpy as np
import pandas as pd
from matplotlib import pyplot as plt

from skbert import BertTransformer

text = "Unbelievably late: my parcels went to Zürich."
encoder = BertTransformer().fit([text])
tokenizer, model = encoder.tokenizer_, encoder.model_

# %%
# From text to pieces
# -------------------
#
# The tokenizer first cleans the text. This model reads lower case without accents. Then it splits
# at blanks and around punctuation.
splitter = tokenizer.backend_tokenizer
cleaned = splitter.normalizer.normalize_str(text)
words = [word for word, span in splitter.pre_tokenizer.pre_tokenize_str(cleaned)]
print(cleaned, words, sep="\n")

# %%
# A model cannot know every word. It knows a vocabulary of 30,522 *pieces*: frequent words, parts
# of words, single characters. WordPiece cuts a word from the left and always takes the longest
# piece that is in the vocabulary. A piece that continues a word is written with ``##``.
vocabulary = tokenizer.get_vocab()


def pieces_of(word: str) -> list[str]:
    """Cut a word into pieces, the longest first."""
    pieces: list[str] = []
    while word:
        mark = "##" if pieces else ""
        length = next(n for n in range(len(word), -1, -1) if mark + word[:n] in vocabulary)
        if not length:  # not even its first character is known
            return ["[UNK]"]
        pieces.append(mark + word[:length])
        word = word[length:]
    return pieces


pieces = [piece for word in words for piece in pieces_of(word)]
print(f"{len(vocabulary):,} pieces in the vocabulary", pieces, sep="\n")
assert pieces == tokenizer.tokenize(text)

# %%
# From pieces to ids
# ------------------
#
# The number of a piece in the vocabulary is its *id*. Two special pieces are added: ``[CLS]`` in
# front, whose vector later stands for the whole text, and ``[SEP]`` at the end. The tokenizer also
# keeps the place of each piece in the original text. With these offsets skbert finds the words of
# an answer or a name in your text, capitals and accents included.
row = tokenizer(text, return_offsets_mapping=True, return_tensors="pt")
ids = row["input_ids"][0].numpy()
assert ids.tolist() == [vocabulary[piece] for piece in ["[CLS]", *pieces, "[SEP]"]]
tokens = tokenizer.convert_ids_to_tokens(ids)
places = [text[start:end] for start, end in row["offset_mapping"][0]]
pd.DataFrame({"piece": tokens, "id": ids, "in the text": places})

# %%
# From ids to vectors
# -------------------
#
# The model keeps a table with one vector for each piece: 30,522 rows of 384 numbers, learned in
# pre-training. To look up an id is to take a row of the table. Pieces that occur in similar
# sentences have learned similar vectors, which shows if we look for the nearest ones by cosine
# similarity.
parts = {name: part.detach().numpy() for name, part in model.embeddings.named_parameters()}
table = parts["word_embeddings.weight"]
directions = table / np.linalg.norm(table, axis=1, keepdims=True)
for piece in ("parcel", "monday", "angry"):
    nearest = np.argsort(-(directions @ directions[vocabulary[piece]]))[1:5]
    print(f"{piece:8}", ", ".join(tokenizer.convert_ids_to_tokens(nearest)))

# %%
# The vector of a piece is the same wherever it stands, but order matters: "man bites dog" is not
# "dog bites man". So BERT adds a vector for the *position*, from a second table, and one for the
# *type*: 0 for the first text of a row, 1 for the second text of a pair.
n_tokens = len(ids)
word = table[ids]
position = parts["position_embeddings.weight"][:n_tokens]
type_ = parts["token_type_embeddings.weight"][np.zeros(n_tokens, int)]
total = word + position + type_
print(word.shape, position.shape, type_.shape)

# %%
# The sum goes through *LayerNorm*, which gives each token's vector :math:`x` the mean 0 and the
# variance 1 and then scales and shifts each component by learned numbers :math:`g` and :math:`b`:
#
# .. math:: y = g \cdot \frac{x - \mathrm{mean}(x)}{\sqrt{\mathrm{var}(x) + \varepsilon}} + b
#
# This keeps the numbers in a range in which the next layer can learn. The result is exactly what
# the model computes.
mean, variance = total.mean(axis=1, keepdims=True), total.var(axis=1, keepdims=True)
normal = (total - mean) / np.sqrt(variance + model.config.layer_norm_eps)
embedded = parts["LayerNorm.weight"] * normal + parts["LayerNorm.bias"]
of_model = model.embeddings(row["input_ids"]).detach().numpy()[0]
print("largest difference:", np.abs(embedded - of_model).max())
np.testing.assert_allclose(embedded, of_model, atol=1e-5)

# %%
# Two pictures of what was learned. Left, the length of the three vectors that are added for each
# token. Right, the cosine similarity of the first 64 position vectors with each other. It is high
# on the diagonal and falls, in waves, with the distance. Nobody told the model that 7 comes after
# 6; it has learned that from texts.
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
for name, vectors in {"word": word, "position": position, "type": type_}.items():
    left.plot(tokens, np.linalg.norm(vectors, axis=1), "o-", label=name)
left.tick_params(axis="x", rotation=70)
left.set(ylabel="length of the vector", ylim=(0, None))
left.legend()
first = parts["position_embeddings.weight"][:64]
first = first / np.linalg.norm(first, axis=1, keepdims=True)
right.set(xlabel="position", ylabel="position")
figure.colorbar(right.imshow(first @ first.T, cmap="cividis"), label="cosine similarity")

# %%
# This is all that BERT knows of a text before its first layer: which pieces there are, and where.
# It does not know yet which of them belong together. That is what attention is for, on the
# next page.
