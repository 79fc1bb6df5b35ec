"""What reads text with a tokenizer, once for all networks that have it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol
from weakref import WeakKeyDictionary

from skbert._core.text.tokens import TextTokenizer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tokenizers import Tokenizer

__all__ = ["text_tokenizer_of"]


class _Opened(Protocol):
    """A tokenizer as transformers opens it."""

    backend_tokenizer: Tokenizer
    special_tokens_map: Mapping[str, str]


_KNOWN: WeakKeyDictionary[_Opened, TextTokenizer] = WeakKeyDictionary()


def text_tokenizer_of(tokenizer: _Opened) -> TextTokenizer:
    """What reads text with the backend of a tokenizer as it was opened."""
    known = _KNOWN.get(tokenizer)
    if known is None:
        specials = tokenizer.special_tokens_map
        known = _KNOWN[tokenizer] = TextTokenizer(
            tokenizer.backend_tokenizer, specials.get("mask_token"), specials.get("unk_token")
        )
    return known
