"""How long a fit takes: transformers' Trainer with default arguments against skbert's defaults.

Both get the same rows of ``intents``, passes and batch size, and keep their defaults for
everything else; opening the model and tokenising are counted. The contenders take turns, and each
repetition starts with another of them. A BERT of the usual size has random weights, and its head
too. The share of the peak is that of the products of BERT's layers, timed alone in the same
precision, that the layers' operations forward and backward, three times those forward, reach in
the time of the steps.

    python examples/benchmarks/fit_time.py --repeats 5
    python examples/benchmarks/fit_time.py --texts documents --rows 320 --passes 1
    python examples/benchmarks/fit_time.py --model base --rows 160 --passes 1
    python examples/benchmarks/fit_time.py --model base --texts long --max-length 128 --rows 160
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import ceiling
import contender
import machine
import numpy as np
import plain
import record
import tasks
import workloads
from tasks import Rows
from turns import HEADER, cells, take_turns, times_faster

KIND = tasks.TASKS["intents"].kind
CONTENDERS = ("trainer", "trainer-tuned", "skorch", "skbert")
FAST = ("trainer-tuned", "skbert")  # in bf16 where that is the machine's faster precision


def main() -> None:
    """Time the contenders, print the table and write the JSON file asked for."""
    options = _options()
    plain.be_quiet()
    print(machine.headline(machine.describe()), flush=True)
    everything = tasks.load(tasks.TASKS["intents"], options.data, "train")
    train = workloads.texts_of(tasks.sample(everything, options.rows, seed=0), options.texts)
    with workloads.model_of(options.model) as folder:
        result = compare(options, train, folder)
    print(table(result))
    record.write(options.out, result)


def compare(options: argparse.Namespace, train: Rows, folder: str) -> dict[str, Any]:
    """Time the contenders in turns.

    Parameters
    ----------
    options : Namespace
        As read from the command line.
    train : Rows
        The training rows.
    folder : str
        Of the model.

    Returns
    -------
    dict
        What was timed, and all times.
    """
    peaks = ceiling.peaks({"float32", "bfloat16"} & {*machine.precisions()})
    fast = max(peaks, key=peaks.__getitem__)
    arguments: dict[str, Any] = {
        "batch_size": options.batch_size, "folder": folder, "bf16": fast == "bfloat16",
        "max_length": options.max_length,
    }  # fmt: skip
    for name in options.contenders:
        # An untimed fit, so that imports and first-time set-up are not counted.
        fit(name, contender.first_rows(train), passes=1, **arguments)
    in_steps: dict[str, list[float]] = {name: [] for name in options.contenders}

    def run(name: str) -> None:
        in_steps[name].append(fit(name, train, passes=options.passes, **arguments))

    seconds = take_turns({name: partial(run, name) for name in in_steps}, options.repeats)
    tokens = ceiling.lengths(train.first, folder, options.max_length or plain.LONGEST)
    result: dict[str, Any] = {
        "texts": options.texts,
        "model": options.model,
        "rows": len(train),
        "passes": options.passes,
        "batch_size": options.batch_size,
        "seconds": seconds,
        "median": {name: float(np.median(own)) for name, own in seconds.items()},
        "times_faster": times_faster(seconds),
        "seconds_in_steps": in_steps,
        "products": {name: fast if name in FAST else "float32" for name in in_steps},
        "tokens": options.passes * float(tokens.sum()),
        "operations": 3 * options.passes * ceiling.operations(tokens, folder),
        "peak_tflops": peaks,
    }
    medians = {name: float(np.median(own)) for name, own in in_steps.items()}
    result["share_of_peak"] = ceiling.shares(result, medians)
    return result


def fit(
    name: str,
    train: Rows,
    *,
    passes: int,
    batch_size: int,
    folder: str,
    bf16: bool,
    max_length: int | None,
) -> float:
    """Let one contender fit.

    Parameters
    ----------
    name : {"trainer", "trainer-tuned", "skorch", "skbert"}
        The contender. The tuned Trainer trains on batches of similar lengths.
    train : Rows
        The training rows.
    passes, batch_size : int
        The same for all.
    folder : str
        Of the model.
    bf16 : bool
        Whether the tuned Trainer computes in bf16; skbert decides for itself.
    max_length : int or None
        Longest row in tokens; None takes the model's own, at most 512. skorch has no such limit.

    Returns
    -------
    float
        Seconds of its steps.
    """
    if name == "skbert":
        head = {} if folder == plain.model_folder() else {"head_init": "random"}
        settings = {"epochs": passes, "batch_size": batch_size, "model": folder, **head}
        if max_length is not None:
            settings["max_length"] = max_length
        fitted, _ = contender.fit(train, KIND, 0, **settings)
        return sum(each["seconds"] for each in fitted.history_)
    arguments: dict[str, Any] = {"passes": passes, "batch_size": batch_size, "folder": folder}
    if name == "skorch":
        import skorch_peer  # no other contender needs it

        return skorch_peer.fit(train, **arguments)
    tuned = name == "trainer-tuned"
    arguments.update(tuned=tuned, bf16=tuned and bf16, max_length=max_length)
    return plain.trainer_fit(train, KIND, **arguments)


def table(result: dict[str, Any]) -> str:
    """Write the result as a markdown table: one line per contender."""
    lines = [
        (
            f"\n{result['model']}, intents ({result['texts']}), {result['rows']} rows, "
            f"{result['passes']} passes, batch size {result['batch_size']}"
        ),
        f"| contender | products in | {HEADER} | rows/s | tokens/s, share of peak in steps |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, own in cells(result["seconds"]).items():
        speed = result["rows"] * result["passes"] / result["median"][name]
        tokens = result["tokens"] / np.median(result["seconds_in_steps"][name])
        share = result["share_of_peak"][name]
        lines.append(
            f"| {name} | {result['products'][name]} | {own} | {speed:.3g} "
            f"| {tokens:.3g}, {share:.0%} |"
        )
    return "\n".join(lines)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=tasks.DATA, help="folder of the data sets")
    parser.add_argument("--rows", type=int, help="fit on this many rows; default: all 15,000")
    parser.add_argument("--texts", choices=workloads.TEXTS, default="short")
    parser.add_argument("--model", choices=workloads.MODELS, default="minilm")
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--max-length", type=int, help="cut rows at this many tokens")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=[*CONTENDERS])
    parser.add_argument("--out", type=Path, help="write the result to this JSON file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
