"""Collects what the benchmarks wrote into one table and one plot, beside the speed targets.

Reads the JSON files of a folder, which ``make bench`` fills; missing files are left out. The
prototype is a sketch of the same ideas on two cores of another processor, one with AMX, whose
products in bfloat16 are seven times as fast as those in float32.

    python examples/benchmarks/targets.py build/bench --page docs/targets.md --plot targets.png
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import machine
import numpy as np

ST, LOW_ST, OPENVINO = (
    "sentence-transformers",
    "sentence-transformers-bfloat16",
    "openvino-bfloat16",
)


@dataclass(frozen=True)
class Target:
    """One speed target, and where to find the measurement to compare with it.

    Attributes
    ----------
    what, beside : str
        Names for the table: what is measured, and what it is compared with.
    file : str
        The JSON file, without its ending.
    measure : callable
        Takes the file's content and returns the number.
    prototype : float or None
        The number of the prototype.
    aim : float
        The least that is wanted; for memory the most.
    unit : {"times", "GB", "share"}, default="times"
        Unit of all three numbers.
    """

    what: str
    beside: str
    file: str
    measure: Callable[[Any], float | None]
    prototype: float | None
    goal: float
    unit: str = "times"

    def show(self, number: float | None) -> str:
        """Write one of the numbers."""
        if number is None:
            return "-"
        if np.isnan(number):
            return "not reached"
        return {"times": f"{number:.2f}", "GB": f"{number:.2f} GB", "share": f"{number:.0%}"}[
            self.unit
        ]


def faster(peer: str, own: str = "skbert") -> Callable[[Any], float]:
    """How many times faster than a peer: the median over the turns."""
    return lambda result: float(
        np.median(np.array(result["seconds"][peer]) / np.array(result["seconds"][own]))
    )


def share(result: Any) -> float:
    """Share of the peak of the processor's products in the same precision."""
    return float(result["share_of_peak"]["skbert"])


def sooner(task: str) -> Callable[[Any], float | None]:
    """How many times sooner skbert scores as much as the plain script at its end.

    Of skbert's fits, with few passes or more, the fastest counts whose mean score is no lower.
    """

    def measure(records: Any) -> float | None:
        sides: dict[tuple[str, int], list[Any]] = {}
        for record in records:
            if record["task"] == task:
                passes = record["settings"].get("epochs") or record["settings"]["passes"]
                sides.setdefault((record["side"], passes), []).append(record)
        score = {side: np.mean([r["score"] for r in own]) for side, own in sides.items()}
        seconds = {side: np.median([r["seconds"] for r in own]) for side, own in sides.items()}
        peers = [side for side in sides if side[0] == "plain"]
        if not peers:
            return None
        as_good = [s for s in sides if s not in peers and score[s] >= score[peers[0]]]
        return max((float(seconds[peers[0]] / seconds[s]) for s in as_good), default=float("nan"))

    return measure


MINILM, BASE = "embed, MiniLM", "embed, usual BERT"
FIT, FIT_BASE = "fine-tune MiniLM", "fine-tune usual BERT"
TARGETS = (
    Target(f"{MINILM}, short texts", ST, "embed-short", faster(ST), 4.1, 6),
    Target(f"{MINILM}, short texts", "OpenVINO bf16", "embed-short", faster(OPENVINO), 1.3, 1.8),
    Target(f"{MINILM}, documents", ST, "embed-documents", faster(ST), 5.5, 8),
    Target(f"{MINILM}, documents", f"{ST} bf16", "embed-documents", faster(LOW_ST), 1.8, 2.5),
    Target(f"{MINILM}, documents", "OpenVINO bf16", "embed-documents", faster(OPENVINO), 1.9, 2.5),
    Target(f"{BASE}, short texts", ST, "embed-base-short", faster(ST), 6.7, 8),
    Target(f"{BASE}, documents", ST, "embed-base-documents", faster(ST), 10.8, 12),
    Target(f"{BASE}, long texts", ST, "embed-base-long", faster(ST), 4.9, 6),
    Target(
        f"{MINILM}, short texts, float32",
        ST,
        "embed-short",
        faster(ST, "skbert-float32"),
        1.6,
        1.8,
    ),
    Target(
        f"{MINILM}, documents, float32",
        ST,
        "embed-documents",
        faster(ST, "skbert-float32"),
        1.9,
        2.1,
    ),
    Target(f"{FIT}, short texts", "Trainer", "fit-short", faster("trainer"), 2.8, 4),
    Target(f"{FIT}, documents", "Trainer", "fit-documents", faster("trainer"), 6.8, 8),
    Target(f"{FIT}, short texts", "Trainer tuned", "fit-short", faster("trainer-tuned"), 2.0, 2.5),
    Target(
        f"{FIT}, documents", "Trainer tuned", "fit-documents", faster("trainer-tuned"), 2.6, 3.5
    ),
    Target(f"{FIT}, short texts", "skorch", "fit-short", faster("skorch"), None, 4),
    Target(f"{FIT_BASE}, short texts", "Trainer", "fit-base-short", faster("trainer"), 2.55, 4),
    Target(f"{FIT_BASE}, documents", "Trainer", "fit-base-documents", faster("trainer"), 5, 7),
    Target("as accurate, intents", "plain script", "learning", sooner("intents"), None, 8),
    Target("as accurate, emotions", "plain script", "learning", sooner("emotions"), None, 4),
    Target("as accurate, pairs", "plain script", "learning", sooner("pairs-class"), None, 4),
    Target(
        "12 fits of a search",
        "plain script",
        "search",
        faster("plain", "skbert, 1 worker"),
        2.5,
        4,
    ),
    Target(
        "two workers",
        "one worker",
        "search",
        faster("skbert, 1 worker", "skbert, 2 workers"),
        1.2,
        1,
    ),
    Target("one text", ST, "latency", faster(ST, "BertClassifier.predict"), 2.4, 3),
    Target(
        "import",
        ST,
        "latency",
        faster("import sentence_transformers", "import skbert"),
        None,
        4.5,
    ),
    Target(
        "peak memory, usual BERT, 16 rows of 128",
        "",
        "memory",
        lambda result: result["peak_gb"]["skbert"]["128"],
        2.9,
        2.5,
        "GB",
    ),
    Target("peak of products, MiniLM, short texts", "", "embed-short", share, 0.26, 0.5, "share"),
    Target(
        "peak of products, MiniLM, documents", "", "embed-documents", share, 0.26, 0.5, "share"
    ),
    Target(
        "peak of products, usual BERT, short", "", "embed-base-short", share, 0.5, 0.65, "share"
    ),
    Target(
        "peak of products, usual BERT, documents",
        "",
        "embed-base-documents",
        share,
        0.5,
        0.65,
        "share",
    ),
)


def _of_families() -> Iterator[Target]:
    """The targets of other families, with models of MiniLM's size."""
    for model, name in (("roberta", "RoBERTa"), ("distilbert", "DistilBERT")):
        for texts, least, fit_least in (("short", 3.0, 2.8), ("documents", 2.6, 4.0)):
            what = f"{name}, {texts} texts" if texts == "short" else f"{name}, {texts}"
            file = f"{model}-{texts}"
            yield Target(f"embed, {what}", ST, f"embed-{file}", faster(ST), None, least)
            fit, peer = f"fit-{file}", faster("trainer")
            yield Target(f"fine-tune {what}", "Trainer", fit, peer, None, fit_least)
    for texts, what in (("short", "short texts"), ("documents", "documents")):
        file = f"embed-modernbert-{texts}"
        yield Target(f"embed, ModernBERT, {what}", ST, file, faster(ST), None, 2.2)


PARTS = {
    "MiniLM and the usual BERT": TARGETS,
    "Other families, as large as MiniLM": (*_of_families(),),
}


def main() -> None:
    """Write those parts of the page that were measured, and the plot."""
    options = _options()
    measured = {name: [*read_measurements(options.folder, part)] for name, part in PARTS.items()}
    written = options.page.read_text(encoding="utf-8") if options.page.exists() else ""
    parts = [
        part(name, measurements) if measurements else _earlier(written, name)
        for name, measurements in measured.items()
    ]
    plot = f"![Times faster than the peers, with the targets]({options.plot.name})"
    whole = [HEAD, *filter(None, parts), plot]
    options.page.write_text("\n\n".join(whole) + "\n", encoding="utf-8")
    if first := next(iter(measured.values())):
        draw(first, options.plot)


def read_measurements(folder: Path, targets: Iterable[Target]) -> Iterator[tuple[Target, float]]:
    """Each target with a measurement, and its number; NaN where nothing reached it."""
    for target in targets:
        one, lines = folder / f"{target.file}.json", folder / f"{target.file}.jsonl"
        number = None
        if one.exists():
            number = target.measure(json.loads(one.read_text(encoding="utf-8")))
        elif lines.exists():
            records = [json.loads(line) for line in lines.read_text(encoding="utf-8").splitlines()]
            number = target.measure(records)
        if number is not None:
            yield target, number


HEAD = """# Speed targets

Written by `make bench`, the second part alone by `make bench-families`: the speed targets of
skbert, and its speed on the machine that each part names."""


def part(name: str, measurements: list[tuple[Target, float]]) -> str:
    """Write one part of the page: the machine and the table."""
    lines = [
        f"## {name}",
        "",
        machine.headline(machine.describe()) + ".",
        "",
        "| | beside | here | prototype, with AMX | target |",
        "|---|---|---|---|---|",
    ]
    for target, number in measurements:
        numbers = (target.show(n) for n in (number, target.prototype, target.goal))
        lines.append(f"| {target.what} | {target.beside} | {' | '.join(numbers)} |")
    return "\n".join(lines)


def _earlier(page: str, name: str) -> str:
    """A part of a page as it was written before, empty if it was not."""
    _, _, rest = page.partition(f"## {name}\n")
    table = rest.partition("\n## ")[0].partition("\n![")[0].strip()
    return f"## {name}\n\n{table}" if rest else ""


def draw(measurements: list[tuple[Target, float]], path: Path) -> None:
    """Draw how many times faster, one bar for each measurement, with the target as a line."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    shown = [(t, number) for t, number in measurements if t.unit == "times"][::-1]
    figure, axis = plt.subplots(figsize=(9, 0.32 * len(shown) + 1), layout="constrained")
    places = np.arange(len(shown))
    axis.barh(places, [number for _, number in shown], color="tab:blue", label="here")
    axis.plot([t.goal for t, _ in shown], places, "k|", markersize=12, label="target")
    axis.set_yticks(places, [f"{t.what}  ·  {t.beside}" for t, _ in shown])
    axis.set(xscale="log", xlabel="times faster")
    axis.axvline(1, color="grey", linewidth=0.8)
    axis.legend(loc="upper right")
    figure.savefig(path, dpi=120)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="with the JSON files")
    parser.add_argument("--page", type=Path, required=True, help="Markdown file to write")
    parser.add_argument("--plot", type=Path, required=True, help="PNG file to write")
    return parser.parse_args()


if __name__ == "__main__":
    main()
