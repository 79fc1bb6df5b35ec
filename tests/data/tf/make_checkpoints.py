"""Write the TensorFlow checkpoints of this folder; the tests only read them.

TensorFlow is no dependency of the project. Run this in an environment of its own::

    python -m venv /tmp/tf && /tmp/tf/bin/pip install tensorflow-cpu==2.21.0
    /tmp/tf/bin/python tests/data/tf/make_checkpoints.py

Every checkpoint holds the values of ``weights.npz``, under Google's names for BERT's variables:

``pretraining``
    Encoder, both pre-training heads, the slots of Adam and the step counter.
``classifier``
    Encoder and a classifier of three labels, in two data files.
``squad``, ``encoder``
    Encoder with a head for answers, and without a head.
``sliced``, ``objects``, ``v1``
    What is refused: a variable saved in parts, names of the TensorFlow 2 kind, the old format.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import tensorflow as tf

HERE = Path(__file__).parent
CONFIG = {
    "attention_probs_dropout_prob": 0.1,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 8,
    "initializer_range": 0.02,
    "intermediate_size": 12,
    "max_position_embeddings": 16,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "type_vocab_size": 2,
    "vocab_size": 30,
}
PIECES = (
    "[PAD] [UNK] [CLS] [SEP] [MASK] the a is was good bad movie film ##s ##ly . , ! ?"
    " i you it love hate very not food cafe 电 影"
).split()


def shapes() -> dict[str, tuple[int, ...]]:
    """Shape of every variable of the encoder and of all heads."""
    hidden, inner = CONFIG["hidden_size"], CONFIG["intermediate_size"]
    found: dict[str, tuple[int, ...]] = {
        "bert/embeddings/word_embeddings": (CONFIG["vocab_size"], hidden),
        "bert/embeddings/position_embeddings": (CONFIG["max_position_embeddings"], hidden),
        "bert/embeddings/token_type_embeddings": (CONFIG["type_vocab_size"], hidden),
        "cls/predictions/output_bias": (CONFIG["vocab_size"],),
        "cls/seq_relationship/output_weights": (2, hidden),
        "cls/seq_relationship/output_bias": (2,),
        "cls/squad/output_weights": (2, hidden),
        "cls/squad/output_bias": (2,),
        "output_weights": (3, hidden),
        "output_bias": (3,),
    }
    denses = {"bert/pooler": (hidden, hidden), "cls/predictions/transform": (hidden, hidden)}
    norms = ["bert/embeddings", "cls/predictions/transform"]
    for layer in range(CONFIG["num_hidden_layers"]):
        at = f"bert/encoder/layer_{layer}"
        for part in ("query", "key", "value"):
            found[f"{at}/attention/self/{part}/kernel"] = (hidden, hidden)
            found[f"{at}/attention/self/{part}/bias"] = (hidden,)
        denses[f"{at}/attention/output"] = (hidden, hidden)
        denses[f"{at}/intermediate"] = (hidden, inner)
        denses[f"{at}/output"] = (inner, hidden)
        norms += [f"{at}/attention/output", f"{at}/output"]
    for at, (width, out) in denses.items():
        found[f"{at}/dense/kernel"], found[f"{at}/dense/bias"] = (width, out), (out,)
    for at in norms:
        found[f"{at}/LayerNorm/gamma"] = found[f"{at}/LayerNorm/beta"] = (hidden,)
    return found


def draw() -> dict[str, np.ndarray]:
    """Values that need few bytes in an archive: multiples of 1/64."""
    rng = np.random.default_rng(0)
    return {
        name: (rng.integers(-64, 65, shape) / 64 + name.endswith("gamma")).astype(np.float32)
        for name, shape in sorted(shapes().items())
    }


def save(name: str, weights: dict[str, np.ndarray], *, slots: bool = False, shards: int = 1,
         parts: int = 1, version: int = tf.compat.v1.train.SaverDef.V2) -> None:  # fmt: skip
    """Write one checkpoint with TensorFlow's own saver."""
    folder = HERE / name
    folder.mkdir(exist_ok=True)
    v1 = tf.compat.v1
    with tf.Graph().as_default():
        for row, (variable, values) in enumerate(weights.items()):
            with tf.device(f"/cpu:{row % shards}"):
                if parts > 1:
                    v1.get_variable(
                        variable, values.shape, partitioner=v1.fixed_size_partitioner(parts)
                    )
                    continue
                v1.get_variable(variable, initializer=values)
                for slot in ("adam_m", "adam_v") if slots else ():
                    v1.get_variable(f"{variable}/{slot}", initializer=values / 2)
        if slots:
            v1.train.get_or_create_global_step()
        saver = v1.train.Saver(sharded=shards > 1, write_version=version)
        with v1.Session(config=v1.ConfigProto(device_count={"CPU": shards})) as session:
            session.run(v1.global_variables_initializer())
            saver.save(
                session, str(folder / "bert_model.ckpt"), write_meta_graph=False, write_state=False
            )


def main() -> None:
    """Write the configuration, the vocabulary, the values and all checkpoints."""
    (HERE / "bert_config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    (HERE / "vocab.txt").write_text("\n".join(PIECES) + "\n", encoding="utf-8")
    weights = draw()
    np.savez_compressed(HERE / "weights.npz", **weights)
    encoder = {name: values for name, values in weights.items() if name.startswith("bert/")}
    of = {start: {name: values for name, values in weights.items() if name.startswith(start)}
          for start in ("cls/predictions", "cls/seq", "cls/squad", "output")}  # fmt: skip
    save("pretraining", encoder | of["cls/predictions"] | of["cls/seq"], slots=True)
    save("classifier", encoder | of["output"], shards=2)
    save("squad", encoder | of["cls/squad"])
    save("encoder", encoder)
    few = {"bert/embeddings/word_embeddings": encoder["bert/embeddings/word_embeddings"]}
    save("sliced", few, parts=2)
    save("v1", few, version=tf.compat.v1.train.SaverDef.V1)
    (HERE / "objects").mkdir(exist_ok=True)
    tf.train.Checkpoint(dense=tf.Variable(of["output"]["output_bias"])).write(
        str(HERE / "objects" / "bert_model.ckpt")
    )


if __name__ == "__main__":
    main()
