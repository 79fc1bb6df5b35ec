"""How long a fit takes: transformers' Trainer with default arguments against skbert's defaults.

Both get the same rows of ``intents``, passes and batch size, everything else stays as it comes;
opening the model and tokenising are counted. The contenders take turns, and each repetition
starts with another of them. A BERT of the usual size has random weights, and no probe.

    python examples/benchmarks/fit_time.py --repeats 5
    python examples/benchmarks/fit_time.py --texts documents --rows 320 --passes 1
    python examples/benchmarks/fit_time.py --model base --rows 160 --passes 1
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import contender
import machine
import numpy as np
import plain
import tasks
import workloads
from tasks import Rows

KIND = tasks.TASKS["intents"].kind
CONTENDERS = ("trainer", "trainer-tuned", "skbert")


def main() -> None:
    """Time the contenders, print the table and write the JSON file asked for."""
    options = _options()
    plain.be_quiet()
    where = machine.describe()
    print(machine.headline(where), flush=True)
    everything = tasks.load(tasks.TASKS["intents"], options.data, "train")
    train = workloads.texts_of(tasks.sample(everything, options.rows, seed=0), options.texts)
    with workloads.model_of(options.model) as folder:
        result = compare(options, train, folder)
    result["machine"] = where
    print(table(result))
    if options.out is not None:
        options.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def compare(options: argparse.Namespace, train: Rows, folder: str) -> dict[str, Any]:
    """Time the contenders in turns.

    Parameters
    ----------
    options : Namespace
        As read from the command line.
    train : Rows
        What to learn from.
    folder : str
        Of the model.

    Returns
    -------
    dict
        What was timed, and all times.
    """
    given = {"batch_size": options.batch_size, "folder": folder}
    for name in options.contenders:
        # Imports and first-time set-up are nobody's training time.
        seconds_of(name, contender.first_rows(train), passes=1, **given)
    seconds: dict[str, list[float]] = {name: [] for name in options.contenders}
    for turn in range(options.repeats):
        first = turn % len(options.contenders)
        for name in options.contenders[first:] + options.contenders[:first]:
            took = seconds_of(name, train, passes=options.passes, **given)
            seconds[name].append(took)
            print(f"repetition {turn + 1}: {name} {took:.1f} s", flush=True)

    return {
        "texts": options.texts,
        "model": options.model,
        "rows": len(train),
        "passes": options.passes,
        "batch_size": options.batch_size,
        "seconds": seconds,
        "median": {name: float(np.median(own)) for name, own in seconds.items()},
        "times_skbert": _times_skbert(seconds),
    }


def seconds_of(name: str, train: Rows, *, passes: int, batch_size: int, folder: str) -> float:
    """Time one fit of one contender.

    Parameters
    ----------
    name : {"trainer", "trainer-tuned", "skbert"}
        Who fits. The tuned Trainer trains in bf16 on batches of similar lengths.
    train : Rows
        What to learn from.
    passes, batch_size : int
        The same for all.
    folder : str
        Of the model.

    Returns
    -------
    float
        Seconds.
    """
    if name == "skbert":
        head = {} if folder == plain.model_folder() else {"head_init": "random"}
        settings = {"epochs": passes, "batch_size": batch_size, "model": folder, **head}
        return contender.fit(train, KIND, 0, **settings)[1]
    return plain.trainer_seconds(
        train, KIND, passes=passes, batch_size=batch_size, tuned=name == "trainer-tuned",
        folder=folder,
    )  # fmt: skip


def table(result: dict[str, Any]) -> str:
    """Write the result as a markdown table: one line a contender."""
    lines = [
        (
            f"\n{result['model']}, intents ({result['texts']}), {result['rows']} rows, "
            f"{result['passes']} passes, batch size {result['batch_size']}"
        ),
        "| contender | median seconds | fastest to slowest | rows/s | times skbert's seconds |",
        "|---|---|---|---|---|",
    ]
    for name, median in result["median"].items():
        own = result["seconds"][name]
        times = result["times_skbert"].get(name)
        lines.append(
            f"| {name} | {median:.1f} | {min(own):.1f} to {max(own):.1f} "
            f"| {result['rows'] * result['passes'] / median:.0f} "
            f"| {'-' if times is None else f'{times:.2f}'} |"
        )
    return "\n".join(lines)


def _times_skbert(seconds: dict[str, list[float]]) -> dict[str, float]:
    """Median over the repetitions of each contender's seconds divided by skbert's."""
    if "skbert" not in seconds:
        return {}
    own = np.array(seconds["skbert"])
    return {name: float(np.median(np.array(s) / own)) for name, s in seconds.items()}


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
    parser.add_argument(
        "--contenders", nargs="+", choices=CONTENDERS, default=["trainer", "skbert"]
    )
    parser.add_argument("--out", type=Path, help="write the result to this JSON file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
