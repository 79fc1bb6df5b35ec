"""The record of EuroBERT: a decoder's layers that read both ways."""

from __future__ import annotations

from dataclasses import replace

from skbert._core.families.bert import BERT
from skbert._core.families.modernbert import MODERNBERT
from skbert._core.families.record import EncoderPaths, HeadClass, Size
from skbert._core.families.settings import FLAG, ROTARY, number, weights_of_layers
from skbert._core.families.tokenizers import (
    AS_DESCRIBED,
    BRACKETS,
    BYTE_LEVEL_BPE,
    UNIGRAM,
    WORD_PIECE,
)

__all__ = ["EUROBERT"]

EUROBERT = replace(
    MODERNBERT,
    prenorm=None,
    model_type="eurobert",
    config_class="EuroBertConfig",
    settings={
        "attention_probs_dropout_prob": "attention_dropout",
        "layer_norm_eps": "rms_norm_eps",
    },
    sizes={
        "vocab_size": Size(128256, 1, 5_000_000),
        "hidden_size": Size(768, 1, 16_384),
        "num_hidden_layers": Size(12, 1, 256),
        "num_attention_heads": Size(12, 1, 1024),
        "intermediate_size": Size(3072, 1, 131_072),
        "max_position_embeddings": Size(8192, 2, 1_000_000),
        "pad_token_id": Size(128001, 0, 5_000_000),
    },
    rates={"attention_probs_dropout_prob": 0, "initializer_range": 0, "layer_norm_eps": 1e-30},
    choices={
        "hidden_act": BERT.choices["hidden_act"],
        "classifier_pooling": ("bos", "mean", "late"),
    },
    checks={
        "num_key_value_heads": number(1, 1024),
        "head_dim": number(1, 4096),
        **ROTARY,
        "attention_bias": FLAG,
        "mlp_bias": FLAG,
    },
    count_weights=weights_of_layers(mlp=3),
    tokenizers=(BYTE_LEVEL_BPE.made_by(AS_DESCRIBED[0], BRACKETS), UNIGRAM, WORD_PIECE),
    heads={
        "embedding": HeadClass("EuroBertModel", "mean", output_layer="", logits=()),
        "sequence classification": HeadClass(
            "EuroBertForSequenceClassification", "mean", steps=("dense", "activation"),
            pooling_setting="classifier_pooling", poolings={"cls": "bos", "mean": "mean"},
            pooled_last="late",
        ),
        "token classification": HeadClass("EuroBertForTokenClassification", "mean"),
        "masked language modelling": HeadClass("EuroBertForMaskedLM", "mean", "lm_head"),
    },
    encoder=EncoderPaths(
        embeddings="embed_tokens", word_table="embed_tokens", layers="layers"
    ),
    norms=("norm", "input_layernorm", "post_attention_layernorm"),
)  # fmt: skip
