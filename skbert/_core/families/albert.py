"""The record of ALBERT: layers that are shared, and narrow embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from skbert._core.families.bert import BERT
from skbert._core.families.record import (
    AttentionNames,
    EncoderPaths,
    HeadClass,
    LayerParts,
    Size,
)
from skbert._core.families.settings import weights_of_layers
from skbert._core.families.tokenizers import UNIGRAM, WORD_PIECE

if TYPE_CHECKING:
    import torch

__all__ = ["ALBERT"]


def _layers(encoder: torch.nn.Module) -> Sequence[Any]:
    config: Any = encoder.config
    groups: Any = encoder.get_submodule("encoder.albert_layer_groups")
    per_group = config.num_hidden_layers / config.num_hidden_groups
    used = (groups[int(i / per_group)] for i in range(config.num_hidden_layers))
    return [layer for group in used for layer in group.albert_layers]


ALBERT = replace(
    BERT,
    model_type="albert",
    config_class="AlbertConfig",
    sizes={
        **BERT.sizes,
        "vocab_size": Size(30000, 1, 5_000_000),
        "embedding_size": Size(128, 1, 16_384),
        "hidden_size": Size(4096, 1, 16_384),
        "num_hidden_groups": Size(1, 1, 256),
        "inner_group_num": Size(1, 1, 256),
        "num_attention_heads": Size(64, 1, 1024),
        "intermediate_size": Size(16384, 1, 131_072),
    },
    rates={
        "hidden_dropout_prob": 0,
        "attention_probs_dropout_prob": 0,
        "classifier_dropout_prob": 0,
        "initializer_range": 0,
        "layer_norm_eps": 1e-30,
    },
    count_weights=weights_of_layers(layers="num_hidden_groups", embedding="embedding_size"),
    tokenizers=(UNIGRAM.made_by("AlbertTokenizer"), WORD_PIECE),
    heads={
        "embedding": HeadClass("AlbertModel", "mean", output_layer="", logits=()),
        "sequence classification": HeadClass(
            "AlbertForSequenceClassification", "pooler", steps=("dropout",)
        ),
        "token classification": HeadClass(
            "AlbertForTokenClassification", "pooler", steps=("dropout",)
        ),
        "question answering": HeadClass(
            "AlbertForQuestionAnswering", "pooler", "qa_outputs",
            logits=("start_logits", "end_logits"),
        ),
        "multiple choice": HeadClass("AlbertForMultipleChoice", "pooler", steps=("dropout",)),
        "masked language modelling": HeadClass("AlbertForMaskedLM", "pooler", "predictions"),
    },
    encoder=EncoderPaths(
        embeddings="embeddings",
        word_table="embeddings.word_embeddings",
        layers="encoder.albert_layer_groups",
        position_table="embeddings.position_embeddings",
        type_table="embeddings.token_type_embeddings",
        embedding_norm="embeddings.LayerNorm",
        embedding_dropout="embeddings.dropout",
        projection="encoder.embedding_hidden_mapping_in",
        pooler="pooler",
        pooler_activation="pooler_activation",
    ),
    layer=LayerParts(
        attention="attention",
        query="attention.query",
        key="attention.key",
        value="attention.value",
        attention_out="attention.dense",
        attention_dropout="attention.output_dropout",
        attention_norm="attention.LayerNorm",
        mlp_in="ffn",
        activation="activation",
        mlp_out="ffn_output",
        mlp_dropout="",
        mlp_norm="full_layer_layer_norm",
    ),
    attention=AttentionNames(
        n_heads="num_attention_heads",
        head_size="attention_head_size",
        width="all_head_size",
        scaling="scaling",
        dropout="attention_dropout",
    ),
    norms=("LayerNorm", "full_layer_layer_norm"),
    layers_of=_layers,
)  # fmt: skip
