"""The record of ConvBERT: attention beside convolutions over a token's neighbours."""

from __future__ import annotations

from dataclasses import replace

from skbert._core.families.bert import BERT
from skbert._core.families.electra import ELECTRA
from skbert._core.families.record import HeadClass, Size
from skbert._core.families.settings import weights_of_layers

__all__ = ["CONVBERT"]

_ACTIVATION = "convbert.encoder.layer.0.intermediate.intermediate_act_fn"

CONVBERT = replace(
    BERT,
    model_type="convbert",
    config_class="ConvBertConfig",
    sizes={
        **BERT.sizes,
        "embedding_size": Size(768, 1, 16_384),
        "head_ratio": Size(2, 1, 64),
        "conv_kernel_size": Size(9, 1, 101),
        "num_groups": Size(1, 1, 1024),
        "pad_token_id": Size(1, 0, 5_000_000),
    },
    choices={"hidden_act": BERT.choices["hidden_act"]},
    count_weights=weights_of_layers(mlp=1, embedding="embedding_size"),
    heads={
        **{
            job: replace(head, name=head.name.replace("Electra", "ConvBert"))
            for job, head in ELECTRA.heads.items()
            if job not in ("multiple choice", "causal language modelling")
        },
        "sequence classification": HeadClass(
            "ConvBertForSequenceClassification", "cls", "classifier.out_proj",
            ("classifier.dropout", "classifier.dense", _ACTIVATION, "classifier.dropout"),
        ),
    },
    encoder=ELECTRA.encoder,
    layer=None,
    mixes_neighbours=True,
)  # fmt: skip
