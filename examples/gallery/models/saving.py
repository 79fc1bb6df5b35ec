"""
Save a model and serve it
=========================

A fitted estimator is saved to a folder and opened elsewhere, with the same predictions. Opening it
runs no code from the folder.
"""

# %%
# Save and load
# -------------

import tempfile
from pathlib import Path

from skbert import BertClassifier, load
from skbert.datasets import load_intents

X, y = load_intents(return_X_y=True)
classifier = BertClassifier(epochs=1, random_state=0).fit(X, y)
scratch = tempfile.TemporaryDirectory()
folder = Path(scratch.name) / "support-desk"
classifier.save(folder)
for path in sorted(folder.rglob("*")):
    print(f"{path.stat().st_size / 1e6:8.3f} MB  {path.relative_to(folder)}")

# %%
opened = load(folder)
print(type(opened).__name__, (opened.predict_proba(X) == classifier.predict_proba(X)).all())

# %%
# Changed files are noticed
# -------------------------
#
# Each file has a hash in the folder. A file that was changed or cut short is an error.

from skbert.exceptions import SkbertError

with next(folder.rglob("model.safetensors")).open("r+b") as file:
    file.seek(1000)
    file.write(b"changed")
try:
    load(folder)
except SkbertError as error:
    print(str(error).rpartition("/")[2])

# %%
# A small server
# --------------
#
# A server opens the folder once and predicts for each request. This one uses Python's own
# ``http.server``; any other works in the same way. Threads may share the estimator. A request that
# cannot be used, such as a number for a text, gets the message of the error. A pair of texts is
# ``[["subject", "body"]]``.

import json
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Answers(BaseHTTPRequestHandler):
    """Reads a JSON list of texts, and answers with their labels."""

    def do_POST(self):
        texts = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        try:
            answer = json.dumps(opened.predict(texts).tolist()).encode()
        except SkbertError as error:
            self.send_error(400, explain=str(error))
            return
        self.send_response(200)
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        """Print nothing."""


server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
threading.Thread(target=server.serve_forever, daemon=True).start()
question = json.dumps(["Where is my parcel?", "I cannot sign in."]).encode()
address = f"http://127.0.0.1:{server.server_port}"
print(urllib.request.urlopen(address, data=question, timeout=30).read().decode())

# %%
# How long does an answer take? Each request here has two texts.

import time

import matplotlib.pyplot as plt

milliseconds = []
for _ in range(50):
    began = time.perf_counter()
    urllib.request.urlopen(address, data=question, timeout=30).read()
    milliseconds.append(1000 * (time.perf_counter() - began))
_, ax = plt.subplots(figsize=(6, 2.5), layout="constrained")
ax.hist(milliseconds, bins=25, color="#0072b2")
ax.set(xlabel="milliseconds", ylabel="requests", xlim=(0, None))
server.shutdown()
server.server_close()
scratch.cleanup()
