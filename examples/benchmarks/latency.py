"""How long one text takes, and how long an import does.

One message at a time through a fitted ``BertTransformer`` and ``BertClassifier``,
sentence-transformers, transformers' own pipeline for features, ONNX Runtime and OpenVINO, in the
precisions that the processor has instructions for, in turns of 20 messages each with a pause
before: threads that still wait for work slow others down. And ``import skbert``,
``import sentence_transformers`` in fresh processes.

    python examples/benchmarks/latency.py
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import ceiling
import machine
import plain
import record
import runtimes
from sentence_transformers import SentenceTransformer
from transformers import pipeline
from turns import table, take_turns

from skbert import BertClassifier, BertTransformer

TEXTS_IN_A_TURN, PAUSE = 20, 0.2
TEXT = "Where is the parcel that I ordered last week?"


def main() -> None:
    """Time and print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--out", type=Path, help="write the result to this JSON file")
    options = parser.parse_args()
    plain.be_quiet()
    print(machine.headline(machine.describe()), flush=True)
    turns = take_turns(_turns_of_texts(), options.repeats, warm_up=1, pause=PAUSE)
    one_text = {name: [each / TEXTS_IN_A_TURN for each in own] for name, own in turns.items()}
    print(table("one text", one_text))
    names = ("sentence_transformers", "torch", "skbert")
    imports = take_turns({name: partial(_import, name) for name in names}, 5, warm_up=1)
    print(table("import of", imports))
    whole = {f"import {name}": seconds for name, seconds in imports.items()}
    result = {
        "seconds": one_text | whole,
        "operations": ceiling.operations(
            ceiling.lengths([TEXT], plain.model_folder()), plain.model_folder()
        ),
        "peak_tflops": ceiling.peaks(machine.precisions()),
    }
    record.write(options.out, result)


def _turns_of_texts() -> dict[str, Callable[[], object]]:
    return {name: partial(_repeat, embed) for name, embed in _one_text().items()}


def _repeat(embed: Callable[[], object]) -> None:
    for _ in range(TEXTS_IN_A_TURN):
        embed()


def _one_text() -> dict[str, Callable[[], object]]:
    folder = plain.model_folder()
    peer = SentenceTransformer(folder)
    features = pipeline("feature-extraction", folder, device="cpu")
    classifier = BertClassifier(folder, epochs=1).fit([TEXT, "Cancel it."] * 4, [0, 1] * 4)
    contenders: dict[str, Callable[[], object]] = {
        "sentence-transformers": lambda: peer.encode([TEXT]),
        "transformers pipeline": lambda: features([TEXT]),
        "onnxruntime": partial(runtimes.onnx_runtime(folder), [TEXT]),
        "BertClassifier.predict": lambda: classifier.predict([TEXT]),
    }
    for precision in machine.precisions():
        embedder = BertTransformer(folder, precision=precision).fit([TEXT])
        contenders[f"skbert-{precision}"] = partial(embedder.transform, [TEXT])
        if precision != "int8":
            embed = runtimes.open_vino(folder, precision)
            contenders[f"openvino-{precision}"] = partial(embed, [TEXT])
    return contenders


def _import(name: str) -> None:
    subprocess.run([sys.executable, "-c", f"import {name}"], check=True)  # noqa: S603


if __name__ == "__main__":
    main()
