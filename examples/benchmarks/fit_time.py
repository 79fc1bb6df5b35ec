"""How long a fit takes: transformers' Trainer with default arguments against skbert's defaults.

Both get the same rows of ``intents``, passes and batch size, and keep their defaults for
everything else; opening the model and tokenising are counted. The contenders take turns, and each
repetition starts with another of them. A BERT of the usual size has random weights, and its head
too.

    python examples/benchmarks/fit_time.py --repeats 5
    python examples/benchmarks/fit_time.py --texts documents --rows 320 --passes 1
    python examples/benchmarks/fit_time.py --model base --rows 160 --passes 1
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import contender
import machine
import numpy as np
import plain
import record
import skorch_peer
import tasks
import workloads
from tasks import Rows
from turns import HEADER, cells, take_turns, times_faster

KIND = tasks.TASKS["intents"].kind
CONTENDERS = ("trainer", "trainer-tuned", "skorch", "skbert")


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
    arguments = {"batch_size": options.batch_size, "folder": folder}
    for name in options.contenders:
        # An untimed fit, so that imports and first-time set-up are not counted.
        fit(name, contender.first_rows(train), passes=1, **arguments)
    seconds = take_turns(
        {
            name: partial(fit, name, train, passes=options.passes, **arguments)
            for name in options.contenders
        },
        options.repeats,
    )
    return {
        "texts": options.texts,
        "model": options.model,
        "rows": len(train),
        "passes": options.passes,
        "batch_size": options.batch_size,
        "seconds": seconds,
        "median": {name: float(np.median(own)) for name, own in seconds.items()},
        "times_faster": times_faster(seconds),
    }


def fit(name: str, train: Rows, *, passes: int, batch_size: int, folder: str) -> None:
    """Let one contender fit.

    Parameters
    ----------
    name : {"trainer", "trainer-tuned", "skorch", "skbert"}
        The contender. The tuned Trainer trains in bf16 on batches of similar lengths.
    train : Rows
        The training rows.
    passes, batch_size : int
        The same for all.
    folder : str
        Of the model.
    """
    if name == "skbert":
        head = {} if folder == plain.model_folder() else {"head_init": "random"}
        settings = {"epochs": passes, "batch_size": batch_size, "model": folder, **head}
        contender.fit(train, KIND, 0, **settings)
        return
    arguments: dict[str, Any] = {"passes": passes, "batch_size": batch_size, "folder": folder}
    if name == "skorch":
        skorch_peer.fit(train, **arguments)
    else:
        plain.trainer_fit(train, KIND, tuned=name == "trainer-tuned", **arguments)


def table(result: dict[str, Any]) -> str:
    """Write the result as a markdown table: one line per contender."""
    lines = [
        (
            f"\n{result['model']}, intents ({result['texts']}), {result['rows']} rows, "
            f"{result['passes']} passes, batch size {result['batch_size']}"
        ),
        f"| contender | {HEADER} | rows/s |",
        "|---|---|---|---|---|",
    ]
    for name, own in cells(result["seconds"]).items():
        speed = result["rows"] * result["passes"] / result["median"][name]
        lines.append(f"| {name} | {own} | {speed:.3g} |")
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
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=[*CONTENDERS])
    parser.add_argument("--out", type=Path, help="write the result to this JSON file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
