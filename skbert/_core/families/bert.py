"""The record of BERT."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from skbert._core.families.record import (
    AttentionNames,
    EncoderPaths,
    Family,
    HeadClass,
    LayerParts,
    Size,
)
from skbert._core.families.tokenizers import UNIGRAM, WORD_PIECE

__all__ = ["BERT"]

_ACTIVATIONS = ("gelu", "gelu_10", "gelu_fast", "gelu_new", "gelu_python", "quick_gelu",
                "gelu_pytorch_tanh", "relu", "relu6", "silu", "swish", "mish", "tanh")  # fmt: skip


def _count_weights(config: Mapping[str, Any]) -> int:
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    rows = config["vocab_size"] + config["max_position_embeddings"] + config["type_vocab_size"]
    layer = 4 * hidden**2 + 2 * hidden * config["intermediate_size"]
    if config.get("position_embedding_type", "absolute") != "absolute":
        layer += 2 * config["max_position_embeddings"] * (hidden // heads)
    n_pruned = sum(len(heads) for heads in config.get("pruned_heads", {}).values())
    n_weights: int = rows * hidden + config["num_hidden_layers"] * layer
    n_lost: int = n_pruned * 4 * hidden**2 // heads
    return n_weights - n_lost


BERT = Family(
    model_type="bert",
    config_class="BertConfig",
    settings={},
    sizes={
        "vocab_size": Size(30522, 1, 5_000_000),
        "hidden_size": Size(768, 1, 16_384),
        "num_hidden_layers": Size(12, 1, 256),
        "num_attention_heads": Size(12, 1, 1024),
        "intermediate_size": Size(3072, 1, 131_072),
        "max_position_embeddings": Size(512, 2, 1_000_000),
        "type_vocab_size": Size(2, 1, 1024),
        "chunk_size_feed_forward": Size(0, 0, 1_000_000),
    },
    rates={
        "hidden_dropout_prob": 0,
        "attention_probs_dropout_prob": 0,
        "classifier_dropout": 0,
        "initializer_range": 0,
        "layer_norm_eps": 1e-30,  # less is nothing in float32
    },
    choices={
        "hidden_act": _ACTIVATIONS,
        "position_embedding_type": ("absolute", "relative_key", "relative_key_query"),
    },
    checks={},
    count_weights=_count_weights,
    tokenizers=(WORD_PIECE, UNIGRAM),
    heads={
        "embedding": HeadClass("BertModel", "pooler", output_layer="", logits=()),
        "sequence classification": HeadClass(
            "BertForSequenceClassification", "pooler", steps=("dropout",)
        ),
        "token classification": HeadClass(
            "BertForTokenClassification", "pooler", steps=("dropout",)
        ),
        "question answering": HeadClass(
            "BertForQuestionAnswering", "pooler", "qa_outputs",
            logits=("start_logits", "end_logits"),
        ),
        "multiple choice": HeadClass("BertForMultipleChoice", "pooler", steps=("dropout",)),
        "masked language modelling": HeadClass("BertForMaskedLM", "pooler", "cls.predictions"),
        "causal language modelling": HeadClass("BertLMHeadModel", "pooler", "cls.predictions"),
        "next sentence prediction": HeadClass(
            "BertForNextSentencePrediction", "pooler", "cls.seq_relationship"
        ),
        "pre-training": HeadClass(
            "BertForPreTraining", "pooler", "cls",
            logits=("prediction_logits", "seq_relationship_logits"),
        ),
    },
    encoder=EncoderPaths(
        embeddings="embeddings",
        word_table="embeddings.word_embeddings",
        position_table="embeddings.position_embeddings",
        type_table="embeddings.token_type_embeddings",
        embedding_norm="embeddings.LayerNorm",
        embedding_dropout="embeddings.dropout",
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
    attention=AttentionNames(
        n_heads="num_attention_heads",
        head_size="attention_head_size",
        width="all_head_size",
        scaling="scaling",
        dropout="dropout",
    ),
    norms=("LayerNorm",),
    has_token_types=True,
)  # fmt: skip
