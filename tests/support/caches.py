"""A cache of vectors, asked for texts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from skbert._estimator.cache import VectorCache

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from skbert._validation.texts import Texts


class CacheOfTexts(VectorCache):
    """Its keys are texts, and texts are what is computed."""

    def vectors(
        self, texts: Texts, compute: Callable[[Texts], np.ndarray[Any, Any]]
    ) -> np.ndarray[Any, Any]:
        return super().vectors(texts.first, lambda places: compute(texts.take(places)))
