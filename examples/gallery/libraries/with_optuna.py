"""
Optuna: search and stop early
=============================

`Optuna <https://optuna.org>`_ proposes settings, learns from their scores, and ends trials that
look hopeless. ``partial_fit`` gives it a score after each pass over the data.
"""

# %%
# A trial
# -------
#
# A trial fits pass by pass and reports after each. ``learning_rate`` and ``freeze``, the number of
# layers that stay as they are, are what it searches.

import optuna
from sklearn.model_selection import train_test_split

from skbert import BertClassifier
from skbert.datasets import load_intents

X, y = load_intents(return_X_y=True)
X_train, X_valid, y_train, y_valid = train_test_split(
    X, y, train_size=160, test_size=160, stratify=y, random_state=0
)


def accuracy(trial):
    """The accuracy of one proposal, which may end early."""
    classifier = BertClassifier(
        learning_rate=trial.suggest_float("learning_rate", 1e-5, 1e-3, log=True),
        freeze=trial.suggest_int("freeze", 0, 5),
        random_state=0,
    )
    for step in range(3):
        classifier.partial_fit(X_train, y_train)
        score = classifier.score(X_valid, y_valid)
        trial.report(score, step)
        if trial.should_prune():
            raise optuna.TrialPruned
    return score


# %%
# The search
# ----------

optuna.logging.set_verbosity(optuna.logging.WARNING)
study = optuna.create_study(
    direction="maximize",
    sampler=optuna.samplers.TPESampler(seed=0),
    pruner=optuna.pruners.MedianPruner(n_startup_trials=2),
)
study.optimize(accuracy, n_trials=8)
print(f"best accuracy {study.best_value:.2f} with {study.best_params}")

# %%
# The trials
# ----------

import matplotlib.pyplot as plt

_, ax = plt.subplots(figsize=(6, 3.5), layout="constrained")
for trial in study.trials:
    pruned = trial.state == optuna.trial.TrialState.PRUNED
    steps, scores = zip(*trial.intermediate_values.items(), strict=True)
    ax.plot(steps, scores, "o:" if pruned else "o-", color="#999999" if pruned else "#0072b2")
ax.set(xlabel="pass", ylabel="accuracy", xticks=range(3), title="dotted: ended early")

# %%
# The table says what was tried.

columns = ["params_learning_rate", "params_freeze", "value", "state"]
study.trials_dataframe()[columns].sort_values("value", ascending=False).round(5)
