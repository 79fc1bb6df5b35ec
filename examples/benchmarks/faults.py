"""Kill fits, saves and searches at random moments, and count what is lost: nothing may be.

Fits of every estimator that is trained, saves of every estimator, and searches over them run in
forked processes, which SIGKILL, SIGTERM or Ctrl-C end at random moments. Each is begun again until
it comes to its end, and is then compared with one that nobody stopped: weights, history without
seconds, predictions, scores of a search. A folder that was saved to must hold the old or the new
estimator, whole. The models are tiny, so that several hundred kills take minutes.

    python examples/benchmarks/faults.py
    python examples/benchmarks/faults.py --kills 20 --only fits
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import multiprocessing
import os
import random
import shutil
import signal
import string
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

import machine
import numpy as np
import torch
from joblib.externals.loky import get_reusable_executor
from sklearn.model_selection import GridSearchCV, KFold
from transformers import BertConfig, BertModel, BertTokenizerFast

import skbert
from skbert._core.training.stepper import Stepper
from skbert.exceptions import SkbertError, SkbertWarning

FORK = multiprocessing.get_context("fork")
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
CTRL_C = 130  # how a process says that a KeyboardInterrupt ended it
HANGS = 300.0  # seconds after which a run that nobody kills is one that hangs
MOST_KILLS = 12  # of one run, which is then left to end
EVERY = ("pass", 1, 5, "0.001min")
VARIANTS: tuple[dict[str, Any], ...] = (
    {},
    {"validation_fraction": 0.3, "patience": 2},
    {"precision": "bfloat16", "accumulate": 2},
    {"freeze": 1, "layer_decay": 0.8, "schedule": "cosine", "gradient_checkpointing": True},
)
TEXTS = [
    f"the {word} {thing} is {word}"
    for word in ("good", "bad", "nice", "poor")
    for thing in ("book", "room", "film", "food", "phone", "staff")
]
N = len(TEXTS)
DATA: dict[str, tuple[list[Any], list[Any] | None]] = {
    "BertClassifier": (TEXTS, ["yes", "no"] * (N // 2)),
    "BertRegressor": (TEXTS, [float(row) for row in range(N)]),
    "BertTokenTagger": ([text.split() for text in TEXTS], [["O", "A", "O", "O", "B"]] * N),
    "BertSpanExtractor": (
        [(f"what is {text[4:8]}", text) for text in TEXTS],
        [text.split()[2] for text in TEXTS],
    ),
    "BertChoiceRanker": (
        [(text, ["good", "bad", "poor"]) for text in TEXTS],
        [0, 1, 2] * (N // 3),
    ),
    "BertPretrainer": (TEXTS, None),
}

# By all processes, of which one trains at a time: a lock would be lost with one that is killed.
steps_taken = FORK.RawValue("q", 0)


@dataclass
class Tally:
    """What became of some runs."""

    runs: int = 0
    kills: int = 0
    went_on: int = 0  # times that a run began at a checkpoint
    steps_again: int = 0  # steps that were taken more than once
    identical: int = 0
    refused: int = 0
    lost: int = 0

    def __add__(self, other: Tally) -> Tally:
        """Sum of two tallies."""
        return Tally(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(Tally)))


class Ending(NamedTuple):
    """How a process ended: with an answer, or killed, or in a way it should not have."""

    answer: Any
    was_killed: bool


class EndingError(Exception):
    """A process ended as it should not have."""


# --- processes -----------------------------------------------------------------------------------


def run(
    work: Callable[[], Any], seconds: float | None = None, how: int = signal.SIGKILL
) -> Ending:
    """Do some work in a forked process, and kill it after so many seconds if it still works."""
    ours, theirs = FORK.Pipe(duplex=False)
    process = FORK.Process(target=_answer, args=(theirs, work))
    process.start()
    theirs.close()
    with ours:
        try:
            is_done = ours.poll(HANGS if seconds is None else seconds)
            if not is_done:
                _kill(process.pid, how if seconds is not None else signal.SIGKILL)
            answer = ours.recv()
        except EOFError:
            answer = None
        except BaseException:  # such as a test's limit of time
            process.kill()
            raise
    process.join()
    if answer is None:
        wanted = CTRL_C if how == signal.SIGINT else -how
        if is_done or seconds is None or process.exitcode != wanted:
            raise EndingError(f"ended with {process.exitcode} after signal {how}")
        return Ending(None, was_killed=True)
    if isinstance(answer, Exception):
        raise answer
    return Ending(answer, was_killed=False)


def _kill(process: int, how: int) -> None:
    """Send a signal; SIGKILL to all processes of the group as well."""
    if how != signal.SIGKILL or os.getpgid(process) != process:
        os.kill(process, how)
        return
    os.killpg(process, how)
    for left in Path("/dev/shm").glob(f"*_{process}_*"):  # noqa: S108 - joblib's, for its workers
        shutil.rmtree(left, ignore_errors=True)
    for left in Path("/dev/shm").glob(f"sem.loky-{process}-*"):  # noqa: S108
        left.unlink(missing_ok=True)


def _answer(pipe: Any, work: Callable[[], Any]) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", SkbertWarning)  # nothing may be found damaged
            warnings.filterwarnings("ignore", ".*(rows|texts) .*", SkbertWarning)
            answer = work()
    except KeyboardInterrupt:
        sys.exit(CTRL_C)
    except Exception as error:  # noqa: BLE001 - the parent says what it means
        answer = error
    pipe.send(answer)


def in_a_group(work: Callable[[], Any]) -> Any:
    """Work in a group of processes of its own, so that its workers can be killed with it."""
    os.setsid()
    answer = work()
    get_reusable_executor().shutdown(kill_workers=True)  # else they are waited for, idle
    return answer


def count_steps() -> None:
    """Count the optimizer steps of this process and of its forks."""
    whole = Stepper.step

    def counted(stepper: Any, chosen: Any) -> None:
        whole(stepper, chosen)
        steps_taken.value += 1

    Stepper.step = counted  # type: ignore[method-assign]


# --- what is compared ----------------------------------------------------------------------------


def make_model(folder: Path) -> None:
    """Save an encoder of two small layers with random weights, which spells every text."""
    signs = string.ascii_lowercase + string.digits
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *signs, *(f"##{s}" for s in signs)]
    pieces += sorted({word for text in TEXTS for word in text.split()})
    config = BertConfig(
        vocab_size=len(pieces), hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=64,
    )  # fmt: skip
    torch.manual_seed(0)
    BertModel(config).save_pretrained(folder)
    vocabulary = {piece: row for row, piece in enumerate(pieces)}
    BertTokenizerFast(vocab=vocabulary, model_max_length=64).save_pretrained(folder)


def make(name: str, model: Path, **params: Any) -> Any:
    """An estimator that learns in a fraction of a second."""
    usual = {"random_state": 0, "epochs": 4, "batch_size": 4, "learning_rate": 1e-3}
    quick = {"device": "cpu", "precision": "float32", **(usual if name in DATA else {}), **params}
    return getattr(skbert, name)(model, **quick)


def fingerprint(estimator: Any, X: list[Any]) -> dict[str, str]:
    """Hashes of what a fit gave: weights, history without seconds, predictions."""
    weights = hashlib.sha256()
    for name, tensor in sorted(estimator.model_.state_dict().items()):
        weights.update(name.encode() + tensor.contiguous().numpy().tobytes())
    history = [
        {key: value for key, value in row.items() if key != "seconds"}
        for row in getattr(estimator, "history_", [])
    ]
    ways = ("predict", "predict_proba", "transform", "score")
    way = next(way for way in ways if hasattr(estimator, way))
    with np.printoptions(threshold=sys.maxsize):
        said = repr(getattr(estimator, way)(X))
    return {"weights": weights.hexdigest(), "history": repr(history), "predictions": said}


def fit(name: str, model: Path, params: dict[str, Any]) -> dict[str, str]:
    """What a fit gives."""
    X, y = DATA[name]
    return fingerprint(make(name, model, **params).fit(X, y), X)


def search(name: str, model: Path, n_jobs: int | None, params: dict[str, Any]) -> dict[str, str]:
    """The scores of a search over two candidates, and what the best one is."""
    X, y = DATA[name]
    estimator = make(name, model, epochs=2, **params)
    grid, folds = {"learning_rate": [1e-4, 1e-3]}, KFold(3, shuffle=True, random_state=0)
    found = GridSearchCV(estimator, grid, cv=folds, n_jobs=n_jobs, error_score="raise").fit(X, y)
    scores = [found.cv_results_[f"split{split}_test_score"].tolist() for split in range(3)]
    return {"scores": repr(scores), **fingerprint(found.best_estimator_, X)}


# --- runs that are killed ------------------------------------------------------------------------


@dataclass
class Bench:
    """Where the models are, and the moments at which processes are killed."""

    model: Path
    scratch: Path
    moments: random.Random
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def folder(self) -> Path:
        """A new folder."""
        folder = self.scratch / f"{next(self.numbers)}"
        folder.mkdir()
        return folder

    def compare(
        self, work: Callable[[dict[str, Any]], dict[str, str]], params: dict[str, Any],
        how: int, most_kills: int = MOST_KILLS,
    ) -> Tally:  # fmt: skip
        """Kill some work again and again until it ends, and compare it with itself unharmed."""
        began, before = time.perf_counter(), steps_taken.value
        want = run(lambda: work({})).answer
        seconds, n_steps = time.perf_counter() - began, steps_taken.value - before
        tally, folder, before = Tally(runs=1), self.folder(), steps_taken.value
        settings = {**params, "checkpoint_dir": folder}
        found = None
        try:
            while found is None:
                tally.went_on += any(folder.glob("fit-*/step-*"))
                moment = self.moments.uniform(0.005, 1.2 * seconds)
                ending = run(
                    lambda: work(settings), moment if tally.kills < most_kills else None, how
                )
                tally.kills += ending.was_killed
                found = ending.answer
        except SkbertError as error:
            print(f"refused: {error}", file=sys.stderr)
            tally.refused = 1
        except Exception as error:  # noqa: BLE001 - whatever it is, the work of the run is lost
            print(f"lost: {error!r}", file=sys.stderr)
            tally.lost = 1
        else:
            tally.identical = int(found == want)
            tally.lost = 1 - tally.identical
            if found != want:
                print(f"lost: {[key for key in want if found[key] != want[key]]}", file=sys.stderr)
            tally.steps_again = max(0, steps_taken.value - before - n_steps)
        shutil.rmtree(folder)
        return tally

    def fit(self, name: str, variant: dict[str, Any], every: int | str, how: int) -> Tally:
        """A fit that is killed again and again."""
        return self.compare(
            lambda more: fit(name, self.model, {**variant, **more}),
            {"checkpoint_every": every}, how,
        )  # fmt: skip

    def search(self, name: str, every: int | str, how: int) -> Tally:
        """A search that is killed again and again."""
        return self.compare(
            lambda more: search(name, self.model, None, more), {"checkpoint_every": every}, how
        )

    def search_by_two(self, name: str) -> Tally:
        """A search by two worker processes, which are killed with it."""
        return self.compare(
            lambda more: in_a_group(lambda: search(name, self.model, 2, more)),
            {"checkpoint_every": "pass"}, signal.SIGKILL, most_kills=3,
        )  # fmt: skip

    def save(self, name: str) -> Tally:
        """Saves to one folder in turn, one of which is killed; the folder is loaded then."""
        X = DATA.get(name, (TEXTS, None))[0]
        folder = self.folder() / "saved"
        begin = self.folder()
        want = run(lambda: self._save_two(name, begin)).answer
        shutil.copytree(begin / "0", folder)
        tally, seconds = Tally(runs=1), self.moments.uniform(0.05, 0.4)
        cls = getattr(skbert, name)
        tally.kills += run(lambda: _save_for_ever(cls, begin, folder), seconds).was_killed
        if not folder.exists():  # killed between two renames: the error of load says what to do
            (old,) = folder.parent.glob(".saved.*.old")
            old.rename(folder)
        try:
            found = run(lambda: fingerprint(cls.load(folder), X)).answer
            tally.identical = int(found in want)
        except (SkbertError, EndingError) as error:
            print(f"lost: {error!r}", file=sys.stderr)
        tally.lost = 1 - tally.identical
        return tally

    def _save_two(self, name: str, folder: Path) -> list[dict[str, str]]:
        X, y = DATA.get(name, (TEXTS, None))
        found = []
        for number in range(2):
            estimator = make(name, self.model).fit(X, y)
            for weight in estimator.model_.parameters():
                weight.detach().mul_(1 + number)
            estimator.save(folder / f"{number}")
            found.append(fingerprint(estimator, X))
        return found


def _save_for_ever(cls: Any, begin: Path, folder: Path) -> None:
    both = [cls.load(begin / name) for name in "10"]
    for estimator in itertools.cycle(both):
        estimator.save(folder)


# --- the table -----------------------------------------------------------------------------------


def trials(bench: Bench, kinds: list[str]) -> Iterator[tuple[str, Tally]]:
    """Runs of all kinds in turn, for ever, each with its row of the table."""
    for turn in itertools.count():
        how = SIGNALS[turn % len(SIGNALS)]
        word = "Ctrl-C" if how == signal.SIGINT else signal.Signals(how).name
        for number, name in enumerate(DATA):
            at = turn // len(SIGNALS) + number
            for shift, every in enumerate(EVERY if "fits" in kinds else ()):
                variant = VARIANTS[(at + shift) % len(VARIANTS)]
                yield f"fit, {word}", bench.fit(name, variant, every, how)
            if "searches" in kinds:
                yield f"search, {word}", bench.search(name, EVERY[at % len(EVERY)], how)
        for name in [*DATA, "BertTransformer"] if "saves" in kinds else ():
            yield "save, SIGKILL", bench.save(name)
        if "workers" in kinds:
            name = list(DATA)[turn % len(DATA)]
            yield "search with n_jobs=2, SIGKILL", bench.search_by_two(name)


def table(tallies: dict[str, Tally]) -> str:
    """The tallies as a table in Markdown, with their sum."""
    names = [f.name for f in fields(Tally)]
    rows = [["run", *(name.replace("_", " ") for name in names)], ["---", *["---:"] * len(names)]]
    everything = {**tallies, "all": sum(tallies.values(), Tally())}
    rows += [
        [kind, *(f"{getattr(each, name)}" for name in names)] for kind, each in everything.items()
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def kill(n_kills: int, kinds: list[str], seed: int) -> dict[str, Tally]:
    """Kill so many processes, and tally what became of their runs."""
    tallies: dict[str, Tally] = {}
    with tempfile.TemporaryDirectory() as scratch:
        bench = Bench(Path(scratch) / "model", Path(scratch), random.Random(seed))  # noqa: S311 - moments, no secrets
        make_model(bench.model)
        for name in DATA:  # what a fit imports is there in all forks
            fit(name, bench.model, {"epochs": 1})
        for kind, tally in trials(bench, kinds):
            tallies[kind] = tallies.get(kind, Tally()) + tally
            print(f"{kind}: {tally}", file=sys.stderr, flush=True)
            if sum(each.kills for each in tallies.values()) >= n_kills:
                break
    return tallies


def main() -> None:
    """Kill, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    kinds = ["fits", "saves", "searches", "workers"]
    parser.add_argument("--kills", type=int, default=400, help="processes to kill")
    parser.add_argument("--only", nargs="+", choices=kinds, default=kinds, help="what to kill")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    given = parser.parse_args()
    torch.set_num_threads(1)  # no threads, which forks would lack
    count_steps()
    tallies = kill(given.kills, given.only, given.seed)
    print(machine.headline(machine.describe()))
    print(table(tallies))
    if sum(each.lost for each in tallies.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
