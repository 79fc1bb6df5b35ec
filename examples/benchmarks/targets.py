"""Collects what the benchmarks wrote into a page of speed targets, and a plot.

Reads the JSON files of a folder, which ``make bench`` fills; the rows of a missing file are left
out. A part of the page belongs to one machine: the parts of others stay as they are.

    python examples/benchmarks/targets.py build/bench --page docs/targets.md --plot targets.png
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import machine
import numpy as np

ST, OPENVINO = "sentence-transformers", "openvino-bfloat16"
OWN = ("skbert-bfloat16", "skbert-float32")  # the faster one counts, as "auto" means it
UNITS = {"times": "{:.2f}", "GB": "{:.2f} GB", "share": "{:.0%}", "ms": "{:.2f} ms"}


class Figures(NamedTuple):
    """What was measured, in the unit of a target."""

    here: float | None = None  # None: the machine has no instructions for it; NaN: not reached
    peer: float | None = None  # the best peer
    peer_name: str = ""
    limit: float | None = None  # if the products alone took time, each as fast as the fastest
    peak: float | None = None  # of these products, in TFLOP/s


class Target(NamedTuple):
    """A speed target, and where its figures are."""

    what: str
    file: str  # without its ending
    read: Callable[[Any], Figures]  # from what the file holds
    unit: str
    aim: float | str = "-"  # the least that is wanted; of GB and ms the most

    def cells(self, figures: Figures) -> str:
        """The row of the table."""
        peer = f"{figures.peer_name} {self._show(figures.peer)}" if figures.peer_name else "-"
        limit = self._show(figures.limit)
        if figures.peak is not None:
            limit += f" ({figures.peak:.2f} TFLOP/s)"
        shown = self._show(figures.here), peer, limit, self._show(self.aim)
        return f"| {self.what} | {' | '.join(shown)} |"

    def _show(self, number: float | str | None) -> str:
        if number is None or isinstance(number, str):
            return number or "-"
        return "not reached" if np.isnan(number) else UNITS[self.unit].format(number)


# --- what a file says ----------------------------------------------------------------------------


def share(result: Any, own: str) -> Figures:
    """Share of the peak, beside the best peer with products in the same precision."""
    shares, products = result["share_of_peak"], result["products"]
    if own not in shares:
        return Figures()
    peers = {x: y for x, y in shares.items() if products[x] == products[own] and _is_peer(x)}
    best = max(peers, key=peers.__getitem__, default="")
    return Figures(shares[own], peers.get(best), best, 1.0, result["peak_tflops"][products[own]])


def faster(result: Any, than: str, own: str | tuple[str, ...]) -> Figures:
    """How many times faster than a contender, median over the turns, beside the fastest peer.

    Only those are peers that freeze layers, or train all of them, and compute in int8, or not, as
    ``own`` does.
    """
    seconds = {name: np.array(each) for name, each in result["seconds"].items()}
    if not isinstance(own, str):
        own = min(filter(seconds.__contains__, own), key=lambda name: np.median(seconds[name]))
    if own not in seconds or than not in seconds:
        return Figures()
    times = {name: float(np.median(seconds[than] / each)) for name, each in seconds.items()
             if len(each) == len(seconds[than])}  # fmt: skip
    peers = [x for x in filter(_is_peer, times) if _kind(x) == _kind(own)]
    best = max(peers, key=times.__getitem__, default="")
    limit = None
    if "products" in result:
        least = _least_seconds(result, result["products"][own])
        limit = float(np.median(seconds[than])) / least
    return Figures(times[own], times.get(best), best, limit)


def _kind(name: str) -> tuple[bool, bool]:
    return "freeze" in name, "int8" in name


def milliseconds(result: Any, precision: str) -> Figures:
    """Milliseconds of one text, beside the fastest peer."""
    median = {name: 1e3 * float(np.median(each)) for name, each in result["seconds"].items()}
    own = f"skbert-{precision}"
    if own not in median:
        return Figures()
    best = min(filter(_is_peer, median), key=median.__getitem__)
    limit, peak = 1e3 * _least_seconds(result, precision), result["peak_tflops"][precision]
    return Figures(median[own], median[best], best, limit, peak)


def sooner(records: Any, task: str, freeze: int | str = 0) -> Figures:
    """How many times sooner skbert scores as much as the plain script at its end.

    Of skbert's fits that freeze so many layers, with few passes or more, the fastest counts whose
    mean score is not lower by more than the standard error of the script's.
    """
    sides: dict[tuple[str, int], list[Any]] = {}
    for record in records:
        settings = record["settings"]
        if record["task"] == task and settings.get("freeze", freeze) == freeze:
            passes = settings.get("epochs") or settings["passes"]
            sides.setdefault((record["side"], passes), []).append(record)
    seconds = {side: np.median([r["seconds"] for r in own]) for side, own in sides.items()}
    plain = next((side for side in sides if side[0] == "plain"), None)
    if plain is None or len(sides) == 1:
        return Figures()
    score = {side: np.array([r["score"] for r in own]) for side, own in sides.items()}
    error = score[plain].std() / max(1, len(score[plain]) - 1) ** 0.5
    least = score[plain].mean() - error
    as_good = [s for s in sides if s != plain and score[s].mean() >= least]
    times = [float(seconds[plain] / seconds[s]) for s in as_good]
    return Figures(max(times, default=np.nan), 1.0, "plain script")


def peak_memory(result: Any) -> Figures:
    """Gigabytes of a fit with rows of 128 tokens."""
    peaks = result["peak_gb"]
    return Figures(peaks["skbert"]["128"], peaks["trainer"]["128"], "trainer")


def _is_peer(name: str) -> bool:
    return not name.startswith(("skbert", "Bert", "import", "logistic"))  # skbert's vectors


def _least_seconds(result: Any, precision: str) -> float:
    return float(result["operations"] / (result["peak_tflops"][precision] * 1e12))


# --- the targets ---------------------------------------------------------------------------------


def _of_embedding() -> Iterator[Target]:
    aims = (("minilm", "MiniLM", (0.9, 0.88)), ("base", "BERT-base", (0.92, 0.92)))
    for model, name, least in aims:
        for texts, aim in zip(("short", "documents"), least, strict=True):
            file = f"embed-{model}-{texts}"
            for precision, own_aim in (("bfloat16", aim), ("float32", "-")):
                read = partial(share, own=f"skbert-{precision}")
                what = f"embed, {name}, {texts}, {precision}: share of the peak"
                yield Target(what, file, read, "share", own_aim)
    read = partial(faster, than="skbert-bfloat16", own="skbert-int8")
    for model, name, least in (("minilm", "MiniLM", 1.5), ("base", "BERT-base", 1.6)):
        what = f"embed, {name}, documents, int8: times skbert in bfloat16"
        yield Target(what, f"embed-{model}-documents", read, "times", least)
    for texts in ("short", "documents"):
        what = f"embed, MiniLM, {texts}: times OpenVINO in bfloat16"
        read = partial(faster, than=OPENVINO, own=OWN)
        yield Target(what, f"embed-minilm-{texts}", read, "times", 1.4)


def _of_fits() -> Iterator[Target]:
    aims = (("minilm", "MiniLM", (0.7, 0.7)), ("base", "BERT-base", (0.75, 0.8)))
    for model, name, least in aims:
        for texts, aim in zip(("short", "documents"), least, strict=True):
            what = f"steps of a fit, {name}, {texts}: share of the peak"
            read = partial(share, own="skbert")
            yield Target(what, f"fit-{model}-{texts}", read, "share", aim)
    for texts, aim in (("short", 2.2), ("documents", 3.0)):
        read = partial(faster, than="trainer-tuned", own="skbert")
        what = f"fit, MiniLM, {texts}: times the tuned Trainer"
        yield Target(what, f"fit-minilm-{texts}", read, "times", aim)
    tasks = (("intents", 12, "all"), ("emotions", 15, "all"), ("pairs-class", 6, 2))
    for task, aim, freeze in tasks:
        for n_frozen, how in ((0, ""), (freeze, f", freeze={freeze!r}")):
            what = f"as accurate, {task}{how}: times the plain script"
            read = partial(sooner, task=task, freeze=n_frozen)
            yield Target(what, "learning", read, "times", aim)
    searches = ("skbert, 1 worker", 4), ("skbert, 2 workers", 4), ("skbert, freeze=4, memory", 8)
    for own, aim in searches:
        what, read = (
            f"12 fits, {own}: times the plain script",
            partial(faster, than="plain", own=own),
        )
        yield Target(what, "search", read, "times", aim)


def _of_the_rest() -> Iterator[Target]:
    for precision, aim in (("bfloat16", 2.0), ("int8", 1.3), ("float32", "-")):
        what, read = f"one text, {precision}", partial(milliseconds, precision=precision)
        yield Target(what, "latency", read, "ms", aim)
    read = partial(faster, than=ST, own=OWN)
    yield Target(f"one text: times {ST}", "latency", read, "times", 6)
    yield Target("memory of a fit, BERT-base, 16 × 128", "memory", peak_memory, "GB", 2.2)


def _of_families() -> Iterator[Target]:
    names = {"minilm": "BERT", "roberta": "RoBERTa", "distilbert": "DistilBERT"}
    for model, name in {**names, "modernbert": "ModernBERT"}.items():
        aim = {"minilm": "-", "modernbert": 2.2}.get(model, "as BERT")
        for texts in ("short", "documents"):
            read = partial(faster, than=ST, own=OWN)
            file = f"{model}-{texts}"
            what = f"embed, {name}, {texts}: times {ST}"
            yield Target(what, f"embed-{file}", read, "times", aim)
            if model in names:
                read, what = partial(faster, than="trainer", own="skbert"), f"fit, {name}, {texts}"
                yield Target(f"{what}: times the Trainer", f"fit-{file}", read, "times", aim)


def _of_gpus() -> Iterator[Target]:
    for model, name in (("minilm", "MiniLM"), ("base", "BERT-base"), ("modernbert", "ModernBERT")):
        for texts in ("short", "documents"):
            file = f"embed-{model}-{texts}"
            read = partial(share, own="skbert-bfloat16")
            yield Target(f"embed, {name}, {texts}: share of the peak", file, read, "share")
            read = partial(faster, than=f"{ST}-bfloat16", own="skbert-bfloat16")
            aim = 3 if texts == "documents" else "-"
            what = f"embed, {name}, {texts}: times {ST} in bfloat16"
            yield Target(what, file, read, "times", aim)
        for texts, aims in (("short", ("-", "-")), ("documents", ("-", 3)), ("128", (0.5, "-"))):
            file = f"fit-{model}-{texts}"
            what = f"steps of a fit, {name}, {texts}: share of the peak"
            yield Target(what, file, partial(share, own="skbert"), "share", aims[0])
            read = partial(faster, than="trainer-tuned", own="skbert")
            what = f"fit, {name}, {texts}: times the tuned Trainer"
            yield Target(what, file, read, "times", aims[1])


GPU_PARTS = {"On a GPU": (*_of_gpus(),)}
PARTS = {
    "MiniLM and BERT-base": (*_of_embedding(), *_of_fits(), *_of_the_rest()),
    "Families as large as MiniLM": (*_of_families(),),
}


# --- the page ------------------------------------------------------------------------------------

HEAD = """# Speed targets

Written by `make bench`, and on a GPU by `make bench-gpu`: the speed targets of skbert, and what
was measured. Each part names its machine; what another machine measures becomes a part of its
own. "Best peer" is the fastest of the others, of the settings that were tried, in the unit of the
row; where the row is a share of the peak, the fastest with products in the same precision.
"Limit" is what the row would say if the encoder's matrix products took all the time, each as fast
as the fastest that was measured in the same run. A dash stands for what was not measured, as the
processor has no instructions for that precision or the script did not measure it then, and for a
row without a limit or an aim."""


def main() -> None:
    """Write those parts of the page that were measured, and the plot."""
    options = _options()
    written = options.page.read_text(encoding="utf-8") if options.page.exists() else ""
    parts = dict(re.findall(r"^## (.+)\n\n((?:.*\n)+?)(?=\n## |\n!\[|\Z)", written, re.MULTILINE))
    measured_on, drawn = _machine(options.folder), list[tuple[Target, Figures]]()
    device = measured_on["gpu"] or measured_on["cpu"]
    for name, targets in (GPU_PARTS if measured_on["gpu"] else PARTS).items():
        if found := [*_measured(options.folder, targets)]:
            drawn += found
            parts[f"{name}, {device}"] = table(found, measured_on)
    whole = [HEAD, *(f"## {title}\n\n{text.strip()}" for title, text in parts.items())]
    whole.append(f"![Shares of the limit, with the targets]({options.plot.name})")
    options.page.write_text("\n\n".join(whole) + "\n", encoding="utf-8")
    if drawn:
        draw(drawn, device, options.plot)


def _machine(folder: Path) -> dict[str, Any]:
    """The machine of the newest file, and the highest load of all."""
    files = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime)
    found = [json.loads(path.read_text(encoding="utf-8"))["machine"] for path in files]
    return {**found[-1], "load": max(each["load"] or 0.0 for each in found)}


def _measured(folder: Path, targets: tuple[Target, ...]) -> Iterator[tuple[Target, Figures]]:
    """Each target whose file is there, and its figures."""
    for target in targets:
        one, lines = folder / f"{target.file}.json", folder / f"{target.file}.jsonl"
        if one.exists():
            yield target, target.read(json.loads(one.read_text(encoding="utf-8")))
        elif lines.exists():
            records = [json.loads(line) for line in lines.read_text(encoding="utf-8").splitlines()]
            yield target, target.read(records)


def table(found: list[tuple[Target, Figures]], measured_on: dict[str, Any]) -> str:
    """Write the machine, and a row for each target."""
    head = "| | here | best peer | limit | aim |\n|---|---|---|---|---|"
    rows = [target.cells(figures) for target, figures in found]
    return "\n".join([machine.headline(measured_on) + ".", "", head, *rows])


def draw(found: list[tuple[Target, Figures]], title: str, path: Path) -> None:
    """Draw figures as shares of their limits: here as bars, the best peer and the aim as marks."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    shown = [(t, f) for t, f in found if f.here is not None and f.limit is not None][::-1]

    def shares(pick: Callable[[Target, Figures], Any]) -> list[float]:
        numbers = [(pick(t, f), f.limit, t.unit) for t, f in shown]
        return [np.nan if not isinstance(x, float) else (limit / x if unit == "ms" else x / limit)
                for x, limit, unit in numbers]  # fmt: skip

    figure, axis = plt.subplots(figsize=(9, 0.3 * len(shown) + 1.2), layout="constrained")
    places = np.arange(len(shown))
    axis.barh(places, shares(lambda t, f: f.here), color="tab:blue", label="here")
    axis.plot(shares(lambda t, f: f.peer), places, "o", color="tab:orange", label="best peer")
    axis.plot(shares(lambda t, f: t.aim), places, "k|", markersize=12, label="aim")
    axis.set_yticks(places, [t.what.partition(":")[0] for t, _ in shown])
    axis.set(xlim=(0, 1), xlabel="share of the limit", title=title)
    axis.xaxis.set_major_formatter("{x:.0%}")
    axis.legend(
        loc="upper right", bbox_to_anchor=(1, -32 / axis.bbox.height), ncols=3, frameon=False
    )
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
