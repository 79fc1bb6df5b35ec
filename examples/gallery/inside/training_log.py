"""
A log of a fit
==============

scikit-learn's callbacks hear of every epoch while a fit runs: to log it elsewhere, to plot it, or
to stop it. This needs scikit-learn 1.9 or later.
"""

# %%
# A monitor from scikit-learn
# ---------------------------
#
# ``ScoringMonitor`` computes scores on the training data after each epoch.

from sklearn.callback import ScoringMonitor

from skbert import BertClassifier
from skbert.datasets import load_intents

X, y = load_intents(return_X_y=True)
monitor = ScoringMonitor(scoring=["accuracy", "neg_log_loss"])
classifier = BertClassifier(epochs=3, validation_fraction=0.2, freeze=4, random_state=0)
classifier.set_callbacks(monitor).fit(X, y)
monitor.get_logs().data_as_pandas[["task_name", "task_id", "accuracy", "neg_log_loss"]].round(3)

# %%
# A callback of your own
# ----------------------
#
# After each epoch, ``fitted_estimator`` is what the fit would give if it ended there, with its
# ``history_`` so far. A callback that has a method ``on_step`` also gets the loss of each step;
# without one, steps cost nothing. This one writes to whatever has ``add_scalar``: give it the
# ``SummaryWriter`` of ``torch.utils.tensorboard``, and TensorBoard shows the curves. For MLflow,
# call ``mlflow.log_metric(name, value, step=step)`` instead.


class Curves:
    def __init__(self, writer):
        self.writer = writer

    def setup(self, estimator, context): ...
    def teardown(self, estimator, context): ...
    def on_fit_task_begin(self, estimator, context): ...

    def on_fit_task_end(self, _estimator, context, *, fitted_estimator=None):
        if context.task_name == "pass":
            record = fitted_estimator.history_[-1]
            for name in ("loss", "learning_rate", "validation_loss", "validation_score"):
                self.writer.add_scalar(name, record[name], record["epoch"])

    def on_step(self, _estimator, _context, *, step, loss):
        self.writer.add_scalar("step loss", loss, step)


# %%
# Here a small class that collects the numbers takes the place of TensorBoard's.

import matplotlib.pyplot as plt
import pandas as pd


class Collector(list):
    def add_scalar(self, name, value, step):
        self.append((name, value, step))


collected = Collector()
classifier.set_callbacks(Curves(collected)).fit(X, y)
table = pd.DataFrame(collected, columns=["name", "value", "step"]).set_index("step")
curve = table[table["name"] == "step loss"]["value"]
_, ax = plt.subplots(figsize=(6, 3), layout="constrained")
curve.plot(ax=ax, xlabel="step", ylabel="loss")
table[table["name"] != "step loss"].pivot(columns="name", values="value").round(3)
