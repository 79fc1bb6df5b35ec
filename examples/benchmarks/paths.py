"""Whether skbert computes anything more slowly than torch's own modules.

Models of each family embed and learn from short texts, documents, long texts and texts one by one,
in each precision, by skbert's kernels and by transformers' modules, in turns. Both get the same
packed batches, and all around the encoder is the same. In int8, which the modules do not have,
they compute in the precision that is "auto".

    python examples/benchmarks/paths.py
    python examples/benchmarks/paths.py --models base --work fit --repeats 3
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import contender
import machine
import numpy as np
import plain
import record
import tasks
import workloads
from tasks import Rows
from turns import take_turns, times_faster

from skbert import BertTransformer
from skbert._core.models import embeddings, network
from skbert.exceptions import TruncationWarning

KIND = tasks.TASKS["intents"].kind
ONE_BY_ONE = "one by one"
ROWS = {"short": 256, "documents": 64, "long": 16, ONE_BY_ONE: 20}
HEADER = ("work", "model", "texts", "precision", "modules, s", "kernels, s", "times faster")


class Case(NamedTuple):
    """What is timed."""

    work: str
    model: str
    texts: str
    precision: str

    @property
    def batch_size(self) -> int:
        """Rows that are computed together, at most."""
        return 1 if self.texts == ONE_BY_ONE else 16


def main() -> None:
    """Time every case, and print a line for each and the slowest."""
    options = _options()
    plain.be_quiet()
    warnings.simplefilter("ignore", TruncationWarning)
    print(machine.headline(machine.describe()), flush=True)
    rows = tasks.load(tasks.TASKS["intents"], options.data, "train")
    found = []
    for model in options.models:
        with workloads.model_of(model) as folder:
            cases = _cases(options.work, model)
            found += [time_case(case, rows, folder, options.repeats) for case in cases]
    print(f"\n| {' | '.join(HEADER)} |\n{'|---' * len(HEADER)}|")
    for each in found:
        medians = [f"{np.median(own):.3g}" for own in each["seconds"].values()]
        print(f"| {' | '.join([*each['case'], *medians])} | {each['times_faster']:.2f} |")
    slowest = min(found, key=lambda each: float(each["times_faster"]))
    print(f"\nof {len(found)}, the slowest: {slowest['case']}, {slowest['times_faster']:.2f}")
    record.write(options.out, {"cases": found})


def time_case(case: Case, everything: Rows, folder: str, repeats: int) -> dict[str, Any]:
    """Time both ways in turns."""
    rows = tasks.sample(everything, ROWS[case.texts], seed=0)
    rows = Rows(rows.first, None, np.arange(len(rows)) % 2)
    if case.texts in workloads.TEXTS:
        rows = workloads.texts_of(rows, case.texts)
    in_modules = case._replace(precision="auto") if case.precision == "int8" else case
    ways = {
        "modules": _by_own_modules(WORK[case.work](in_modules, rows, folder)),
        "kernels": WORK[case.work](case, rows, folder),
    }
    seconds = take_turns(ways, repeats, warm_up=1)
    return {"case": case, "seconds": seconds, "times_faster": times_faster(seconds)["kernels"]}


def _by_own_modules(compute: Callable[[], object]) -> Callable[[], object]:
    """The same computation with layers and embeddings by the model's own modules."""

    def computed() -> None:
        with (
            patch.object(network, "_has_layers", lambda _: False),
            patch.object(embeddings, "can_sum", lambda _: False),
        ):
            compute()

    return computed


def _embed(case: Case, rows: Rows, folder: str) -> Callable[[], object]:
    embedder = BertTransformer(folder, precision=case.precision).fit(["a"])
    if case.texts != ONE_BY_ONE:
        return partial(embedder.transform, rows.first)
    return lambda: [embedder.transform([text]) for text in rows.first]


def _fit(case: Case, rows: Rows, folder: str) -> Callable[[], object]:
    settings = {"epochs": 1, "head_init": "random", "model": folder, "precision": case.precision}
    return partial(contender.fit, rows, KIND, 0, batch_size=case.batch_size, **settings)


WORK = {"embed": _embed, "fit": _fit}


def _cases(work: list[str], model: str) -> Iterator[Case]:
    """Every kind of work, texts and precision; float64 for short texts, and int8 to embed."""
    precisions = (*machine.precisions(), "float64")
    for each, texts, precision in product(work, ROWS, precisions):
        is_learned_in_int8 = (each, precision) == ("fit", "int8")
        is_long_in_float64 = precision == "float64" and texts in ("documents", "long")
        if not (is_learned_in_int8 or is_long_in_float64):
            yield Case(each, model, texts, precision)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=tasks.DATA, help="folder of the data sets")
    parser.add_argument("--models", nargs="+", choices=workloads.MODELS, default=workloads.MODELS)
    parser.add_argument("--work", nargs="+", choices=WORK, default=[*WORK])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, help="write the result to this JSON file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
