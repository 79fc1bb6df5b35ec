"""What is known of each architecture: its classes, by job, and where their modules lie.

The only module that names a class or a module path of an architecture; all others ask the record
of the model's family. Depends on the standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["BERT", "FAMILIES", "Family", "HeadClass", "Job", "family_of"]

Job = Literal[
    "embedding",
    "sequence classification",
    "token classification",
    "question answering",
    "multiple choice",
    "masked language modelling",
    "causal language modelling",
    "next sentence prediction",
    "pre-training",
]


@dataclass(frozen=True)
class HeadClass:
    """The transformers class for a job, and where its output layer lies."""

    name: str
    output_layer: str = "classifier"  # path in the model; "" where there is none


@dataclass(frozen=True)
class Family:
    """All that is known of an architecture."""

    model_type: str  # in config.json
    heads: Mapping[Job, HeadClass]

    def jobs_of(self, class_name: str) -> list[Job]:
        """The jobs that a model of a class, as config.json names it, has the head for."""
        return [job for job, head in self.heads.items() if head.name == class_name]


BERT = Family(
    model_type="bert",
    heads={
        "embedding": HeadClass("BertModel", ""),
        "sequence classification": HeadClass("BertForSequenceClassification"),
        "token classification": HeadClass("BertForTokenClassification"),
        "question answering": HeadClass("BertForQuestionAnswering", "qa_outputs"),
        "multiple choice": HeadClass("BertForMultipleChoice"),
        "masked language modelling": HeadClass("BertForMaskedLM", "cls.predictions"),
        "causal language modelling": HeadClass("BertLMHeadModel", "cls.predictions"),
        "next sentence prediction": HeadClass(
            "BertForNextSentencePrediction", "cls.seq_relationship"
        ),
        "pre-training": HeadClass("BertForPreTraining", "cls"),
    },
)

FAMILIES: Mapping[str, Family] = {family.model_type: family for family in (BERT,)}


def family_of(model: Any) -> Family:
    """The record of a model's architecture."""
    return FAMILIES[model.config.model_type]
