"""Parquet files of few and of many rows on the command line: peak memory, rows a second, a kill.

The rows are messages of the bundled ``intents``, drawn with a seed, each with a number of its own,
so that no two are equal. For each number of rows the command runs in a process of its own. Rows a
second are those of the larger file less those of the smaller one, so that the start of a process
does not count; the same rows as a list in memory are timed beside. The larger file is then
computed once more by a process that is killed halfway, and by another that goes on: both outputs
must be equal.

    python examples/benchmarks/streaming.py --model tiny
    python examples/benchmarks/streaming.py --command embed --rows 10000 100000
    python examples/benchmarks/streaming.py --command fit --model tiny
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import machine
import numpy as np
import pyarrow as pa
import record
import workloads
from pyarrow import parquet

from skbert import BertClassifier
from skbert.datasets import load_intents

ROW_GROUP = 100_000
IN_MEMORY = """
import sys, time
import skbert
from pyarrow import parquet
X = parquet.read_table(sys.argv[2], columns=["text"])["text"].to_pylist()
if sys.argv[1] == "predict":
    method = skbert.load(sys.argv[3]).set_params(text_columns=None).predict
else:
    method = skbert.BertTransformer.from_pretrained(sys.argv[3]).transform
method(X[:100])
start = time.perf_counter()
method(X)
peak = open("/proc/self/status").read().partition("VmHWM:")[2].split()[0]
print(time.perf_counter() - start, peak)
"""


class Cost(NamedTuple):
    """What a process took."""

    seconds: float
    peak_gb: float


def main() -> None:
    """Measure, check, and print."""
    options = _options()
    print(machine.headline(machine.describe()), flush=True)
    with tempfile.TemporaryDirectory() as folder, workloads.model_of(options.model) as encoder:
        result = measure(options.command, sorted(options.rows), Path(folder), encoder)
    record.write(options.out, {"streaming": {**vars(options), "out": None, **result}})


def measure(command: str, rows: list[int], folder: Path, encoder: str) -> dict[str, object]:
    """Run the command for each number of rows, and print what each took.

    Parameters
    ----------
    command : {"predict", "embed", "fit"}
        What to run.
    rows : list of int
        Numbers of rows, ascending.
    folder : Path
        A temporary folder.
    encoder : str
        Folder of the model.

    Returns
    -------
    dict
        The figures that were printed.
    """
    model = fitted(encoder, folder / "model")
    costs = {}
    for n_rows in rows:
        source = write(n_rows, folder / f"{n_rows}.parquet")
        costs[n_rows] = run(arguments(command, model, encoder, source, target_of(source)))
        print(f"{command}, {n_rows:,} rows: {costs[n_rows].peak_gb:.2f} GB at the peak, "
              f"{costs[n_rows].seconds:.0f} s", flush=True)  # fmt: skip
    few, many = costs[rows[0]], costs[rows[-1]]
    rate = (rows[-1] - rows[0]) / (many.seconds - few.seconds)
    print(f"more memory for more rows: {many.peak_gb - few.peak_gb:+.2f} GB; {rate:.0f} rows/s")
    figures: dict[str, object] = {
        "costs": {n: cost._asdict() for n, cost in costs.items()}, "rows_per_second": rate,
    }  # fmt: skip
    if command == "fit":
        return figures
    source = folder / f"{rows[-1]}.parquet"
    seconds, peak = in_memory(command, source, model if command == "predict" else Path(encoder))
    print(f"as a list in memory: {rows[-1] / seconds:.0f} rows/s, {peak:.2f} GB at the peak")
    kill_and_go_on(arguments(command, model, encoder, source, folder / "again"), many.seconds)
    same = (folder / "again").read_bytes() == target_of(source).read_bytes()
    print(f"killed halfway and continued: the output is {'equal' if same else 'NOT EQUAL'}")
    return {**figures, "in_memory": rows[-1] / seconds, "in_memory_gb": peak, "equal": same}


def fitted(encoder: str, folder: Path) -> Path:
    """Save a classifier of the bundled messages."""
    X, y = load_intents(return_X_y=True)
    settings = {"text_columns": "text", "freeze": "all", "epochs": 1, "random_state": 0}
    BertClassifier(encoder, **settings).fit(X.to_frame("text"), y).save(folder)
    return folder


def write(n_rows: int, path: Path) -> Path:
    """Write messages with their labels, drawn from the bundled ones; all texts differ."""
    X, y = (np.asarray(column, object) for column in load_intents(return_X_y=True))
    rng = np.random.default_rng(0)
    schema = pa.schema({"text": pa.string(), "label": pa.string()})
    with parquet.ParquetWriter(path, schema) as writer:
        for at in range(0, n_rows, ROW_GROUP):
            drawn = rng.integers(len(X), size=min(ROW_GROUP, n_rows - at))
            texts = [f"{text} ({at + row})" for row, text in enumerate(X[drawn])]
            writer.write_table(pa.table([texts, y[drawn]], schema=schema))
    return path


def target_of(source: Path) -> Path:
    """The output for an input."""
    return source.with_suffix(".out")


def arguments(command: str, model: Path, encoder: str, source: Path, target: Path) -> list[str]:
    """The command line of one run."""
    start = [sys.executable, "-m", "skbert", command]
    if command == "fit":
        settings = ["epochs=1", "batch_size=256", "random_state=0", "head_learning_rate=0.001"]
        chosen = ["--text-columns", "text", "--label-columns", "label", "--model", encoder]
        chosen += [each for setting in settings for each in ("--set", setting)]
        return [*start, str(source), str(target), *chosen]
    opened = str(model) if command == "predict" else encoder
    return [*start, opened, str(source), str(target), "--keep", "--text-columns", "text"]


def run(command: list[str]) -> Cost:
    """Run a process to its end; its usage would count the peak of this process, too."""
    start, peak = time.perf_counter(), 0
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(  # noqa: S603 - the command is made here
            command, stdout=subprocess.DEVNULL, stderr=said
        )
        status = Path(f"/proc/{process.pid}/status")
        while process.poll() is None:
            _, _, more = status.read_text(encoding="ascii").partition("VmHWM:")
            peak = int(more.split()[0]) if more else peak
            time.sleep(0.05)
        if process.returncode:
            said.seek(0)
            text = said.read()[-2000:].decode()
            raise RuntimeError(f"{command} ended with {process.returncode}: {text}")
    return Cost(time.perf_counter() - start, peak / 1e6)


def in_memory(command: str, source: Path, model: Path) -> tuple[float, float]:
    """Seconds for the same rows as a list, and the peak of that process in GB."""
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", IN_MEMORY, command, str(source), str(model)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    seconds, kilobytes = done.stdout.split()
    return float(seconds), int(kilobytes) / 1e6


def kill_and_go_on(command: list[str], seconds: float) -> None:
    """Kill a run with parts after half of the time that it took before, and run it again."""
    target = Path(command[6])
    process = subprocess.Popen(  # noqa: S603
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    time.sleep(seconds / 2)
    process.send_signal(signal.SIGKILL)
    process.wait()
    n_parts = len([*target.with_name(f"{target.name}.parts").glob("0*.parquet")])
    assert not target.exists(), "it ended before it was killed"
    cost = run(command)
    print(f"killed after {n_parts} parts; the second process took {cost.seconds:.0f} s")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--command", choices=["predict", "embed", "fit"], default="predict")
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 1_000_000])
    parser.add_argument("--model", choices=workloads.MODELS, default="minilm")
    parser.add_argument("--out", type=Path, help="a JSON file for the figures")
    options = parser.parse_args()
    if len({*options.rows}) < 2:
        parser.error("--rows takes two numbers or more, as what differs is what rows cost")
    return options


if __name__ == "__main__":
    main()
