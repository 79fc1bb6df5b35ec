"""The record of Megatron-BERT: BERT with norms before its layers."""

from __future__ import annotations

from dataclasses import replace

from skbert._core.families.bert import BERT
from skbert._core.families.record import Size

__all__ = ["MEGATRON_BERT"]

MEGATRON_BERT = replace(
    BERT,
    model_type="megatron-bert",
    config_class="MegatronBertConfig",
    sizes={
        **BERT.sizes,
        "vocab_size": Size(29056, 1, 5_000_000),
        "hidden_size": Size(1024, 1, 16_384),
        "num_hidden_layers": Size(24, 1, 256),
        "num_attention_heads": Size(16, 1, 1024),
        "intermediate_size": Size(4096, 1, 131_072),
    },
    rates={key: least for key, least in BERT.rates.items() if key != "classifier_dropout"},
    choices={"hidden_act": BERT.choices["hidden_act"]},
    heads={
        job: replace(head, name="Megatron" + head.name.replace("LMHeadModel", "ForCausalLM"))
        for job, head in BERT.heads.items()
    },
    encoder=BERT.encoder._replace(embedding_norm=""),
    layer=None,
    norms=("LayerNorm", "ln"),
)
