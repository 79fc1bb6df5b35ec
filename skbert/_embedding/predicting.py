"""The vectors of texts, in the form that users get them.

Depends on the task and on what all that predicts shares; needs neither torch nor scikit-learn.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from skbert._arrays import Array
from skbert._embedding.task import Features, distinct
from skbert._estimator.checks import are_numbers
from skbert._estimator.fitted import Learned
from skbert._estimator.predicting import Known, Predicting
from skbert._validation.columns import FitRecord, input_names
from skbert._validation.texts import Texts

__all__ = ["TransformsTexts"]

_OF_PCA = ("components_", "mean_", "explained_variance_ratio_")


class TransformsTexts(Predicting):
    """What turns texts into vectors: a fitted transformer, or an exported one."""

    _tasks: ClassVar[tuple[type, ...]] = (Features,)
    normalize: bool

    components_ = Learned[Array](
        are_numbers, "n_components", "n_numbers", optional=True, needs=_OF_PCA
    )
    mean_ = Learned[Array](are_numbers, "n_numbers", optional=True, needs=_OF_PCA)
    explained_variance_ratio_ = Learned[Array](
        are_numbers, "n_components", optional=True, needs=_OF_PCA
    )

    def transform(self, X: Any) -> Array:
        """Compute the vector of each row.

        Parameters
        ----------
        X : array-like of str of shape (n_samples,), or pairs of shape (n_samples, 2)
            The texts.

        Returns
        -------
        vectors : ndarray of shape (n_samples, n_features_out)
            float32, or float64 with ``precision="float64"``.
        """
        fitted = self._state()
        rows, owner = distinct(self._rows(X, fitted.record))
        vectors = self._vectors(fitted, rows, len(owner))
        return self._reduce_and_normalize(vectors, fitted)[owner]

    def get_feature_names_out(self, input_features: Any = None) -> Array:
        """Return the names of the output features.

        Parameters
        ----------
        input_features : array-like of str or None, default=None
            Names of the columns of X; None uses those seen in ``fit``.

        Returns
        -------
        names : ndarray of shape (n_features_out,)
            They start with the name of the text column, or of both columns, such as ``review_0``.
            If the columns have no names, they start with that of the class: ``berttransformer0``.

        Raises
        ------
        InputError, InputTypeError
            If ``input_features`` are not the columns of X.
        """
        fitted = self._state()
        n_columns = 0 if fitted.record is None else fitted.record.n_columns
        columns = fitted.attributes.get("feature_names_in_")
        record = FitRecord(
            None if columns is None else tuple(columns),
            fitted.attributes.get("n_features_in_", n_columns),
        )
        names = input_names(input_features, record, self.text_columns)
        prefix = "".join(f"{name}_" for name in names) or self._estimator_name.lower()
        return np.array([f"{prefix}{i}" for i in range(self._n_features_out)], dtype=object)

    @property
    def _n_features_out(self) -> int:
        fitted = self._state()
        if "components_" in fitted.attributes:
            return len(fitted.attributes["components_"])
        return self._width(fitted)

    def _width(self, fitted: Any) -> int:
        """How many numbers the vector of a text has, before a PCA."""
        raise NotImplementedError

    def _vectors(self, fitted: Any, rows: Texts, n_rows: int) -> Array:  # noqa: ARG002
        """The vectors of different texts, of which X has ``n_rows`` rows."""
        return self._outputs(fitted, rows)

    def _reduce_and_normalize(self, vectors: Array, fitted: Known) -> Array:
        """Vectors after the PCA and scaled, as asked for."""
        dtype, learned = vectors.dtype, fitted.attributes
        if "components_" in learned:
            vectors = (vectors - learned["mean_"]) @ learned["components_"].T
        if self.normalize:
            lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
            vectors = vectors / np.maximum(lengths, np.finfo(dtype).tiny)
        return vectors.astype(dtype, copy=False)
