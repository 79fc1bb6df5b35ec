"""The files of a tokenizer, which may be hostile: checks of all that may reach the library.

A tokenizer is built from the members that were checked here and from known settings only, every
part of them of a known type. Knows file formats; nothing is loaded or run.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from skbert._core.checkpoints.strict import Members
from skbert._core.checkpoints.tokenizer_parts import (
    are_merges,
    check_parts,
    format_of,
    is_uncased,
    parsed,
)
from skbert._core.checkpoints.tokenizer_settings import (
    LISTS,
    ROLES,
    SETTINGS,
    checked,
    content,
)  # fmt: skip
from skbert._core.families.record import Family
from skbert._core.families.tokenizers import AS_DESCRIBED, TokenizerFormat
from skbert.exceptions import ModelError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

__all__ = ["TokenizerFiles", "check_tokenizer"]

_CONFIG, _MAP = "tokenizer_config.json", "special_tokens_map.json"
_ADDED, _DESCRIBED = "added_tokens.json", "tokenizer.json"
_MOST_ADDED = 10_000  # tokens beside the vocabulary's own: each makes reading text slower


@dataclass(frozen=True, eq=False)
class TokenizerFiles:
    """What the library may see of a tokenizer, all of it checked. Nobody changes it."""

    members: dict[str, bytes]  # by file name
    words: dict[str, int] | None  # the vocabulary, where no tokenizer.json brings it
    vocabulary: dict[str, int]  # with all added tokens
    unknown: int | None  # the id of the unknown token, where the vocabulary says it by its place
    lowercase: bool | None  # None: not declared


class _Read(NamedTuple):
    """What the file with the vocabulary says."""

    known: TokenizerFormat
    described: dict[str, Any]  # by tokenizer.json; empty where there is none
    words: dict[str, Any]
    added: list[tuple[str, Any]]
    files: dict[str, bytes]  # that the library reads, too


class _Held(Members):
    """Members whose bytes were read before."""

    def __init__(self, folder: Path, files: Mapping[str, bytes]) -> None:
        super().__init__(folder)
        self._files = files

    def has(self, name: str) -> bool:
        """Whether there was such a file."""
        return name in self._files

    def read(self, name: str) -> bytes | None:
        """Bytes of a member, None if it is absent."""
        return self._files.get(name)


def check_tokenizer(
    members: Members, family: Family, config: Mapping[str, Any], tokenizer_class: object
) -> TokenizerFiles:
    """Check the tokenizer of a folder, whose config.json names its class; return what to read.

    Its files are read each time. What was checked last is returned again where they have the same
    bytes, and all else that the checks depend on is the same, as for the fits of a search.
    """
    names = [_CONFIG, _DESCRIBED, _MAP, _ADDED]
    listed = None if members.has(_DESCRIBED) else _listed_format(members, family)
    names += () if listed is None else listed.files
    held = ((name, data) for name in names if (data := members.read(name)) is not None)
    ids = config["vocab_size"], config.get("pad_token_id")
    return _check(members.folder, tuple(held), family, ids, json.dumps(tokenizer_class))


@lru_cache(maxsize=1)
def _check(
    folder: Path, held: tuple[tuple[str, bytes], ...], family: Family,
    ids: tuple[int, int | None], tokenizer_class: str,
) -> TokenizerFiles:  # fmt: skip
    """What there is to read of a tokenizer of these files, all of it checked.

    As in transformers, ``do_lower_case`` in tokenizer_config.json comes before tokenizer.json.
    ``ids`` are the size of the vocabulary and the padding id in config.json, and
    ``tokenizer_class`` is the JSON of the class there.
    """
    members, (vocab_size, padding) = _Held(folder, dict(held)), ids
    table = members.load_object(_CONFIG)
    declared = table.get("tokenizer_class") or json.loads(tokenizer_class)
    _check_class(folder, family, declared)
    known, described, words, added, read = _read(members, family)
    kind = _class_of(known, family, declared, whole=bool(described))
    settings = _settings(folder, table)
    named = checked(folder / _MAP, members.load_object(_MAP), (*ROLES, *LISTS))
    beside = members.load_object(_ADDED)
    decoder = settings.get("added_tokens_decoder", {})
    added += [*beside.items(), *((entry["content"], _id(at)) for at, entry in decoder.items())]
    _check_ids(folder, chain(words.items(), added), vocab_size)
    _check_distinct(folder, words)
    _check_added(folder, words, added)
    vocabulary = {**dict(added), **words}
    usual = known.classes.get(kind, {})
    tokens = {**usual, **settings, **({} if decoder else named)}
    _check_specials(folder, tokens, vocabulary)
    _check_padding(folder, family, vocabulary.get(content(tokens.get("pad_token"))), padding)
    lowercase = settings.get("do_lower_case", is_uncased(described) if described else None)
    _drop_mask(usual.get("mask_token"), settings, named, vocabulary, vocab_size)
    tables = {"config.json": {"model_type": family.model_type}, _MAP: named,
              _ADDED: beside,
              _CONFIG: {**settings, "tokenizer_class": kind}}  # fmt: skip
    files = {name: json.dumps(table).encode() for name, table in tables.items() if table}
    return TokenizerFiles(
        members=files | read,
        words=None if read else words,
        vocabulary=vocabulary,
        unknown=described.get("model", {}).get("unk_id"),
        lowercase=lowercase,
    )


def _read(members: Members, family: Family) -> _Read:
    """The vocabulary, from tokenizer.json where there is one."""
    data, path = members.read(_DESCRIBED), members.folder / _DESCRIBED
    if data is None:
        known = _listed_format(members, family) or _no_tokenizer(members.folder, family)
        words, files = _listed(members, known)
        return _Read(known, {}, words, [], files)
    described = parsed(data, path)
    known = format_of(path, described, family)
    return _Read(known, described, *check_parts(path, known, described), {path.name: data})


# --- class and settings ------------------------------------------------------------------------


def _check_class(folder: Path, family: Family, declared: object) -> None:
    known = [name for each in family.tokenizers for name in each.classes]
    if declared not in (None, *AS_DESCRIBED, *known):
        names = " or ".join(each.name for each in family.tokenizers)
        raise ModelError(
            f"the tokenizer in {folder} has the class {declared!r}, which this version does not"
            f" support for a model of the type {family.model_type!r}. Use a model with a"
            f" tokenizer of the kind {names}, such as {family.tokenizers[0].new_class}."
        )


def _class_of(known: TokenizerFormat, family: Family, declared: Any, *, whole: bool) -> str:
    """The class that opens a tokenizer: the one declared, where it is for tokenizers of the kind.

    The class ``declared`` in config.json counts where tokenizer_config.json names none.
    """
    if declared in known.classes or (whole and declared in AS_DESCRIBED):
        return str(declared)
    if whole and (declared or known is not family.tokenizers[0]):
        return AS_DESCRIBED[0]
    return known.new_class


def _settings(folder: Path, table: dict[str, Any]) -> dict[str, Any]:
    """The settings of tokenizer_config.json that are known here."""
    settings = checked(folder / _CONFIG, table, (*SETTINGS,))
    for role in settings.keys() & {*ROLES}:
        if isinstance(settings[role], dict):
            settings[role]["__type"] = "AddedToken"
    if table.get("mask_token", "") is None:
        settings["mask_token"] = None
    return settings


def _drop_mask(
    usual: str | None,
    settings: dict[str, Any],
    named: dict[str, Any],
    vocabulary: Mapping[str, int],
    size: int,
) -> None:
    """Drop a mask token that the vocabulary lacks, if the model has no embedding left for it."""
    tokens = {content(table.get("mask_token", usual)) for table in (settings, named)}
    if not tokens & {None, *vocabulary} and max(vocabulary.values()) + 1 >= size:
        settings["mask_token"] = None
        named.pop("mask_token", None)


# --- the vocabulary ----------------------------------------------------------------------------


def _listed_format(members: Members, family: Family) -> TokenizerFormat | None:
    """The kind of tokenizer of which a folder has the vocabulary, without a tokenizer.json."""
    with_files = (known for known in family.tokenizers if known.files)
    return next((known for known in with_files if all(map(members.has, known.files))), None)


def _no_tokenizer(folder: Path, family: Family) -> NoReturn:
    """Refuse a folder without a vocabulary."""
    models = [path.name for path in folder.iterdir() if path.suffix == ".model"]
    if models:
        raise ModelError(
            f"{folder} holds the vocabulary {min(models)}, but no tokenizer.json,"
            " which is the only form of such a tokenizer that this version reads. Open it once"
            " where sentencepiece is installed, and save it:"
            " AutoTokenizer.from_pretrained(...).save_pretrained(...)."
        )
    files = " or ".join(["tokenizer.json", *(
        " and ".join(known.files) for known in family.tokenizers if known.files)])  # fmt: skip
    raise ModelError(
        f"{folder} holds no tokenizer, so every text would be unknown. Add the"
        f" {files} of the model:"
        " AutoTokenizer.from_pretrained(...).save_pretrained(...)."
    )


def _listed(members: Members, known: TokenizerFormat) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The words of a vocabulary without a tokenizer.json, and files that the library reads."""
    if known.model == "WordPiece":
        return {word: row for row, word in enumerate(_lines(members, "vocab.txt"))}, {}
    words = members.load_object("vocab.json")
    lines = [line for line in _lines(members, "merges.txt") if not line.startswith("#version")]
    if not are_merges([line for line in lines if line], words):
        raise ModelError(
            f"{members.folder / 'merges.txt'} has merges that make no words of vocab.json of two"
            " others. Put in both files of the tokenizer that the model was trained with."
        )
    texts = {"vocab.json": json.dumps(words), "merges.txt": "\n".join(["#version: 0.2", *lines])}
    return words, {name: text.encode() for name, text in texts.items()}


def _lines(members: Members, name: str) -> list[str]:
    path = members.folder / name
    try:
        text = (members.read(name) or b"").decode("utf-8")
    except UnicodeDecodeError as exc:
        raise ModelError(f"{path} is not UTF-8: {exc}. Restore it from a whole copy.") from exc
    return text.replace("\r\n", "\n").replace("\r", "\n").removesuffix("\n").split("\n")


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


def _check_distinct(folder: Path, words: Mapping[str, int]) -> None:
    """Refuse two words with one id, of which the library keeps one only."""
    owners: dict[int, str] = {}
    for word, number in words.items():
        if owners.setdefault(number, word) != word:
            raise ModelError(
                f"the tokenizer in {folder} gives {owners[number]!r} and {word!r} the same id,"
                f" {number}. Put in the tokenizer that the model was trained with."
            )


def _check_added(folder: Path, words: dict[str, int], added: list[tuple[str, int]]) -> None:
    """Refuse added tokens that are blank, or share an id, or are too many.

    Runs of white space are tokens of ModernBERT's tokenizer, and others that come from GPT-NeoX's.
    """
    owners, ids = {number: word for word, number in words.items()}, dict(words)
    for token, number in added:
        if len(token) < 2 and not token.strip():
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


def _check_specials(folder: Path, named: dict[str, Any], vocabulary: dict[str, Any]) -> None:
    """Refuse a tokenizer that lacks one of its special tokens, which its class would add."""
    for role in ("cls_token", "sep_token", "unk_token", "pad_token"):
        token = content(named.get(role))
        if token is not None and (not token.strip() or token not in vocabulary):
            raise ModelError(
                f"the vocabulary of the tokenizer in {folder} has no {role} {token!r}. Put in the"
                " tokenizer that the model was trained with, or name the token in"
                " tokenizer_config.json."
            )


def _check_padding(
    folder: Path, family: Family, padding: int | None, of_model: int | None
) -> None:
    """Refuse a padding id that is not the model's, where positions count from that."""
    if family.counts_from_padding and padding not in (None, of_model):
        raise ModelError(
            f"the tokenizer in {folder} pads with the id {padding}, but config.json has"
            f" pad_token_id={of_model}, from which a model of the type"
            f" {family.model_type!r} counts positions. Put in the tokenizer that the model was"
            " trained with."
        )
