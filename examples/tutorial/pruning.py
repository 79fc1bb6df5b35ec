r"""
Pruning attention heads
=======================

The default encoder has six layers of twelve attention heads. Are all 72 needed? This page measures
how important each head is for a classifier, removes the least important ones, and looks at what is
lost.
"""

# %%
# A classifier for messages to a support desk. A third of the messages is kept to test on.
import copy

import numpy as np
from matplotlib import pyplot as plt
from sklearn.model_selection import train_test_split

from skbert import BertClassifier
from skbert.datasets import load_intents
from skbert.inspection import head_importance, prune_heads

X, y = load_intents(return_X_y=True)
parts = train_test_split(X, y, test_size=1 / 3, stratify=y, random_state=0)
X_train, X_test, y_train, y_test = parts
classifier = BertClassifier(epochs=2, precision="float32", random_state=0).fit(X_train, y_train)
print(f"{classifier.score(X_test, y_test):.3f}")

# %%
# Importance
# ----------
#
# Imagine a gate :math:`\xi = 1` on the output of a head. It changes nothing, but the gradient of
# the loss with respect to it says how much the loss depends on the head. Its absolute value,
# averaged over rows, is the importance (Michel, Levy and Neubig 2019):
#
# .. math:: I = \frac{1}{n} \sum_{i=1}^{n} \left| \frac{\partial \mathcal{L}_i}{\partial \xi}
#           \right|
#
# :func:`~skbert.inspection.head_importance` computes it for all heads.
importance = head_importance(classifier, X_train, y_train, normalize=False)
layer, head = np.unravel_index(importance.argmax(), importance.shape)
print(f"most important: head {head} of layer {layer}, {importance[layer, head]:.4f}")

# %%
# A gradient is what a small change does, so we can measure it. The matrix after attention has a
# block of 32 columns for each head. Multiplying them by 1.01 and by 0.99 is to open and to shut
# the gate a little. The differences of the loss, row by row, give the same importance.


def gated(gate: float) -> BertClassifier:
    """Copy the classifier, with the output of the most important head multiplied."""
    changed = copy.deepcopy(classifier)
    output = changed.model_.bert.encoder.layer[layer].attention.output.dense
    output.weight.data[:, head * 32 : (head + 1) * 32] *= gate
    return changed


def losses(estimator: BertClassifier) -> np.ndarray:
    """Cross-entropy of each training row."""
    columns = np.searchsorted(estimator.classes_, y_train)
    return -np.log(estimator.predict_proba(X_train)[np.arange(len(columns)), columns])


measured = np.abs((losses(gated(1.01)) - losses(gated(0.99))) / 0.02).mean()
print(f"measured: {measured:.4f}")
np.testing.assert_allclose(measured, importance[layer, head], rtol=0.01)

# %%
# All heads in one picture. The last layer has a third of the importance of all six.
figure, axis = plt.subplots(figsize=(7, 3.4), layout="constrained")
figure.colorbar(axis.matshow(importance, cmap="cividis"), label="importance")
axis.set(xlabel="head", ylabel="layer")
print("share of each layer:", (importance.sum(axis=1) / importance.sum()).round(2))

# %%
# Pruning
# -------
#
# :func:`~skbert.inspection.prune_heads` makes a copy without some heads. Their rows of the query,
# key and value matrices and their columns of the output matrix are gone, so the copy is smaller
# and computes less. It predicts what the whole model predicts with their gates shut.
without = prune_heads(classifier, heads={int(layer): [int(head)]})
np.testing.assert_allclose(
    without.predict_proba(X_test), gated(0.0).predict_proba(X_test), atol=1e-5
)
saved = classifier.model_.num_parameters() - without.model_.num_parameters()
print(f"{saved:,} weights less: 3 x 32 rows with a bias, 32 columns:", 3 * 32 * 385 + 32 * 384)

# %%
# How many can go? We remove more and more heads, the least important first, and, to compare, the
# most important first. Each layer keeps one head.
fractions = np.array([0, 0.2, 0.4, 0.6, 0.8])
curves = {
    name: [
        prune_heads(classifier, fraction=f, importance=order).score(X_test, y_test)
        for f in fractions
    ]
    for name, order in {"least first": importance, "most first": -importance}.items()
}

# %%
# A pruned model can go on learning. ``warm_start=True`` keeps its weights, and one more epoch lets
# the heads that are left take over the work of those that are gone.
again = prune_heads(classifier, fraction=0.6, importance=importance)
again.set_params(warm_start=True, epochs=1).fit(X_train, y_train)

figure, axis = plt.subplots(figsize=(7, 3.8), layout="constrained")
for name, scores in curves.items():
    axis.plot(fractions, scores, "o-", label=name)
axis.plot(0.6, again.score(X_test, y_test), "k*", markersize=12, label="and one more epoch")
axis.set(xlabel="fraction of heads pruned", ylabel="accuracy on test messages", ylim=(0, 1))
axis.legend()
assert curves["least first"][2] > curves["most first"][2]

# %%
# So importance tells which heads can go, and some of what is lost can be learned again. How much
# faster a pruned model is depends on the length of the texts; :doc:`/inspection` has figures for
# more data.
