"""The families of models: one record for each architecture, and the table of them.

Only records name the classes of an architecture, its modules and its own settings; all other code
asks the record of the model's family.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from skbert._core.families.albert import ALBERT
from skbert._core.families.bert import BERT
from skbert._core.families.convbert import CONVBERT
from skbert._core.families.deberta import DEBERTA, DEBERTA_V2
from skbert._core.families.distilbert import DISTILBERT
from skbert._core.families.electra import ELECTRA
from skbert._core.families.ernie import ERNIE
from skbert._core.families.eurobert import EUROBERT
from skbert._core.families.megatron_bert import MEGATRON_BERT
from skbert._core.families.mobilebert import MOBILEBERT
from skbert._core.families.modernbert import MODERNBERT
from skbert._core.families.mpnet import MPNET
from skbert._core.families.nomic_bert import GTE, NOMIC_BERT
from skbert._core.families.record import Family
from skbert._core.families.roberta import (
    CAMEMBERT,
    ROBERTA,
    ROBERTA_PRELAYERNORM,
    XLM_ROBERTA,
    XMOD,
)
from skbert._core.families.roformer import ROFORMER
from skbert._core.families.squeezebert import SQUEEZEBERT

__all__ = ["FAMILIES", "NEW", "family_of"]

FAMILIES: Mapping[str, Family] = {
    family.model_type: family
    for family in (
        BERT, ROBERTA, XLM_ROBERTA, CAMEMBERT, DISTILBERT, ELECTRA, ALBERT, MPNET, DEBERTA,
        DEBERTA_V2, MODERNBERT, EUROBERT, NOMIC_BERT, GTE, ERNIE, MEGATRON_BERT, MOBILEBERT,
        CONVBERT, ROFORMER, SQUEEZEBERT, ROBERTA_PRELAYERNORM, XMOD,
    )
}  # fmt: skip
NEW = BERT  # the family of a new model


def family_of(model: Any) -> Family:
    """The record of a model's architecture."""
    return FAMILIES[type(model.config).model_type]
