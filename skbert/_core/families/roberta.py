"""The records of RoBERTa and of the families that are built like it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from skbert._core.families.bert import BERT
from skbert._core.families.record import Family, HeadClass, Job, Size
from skbert._core.families.settings import FLAG, NAME, NAMES, number, tanh
from skbert._core.families.tokenizers import BYTE_LEVEL_BPE, UNIGRAM, WORD_PIECE

__all__ = ["CAMEMBERT", "ROBERTA", "ROBERTA_PRELAYERNORM", "XLM_ROBERTA", "XMOD"]

_DENSE_HEAD = ("classifier.dropout", "classifier.dense", tanh, "classifier.dropout")


def _heads(prefix: str) -> Mapping[Job, HeadClass]:
    return {
        "embedding": HeadClass(f"{prefix}Model", "mean", output_layer="", logits=()),
        "sequence classification": HeadClass(
            f"{prefix}ForSequenceClassification", "cls", "classifier.out_proj", _DENSE_HEAD
        ),
        "token classification": HeadClass(
            f"{prefix}ForTokenClassification", "cls", steps=("dropout",)
        ),
        "question answering": HeadClass(
            f"{prefix}ForQuestionAnswering", "cls", "qa_outputs",
            logits=("start_logits", "end_logits"),
        ),
        "multiple choice": HeadClass(f"{prefix}ForMultipleChoice", "pooler", steps=("dropout",)),
        "masked language modelling": HeadClass(f"{prefix}ForMaskedLM", "cls", "lm_head"),
        "causal language modelling": HeadClass(f"{prefix}ForCausalLM", "cls", "lm_head"),
    }  # fmt: skip


ROBERTA = replace(
    BERT,
    model_type="roberta",
    config_class="RobertaConfig",
    sizes={
        **BERT.sizes,
        "vocab_size": Size(50265, 1, 5_000_000),
        "pad_token_id": Size(1, 0, 5_000_000),
    },
    tokenizers=(BYTE_LEVEL_BPE, WORD_PIECE, UNIGRAM),
    heads=_heads("Roberta"),
    norms=("LayerNorm", "layer_norm"),
    has_token_types=False,
    counts_from_padding=True,
)


def _relative(model_type: str, prefix: str) -> Family:
    return replace(
        ROBERTA,
        model_type=model_type,
        config_class=f"{prefix}Config",
        sizes={**ROBERTA.sizes, "vocab_size": BERT.sizes["vocab_size"]},
        tokenizers=(UNIGRAM, WORD_PIECE, BYTE_LEVEL_BPE),
        heads=_heads(prefix),
    )


XLM_ROBERTA = _relative("xlm-roberta", "XLMRoberta")
CAMEMBERT = replace(
    _relative("camembert", "Camembert"),
    tokenizers=(UNIGRAM.made_by("CamembertTokenizer"), WORD_PIECE, BYTE_LEVEL_BPE),
)

ROBERTA_PRELAYERNORM = replace(
    ROBERTA,
    model_type="roberta-prelayernorm",
    config_class="RobertaPreLayerNormConfig",
    heads=_heads("RobertaPreLayerNorm"),
    choices={**BERT.choices, "position_embedding_type": ("absolute",)},
    layer=None,
)

XMOD = replace(
    _relative("xmod", "Xmod"),
    choices={**BERT.choices, "position_embedding_type": ("absolute",)},
    checks={
        "pre_norm": FLAG,
        "adapter_layer_norm": FLAG,
        "adapter_reuse_layer_norm": FLAG,
        "ln_before_adapter": FLAG,
        "adapter_reduction_factor": number(1, 1024),
        "languages": NAMES,
        "default_language": NAME,
    },
    layer=None,
    norms=("LayerNorm", "layer_norm", "adapter_layer_norm"),
    supports_autocast=False,
    new_settings={"languages": ["en_XX"], "default_language": "en_XX"},
    listed={"default_language": "languages"},
)  # fmt: skip
