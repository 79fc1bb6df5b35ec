"""The record of ModernBERT: norms before layers, gates, rotary positions and local attention."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from skbert._core.families.bert import BERT
from skbert._core.families.record import (
    AttentionNames,
    EncoderPaths,
    HeadClass,
    PreNorm,
    PreNormParts,
    Size,
)
from skbert._core.families.settings import (
    ACTIVATIONS,
    FLAG,
    NAMES,
    ROPE,
    number,
    weights_of_layers,
)
from skbert._core.families.tokenizers import (
    AS_DESCRIBED,
    BRACKETS,
    BYTE_LEVEL_BPE,
    UNIGRAM,
    WORD_PIECE,
)

__all__ = ["MODERNBERT"]

_POOLED: dict[str, Any] = {
    "pooling_setting": "classifier_pooling", "poolings": {"cls": "cls", "mean": "mean"},
}  # fmt: skip

MODERNBERT = replace(
    BERT,
    model_type="modernbert",
    config_class="ModernBertConfig",
    settings={
        "hidden_act": "hidden_activation",
        "hidden_dropout_prob": "mlp_dropout",
        "attention_probs_dropout_prob": "attention_dropout",
        "layer_norm_eps": "norm_eps",
    },
    sizes={
        "vocab_size": Size(50368, 1, 5_000_000),
        "hidden_size": Size(768, 1, 16_384),
        "num_hidden_layers": Size(22, 1, 256),
        "num_attention_heads": Size(12, 1, 1024),
        "intermediate_size": Size(1152, 1, 131_072),
        "max_position_embeddings": Size(8192, 2, 1_000_000),
        "local_attention": Size(128, 2, 1_000_000),
        "pad_token_id": Size(50283, 0, 5_000_000),
    },
    rates={
        "hidden_dropout_prob": 0,
        "attention_probs_dropout_prob": 0,
        "embedding_dropout": 0,
        "classifier_dropout": 0,
        "initializer_range": 0,
        "layer_norm_eps": 1e-30,
    },
    choices={
        "hidden_act": BERT.choices["hidden_act"],
        "classifier_activation": ACTIVATIONS,
        "classifier_pooling": ("cls", "mean"),
    },
    checks={
        "layer_types": NAMES,
        "rope_parameters": ROPE,
        "rope_scaling": ROPE,
        "global_attn_every_n_layers": number(1, 256),
        "global_rope_theta": number(1, 1e9),
        "local_rope_theta": number(1, 1e9),
        "initializer_cutoff_factor": number(0, 100),
        "norm_bias": FLAG,
        "attention_bias": FLAG,
        "mlp_bias": FLAG,
        "decoder_bias": FLAG,
        "classifier_bias": FLAG,
    },
    count_weights=weights_of_layers(mlp=3),
    tokenizers=(BYTE_LEVEL_BPE.made_by(AS_DESCRIBED[0], BRACKETS), WORD_PIECE, UNIGRAM),
    heads={
        "embedding": HeadClass("ModernBertModel", "mean", output_layer="", logits=(), **_POOLED),
        "sequence classification": HeadClass(
            "ModernBertForSequenceClassification", "cls", steps=("head", "drop"), **_POOLED
        ),
        "token classification": HeadClass(
            "ModernBertForTokenClassification", "cls", steps=("head", "drop")
        ),
        "question answering": HeadClass(
            "ModernBertForQuestionAnswering", "cls", steps=("head", "drop"),
            logits=("start_logits", "end_logits"),
        ),
        "multiple choice": HeadClass(
            "ModernBertForMultipleChoice", "cls", steps=("head", "drop"), **_POOLED
        ),
        "masked language modelling": HeadClass(
            "ModernBertForMaskedLM", "cls", "decoder", ("head",)
        ),
    },
    encoder=EncoderPaths(
        embeddings="embeddings",
        word_table="embeddings.tok_embeddings",
        embedding_norm="embeddings.norm",
        embedding_dropout="embeddings.drop",
        layers="layers",
    ),
    layer=None,
    attention=AttentionNames(
        n_heads="num_attention_heads",
        head_size="head_dim",
        width="all_head_size",
        scaling="scaling",
        dropout="attention_dropout",
    ),
    norms=("norm", "attn_norm", "mlp_norm", "final_norm"),
    has_token_types=False,
    prenorm=PreNorm(
        PreNormParts(
            attention="attn",
            attention_norm="attn_norm",
            query_key_value="attn.Wqkv",
            attention_out="attn.Wo",
            attention_dropout="attn.out_drop",
            mlp_norm="mlp_norm",
            mlp_in="mlp.Wi",
            activation="mlp.act",
            gate_dropout="mlp.drop",
            mlp_out="mlp.Wo",
        ),
        final_norm="final_norm",
        rotary="rotary_emb",
        kind="attention_type",
        sliding_window="sliding_window",
    ),
)  # fmt: skip
