"""The families of models: one record for each architecture, and the table of them.

Only records name the classes of an architecture, its modules and its own settings; all other code
asks the record of the model's family.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from skbert._core.families.bert import BERT
from skbert._core.families.record import Family

__all__ = ["FAMILIES", "NEW", "family_of"]

FAMILIES: Mapping[str, Family] = {family.model_type: family for family in (BERT,)}
NEW = BERT  # the family of a new model


def family_of(model: Any) -> Family:
    """The record of a model's architecture."""
    return FAMILIES[type(model.config).model_type]
