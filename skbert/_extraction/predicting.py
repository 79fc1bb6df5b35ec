"""What a span extractor predicts, in the form that users get it.

Depends on the task and on what all that predicts shares; needs neither torch nor scikit-learn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from skbert._arrays import Array, objects
from skbert._estimator.checks import is_number
from skbert._estimator.conformity import level_of
from skbert._estimator.fitted import Learned
from skbert._estimator.predicting import Known, PredictsSets
from skbert._extraction.task import (
    MAX_ANSWERS,
    OUT_OF_REACH,
    Answers,
    answer_set,
    best_texts,
    probabilities,
)
from skbert._validation.answers import warn_if_swapped
from skbert._validation.columns import FitRecord
from skbert._validation.numbers import check_count
from skbert._validation.texts import Texts
from skbert.exceptions import InputError

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["PAIRS", "PredictsAnswers"]

PAIRS = "X must hold a question and a context per row; type list(zip(questions, contexts))."


class PredictsAnswers(PredictsSets):
    """What predicts answers: a fitted extractor, or an exported one."""

    _tasks: ClassVar[tuple[type, ...]] = (Answers,)
    no_answer_threshold_ = Learned[float](is_number)

    def predict(self, X: Any) -> Array:
        """Predict the answer to each question, a part of its context.

        Parameters
        ----------
        X : array-like of str of shape (n_samples, 2)
            A question and a context per row.

        Returns
        -------
        answers : ndarray of shape (n_samples,), of str
            The best answers, exact parts of the contexts; ``""`` if "no answer" is better by more
            than ``no_answer_threshold_``, or if a context is empty.
        """
        fitted = self._state()
        return self._answers(fitted, self._rows(X, fitted.record))

    def predict_answers(self, X: Any, n_best: int = 5) -> pd.DataFrame:
        """Predict several answers to each question, with their positions and probabilities.

        Parameters
        ----------
        X : array-like of str of shape (n_samples, 2)
            A question and a context per row.
        n_best : int, default=5
            Number of answers per question, at most 20. There are fewer if a context has fewer
            spans, and none if it is empty.

        Returns
        -------
        answers : DataFrame
            ``row`` of X, counted from 0, ``rank`` from 1, ``answer``, its ``start`` and ``end`` in
            characters of the context, ``score`` and ``no_answer_score``. The scores are
            probabilities among the 20 best answers of a row and "no answer", the softmax of the
            logits; "no answer" has 0 if ``""`` is never predicted. ``no_answer_threshold_`` is
            compared with the log of ``no_answer_score / score`` at rank 1.

        Raises
        ------
        InputError, InputTypeError
            If ``n_best`` is no int from 1 to 20.
        """
        import pandas as pd

        check_count(n_best, "n_best", 5, most=MAX_ANSWERS)
        fitted = self._state()
        texts: Any = self._rows(X, fitted.record)
        threshold = fitted.attributes["no_answer_threshold_"]
        lines: list[tuple[Any, ...]] = []
        for row, ranked in enumerate(self._outputs(fitted, texts)):
            *chances, none = probabilities(ranked, with_none=threshold < np.inf).tolist()
            for rank, (begin, end) in enumerate(ranked.spans[:n_best].tolist(), start=1):
                answer = texts.second[row][begin:end]
                lines.append((row, rank, answer, begin, end, chances[rank - 1], none))
        names = ["row", "rank", "answer", "start", "end", "score", "no_answer_score"]
        return pd.DataFrame(lines, columns=names)

    def predict_set(self, X: object, coverage: float = 0.95) -> Array:
        """Predict for each question the answers that hold a right one as often as asked.

        Parameters
        ----------
        X : array-like of str of shape (n_samples, 2)
            A question and a context per row.
        coverage : float, default=0.95
            Share of rows whose set holds a right answer, in (0, 1).

        Returns
        -------
        sets : ndarray of shape (n_samples,)
            One list of answers per row, the most probable first; ``""`` stands for no answer. A
            list is empty where no answer is probable enough.

        Raises
        ------
        InputError, InputTypeError
            If X or ``coverage`` cannot be used, no row was held out in ``fit``, or too few for
            this coverage; or if so many rows held out have no right answer among the 20 best that
            no set can have it.

        See Also
        --------
        BertClassifier.predict_set : What such sets promise, and for which rows.

        Notes
        -----
        Probabilities are those among the 20 best answers of a row and "no answer", whatever
        ``no_answer_threshold_`` is; an answer is right if ``skbert.metrics.squad_em`` says so.
        """
        fitted = self._state()
        level = level_of(fitted.attributes, coverage)
        if level == OUT_OF_REACH:
            scores = fitted.attributes["conformity_scores_"]
            most = float((scores < OUT_OF_REACH).mean())
            raise InputError(
                f"coverage={coverage} cannot be reached: only {most:.1%} of the rows that were "
                f"not trained on have a right answer among the {MAX_ANSWERS} best. Ask for less, "
                "or train more."
            )
        texts: Any = self._rows(X, fitted.record)
        return objects([
            answer_set(ranked, context, level)
            for ranked, context in zip(self._outputs(fitted, texts), texts.second, strict=True)
        ])  # fmt: skip

    def _answers(self, fitted: Known, texts: Any) -> Array:
        """The predicted answers to questions."""
        threshold = fitted.attributes["no_answer_threshold_"]
        return best_texts(self._outputs(fitted, texts), texts.second, threshold)

    def _rows(self, X: Any, record: FitRecord | None) -> Texts:
        texts: Texts = super()._rows(X, record)
        if texts.fields:
            raise InputError(
                f"text_columns={self.text_columns!r} makes fields of one text, but answers are "
                "looked for in a context, with a question. Choose two columns: type "
                "text_columns=['question', 'context']."
            )
        if texts.second is None:
            raise InputError(f"X holds one text per row. {PAIRS}")
        names = texts.names if self.text_columns is None and texts.names else ()
        if [name.lower() for name in names] == ["context", "question"]:
            raise InputError(
                f"X has the columns {names[0]!r} and {names[1]!r} in this order, but the question "
                f"comes first. Type X[[{names[1]!r}, {names[0]!r}]]."
            )
        warn_if_swapped(texts.first, texts.second)
        return texts
