"""
Why this prediction?
====================

:func:`skbert.inspection.attributions` says what each word of a text contributes to an output. The
contributions add up: together they are the difference that the words make.
"""

# %%
# A classifier
# ------------

from skbert import BertClassifier
from skbert.datasets import load_intents

X, y = load_intents(return_X_y=True)
classifier = BertClassifier(random_state=0).fit(X, y)

# %%
# The words that decide
# ---------------------
#
# Orange words raise the score of the predicted class, blue ones lower it. The baseline is the same
# text with all of its words masked. ``found.save("page.html")`` keeps the picture, and
# ``found[0].save(...)`` that of one text.

from skbert.inspection import attributions

texts = [
    "The parcel was due on Monday and I still have nothing.",
    "I want my money back, the lamp arrived broken.",
    "Your app crashes whenever I enter my password.",
]
found = attributions(classifier, texts)
found

# %%
# They add up
# -----------
#
# ``residual`` is what the numerical integration leaves over, at most a thousandth of the
# difference.

for one in found:
    print(
        f"{one.target:12} output {one.output:6.3f} = baseline {one.baseline_output:6.3f} "
        f"+ words {one.values.sum():6.3f} + residual {one.residual:+.4f}"
    )

# %%
# Another class
# -------------
#
# ``target`` asks about another output than the predicted one. The last message reports an error,
# and is taken for a question about signing in. One word is the reason.

login = found[2]
bug = attributions(classifier, texts[2:], target="bug_report")[0]

import matplotlib.pyplot as plt
import numpy as np

_, ax = plt.subplots(figsize=(6, 4), layout="constrained")
places = np.arange(len(bug.words))
ax.barh(places - 0.2, login.values, height=0.4, color="#0072b2", label=login.target)
ax.barh(places + 0.2, bug.values, height=0.4, color="#e69f00", label=bug.target)
ax.set_yticks(places, login.words)
ax.set(xlabel="contribution to the score of the class")
ax.invert_yaxis()
legend = ax.legend()

# %%
# All estimators
# --------------
#
# Taggers explain the tag of a word, extractors an answer, regressors a number. For a transformer
# it is the similarity with another text.

from skbert import BertTransformer

transformer = BertTransformer(normalize=True).fit(texts)
similar = attributions(transformer, ["Where is my order?"], target="My parcel has not arrived.")
similar.to_frame().round(3)
