"""The record of RoFormer: BERT with rotary positions."""

from __future__ import annotations

from dataclasses import replace

from skbert._core.families.bert import BERT
from skbert._core.families.electra import ELECTRA
from skbert._core.families.record import HeadClass, Size
from skbert._core.families.settings import FLAG, weights_of_layers

__all__ = ["ROFORMER"]

_ACTIVATION = "roformer.encoder.layer.0.intermediate.intermediate_act_fn"

ROFORMER = replace(
    BERT,
    model_type="roformer",
    config_class="RoFormerConfig",
    sizes={
        **BERT.sizes,
        "vocab_size": Size(50000, 1, 5_000_000),
        "embedding_size": Size(768, 1, 16_384),
        "max_position_embeddings": Size(1536, 2, 1_000_000),
    },
    rates={key: least for key, least in BERT.rates.items() if key != "classifier_dropout"},
    choices={"hidden_act": BERT.choices["hidden_act"]},
    checks={"rotary_value": FLAG},
    count_weights=weights_of_layers(embedding="embedding_size"),
    heads={
        "embedding": HeadClass("RoFormerModel", "mean", output_layer="", logits=()),
        "sequence classification": HeadClass(
            "RoFormerForSequenceClassification", "cls", "classifier.out_proj",
            ("classifier.dropout", "classifier.dense", _ACTIVATION, "classifier.dropout"),
        ),
        "token classification": HeadClass(
            "RoFormerForTokenClassification", "cls", steps=("dropout",)
        ),
        "question answering": HeadClass(
            "RoFormerForQuestionAnswering", "cls", "qa_outputs",
            logits=("start_logits", "end_logits"),
        ),
        "masked language modelling": HeadClass(
            "RoFormerForMaskedLM", "cls", "cls.predictions"
        ),
        "causal language modelling": HeadClass(
            "RoFormerForCausalLM", "cls", "cls.predictions"
        ),
    },
    encoder=ELECTRA.encoder._replace(position_table=""),
    layer=None,
    read_by_all_layers=("encoder.embed_positions",),
)  # fmt: skip
