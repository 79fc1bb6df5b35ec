"""What pre-training gains, from scratch or continued before fine-tuning, and what its head costs.

``scratch``: a small model learns words from all training texts, Chinese ones included, and then
predicts one masked word in each validation text, compared with always predicting the most frequent
word. ``continued``: the default encoder is pre-trained further on the training texts of
``emotions`` or ``tnews``, without their labels, before a classifier is fitted on them; it is
compared with a classifier on the encoder as it is. ``projection``: how long the projection onto
the vocabulary takes for the tokens that are masked, for all tokens, and how long the encoder does.

    python examples/benchmarks/pretraining.py --part scratch
    python examples/benchmarks/pretraining.py --part continued --task tnews --seeds 0 1 2
    python examples/benchmarks/pretraining.py --part projection
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import contender
import machine
import numpy as np
import plain
import tasks
import torch
import workloads
from transformers import BertForMaskedLM

from skbert import BertPretrainer

SIZES = {
    "vocab_size": 8000,
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 1024,
}
MOST_MASKED = 2000  # validation texts with a masked word


def main() -> None:
    """Run the part asked for."""
    options = _options()
    plain.be_quiet()
    print(machine.headline(machine.describe()), flush=True)
    if options.part == "scratch":
        scratch(options.data, options.passes)
    elif options.part == "continued":
        continued(options.data, options.task, options.passes, options.seeds)
    else:
        projection()


def scratch(data: Path, passes: int) -> None:
    """Pre-train a small model on everything, and print how often it predicts a masked word."""
    train, validation = texts_of(data, "train"), texts_of(data, "validation")
    began = time.perf_counter()
    model = BertPretrainer(
        None, epochs=passes, learning_rate=1e-3, batch_size=32, random_state=0, verbose=1, **SIZES
    ).fit(train)
    seconds = time.perf_counter() - began
    pieces = model.tokenizer_.get_vocab()
    questions, answers = mask_a_word(validation, pieces)
    predicted = model.predict_masked(questions, top_k=1)["token"].to_numpy()
    words = chain.from_iterable(text.lower().split() for text in train)
    frequent = Counter(word for word in words if word in pieces).most_common(1)[0][0]
    print(
        f"{len(train)} texts, {passes} passes in {seconds:.0f} s: a masked word is right in "
        f"{np.mean(predicted == answers):.3f} of {len(answers)} texts; {frequent!r} is right in "
        f"{np.mean(answers == frequent):.3f}"
    )


def texts_of(data: Path, part: str) -> list[str]:
    """Every different text of one part of all data sets.

    Parameters
    ----------
    data : Path
        Folder of the data sets.
    part : {"train", "validation"}
        Which files. Data sets without a validation file are left out of ``validation``.

    Returns
    -------
    list of str
        The texts; lists of words are joined by spaces.
    """
    texts: dict[str, None] = {}
    for name, task in tasks.TASKS.items():
        if part == "validation" and name in ("spans", "choices"):
            continue
        rows = tasks.load(task, data, part)
        cells = chain(rows.first, rows.second or []) if name != "choices" else iter(rows.first)
        for cell in cells:
            texts[cell if isinstance(cell, str) else " ".join(cell)] = None
    return list(texts)


def mask_a_word(texts: list[str], pieces: dict[str, int]) -> tuple[list[str], np.ndarray]:
    """Replace one word of each text by a mask, where one of its words is in the vocabulary.

    Parameters
    ----------
    texts : list of str
        The texts; words are separated by white space.
    pieces : dict of str to int
        The vocabulary.

    Returns
    -------
    questions : list of str
        Texts with one mask each.
    answers : ndarray of str
        The masked words, in lower case.
    """
    rng = np.random.default_rng(0)
    questions, answers = [], []
    for i in rng.permutation(len(texts)):
        words = texts[i].split()
        known = [at for at, word in enumerate(words) if word.lower() in pieces]
        if known and len(words) > 3:
            at = int(rng.choice(known))
            questions.append(" ".join([*words[:at], "[MASK]", *words[at + 1 :]]))
            answers.append(words[at].lower())
    return questions[:MOST_MASKED], np.array(answers[:MOST_MASKED])


def continued(data: Path, name: str, passes: int, seeds: list[int]) -> None:
    """Compare classifiers with and without further pre-training of the encoder."""
    task = tasks.TASKS[name]
    train, test = (tasks.load(task, data, part) for part in ("train", "test"))
    settings = {"epochs": task.recipe.passes, "learning_rate": task.recipe.learning_rate}
    for seed in seeds:
        scores = {}
        with tempfile.TemporaryDirectory() as folder:
            pretrainer = BertPretrainer(
                plain.model_folder(), epochs=passes, random_state=seed, learning_rate=5e-5
            ).fit(train.first)
            pretrainer.save(Path(folder) / "continued")
            sources = {"as it is": plain.model_folder(), "continued": Path(folder) / "continued"}
            for which, source in sources.items():
                outputs, _ = contender.fit_predict(
                    train, test, task.kind, seed, model=source, **settings
                )
                scores[which] = tasks.score(task, test.y, outputs)
        shown = ", ".join(f"{which} {score:.4f}" for which, score in scores.items())
        print(f"{name}, {task.metric}, seed {seed}: {shown}", flush=True)


def projection() -> None:
    """Time the parts of a step of masked words on a BERT of the usual size, 16 rows of 64."""
    with workloads.model_of("base") as folder:
        model = BertForMaskedLM.from_pretrained(folder)
    rng = np.random.default_rng(0)
    ids = torch.from_numpy(rng.integers(1000, 30_000, (16, 64)))
    hidden = torch.randn(16 * 64, model.config.hidden_size)

    def encoder() -> torch.Tensor:
        return model.bert(ids).last_hidden_state

    def head(share: float) -> Callable[[], torch.Tensor]:
        states = hidden[: round(share * len(hidden))].requires_grad_()
        return lambda: model.cls(states)

    parts = {"encoder": encoder, "projection, masked": head(0.15), "projection, all": head(1.0)}
    for name, forward in parts.items():
        taken = []
        for _ in range(6):
            began = time.perf_counter()
            with torch.autocast("cpu", torch.bfloat16):
                out = forward()
            out.float().square().mean().backward()
            taken.append(time.perf_counter() - began)
        print(f"{name}: {1000 * float(np.median(taken[1:])):.0f} ms forward and backward")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", choices=["scratch", "continued", "projection"], required=True)
    parser.add_argument("--data", type=Path, default=tasks.DATA, help="folder of the data sets")
    parser.add_argument("--task", choices=["emotions", "tnews"], default="tnews")
    parser.add_argument("--passes", type=int, default=10, help="of pre-training")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    return parser.parse_args()


if __name__ == "__main__":
    main()
