"""What is known of each architecture: its classes, by job, and where their modules lie.

The only module that names a class or a module path of an architecture; all others ask the record
of the model's family. Depends on the standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Generic, Literal, NamedTuple, TypeVar

__all__ = [
    "BERT",
    "FAMILIES",
    "EncoderPaths",
    "Family",
    "HeadClass",
    "Job",
    "LayerParts",
    "encoder_part",
    "family_of",
]

Part = TypeVar("Part")

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


class EncoderPaths(NamedTuple):
    """Where the modules of an encoder lie in ``model.base_model``."""

    embeddings: str  # of words, positions and token types, normalised
    word_table: str
    position_table: str
    stack: str  # of all layers
    layers: str
    pooler: str


class LayerParts(NamedTuple, Generic[Part]):
    """The modules of one layer, or where they lie in it."""

    attention: Part  # knows the size of a head, scaling, causality and the dropout of weights
    query: Part
    key: Part
    value: Part
    attention_out: Part
    attention_dropout: Part  # after attention_out
    attention_norm: Part
    mlp_in: Part
    activation: Part
    mlp_out: Part
    mlp_dropout: Part
    mlp_norm: Part

    @property
    def qkv(self) -> tuple[Part, Part, Part]:
        """Query, key and value."""
        return self.query, self.key, self.value


@dataclass(frozen=True)
class HeadClass:
    """The transformers class for a job: where its last layers lie, and what it returns."""

    name: str
    output_layer: str = "classifier"  # path in the model; "" where there is none
    dropout: str = ""  # path of the dropout before it
    logits: tuple[str, ...] = ("logits",)  # fields of its output; of two, tokens first


@dataclass(frozen=True)
class Family:
    """All that is known of an architecture."""

    model_type: str  # in config.json
    config_class: str
    tokenizer_class: str  # of a new model, and where a vocabulary is all that there is
    tokenizer_classes: tuple[str, ...]  # that a checkpoint may name
    heads: Mapping[Job, HeadClass]
    encoder: EncoderPaths
    layer: LayerParts[str]
    norm: str  # last part of the name of each module that normalises
    positions: tuple[str, ...]  # what ``position_embedding_type`` may be
    first_position: int  # of the first token of a row
    has_token_types: bool

    def max_length(self, n_positions: int) -> int:
        """Tokens in the longest row that a model with so many positions reads, 512 at most."""
        return min(512, n_positions - self.first_position)

    def layer_parts(self, layer: Any) -> LayerParts[Any]:
        """The modules of one layer."""
        return LayerParts._make(attrgetter(*self.layer)(layer))

    def layers(self, model: Any) -> Any:
        """The layers of a model's encoder, lowest first."""
        return encoder_part(model, self.encoder.layers)

    def is_of_pooler(self, name: str) -> bool:
        """Whether a weight of that name belongs to the pooler."""
        return f".{self.encoder.pooler}." in f".{name}"

    def decays(self, name: str) -> bool:
        """Whether weight decay applies to a weight of that name: no bias, and none of a norm."""
        *_, module, kind = ("", *name.split("."))
        return kind != "bias" and (module, kind) != (self.norm, "weight")

    def head_of(self, model: Any) -> HeadClass:
        """The head that a model was opened with."""
        names = [kind.__name__ for kind in type(model).__mro__]
        return next(head for head in self.heads.values() if head.name in names)

    def jobs_of(self, class_name: str) -> list[Job]:
        """The jobs that a model of a class, as config.json names it, has the head for."""
        return [job for job, head in self.heads.items() if head.name == class_name]


BERT = Family(
    model_type="bert",
    config_class="BertConfig",
    tokenizer_class="BertTokenizer",
    tokenizer_classes=(
        "BertTokenizer", "BertTokenizerFast", "DistilBertTokenizer", "DistilBertTokenizerFast",
        "ElectraTokenizer", "ElectraTokenizerFast",
    ),
    heads={
        "embedding": HeadClass("BertModel", output_layer="", logits=()),
        "sequence classification": HeadClass("BertForSequenceClassification", dropout="dropout"),
        "token classification": HeadClass("BertForTokenClassification", dropout="dropout"),
        "question answering": HeadClass(
            "BertForQuestionAnswering", "qa_outputs", logits=("start_logits", "end_logits")
        ),
        "multiple choice": HeadClass("BertForMultipleChoice", dropout="dropout"),
        "masked language modelling": HeadClass("BertForMaskedLM", "cls.predictions"),
        "causal language modelling": HeadClass("BertLMHeadModel", "cls.predictions"),
        "next sentence prediction": HeadClass(
            "BertForNextSentencePrediction", "cls.seq_relationship"
        ),
        "pre-training": HeadClass(
            "BertForPreTraining", "cls", logits=("prediction_logits", "seq_relationship_logits")
        ),
    },
    encoder=EncoderPaths(
        embeddings="embeddings",
        word_table="embeddings.word_embeddings",
        position_table="embeddings.position_embeddings",
        stack="encoder",
        layers="encoder.layer",
        pooler="pooler",
    ),
    layer=LayerParts(
        attention="attention.self",
        query="attention.self.query",
        key="attention.self.key",
        value="attention.self.value",
        attention_out="attention.output.dense",
        attention_dropout="attention.output.dropout",
        attention_norm="attention.output.LayerNorm",
        mlp_in="intermediate.dense",
        activation="intermediate.intermediate_act_fn",
        mlp_out="output.dense",
        mlp_dropout="output.dropout",
        mlp_norm="output.LayerNorm",
    ),
    norm="LayerNorm",
    positions=("absolute", "relative_key", "relative_key_query"),
    first_position=0,
    has_token_types=True,
)  # fmt: skip

FAMILIES: Mapping[str, Family] = {family.model_type: family for family in (BERT,)}


def encoder_part(model: Any, path: str) -> Any:
    """The module that lies at a path in the encoder of a model."""
    return attrgetter(path)(model.base_model)


def family_of(model: Any) -> Family:
    """The record of a model's architecture."""
    return FAMILIES[model.config.model_type]
