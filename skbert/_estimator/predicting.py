"""Predicting: what an estimator and an exported one share, from X to the task's results.

What a job makes of these results is public in `predicting` beside its task. Depends on the checks
of X; needs neither torch nor scikit-learn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from skbert._arrays import Array, IntArray
from skbert._core.items import Items
from skbert._core.text.tokens import Ragged, TextTokenizer
from skbert._estimator.checks import are_labels, are_sorted, is_count
from skbert._estimator.fitted import Learned
from skbert._validation.columns import FitRecord, TextColumns
from skbert._validation.tables import CHUNK_ROWS
from skbert._validation.texts import check_texts
from skbert.exceptions import TruncationWarning, warn

if TYPE_CHECKING:
    from skbert._core.task import Task

__all__ = [
    "Known", "Predicting", "Rows", "chunks", "is_one_chunk", "predict_in_chunks", "warn_if_cut",
]  # fmt: skip

_CHUNK_SIZE = CHUNK_ROWS  # rows that are tokenised together


class Known(Protocol):
    """What was learned, as far as a prediction needs it beside the weights."""

    @property
    def task(self) -> Any:
        """The task, which encodes rows and decodes outputs."""

    @property
    def record(self) -> FitRecord | None:
        """The columns of X in fit; None: opened from a checkpoint."""

    @property
    def attributes(self) -> Mapping[str, Any]:
        """The public attributes, whose names end with an underscore."""


class Predicting:
    """What predicts for rows of X; a subclass computes the outputs of its model."""

    n_features_in_ = Learned[int](is_count, "n_features", optional=True)
    feature_names_in_ = Learned[Array](
        are_labels, "n_features", optional=True, needs=("n_features_in_",)
    )

    text_columns: TextColumns
    missing: str
    _state: Callable[[], Any]  # what was learned, as it is now: a `Known`
    _outputs: Callable[..., Array]  # of that and of rows: what the task makes of the outputs
    _tasks: ClassVar[tuple[Any, ...]] = ()  # the task classes of this job
    _without_rows: ClassVar[str] = ""  # what to call where fit has no rows, in words

    @property
    def _estimator_name(self) -> str:
        """The name of the estimator's class, for messages."""
        return type(self).__name__

    def _rows(self, X: Any, record: FitRecord | None) -> Any:
        """X, checked, as rows that the task can encode: the only place that reads X."""
        return check_texts(
            X,
            columns=self.text_columns,
            missing=self.missing,
            fitted=record,
            estimator_name=self._estimator_name,
            without_rows="" if record else self._without_rows,
        )


class PredictsSets(Predicting):
    """What predicts sets that hold the truth as often as asked."""

    conformity_scores_ = Learned[Array](are_sorted, "n_scores", optional=True, of_weights=True)


class Rows(Protocol):
    """Checked rows of X."""

    def __len__(self) -> int:
        """Number of rows."""

    def take(self, rows: IntArray) -> Any:
        """The rows with these indices, in that order."""


def predict_in_chunks(
    task: Task, rows: Rows, tokenizer: TextTokenizer, run: Callable[[Items], Ragged]
) -> Array:
    """What the task makes of the outputs of ``run``, one entry per row.

    Many rows are computed in chunks: during one of them, the next is tokenised.
    """
    if is_one_chunk(len(rows)):
        items = task.encode(rows, None, tokenizer)
        warn_if_cut(task, items.n_truncated, len(rows))
        return np.asarray(task.decode(run(items), items))
    turns = map(rows.take, chunks(len(rows)))
    parts, n_cut = [], 0
    with ThreadPoolExecutor(1) as ahead:
        waiting = ahead.submit(task.encode, next(turns), None, tokenizer)
        for turn in chain(turns, [None]):
            items = waiting.result()
            if turn is not None:
                waiting = ahead.submit(task.encode, turn, None, tokenizer)
            parts.append(task.decode(run(items), items))
            n_cut += items.n_truncated
    warn_if_cut(task, n_cut, len(rows))
    return np.concatenate(parts)


def chunks(n_rows: int) -> Iterator[IntArray]:
    """The numbers of the rows that are tokenised together."""
    for begin in range(0, n_rows, _CHUNK_SIZE):
        yield np.arange(begin, min(begin + _CHUNK_SIZE, n_rows))


def is_one_chunk(n_rows: int) -> bool:
    """Whether all rows are tokenised together."""
    return n_rows <= _CHUNK_SIZE


def warn_if_cut(task: Task, n_cut: int, n_rows: int, name: str | None = None) -> None:
    """Say once if texts were cut; ``name`` is what they are part of."""
    if n_cut:
        has_other = getattr(task, "long_text", "windows") != "windows"
        windows = "long_text='windows' reads all of a long text; " * has_other
        what = getattr(task, "truncated", "rows") + (f" of {name}" if name else "")
        warn(
            f"{n_cut} of {n_rows} {what} were too long for max_length and were cut: "
            f"{windows}a larger max_length cuts less, if the model allows it.",
            TruncationWarning,
        )
