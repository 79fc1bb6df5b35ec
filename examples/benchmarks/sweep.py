"""The sweep behind skbert's default training parameters.

Fits on the training files and scores on the *validation* files; the test files are not read. Every
run is one line of the record, so a stopped sweep continues where it was. The most informative runs
come first: one setting changed at a time, then pairs of settings that depend on each other, then
further seeds.

    python examples/benchmarks/sweep.py --out sweep.jsonl --budget-minutes 60
    python examples/benchmarks/sweep.py --out sweep.jsonl --table --csv docs/sweep.csv
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import contender
import machine
import pandas as pd
import plain
import tasks
from tasks import Rows

# The settings that all others are compared with, written out so that the record stays
# readable when the library's defaults change.
START: dict[str, object] = {
    "epochs": 3,
    "batch_size": 16,
    "learning_rate": 5e-5,
    "head_learning_rate": 1e-3,
    "head_init": "probe",
    "pooling": "auto",
    "schedule": "linear",
    "warmup": 0.1,
}
ONE_AT_A_TIME: list[dict[str, object]] = [
    {"learning_rate": 1e-4},
    {"learning_rate": 2e-4},
    {"head_init": "random"},
    {"pooling": "mean"},
    {"head_learning_rate": None},
    {"pooling": "pooler"},
    {"learning_rate": 2e-5},
    {"batch_size": 32},
    {"head_learning_rate": 3e-3},
    {"head_learning_rate": 3e-4},
    {"batch_size": 8},
    {"pooling": "cls"},
    {"schedule": "cosine"},
    {"warmup": 0.0},
    {"schedule": "constant_with_warmup"},
    {"warmup": 0.2},
    {"pooling": "max"},
]
ROWS_PER_CLASS = {"intents-16": 16}
SWEEP_TASKS = {
    "intents-16": "intents",
    "pairs-class": "pairs-class",
    "emotions": "emotions",
    "pairs-score": "pairs-score",
    "intents": "intents",
}


def main() -> None:
    """Sweep until the grid or the budget is used up, or show what was recorded."""
    options = _options()
    if options.table or options.csv:
        show(options)
        return
    plain.be_quiet()
    where = machine.describe()
    print(machine.headline(where), flush=True)
    sweep(options, where)


def plan(names: list[str], seeds: list[int]) -> Iterator[tuple[str, int, dict[str, object]]]:
    """Yield task, seed and changed settings of every run, the most informative first.

    Parameters
    ----------
    names : list of str
        Tasks of the sweep.
    seeds : list of int
        The whole grid is run with one seed before the next.

    Yields
    ------
    name : str
        A task.
    seed : int
        Draws the rows, and is the ``random_state`` of the fit.
    changed : dict
        Settings that differ from the starting ones; empty for these themselves.
    """
    grid = [{}, *ONE_AT_A_TIME, *_pairs_of_settings()]
    for seed, changed, name in product(seeds, grid, names):
        yield name, seed, changed


def sweep(options: argparse.Namespace, where: dict[str, object]) -> None:
    """Run what the record does not hold yet, one line a run."""
    done = {_key(record) for record in read(options.out)}
    data = {name: _load(name, options) for name in options.tasks}
    end = time.monotonic() + 60 * options.budget_minutes
    warm = False
    for name, seed, changed in plan(options.tasks, options.seeds):
        settings = START | changed
        if options.passes is not None:
            settings["epochs"] = options.passes
        todo = {"task": name, "seed": seed, "rows": options.rows, "settings": settings}
        if _key(todo) in done:
            continue
        done.add(_key(todo))
        if time.monotonic() >= end:
            print("The budget is used up; the same command goes on from here.")
            return
        task = tasks.TASKS[SWEEP_TASKS[name]]
        train, validation = data[name]
        if not warm:
            contender.fit(contender.first_rows(train), task.kind, 0, epochs=1)
            warm = True
        chosen = _choose(name, train, options.rows, seed)
        outputs, seconds = contender.fit_predict(chosen, validation, task.kind, seed, **settings)
        result = {
            "metric": task.metric,
            "score": tasks.score(task, validation.y, outputs),
            "second_score": tasks.second_score(task, validation.y, outputs),
            "seconds": round(seconds, 2),
            "train_rows": len(chosen),
            "machine": where,
        }
        contender.append_line(options.out, todo | result)
        print(f"{name} seed {seed} {changed}: {result['score']:.4f}, {seconds:.1f} s", flush=True)


def show(options: argparse.Namespace) -> None:
    """Print the record as a markdown table and write the CSV file asked for."""
    records = read(options.out)
    if not records:
        raise SystemExit(f"Nothing is recorded in {options.out}; sweep first.")
    if options.csv:
        flat = [
            {"task": r["task"], "seed": r["seed"], "train_rows": r["train_rows"]}
            | r["settings"]
            | {"metric": r["metric"], "score": round(r["score"], 5), "seconds": r["seconds"]}
            for r in records
        ]
        pd.DataFrame(flat).to_csv(options.csv, index=False)
    if options.table:
        print(table(records))


def table(records: list[dict[str, Any]]) -> str:
    """Write the record as a markdown table.

    Parameters
    ----------
    records : list of dict
        The runs.

    Returns
    -------
    str
        One line for each group of settings: on every task the mean score with the number of
        seeds, then its mean gain over the start (same tasks and seeds) and the seconds as a
        multiple of the start's.
    """
    frame = pd.DataFrame(
        {
            "changed": _changed(r["settings"]),
            "task": _workload(r),
            "run": f"{_workload(r)} {r['seed']}",
            "score": r["score"],
            "seconds": r["seconds"],
        }
        for r in records
    )
    start = frame[frame["changed"] == "start"].set_index("run")
    names = list(frame["task"].unique())
    lines = [
        f"| settings | {' | '.join(names)} | mean gain | times the start's seconds |",
        "|---" * (len(names) + 3) + "|",
    ]
    for changed, own in sorted(
        frame.groupby("changed", sort=False), key=lambda item: -_gain(item[1], start)
    ):
        cells = []
        for name in names:
            scores = own.loc[own["task"] == name, "score"]
            cells.append(f"{scores.mean():.4f} ({len(scores)})" if len(scores) else "-")
        paired = own[own["run"].isin(start.index)]
        times = (paired["seconds"] / paired["run"].map(start["seconds"])).median()
        lines.append(
            f"| {changed} | {' | '.join(cells)} | {_gain(own, start):+.4f} | {times:.2f} |"
        )
    return "\n".join(lines)


def read(path: Path) -> list[dict[str, Any]]:
    """Read the record; empty where nothing has been run."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _pairs_of_settings() -> Iterator[dict[str, object]]:
    """Yield settings that depend on each other: rates and head start, rate and batch size."""
    for head_init, rate, head_rate in product(
        ("probe", "random"), (1e-4, 2e-4, 5e-5), (1e-3, 3e-3, None)
    ):
        changed = {"head_init": head_init, "learning_rate": rate, "head_learning_rate": head_rate}
        yield {key: value for key, value in changed.items() if value != START[key]}
    for batch_size, rate in product((32, 8), (1e-4, 2e-4)):
        yield {"batch_size": batch_size, "learning_rate": rate}
    for pooling in ("pooler", "cls"):
        yield {"pooling": pooling, "head_init": "random"}


def _load(name: str, options: argparse.Namespace) -> tuple[Rows, Rows]:
    task = tasks.TASKS[SWEEP_TASKS[name]]
    train = tasks.load(task, options.data, "train")
    validation = tasks.load(task, options.data, "validation")
    return train, tasks.sample(validation, options.validation_rows, seed=0)


def _choose(name: str, train: Rows, rows: int | None, seed: int) -> Rows:
    if name in ROWS_PER_CLASS:
        train = tasks.sample_per_class(train, ROWS_PER_CLASS[name], seed)
    return tasks.sample(train, rows, seed)


def _key(record: dict[str, Any]) -> str:
    """Give runs of the same task, rows, seed and settings the same text."""
    return json.dumps(
        [record["task"], record["seed"], record["rows"], record["settings"]], sort_keys=True
    )


def _changed(settings: dict[str, object]) -> str:
    """Name settings by what differs from the start; passes belong to the workload."""
    differing = [
        f"{key}={value}"
        for key, value in settings.items()
        if value != START[key] and key != "epochs"
    ]
    return ", ".join(differing) or "start"


def _workload(record: dict[str, Any]) -> str:
    """Name what was learned: only runs of the same workload are compared."""
    passes = record["settings"]["epochs"]
    return f"{record['task']}, {record['train_rows']} rows × {passes} ({record['metric']})"


def _gain(own: pd.DataFrame, start: pd.DataFrame) -> float:
    """Mean over runs of the score minus the start's score in the same task and seed."""
    paired = own[own["run"].isin(start.index)]
    return float((paired["score"] - paired["run"].map(start["score"])).mean())


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=tasks.DATA, help="folder of the data sets")
    parser.add_argument(
        "--tasks",
        nargs="+",
        choices=SWEEP_TASKS,
        default=[name for name in SWEEP_TASKS if name != "intents"],
        help="default: all but intents with all its rows",
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--rows", type=int, help="train on at most this many rows")
    parser.add_argument("--validation-rows", type=int, help="score on at most this many rows")
    parser.add_argument("--passes", type=int, help="passes of every run")
    parser.add_argument("--budget-minutes", type=float, default=float("inf"))
    parser.add_argument("--out", type=Path, default=Path("sweep.jsonl"), help="the record")
    parser.add_argument("--table", action="store_true", help="print the record as a table")
    parser.add_argument("--csv", type=Path, help="write the record to this CSV file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
