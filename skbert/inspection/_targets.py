"""Which number is explained: a class's score, a word's tag, an answer and so on, by target.

Depends on ``_core``, on the types of checked input and on what estimators have learned; knows no
estimator by name, only the jobs of heads.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn import functional as F

from skbert._arrays import Array, FloatArray, IntArray
from skbert._core.attribution import Score
from skbert._core.items import Items
from skbert._core.text.tokens import Ragged
from skbert._estimator.base import TextEstimator
from skbert._estimator.fitted import Fitted
from skbert._validation.answers import check_answers
from skbert._validation.choices import check_picks
from skbert._validation.numbers import is_index
from skbert._validation.targets import as_sequence
from skbert.exceptions import InputError, InputTypeError

__all__ = ["Goals", "Question", "find_goals"]


@dataclass(frozen=True)
class Goals:
    """The number to explain in each row of X.

    The number is ``scale * score + shift``, and the score is computed from the outputs for the
    rows of tokens that are read.
    """

    targets: list[Any]  # as users name them
    token_rows: IntArray  # rows of tokens to read, those of a row of X next to each other
    scores: Sequence[Score]
    scale: float = 1.0
    shift: float = 0.0
    options: list[int] = field(default_factory=list)  # the option that is explained, if any


class Question(NamedTuple):
    """All that a target is looked up in."""

    estimator: TextEstimator
    fitted: Fitted
    rows: Any  # X, checked
    items: Items
    infer: Callable[[], Ragged]  # the outputs of each item

    @property
    def n_rows(self) -> int:
        """Rows of X."""
        return len(self.rows)

    @property
    def items_of(self) -> Ragged:
        """The items of each row of X."""
        return Ragged.of(np.arange(len(self.items)), np.bincount(self.items.samples))


def find_goals(question: Question, target: object) -> Goals:
    """The number to explain in each row of X."""
    job, attributes = question.fitted.network.head.job, question.fitted.attributes
    match job:
        case "sequence classification":
            return (_classes if "classes_" in attributes else _numbers)(question, target)
        case "token classification":
            return _tags(question, target)
        case "question answering":
            return _answers(question, target)
        case "multiple choice":
            return _options(question, target)
        case _:
            return _similarities(question, target)


def _for_each_row(target: object, n_rows: int) -> list[Any]:
    """One target for each row of X."""
    several: Any = as_sequence(target)
    if isinstance(several, (str, tuple)) or not isinstance(several, Iterable):
        return [target] * n_rows
    targets = [*several]
    if len(targets) != n_rows:
        raise InputError(
            f"target has {len(targets)} entries, but X has {n_rows} rows. Give a list with one "
            "target for each row, or one target for all."
        )
    return targets


# --- classes and numbers -------------------------------------------------------------------------


def _classes(question: Question, target: object) -> Goals:
    """Scores of classes, by default of the one with the highest; of texts in windows, too."""
    if isinstance(question.fitted.attributes["classes_"], list):
        raise InputTypeError(
            "The estimator predicts several columns of classes, and only one column can be "
            "explained. Fit an estimator for it: fit(X, y['name of the column'])."
        )
    classes = question.fitted.attributes["classes_"].tolist()
    if target is None:
        scores = question.fitted.task.decode(question.infer(), question.items)
        columns = scores.argmax(axis=1).tolist()
    else:
        known = {label: column for column, label in enumerate(classes)}
        targets = _for_each_row(target, question.n_rows)
        columns = [_column(known, label, row) for row, label in enumerate(targets)]
    is_multi_label = "thresholds_" in question.fitted.attributes
    score = _label_score if is_multi_label else _class_score
    names = [classes[column] for column in columns]
    scores = [partial(score, column=column) for column in columns]
    return Goals(names, np.arange(len(question.items)), scores)


def _column(known: dict[Any, int], label: object, row: int) -> int:
    """The output of a label."""
    try:
        column: int = known[label]
    except (KeyError, TypeError):
        raise InputError(
            f"target names {label!r:.80} for row {row}, but classes_ holds "
            f"{reprlib.repr([*known])}. Type target={next(iter(known))!r}, or None for what is "
            "predicted."
        ) from None
    return column


def _class_score(logits: torch.Tensor, column: int) -> torch.Tensor:
    """The logit of a class; for several windows the log of the mean probability."""
    if len(logits) == 1:
        return logits[0, column]
    return _log_mean(logits.log_softmax(dim=1)[:, column])


def _label_score(logits: torch.Tensor, column: int) -> torch.Tensor:
    """The logit of a label; for several windows that of the mean probability."""
    own = logits[:, column]
    return _log_mean(F.logsigmoid(own)) - _log_mean(F.logsigmoid(-own))


def _log_mean(logs: torch.Tensor) -> torch.Tensor:
    return logs.logsumexp(dim=0) - float(np.log(len(logs)))


def _numbers(question: Question, target: object) -> Goals:
    """Predicted numbers, by default the only one."""
    learned = question.fitted.attributes
    n_outputs = learned["n_outputs_"]
    wanted = 0 if target is None and n_outputs == 1 else target
    if not is_index(wanted, n_outputs):
        raise InputError(
            f"target={target!r:.80} is none of the outputs, which are 0 to {n_outputs - 1}. Say "
            "which to explain: type target=0 for the first."
        )
    column = int(wanted)

    def score(outputs: torch.Tensor) -> torch.Tensor:
        return outputs[:, column].mean()

    scale, shift = float(learned["scale_"][column]), float(learned["mean_"][column])
    every_row = np.arange(len(question.items))
    n_rows = question.n_rows
    return Goals([column] * n_rows, every_row, [score] * n_rows, scale, shift)


# --- tags of words -------------------------------------------------------------------------------


def _tags(question: Question, target: object) -> Goals:
    """Scores of tags of words; by default the surest word that has another tag than O."""
    tags = question.fitted.attributes["classes_"].tolist()
    known = {tag: column for column, tag in enumerate(tags)}
    wanted = _for_each_row(target, question.n_rows)
    is_asked = any(not isinstance(each, tuple) for each in wanted)
    decoded = None
    if is_asked:
        decoded = question.fitted.task.decode(question.infer(), question.items)
    assert question.items.places is not None
    places = question.items.places
    targets, rows, scores = [], [], []
    for row, each in enumerate(wanted):
        of_words = np.zeros((0, 0)) if decoded is None else decoded[row].logits
        items = question.items_of[row]
        words = np.concatenate([places[item][:, 0] for item in items])
        word, column = _word_and_tag(each, row, int(words.max(initial=-1)) + 1, of_words, known)
        item = next(item for item in items if word in places[item][:, 0])
        read = np.flatnonzero(places[item][:, 0] == word)
        targets.append((word, tags[column]))
        rows.append(item)
        scores.append(partial(_mean_at, tokens=read.tolist(), column=column))
    return Goals(targets, np.array(rows), scores)


def _word_and_tag(
    target: object, row: int, n_words: int, logits: FloatArray, known: dict[Any, int]
) -> tuple[int, int]:
    """The word that a target means, and the output of its tag."""
    if not n_words:
        raise InputError(
            f"Row {row} of X holds no word, so it has no tag to explain. Leave it out."
        )
    if target is None:
        return _surest(logits, known)
    word, tag = target if isinstance(target, tuple) and len(target) == 2 else (target, None)
    if not is_index(word, n_words):
        raise InputError(
            f"target={target!r:.80} names no word of row {row}, which has the words 0 to "
            f"{n_words - 1}. Type target=(0, {next(iter(known))!r}) for a tag of its first word, "
            "or target=0 for the most probable one."
        )
    if tag is None:
        return int(word), int(logits[int(word)].argmax())
    return int(word), _column(known, tag, row)


def _surest(logits: FloatArray, known: dict[Any, int]) -> tuple[int, int]:
    """The word whose tag is most probable, of those with another tag than O if there are some."""
    margins = logits.max(axis=1) - np.logaddexp.reduce(logits, axis=1)
    is_outside = logits.argmax(axis=1) == known.get("O", -1)
    if not is_outside.all():
        margins = np.where(is_outside, -np.inf, margins)
    word = int(margins.argmax())
    return word, int(logits[word].argmax())


def _mean_at(logits: torch.Tensor, tokens: list[int], column: int) -> torch.Tensor:
    return logits[tokens, column].mean()


# --- answers -------------------------------------------------------------------------------------


def _answers(question: Question, target: object) -> Goals:
    """Start score plus end score of answers, by default of those that are predicted."""
    contexts, outputs = question.rows.second, question.infer()
    if target is None:
        threshold = question.fitted.attributes["no_answer_threshold_"]
        ranked = question.fitted.task.decode(outputs, question.items)
        spans = [
            each.spans[0].tolist()
            if len(each.scores) and each.null - each.scores[0] <= threshold
            else [-1, -1]
            for each in ranked
        ]
    else:
        kind = type(question.estimator).__name__
        wanted = _for_each_row(target, question.n_rows)
        spans = check_answers(wanted, contexts, estimator_name=kind).spans.tolist()
    targets, rows, scores = [], [], []
    for row, (begin, end) in enumerate(spans):
        item, first, last = _in_window(question, outputs, row, begin, end)
        targets.append(contexts[row][begin:end] if begin >= 0 else "")
        rows.append(item)
        scores.append(partial(_start_and_end, first=first, last=last))
    return Goals(targets, np.array(rows), scores)


def _in_window(
    question: Question, outputs: Ragged, row: int, begin: int, end: int
) -> tuple[int, int, int]:
    """The window in which an answer, or none, counts, and its first and last token there."""
    places, items = question.items.places, question.items_of[row].tolist()
    assert places is not None
    if begin < 0:
        return min(items, key=lambda item: float(outputs[item][0].sum())), 0, 0
    found = []
    for item in items:
        start_of, end_of = places[item].T
        tokens = np.flatnonzero((start_of < end_of) & (start_of < end) & (end_of > begin))
        if len(tokens):
            first, last = int(tokens[0]), int(tokens[-1])
            covered = min(end, end_of[last]) - max(begin, start_of[first])
            score = float(outputs[item][first, 0] + outputs[item][last, 1])
            found.append((covered, score, item, first, last))
    if not found:
        raise InputError(
            f"target names an answer in row {row} that the tokenizer drops. Give one with "
            "something to read in it, or '' for no answer."
        )
    *_, item, first, last = max(found)
    return item, first, last


def _start_and_end(logits: torch.Tensor, first: int, last: int) -> torch.Tensor:
    return logits[first, 0] + logits[last, 1]


# --- options -------------------------------------------------------------------------------------


def _options(question: Question, target: object) -> Goals:
    """Scores of options, by default of those that are predicted."""
    rows = question.rows
    if target is None:
        decoded = question.fitted.task.decode(question.infer(), question.items)
        numbers = [int(each.argmax()) for each in decoded]
    else:
        wanted = _for_each_row(target, question.n_rows)
        picks = check_picks(wanted, rows, estimator_name=type(question.estimator).__name__)
        pairs = zip(rows.places, picks.tolist(), strict=True)
        numbers = [[*places.values()].index(pick) for places, pick in pairs]
    targets = [[*places][number] for places, number in zip(rows.places, numbers, strict=True)]
    token_rows = question.items.rows[:-1] + np.array(numbers)
    return Goals(targets, token_rows, [_only] * len(rows), options=numbers)


def _only(logits: torch.Tensor) -> torch.Tensor:
    return logits[0, 0]


# --- similarities --------------------------------------------------------------------------------


def _similarities(question: Question, target: object) -> Goals:
    """Cosine similarities to targets, which are texts or vectors."""
    vectors = _vectors(question, target)
    learned, network = question.fitted.attributes, question.fitted.network

    def send(values: Array) -> torch.Tensor:
        return torch.as_tensor(np.array(values), dtype=network.dtype, device=network.device)

    pca = [send(learned[name]) for name in ("mean_", "components_") if name in learned]
    scores = [partial(_similarity, pca=pca, vector=send(vector)) for vector in vectors]
    given = _compared(target, question.n_rows)
    return Goals(given, np.arange(len(question.items)), scores)


def _similarity(
    outputs: torch.Tensor, pca: Sequence[torch.Tensor], vector: torch.Tensor
) -> torch.Tensor:
    """The cosine similarity of a text, read in windows, with a vector."""
    own = outputs.mean(dim=0)
    if pca:
        mean, components = (each.to(own) for each in pca)
        own = components @ (own - mean)
    return F.cosine_similarity(own, vector.to(own), dim=0)


def _vectors(question: Question, target: object) -> FloatArray:
    """The vector that each row of X is compared with."""
    if target is None:
        raise InputError(
            "A transformer has no prediction to explain. Give target, a text (or a vector) with "
            "which all rows of X are compared, or a list with one for each row."
        )
    estimator: Any = question.estimator
    targets = _compared(target, question.n_rows)
    if all(isinstance(each, (str, tuple)) for each in targets):
        return np.asarray(estimator.transform(targets))
    width = len(estimator.get_feature_names_out())
    try:
        vectors: FloatArray = np.asarray(targets, float)
    except (TypeError, ValueError) as error:
        raise InputTypeError(
            "target holds neither texts nor vectors of numbers. Give a list with one text, or one "
            "row of transform(texts), for each row of X."
        ) from error
    if vectors.shape != (question.n_rows, width):
        raise InputError(
            f"target has the shape {vectors.shape}, but vectors for X would have the shape "
            f"({question.n_rows}, {width}). Give what transform returns."
        )
    if not (has_direction := np.isfinite(vectors).all(axis=1) & vectors.any(axis=1)).all():
        raise InputError(
            f"The vector of target for row {int(has_direction.argmin())} is zero or not finite, "
            "so that no text is similar to it. Give what transform returns."
        )
    return vectors


def _compared(target: object, n_rows: int) -> list[Any]:
    """What each row of X is compared with; a vector of numbers is one for all."""
    several: Any = as_sequence(target)
    is_vector = isinstance(several, Iterable) and all(isinstance(x, Real) for x in several)
    return [several] * n_rows if is_vector else _for_each_row(target, n_rows)
