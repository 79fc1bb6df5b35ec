"""
Several labels for a text
=========================

A text may have no label, one, or several. ``y`` is then a matrix of zeros and ones, with a column
for each label.
"""

# %%
# The data
# --------
#
# Messages in which persons, places and dates are marked. The labels of a message are what it
# mentions.

from sklearn.preprocessing import MultiLabelBinarizer

from skbert.datasets import load_entities

words, tags = load_entities(return_X_y=True)
texts = words.str.join(" ")
mentions = tags.map(lambda row: {tag[2:] for tag in row if tag != "O"})
binarizer = MultiLabelBinarizer().fit(mentions)
y = binarizer.transform(mentions)
texts.to_frame("text").assign(mentions=mentions.map(sorted)).head()

# %%
# Fit
# ---
#
# Each label has a probability of its own. With ``tune_thresholds`` every label also gets a
# threshold of its own, the one with the best F1 on rows that are held out from training.

from sklearn.model_selection import train_test_split

from skbert import BertClassifier

X_train, X_test, y_train, y_test = train_test_split(texts, y, random_state=0)
classifier = BertClassifier(
    epochs=6, validation_fraction=0.3, tune_thresholds=True, random_state=0
).fit(X_train, y_train)
for label, threshold in zip(binarizer.classes_, classifier.thresholds_, strict=True):
    print(f"{label:5} from {threshold:.2f}")

# %%
# Scores
# ------
#
# ``score`` is strict: a row counts only if all its labels are right. A report shows each label.

from sklearn.metrics import classification_report

predicted = classifier.predict(X_test)
print(f"rows with all labels right: {classifier.score(X_test, y_test):.2f}\n")
print(classification_report(y_test, predicted, target_names=binarizer.classes_, zero_division=0))

# %%
# ``inverse_transform`` turns the matrix into labels again.

for text, labels in zip(X_test[:5], binarizer.inverse_transform(predicted[:5]), strict=True):
    print(f"{', '.join(labels) or '-':15} {text}")

# %%
# Probabilities and thresholds
# ----------------------------
#
# Rows that mention a label should lie to the right of its threshold.

import matplotlib.pyplot as plt

probabilities = classifier.predict_proba(X_test)
figure, axes = plt.subplots(1, len(binarizer.classes_), figsize=(8, 2.6), layout="constrained")
for k, ax in enumerate(axes):
    ax.hist(
        [probabilities[y_test[:, k] == value, k] for value in (0, 1)],
        bins=12, stacked=True, color=["#bbbbbb", "#0072b2"], label=["without", "with"],
    )  # fmt: skip
    ax.axvline(classifier.thresholds_[k], color="black", linestyle="--")
    ax.set(title=binarizer.classes_[k], xlabel="probability")
legend = axes[0].legend()
