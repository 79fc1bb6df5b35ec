"""Opens damaged files, case by case, in processes that are watched, limited and replaced.

A case is the name of a format and a seed. One case can be tried again, and its files looked at::

    PYTHONPATH=tests python -m support.damage.trying FOLDER FORMAT SEED
"""

from __future__ import annotations

import json
import math
import os
import selectors
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from random import Random
from typing import Any, NamedTuple

__all__ = ["MOST_SECONDS", "WRONG", "Case", "Outcome", "try_cases"]

MOST_SECONDS = 10.0  # of a processor, for a case
MOST_WAITING = 90.0  # seconds, on however busy a machine
WRONG = "wrong"  # the name of cases that do on purpose what must never be done
START_SECONDS = 600.0  # to import what a process needs
HERE = Path(__file__).resolve()
Case = tuple[str, int]


class Outcome(NamedTuple):
    """What came of a case."""

    format: str
    seed: int
    result: str  # "accepted", "refused" or "defect"
    what: str  # the error, and what else is to be said of a defect
    done: list[str]  # the damage
    seconds: float = 0.0  # of a processor
    n_bytes: int = 0


# --- in the process ------------------------------------------------------------------------------


class _Trial:
    """A process that tries cases in a folder of its own."""

    def __init__(self, home: Path, work: Path) -> None:
        from support.damage.watching import Watch, limit_memory

        self.home, self.work = home, work
        for name in ("tmp", "cwd"):
            (work / name).mkdir(parents=True)
        for name in ("base", "outside"):
            shutil.copytree(home / "base", work / name)
        tempfile.tempdir = os.environ["TMPDIR"] = str(work / "tmp")
        os.chdir(work / "cwd")
        warnings.simplefilter("ignore")
        self.watch = Watch((str(work / "case"), str(work / "tmp")))
        self._warm_up()
        limit_memory()

    def _warm_up(self) -> None:
        """Open whole files of every format, so that nothing is imported later."""
        from support.damage.formats import FORMATS, REFUSED_WHOLE

        for name, each in FORMATS.items():
            for source in sorted((self.home / name).iterdir()):
                shutil.copytree(source, self.work / "case")
                try:
                    each.open(self.work / "case", self.work)
                except Exception as error:
                    if not (_is_own(error) and source.name in REFUSED_WHOLE):
                        raise
                self._tidy()

    def _tidy(self) -> None:
        shutil.rmtree(self.work / "case", ignore_errors=True)
        for path in [*(self.work / "tmp").iterdir(), *(self.work / "cwd").iterdir()]:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()

    def try_case(self, name: str, seed: int) -> Outcome:
        opener, also_read, done = self._prepare(name, seed)
        result, what = "accepted", ""
        try:
            with self.watch.watching(*(self.work / place for place in also_read)):
                outputs = opener()
            if not _are_finite(outputs):
                result, what = "defect", "outputs are not finite"
        except BaseException as error:  # noqa: BLE001 - whatever comes is an outcome
            result = "refused" if _is_own(error) and not _lacks_memory(error) else "defect"
            what = f"{type(error).__name__}: {str(error)[:300]}"
        faults = [*self.watch.faults, *(f"wrote {path}" for path in self._astray())]
        if faults:
            result, what = "defect", f"{'; '.join(faults[:3])} ({what})"
        watch = self.watch
        return Outcome(name, seed, result, what, done, watch.seconds, watch.n_bytes)

    def _prepare(
        self, name: str, seed: int
    ) -> tuple[Callable[[], Any], tuple[str, ...], list[str]]:
        """What opens a damaged folder, which others it may read, and what the damage is."""
        from support.damage.formats import FORMATS, damage
        from support.damage.wrongs import WRONGS

        case = self.work / "case"
        if name == WRONG:
            case.mkdir()
            return partial([*WRONGS][seed], case), (), []
        done = damage(Random(f"{name} {seed}"), name, self.home, case)
        each = FORMATS[name]
        return partial(each.open, case, self.work), each.also_read, done

    def _astray(self) -> list[str]:
        """What the case left in the working folder."""
        return [path.name for path in (self.work / "cwd").iterdir()]

    def serve(self) -> None:
        """Answer each line of stdin by one; what a file makes somebody print goes elsewhere."""
        answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        print("ready", file=answers, flush=True)
        for line in sys.stdin:
            outcome = self.try_case(*json.loads(line))
            self._tidy()
            print(json.dumps(outcome), file=answers, flush=True)


def _is_own(error: BaseException) -> bool:
    from skbert.exceptions import SkbertError

    return isinstance(error, SkbertError)


def _lacks_memory(error: BaseException | None) -> bool:
    """Whether an error came of memory that could not be had, under whatever name."""
    while error is not None:
        if isinstance(error, MemoryError) or "allocate memory" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def _are_finite(outputs: Any) -> bool:
    import numpy as np

    if isinstance(outputs, list | tuple):
        return all(map(_are_finite, outputs))
    array = np.asarray(outputs if outputs is not None else 0)
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())


# --- many processes ------------------------------------------------------------------------------


class _Process:
    """A process that tries cases; it is started anew after it died or took too long."""

    def __init__(self, home: Path, scratch: Path) -> None:
        self.home, self.scratch, self.n_started = home, scratch, 0
        self.process: subprocess.Popen[str] | None = None

    def try_case(self, case: Case) -> Outcome:
        if self.process is None:
            self._start()
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(case) + "\n")
        self.process.stdin.flush()
        line = self._line(MOST_SECONDS, MOST_WAITING)
        if line:
            return Outcome(*json.loads(line))
        status = None if line is None else self.process.wait(MOST_SECONDS)
        self.stop()
        what = "took too long" if line is None else f"ended the process, which returned {status}"
        return Outcome(*case, "defect", what, [], MOST_SECONDS if line is None else 0.0)

    def _start(self) -> None:
        self.n_started += 1
        work = self.scratch / str(self.n_started)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "support.damage.trying", str(self.home), str(work)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": f"{HERE.parents[3]}:{HERE.parents[2]}",
                 "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        )  # fmt: skip
        if self._line(math.inf, START_SECONDS) != "ready\n":
            raise RuntimeError("a process that tries damaged files did not start")

    def _line(self, most_of_processor: float, most_waiting: float) -> str | None:
        """The next line; "" at the end, None if none came in time."""
        assert self.process is not None
        assert self.process.stdout is not None
        before, end = _processor_seconds(self.process.pid), time.monotonic() + most_waiting
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while not selector.select(0.5):
                spent = _processor_seconds(self.process.pid) - before
                if spent > most_of_processor or time.monotonic() > end:
                    return None
            return self.process.stdout.readline()

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None


def _processor_seconds(number: int) -> float:
    """What a process has spent of a processor."""
    fields = Path(f"/proc/{number}/stat").read_text(encoding="utf-8").rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def try_cases(
    cases: Iterable[Case],
    home: Path,
    scratch: Path,
    n_processes: int = 2,
    note: Callable[[Outcome], object] = lambda outcome: None,
) -> list[Outcome]:
    """Try cases, and return what came of them, in whatever order; ``note`` is told of each."""
    queue: SimpleQueue[Case] = SimpleQueue()
    for case in cases:
        queue.put(case)
    outcomes: list[Outcome] = []

    def work(number: int) -> None:
        process = _Process(home, scratch / str(number))
        try:
            while True:
                outcome = process.try_case(queue.get_nowait())
                outcomes.append(outcome)
                note(outcome)
        except Empty:
            pass
        finally:
            process.stop()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(n_processes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


def main(home: Path, *case: str) -> None:
    """Serve a parent process in a folder, or try one case and leave its files in that folder."""
    if len(case) == 1:
        _Trial(home, Path(case[0])).serve()
        return
    from support.damage.formats import write_whole_files

    (home / "whole").mkdir(parents=True)
    trial = _Trial(write_whole_files(home / "whole"), home / "work")
    sys.stdout.writelines(f"{part}\n" for part in trial.try_case(case[0], int(case[1])))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]), *sys.argv[2:])
