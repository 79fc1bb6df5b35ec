"""The tasks of the benchmarks: their data, the usual recipe and the metric.

Does not import torch, and of skbert only the metrics. Every contender gets the same data.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
from sklearn.metrics import accuracy_score, average_precision_score, f1_score

from skbert.metrics import entity_f1, squad_em, squad_f1

Kind = Literal[
    "single_label_classification",
    "multi_label_classification",
    "regression",
    "token_classification",
    "question_answering",
    "multiple_choice",
]
# The question to a premise of the choices data.
ASKED = {"cause": "What was the cause?", "effect": "What happened as a result?"}

DATA = Path(
    os.environ.get("SKBERT_DATA", Path(__file__).resolve().parents[2].parent / "shared" / "data")
)


@dataclass(frozen=True)
class Rows:
    """Texts with their targets, one row a sample.

    Attributes
    ----------
    first : list of str, or of lists of str
        The text, or the first text of each pair; the words, where words are tagged.
    second : list of str, or of lists of str, or None
        The second text of each pair; the options, where one is chosen; None where there is none.
    y : ndarray of shape (n,) or (n, k)
        Classes, an indicator matrix, scores, or an object array of lists of tags or of
        ``(answer, start)``.
    """

    first: list[str] | list[list[str]]
    second: list[str] | list[list[str]] | None
    y: np.ndarray

    def __len__(self) -> int:
        """Count the rows."""
        return len(self.first)

    def take(self, indices: Sequence[int] | np.ndarray) -> Rows:
        """Pick rows by position."""
        second = None if self.second is None else [self.second[i] for i in indices]
        return Rows([self.first[i] for i in indices], second, self.y[np.asarray(indices)])

    @property
    def X(self) -> list:  # noqa: N802
        """X for an estimator of skbert: texts, words, or pairs of a text and another cell."""
        if self.second is None:
            return self.first
        return list(zip(self.first, self.second, strict=True))


@dataclass(frozen=True)
class Recipe:
    """The training settings that the plain script and skbert share."""

    passes: int = 3
    batch_size: int = 16
    learning_rate: float = 1e-4
    warmup: float = 0.1
    schedule: str = "linear"
    max_length: int | None = None


@dataclass(frozen=True)
class Task:
    """One job: which files and columns, what kind of target, which recipe and metric."""

    folder: str
    texts: tuple[str, ...]
    target: str
    kind: Kind
    metric: str
    recipe: Recipe = Recipe()
    validation: str = "val"


TASKS = {
    "intents": Task("intents", ("text",), "label", "single_label_classification", "accuracy"),
    "pairs-class": Task(
        "pairs",
        ("sentence_a", "sentence_b"),
        "entailment",
        "single_label_classification",
        "accuracy",
    ),
    "pairs-score": Task(
        "pairs", ("sentence_a", "sentence_b"), "relatedness", "regression", "Pearson r"
    ),
    "emotions": Task("emotions", ("text",), "labels", "multi_label_classification", "micro F1"),
    "tnews": Task(
        "tnews",
        ("text",),
        "label",
        "single_label_classification",
        "accuracy",
        Recipe(passes=4, learning_rate=2e-5, max_length=128),
        validation="dev",
    ),
    "entities": Task("entities", ("tokens",), "tags", "token_classification", "entity F1"),
    "spans": Task(
        "spans",
        ("question", "context"),
        "answer",
        "question_answering",
        "SQuAD F1",
        Recipe(max_length=384),
    ),
    "choices": Task("choices", ("premise", "choices"), "label", "multiple_choice", "accuracy"),
}


def load(task: Task, folder: Path, part: str) -> Rows:
    """Read one part of a task's data.

    Parameters
    ----------
    task : Task
        What to read.
    folder : Path
        The folder that holds one folder per data set.
    part : {"train", "validation", "test"}
        Which file.

    Returns
    -------
    Rows
        All rows of the file, in its order.
    """
    name = task.validation if part == "validation" else part
    frame = _read(folder, task, name)
    texts = [frame[column].tolist() for column in task.texts]
    second = texts[1] if len(texts) > 1 else None
    if task.kind == "multi_label_classification":
        # The train file names every label, so all parts have the same columns.
        known = _read(folder, task, "train")[task.target].str.get_dummies("|").columns
        marked = frame[task.target].str.get_dummies("|").reindex(columns=known, fill_value=0)
        return Rows(texts[0], second, marked.to_numpy(dtype=np.int64))
    if task.kind in ("token_classification", "question_answering"):
        return Rows(texts[0], second, _cells(frame[task.target]))
    types = {"regression": np.float64, "multiple_choice": np.int64}
    return Rows(texts[0], second, frame[task.target].to_numpy(dtype=types.get(task.kind, str)))


def _cells(column: pd.Series) -> np.ndarray:
    """An object array of lists or tuples, never a matrix."""
    cells = np.empty(len(column), dtype=object)
    cells[:] = column.tolist()
    return cells


def _read(folder: Path, task: Task, name: str) -> pd.DataFrame:
    lines = folder / task.folder / f"{name}.jsonl"
    path = lines.with_suffix(".csv")
    columns = [*task.texts, task.target]
    if lines.is_file():
        rows = [json.loads(line) for line in lines.read_text(encoding="utf-8").splitlines()]
        return pd.DataFrame([_plain_row(row) for row in rows])[columns]
    if not path.is_file():
        raise SystemExit(
            f"The benchmark data is not there: no file {path}. The folder has to hold one folder "
            "per data set (intents, pairs, emotions, tnews, entities, spans, choices). Say where "
            "it is with --data FOLDER, or set SKBERT_DATA."
        )
    # A text that reads "NA" or "null" is a text.
    frame = pd.read_csv(path, usecols=columns, keep_default_na=False, encoding="utf-8")
    return frame[columns]


def _plain_row(row: dict) -> dict:
    """One line of JSON with an answer beside its start, and a premise with its question."""
    if "answer_start" in row:
        return row | {"answer": (row["answer"], row["answer_start"])}
    if "asks_for" in row:
        return row | {"premise": f"{row['premise']} {ASKED[row['asks_for']]}"}
    return row


def sample(rows: Rows, n: int | None, seed: int) -> Rows:
    """Draw n rows by seed; all of them where n is None or not smaller than their number."""
    if n is None or n >= len(rows):
        return rows
    return rows.take(np.random.default_rng(seed).permutation(len(rows))[:n])


def sample_per_class(rows: Rows, n: int, seed: int) -> Rows:
    """Draw n rows of each class by seed, shuffled together."""
    if rows.y.ndim != 1 or rows.y.dtype.kind != "U":
        raise SystemExit(
            "--rows-per-class needs one class per row (intents, pairs-class, tnews); "
            "for this task use --rows."
        )
    shuffled = np.random.default_rng(seed).permutation(len(rows))
    rank = pd.Series(rows.y[shuffled]).groupby(rows.y[shuffled]).cumcount().to_numpy()
    return rows.take(shuffled[rank < n])


def score(task: Task, y: np.ndarray, predicted: np.ndarray) -> float:
    """Score predictions by the task's metric.

    Parameters
    ----------
    task : Task
        Names the kind of target.
    y : ndarray of shape (n,) or (n, k)
        The truth.
    predicted : ndarray of the shape of y
        Classes, scores, lists of tags, answers, or for many labels the probability of each (cut
        at 0.5).

    Returns
    -------
    float
        Accuracy, Pearson's r, micro F1, entity F1 or the F1 of SQuAD.
    """
    if task.kind == "regression":
        return float(np.corrcoef(y, predicted)[0, 1])
    if task.kind == "multi_label_classification":
        return float(f1_score(y, predicted >= 0.5, average="micro", zero_division=0))
    if task.kind == "token_classification":
        return entity_f1(y, predicted)
    if task.kind == "question_answering":
        return squad_f1(y, predicted)
    return float(accuracy_score(y, predicted))


def second_score(task: Task, y: np.ndarray, predicted: np.ndarray) -> float | None:
    """Score by a second metric where the task has one.

    That is micro average precision for many labels: a recipe whose probabilities all stay under
    0.5 has an F1 of 0 and may still rank well. It is the exact match of SQuAD for answers.
    """
    if task.kind == "multi_label_classification":
        return float(average_precision_score(y, predicted, average="micro"))
    return squad_em(y, predicted) if task.kind == "question_answering" else None
