"""The files of a tokenizer, which may be hostile: checks of all that may reach the library.

A tokenizer is built from the members that were checked here and from known settings only, every
part of them of a known type. Knows file formats; nothing is loaded or run.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from skbert._core.checkpoints.strict import Members, parse_json
from skbert._core.checkpoints.tokenizer_settings import (
    FLAG,
    LISTS,
    ROLES,
    SETTINGS,
    TOKEN_FLAGS,
    checked,
    content,
    is_token,
)  # fmt: skip
from skbert._core.families.record import Family
from skbert._core.families.tokenizers import TokenizerFormat
from skbert.exceptions import ModelError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

__all__ = ["TokenizerFiles", "check_tokenizer"]

_CONFIG, _MAP = "tokenizer_config.json", "special_tokens_map.json"
_NEEDS_JSON = ("PreTrainedTokenizerFast", "TokenizersBackend")  # no class for a mere vocabulary
_NESTED = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers"}  # in a Sequence
_MOST_ADDED = 10_000  # tokens beside the vocabulary's own: each makes reading text slower
_MOST_SPECIALS = 8  # special tokens around a text, or around two


@dataclass(frozen=True)
class TokenizerFiles:
    """What the library may see of a tokenizer, all of it checked."""

    members: dict[str, bytes]  # by file name
    words: dict[str, int] | None  # the vocabulary, where no tokenizer.json brings it
    vocabulary: dict[str, int]  # with all added tokens
    lowercase: bool | None  # None: not declared


def check_tokenizer(
    members: Members, family: Family, vocab_size: int, tokenizer_class: object
) -> TokenizerFiles:
    """Check the tokenizer of a folder, whose config.json names its class; return what to read.

    As in transformers, ``do_lower_case`` in tokenizer_config.json comes before tokenizer.json.
    """
    folder, data = members.folder, members.read("tokenizer.json")
    (known,) = family.tokenizers
    kind, settings = _settings(members, known, tokenizer_class, whole=data is not None)
    named = checked(folder / _MAP, members.load_object(_MAP), (*ROLES, *LISTS))
    described = _parsed(data, folder / "tokenizer.json")
    words, added = (
        _listed(members)
        if data is None
        else _described(folder / "tokenizer.json", known, described)
    )
    beside = members.load_object("added_tokens.json")
    decoder = settings.get("added_tokens_decoder", {})
    added += [*beside.items(), *((entry["content"], _id(at)) for at, entry in decoder.items())]
    _check_ids(folder, chain(words.items(), added), vocab_size)
    _check_added(folder, words, added)
    vocabulary = {**dict(added), **words}
    _check_specials(folder, known, settings if decoder else {**settings, **named}, vocabulary)
    lowercase = settings.get("do_lower_case", None if data is None else _is_uncased(described))
    _drop_mask(known.specials["mask_token"], settings, named, vocabulary, vocab_size)
    tables = {"config.json": {"model_type": family.model_type}, _MAP: named,
              "added_tokens.json": beside,
              _CONFIG: {**settings, "tokenizer_class": kind} if kind else settings}  # fmt: skip
    files = {name: json.dumps(table).encode() for name, table in tables.items() if table}
    if data is not None:
        return TokenizerFiles({**files, "tokenizer.json": data}, None, vocabulary, lowercase)
    return TokenizerFiles(files, words, vocabulary, lowercase)


# --- settings ----------------------------------------------------------------------------------


def _settings(
    members: Members, known: TokenizerFormat, declared: object, *, whole: bool
) -> tuple[object, dict[str, Any]]:
    """Class of a tokenizer, and of the settings in tokenizer_config.json those known here.

    The class ``declared`` in config.json counts where tokenizer_config.json names none.
    """
    table = members.load_object(_CONFIG)
    kind = table.get("tokenizer_class") or declared
    if kind not in (None, *known.classes, *_NEEDS_JSON):
        raise ModelError(
            f"the tokenizer in {members.folder} has the class {kind!r}, which this version does"
            " not support. Use a model with a plain BERT tokenizer."
        )
    settings = checked(members.folder / _CONFIG, table, (*SETTINGS,))
    for role in settings.keys() & {*ROLES}:
        if isinstance(settings[role], dict):
            settings[role]["__type"] = "AddedToken"
    if table.get("mask_token", "") is None:
        settings["mask_token"] = None
    return kind if whole or kind not in _NEEDS_JSON else known.new_class, settings


def _drop_mask(
    usual: str,
    settings: dict[str, Any],
    named: dict[str, Any],
    vocabulary: Mapping[str, int],
    size: int,
) -> None:
    """Drop a mask token that the vocabulary lacks, if the model has no embedding left for it."""
    tokens = {content(table.get("mask_token", usual)) for table in (settings, named)}
    if not tokens & vocabulary.keys() and max(vocabulary.values()) + 1 >= size:
        settings["mask_token"] = None
        named.pop("mask_token", None)


# --- tokenizer.json ----------------------------------------------------------------------------


def _parsed(data: bytes | None, path: Path) -> dict[str, Any]:
    if data is None:
        return {}
    described = parse_json(data, path, ModelError)
    if not isinstance(described, dict) or described.get("version") != "1.0":
        raise ModelError(
            f"{path} is no description of a tokenizer of version 1.0. Restore it from a whole"
            " copy, or save the tokenizer with this version of transformers."
        )
    return described


def _described(
    path: Path, known: TokenizerFormat, described: dict[str, Any]
) -> tuple[dict[str, Any], list[tuple[str, Any]]]:
    """Check what a tokenizer.json is made of; return its vocabulary and added tokens."""
    model = _typed_model(described.get("model"))
    for role, parts in known.parts.items():
        _check_parts(path, role, model if role == "model" else described.get(role), parts)
    _check_replacements(path, described.get("normalizer"))
    match model, described.get("added_tokens") or []:
        case {
            "vocab": dict(words), "unk_token": str(unknown), "max_input_chars_per_word": limit,
        }, [*entries] if (
            unknown in words and _is_word_limit(limit) and all(map(_is_added_token, entries))
        ):  # fmt: skip
            added = [(entry["content"], entry["id"]) for entry in entries]
        case _:
            raise ModelError(
                f"{path} has no vocabulary with an unknown token, broken added_tokens, or"
                " max_input_chars_per_word outside 1 to 1000. Restore it from a whole copy."
            )
    _check_template(path, described["post_processor"], {**dict(added), **words})
    return words, added


def _typed_model(model: Any) -> Any:
    """The model with its type, which older files do not name."""
    match model:
        case {"type": _} | {"merges": _}:
            return model
        case {"continuing_subword_prefix": _, "max_input_chars_per_word": _}:
            return {**model, "type": "WordPiece"}
    return model


def _is_word_limit(value: object) -> bool:
    return type(value) is int and 1 <= value <= 1000


def _is_added_token(entry: object) -> bool:
    match entry:
        case {"content": str(), "id": int(), **rest} if is_token(entry):
            return rest.keys() <= {*TOKEN_FLAGS}
    return False


_TEXT = (lambda value: isinstance(value, str), "a string")
_BEHAVIORS = ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous")
_FIELDS: dict[str, tuple[Callable[[object], bool], str]] = {
    **dict.fromkeys(("clean_text", "handle_chinese_chars", "lowercase", "strip_left",
                     "strip_right", "individual_digits", "cleanup"), FLAG),
    "strip_accents": (lambda value: value is None or isinstance(value, bool), "true or false"),
    "behavior": (lambda value: value in _BEHAVIORS, f"one of {', '.join(_BEHAVIORS)}"),
    "prefix": _TEXT,
    "continuing_subword_prefix": _TEXT,
}  # fmt: skip


def _check_parts(path: Path, role: str, whole: object, known: tuple[str | None, ...]) -> None:
    parts = list(_components(role, whole)) or [{"type": None}]
    for part in parts:
        if part["type"] not in known or len(parts) > 64:
            raise ModelError(
                f"{path} has the {role} {part['type']!r}, which this version does not support. It"
                f" takes only: {', '.join(filter(None, known))}. Use a model with a plain BERT"
                " tokenizer."
            )
        for key, (is_right, right) in _FIELDS.items():
            if key in part and not is_right(part[key]):
                raise ModelError(
                    f"{path} has the {role} {part['type']} with {key}={str(part[key])[:80]}, where"
                    f" {right} is expected. Restore the file from a whole copy."
                )


def _components(role: str, whole: object) -> Iterator[dict[str, Any]]:
    """Every part of a tokenizer that is no sequence; not by recursion, as nesting may be deep."""
    stack: list[Any] = [] if whole is None else [whole]
    while stack:
        part = stack.pop()
        kind = part.get("type") if isinstance(part, dict) else None
        nested = part.get(_NESTED.get(role)) if kind == "Sequence" else None
        if isinstance(nested, list):
            stack += nested
        elif isinstance(kind, str):
            yield part
        else:
            yield {"type": f"of no known shape: {str(part)[:80]}"}


def _check_replacements(path: Path, normalizer: object) -> None:
    """Refuse regular expressions, and replacements that make a text very much longer."""
    growth = 1.0
    for part in _components("normalizer", normalizer):
        if part["type"] != "Replace":
            continue
        match part:
            case {"pattern": {"String": str(pattern), **rest}, "content": str(content)} if (
                pattern and not rest
            ):
                growth *= max(1.0, len(content) / len(pattern))
            case _:
                growth = math.inf
        if growth > 100:
            raise ModelError(
                f"{path} has the normalizer Replace with {str(part.get('pattern'))[:80]}. This"
                " version replaces plain strings only, by few characters. Use a model with a"
                " plain BERT tokenizer."
            )


def _check_template(path: Path, processor: dict[str, Any], vocabulary: dict[str, Any]) -> None:
    """Refuse special tokens around a text that the vocabulary lacks, and texts out of order."""
    texts = [["A"], ["A", "B"]]
    try:
        if processor["type"] == "TemplateProcessing":
            texts = [_texts(processor, name) for name in ("single", "pair")]
            entries = processor["special_tokens"].values()
            specials = [s for e in entries for s in zip(e["tokens"], e["ids"], strict=True)]
        else:
            specials = [processor["cls"], processor["sep"]]
        good = all(vocabulary[token] == number for token, number in specials)
    except (AttributeError, KeyError, TypeError, ValueError):
        good = False
    if not good or texts != [["A"], ["A", "B"]]:
        raise ModelError(
            f"{path} has a post_processor {processor['type']} whose special tokens are not those"
            f" of the vocabulary or more than {_MOST_SPECIALS}, or whose texts are out of order."
            " Restore the file from a whole copy."
        )


def _texts(processor: dict[str, Any], name: str) -> list[str]:
    """The texts that a template names, in its order; ValueError if it holds much else."""
    texts, n_specials = [], 0
    for piece in processor[name]:
        ((kind, entry),) = piece.items()
        if entry["type_id"] not in (0, 1) or kind not in ("Sequence", "SpecialToken"):
            raise ValueError
        if kind == "Sequence":
            texts.append(entry["id"])
        else:
            n_specials += len(processor["special_tokens"][entry["id"]]["ids"])
        if n_specials > _MOST_SPECIALS or len(texts) > 2:
            raise ValueError
    return texts


def _is_uncased(described: dict[str, Any]) -> bool:
    """Whether a part of the normalizer makes text lower case."""
    return any(
        part.get("lowercase", part["type"] == "Lowercase")
        for part in _components("normalizer", described.get("normalizer"))
    )


# --- the vocabulary ----------------------------------------------------------------------------


def _listed(members: Members) -> tuple[dict[str, Any], list[tuple[str, Any]]]:
    """The words of a vocab.txt, which adds no tokens."""
    data, path = members.read("vocab.txt"), members.folder / "vocab.txt"
    if data is None:
        raise ModelError(
            f"{members.folder} holds no tokenizer, so every text would be unknown. Add the"
            " tokenizer.json or vocab.txt of the model:"
            " AutoTokenizer.from_pretrained(...).save_pretrained(...)."
        )
    try:
        text = data.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as exc:
        raise ModelError(f"{path} is not UTF-8: {exc}. Restore it from a whole copy.") from exc
    lines = text.removesuffix("\n").split("\n")
    return {line: row for row, line in enumerate(lines)}, []


def _id(number: str) -> int | str:
    return int(number) if re.fullmatch("[0-9]{1,9}", number) else number


def _check_ids(folder: Path, tokens: Iterable[tuple[str, Any]], vocab_size: int) -> None:
    for token, number in tokens:
        if type(number) is not int or not 0 <= number < vocab_size:
            raise ModelError(
                f"the tokenizer in {folder} gives {token!r} the id {number!r}, but the model has"
                f" vocab_size={vocab_size} in config.json. Put in the tokenizer that the model was"
                " trained with."
            )


def _check_added(folder: Path, words: dict[str, int], added: list[tuple[str, int]]) -> None:
    """Refuse added tokens that are blank, or share an id, or are too many."""
    owners, ids = {number: word for word, number in words.items()}, dict(words)
    for token, number in added:
        if not token.strip():
            fault = "which is blank"
        elif ids.setdefault(token, number) != number:
            fault = f"which has the id {ids[token]}, too"
        elif token not in words and owners.setdefault(number, token) != token:
            fault = f"which is that of {owners[number]!r}"
        else:
            continue
        raise ModelError(
            f"the tokenizer in {folder} adds the token {token!r} with the id {number}, {fault}."
            " Put in the tokenizer that the model was trained with."
        )
    if len(ids) - len(words) > _MOST_ADDED:
        raise ModelError(
            f"the tokenizer in {folder} adds {len(ids) - len(words)} tokens to its vocabulary, and"
            f" this version takes up to {_MOST_ADDED}. Put words that are common into the"
            " vocabulary itself, and train the model with it."
        )


def _check_specials(
    folder: Path, known: TokenizerFormat, named: dict[str, Any], vocabulary: dict[str, Any]
) -> None:
    for role in (role for role in known.specials if role != "mask_token"):
        token = content(named.get(role, known.specials[role]))
        if not token.strip() or token not in vocabulary:
            raise ModelError(
                f"the vocabulary of the tokenizer in {folder} has no {role} {token!r}. Put in the"
                " tokenizer that the model was trained with, or name the token in"
                " tokenizer_config.json."
            )
