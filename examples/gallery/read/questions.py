"""
Questions to documents
======================

The answer to a question is a part of a document, or the document does not say.
:class:`skbert.BertSpanExtractor` finds it, with its place and its probability.
"""

# %%
# The data
# --------
#
# A row is a question and a text, the context. y is the answer with its first character, or ``""``.
# Questions about one text stay on the same side of the split.

from sklearn.model_selection import GroupShuffleSplit

from skbert.datasets import load_questions

X, y = load_questions(return_X_y=True)
parts = GroupShuffleSplit(1, test_size=0.2, random_state=0)
train, test = next(parts.split(X, groups=X["context"]))
X_train, X_test, y_train, y_test = X.iloc[train], X.iloc[test], y.iloc[train], y.iloc[test]
X_train[["question"]].assign(answer=y_train).head()

# %%
# Fit
# ---
#
# These are few questions for an encoder that was not trained on any: the scores are low. With
# thousands, or with a checkpoint that was trained on SQuAD, they are not.

from skbert import BertSpanExtractor
from skbert.metrics import squad_em

extractor = BertSpanExtractor(epochs=8, learning_rate=3e-4, random_state=0).fit(X_train, y_train)
answers = extractor.predict(X_test)
print(f"F1 of the words {extractor.score(X_test, y_test):.2f}")
print(f"exactly right   {squad_em(y_test, answers):.2f}")

# %%
# ``predict`` gives an exact part of the context, or ``""`` where it sees no answer.

table = X_test[["question"]].copy()
table["right"] = [answer[0] if answer else "" for answer in y_test]
table["predicted"] = answers
table.head(8)

# %%
# The best answers
# ----------------
#
# ``predict_answers`` shows several, with their place in the context in characters.

best = extractor.predict_answers(X_test.iloc[1:2], n_best=3)
print(X_test["question"].iloc[1])
best.drop(columns="row").round(3)

# %%
import matplotlib.pyplot as plt

_, ax = plt.subplots(figsize=(6, 2.2), layout="constrained")
names = [*best["answer"], "(no answer)"]
ax.barh(
    names, [*best["score"], best["no_answer_score"].iloc[0]], color=["#0072b2"] * 3 + ["#999999"]
)
ax.set(xlabel="probability", xlim=(0, 1))
ax.invert_yaxis()

# %%
# In their contexts answers are easier to judge.

from skbert.inspection import show

show(extractor, X_test[:4], y_test[:4])
