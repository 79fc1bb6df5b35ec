"""Whether time grows linearly: seconds per row for many rows, per token for long texts.

A fitted ``BertClassifier`` reads frames of 10,000 different texts of three words, one frame after
another, up to a million rows, and the peak memory of the process is noted; ``BertTransformer``
reads texts of 8 to 512 tokens, the same number of tokens for each length.

    python examples/benchmarks/growth.py --plot docs/growth.png

takes less than ten minutes on two cores.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import machine
import numpy as np
import pandas as pd
import plain
import record
from turns import take_turns

from skbert import BertClassifier, BertTransformer

FRAME = 10_000  # rows
LENGTHS = (8, 16, 32, 64, 128, 256, 512)
N_WORDS = 100  # enough for a million texts of three words


def main() -> None:
    """Time both, print the tables and draw the curves."""
    options = _options()
    plain.be_quiet()
    print(machine.headline(machine.describe()), flush=True)
    by_rows = rows_read(options.rows)
    print("\n| rows | ms a row | peak, GB |\n|---|---|---|")
    for n, seconds, peak in by_rows:
        print(f"| {n} | {1e3 * seconds:.3f} | {peak:.2f} |", flush=True)
    by_length = lengths_read(options.tokens, options.repeats)
    print("\n| tokens in a text | us a token | times the least |\n|---|---|---|")
    least = min(by_length.values())
    for length, seconds in by_length.items():
        print(f"| {length} | {1e6 * seconds:.2f} | {seconds / least:.2f} |", flush=True)
    record.write(options.out, {"by_rows": by_rows, "seconds_a_token": by_length})
    if options.plot is not None:
        draw(by_rows, by_length, options.plot)


def rows_read(most: int) -> list[tuple[int, float, float]]:
    """Predict frame after frame.

    Parameters
    ----------
    most : int
        Rows in all, a power of 10.

    Returns
    -------
    list of tuple
        For each power of 10 from 1,000: rows, seconds a row up to there, peak memory in gigabytes.
    """
    texts, labels = ["cheap red book", "late order"] * 8, [0, 1] * 8
    classifier = BertClassifier(plain.model_folder(), epochs=1, random_state=0).fit(texts, labels)
    words = words_of(classifier)
    classifier.predict(next(frames(FRAME, words)))
    points, seen, seconds = [], 0, 0.0
    for frame in frames(most, words):
        began = time.perf_counter()
        classifier.predict(frame)
        seconds += time.perf_counter() - began
        seen += len(frame)
        if seen in (10**power for power in range(3, 10)):
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
            points.append((seen, seconds / seen, peak))
    return points


def words_of(estimator: BertClassifier | BertTransformer) -> list[str]:
    """Words that are one piece each."""
    pieces = estimator.tokenizer_.get_vocab()
    return sorted(piece for piece in pieces if piece.isascii() and piece.isalpha())[:N_WORDS]


def frames(most: int, words: list[str]) -> Iterator[pd.DataFrame]:
    """Frames of different short texts: the first of 1,000 rows, the second up to ``FRAME``."""
    begin = 0
    for end in (1000, *range(FRAME, most + 1, FRAME)):
        digits = np.arange(begin, end)[:, None] // N_WORDS ** np.arange(3) % N_WORDS
        yield pd.DataFrame({"text": [" ".join(words[i] for i in row) for row in digits]})
        begin = end


def lengths_read(tokens: int, repeats: int) -> dict[int, float]:
    """Embed texts of each length in turns; the median of seconds a token by length."""
    rng = np.random.default_rng(0)
    model = BertTransformer(plain.model_folder(), max_length=512).fit(["a"])
    words = words_of(model)
    texts = {
        length: [" ".join(rng.choice(words, length - 2)) for _ in range(tokens // length)]
        for length in LENGTHS
    }
    calls = {str(length): partial(model.transform, texts[length]) for length in LENGTHS}
    seconds = take_turns(calls, repeats, warm_up=1)
    return {
        length: float(np.median(seconds[str(length)])) / (length * len(texts[length]))
        for length in LENGTHS
    }


def draw(by_rows: list[tuple[int, float, float]], by_length: dict[int, float], path: Path) -> None:
    """Draw time a row against rows, and time a token against length."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
    rows, seconds, _ = zip(*by_rows, strict=True)
    left.semilogx(rows, 1e3 * np.array(seconds), marker="o")
    left.set(xlabel="rows", ylabel="ms a row", title="short texts")
    right.semilogx([*by_length], 1e6 * np.array([*by_length.values()]), marker="o", base=2)
    right.set(xlabel="tokens in a text", ylabel="µs a token", title="texts of one length")
    for axis in (left, right):
        axis.set_ylim(0, 1.1 * axis.dataLim.ymax)
    figure.savefig(path, dpi=120)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=10**6)
    parser.add_argument("--tokens", type=int, default=2**15, help="of each length")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, help="write the result to this JSON file")
    parser.add_argument("--plot", type=Path, help="draw the curves into this PNG file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
