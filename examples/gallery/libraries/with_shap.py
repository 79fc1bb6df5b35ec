"""
SHAP: which words decide
========================

`SHAP <https://shap.readthedocs.io>`_ explains a prediction by leaving out words, in many
combinations. It needs nothing but a function from texts to probabilities, which every fitted
classifier has.
"""

# %%
# A classifier
# ------------

from skbert import BertClassifier
from skbert.datasets import load_intents

X, y = load_intents(return_X_y=True)
classifier = BertClassifier(random_state=0).fit(X, y)

# %%
# Explain
# -------
#
# The masker replaces words by ``[MASK]``, which the model knows from its pre-training. SHAP calls
# the model some hundred times for each text.

import shap

explainer = shap.Explainer(
    lambda texts: classifier.predict_proba(list(texts)),
    shap.maskers.Text(r"\W+", mask_token=classifier.tokenizer_.mask_token),
    output_names=list(classifier.classes_),
)
texts = [
    "The parcel was due on Monday and I still have nothing.",
    "I want my money back for the broken lamp.",
]
explanation = explainer(texts, silent=True)
print(explanation.shape)

# %%
# What counts for the predicted class
# -----------------------------------
#
# Bars to the right raise the probability of the class, bars to the left lower it. Together they
# are the difference between the probability of the text and that of a text of masks only.

import matplotlib.pyplot as plt

figure, axes = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
for ax, one, label in zip(axes, explanation, classifier.predict(texts), strict=True):
    values = one[:, label].values
    ax.barh(range(len(values)), values, color=["#0072b2" if v > 0 else "#e69f00" for v in values])
    ax.set_yticks(range(len(values)), one.data)
    ax.set(title=label, xlabel="contribution to the probability")
    ax.invert_yaxis()
