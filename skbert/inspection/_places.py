"""Predictions that are places in texts, beside the truth: entities and answers.

Depends on ``_validation`` and ``metrics``; knows no estimator by name.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, cast

import numpy as np
import pandas as pd

from skbert._arrays import FloatArray, IntArray
from skbert._core.infer import sample_losses
from skbert._core.items import Items
from skbert._core.text.tokens import Ragged
from skbert._estimator.fitting import TrainedEstimator
from skbert._estimator.plan import TrainingPlan
from skbert._validation.answers import check_answers
from skbert._validation.entities import Entity, check_spans, check_tags, entities_of, split_tag
from skbert._validation.targets import as_sequence
from skbert._validation.texts import Texts
from skbert._validation.words import WordRows
from skbert.inspection._columns import Columns, Estimator, Predicts, checked_rows, open_columns
from skbert.inspection._fragments import Bar, Fragment, Mark, bars, legend, marked, note
from skbert.inspection._outcomes import Confidences, Outcomes, Uncoloured, name_of
from skbert.metrics import squad_em

__all__ = ["answers", "entities", "true_spans"]

_MOST_ANSWERS = 20  # of which predictions are the best; also the most there are
_SHOWN_ANSWERS = 5
_UNSEEN = -1  # the code of a tag that fit has not seen


@dataclass(frozen=True)
class _Entities:
    """Entities in texts, in characters."""

    columns: Columns
    estimator: Estimator
    X: object
    y: object
    labels: list[str]  # in the order of their colours
    known_labels: list[str]  # those that fit has seen
    predicted: list[list[Entity]]
    scores: list[float]  # the probability of each predicted entity, row by row
    true: list[list[Entity]] | None

    def shown(self, row: int) -> Fragment:
        text, true = self.columns.cells[0][row], self.truth(row)
        marks, notes = [], []
        for each in self.predicted[row]:
            problem = "" if true is None or each in true else " ✗"
            marks.append(self._mark(each, problem))
            if problem:
                notes.append(_correction(each, true or [], text))
        missed = [each for each in true or [] if not _overlapping(each, self.predicted[row])]
        marks += [self._mark(each, " missed", is_open=True) for each in missed]
        return Fragment.joined([marked(text, marks), *map(note, notes)])

    def _mark(self, entity: Entity, problem: str, *, is_open: bool = False) -> Mark:
        start, end, label = entity
        return Mark(start, end, label + problem, self.labels.index(label), is_open)

    def legend(self) -> Fragment:
        return legend(self.labels)

    def prediction(self, row: int) -> Any:
        return self.predicted[row]

    def truth(self, row: int) -> Any:
        return None if self.true is None else self.true[row]

    def is_right(self, row: int) -> bool | None:
        return None if self.true is None else {*self.true[row]} == {*self.predicted[row]}

    def chances(self) -> FloatArray:
        return np.exp(-self._losses)

    def losses(self) -> FloatArray:
        return self._losses

    def confidences(self) -> Confidences:
        pairs = zip(self.predicted, self.true or [], strict=True)
        rights = [each in true for predicted, true in pairs for each in predicted]
        return Confidences("the predicted entities", np.array(self.scores), rights)

    @cached_property
    def _losses(self) -> FloatArray:
        return _losses_of_tags(self.estimator, self.X, self.y)


def _overlapping(entity: Entity, others: Iterable[Entity]) -> list[Entity]:
    return [each for each in others if each[0] < entity[1] and entity[0] < each[1]]


def _correction(entity: Entity, true: list[Entity], text: str) -> str:
    """What is true in the place of an entity that is wrong."""
    instead = [f"{label} “{text[start:end]}”" for start, end, label in _overlapping(entity, true)]
    start, end, label = entity
    return f"✗ {label} “{text[start:end]}”: {' and '.join(instead) or 'no entity'} is true"


def entities(estimator: Estimator, X: object, y: object) -> Outcomes:
    """The outcomes of a tagger."""
    rows, scheme = checked_rows(estimator, X), estimator.scheme_
    in_words = isinstance(rows, WordRows)
    table = estimator.predict_spans(X)
    predicted = _by_row(table, len(rows), ["start", "end", "label"])
    true: list[list[Entity]] | None = None
    if in_words:
        texts = [" ".join(words) for words in rows.words]
        predicted = [*map(_in_characters, predicted, rows.words)]
        if y is not None:
            true = [*map(_in_characters, _true_tags(y, rows, scheme), rows.words)]
    else:
        texts, true = rows.first, None if y is None else true_spans(estimator, y, rows)
    tags = [tag for tag in np.asarray(estimator.classes_).tolist() if tag != "O"]
    known = sorted({tag if scheme is None else split_tag(tag)[1] for tag in tags})
    more = {label for row in [*predicted, *(true or [])] for _, _, label in row}
    labels = known + sorted(more - {*known})
    columns, scores = Columns([], [texts]), table["score"].tolist()
    return _Entities(columns, estimator, X, y, labels, known, predicted, scores, true)


def _by_row(table: pd.DataFrame, n_rows: int, columns: list[str]) -> list[list[Any]]:
    """The lines of a table that belong to each row of X, as tuples."""
    lines: list[list[Any]] = [[] for _ in range(n_rows)]
    for row, *line in table[["row", *columns]].itertuples(index=False):
        lines[cast("int", row)].append(tuple(line))
    return lines


def _true_tags(y: object, rows: WordRows, scheme: str | None) -> list[list[Entity]]:
    """The entities that true tags mean, in words; without a scheme each word is one."""
    tags = check_tags(y, [len(words) for words in rows.words])
    if scheme is not None:
        return [entities_of(row, place=f"row {at} of y") for at, row in enumerate(tags)]
    return [[(at, at + 1, tag) for at, tag in enumerate(row) if tag != "O"] for row in tags]


def true_spans(estimator: Estimator, y: object, rows: Texts) -> list[list[Entity]]:
    """The entities of y, with whole words as those that are predicted."""
    spans = check_spans(y, rows.first)
    widen = getattr(estimator, "_whole_words", None)
    return spans if widen is None else widen(spans, rows)


def _in_characters(spans: list[Entity], words: list[str]) -> list[Entity]:
    """Entities of words as places in the words joined by blanks."""
    starts = np.cumsum([0, *(len(word) + 1 for word in words)]).tolist()
    return [(starts[start], starts[end] - 1, label) for start, end, label in spans]


def _losses_of_tags(estimator: Estimator, X: object, y: object) -> FloatArray:
    """The loss of each row; infinite where a tag is true that fit has not seen."""
    rows, plan = checked_rows(estimator, X), _plan(estimator, X, y)
    old, new = estimator.classes_.tolist(), plan.attributes["classes_"].tolist()
    codes = np.array([old.index(tag) if tag in old else _UNSEEN for tag in new])
    items = _items_of(estimator, rows, plan.targets)
    targets = items.targets
    assert isinstance(targets, Ragged)
    values = np.where(targets.values < 0, targets.values, codes[targets.values.clip(0)])
    unseen = np.unique(items.samples.repeat(items.sizes)[values == _UNSEEN])
    items = replace(items, targets=Ragged(values, targets.starts))
    known = items.of_samples(np.setdiff1d(items.samples, unseen))
    losses = _losses_of(estimator, known, len(rows))
    losses[unseen] = np.inf
    return losses


def _plan(estimator: Predicts, X: object, y: object) -> TrainingPlan:
    """What a fit that goes on would learn from y."""
    assert isinstance(estimator, TrainedEstimator)
    fitted, rows = estimator._state(), checked_rows(estimator, X)
    most = fitted.task.max_length
    return estimator._prepare_targets(as_sequence(y), rows, most, fitted, None)


def _items_of(estimator: Predicts, rows: Texts, targets: object) -> Items:
    """The rows as the estimator learns them."""
    assert isinstance(estimator, TrainedEstimator)
    fitted = estimator._state()
    items: Items = fitted.task.encode(rows, targets, fitted.network.text_tokenizer)
    return items


def _losses_of(estimator: Predicts, items: Items, n_rows: int) -> FloatArray:
    """The loss of each row as in ``fit``, without dropout."""
    assert isinstance(estimator, TrainedEstimator)
    fitted = estimator._state()
    precision = estimator._move_to_device(fitted.network)
    return sample_losses(fitted.network, fitted.task, items, precision, n_rows)


class _Answer(NamedTuple):
    """One of the best answers of a row."""

    start: int
    end: int
    text: str
    score: float
    none: float  # the score of "no answer"


@dataclass(frozen=True)
class _Answers(Uncoloured):
    """Answers in their contexts."""

    columns: Columns  # question and context
    estimator: Predicts
    X: object
    y: object
    best: list[list[_Answer]]  # of each row, best first; empty where the context is
    predicted: list[str]
    spans: IntArray | None  # (n, 2): where the first right answer is, -1 for none
    true: list[list[str]] | None

    def shown(self, row: int) -> Fragment:
        names = self.columns.names or ["question", "context"]
        question, context = (column[row] for column in self.columns.cells)
        best = self.best[row]
        lines = [
            Bar(each.text, each.score, self._flags(row, each.text, is_best=rank == 0))
            for rank, each in enumerate(best[:_SHOWN_ANSWERS])
        ]
        lines += [
            Bar("(no answer)", each.none, self._flags(row, "", is_best=True)) for each in best[:1]
        ]
        return Fragment.joined([
            marked(question, name=names[0]),
            marked(context, self._marks(row), names[1]),
            bars(lines),
            *([] if self.is_right(row) is not False else [note(f"true: {self._right(row)}")]),
        ])  # fmt: skip

    def _flags(self, row: int, answer: str, *, is_best: bool) -> tuple[str, ...]:
        is_predicted = is_best and answer == self.predicted[row]
        is_true = self.true is not None and _agree(self.true[row], answer)
        return ("predicted",) * is_predicted + ("true",) * is_true

    def _marks(self, row: int) -> list[Mark]:
        """The answer, and the right one where they do not overlap."""
        places = [] if self.spans is None or self.is_right(row) else [self.spans[row].tolist()]
        true = [(start, end, "true") for start, end in places if start >= 0]
        label = "answer" + " ✗" * (self.is_right(row) is False)
        best = self.best[row][: bool(self.predicted[row])]
        predicted = [(each.start, each.end, label) for each in best]
        missed = [each for each in true if not _overlapping(each, predicted)]
        return [Mark(*each, 0) for each in predicted] + [Mark(*each, 1, True) for each in missed]

    def _right(self, row: int) -> str:
        return " or ".join(f"“{text}”" for text in (self.true or [])[row]) or "no answer"

    def prediction(self, row: int) -> Any:
        return self.predicted[row]

    def truth(self, row: int) -> Any:
        return None if self.true is None else self.true[row]

    def is_right(self, row: int) -> bool | None:
        return None if self.true is None else _agree(self.true[row], self.predicted[row])

    def chances(self) -> FloatArray:
        rows = zip(self.best, self.true or [], strict=True)
        return np.array([
            sum(each.score for each in best if _agree(true, each.text)) if true
            else best[0].none if best else 1.0
            for best, true in rows
        ])  # fmt: skip

    def losses(self) -> FloatArray:
        rows = checked_rows(self.estimator, self.X)
        targets = _plan(self.estimator, self.X, self.y).targets
        return _losses_of(self.estimator, _items_of(self.estimator, rows, targets), len(rows))

    def confidences(self) -> Confidences:
        pairs = zip(self.predicted, self.best, strict=True)
        chances = [
            best[0].score if answer else best[0].none if best else 1.0 for answer, best in pairs
        ]
        rights = [self.is_right(row) for row in range(len(chances))]
        return Confidences("the predicted answers", np.array(chances), rights)


def _agree(gold: list[str], answer: str) -> bool:
    return squad_em([gold or ""], [answer]) == 1


def answers(estimator: Estimator, X: object, y: object) -> Outcomes:
    """The outcomes of an estimator that finds answers."""
    columns = open_columns(estimator, X)
    table = estimator.predict_answers(X, _MOST_ANSWERS)
    names = ["start", "end", "answer", "score", "no_answer_score"]
    lines = _by_row(table, len(columns.cells[0]), names)
    best = [[_Answer(*line) for line in row] for row in lines]
    predicted = np.asarray(estimator.predict(X)).tolist()
    spans = true = None
    if y is not None:
        spans, true = check_answers(
            y, columns.cells[1], on_ambiguous="first", estimator_name=name_of(estimator)
        )
    return _Answers(columns, estimator, X, y, best, predicted, spans, true)
