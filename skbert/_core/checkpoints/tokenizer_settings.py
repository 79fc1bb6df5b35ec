"""Settings of a tokenizer, which may be hostile: checks of those that may reach the library.

The constructors of transformers take any keyword, and some of these open files; so what is not
known here is dropped, and never read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from skbert.exceptions import ModelError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["FLAG", "LISTS", "ROLES", "SETTINGS", "TOKEN_FLAGS", "checked", "content",
           "is_token"]  # fmt: skip

# Settings that bring code, or lead around the files that were checked.
_REDIRECTING = ("auto_map", "fast_tokenizer_files", "gguf_file", "merges", "tokenizer_file",
                 "tokenizer_object", "vocab", "vocab_file")  # fmt: skip
ROLES = ("cls_token", "sep_token", "unk_token", "pad_token", "mask_token", "bos_token",
         "eos_token")  # fmt: skip
LISTS = ("extra_special_tokens", "additional_special_tokens")
TOKEN_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _is_length(value: object) -> bool:
    return type(value) in (int, float) and value > 0  # type: ignore[operator]


def _is_id(value: object) -> bool:
    return type(value) is int and value >= 0


def _is_side(value: object) -> bool:
    return value in ("left", "right")


def _are_inputs(value: object) -> bool:
    known = ("input_ids", "token_type_ids", "attention_mask")
    return isinstance(value, list) and all(name in known for name in value)


def is_token(value: object) -> bool:
    match value:
        case str():
            return True
        case {"content": str(), **rest}:
            return all(isinstance(rest.get(flag, True), bool) for flag in TOKEN_FLAGS)
    return False


def _are_tokens(value: object) -> bool:
    values = [*value.values()] if isinstance(value, dict) else value
    return isinstance(values, list) and all(map(is_token, values))


def _are_described(value: object) -> bool:
    return isinstance(value, dict) and all(
        isinstance(entry, dict) and is_token(entry) for entry in value.values()
    )


FLAG = (_is_flag, "true or false")
_SIDE = (_is_side, "'left' or 'right'")
# Settings of tokenizer_config.json that reach the library, and what they must be.
SETTINGS: dict[str, tuple[Callable[[object], bool], str]] = {
    "do_lower_case": FLAG,
    "tokenize_chinese_chars": FLAG,
    "strip_accents": FLAG,
    "split_special_tokens": FLAG,
    "add_prefix_space": FLAG,
    "trim_offsets": FLAG,
    "keep_accents": FLAG,
    "split_by_punct": FLAG,
    "add_bos_token": FLAG,
    "add_eos_token": FLAG,
    "unk_id": (_is_id, "a whole number"),
    "clean_up_tokenization_spaces": FLAG,
    "model_max_length": (_is_length, "a number above 0"),
    "padding_side": _SIDE,
    "truncation_side": _SIDE,
    "model_input_names": (_are_inputs, "a list of names of inputs"),
    "added_tokens_decoder": (_are_described, "an object of described tokens"),
    **dict.fromkeys(ROLES, (is_token, "a token")),
    **dict.fromkeys(LISTS, (_are_tokens, "a list of tokens")),
}


def checked(path: Path, table: dict[str, Any], known: tuple[str, ...]) -> dict[str, Any]:
    """The known settings of a table, each checked; one that is null counts as absent."""
    astray = [key for key in _REDIRECTING if table.get(key) is not None]
    if astray:
        raise ModelError(
            f"{path} sets {astray[0]}, which leads to code or a vocabulary outside"
            " tokenizer.json. Remove that setting if you trust the rest."
        )
    settings = {key: table[key] for key in known if table.get(key) is not None}
    for key, value in settings.items():
        is_right, right = SETTINGS[key]
        if not is_right(value):
            raise ModelError(
                f"{path} has {key}={str(value)[:80]}, where {right} is expected. Restore the file"
                " from a whole copy of the model."
            )
        settings[key] = _plain(key, value)
    return {key: value for key, value in settings.items() if value not in ([], {})}


def _plain(key: str, value: Any) -> Any:
    """A setting without the unknown fields of its tokens; tokens in lists become strings."""
    if key in LISTS:
        tokens = value.values() if isinstance(value, dict) else value
        return [token if isinstance(token, str) else token["content"] for token in tokens]
    if key == "added_tokens_decoder":
        return {at: _plain_token(token) for at, token in value.items()}
    return _plain_token(value) if isinstance(value, dict) else value


def _plain_token(token: dict[str, Any]) -> dict[str, Any]:
    return {key: token[key] for key in ("content", *TOKEN_FLAGS) if key in token}


def content(token: Any) -> Any:
    """The text of a token, which may be described by an object."""
    return token["content"] if isinstance(token, dict) else token
