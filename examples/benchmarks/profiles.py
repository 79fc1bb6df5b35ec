"""Where skbert spends its time in a fit, an embedding, or single texts, by torch operation.

python examples/benchmarks/profiles.py fit
python examples/benchmarks/profiles.py embed --texts documents --rows 400
python examples/benchmarks/profiles.py one
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import contender
import machine
import plain
import tasks
import workloads
from tasks import Rows
from torch.profiler import ProfilerActivity, profile

from skbert import BertTransformer

INTENTS = tasks.TASKS["intents"]
STEPS = 40  # of a fit, at most
TEXTS_ONE_BY_ONE = 100


def main() -> None:
    """Run the work twice, then once more under torch's profiler, and print its table."""
    options = _options()
    plain.be_quiet()
    print(machine.headline(machine.describe()), flush=True)
    rows = tasks.sample(tasks.load(INTENTS, options.data, "train"), options.rows, seed=0)
    with workloads.model_of(options.model) as folder:
        texts = workloads.texts_of(rows, options.texts)
        work = WORK[options.work](texts, folder, options)
        work()
        began = time.perf_counter()
        work()
        print(f"{time.perf_counter() - began:.2f} s without the profiler")
        activities = {ProfilerActivity.CPU, getattr(ProfilerActivity, plain.DEVICE.upper())}
        with profile(activities=activities) as profiled:
            work()
    averages, by = profiled.key_averages(), f"self_{plain.DEVICE}_time_total"
    print(averages.table(sort_by=by, row_limit=25, max_name_column_width=40))


def _fit(rows: Rows, folder: str, options: argparse.Namespace) -> Callable[[], object]:
    size = options.batch_size
    few = rows.take(range(min(len(rows), size * STEPS)))
    settings = {"epochs": 1, "head_init": "random", "model": folder, "batch_size": size}
    if options.max_length is not None:
        settings["max_length"] = options.max_length
    return lambda: contender.fit(few, INTENTS.kind, 0, **settings)


def _embed(rows: Rows, folder: str, _: argparse.Namespace) -> Callable[[], object]:
    return partial(BertTransformer(folder).fit(["a"]).transform, rows.X)


def _one(rows: Rows, folder: str, _: argparse.Namespace) -> Callable[[], object]:
    transform = BertTransformer(folder).fit(["a"]).transform
    return lambda: [transform([text]) for text in rows.X[:TEXTS_ONE_BY_ONE]]


WORK = {"fit": _fit, "embed": _embed, "one": _one}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("work", choices=WORK)
    parser.add_argument("--data", type=Path, default=tasks.DATA, help="folder of the data sets")
    parser.add_argument("--rows", type=int, default=2000, help="to embed, or to choose from")
    parser.add_argument("--texts", choices=workloads.TEXTS, default="short")
    parser.add_argument("--model", choices=workloads.MODELS, default="minilm")
    parser.add_argument("--batch-size", type=int, default=16, help="of a fit")
    parser.add_argument("--max-length", type=int, help="cut rows of a fit at this many tokens")
    return parser.parse_args()


if __name__ == "__main__":
    main()
