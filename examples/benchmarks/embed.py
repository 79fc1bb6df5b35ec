"""How long embedding takes: sentence-transformers, ONNX Runtime, OpenVINO and BertTransformer.

All contenders embed the same rows of ``intents`` (train, validation and test) with the same
encoder, to vectors of length 1; tokenising is counted, opening the model is not. One of them is
sentence-transformers with its default arguments, another the same with weights in bf16. ONNX
Runtime and OpenVINO in int8 run folders that ``export`` wrote, as their own quantisation changes
vectors more. Contenders whose precision the processor has no instructions for are left out. They
take turns, and each repetition starts with another of them. Vectors that differ by more than the
precision explains end the run. The share of the peak is that of the products of BERT's layers,
timed alone in the same precision, that the layers' operations reach in the contender's time.

    python examples/benchmarks/embed.py --repeats 5 --accuracy
    python examples/benchmarks/embed.py --texts documents --rows 1000
    python examples/benchmarks/embed.py --model base --texts long --rows 20
    python examples/benchmarks/embed.py --model modernbert --rows 1000 \
        --contenders sentence-transformers skbert-float32
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ceiling
import machine
import numpy as np
import plain
import record
import tasks
import torch
import workloads
from sentence_transformers import SentenceTransformer
from sklearn.linear_model import LogisticRegression
from tasks import Rows
from turns import HEADER, cells, take_turns, times_faster

from skbert import BertTransformer

if TYPE_CHECKING:
    from runtimes import Embed

PEER = "sentence-transformers"
# The precision of each contender's products.
CONTENDERS = {
    PEER: "float32",
    f"{PEER}-bfloat16": "bfloat16",
    "onnxruntime": "float32",
    "onnxruntime-int8": "int8",
    "openvino": "float32",
    "openvino-bfloat16": "bfloat16",
    "openvino-int8": "int8",
    "skbert-float32": "float32",
    "skbert-bfloat16": "bfloat16",
    "skbert-int8": "int8",
}
# Largest difference from the peer's vectors.
TOLERANCE = {"float32": 1e-5, "bfloat16": 1e-2, "int8": 5e-2}
PEER_BATCH_SIZE = {"cpu": 32, "cuda": 256}  # its default, and one that a GPU likes better
WARM_UP_ROWS = 256
PENALTIES = (1.0, 10.0, 100.0)  # inverse strengths to choose from


def main() -> None:
    """Time the contenders, compare their vectors, print the table and write the JSON file."""
    options = _options()
    plain.be_quiet()
    print(machine.headline(machine.describe()), flush=True)
    parts = {name: _read(options.data, name) for name in ("train", "validation", "test")}
    texts = [text for rows in parts.values() for text in rows.first]
    everything = tasks.sample(Rows(texts, None, np.zeros(len(texts))), options.rows, seed=0)
    calibration = workloads.texts_of(parts["validation"], options.texts).first[:WARM_UP_ROWS]
    texts = workloads.texts_of(everything, options.texts).first
    contenders = [*filter(_can_run, {PEER: None} | dict.fromkeys(options.contenders))]
    with workloads.model_of(options.model) as folder:
        embed = {name: _open(name, folder, calibration) for name in contenders}
        tokens = ceiling.lengths(sorted(set(texts)), folder)
        work = ceiling.operations(tokens, folder)
    for name in contenders:
        embed[name](texts[:WARM_UP_ROWS])
    vectors: dict[str, np.ndarray] = {}

    def run(name: str) -> None:
        vectors[name] = embed[name](texts)

    seconds = take_turns({name: partial(run, name) for name in contenders}, options.repeats)
    result: dict[str, Any] = {
        "texts": options.texts,
        "model": options.model,
        "rows": len(texts),
        "different_rows": len(set(texts)),
        "seconds": seconds,
        "median": {name: float(np.median(own)) for name, own in seconds.items()},
        "times_faster": times_faster(seconds),
        "difference": {name: _difference(vectors, name) for name in contenders},
        "cosine": {name: _cosine(vectors, name) for name in contenders},
        "products": {name: CONTENDERS[name] for name in contenders},
        "accuracy": {},
        "tokens": float(tokens.sum()),
        "operations": work,
        "peak_tflops": ceiling.peaks(machine.precisions()),
    }
    result["share_of_peak"] = ceiling.shares(result, result["median"])
    if options.accuracy:
        result["accuracy"] = {name: accuracy(embed[name], parts) for name in contenders}
    print(table(result))
    record.write(options.out, result)
    check(result)


def accuracy(embed: Embed, parts: dict[str, Rows]) -> float:
    """Score a logistic regression on the vectors.

    Parameters
    ----------
    embed : callable
        Turns texts into vectors.
    parts : dict of str to Rows
        The model is fitted on all of ``train``, with the penalty that is best on
        ``validation``, and scored on all of ``test``.

    Returns
    -------
    float
        Accuracy.
    """
    vectors = {name: embed(rows.first) for name, rows in parts.items()}

    def score(model: LogisticRegression, part: str) -> float:
        return float(model.score(vectors[part], parts[part].y))

    models = [
        LogisticRegression(C=C, max_iter=1000).fit(vectors["train"], parts["train"].y)
        for C in PENALTIES
    ]
    return score(max(models, key=lambda model: score(model, "validation")), "test")


def check(result: dict[str, Any]) -> None:
    """Refuse a result of skbert whose vectors differ by more than the precision explains.

    How far those of the peers are off is in the table.
    """
    for name, difference in result["difference"].items():
        allowed = TOLERANCE[result["products"][name]]
        if name.startswith("skbert") and not difference <= allowed:
            raise SystemExit(
                f"The vectors of {name} differ from those of {PEER} by {difference:.1e}, more "
                f"than {allowed:.0e}: the times above compare different things."
            )


def table(result: dict[str, Any]) -> str:
    """Write the result as a markdown table: one line per contender."""
    lines = [
        (
            f"\n{result['model']}, intents ({result['texts']}), {result['rows']} rows, "
            f"{result['different_rows']} of them different"
        ),
        (
            f"| contender | products in | {HEADER} | rows/s | tokens/s | share of peak "
            "| largest difference | cosine | accuracy |"
        ),
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, own in cells(result["seconds"]).items():
        each, score = result["median"][name], result["accuracy"].get(name)
        lines.append(
            f"| {name} | {result['products'][name]} | {own} | {result['rows'] / each:.3g} "
            f"| {result['tokens'] / each:.3g} | {result['share_of_peak'][name]:.0%} "
            f"| {result['difference'][name]:.1e} "
            f"| {result['cosine'][name]:.4f} | {'-' if score is None else f'{score:.4f}'} |"
        )
    return "\n".join(lines)


def _read(folder: Path, part: str) -> Rows:
    return tasks.load(tasks.TASKS["intents"], folder, part)


def _open(name: str, folder: str, rows: list[str]) -> Embed:
    """Open a contender's model, and return the function that embeds texts with mean pooling.

    Where scales of int8 are chosen by rows, it is by these.
    """
    engine, precision = name.removesuffix(f"-{CONTENDERS[name]}"), CONTENDERS[name]
    if engine == PEER:
        peer = SentenceTransformer(folder, model_kwargs={"dtype": getattr(torch, precision)})
        peer.max_seq_length = 512  # as for the others; MiniLM's own limit is 256
        size = PEER_BATCH_SIZE[plain.DEVICE]
        return lambda texts: peer.encode(texts, batch_size=size, normalize_embeddings=True)
    if engine == "skbert":
        return _fitted(folder, precision).transform
    import runtimes  # a GPU needs neither of them

    if precision == "int8":
        export_format = "onnx" if engine == "onnxruntime" else engine
        return runtimes.exported(_fitted(folder, "float32"), export_format, rows)
    return (
        runtimes.onnx_runtime(folder)
        if engine == "onnxruntime"
        else runtimes.open_vino(folder, precision)
    )


def _fitted(folder: str, precision: str) -> BertTransformer:
    return BertTransformer(folder, pooling="mean", normalize=True, precision=precision).fit(["a"])


def _can_run(name: str) -> bool:
    """Whether this machine has instructions, or the contender a build, for it."""
    is_here = plain.DEVICE == "cpu" or name.startswith((PEER, "skbert"))
    return is_here and CONTENDERS[name] in machine.precisions()


def _difference(vectors: dict[str, np.ndarray], name: str) -> float:
    """Largest difference of any number in any vector from the peer's."""
    return float(np.abs(vectors[name] - vectors[PEER]).max())


def _cosine(vectors: dict[str, np.ndarray], name: str) -> float:
    """Mean cosine of the vectors and the peer's."""
    return float((vectors[name] * vectors[PEER]).sum(axis=1).mean())


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=tasks.DATA, help="folder of the data sets")
    parser.add_argument("--rows", type=int, help="embed this many rows; default: all 22,500")
    parser.add_argument("--texts", choices=workloads.TEXTS, default="short")
    parser.add_argument("--model", choices=workloads.MODELS, default="minilm")
    parser.add_argument(
        "--contenders", nargs="+", choices=CONTENDERS, default=[*CONTENDERS],
        help=f"always with {PEER}, which the others are compared with",
    )  # fmt: skip
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--accuracy",
        action="store_true",
        help="also test a logistic regression on the vectors of all rows",
    )
    parser.add_argument("--out", type=Path, help="write the result to this JSON file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
