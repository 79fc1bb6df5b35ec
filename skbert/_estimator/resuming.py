"""FitCheckpoints: what a fit writes into ``checkpoint_dir``, and goes on from if it is stopped.

Depends on ``_core`` and on the run of a fit; knows no estimator by name.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from sklearn.utils._param_validation import StrOptions

from skbert._core.checkpoints.fit_folder import FINISHED, FitFolder, SavedFit
from skbert._core.models.network import Network
from skbert._core.runtime.distributed import process_group
from skbert._core.runtime.interrupts import before_interrupts, is_interrupted
from skbert._core.training.loop import TrainingLoop, TrainingState
from skbert._core.training.watch import EarlyStopping
from skbert._estimator.checks import is_count, is_history, is_score
from skbert._estimator.facts import differences
from skbert._estimator.fitted import learned_attributes
from skbert._estimator.run import Run
from skbert._estimator.state import dumps, loads
from skbert.exceptions import InputError, NonFiniteError, SaveError, warn

__all__ = ["Every", "FitCheckpoints", "check_checkpoints", "checkpoints_of"]

Tensors = Mapping[str, torch.Tensor]

_MINUTES = re.compile(r"(\d+(?:\.\d+)?) ?min")
_BEST, _MODEL = "best.", "model."  # what names of tensors begin with
_NO_CHECKPOINT = -1


def _seconds_of(every: str) -> float | None:
    """Seconds in a time such as ``"10min"``; None for any other str."""
    match = _MINUTES.fullmatch(every)
    return 60.0 * float(match[1]) if match else None


class Every(StrOptions):
    """How often checkpoints are written, as str: ``"pass"``, or minutes such as ``"10min"``."""

    def is_satisfied_by(self, val: object) -> bool:
        """Whether a value is one of these."""
        is_time = isinstance(val, str) and _seconds_of(val) is not None
        return is_time or bool(super().is_satisfied_by(val))

    def __str__(self) -> str:
        return "'pass', or minutes such as '10min'"


def check_checkpoints(folder: object, every: int | str, scoring: object) -> None:
    """Refuse a ``checkpoint_every`` that has no effect, and a scorer that looks like others."""
    if folder is None and every != "pass":
        raise InputError(
            f"checkpoint_every={every!r} says when checkpoints are written, but checkpoint_dir is"
            " None, so none is. Set checkpoint_dir to a folder, or checkpoint_every='pass'."
        )
    if folder == "":
        raise InputError(
            "checkpoint_dir='' is not a folder. Give the folder to write checkpoints in, such as"
            " checkpoint_dir='checkpoints', or checkpoint_dir=None to write none."
        )
    if folder is not None and "<lambda>" in repr(scoring):
        raise InputError(
            "scoring is a lambda, and checkpoint_dir knows a function by its name, which all of"
            " them share. Write a function with a name of its own, or set checkpoint_dir=None."
        )


@contextmanager
def checkpoints_of(estimator: _Settings, run: Run) -> Iterator[FitCheckpoints]:
    """The checkpoints of a run; without ``checkpoint_dir`` they are neither read nor written."""
    if estimator.checkpoint_dir is None or run.facts is None:
        yield FitCheckpoints(estimator, run, None)
        return
    folder = FitFolder(Path(estimator.checkpoint_dir), run.facts)
    with _owned(folder, run.facts, is_clone=estimator._is_clone) as own:
        checkpoints = FitCheckpoints(estimator, run, own)
        try:
            yield checkpoints
        except NonFiniteError:  # it would come again, until a parameter is changed
            checkpoints.remove()
            raise


@contextmanager
def _owned(
    folder: FitFolder, facts: Mapping[str, str], *, is_clone: bool
) -> Iterator[FitFolder | None]:
    """The folder, for all processes of a group; None if others train the same fit in it."""
    group = process_group()
    if group.rank > 0:
        yield folder if group.broadcast_number(0) else None
        return
    if not is_clone:
        _check_others(folder, facts)
    with folder.owned() as is_alone:
        if not is_alone:
            warn(
                f"Another process trains the same fit in {folder.path}, so this one writes no "
                "checkpoints. Give it a checkpoint_dir of its own."
            )
        group.broadcast_number(int(is_alone))
        yield folder if is_alone else None


def _check_others(folder: FitFolder, facts: Mapping[str, str]) -> None:
    """Refuse to begin a fit beside another one that was stopped."""
    for path, others in folder.others():
        raise InputError(
            f"checkpoint_dir={str(path.parent)!r} holds a fit that was stopped, and this one is "
            f"not the same: {differences(others, facts)}. Fit with the same parameters and data to"
            f" go on, give another folder, or delete {path}."
        )


class _Settings(Protocol):
    """What an estimator says of its checkpoints."""

    checkpoint_dir: str | os.PathLike[str] | None
    checkpoint_every: int | str
    _is_clone: bool


class _Progress(NamedTuple):
    """What a checkpoint says beside its tensors."""

    n_steps: int  # that were taken
    history: list[dict[str, float]]  # the passes that are done
    attributes: dict[str, Any]  # learned before the first pass
    watch: tuple[float, int]  # the best score, and the passes since then
    loop: dict[str, Any]  # numbers of the training loop; none once training is finished


class FitCheckpoints:
    """The checkpoints of one fit.

    Attributes
    ----------
    seed : int
        The seed of the fit: that of the checkpoint to go on from, if there is one.
    is_new : bool
        Whether there is none.
    n_steps : int
        Steps that were taken before.
    history : list of dict
        The passes that are done.
    attributes : dict
        What was learned before the first pass.
    is_finished : bool
        Whether all steps were taken before.
    """

    def __init__(self, estimator: _Settings, run: Run, folder: FitFolder | None) -> None:
        self._folder, self._every = folder, estimator.checkpoint_every
        self._is_clone: bool = estimator._is_clone
        self._group, self._learned = process_group(), learned_attributes(type(estimator))
        self._n_new, self._written = 0, time.monotonic()  # steps since this process began
        self._has_warned = False
        self._progress = _Progress(0, [], {}, (-math.inf, 0), {})
        self._saved = None if folder is None else self._read(folder, run.network)
        self.is_new = self._saved is None
        self.seed = run.seed if self._saved is None else self._saved.seed
        self.n_steps, self.history, self.attributes, *_ = self._progress
        self.is_finished = not (self.is_new or self._progress.loop)

    def _read(self, folder: FitFolder, network: Network) -> SavedFit | None:
        """The checkpoint to go on from; the first process of a group says which."""

        def check(saved: SavedFit) -> None:
            _check_weights(saved, network)
            progress = _Progress(**loads(saved.state))
            self._check(progress)
            self._progress = progress

        saved = folder.newest(check) if self._group.rank == 0 else None
        number = self._group.broadcast_number(_NO_CHECKPOINT if saved is None else saved.number)
        if saved is None and number != _NO_CHECKPOINT:
            saved = folder.read(number)
            check(saved)
        return saved

    def _check(self, progress: _Progress) -> None:
        """Refuse what no fit has written."""
        best, waited = progress.watch
        learned = progress.attributes.items()
        if not (
            is_count(progress.n_steps)
            and is_history(progress.history)
            and all(is_count(record.get("n_steps")) for record in progress.history)
            and is_score(best)
            and is_count(waited)
            and all(self._learned[name].is_valid(value) for name, value in learned)
        ):
            raise ValueError("its numbers are not those of a fit.")

    @contextmanager
    def kept(self, loop: TrainingLoop, watch: EarlyStopping, network: Network) -> Iterator[None]:
        """Go on from a checkpoint, if there is one, and write others while the loop runs."""
        if self._folder is None:
            yield
            return
        self._loop, self._watch = loop, watch
        if self._saved is not None:
            self._resume(self._saved, network)
        loop.between_steps = self._after_step
        with before_interrupts(self._write if self._group.size == 1 else None):
            yield

    def _resume(self, saved: SavedFit, network: Network) -> None:
        """Put loop, watch and network where the checkpoint has them."""
        best = _part(saved.tensors, _BEST)
        self._watch.load_state(*self._progress.watch, best)
        if self.is_finished:
            network.model.load_state_dict(_part(saved.tensors, _MODEL))
            self._loop.skip_passes()
            return
        numbers = self._progress.loop
        tensors = {n: tensor for n, tensor in saved.tensors.items() if not n.startswith(_BEST)}
        self._loop.resume(TrainingState(numbers, tensors))
        if self._watch.is_exhausted:
            self._loop.skip_passes()
        elif len(self.history) == numbers["pass"][0]:
            self._loop.skip_pass()
        self._saved = None  # the tensors are copied

    def _after_step(self) -> None:
        """Write a checkpoint if it is time, or if a process of a group is to stop."""
        self._n_new += 1
        is_due = self._is_due()
        if self._group.size > 1:
            is_due = self._group.any(is_due or is_interrupted())
        if is_due:
            self._write()

    def _is_due(self) -> bool:
        if isinstance(self._every, str):
            seconds = _seconds_of(self._every)
            return seconds is not None and time.monotonic() - self._written >= seconds
        return self._n_new % int(self._every) == 0

    def finish_pass(self) -> None:
        """Write a checkpoint after a pass, if it is time."""
        if self._folder is not None and self._every == "pass":
            self._write()

    def _write(self) -> None:
        """Write a checkpoint; all processes of a group do so together."""
        numbers, tensors = self._loop.state()
        best, waited, weights = self._watch.state()
        n_steps = numbers["n_steps"]
        progress = _Progress(n_steps, self.history, self.attributes, (best, waited), numbers)
        self._put(progress, tensors | {f"{_BEST}{name}": x for name, x in weights.items()})
        self._written = time.monotonic()

    def finish_training(self, network: Network) -> None:
        """Write what was learned, without what only further steps need."""
        if self._folder is None or self.is_finished:
            return
        n_steps = sum(int(each["n_steps"]) for each in self.history)
        progress = _Progress(n_steps, self.history, self.attributes, (-math.inf, 0), {})
        weights = network.model.state_dict()
        self._put(progress, {f"{_MODEL}{name}": x for name, x in weights.items()})

    def _put(self, progress: _Progress, tensors: Tensors) -> None:
        """Have the first process of a group write a checkpoint; the fit goes on if it cannot."""
        if self._folder is None or self._group.rank > 0:
            return
        state = dumps(progress._asdict())
        number = progress.n_steps if progress.loop else FINISHED
        try:
            self._folder.write(SavedFit(number, self.seed, state, tensors))
        except SaveError as error:
            if not self._has_warned:
                warn(f"No checkpoint is written, and the fit goes on without: {error}")
            self._has_warned = True

    def end(self) -> None:
        """Remove the checkpoints of a fit that is finished; what a clone learned stays."""
        if not self._is_clone:
            self.remove()

    def remove(self) -> None:
        """Remove the checkpoints."""
        if self._folder is not None and self._group.rank == 0:
            self._folder.remove()


def _part(tensors: Tensors, prefix: str) -> dict[str, torch.Tensor]:
    """The tensors whose names begin so, by the rest of the name."""
    return {n.removeprefix(prefix): x for n, x in tensors.items() if n.startswith(prefix)}


def _check_weights(saved: SavedFit, network: Network) -> None:
    """Refuse a checkpoint of a network with other weights."""
    own = {name: tensor.shape for name, tensor in network.model.state_dict().items()}
    for prefix in (_MODEL, _BEST):
        there = {name: tensor.shape for name, tensor in _part(saved.tensors, prefix).items()}
        if there != own and (there or prefix == _MODEL):
            raise ValueError("its weights are not those of this model.")
