"""The record of ELECTRA: BERT with embeddings that may be narrower, and other heads."""

from __future__ import annotations

from dataclasses import replace

from skbert._core.families.bert import BERT
from skbert._core.families.record import HeadClass, Size
from skbert._core.families.settings import ACTIVATIONS, FLAG, as_row, weights_of_layers
from skbert._core.families.tokenizers import UNIGRAM, WORD_PIECE

__all__ = ["ELECTRA"]

ELECTRA = replace(
    BERT,
    model_type="electra",
    config_class="ElectraConfig",
    sizes={
        **BERT.sizes,
        "embedding_size": Size(128, 1, 16_384),
        "hidden_size": Size(256, 1, 16_384),
        "num_attention_heads": Size(4, 1, 1024),
        "intermediate_size": Size(1024, 1, 131_072),
    },
    rates={**BERT.rates, "summary_last_dropout": 0},
    choices={**BERT.choices, "summary_type": ("first",), "summary_activation": ACTIVATIONS},
    checks={"summary_use_proj": FLAG},
    count_weights=weights_of_layers(embedding="embedding_size"),
    tokenizers=(WORD_PIECE, UNIGRAM),
    heads={
        "embedding": HeadClass("ElectraModel", "mean", output_layer="", logits=()),
        "sequence classification": HeadClass(
            "ElectraForSequenceClassification", "cls", "classifier.out_proj",
            ("classifier.dropout", "classifier.dense", "classifier.activation",
             "classifier.dropout"),
        ),
        "token classification": HeadClass(
            "ElectraForTokenClassification", "cls", steps=("dropout",)
        ),
        "question answering": HeadClass(
            "ElectraForQuestionAnswering", "cls", "qa_outputs",
            logits=("start_logits", "end_logits"),
        ),
        "multiple choice": HeadClass(
            "ElectraForMultipleChoice", "cls", steps=(as_row, "sequence_summary")
        ),
        "masked language modelling": HeadClass(
            "ElectraForMaskedLM", "cls", "generator_lm_head", ("generator_predictions",)
        ),
        "causal language modelling": HeadClass(
            "ElectraForCausalLM", "cls", "generator_lm_head", ("generator_predictions",)
        ),
    },
    encoder=BERT.encoder._replace(projection="embeddings_project", pooler=""),
)  # fmt: skip
