"""CountsDisplay: how many entities of each type, or answers of each length, are predicted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self, cast

import numpy as np
import pandas as pd
from sklearn.base import is_classifier
from sklearn.utils.validation import check_is_fitted

from skbert._arrays import IntArray
from skbert._validation.answers import is_placed, one_per_row
from skbert._validation.tables import ROW_TYPES
from skbert._validation.targets import as_sequence
from skbert._validation.words import WordRows
from skbert.exceptions import InputTypeError
from skbert.inspection._columns import Estimator, Predicts, checked_rows
from skbert.inspection._displays.drawing import COLOURS, Display, legend_beside, name_ticks
from skbert.inspection._places import true_spans
from skbert.inspection._views import judged
from skbert.metrics import squad_em
from skbert.metrics._rows import count_entities

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["CountsDisplay"]

_LENGTHS = ("no answer", "1 word", "2 to 3 words", "4 to 7 words", "8 words or more")
_FROM = (1, 2, 4, 8)  # words from which on an answer has the next of these lengths
_MOST_DRAWN = 30
_COLUMNS = ("true", "predicted", "correct")


class CountsDisplay(Display):
    """Numbers of true, predicted and correct entities of each type, or answers of each length.

    Use `from_estimator` or `from_predictions` to draw one. Of more than 30 types the most frequent
    ones are drawn.

    Parameters
    ----------
    counts : DataFrame
        One row per type or length, with the columns ``true``, ``predicted`` and ``correct``.
    unit : str, default="entities"
        What is counted.

    Attributes
    ----------
    counts : DataFrame
        What is drawn. An entity is correct if its start, end and type are right, as in
        `skbert.metrics.entity_f1`. An answer is correct if it equals a right one, as in
        `skbert.metrics.squad_em`; it is counted by its own length.
    unit : str
        What is counted: ``"entities"`` or ``"answers"``.
    ax_ : matplotlib Axes
        The axes.
    figure_ : matplotlib Figure
        The figure.

    See Also
    --------
    skbert.metrics.entity_report : Precision, recall and F1 of each type.

    Examples
    --------
    >>> from skbert.inspection import CountsDisplay
    >>> y_true = [["B-PER", "I-PER", "O", "B-LOC"], ["B-LOC"]]
    >>> y_pred = [["B-PER", "I-PER", "O", "O"], ["B-LOC"]]
    >>> CountsDisplay.from_predictions(y_true, y_pred).counts
         true  predicted  correct
    LOC     2          1        1
    PER     1          1        1
    >>> CountsDisplay.from_predictions(["ten euros", ""], ["ten", ""]).counts
                     true  predicted  correct
    no answer           1          1        1
    1 word              0          1        0
    2 to 3 words        1          0        0
    4 to 7 words        0          0        0
    8 words or more     0          0        0
    """

    def __init__(self, counts: pd.DataFrame, *, unit: str = "entities") -> None:
        self.counts = counts
        self.unit = unit

    @classmethod
    def from_estimator(
        cls, estimator: object, X: object, y: object, *, ax: Axes | None = None
    ) -> Self:
        """Draw the counts of a fitted tagger or span extractor.

        Parameters
        ----------
        estimator : estimator
            A fitted estimator that predicts tags, entities or answers.
        X : array-like
            Rows in the same form as in ``predict``.
        y : array-like of shape (n_samples,)
            Their true tags, entities or answers.
        ax : matplotlib Axes, default=None
            Where to draw. None makes a new figure.

        Returns
        -------
        display : CountsDisplay
            The display, drawn.

        Raises
        ------
        InputError, InputTypeError
            If the estimator predicts something else, or X or y cannot be used.
        sklearn.exceptions.NotFittedError
            If the estimator is not fitted.
        """
        cls._require_matplotlib()
        check_is_fitted(estimator)
        if not hasattr(estimator, "predict") or is_classifier(estimator):
            raise InputTypeError(
                f"A {type(estimator).__name__} predicts no tags, entities or answers. Give a "
                "BertTokenTagger or a BertSpanExtractor; for classes use ConfusionDisplay."
            )
        judge, _ = judged(cast("Estimator", estimator), X, y)
        predicted = judge.predict(X)
        return cls.from_predictions(_as_learned(judge, X, y), predicted, ax=ax)

    @classmethod
    def from_predictions(cls, y_true: object, y_pred: object, *, ax: Axes | None = None) -> Self:
        """Draw the counts of predictions.

        Parameters
        ----------
        y_true, y_pred : sequence of n rows
            The true and the predicted tags or entities, in the forms of
            `skbert.metrics.entity_f1`; or answers, in the forms of `skbert.metrics.squad_f1`.
        ax : matplotlib Axes, default=None
            Where to draw. None makes a new figure.

        Returns
        -------
        display : CountsDisplay
            The display, drawn.

        Raises
        ------
        InputError, InputTypeError
            If a row holds something else, or y_true and y_pred differ in length.
        """
        cls._require_matplotlib()
        predicted = one_per_row(as_sequence(y_pred), "y_pred")
        if predicted and isinstance(predicted[0], str):
            return cls(_answer_counts(as_sequence(y_true), predicted), unit="answers").plot(ax)
        table = count_entities(as_sequence(y_true), predicted, None, None)
        types = pd.Index([*table], dtype=object)  # pandas' own type has no lone surrogates
        numbers = np.array([*table.values()], int).reshape(-1, 3)[:, ::-1]
        return cls(pd.DataFrame(numbers, types, [*_COLUMNS])).plot(ax)

    def _size(self) -> tuple[float, float]:
        return 7.4, min(1.8 + 0.5 * len(self.counts), 11.0)

    def _draw(self, ax: Axes) -> None:
        order = np.argsort(-self.counts["true"].to_numpy(), kind="stable")
        drawn = self.counts.iloc[np.sort(order[:_MOST_DRAWN])]
        n = len(drawn)
        some = (
            "" if n == len(self.counts) else f": the {n} most frequent of {len(self.counts)} types"
        )
        looks = zip(_COLUMNS, COLOURS, ("", "//", ".."), strict=False)
        for place, (name, colour, hatch) in enumerate(looks):
            ax.barh(
                np.arange(n) + 0.27 * (place - 1), drawn[name], 0.27, label=name,
                color=colour, hatch=hatch, edgecolor="white", linewidth=0.5,
            )  # fmt: skip
        ax.set_ylim(n - 0.5, -0.5)
        name_ticks(ax.yaxis, drawn.index.tolist())
        ax.locator_params(axis="x", integer=True)
        ax.set(xlabel=f"number of {self.unit}", title=f"Numbers of {self.unit}{some}")
        legend_beside(ax)


def _as_learned(estimator: Predicts, X: object, y: object) -> object:
    """The spans of texts with whole words, as they are predicted; anything else as it is."""
    if not hasattr(estimator, "_whole_words"):
        return y
    rows = checked_rows(estimator, X)
    return y if isinstance(rows, WordRows) else true_spans(cast("Estimator", estimator), y, rows)


def _answer_counts(y_true: object, predicted: list[str]) -> pd.DataFrame:
    """Numbers of true, predicted and correct answers by their length in words."""
    squad_em(y_true, predicted)  # says what is wrong with y, and in which row
    gold = one_per_row(y_true, "y_true")
    hits = [squad_em([right], [guess]) for right, guess in zip(gold, predicted, strict=True)]
    true, found = _lengths([*map(_first_answer, gold)]), _lengths(predicted)
    columns = {
        "true": np.bincount(true, minlength=5),
        "predicted": np.bincount(found, minlength=5),
        "correct": np.bincount(found, hits, 5).astype(int),
    }
    return pd.DataFrame(columns, index=[*_LENGTHS])


def _lengths(answers: list[str]) -> IntArray:
    """For each answer the position of its length in ``_LENGTHS``."""
    return np.digitize([len(each.split()) for each in answers], _FROM)


def _first_answer(cell: object) -> str:
    """The first right answer of a row, without its place; ``""`` where there is none."""
    if isinstance(cell, str):
        return cell
    if is_placed(cell):
        return str(cell[0])
    assert isinstance(cell, ROW_TYPES)
    return next(map(_first_answer, cell), "")
