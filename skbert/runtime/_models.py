"""The objects that predict in the place of fitted estimators, one class for each job.

What they predict is declared in `predicting` of the job, which the estimator has from there too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from skbert._arrays import Array
from skbert._choice.predicting import RanksOptions
from skbert._classification.predicting import PredictsLabels
from skbert._classification.predictions import check_columns
from skbert._embedding.predicting import TransformsTexts
from skbert._estimator.checks import is_one_of
from skbert._estimator.predicting import Predicting, predict_in_chunks
from skbert._extraction.predicting import PredictsAnswers
from skbert._regression.predicting import PredictsNumbers
from skbert._tagging.predicting import PredictsTags
from skbert.runtime._exported import Exported

__all__ = ["MODELS", "ExportedModel"]

_PARAMETERS: dict[str, Callable[[object], bool]] = {  # that predictions depend on
    "text_columns": lambda value: True,  # is checked with the columns of X
    "feature_columns": lambda value: True,
    "missing": is_one_of("raise", "empty"),
    "decoding": is_one_of("viterbi", "argmax"),
    "normalize": lambda value: isinstance(value, bool),
}


@dataclass(repr=False, eq=False)
class ExportedModel(Predicting):
    """A model that was exported; its attributes are those that its estimator learned."""

    _fitted: Exported
    _params: Mapping[str, Any]
    _description: str  # the name of the estimator, the engine and the precision

    def __post_init__(self) -> None:
        for name, is_valid in _PARAMETERS.items():
            if name in self._params:
                if not is_valid(self._params[name]):
                    raise ValueError(f"{name}={self._params[name]!r:.80}")
                setattr(self, name, self._params[name])

    def __repr__(self) -> str:
        return f"<exported {self._description}>"

    @property
    def _estimator_name(self) -> str:
        return self._description.partition(",")[0]

    def _state(self) -> Exported:
        return self._fitted

    def _outputs(self, fitted: Exported, rows: Any) -> Array:
        return predict_in_chunks(fitted.task, rows, fitted.tokenizer, fitted.run)


class ExportedClassifier(PredictsLabels, ExportedModel):
    """A classifier that was exported."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_columns(self._fitted.task, self._fitted.attributes)


class ExportedRegressor(PredictsNumbers, ExportedModel):
    """A regressor that was exported."""


class ExportedTokenTagger(PredictsTags, ExportedModel):
    """A tagger that was exported."""


class ExportedSpanExtractor(PredictsAnswers, ExportedModel):
    """A span extractor that was exported."""


class ExportedChoiceRanker(RanksOptions, ExportedModel):
    """A choice ranker that was exported."""


class ExportedTransformer(TransformsTexts, ExportedModel):
    """A transformer that was exported."""

    def _width(self, fitted: Exported) -> int:
        return fitted.n_outputs


MODELS: dict[str, Any] = {
    "BertClassifier": ExportedClassifier,
    "BertRegressor": ExportedRegressor,
    "BertTokenTagger": ExportedTokenTagger,
    "BertSpanExtractor": ExportedSpanExtractor,
    "BertChoiceRanker": ExportedChoiceRanker,
    "BertTransformer": ExportedTransformer,
}
