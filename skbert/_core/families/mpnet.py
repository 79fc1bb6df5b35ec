"""The record of MPNet: RoBERTa with relative positions."""

from __future__ import annotations

from dataclasses import replace

from skbert._core.families.bert import BERT
from skbert._core.families.record import Size
from skbert._core.families.roberta import ROBERTA
from skbert._core.families.settings import weights_of_layers
from skbert._core.families.tokenizers import UNIGRAM, WORD_PIECE

__all__ = ["MPNET"]

MPNET = replace(
    ROBERTA,
    model_type="mpnet",
    config_class="MPNetConfig",
    sizes={
        **{key: size for key, size in ROBERTA.sizes.items() if key != "type_vocab_size"},
        "vocab_size": Size(30527, 1, 5_000_000),
        "relative_attention_num_buckets": Size(32, 2, 4096),
    },
    rates={key: least for key, least in BERT.rates.items() if key != "classifier_dropout"},
    choices={"hidden_act": BERT.choices["hidden_act"]},
    count_weights=weights_of_layers(),
    tokenizers=(WORD_PIECE.made_by("MPNetTokenizer"), UNIGRAM),
    heads={
        job: replace(head, name=head.name.replace("Roberta", "MPNet"))
        for job, head in ROBERTA.heads.items()
        if job != "causal language modelling"
    },
    encoder=ROBERTA.encoder._replace(type_table=""),
    layer=None,
    fixed_padding_id=1,
    read_by_all_layers=("encoder.relative_attention_bias",),
)
