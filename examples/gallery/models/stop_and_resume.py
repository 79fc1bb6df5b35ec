"""
Stop a fit and go on
====================

With ``checkpoint_dir`` a fit can be stopped at any moment, by Ctrl-C, by a time limit or by a
power cut. The same fit, called again, goes on where it was, and ends with the same bits as one
that was never stopped.
"""

# %%
# A process that is killed
# ------------------------
#
# Here a fit runs in a process of its own, and writes a checkpoint every ten steps. As soon as the
# first one is there, the process is killed, without a warning to it.

import subprocess
import sys
import time
from pathlib import Path

program = """
from skbert import BertClassifier
from skbert.datasets import load_intents

X, y = load_intents(return_X_y=True)
classifier = BertClassifier(epochs=2, freeze=3, random_state=0)
classifier.set_params(checkpoint_dir="fits", checkpoint_every=10).fit(X, y)
"""
process = subprocess.Popen([sys.executable, "-c", program])  # noqa: S603
while process.poll() is None and not list(Path("fits").glob("fit-*/step-*")):
    time.sleep(0.05)
process.kill()
process.wait()
print(*sorted(path.name for path in Path("fits").glob("fit-*/step-*")))

# %%
# The same fit goes on
# --------------------
#
# Parameters and data are the same, so it begins after the last checkpoint. When it is finished,
# the folder is empty.

import numpy as np

from skbert import BertClassifier
from skbert.datasets import load_intents

X, y = load_intents(return_X_y=True)
classifier = BertClassifier(epochs=2, freeze=3, random_state=0)
classifier.set_params(checkpoint_dir="fits", checkpoint_every=10).fit(X, y)
print("left:", *Path("fits").iterdir())

# %%
# A fit that was never stopped says exactly the same.

whole = BertClassifier(epochs=2, freeze=3, random_state=0).fit(X, y)
print("equal:", np.array_equal(classifier.predict_proba(X), whole.predict_proba(X)))
