"""What the metrics compare in a row: entities, answers, ranks; and the mean over rows.

Depends on numpy, `skbert._validation` and `skbert.exceptions`; knows neither torch nor pandas.
"""

from __future__ import annotations

import re
import reprlib
import string
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from numbers import Integral
from typing import Any

import numpy as np

from skbert._validation.answers import is_placed, is_whole_number, one_per_row
from skbert._validation.choices import check_choices, check_picks
from skbert._validation.entities import Entity, check_scheme, entities_of
from skbert._validation.tables import ROW_TYPES
from skbert._validation.weights import check_sample_weight
from skbert.exceptions import InputError, InputTypeError

__all__ = ["count_entities", "hits", "mean", "mean_of_best", "overlap", "picks", "ranks", "rates"]

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def _both(y_true: Any, other: Any, name: str = "y_pred") -> tuple[list[Any], list[Any]]:
    """Return two columns of the same length as lists, whatever containers they came in."""
    true, others = _rows(y_true, "y_true"), _rows(other, name)
    if len(true) != len(others):
        msg = (
            f"Found input variables with inconsistent numbers of samples: [{len(true)}, "
            f"{len(others)}]. y_true and {name} must hold one entry for each of the same rows."
        )
        raise InputError(msg)
    if not true:
        msg = "y_true has no rows, so there is nothing to score. Give at least one row."
        raise InputError(msg)
    return true, others


def mean(values: Any, sample_weight: Any) -> float:
    """Return the mean of one value per row."""
    return float(np.average(values, weights=check_sample_weight(sample_weight, len(values))))


def _rows(values: Any, name: str) -> list[Any]:
    """Return the rows of any container as a new list."""
    if isinstance(values, (str, bytes, Mapping, set)) or not hasattr(values, "__len__"):
        raise _odd_cell(values, name, "a list with one entry per row")
    return one_per_row(values, name)


def _odd_cell(cell: object, place: str, expected: str) -> InputTypeError:
    """Return the error for a cell of the wrong type."""
    return InputTypeError(
        f"{place} is {reprlib.repr(cell)}, of type {type(cell).__name__}, but must be {expected}."
    )


# --- entities ------------------------------------------------------------------------------------


def count_entities(
    y_true: Any, y_pred: Any, scheme: str | None, sample_weight: Any
) -> dict[str, np.ndarray]:
    """Return per type, sorted, the weights of the correct, the predicted and the true entities."""
    check_scheme(scheme)
    true, pred = _both(y_true, y_pred)
    weights = check_sample_weight(sample_weight, len(true))
    read = _read_tags if _are_tags(true, pred) else _read_entities
    counts: dict[str, np.ndarray] = defaultdict(lambda: np.zeros(3))
    for row, cells in enumerate(zip(true, pred, strict=True)):
        gold, predicted = read(cells, row, scheme)
        for column, entities in enumerate((gold & predicted, predicted, gold)):
            for _, _, label in entities:
                counts[label][column] += 1.0 if weights is None else weights[row]
    return dict(sorted(counts.items()))


def rates(right: float, predicted: float, gold: float) -> tuple[float, float, float]:
    """Return precision, recall and F1, each 0 if its denominator is 0."""
    f1 = 2 * right / (predicted + gold) if predicted + gold else 0.0
    return right / predicted if predicted else 0.0, right / gold if gold else 0.0, float(f1)


def _are_tags(true: list[Any], pred: list[Any]) -> bool:
    """Return whether rows hold tags, not entities; raise for a row that is not a list."""
    kinds = []
    for name, rows in (("y_true", true), ("y_pred", pred)):
        for row, cell in enumerate(rows):
            if not isinstance(cell, ROW_TYPES):
                wanted = "a list of tags, one str per word, or of (start, end, type)"
                raise _odd_cell(cell, f"row {row} of {name}", wanted)
            if len(cell):
                kinds.append(isinstance(cell[0], str))
    return not kinds or kinds[0]


def _read_tags(
    cells: tuple[Any, Any], row: int, scheme: str | None
) -> tuple[set[Entity], set[Entity]]:
    """Return the true and the predicted entities of a row of tags."""
    true, pred = cells
    if len(true) != len(pred):
        msg = (
            f"Row {row} has {len(true)} tags in y_true and {len(pred)} in y_pred. Give one tag "
            "per word on both sides."
        )
        raise InputError(msg)
    return (
        {*entities_of(true, scheme, place=f"row {row} of y_true")},
        {*entities_of(pred, scheme, place=f"row {row} of y_pred")},
    )


def _read_entities(
    cells: tuple[Any, Any], row: int, scheme: str | None
) -> tuple[set[Entity], set[Entity]]:
    """Return the true and the predicted entities of a row of ``(start, end, type)``."""
    if scheme is not None:
        msg = (
            f"scheme={scheme!r} says how tags are read, but row {row} holds entities. Type "
            "scheme=None."
        )
        raise InputError(msg)
    return (
        {_entity(cell, f"row {row} of y_true") for cell in cells[0]},
        {_entity(cell, f"row {row} of y_pred") for cell in cells[1]},
    )


def _entity(cell: Any, place: str) -> Entity:
    """Return one entity as a tuple that can be compared."""
    if isinstance(cell, ROW_TYPES) and len(cell) == 3 and isinstance(cell[2], str):
        start, end, label = cell
        if isinstance(start, Integral) and isinstance(end, Integral):
            return int(start), int(end), label
    raise _odd_cell(cell, f"an entity in {place}", "(start, end, type), such as (0, 11, 'PER')")


# --- answers -------------------------------------------------------------------------------------


def mean_of_best(
    score: Callable[[str, str], float], y_true: Any, y_pred: Any, sample_weight: Any
) -> float:
    """Return the mean over rows of the best score that a prediction has with a right answer."""
    true, pred = _both(y_true, y_pred)
    values = []
    for row, (gold, guess) in enumerate(zip(true, pred, strict=True)):
        if not isinstance(guess, str):
            raise _odd_cell(guess, f"row {row} of y_pred", "an answer (str), '' for none")
        normalised = _normalised(guess)
        values.append(max(score(answer, normalised) for answer in _answers(gold, row)))
    return mean(values, sample_weight)


def overlap(gold: str, guess: str) -> float:
    """Return the F1 of two bags of words; two empty ones agree."""
    gold_words, words = gold.split(), guess.split()
    if not gold_words or not words:
        return float(gold_words == words)
    right = (Counter(gold_words) & Counter(words)).total()
    return rates(right, len(words), len(gold_words))[2]


def _normalised(text: str) -> str:
    """Return what SQuAD's scores compare: no case, ASCII punctuation, articles or spare blanks."""
    text = text.lower().translate(_NO_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", text).split())


def _answers(gold: Any, row: int) -> list[str]:
    """Return the right answers of a row, normalised; ``[""]`` where there is none."""
    cells = [gold] if isinstance(gold, str) or is_placed(gold) else gold
    if not isinstance(cells, ROW_TYPES):
        wanted = "an answer (str), (answer, start), or a list of these, '' for none"
        raise _odd_cell(gold, f"row {row} of y_true", wanted)
    texts = [_normalised(_text_of(cell, row)) for cell in cells]
    return list(filter(None, texts)) or [""]


def _text_of(cell: object, row: int) -> str:
    """Return one right answer without its place."""
    text = cell[0] if is_placed(cell) else cell
    if not isinstance(text, str):
        raise _odd_cell(text, f"an answer in row {row} of y_true", "a str or (str, start)")
    return text


# --- choices -------------------------------------------------------------------------------------


def hits(y_true: Any, y_pred: Any) -> np.ndarray:
    """Return per row whether the right option was chosen."""
    true, pred = _both(y_true, y_pred)
    is_right = np.zeros(len(true), dtype=bool)
    for row, (gold, guess) in enumerate(zip(true, pred, strict=True)):
        for cell, name in ((gold, "y_true"), (guess, "y_pred")):
            if not isinstance(cell, str) and not is_whole_number(cell):
                wanted = "the position (int) of an option, or its text (str)"
                raise _odd_cell(cell, f"row {row} of {name}", wanted)
        if isinstance(gold, str) != isinstance(guess, str):
            msg = (
                f"Row {row} has {gold!r} in y_true and {guess!r} in y_pred, which cannot be "
                "compared. Give positions on both sides; a text has the position "
                "options.index(text)."
            )
            raise InputTypeError(msg)
        is_right[row] = gold == guess
    return is_right


def picks(y: Any, X: Any, columns: Any) -> Any:
    """Return positions of the right options if X holds questions with options, else y itself."""
    try:
        choices = check_choices(X, columns=columns, missing="empty")
    except InputError:
        return y
    return check_picks(y, choices)


def ranks(y_true: Any, y_score: Any) -> np.ndarray:
    """Return per row how many options have at least the score of the right one."""
    if hasattr(y_score, "columns"):
        y_score = y_score.to_numpy()  # a frame, with a column for each option
    if isinstance(y_score, np.ndarray) and y_score.ndim == 2 and (y_score < 0).any():
        row = int(np.argmax((y_score < 0).any(axis=1)))
        msg = (
            f"Row {row} of y_score has a negative score, so 0 cannot stand for an option that is "
            "not there. Give probabilities, or a list with one list of scores per row."
        )
        raise InputError(msg)
    true, scores = _both(y_true, y_score, "y_score")
    pairs = enumerate(zip(true, scores, strict=True))
    return np.array([_rank(gold, numbers, row) for row, (gold, numbers) in pairs])


def _rank(gold: Any, scores: Any, row: int) -> int:
    """Return how many options have at least the score of the right one."""
    if not is_whole_number(gold):
        raise _odd_cell(gold, f"row {row} of y_true", "the position (int) of the right option")
    try:
        numbers = np.asarray(scores, dtype=float)
    except (TypeError, ValueError):
        raise _odd_cell(scores, f"row {row} of y_score", "a list of numbers") from None
    if numbers.ndim != 1:
        raise _odd_cell(scores, f"row {row} of y_score", "a list of numbers")
    gold = int(gold)
    if not 0 <= gold < len(numbers):
        msg = (
            f"Row {row} of y_true is {gold}, but row {row} of y_score has {len(numbers)} "
            "option(s). Positions count from 0."
        )
        raise InputError(msg)
    if np.isnan(numbers).any():
        msg = f"Row {row} of y_score holds NaN. Give every option a number."
        raise InputError(msg)
    return int((numbers >= numbers[gold]).sum())
