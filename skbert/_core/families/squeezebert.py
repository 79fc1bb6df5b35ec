"""The record of SqueezeBERT: BERT's products as grouped convolutions of width 1."""

from __future__ import annotations

from dataclasses import replace

from skbert._core.families.bert import BERT
from skbert._core.families.record import Size
from skbert._core.families.settings import weights_of_layers

__all__ = ["SQUEEZEBERT"]

_GROUPS = {
    "q_groups": 4, "k_groups": 4, "v_groups": 4, "post_attention_groups": 1,
    "intermediate_groups": 4, "output_groups": 4,
}  # fmt: skip
_MISSING = ("causal language modelling", "next sentence prediction", "pre-training")

SQUEEZEBERT = replace(
    BERT,
    model_type="squeezebert",
    config_class="SqueezeBertConfig",
    sizes={
        **BERT.sizes,
        "embedding_size": Size(768, 1, 16_384),
        **{name: Size(n_groups, 1, 1024) for name, n_groups in _GROUPS.items()},
    },
    rates={key: least for key, least in BERT.rates.items() if key != "classifier_dropout"},
    choices={"hidden_act": BERT.choices["hidden_act"]},
    count_weights=weights_of_layers(mlp=0, embedding="embedding_size"),
    heads={
        job: replace(head, name=f"Squeeze{head.name}")
        for job, head in BERT.heads.items()
        if job not in _MISSING
    },
    encoder=BERT.encoder._replace(layers="encoder.layers"),
    layer=None,
    norms=("LayerNorm", "layernorm"),
)
