"""What a new model is made from: its sizes, and a vocabulary of word pieces learned from texts.

Depends on ``tokenizers``, `sizes` and `skim`; the model itself is made in ``opening``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from skbert._core.checkpoints.sizes import memory_fault, size_faults
from skbert._core.families import NEW
from skbert._core.families.record import Family
from skbert._core.text.skim import Skimmer
from skbert.exceptions import InputError

__all__ = ["NewModel", "check_sizes", "learn_vocabulary"]

_ROLES = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")  # by id
_FORMAT = NEW.tokenizers[0]
_SPECIALS = tuple(_FORMAT.specials[role] for role in _ROLES)
_TRAINING_BYTES = 16  # of a trainable weight: itself, its gradient and two moments
_DEFAULT_VOCAB_SIZE = 30_522  # where no number is given: as many as BERT's own vocabulary has


@dataclass(frozen=True)
class NewModel:
    """The settings of a model to be made, where there is no checkpoint to open."""

    family: Family
    config: dict[str, Any]  # settings of the family's configuration class
    vocabulary: dict[str, int]
    lowercase: bool
    pooling: str | None = None
    head_pooling: str | None = None

    @property
    def max_length(self) -> int:
        """Tokens in the longest row that the model will read."""
        config = self.config
        return self.family.max_length(
            config["max_position_embeddings"], config.get("pad_token_id")
        )


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
            f" {key}={family.sizes[key].default}, as BERT does, or leave it out."
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


def learn_vocabulary(texts: Sequence[str], size: int | None, *, lowercase: bool) -> dict[str, int]:
    """Word pieces that occur at least twice in the texts, and every character there is.

    Words longer than a model reads as pieces count with their beginning only. Chinese characters
    are words of their own. Without a ``size`` there are as many as the texts support, 30 522 at
    most.

    Raises
    ------
    InputError
        If the texts support fewer pieces than ``size``, or hold more characters.
    """
    characters = _trained(texts, 1, _SPECIALS, lowercase=lowercase).keys() - set(_SPECIALS)
    known = (*_SPECIALS, *sorted(characters, key=lambda piece: (piece.startswith("##"), piece)))
    vocabulary = _trained(texts, size or _DEFAULT_VOCAB_SIZE, known, lowercase=lowercase)
    count = len(vocabulary)
    if size is not None and count < size:
        raise InputError(
            f"vocab_size={size}, but X supports {count} word pieces only: no more of them occur "
            f"twice. Use vocab_size={count} or less, or vocab_size=None for as many as there are."
        )
    if size is not None and count > size:
        raise InputError(
            f"vocab_size={size} is too small: the characters of X alone make {count} word pieces. "
            f"Use vocab_size={count} or more, or vocab_size=None for as many as there are."
        )
    return vocabulary


def _is_short(text: str, skimmer: Skimmer) -> bool:
    """Whether no word of a text can be beyond the model's limit."""
    longest = skimmer.longest_word
    return len(text) <= longest or max(map(len, text.split()), default=0) <= longest


def _trained(
    texts: Iterable[str], size: int, known: Iterable[str], *, lowercase: bool
) -> dict[str, int]:
    """The ``known`` pieces first, then what the trainer adds.

    It adds characters in an order that differs from run to run, and breaks ties by that order:
    knowing them beforehand makes it repeat itself.
    """
    tokenizer = Tokenizer(models.WordPiece(unk_token=_FORMAT.specials["unk_token"]))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=size, min_frequency=2, special_tokens=list(known), show_progress=False
    )
    skimmer = Skimmer(
        Tokenizer.from_str(tokenizer.to_str())
    )  # a copy, as the trainer locks the other
    read = (t if _is_short(t, skimmer) else "".join(skimmer.chunks(t)) for t in texts)
    tokenizer.train_from_iterator(read, trainer)
    return tokenizer.get_vocab()
