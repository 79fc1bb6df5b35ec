"""Test score and training time of a task: a plain transformers script against skbert.

For every seed the same rows are learned three times, one after the other: by the plain script
(``plain.py``, or ``plain_heads.py`` for tags, answers and choices), by skbert with the plain
script's passes, batch size, learning rate and schedule (``same``), and by skbert with its defaults
(``default``). The order changes with each seed. All three open the same model folder; the time
covers opening it, tokenising and training.

    python examples/benchmarks/learning.py --task intents --rows-per-class 16 --seeds 0 1 2
    python examples/benchmarks/learning.py --task emotions --rows 2000 --only plain default \
        --freeze all
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import contender
import machine
import numpy as np
import plain
import plain_heads
import tasks
from tasks import Recipe, Rows, Task

SIDES = ("plain", "same", "default")


def main() -> None:
    """Run the comparison for each task asked for, and print its table."""
    options = _options()
    plain.be_quiet()
    where = machine.describe()
    print(machine.headline(where), flush=True)
    for name in options.task:
        task = tasks.TASKS[name]
        recipe = _recipe(task, options)
        records = []
        for record in compare(name, task, recipe, options):
            contender.append_line(options.out, record | {"machine": where})
            records.append(record)
        print(table(name, task, recipe, records), flush=True)


def compare(
    name: str, task: Task, recipe: Recipe, options: argparse.Namespace
) -> Iterator[dict[str, object]]:
    """Yield one record for every seed and side."""
    everything = tasks.load(task, options.data, "train")
    test = tasks.sample(tasks.load(task, options.data, "test"), options.test_rows, seed=0)
    for side in options.only:
        # An untimed fit, so that imports and first-time set-up are not counted.
        rows = contender.first_rows(everything)
        settings = _settings(side, replace(recipe, passes=1), options)
        if side == "default":
            settings["epochs"] = 1
        _run(side, task, settings, rows, rows, seed=0)
    for turn, seed in enumerate(options.seeds):
        train = _choose(everything, options, seed)
        first = turn % len(options.only)
        for side in options.only[first:] + options.only[:first]:
            settings = _settings(side, recipe, options)
            outputs, seconds = _run(side, task, settings, train, test, seed)
            yield {
                "task": name,
                "side": side,
                "seed": seed,
                "metric": task.metric,
                "score": tasks.score(task, test.y, outputs),
                "second_score": tasks.second_score(task, test.y, outputs),
                "seconds": seconds,
                "padding": _padding(side, task, recipe, train, seed),
                "train_rows": len(train),
                "test_rows": len(test),
                "settings": settings
                if side == "plain"
                else contender.parameters(task.kind, **settings),
            }


def table(name: str, task: Task, recipe: Recipe, records: list[dict[str, object]]) -> str:
    """Write the records of one task as a markdown table.

    Parameters
    ----------
    name : str
        The task's name.
    task : Task
        Gives the metric's name.
    recipe : Recipe
        The settings of the plain script and of ``same``.
    records : list of dict
        One for every seed and side.

    Returns
    -------
    str
        One line per side: mean with its standard error, each seed, seconds, padding.
    """
    shown = f"side, {task.metric}, standard error, each seed, second metric, seconds"
    columns = [*shown.split(", "), "times plain", "padding"]
    rows = f"{records[0]['train_rows']} training rows, {records[0]['test_rows']} test rows"
    lines = [
        f"\n{name}: {rows}; {recipe}",
        f"| {' | '.join(columns)} |",
        "|---" * len(columns) + "|",
    ]
    sides = {side: [r for r in records if r["side"] == side] for side in SIDES}
    plain_seconds = np.median([r["seconds"] for r in sides["plain"]]) if sides["plain"] else None
    for side, own in sides.items():
        if not own:
            continue
        scores = np.array([r["score"] for r in own])
        seconds = float(np.median([r["seconds"] for r in own]))
        error = scores.std(ddof=1) / np.sqrt(len(scores)) if len(scores) > 1 else float("nan")
        each = " ".join(f"{score:.4f}" for score in scores)
        faster = f"{plain_seconds / seconds:.2f}" if plain_seconds else "-"
        padding = [r["padding"] for r in own if r["padding"] is not None]
        share = f"{np.mean(padding):.1%}" if padding else "-" if side == "plain" else "packed"
        others = [r["second_score"] for r in own if r["second_score"] is not None]
        other = f"{np.mean(others):.4f}" if others else "-"
        lines.append(
            f"| {side} | {scores.mean():.4f} | {error:.4f} | {each} | {other} | {seconds:.1f} "
            f"| {faster} | {share} |"
        )
    return "\n".join(lines)


def _run(
    side: str, task: Task, settings: dict[str, Any], train: Rows, test: Rows, seed: int
) -> tuple[np.ndarray, float]:
    """Fit one side and predict."""
    script = plain_heads if task.kind in plain_heads.JOBS else plain
    fit_predict = script.fit_predict if side == "plain" else contender.fit_predict
    return fit_predict(train, test, task.kind, seed=seed, **settings)


def _settings(side: str, recipe: Recipe, options: argparse.Namespace) -> dict[str, object]:
    """The recipe as arguments of one side; ``default`` takes only what was asked for."""
    if side == "default":
        asked = {"epochs": options.passes, "freeze": options.freeze}
        return {key: value for key, value in asked.items() if value is not None}
    shared: dict[str, object] = asdict(recipe)
    if side == "same":
        shared["epochs"] = shared.pop("passes")
    else:
        shared["precision"] = options.plain_precision
    return shared


def _padding(side: str, task: Task, recipe: Recipe, train: Rows, seed: int) -> float | None:
    """Share of padding in the batches of ``plain.py``; None for skbert, which packs its rows."""
    if side != "plain" or task.kind in plain_heads.JOBS:
        return None
    return plain.padding_share(
        train,
        passes=recipe.passes,
        batch_size=recipe.batch_size,
        seed=seed,
        max_length=recipe.max_length,
    )


def _choose(everything: Rows, options: argparse.Namespace, seed: int) -> Rows:
    """Draw the rows that all sides train on with this seed."""
    if options.rows_per_class is not None:
        return tasks.sample_per_class(everything, options.rows_per_class, seed)
    return tasks.sample(everything, options.rows, seed)


def _recipe(task: Task, options: argparse.Namespace) -> Recipe:
    """Change the task's recipe by what was asked for on the command line."""
    asked = {
        "passes": options.passes,
        "batch_size": options.batch_size,
        "learning_rate": options.learning_rate,
        "warmup": options.warmup,
        "schedule": options.schedule,
    }
    return replace(
        task.recipe, **{key: value for key, value in asked.items() if value is not None}
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=tasks.DATA, help="folder of the data sets")
    parser.add_argument("--task", nargs="+", choices=tasks.TASKS, default=["intents"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--only", nargs="+", choices=SIDES, default=list(SIDES))
    selection = parser.add_mutually_exclusive_group()
    selection.add_argument("--rows", type=int, help="train on this many rows, drawn by seed")
    selection.add_argument("--rows-per-class", type=int, help="as many of each class, by seed")
    parser.add_argument("--test-rows", type=int, help="predict only this many test rows")
    parser.add_argument("--passes", type=int, help="for all sides; default: each side's own")
    parser.add_argument(
        "--freeze",
        type=lambda text: text if text == "all" else int(text),
        help="layers that default leaves as they are; default: none",
    )
    parser.add_argument("--batch-size", type=int, help="for plain and same")
    parser.add_argument("--learning-rate", type=float, help="for plain and same")
    parser.add_argument("--warmup", type=float, help="for plain and same")
    parser.add_argument("--schedule", help="for plain and same")
    parser.add_argument("--plain-precision", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--out", type=Path, help="append each result to this file as a JSON line")
    return parser.parse_args()


if __name__ == "__main__":
    main()
