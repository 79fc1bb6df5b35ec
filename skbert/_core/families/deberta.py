"""The records of DeBERTa and its later versions: content and position are told apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from skbert._core.families.bert import BERT
from skbert._core.families.record import Check, HeadClass, Job, Size
from skbert._core.families.settings import ACTIVATIONS, FLAG, as_row, number, weights_of_layers
from skbert._core.families.tokenizers import BYTE_LEVEL_BPE, UNIGRAM, WORD_PIECE

__all__ = ["DEBERTA", "DEBERTA_V2"]

_POOLED = (as_row, "pooler", "dropout")


def _is_kind(value: object) -> bool:
    kinds = value.lower().split("|") if isinstance(value, str) else value
    return kinds is None or (
        isinstance(kinds, list) and all(kind in ("c2p", "p2c", "p2p") for kind in kinds)
    )


_KIND: Check = (_is_kind, "c2p, p2c or both")


def _heads(prefix: str) -> Mapping[Job, HeadClass]:
    return {
        "embedding": HeadClass(f"{prefix}Model", "mean", output_layer="", logits=()),
        "sequence classification": HeadClass(
            f"{prefix}ForSequenceClassification", "cls", steps=_POOLED
        ),
        "token classification": HeadClass(
            f"{prefix}ForTokenClassification", "cls", steps=("dropout",)
        ),
        "question answering": HeadClass(
            f"{prefix}ForQuestionAnswering", "cls", "qa_outputs",
            logits=("start_logits", "end_logits"),
        ),
        "masked language modelling": HeadClass(f"{prefix}ForMaskedLM", "cls", "cls"),
    }  # fmt: skip


DEBERTA = replace(
    BERT,
    model_type="deberta",
    config_class="DebertaConfig",
    sizes={
        **BERT.sizes,
        "vocab_size": Size(50265, 1, 5_000_000),
        "type_vocab_size": Size(0, 0, 1024),
        "max_relative_positions": Size(-1, -1, 1_000_000),
    },
    rates={
        "hidden_dropout_prob": 0,
        "attention_probs_dropout_prob": 0,
        "pooler_dropout": 0,
        "initializer_range": 0,
        "layer_norm_eps": 1e-30,
    },
    choices={"hidden_act": BERT.choices["hidden_act"], "pooler_hidden_act": ACTIVATIONS},
    checks={
        "relative_attention": FLAG,
        "position_biased_input": FLAG,
        "pos_att_type": _KIND,
        "talking_head": FLAG,
        "legacy": FLAG,
        "cls_dropout": number(0, 1),
        "embedding_size": number(1, 16_384),
        "pooler_hidden_size": number(1, 16_384),
    },
    count_weights=weights_of_layers(),
    tokenizers=(BYTE_LEVEL_BPE.made_by("DebertaTokenizer"), UNIGRAM, WORD_PIECE),
    heads=_heads("Deberta"),
    encoder=BERT.encoder._replace(
        position_table="", type_table="", embedding_norm="", pooler=""
    ),
    layer=None,
    read_by_all_layers=("encoder.rel_embeddings", "encoder.LayerNorm", "encoder.conv"),
    supports_autocast=False,
)  # fmt: skip

DEBERTA_V2 = replace(
    DEBERTA,
    model_type="deberta-v2",
    supports_autocast=True,
    config_class="DebertaV2Config",
    sizes={
        **DEBERTA.sizes,
        "vocab_size": Size(128100, 1, 5_000_000),
        "hidden_size": Size(1536, 1, 16_384),
        "num_hidden_layers": Size(24, 1, 256),
        "num_attention_heads": Size(24, 1, 1024),
        "intermediate_size": Size(6144, 1, 131_072),
    },
    choices={
        **DEBERTA.choices,
        "norm_rel_ebd": ("none", "layer_norm"),
        "conv_act": ACTIVATIONS,
    },
    checks={
        **DEBERTA.checks,
        "position_buckets": number(-1, 1_000_000),
        "share_att_key": FLAG,
        "attention_head_size": number(1, 4096),
        "conv_kernel_size": number(0, 101),
        "conv_groups": number(1, 1024),
    },
    tokenizers=(UNIGRAM.made_by("DebertaV2Tokenizer"), BYTE_LEVEL_BPE, WORD_PIECE),
    heads={
        **_heads("DebertaV2"),
        "multiple choice": HeadClass("DebertaV2ForMultipleChoice", "cls", steps=_POOLED),
    },
)
