r"""
The optimizer
=============

Training changes the weights a little after each batch, so that the loss becomes smaller. How much,
and which weights, is the work of the optimizer. This page does its steps by hand, and draws the
learning rates that skbert uses.
"""

# %%
# One step of AdamW
# -----------------
#
# The gradient :math:`g` of a weight says how the loss changes with it. Adam keeps two running
# means for each weight, of the gradient and of its square,
#
# .. math:: m \leftarrow 0.9\,m + 0.1\,g, \qquad v \leftarrow 0.999\,v + 0.001\,g^2
#
# and corrects them for having started at zero. The step is their ratio: as large for weights with
# small gradients as for those with large ones. The *W* stands for weight decay, which pulls each
# weight towards zero by a small share:
#
# .. math:: w \leftarrow w - \eta \left( \frac{\hat m}{\sqrt{\hat v} + \varepsilon}
#           + \lambda w \right)
#
# Five steps by hand for 100 weights, and the same steps of torch's optimizer:
import numpy as np
import pandas as pd
import torch
from matplotlib import pyplot as plt

from skbert import BertClassifier, BertTransformer
from skbert.datasets import load_intents

rng = np.random.default_rng(0)
rate, decay = 1e-3, 0.01
w = rng.normal(size=100)
weight = torch.nn.Parameter(torch.tensor(w))
adamw = torch.optim.AdamW([weight], lr=rate, weight_decay=decay)
m = v = np.zeros(100)
for step in range(1, 6):
    g = rng.normal(size=100)
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
    ratio = m / (1 - 0.9**step) / (np.sqrt(v / (1 - 0.999**step)) + 1e-8)
    w = w - rate * (ratio + decay * w)
    weight.grad = torch.tensor(g)
    adamw.step()
np.testing.assert_allclose(w, weight.detach().numpy(), rtol=1e-12)
print("largest difference:", np.abs(w - weight.detach().numpy()).max())

# %%
# Why not plain gradient descent? Two weights, one on a steep slope and one on a flat one: a rate
# that suits the steep one is far too low for the flat one. Adam takes steps of the same size along
# both. Real networks are like that, with millions of weights.
slopes = torch.tensor([10.0, 0.01])
for kind in (torch.optim.SGD, torch.optim.AdamW):
    point = torch.nn.Parameter(torch.ones(2))
    optimizer = kind([point], lr=0.05)
    for _ in range(100):
        optimizer.zero_grad()
        (slopes * point**2).sum().backward()
        optimizer.step()
    print(f"{kind.__name__:6}", point.detach().numpy().round(3))

# %%
# Groups
# ------
#
# Not all weights are treated alike. Biases and the weights of LayerNorm do not decay, for zero is
# no natural value of them; these are all vectors, and what decays are the matrices. And the new
# head, which knows nothing yet, may have a higher rate than the encoder: 1e-3 against 1e-4 by
# default.
X, y = load_intents(return_X_y=True)
classifier = BertClassifier(epochs=6, freeze="all", random_state=0).fit(X, y)
table = pd.DataFrame([(p.ndim == 2, p.numel()) for p in classifier.model_.parameters()])
table.groupby(0)[1].agg(["size", "sum"]).set_axis(["vectors, no decay", "matrices, decay"])

# %%
# Schedules
# ---------
#
# In the first steps Adam's running means say little. So the rate grows from 0 over the first tenth
# of the steps, the *warm-up*. Afterwards it falls, so that the weights settle. ``history_`` holds
# the rate at the end of each epoch: the dots in the picture below, on the line of the formula. The
# flat line is ``schedule="constant_with_warmup"``.
steps = np.arange(6 * classifier.history_[0]["n_steps"])
n_warmup = np.ceil(0.1 * len(steps))
progress = (steps - n_warmup) / (len(steps) - n_warmup)
shapes = {"linear": 1 - progress, "cosine": (1 + np.cos(np.pi * progress)) / 2, "constant": 1}
curves = {name: 1e-4 * np.minimum(steps / n_warmup, shape) for name, shape in shapes.items()}
ends = steps.reshape(6, -1)[:, -1]
noted = [epoch["learning_rate"] for epoch in classifier.history_]
np.testing.assert_allclose(noted, curves["linear"][ends])

# %%
# Layer decay
# -----------
#
# The lowest layers know what is common to all texts, and need to change least. With
# ``layer_decay=0.8`` each layer has 0.8 times the rate of the layer above it. We can measure that:
# in the very first step of Adam, :math:`\hat m / \sqrt{\hat v}` is 1 or -1, so a weight moves by
# exactly its rate. We fit one step, and see how far the weights of each layer have moved.
settings = {"weight_decay": 0, "warmup": 0, "epochs": 1, "batch_size": 32, "random_state": 0}
stepped = BertClassifier(layer_decay=0.8, schedule="constant", **settings).fit(X[:32], y[:32])
start, moved = dict(BertTransformer().fit(X).model_.named_parameters()), {}
for name, p in stepped.model_.bert.named_parameters():
    layer = name.replace("encoder.layer.", "").split(".")[0]
    moved[layer] = max(moved.get(layer, 0), (p - start[name]).abs().max().item())
assert moved.pop("pooler") == 0  # this classifier reads the mean, and leaves the pooler alone
by_formula = 1e-4 * 0.8 ** np.arange(7, 0, -1)
np.testing.assert_allclose(list(moved.values()), by_formula, rtol=0.01)

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
for name, curve in curves.items():
    left.plot(steps, curve, label=name)
left.plot(ends, noted, "ko", label="history_")
left.set(xlabel="step", ylabel="learning rate", title="schedules")
left.legend()
right.set(xlabel="layer", title="layer_decay=0.8: formula and measured")
right.plot(list(moved), list(moved.values()), "ko")
right.bar(list(moved), by_formula)

# %%
# The other settings of a fit, such as ``max_grad_norm`` (a longer gradient is scaled down),
# ``freeze`` and ``accumulate``, are parameters of every estimator that is trained; the page of
# :class:`~skbert.BertClassifier` lists them.
