"""What a tagger predicts, in the form that users get it.

Depends on `decoding` and on what all that predicts shares; needs neither torch nor scikit-learn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from skbert._arrays import Array, objects
from skbert._core.scores import softmax
from skbert._estimator.checks import are_classes, are_weights, is_one_of
from skbert._estimator.conformity import level_of
from skbert._estimator.fitted import Learned
from skbert._estimator.predicting import Known, PredictsSets
from skbert._tagging.decoding import decoded, entity_table, tag_sets
from skbert._tagging.schemes import Chain
from skbert._tagging.task import WordTags
from skbert._validation.columns import FitRecord
from skbert._validation.entities import SCHEMES
from skbert._validation.texts import Texts
from skbert._validation.words import WordRows, check_words

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["PredictsTags"]


class PredictsTags(PredictsSets):
    """What predicts tags: a fitted tagger, or an exported one."""

    _tasks: ClassVar[tuple[type, ...]] = (WordTags,)
    decoding: str

    classes_ = Learned[Array](are_classes, "n_outputs")
    scheme_ = Learned[str | None](is_one_of(None, *SCHEMES))
    learned_scheme_ = Learned[str | None](is_one_of(None, *SCHEMES))
    conformity_weights_ = Learned[Array](
        are_weights, "n_scores", optional=True, needs=("conformity_scores_",), of_weights=True
    )

    def predict(self, X: Any) -> Array:
        """Predict a tag for each word; for texts, the spans of the entities.

        Parameters
        ----------
        X : array-like of lists of str, or of str, of shape (n_samples,)
            The words of each row, or one text per row.

        Returns
        -------
        y : ndarray of shape (n_samples,)
            One list per row: for words, a tag for each; for texts, ``(start, end, label)`` for
            each entity, in characters of the original text.
        """
        fitted = self._state()
        rows = self._rows(X, fitted.record)
        return objects(self._tags(fitted, rows, self._outputs(fitted, rows)))

    def predict_proba(self, X: Any) -> Array:
        """Predict the probability of each tag for each word, regardless of neighbouring tags.

        Parameters
        ----------
        X : array-like of lists of str, or of str, of shape (n_samples,)
            The words of each row, or one text per row.

        Returns
        -------
        probabilities : ndarray of shape (n_samples,)
            An array of shape (n_words, n_tags) for each row, with columns in the order of
            ``classes_``; float32, or float64 with ``precision="float64"``. The words of a text are
            those into which the tokenizer splits it, each punctuation mark one of its own unless a
            piece holds it together with what is beside it.
        """
        fitted = self._state()
        scored = self._outputs(fitted, self._rows(X, fitted.record))
        return objects([softmax(row.logits, axis=1) for row in scored])

    def predict_set(self, X: object, coverage: float = 0.95) -> Array:
        """Predict for each word the tags that hold the right one as often as asked.

        Parameters
        ----------
        X : array-like of lists of str, or of str, of shape (n_samples,)
            The words of each row, or one text per row.
        coverage : float, default=0.95
            Expected share of the words of a row whose set holds their tag, in (0, 1).

        Returns
        -------
        sets : ndarray of shape (n_samples,)
            For each row a list with one list of tags per word, the most probable first, of those
            in ``classes_``. The words of a text are those of ``predict_proba``. A word's list is
            empty where no tag is probable enough.

        Raises
        ------
        InputError, InputTypeError
            If X or ``coverage`` cannot be used, no row was held out in ``fit``, or too few for
            this coverage.

        See Also
        --------
        BertClassifier.predict_set : What such sets promise, and for which rows.

        Notes
        -----
        The words of a row depend on each other, so it is rows, not words, that are like those held
        out. The promise is one about rows, too: the share of words whose set holds their tag,
        computed for each row, is on average at least ``coverage``, by conformal risk control [1]_.
        In a short row a word counts more than in a long one, and a single row may be far from the
        average. Sets disregard ``decoding``: a tag may be in one that no allowed sequence has
        there.

        References
        ----------
        .. [1] A. N. Angelopoulos, S. Bates, A. Fisch, L. Lei and T. Schuster, "Conformal Risk
               Control", ICLR 2024
        """
        fitted = self._state()
        level = level_of(fitted.attributes, coverage)
        scored = self._outputs(fitted, self._rows(X, fitted.record))
        return tag_sets(scored, fitted.attributes["classes_"].tolist(), level)

    def predict_spans(self, X: Any) -> pd.DataFrame:
        """Predict the entities, each with its text and its probability.

        Parameters
        ----------
        X : array-like of lists of str, or of str, of shape (n_samples,)
            The words of each row, or one text per row.

        Returns
        -------
        spans : DataFrame
            One line per entity, in order, with the columns ``row``, ``start`` and ``end`` (counted
            in words, or for texts in characters; the end is exclusive), ``label``, ``score`` and
            ``text``. Without a scheme, each word whose tag is not ``"O"`` is an entity. The score
            is the probability that the row has exactly this entity: the total probability of the
            tag sequences that contain it, among all sequences that the decoding allows, computed
            by the forward-backward algorithm.
        """
        fitted = self._state()
        rows = self._rows(X, fitted.record)
        return entity_table(self._chain(fitted), rows, self._outputs(fitted, rows))

    def _rows(self, X: Any, record: FitRecord | None) -> Any:
        return check_words(
            X,
            columns=self.text_columns,
            missing=self.missing,
            fitted=record,
            estimator_name=self._estimator_name,
        )

    def _tags(self, fitted: Known, rows: WordRows | Texts, scored: Array) -> list[list[Any]]:
        """The predicted tags of rows of words, or the predicted spans of texts."""
        scheme, in_words = fitted.attributes["scheme_"], isinstance(rows, WordRows)
        return decoded(self._chain(fitted), scored, scheme, in_words=in_words)

    def _chain(self, fitted: Known) -> Chain:
        """The sequences of tags among which predictions are chosen."""
        tags, scheme = fitted.attributes["classes_"], fitted.attributes["learned_scheme_"]
        return Chain(tags.tolist(), scheme, constrained=self.decoding == "viterbi")
