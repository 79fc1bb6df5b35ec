"""
A checkpoint of TensorFlow
==========================

Google published BERT as checkpoints of TensorFlow, and many models that were trained with its
scripts exist only in this form. :func:`skbert.convert_tf_checkpoint` makes a folder of one that
every estimator reads. TensorFlow is not needed.
"""

# %%
# The files
# ---------
#
# A checkpoint has a prefix, here ``bert_model.ckpt``, and comes with a configuration and a
# vocabulary. This one is tiny and random, from the tests of skbert; the releases of Google have
# the same files.

import tempfile
from pathlib import Path

import skbert

release = Path(skbert.__file__).parents[1] / "tests" / "data" / "tf"
for path in sorted([*release.glob("encoder/*"), *release.glob("*.json"), *release.glob("*.txt")]):
    print(f"{path.stat().st_size:7,} bytes  {path.name}")

# %%
# Convert it
# ----------
#
# Every checksum and every shape is checked on the way. In a shell the same is ``python -m skbert
# convert-tf``.

scratch = tempfile.TemporaryDirectory()
folder = skbert.convert_tf_checkpoint(
    release / "encoder" / "bert_model.ckpt",
    release / "bert_config.json",
    release / "vocab.txt",
    Path(scratch.name) / "converted",
)
print(*sorted(path.name for path in Path(folder).iterdir()), sep="\n")

# %%
# Use it
# ------
#
# As ``model`` of any estimator; transformers opens the folder, too, with ``AutoModel``.

vectors = skbert.BertTransformer(folder, pooling="mean").fit_transform(["a first text", "another"])
print(vectors.shape)
scratch.cleanup()

# %%
import matplotlib.pyplot as plt

_, ax = plt.subplots(figsize=(5, 2), layout="constrained")
image = ax.imshow(vectors, cmap="Blues")
ax.set(title="two vectors of a tiny model", yticks=[0, 1])

# %%
# Checkpoints of fine-tuned models keep their heads: see :doc:`/checkpoints` for what is read.
