"""The record of MobileBERT: bottlenecks, and embeddings that read a token's neighbours."""

from __future__ import annotations

from dataclasses import replace

from skbert._core.families.bert import BERT
from skbert._core.families.record import Size
from skbert._core.families.settings import FLAG, weights_of_layers

__all__ = ["MOBILEBERT"]

MOBILEBERT = replace(
    BERT,
    model_type="mobilebert",
    config_class="MobileBertConfig",
    sizes={
        **BERT.sizes,
        "embedding_size": Size(128, 1, 16_384),
        "hidden_size": Size(512, 1, 16_384),
        "num_hidden_layers": Size(24, 1, 256),
        "num_attention_heads": Size(4, 1, 1024),
        "intermediate_size": Size(512, 1, 131_072),
        "intra_bottleneck_size": Size(128, 1, 16_384),
        "num_feedforward_networks": Size(4, 1, 64),
    },
    choices={
        "hidden_act": BERT.choices["hidden_act"],
        "normalization_type": ("no_norm", "layer_norm"),
    },
    checks={
        "trigram_input": FLAG,
        "use_bottleneck": FLAG,
        "use_bottleneck_attention": FLAG,
        "key_query_shared_bottleneck": FLAG,
        "classifier_activation": FLAG,
    },
    count_weights=weights_of_layers(mlp=0, embedding="embedding_size"),
    heads={
        job: replace(head, name=f"Mobile{head.name}")
        for job, head in BERT.heads.items()
        if job != "causal language modelling"
    },
    encoder=BERT.encoder._replace(embedding_norm=""),
    layer=None,
    mixes_neighbours=True,
)
