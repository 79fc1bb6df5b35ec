"""What a new model is made from: its settings, and the vocabulary of its tokenizer.

Depends on `sizes`, `vocabulary` and the records of the families; the model itself is made in
``opening``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from skbert._core.checkpoints.sizes import memory_fault, size_faults
from skbert._core.families.record import Family
from skbert._core.families.tokenizers import TokenizerFormat
from skbert._core.models.vocabulary import Pieces
from skbert.exceptions import InputError

__all__ = ["Lowercase", "NewModel", "check_sizes", "new_settings", "special_ids"]

Lowercase = bool | Literal["auto"]  # of a new tokenizer: "auto" is what its class does

_TRAINING_BYTES = 16  # of a trainable weight: itself, its gradient and two moments
_POSITIONS, _KIND = "max_position_embeddings", "position_embedding_type"
# The special token that each of these settings is the id of.
_IDS = {"pad_token_id": "pad_token", "bos_token_id": "cls_token", "eos_token_id": "sep_token",
        "cls_token_id": "cls_token", "sep_token_id": "sep_token",
        "mask_token_id": "mask_token"}  # fmt: skip


@dataclass(frozen=True)
class NewModel:
    """The settings of a model to be made, where there is no checkpoint to open."""

    family: Family
    config: dict[str, Any]  # settings of the family's configuration class, by common names
    pieces: Pieces
    lowercase: Lowercase
    pooling: str | None = None
    head_pooling: str | None = None

    @property
    def tokenizer(self) -> TokenizerFormat:
        """The kind of tokenizer that the model gets."""
        return self.family.tokenizers[0]

    @property
    def max_length(self) -> int:
        """Tokens in the longest row that the model will read."""
        pad_token_id = special_ids(self.family)["pad_token_id"]
        return self.family.max_length(self.config[_POSITIONS], pad_token_id)


def new_settings(family: Family, sizes: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a new model of these sizes, by common names.

    ``max_position_embeddings`` counts the tokens of a row in ``sizes``; positions that a family
    leaves out are added. Special tokens have the first ids, in the order of the tokenizer's kind.

    Raises
    ------
    InputError
        If the family does not know the kind of positions.
    """
    settings = {**family.new_settings, **sizes}
    settings[_POSITIONS] += family.first_position(special_ids(family)["pad_token_id"])
    kind = settings.pop(_KIND)
    kinds = family.choices.get(_KIND, ("absolute",))
    if kind not in kinds:
        raise InputError(
            f"{_KIND}={kind!r}, but a new model of the family {family.model_type!r} can have"
            f" {' or '.join(map(repr, kinds))} only. Use that, or another family."
        )
    if _KIND in family.choices:
        settings[_KIND] = kind
    if "embedding_size" in family.sizes:
        settings["embedding_size"] = _embedding_size(family, settings["hidden_size"])
    return settings


def _embedding_size(family: Family, hidden_size: int) -> int:
    """How wide embeddings are; without a projection, in the family's usual proportion."""
    usual, usual_hidden = (family.default_sizes[f"{key}_size"] for key in ("embedding", "hidden"))
    if family.encoder.projection:
        return min(usual, hidden_size)
    return max(1, hidden_size * usual // usual_hidden)


def special_ids(family: Family) -> dict[str, int]:
    """The ids of special tokens in a new model, by the settings that name them."""
    specials = [*family.tokenizers[0].specials]
    return {key: specials.index(role) for key, role in _IDS.items()}


def check_sizes(family: Family, config: dict[str, Any]) -> None:
    """Refuse sizes that no model has, and a model that cannot be trained in this machine's memory.

    Raises
    ------
    InputError
        If a size is out of its bounds, or all of them together need too much memory.
    """
    for key, right in size_faults(family, config):
        raise InputError(
            f"{key}={config[key]}, where {right} is expected. Use"
            f" {key}={family.sizes[key].default}, the family's default, or leave it out."
        )
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    if hidden % heads:
        raise InputError(
            f"num_attention_heads={heads} does not divide hidden_size={hidden}. Use a divisor: the"
            " heads of BERT are 64 wide."
        )
    fault = memory_fault(family.count_weights(family.default_sizes | config), _TRAINING_BYTES)
    if fault:
        sizes = ", ".join(f"{key}={config[key]}" for key in family.sizes if key in config)
        raise InputError(
            f"a model with {sizes} is too large to learn here: {fault}, gradients and the"
            " optimizer's state included. Use smaller sizes, hidden_size first."
        )
