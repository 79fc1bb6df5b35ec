"""How much memory a fit and an embedding take at their peak, by length of the texts.

A BERT of the usual size (12 layers of 768, random weights) learns from batches of 16 rows:
transformers' Trainer with its defaults, skbert, and skbert with gradient checkpointing. Then it
embeds 4,096 tokens at a time, its feed-forward layers computed whole or in chunks
(``chunk_size_feed_forward`` of the checkpoint's config.json). Each figure comes from a process of
its own: for fits its peak from start to end; for embeddings, in float32, the peak of torch's
tensors.

    python examples/benchmarks/memory.py --plot docs/memory.png
    python examples/benchmarks/memory.py --model modernbert --lengths 512 2048 8192 --rows 2 \
        --contenders skbert embedding
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import warnings
from pathlib import Path

import machine
import numpy as np
import plain
import record
import workloads
from tasks import Rows
from torch.profiler import ProfilerActivity, profile

FITS = ("trainer", "skbert", "skbert, checkpointing")
EMBEDDINGS = ("embedding", "embedding, chunks of 1024")
BATCH_SIZE = 16


def main() -> None:
    """Measure, print the table and draw the curves."""
    options = _options()
    if options.one:
        measure(options.one, options.folder, options.lengths[0], options.rows)
        return
    print(machine.headline(machine.describe()), flush=True)
    peaks: dict[str, list[float]] = {}
    with workloads.model_of(options.model) as folder:
        for name in options.contenders:
            peaks[name] = [peak(name, folder, n, options.rows) for n in options.lengths]
            print(name, *(f"{own:.3g}" for own in peaks[name]), flush=True)
    fits, embeddings = ([name for name in own if name in peaks] for own in (FITS, EMBEDDINGS))
    print(table(peaks, fits, options.lengths, f"Peak in GB; fits of {BATCH_SIZE} rows a batch"))
    print(table(peaks, embeddings, options.lengths, "Most GB in tensors while embedding"))
    by_length = {name: dict(zip(options.lengths, own, strict=True)) for name, own in peaks.items()}
    record.write(options.out, {"peak_gb": by_length})
    if options.plot is not None:
        draw(peaks, options.lengths, options.plot)


def peak(name: str, folder: str, length: int, n_rows: int) -> float:
    """Run one contender in a process of its own, and return its peak memory in gigabytes."""
    command = [sys.executable, __file__, "--one", name, "--folder", folder, "--rows", str(n_rows)]
    done = subprocess.run(  # noqa: S603 - this very script
        [*command, "--lengths", str(length)], capture_output=True, text=True, check=True
    )
    match = re.search(r"peak (\d+) kB", done.stdout)
    assert match is not None, done.stdout
    return int(match[1]) / 1e6


def measure(name: str, folder: str, length: int, n_rows: int) -> None:
    """Fit or embed rows of one length, and print the peak of this process.

    Parameters
    ----------
    name : str
        One of ``FITS`` and ``EMBEDDINGS``.
    folder : str
        Of the model.
    length : int
        Tokens in each row.
    n_rows : int
        Rows of a fit.
    """
    plain.be_quiet()
    warnings.simplefilter("ignore")
    n_rows = n_rows if name in FITS else 2 * max(1, 4096 // length)
    texts = [" ".join(["word"] * (length - 2)) for _ in range(n_rows)]
    rows = Rows(texts, None, np.arange(n_rows) % 2)
    if name == "trainer":
        plain.trainer_fit(rows, "single_label_classification", passes=1, folder=folder)
    elif name in FITS:
        _fit(rows, folder, max(512, length), checkpointing=name != "skbert")
    else:
        chunk_size = int((re.findall(r"\d+", name) or [0])[0])
        tensors = _embed(texts, folder, max(512, length), chunk_size)
        print(f"peak {tensors // 1000} kB")
        return
    match = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
    assert match is not None
    print(f"peak {match[1]} kB")


def table(peaks: dict[str, list[float]], names: list[str], lengths: list[int], title: str) -> str:
    """Write the peaks of some contenders as a markdown table."""
    lines = [
        f"\n{title}",
        f"| tokens in a row | {' | '.join(map(str, lengths))} |",
        f"|---|{'---|' * len(lengths)}",
    ]
    for name in names:
        cells = " | ".join(f"{each:.3g}" for each in peaks[name])
        lines.append(f"| {name} | {cells} |")
    return "\n".join(lines)


def draw(peaks: dict[str, list[float]], lengths: list[int], path: Path) -> None:
    """Draw peaks against lengths: fits on the left, embeddings on the right."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
    for axis, names, title in zip(
        axes, (FITS, EMBEDDINGS), ("peak of a fit", "tensors while embedding"), strict=True
    ):
        for name in names:
            axis.plot(lengths, peaks[name], marker="o", label=name)
        axis.set(title=title, xlabel="tokens in a row", ylabel="GB")
        axis.set_ylim(bottom=0)
        axis.set_xticks(lengths)
        axis.legend()
    figure.savefig(path, dpi=120)


def _fit(rows: Rows, folder: str, max_length: int, *, checkpointing: bool) -> None:
    from skbert import BertClassifier  # here, so that the Trainer's process does not load it

    settings = {"max_length": max_length, "gradient_checkpointing": checkpointing}
    BertClassifier(folder, epochs=1, head_init="random", **settings).fit(rows.X, rows.y)


def _embed(texts: list[str], folder: str, max_length: int, chunk_size: int) -> int:
    """Embed, and return the peak size of torch's tensors in bytes, without the model's weights."""
    from skbert import BertTransformer

    path = Path(folder) / "config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    settings["chunk_size_feed_forward"] = chunk_size
    path.write_text(json.dumps(settings), encoding="utf-8")
    model = BertTransformer(folder, pooling="mean", max_length=max_length, precision="float32")
    model.fit(texts[:1]).transform(["word"])
    different = [f"{i} {text}" for i, text in enumerate(texts)]  # equal ones are computed once
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        model.transform(different)
    events = [e for e in profiled.profiler.kineto_results.events() if e.name() == "[memory]"]
    in_use = np.cumsum([e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())])
    return int(in_use.max())


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=workloads.MODELS, default="base")
    parser.add_argument("--rows", type=int, default=2 * BATCH_SIZE, help="rows of a fit")
    parser.add_argument(
        "--contenders", nargs="+", choices=(*FITS, *EMBEDDINGS), default=[*FITS, *EMBEDDINGS]
    )
    parser.add_argument("--lengths", type=int, nargs="+", default=[64, 128, 256, 512])
    parser.add_argument("--out", type=Path, help="write the result to this JSON file")
    parser.add_argument("--plot", type=Path, help="draw the curves into this PNG file")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
