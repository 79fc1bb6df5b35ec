"""The records of NomicBERT and GTE: BERT's order of norms, with gates and rotary positions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from skbert._core.families.bert import BERT
from skbert._core.families.modernbert import MODERNBERT
from skbert._core.families.record import EncoderPaths, HeadClass, Job, Size
from skbert._core.families.settings import ROTARY, number, weights_of_layers
from skbert._core.families.tokenizers import BYTE_LEVEL_BPE, UNIGRAM, WORD_PIECE

__all__ = ["GTE", "NOMIC_BERT"]


def _heads(prefix: str, pooling: str, output: str) -> Mapping[Job, HeadClass]:
    return {
        "embedding": HeadClass(f"{prefix}Model", pooling, output_layer="", logits=()),
        "sequence classification": HeadClass(
            f"{prefix}ForSequenceClassification", "pooler", steps=("dropout",)
        ),
        "token classification": HeadClass(
            f"{prefix}ForTokenClassification", pooling, steps=("dropout",)
        ),
        "masked language modelling": HeadClass(f"{prefix}ForMaskedLM", pooling, output),
    }


NOMIC_BERT = replace(
    MODERNBERT,
    prenorm=None,
    model_type="nomic_bert",
    config_class="NomicBertConfig",
    settings={},
    sizes={
        "vocab_size": Size(30528, 1, 5_000_000),
        "hidden_size": Size(768, 1, 16_384),
        "num_hidden_layers": Size(12, 1, 256),
        "num_attention_heads": Size(12, 1, 1024),
        "intermediate_size": Size(3072, 1, 131_072),
        "max_position_embeddings": Size(2048, 2, 1_000_000),
        "type_vocab_size": Size(2, 1, 1024),
    },
    rates=BERT.rates,
    choices={"hidden_act": BERT.choices["hidden_act"]},
    checks={"head_dim": number(1, 4096), **ROTARY},
    count_weights=weights_of_layers(mlp=3),
    tokenizers=(WORD_PIECE, UNIGRAM, BYTE_LEVEL_BPE),
    heads=_heads("NomicBert", "mean", "cls.predictions"),
    encoder=EncoderPaths(
        embeddings="embeddings",
        word_table="embeddings.word_embeddings",
        layers="layers",
        pooler="pooler",
    ),
    norms=("LayerNorm", "norm", "layer_norm", "post_attention_layernorm", "post_mlp_layernorm"),
    has_token_types=True,
)

GTE = replace(
    NOMIC_BERT,
    model_type="gte",
    config_class="GteConfig",
    sizes={
        **NOMIC_BERT.sizes,
        "vocab_size": Size(250048, 1, 5_000_000),
        "max_position_embeddings": Size(8192, 2, 1_000_000),
        "type_vocab_size": Size(1, 0, 1024),
    },
    tokenizers=(UNIGRAM, WORD_PIECE, BYTE_LEVEL_BPE),
    heads=_heads("Gte", "cls", "lm_head"),
)
