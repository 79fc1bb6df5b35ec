"""The record of DistilBERT."""

from __future__ import annotations

from dataclasses import replace

from skbert._core.families.bert import BERT
from skbert._core.families.record import (
    AttentionNames,
    EncoderPaths,
    HeadClass,
    LayerParts,
    Size,
)
from skbert._core.families.settings import FLAG, relu, weights_of_layers
from skbert._core.families.tokenizers import UNIGRAM, WORD_PIECE

__all__ = ["DISTILBERT"]

_DENSE_HEAD = ("pre_classifier", relu, "dropout")

DISTILBERT = replace(
    BERT,
    model_type="distilbert",
    config_class="DistilBertConfig",
    settings={
        "hidden_size": "dim",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "intermediate_size": "hidden_dim",
        "hidden_act": "activation",
        "hidden_dropout_prob": "dropout",
        "attention_probs_dropout_prob": "attention_dropout",
    },
    sizes={
        "vocab_size": Size(30522, 1, 5_000_000),
        "hidden_size": Size(768, 1, 16_384),
        "num_hidden_layers": Size(6, 1, 256),
        "num_attention_heads": Size(12, 1, 1024),
        "intermediate_size": Size(3072, 1, 131_072),
        "max_position_embeddings": Size(512, 2, 1_000_000),
        "chunk_size_feed_forward": Size(0, 0, 1_000_000),
    },
    rates={
        "hidden_dropout_prob": 0,
        "attention_probs_dropout_prob": 0,
        "qa_dropout": 0,
        "seq_classif_dropout": 0,
        "initializer_range": 0,
    },
    choices={"hidden_act": BERT.choices["hidden_act"]},
    checks={"sinusoidal_pos_embds": FLAG},
    count_weights=weights_of_layers(),
    tokenizers=(WORD_PIECE, UNIGRAM),
    heads={
        "embedding": HeadClass("DistilBertModel", "mean", output_layer="", logits=()),
        "sequence classification": HeadClass(
            "DistilBertForSequenceClassification", "cls", steps=_DENSE_HEAD
        ),
        "token classification": HeadClass(
            "DistilBertForTokenClassification", "cls", steps=("dropout",)
        ),
        "question answering": HeadClass(
            "DistilBertForQuestionAnswering", "cls", "qa_outputs", ("dropout",),
            logits=("start_logits", "end_logits"),
        ),
        "multiple choice": HeadClass("DistilBertForMultipleChoice", "cls", steps=_DENSE_HEAD),
        "masked language modelling": HeadClass(
            "DistilBertForMaskedLM", "cls", "vocab_projector",
            ("vocab_transform", "activation", "vocab_layer_norm"),
        ),
    },
    encoder=EncoderPaths(
        embeddings="embeddings",
        word_table="embeddings.word_embeddings",
        layers="transformer.layer",
        position_table="embeddings.position_embeddings",
        embedding_norm="embeddings.LayerNorm",
        embedding_dropout="embeddings.dropout",
    ),
    layer=LayerParts(
        attention="attention",
        query="attention.q_lin",
        key="attention.k_lin",
        value="attention.v_lin",
        attention_out="attention.out_lin",
        attention_dropout="",
        attention_norm="sa_layer_norm",
        mlp_in="ffn.lin1",
        activation="ffn.activation",
        mlp_out="ffn.lin2",
        mlp_dropout="ffn.dropout",
        mlp_norm="output_layer_norm",
    ),
    attention=AttentionNames(
        n_heads="n_heads",
        head_size="attention_head_size",
        width="dim",
        scaling="scaling",
        dropout="dropout",
    ),
    norms=("LayerNorm", "sa_layer_norm", "output_layer_norm", "vocab_layer_norm"),
    has_token_types=False,
)  # fmt: skip
